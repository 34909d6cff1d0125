"""``gpusense export --otlp URL run.gpusense``: a recorded session to an OpenTelemetry endpoint, with its own times."""

import argparse
import sys

from .._errors import GpuSenseError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", help="the session file")
    parser.add_argument(
        "--otlp",
        nargs="?",
        const="",
        required=True,
        metavar="URL",
        help="OTLP/HTTP base URL, such as http://localhost:4318; without URL the OTEL_EXPORTER_OTLP_* variables count",
    )
    parser.add_argument("--trace-all", action="store_true", help="every operation, not only those above the threshold")
    parser.add_argument("--threshold-us", type=float, metavar="N", help="another threshold than the recording's")
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help="for each request (10)")


def main(args: argparse.Namespace) -> int:
    """0 where the endpoint took every span, 1 where it did not, 2 where the file or the packages are missing."""
    from .. import load
    from ..exporters.opentelemetry import export_session

    try:
        session = load(args.file, threshold_us=args.threshold_us, trace_all=args.trace_all)
        done = export_session(session, args.otlp or None, timeout_s=args.timeout)
    except (GpuSenseError, OSError) as error:
        print(f"gpusense export: {error}", file=sys.stderr)
        return 2
    except ImportError as error:
        print(f"gpusense export: {error}; pip install 'gpusense[otel]'", file=sys.stderr)
        return 2
    print(f"{done.sent} spans sent, {done.refused} refused, trace {done.trace_id}", file=sys.stderr)
    if done.skipped:
        print("skipped: " + ", ".join(f"{count} {reason}" for reason, count in done.skipped.items()), file=sys.stderr)
    if done.only_counted:
        hint = "" if args.trace_all else "; --trace-all sends them too"
        print(f"{done.only_counted} operations below the threshold were only counted{hint}", file=sys.stderr)
    return 1 if done.refused else 0

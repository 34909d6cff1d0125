"""Send a session to an OpenTelemetry endpoint, with its original times."""

import argparse
import os
import re
import sys

from .._runtime.text import count_text, terminal
from ._arguments import microseconds, seconds

_ENDPOINT, _DEFAULT = "OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4318"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", metavar="SESSION", help="session file")
    parser.add_argument(
        "--otlp",
        nargs="?",
        const="",
        required=True,
        metavar="URL",
        help="OTLP/HTTP base URL, such as http://localhost:4318; without URL the OTEL_EXPORTER_OTLP_* variables count",
    )
    parser.add_argument(
        "--trace-all", action="store_true", help="send every operation, not only those above the threshold"
    )
    parser.add_argument(
        "--threshold-us", type=microseconds, metavar="N", help="send operations of N µs or more (as recorded)"
    )
    parser.add_argument(
        "--no-summed-spans", action="store_true", help="leave out the span that sums up a block's short work"
    )
    parser.add_argument("--timeout", type=seconds, metavar="SECONDS", help="how long to wait for each request (10)")


def main(args: argparse.Namespace) -> int:
    """0 where the endpoint took every span, 1 where it did not, 2 where the packages for it are missing."""
    if args.file is None and args.otlp and not _is_endpoint(args.otlp):  # --otlp SESSION: the URL was left out
        args.file, args.otlp = args.otlp, ""
    if args.file is None:
        sys.stderr.write("gpusense export: name the session file to send\n")
        return 2
    from .._capi import demangle
    from ..exporters.opentelemetry import export_session
    from ._sessions import loaded

    demangle.bring_in()
    session = loaded([args.file], threshold_us=args.threshold_us, trace_all=args.trace_all, each_block=True)
    try:
        done = export_session(session, args.otlp or None, timeout_s=args.timeout, summed_spans=not args.no_summed_spans)
    except ImportError as error:
        sys.stderr.write(f"gpusense export: {error}\n")
        return 2
    except ValueError as error:
        sys.stderr.write(terminal(f"gpusense export: --otlp: {error}\n"))
        return 2
    to = args.otlp or os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or os.environ.get(_ENDPOINT) or _DEFAULT
    lines = [f"{count_text(done.sent, 'span')} sent, {done.refused:,} refused, trace {done.trace_id}; to {to}"]
    if done.why:
        lines.append(f"refused: {done.why}")
    if done.warned:
        lines.append(f"the endpoint says: {done.warned}")
    if done.skipped:
        lines.append("skipped: " + ", ".join(f"{count:,} {reason}" for reason, count in done.skipped.items()))
    if done.only_counted:
        hint = "" if args.trace_all else "; --trace-all sends all"
        below = "below the threshold"
        short = count_text(done.only_counted, f"operation {below} was", f"operations {below} were")
        lines.append(f"{short} only summed{hint}")
    sys.stderr.write(terminal("\n".join(lines) + "\n"))
    return 1 if done.refused else 0


def _is_endpoint(text: str) -> bool:
    """A URL, or one that lacks its scheme."""
    return "://" in text or (re.fullmatch(r"[\w.\-]+:\d+(/.*)?", text) is not None and not os.path.exists(text))

"""``gpusense run``: a Python program, unchanged, then at most fifteen lines on stderr saying what it did on the GPU."""

import argparse
import atexit
import os
import sys

from .. import integrations
from .._runtime.config import from_environment
from .._runtime.errors import GpuSenseError
from . import _syscalls
from ._arguments import microseconds, names, numbers, size_bytes
from ._ending import Ending, Spans, flush_on_sigterm, remove
from ._program import Program, execute, problem
from ._proton import share_cupti

_EPILOG = """examples:
  gpusense run train.py --epochs 3
  gpusense run -o run.gpusense -m package.train --epochs 3
  gpusense run -c "import torch; torch.ones(9, device='cuda').sum()"
"""
_TAKES_VALUE = ("-o", "--output", "--threshold-us", "--backends", "--devices", "--buffer-size", "--otlp")
_SETTINGS = ("threshold_us", "trace_all", "backends", "devices", "buffer_size", "wgpu_copies")


def main(argv: list[str]) -> int:
    """Runs the program; leaves with its exit code, its exception or its signal."""
    own, rest = _split(argv)
    settings = parser().parse_args(own)
    program = _program(rest)
    if program is None:
        _say(parser().format_usage() + "gpusense run: name a script, -m MODULE or -c CODE\n")
        return 2
    reason = problem(program)
    if reason:
        _say(f"gpusense run: {reason}\n")
        return 2
    try:
        if settings.syscalls is not None:
            _syscalls.restart(argv, settings.syscalls)
        ending = _start(settings)
    except GpuSenseError as error:
        _say(f"gpusense run: {error}\n")
        return 2
    if ending is None:
        execute(program)
        return 0
    atexit.register(ending.at_exit)
    flush_on_sigterm(ending)
    try:
        execute(program)
    except BaseException as error:
        ending.exit_code = _exit_code(error)
        raise
    return 0


def _say(text: str) -> None:
    """On standard error; where it is closed or full, the program runs all the same."""
    try:
        if sys.stderr is not None:
            sys.stderr.write(text)
    except (OSError, ValueError):
        pass


def _exit_code(error: BaseException) -> int:
    if not isinstance(error, SystemExit):
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    if error.code is None:
        return 0
    return error.code if isinstance(error.code, int) else 1


def parser() -> argparse.ArgumentParser:
    """What ``gpusense run`` takes, without the program and its arguments."""
    parser = argparse.ArgumentParser(
        prog="gpusense run",
        usage="gpusense run [options] (SCRIPT | -m MODULE | -c CODE) [arguments of the program]",
        description="Run a Python program unchanged and say on stderr what it did on the GPU.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "-o", "--output", metavar="PATH", help="keep the session in this file (made readable to you alone)"
    )
    parser.add_argument("--trace-all", action="store_true", default=None, help="keep every record, however short")
    parser.add_argument("--threshold-us", type=microseconds, metavar="N", help="keep records of N µs and more (100)")
    parser.add_argument("--backends", type=names, metavar="A,B", help="use only these sources, e.g. cupti,nvml")
    parser.add_argument("--devices", type=numbers, metavar="N,N", help="record only these CUDA devices")
    parser.add_argument(
        "--buffer-size", type=size_bytes, metavar="BYTES", help="size of an activity buffer, e.g. 256K or 1M"
    )
    parser.add_argument("--otlp", metavar="URL", help="also send spans to this OpenTelemetry endpoint")
    parser.add_argument(
        "--syscalls",
        nargs="?",
        const=_syscalls.DEFAULT,
        metavar="A,B",
        help=f"also record system calls, through strace ({_syscalls.DEFAULT}; others by --syscalls=A,B)",
    )
    parser.add_argument(
        "--no-integrations", action="store_true", help="open no blocks for what torch, CuPy or JAX do by themselves"
    )
    parser.add_argument(
        "--wgpu-copies", action="store_true", default=None, help="also time wgpu's copies on the GPU and its clears"
    )
    parser.add_argument("--live", action="store_true", help="decode while the program runs instead of afterwards")
    return parser


def _split(argv: list[str]) -> tuple[list[str], list[str]]:
    """Our options, and from the program's name on everything else, untouched."""
    at = 0
    while at < len(argv):
        word = argv[at]
        if word == "--":
            return argv[:at], argv[at + 1 :]
        if not word.startswith("-") or word[:2] in ("-m", "-c"):
            break
        at += 2 if word in _TAKES_VALUE else 1
    return argv[:at], argv[at:]


def _program(rest: list[str]) -> Program | None:
    if not rest:
        return None
    how = {"-m": "module", "-c": "code"}.get(rest[0][:2])
    if how is None:
        return Program("script", rest[0], tuple(rest[1:]))
    if len(rest[0]) > 2:
        return Program(how, rest[0][2:], tuple(rest[1:]))
    return Program(how, rest[1], tuple(rest[2:])) if len(rest) > 1 else None


def _start(settings: argparse.Namespace) -> Ending | None:
    """The recording that has begun; None where it was switched off or could not begin, which is said and not fatal."""
    if os.environ.get("GPUSENSE", "").strip().lower() == "off":
        _say("gpusense: nothing is recorded, because GPUSENSE=off\n")
        return None
    for sentence in from_environment()[1]:
        _say(f"gpusense: {sentence}\n")
    # Spans leave while the program runs, unless a file is kept: then they leave from the file, exact, at the end.
    live = settings.live or (settings.otlp is not None and settings.output is None)
    path, temporary = settings.output, settings.output is None and not live
    chosen = {name: getattr(settings, name) for name in _SETTINGS if getattr(settings, name) is not None}
    try:
        from .._tracing.select import control

        if temporary:
            path = _temporary()
        _load_what_ending_needs()
        recording = control.start_session(mode="live" if live else "file", path=None if live else path, **chosen)
        _syscalls.attach(recording.tracer)
        if not settings.no_integrations:
            integrations.watch(recording.tracer)
        ending = Ending(recording, path, temporary, live, Spans.of(settings.otlp, live))
        ending.folder = share_cupti()
        return ending
    except GpuSenseError:
        remove(path if temporary else None)
        raise
    except Exception as error:  # noqa: BLE001 - the program runs whatever becomes of us
        remove(path if temporary else None)
        _say(f"gpusense: nothing is recorded: {type(error).__name__}: {error}\n")
        return None


def _load_what_ending_needs() -> None:
    """Importing at exit would come too late: the program may have changed folders, limits or imports by then.

    And it would turn Ctrl-C's exit status into 1: named tuples are made by ``eval``, after which the interpreter
    forgets that a KeyboardInterrupt ended the program.
    """
    from ..report import text
    from ..session import Session, _replay, _writer  # noqa: F401

    text.summary(Session(), path="")


def _temporary() -> str:
    import tempfile

    handle, path = tempfile.mkstemp(prefix="gpusense-", suffix=".gpusense")
    os.close(handle)
    return path

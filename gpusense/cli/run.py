"""``gpusense run``: a Python program, unchanged, then at most fifteen lines on stderr saying what it did on the GPU."""

import argparse
import atexit
import os
import signal
import sys
from typing import Any

from .._errors import GpuSenseError
from ._arguments import microseconds, names, numbers, size_bytes
from ._program import Program, execute, problem

_EPILOG = """examples:
  gpusense run train.py --epochs 3
  gpusense run -o run.gpusense -m package.train --epochs 3
  gpusense run -c "import torch; torch.ones(9, device='cuda').sum()"
"""
_TAKES_VALUE = ("-o", "--output", "--threshold-us", "--backends", "--devices", "--buffer-size", "--otlp")
_SETTINGS = ("threshold_us", "trace_all", "backends", "devices", "buffer_size")
_SIGTERM_WAIT_S = 5.0
_OTLP_WAIT_S = 2.0


def main(argv: list[str]) -> int:
    """Runs the program; leaves with its exit code, its exception or its signal."""
    own, rest = _split(argv)
    settings = _parser().parse_args(own)
    program = _program(rest)
    if program is None:
        _parser().print_usage(sys.stderr)
        sys.stderr.write("gpusense run: name a script, -m MODULE or -c CODE\n")
        return 2
    reason = problem(program)
    if reason:
        sys.stderr.write(f"gpusense run: {reason}\n")
        return 2
    try:
        ending = _start(settings)
    except GpuSenseError as error:
        sys.stderr.write(f"gpusense run: {error}\n")
        return 2
    if ending is None:
        execute(program)
        return 0
    atexit.register(ending.at_exit)
    _flush_on_sigterm(ending)
    try:
        execute(program)
    except BaseException as error:
        ending.exit_code = _exit_code(error)
        raise
    return 0


def _exit_code(error: BaseException) -> int:
    if not isinstance(error, SystemExit):
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    if error.code is None:
        return 0
    return error.code if isinstance(error.code, int) else 1


def _parser() -> argparse.ArgumentParser:
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


def _start(settings: argparse.Namespace) -> "_Ending | None":
    """The recording that has begun; None where it was switched off or could not begin, which is said and not fatal."""
    if os.environ.get("GPUSENSE", "").strip().lower() == "off":
        sys.stderr.write("gpusense: nothing is recorded, because GPUSENSE=off\n")
        return None
    # Spans leave while the program runs, unless a file is kept: then they leave from the file, exact, at the end.
    live = settings.live or (settings.otlp is not None and settings.output is None)
    path, temporary = settings.output, settings.output is None and not live
    if temporary:
        path = _temporary()
    chosen = {name: getattr(settings, name) for name in _SETTINGS if getattr(settings, name) is not None}
    try:
        from .._select import start_session

        recording = start_session(mode="live" if live else "file", path=None if live else path, **chosen)
        return _Ending(recording, path, temporary, live, _Spans.of(settings.otlp, live))
    except GpuSenseError:
        _remove(path if temporary else None)
        raise
    except Exception as error:  # noqa: BLE001 - the program runs whatever becomes of us
        _remove(path if temporary else None)
        sys.stderr.write(f"gpusense: nothing is recorded: {type(error).__name__}: {error}\n")
        return None


class _Spans:
    """Where ``--otlp`` sends spans: as they come, or all from the finished session."""

    def __init__(self, url: str, live: bool) -> None:
        self._url = url
        self._live = live
        self._root: Any = None
        if live:
            from ..exporters import opentelemetry

            opentelemetry.instrument(endpoint=url, private=True)
            self._root = opentelemetry.start_root_span()

    @classmethod
    def of(cls, url: str | None, live: bool) -> "_Spans | None":
        try:
            return None if url is None else cls(url, live)
        except ImportError as error:
            raise GpuSenseError(f"--otlp: {error}; pip install 'gpusense[otel]'") from None
        except ValueError as error:
            raise GpuSenseError(f"--otlp: {error}") from None

    def end(self, session: Any, exit_code: int) -> str:
        """Sends what is left, bounded in time, and says what became of it."""
        from ..exporters import opentelemetry

        if not self._live:
            done = opentelemetry.export_session(session, self._url, timeout_s=_OTLP_WAIT_S)
            return f"spans: {done.sent} sent to {self._url}, {done.refused} refused"
        if self._root is not None:
            self._root.end(exit_code)
        sent = opentelemetry.uninstrument(_OTLP_WAIT_S)
        return f"spans: sent to {self._url}" if sent else f"spans: {self._url} did not take all of them in time"


def _temporary() -> str:
    import tempfile

    handle, path = tempfile.mkstemp(prefix="gpusense-", suffix=".gpusense")
    os.close(handle)
    return path


def _remove(path: str | None) -> None:
    if path is not None:
        try:
            os.unlink(path)
        except OSError:
            pass


class _Ending:
    """Ends the recording once, in the process that began it, and writes the answer to the stderr of that moment."""

    def __init__(self, recording: Any, path: str | None, temporary: bool, live: bool, spans: "_Spans | None") -> None:
        self.exit_code = 0
        self._recording = recording
        self._path = path
        self._temporary = temporary
        self._live = live
        self._spans = spans
        self._pid = os.getpid()
        self._done = False
        self._stderr = _identity()

    def at_exit(self) -> None:
        if self._done or os.getpid() != self._pid:
            return
        self._done = True
        try:
            session = self._recording.finish()
            if self._live and self._path is not None:
                from ..session import save

                save(session, self._path)
            self._answer(session)
        except KeyboardInterrupt:
            pass  # a second Ctrl-C: the user does not want to wait for an answer
        except Exception as error:  # noqa: BLE001 - the program's exit is not ours to disturb
            self._write(f"gpusense: the session could not be ended: {type(error).__name__}: {error}\n")
        finally:
            _remove(self._path if self._temporary else None)

    def _answer(self, session: Any) -> None:
        from ..report import text
        from ..report.style import style_of

        style = style_of(sys.__stderr__)
        kept = None if self._temporary else self._path
        spans = self._spans.end(session, self.exit_code) if self._spans is not None else None
        self._write("\n".join(text.summary(session, style, kept, spans)) + "\n")

    def _write(self, answer: str) -> None:
        """Straight to the descriptor, so that nothing stays buffered to fail when the interpreter ends."""
        if self._stderr is None or _identity() != self._stderr:
            return  # the program closed or replaced its stderr; what now has that number is not ours to write to
        try:
            if sys.stderr is not None:
                sys.stderr.flush()
            encoding = getattr(sys.__stderr__, "encoding", None) or "utf-8"
            rest = answer.encode(encoding, "replace")
            while rest:
                rest = rest[os.write(2, rest) :]
        except (OSError, ValueError):
            pass


def _identity() -> tuple[int, int] | None:
    """Which file descriptor 2 is."""
    try:
        found = os.fstat(2)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _flush_on_sigterm(ending: _Ending) -> None:
    """Where nobody handles SIGTERM, it still ends the process as that signal does, but the session is flushed first."""
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return

    def end(number: int, _frame: object) -> None:
        if os.getpid() == pid:
            import threading

            # Not here: the main thread may hold a lock that ending needs, and it is this handler that interrupts it.
            ender = threading.Thread(target=ending.at_exit, name="gpusense-end", daemon=True)
            ender.start()
            ender.join(_SIGTERM_WAIT_S)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    pid = os.getpid()
    signal.signal(signal.SIGTERM, end)

"""How a recorded run ends: once, in its own process, quietly, whatever state the program left it in."""

import os
import signal
import sys
from _thread import get_ident
from typing import Any

from .._runtime import threads
from .._runtime.errors import GpuSenseError, name_extra
from .._runtime.process import file_of
from ._proton import unshare

_SIGTERM_WAIT_S = 5.0
_OTLP_WAIT_S = 2.0


class Ending:
    """Ends the recording once, in the process that began it, and writes the answer to the stderr of that moment."""

    def __init__(self, recording: Any, path: str | None, temporary: bool, live: bool, spans: "Spans | None") -> None:
        self.exit_code = 0
        self._recording = recording
        self._path = path
        self._temporary = temporary
        self._live = live
        self._spans = spans
        self._pid = os.getpid()
        self._done = False
        self._stderr = file_of(2)
        self.folder: str | None = None  # of a library that other tools are to share

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
            remove(self._path if self._temporary else None)
            if self.folder is not None:
                unshare(self.folder)

    def _answer(self, session: Any) -> None:
        from ..report import text
        from ..report.style import style_of

        style = style_of(sys.__stderr__)
        kept = None if self._temporary else self._path
        spans = self._spans.end(session, self.exit_code) if self._spans is not None else None
        self._write("\n".join(text.summary(session, style, kept, spans)) + "\n")

    def _write(self, answer: str) -> None:
        """Straight to the descriptor, so that nothing stays buffered to fail when the interpreter ends."""
        if self._stderr is None or file_of(2) != self._stderr:
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


def flush_on_sigterm(ending: Ending) -> None:
    """Where nobody handles SIGTERM, it still ends the process as that signal does, but the session is flushed first."""
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return

    def end(number: int, _frame: object) -> None:
        # Not here: the main thread may hold a lock that ending needs, and it is this handler that interrupts it.
        ender = threads.start(ending.at_exit, "gpusense-end")
        if ender is not None:
            ender.join(_SIGTERM_WAIT_S)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, end)
    if hasattr(os, "register_at_fork"):
        _keep_from_children(end)


def _keep_from_children(handler: Any) -> None:
    """Gives forked children the default back; blocked meanwhile, so that no SIGTERM falls between the two unheard."""
    masks: dict[int, Any] = {}

    def before() -> None:
        masks[get_ident()] = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def after() -> None:
        mask = masks.pop(get_ident(), None)
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def after_in_child() -> None:
        if signal.getsignal(signal.SIGTERM) is handler:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        after()

    os.register_at_fork(before=before, after_in_parent=after, after_in_child=after_in_child)


class Spans:
    """Where ``--otlp`` sends spans: as they come, or all from the finished session."""

    def __init__(self, url: str, live: bool) -> None:
        self._url = url
        self._live = live
        self._root: Any = None
        from ..exporters import opentelemetry

        self._off = opentelemetry.switched_off(os.environ)
        if self._off:
            return
        from ..exporters.opentelemetry import _replay

        self._resource = _replay.prepare()
        if live:
            opentelemetry.instrument(endpoint=url, private=True)
            self._root = opentelemetry.start_root_span()

    @classmethod
    def of(cls, url: str | None, live: bool) -> "Spans | None":
        """None without ``url``; raises :class:`GpuSenseError` where spans cannot be sent there."""
        try:
            return None if url is None else cls(url, live)
        except ImportError as error:
            raise GpuSenseError(f"--otlp: {name_extra(error, 'otel')}") from None
        except ValueError as error:
            raise GpuSenseError(f"--otlp: {error}") from None

    def end(self, session: Any, exit_code: int) -> str:
        """Sends what is left, bounded in time, and says what became of it."""
        try:
            return self._send(session, exit_code)
        except Exception as error:  # noqa: BLE001 - the rest of the answer is worth having
            return f"spans: not sent to {self._url}: {type(error).__name__}: {error}"

    def _send(self, session: Any, exit_code: int) -> str:
        if self._off:
            return f"spans: not sent, because {self._off}"
        from ..exporters import opentelemetry
        from ..exporters.opentelemetry import _replay

        if not self._live:
            done = _replay.replay(session, self._url, timeout_s=_OTLP_WAIT_S, resource=self._resource)
            return f"spans: {done.sent} sent to {self._url}, {done.refused} refused"
        if self._root is not None:
            self._root.end(exit_code)
        sent = opentelemetry.uninstrument(_OTLP_WAIT_S)
        return f"spans: sent to {self._url}" if sent else f"spans: {self._url} did not take all of them"


def remove(path: str | None) -> None:
    """Deletes a temporary file, if there is one and it can be."""
    if path is not None:
        try:
            os.unlink(path)
        except OSError:
            pass

"""How a recorded run ends: once, in its own process, quietly, whatever state the program left it in."""

import gc
import os
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

from .._runtime import threads
from .._runtime.cache import SUFFIX
from .._runtime.clock import now_ns
from .._runtime.errors import GpuSenseError, name_extra
from .._runtime.process import file_of
from .._runtime.text import count_text, one_line, terminal, time_text
from .._tracing import run
from ._outputs import KEPT, beside, written
from ._proton import unshare
from ._runs import MAIN, Folder, prune
from ._sessions import CHILDREN, OF_ALL_WORK, SOMEHOW, joined
from ._window import Passes, Window

_OTLP_WAIT_S = 2.0
_READ_S = 10.0  # that reading the sessions of processes which the program started may take
_SILENT_S = 1.0  # that working out the answer may take without a word
_MOST_NAMED = 3  # programs that are not recorded
_ANSWERED = "answered"  # empty file in a run's folder: nobody else need answer
_IN_MEMORY = (
    "gpusense: Nothing is kept of this run: the program was ended by %s, and --live keeps records only in its memory.\n"
)


class Ending:
    """Ends the recording once, in the process that began it, and writes the answer to the stderr of that moment.

    ``folder`` is the run's, None where no file can be made; ``path`` the session that was asked for, ``report`` the
    report of ``form``.
    """

    def __init__(
        self, folder: Folder | None, path: str | None, report: str | None, form: str | None, settings: Any
    ) -> None:
        self.folder, self.shown = folder, path
        self.path = None if path is None else os.path.abspath(path)  # the program may change its folder
        self.exit_code = 0
        self.interrupted = False  # the program, by Ctrl-C
        self.recording: Any = None
        self.spans: Spans | None = None
        # Why capture does not begin as CUDA does, nor in processes that the program starts.
        self.not_followed = "" if folder is not None else "no temporary folder can be made"
        self.shared: str | None = None  # folder of a library that other tools are to share
        self._report, self._form = None if report is None else os.path.abspath(report), form
        self._quiet, self._open, self._otlp = settings.quiet, settings.open, settings.otlp
        self._window = Window(settings.delay, settings.duration)
        self._passes = Passes(settings.block, settings.passes or (1, 1)) if settings.block is not None else None
        self._pid = os.getpid()
        self._done = False
        self._spare = _Spare()
        # Where the answer finds what it imports, whatever the program makes of sys.path or has in its folder.
        self._search = [folder for folder in sys.path if folder not in ("", _folder())]
        self._stderr = file_of(2)

    def session_file(self) -> str | None:
        """Where the session is written as the program runs; None where no file can be."""
        return self.path or (os.path.join(self.folder.path, MAIN) if self.folder is not None else None)

    def children_files(self) -> tuple[str, str]:
        """Beginning and end of the paths for the sessions of processes that the program starts."""
        if self.path is None:
            assert self.folder is not None
            return os.path.join(self.folder.path, ""), SUFFIX
        before, _, after = beside(self.path, "\0").partition("\0")
        return before, after

    def give_up(self) -> None:
        """Nothing is recorded after all."""
        if self.folder is not None:
            self.folder.remove()

    def program_begins(self) -> None:
        """From here on the run is the program's."""
        self._spare.take()
        recorder = self.recording.tracer.recorder
        self._window.begin(self.recording.tracer)
        if self._passes is not None:
            self._passes.begin(self.recording.tracer)
        recorder.facts["program_start_ns"] = now_ns()
        recorder.store.note(recorder)

    def on_os_exit(self, status: int) -> None:
        """The program ends itself, with none of its exit handlers run."""
        self.exit_code = status & 0xFF
        self.at_exit()

    def at_exit(self) -> None:
        if self._done or os.getpid() != self._pid:
            return
        self._done = True
        try:
            self._spare.give_back()
            self._end()
        except KeyboardInterrupt:
            self._mark()  # a second Ctrl-C: the user does not want to wait for an answer
        except Exception as error:  # noqa: BLE001 - the program's exit is not ours to disturb
            self._say(f"gpusense: the session could not be ended: {type(error).__name__}: {error}\n")
        finally:
            if self.shared is not None:
                unshare(self.shared)
            if self.folder is not None and not self.folder.kept:
                self.folder.remove()
            if self.interrupted:
                _remember_the_interrupt()

    def afterwards(self, status: int | None) -> None:
        """In another process, once the program's has ended: the answer, unless it was given there."""
        folder = self.folder
        if folder is None or not os.path.isdir(folder.path) or os.path.exists(os.path.join(folder.path, _ANSWERED)):
            return
        try:
            self._write(self._from_the_file(_ended_by(status)))
            if folder.kept:
                prune()
        except Exception as error:  # noqa: BLE001 - nothing else can say it
            self._write(f"gpusense: the session could not be read: {type(error).__name__}: {error}\n")
        finally:
            if not folder.kept:
                folder.remove()

    def _from_the_file(self, how: str) -> str:
        from ..session import load
        from ..session._unrecorded import ENDED_BY
        from ..session._writer import add_meta

        path, facts = self.session_file(), {"program_end_ns": now_ns(), ENDED_BY: how}
        if path is None or not os.path.exists(path):
            return "" if self._quiet else _IN_MEMORY % how
        try:
            add_meta(path, facts)  # for whoever reads it later
        except (OSError, GpuSenseError):
            pass
        session = load(path, each_block=self._otlp is not None)
        if session.meta.get("complete") is False:
            session.meta.update(facts)
        self.spans = Spans.of(self._otlp, live=False)
        return self._said_of(session)

    def _mark(self) -> None:
        """The answer is given, or not wanted: :meth:`afterwards` is silent."""
        if self.folder is not None:
            try:
                os.close(os.open(os.path.join(self.folder.path, _ANSWERED), os.O_CREAT | os.O_EXCL, 0o600))
            except OSError:
                pass

    def _say(self, answer: str) -> None:
        self._mark()
        self._write(answer)

    def _end(self) -> None:
        facts = self.recording.tracer.recorder.facts
        facts["program_end_ns"] = now_ns()
        facts["exit_code"] = self.exit_code
        self._window.end()
        children = run.children(self.folder.path) if self.folder is not None else []
        if children:
            facts[CHILDREN] = [os.path.basename(path) for path in children]
        searched, waiting = gc.isenabled(), Waiting(self._write)
        gc.disable()  # the program's objects are many, and hardly any of ours is garbage
        search, sys.path = sys.path, [*self._search, *sys.path]  # threads of the program may import, too
        try:
            answer = self._worked_out()
        finally:
            sys.path = search
            waiting.end()
            if searched:
                gc.enable()
        self._say(answer)
        if self.folder is not None and self.folder.kept:
            prune()

    def _worked_out(self) -> str:
        """The answer to a run that has ended; nothing if it is to be quiet, and then only what else was asked for is
        read."""
        asked = not self._quiet or self._report or self._open or self.spans
        if not asked and self.path in (None, self.recording.path):
            self.recording.end()
            return ""
        session = self.recording.finish(each_block=self.spans is not None)
        if self.path is not None and session.meta.get("mode") == "live":
            from ..session import save

            save(session, self.path)
        return self._said_of(session)

    def _said_of(self, session: Any) -> str:
        spans = self.spans is not None
        session = joined([session], _READ_S, spans or self._form in OF_ALL_WORK, each_block=spans)
        missed = self._passes.missed(session) if self._passes is not None and self._done else ""
        remarks = [*([missed] if missed else []), *_late(session), *self._missing()]
        if remarks:
            session.meta["missing"] = [*remarks, *session.meta.get("missing", ())]
        reports = written(session, self._report, self._form, self._kept(), self._open)
        return "" if self._quiet else self._answer(session, reports)

    def _kept(self) -> str | None:
        """The file or folder in which the session stays."""
        folder = self.folder
        if self.path is not None or folder is None or not folder.kept:
            return self.path
        return folder.path if os.path.exists(os.path.join(folder.path, MAIN)) else None

    def _answer(self, session: Any, more: list[str]) -> str:
        from ..report import unused
        from ..report.style import style_of

        more = [*([self.spans.end(session, self.exit_code)] if self.spans is not None else []), *more]
        style = style_of(sys.__stderr__)
        lines = unused.answer(session, style) if self.path is None and not more else []
        if not lines:
            from ..report import text

            kept = KEPT if self._kept() is not None and self.path is None else None
            lines = text.summary(session, style, self.shown, more=more, next_step=kept)
        return "\n".join(lines) + "\n"

    def _missing(self) -> list[str]:
        """Processes that used the GPU and are not in the answer, and work that may not be."""
        from .._tracing.select import possible
        from ..backends.cupti import injection

        found = Counter(injection.notes(self.folder.path) if self.folder is not None else ())
        lines = [
            f"not recorded: {os.path.basename(name)}{f' ×{count}' if count > 1 else ''} used the GPU; {one_line(why)}"
            for (name, why), count in found.most_common(_MOST_NAMED)
        ]
        left = len(found) - len(lines)
        if self.not_followed and possible() is None:
            lines.append(f"capture cannot begin as CUDA does, nor in other processes: {one_line(self.not_followed)}")
        return [*lines, *([f"not recorded: {count_text(left, 'more program')} used the GPU"] if left > 0 else [])]

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
        except Exception:  # noqa: BLE001 - closed or full, or the program has replaced something of this
            pass


class _Spare:
    """Two descriptors that are kept for the answer, which reads and writes files: the program may use up all others."""

    def __init__(self) -> None:
        self._kept: list[tuple[int, tuple[int, int] | None]] = []

    def take(self) -> None:
        try:
            ends = os.pipe()  # a file that nobody else has: it tells whether the numbers are still ours
        except OSError:  # there are none even now
            return
        self._kept = [(end, file_of(end)) for end in ends]

    def give_back(self) -> None:
        """Not where the program has closed them: the numbers may be files of its own."""
        for descriptor, file in self._kept:
            if file_of(descriptor) == file:
                os.close(descriptor)


def _folder() -> str:
    """The current one; "" where that has been deleted."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def _ended_by(status: int | None) -> str:
    """What ended a program that had no say in it: "SIGKILL"."""
    import signal

    if status is None:
        return SOMEHOW
    if not os.WIFSIGNALED(status):
        return "exec, or by the C library's _exit"
    try:
        return signal.Signals(os.WTERMSIG(status)).name
    except ValueError:  # of real time
        return f"SIG{os.WTERMSIG(status)}"


def _remember_the_interrupt() -> None:
    """A process that Ctrl-C ended dies of SIGINT, so that a shell's loop around it ends, too. The interpreter forgets
    that as soon as any code is evaluated, as named tuples are when a module is imported (``run_eval_code_obj``)."""
    try:
        exec("raise KeyboardInterrupt")
    except KeyboardInterrupt:
        pass


class Waiting:
    """Says on a terminal that the answer is being worked out, where that takes more than a second."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._over = threads.lock()
        self._over.acquire()
        self._said = False
        if os.isatty(2):
            threads.start(self._wait, "gpusense-waiting")

    def _wait(self) -> None:
        if not self._over.acquire(timeout=_SILENT_S):
            self._said = True
            self._write("gpusense: reading what was recorded …")

    def end(self) -> None:
        self._over.release()
        if self._said:
            self._write("\r\x1b[K")


def _late(session: Any) -> list[str]:
    """How long CUDA was in use before capture began, where it was."""
    from .._capture.attachment import LATE, LATER

    late = [off for off in session.unseen if off.end_ns is not None and off.reason.endswith((LATE, LATER))]
    if not late:
        return []
    total = time_text(sum(off.end_ns - off.start_ns for off in late))
    return [f"not seen: up to {total} in which CUDA was in use before capture began; no number includes that work"]


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
        from ..exporters.opentelemetry import _otlp, _replay

        if _otlp.is_for_grpc(url):  # said now, and not after a day's run
            sys.stderr.write(terminal(f"gpusense: --otlp {url}: {_otlp.GRPC}\n"))
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
            return f"spans: {done.sent:,} sent to {self._url}, {done.refused:,} refused"
        if self._root is not None:
            self._root.end(exit_code)
        sent = opentelemetry.uninstrument(_OTLP_WAIT_S)
        return f"spans: sent to {self._url}" if sent else f"spans: {self._url} did not take all of them"

"""Record a Python process that runs already, for some seconds, and say what it did on the GPU."""

import argparse
import os
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any, TypeVar

from .._records.json_codec import dumps
from .._runtime.errors import GpuSenseError
from .._tracing import run as runs
from . import _attached, _outputs, _runs, _target
from ._arguments import add_output, add_settings, chosen, seconds

_TAKEN_S = 10.0  # that it may take until the process runs a line of Python on its main thread
_BEGUN_S = 30.0  # that loading gpusense and beginning may take there
_ENDED_S = 60.0  # the same of ending
_LOOK_S = 0.05

_Found = TypeVar("_Found")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("pid", type=int, metavar="PID", help="the process, of Python 3.14 or later and of the same version as this one")
    add("--duration", type=seconds, default=10.0, metavar="S", help="record for S seconds (10); Ctrl-C ends it sooner")
    add_output(parser, "process")
    add_settings(parser)


def main(arguments: argparse.Namespace) -> int:
    """0 once the process was recorded, also where it ended meanwhile."""
    reason = _target.refusal(arguments.pid)
    if reason:
        raise GpuSenseError(reason)
    _outputs.report_form(arguments.output)
    output = None if arguments.output is None else _outputs.filled(arguments.output, arguments.pid)
    if output is not None and not os.path.isdir(os.path.dirname(os.path.abspath(output))):
        raise GpuSenseError(_outputs.no_folder(output))
    with Visit(arguments.pid) as visit:
        visit.begin(_order(arguments))
        if not arguments.quiet:
            for_s = f"{arguments.duration:g} s"
            sys.stderr.write(f"gpusense: Process {arguments.pid} is recorded for {for_s}; Ctrl-C ends it sooner.\n")
        try:
            visit.wait(arguments.duration)
        except KeyboardInterrupt:
            pass
        more = visit.end()
        _answer(arguments, visit.session(), output, more)
    return 0


def _order(arguments: argparse.Namespace) -> dict[str, Any]:
    words, pid = _target.command_of(arguments.pid), arguments.pid
    command = shlex.join(words[: 2 if arguments.no_arguments else None])
    begun = time.strftime("%H:%M:%S")
    return {
        "duration_s": arguments.duration,
        "settings": chosen(arguments),
        "note": f"not seen: what process {pid} did before gpusense was attached to it at {begun}",
        "about": {"command": command[:2000], "label": arguments.label, "start_s": time.time(), "attached": pid},
    }


class Visit:
    """What happens in another process and in the folder by which both sides talk; gone at the end of ``with``."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._started = _target.started(pid)
        self._folder = tempfile.mkdtemp(prefix="gpusense-attach-")
        self._pending = False  # the process may still run the script

    def __enter__(self) -> "Visit":  # noqa: PYI034 - typing.Self is of 3.11
        return self

    def __exit__(self, *_: object) -> None:
        if not self._pending or _target.started(self._pid) != self._started:
            shutil.rmtree(self._folder, ignore_errors=True)  # which ends recording, where it still goes on

    def session(self) -> str:
        """After :meth:`end`: path of the session, which the process cannot replace any more."""
        os.chown(self._folder, os.geteuid(), os.getegid())
        path = self._path(_runs.MAIN)
        if os.path.islink(path):
            raise GpuSenseError(f"process {self._pid} has put a link in place of the session")
        return path

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name)

    def begin(self, order: dict[str, Any]) -> None:
        """Recording has begun when this returns. Raises :class:`GpuSenseError` with the reason where it does not."""
        from .. import __file__ as root

        _attached.say(self._folder, _attached.ORDER, {**order, "path": self._path(_runs.MAIN)})
        self._write_script(_attached.script(self._folder, os.path.abspath(root), runs.version()))
        self._give_to_owner()
        try:
            sys.remote_exec(self._pid, self._path(_attached.SCRIPT))  # type: ignore[attr-defined,unused-ignore]
        except (OSError, RuntimeError) as error:
            raise GpuSenseError(_target.sentence(self._pid, error)) from None
        self._pending = True
        try:
            self._until(self._taken, _TAKEN_S)
        finally:
            came = self._taken() or not self._withdraw()
        if not came and self._alive():
            raise GpuSenseError(
                f"process {self._pid} ran no Python code on its main thread for {_TAKEN_S:g} s, as in a long call into "
                "C or a wait for a lock; nothing was recorded, and nothing will be when it goes on"
            )
        self._pending = False
        begun = self._until(lambda: self._heard(_attached.BEGUN) or self._heard(_attached.ENDED), _BEGUN_S)
        if begun is None:
            why = f"did not begin to record within {_BEGUN_S:g} s" if self._alive() else "ended before it was recorded"
            raise GpuSenseError(f"process {self._pid} {why}")

    def _taken(self) -> bool:
        return not os.path.exists(self._path(_attached.ORDER))

    def _withdraw(self) -> bool:
        """Whether the process had not begun by now. It will not, and removes what is left here."""
        self._write_script(_attached.forget(self._folder))
        try:
            os.unlink(self._path(_attached.ORDER))
        except FileNotFoundError:
            os.unlink(self._path(_attached.SCRIPT))
            return False
        return True

    def _write_script(self, text: str) -> None:
        """The old one or the new one is there at any time. The folder may be another user's by now, so no file and no
        link that lies there is written to."""
        part = self._path("script.part")
        with open(part, "x", encoding="utf-8") as file:
            file.write(text)
        os.replace(part, self._path(_attached.SCRIPT))

    def _give_to_owner(self) -> None:
        """Root attaches to processes of others, which write the session."""
        owner = _target.owner_of(self._pid)
        if owner is not None and owner[0] != os.geteuid():
            for name in (*os.listdir(self._folder), ""):
                os.chown(self._path(name), *owner)

    def wait(self, duration_s: float) -> None:
        """Until recording is to end, or has ended with the process."""
        self._until(lambda: self._heard(_attached.ENDED), duration_s)

    def end(self) -> list[str]:
        """Ends recording; what is to be said of that, a sentence each."""
        try:
            os.unlink(self._path(_attached.TAKEN))
        except FileNotFoundError:
            pass
        answer = self._until(lambda: self._heard(_attached.ENDED), _ENDED_S)
        if answer is not None:
            stays = answer.get("stays")
            return [f"CUPTI stays in process {self._pid}: {stays}."] if stays else []
        if self._alive():
            return [f"Process {self._pid} did not say within {_ENDED_S:g} s that recording has ended."]
        return [f"Process {self._pid} ended while it was recorded."]

    def _heard(self, name: str) -> dict[str, Any] | None:
        """What the process has said. Raises :class:`GpuSenseError` where that is what went wrong there."""
        answer = _attached.heard(self._folder, name)
        if answer is not None and "error" in answer:
            raise GpuSenseError(f"process {self._pid} cannot be recorded: {answer['error']}")
        return answer

    def _alive(self) -> bool:
        return _target.started(self._pid) == self._started

    def _until(self, found: Callable[[], _Found | None], seconds: float) -> _Found | None:
        """What ``found()`` gives; None where the process ends, or time is up, before that is something."""
        end = time.monotonic() + seconds
        while True:
            goes_on = self._alive() and time.monotonic() < end
            what = found()
            if what or not goes_on:
                return what or None
            time.sleep(_LOOK_S)


def _answer(arguments: argparse.Namespace, recorded: str, output: str | None, more: list[str]) -> None:
    """Keeps the session, writes the report that was asked for, and prints the answer."""
    from .._capi import demangle
    from ..report import text
    from ..report.style import style_of
    from ..session import load

    demangle.bring_in()
    session = load(recorded)
    form = _outputs.report_form(output)
    shown = output if form is None else None
    if shown is not None:
        try:
            moved = _outputs.set_aside(shown)
            more += [f"The session that was in {shown} is now {moved}."] if moved is not None else []
            _copy(recorded, shown)
        except OSError as error:
            more += [f"Not written: {shown}: {error.strerror}."]
            shown = None
    folder = _kept(arguments, session, recorded) if shown is None else None
    more += _outputs.written(session, output, form, shown or folder, arguments.open)
    if arguments.quiet:
        return
    kept = _outputs.KEPT if folder is not None else None
    lines = text.summary(session, style_of(sys.__stderr__), shown, more=more, next_step=kept)
    sys.stderr.write("\n".join(lines) + "\n")


def _kept(arguments: argparse.Namespace, session: Any, recorded: str) -> str | None:
    """The folder in which the session stays, among the last runs; None where it does not."""
    if arguments.no_keep or os.environ.get("GPUSENSE_KEEP", "1") == "0":
        return None
    folder = _runs.make(keep=True)
    if folder is None:
        return None
    if not folder.kept:
        folder.remove()
        return None
    with open(os.path.join(folder.path, runs.FILE), "w", encoding="utf-8") as file:
        file.write(dumps({"about": session.meta.get("run")}))
    _copy(recorded, os.path.join(folder.path, _runs.MAIN))
    _runs.prune()
    return folder.path


def _copy(recorded: str, path: str) -> None:
    """Readable to this user alone, whoever has recorded it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(recorded, "rb") as source, open(descriptor, "wb") as target:
        shutil.copyfileobj(source, target)

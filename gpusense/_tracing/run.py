"""The run that a process belongs to: what ``gpusense run`` leaves for the processes that its program starts.

A variable of the environment names a folder, in which a file says where sessions go and how they are recorded. Nobody
looks at it before a process uses CUDA or gpusense itself, so any other process is as it was: no file, no thread, no
import. As CUDA starts, it has :func:`script` run (``backends/cupti/injection``).
"""

import os
from collections.abc import Callable
from typing import Any, NamedTuple

from .._capture.identity import rank_and_world
from .._runtime import log, package, process, threads
from .start import EXCEPT_INTERRUPT

#: Names the folder of the run.
VARIABLE = "GPUSENSE_RUN"
FILE, _LIST = "run.json", "sessions"
_WAIT_S = 3.0  # that a program waits in cuInit for capture to begin


_began: int | None = None  # number of this process, where it has begun a run: once it becomes another program, no more
_known: "tuple[str, Run] | None" = None  # folder and run: a forked child need not read the file again


class Run(NamedTuple):
    """One ``gpusense run``. A process writes its session to ``before``, who it is, and ``after``."""

    package: str
    version: str
    before: str
    after: str
    settings: dict[str, Any]
    watcher: str  # module whose ``watch(tracer)`` follows what the process imports; "": nothing does
    about: dict[str, Any]  # what was run, for people
    children: bool  # whether other processes than the first are recorded

    def write(self, folder: str) -> None:
        """For the processes that are started from now on. Only before the program runs: later, another thread might be
        reading the environment."""
        from .._records.json_codec import dumps

        with open(os.open(os.path.join(folder, FILE), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(dumps(self._asdict()))
        os.environ[VARIABLE] = folder
        global _began, _known
        _began, _known = os.getpid(), (folder, self)

    def path(self) -> str:
        """Where this process's session goes: a file of its own by its rank or else its number, empty so far. The run's
        folder lists it from now on."""
        rank = rank_and_world()[0]
        who = f"rank{rank}" if rank is not None else str(os.getpid())
        path, more = f"{self.before}{who}{self.after}", 1
        while not _is_new(path):  # what a rank starts has its number, too
            more += 1
            path = f"{self.before}{who}-{more}{self.after}"
        fd = os.open(os.path.join(os.environ[VARIABLE], _LIST), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(fd, os.fsencode(path) + b"\0")
        finally:
            os.close(fd)
        return path


def _is_new(path: str) -> bool:
    """Whether the file is the caller's own from now on; processes may ask at the same time."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return False
    return True


def children(folder: str) -> list[str]:
    """Paths of the sessions of all processes of the run that were recorded, but of that which began it."""
    try:
        with open(os.path.join(folder, _LIST), "rb") as file:
            names = file.read().split(b"\0")
    except OSError:
        return []
    return [os.fsdecode(name) for name in names if name]


def of_this_process() -> Run | None:
    """The run whose program started this process; None in the process that began it, and outside one."""
    folder = os.environ.get(VARIABLE)
    if not folder or _began == os.getpid():
        return None
    global _known
    path = os.path.join(folder, FILE)
    from .._records.json_codec import loads

    try:
        if _known is None or _known[0] != folder or not os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                found = loads(file.read())
            _known = folder, Run(**{name: found[name] for name in Run._fields})
    except Exception:  # noqa: BLE001 - the run has ended and its folder is gone, or another version wrote it
        return None
    run = _known[1]
    return run if run.children and (run.package, run.version) == (package.NAME, version()) else None


def version() -> str:
    """Of this copy; another may be in the way of a process that another interpreter runs."""
    from .. import __version__

    return __version__


def script(only: int | None) -> str:
    """What Python runs when a process starts CUDA; nothing in another process than ``only``, where that is given.

    A process that cannot import this package gets it from here. One that is not recorded after all leaves a note.
    """
    name, folder = package.NAME, os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    wanted = "True" if only is None else f"os.getpid() == {only}"
    code = f"""
import os, sys
def start(name, folder):
    from importlib import import_module, util
    try:
        import_module(name)
    except ModuleNotFoundError:
        spec = util.spec_from_file_location(name, folder + "/__init__.py", submodule_search_locations=[folder])
        sys.modules[name] = util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    import_module(name + "._tracing.select").control.cuda_starts()
try:
    if {wanted}:
        start({name!r}, {folder!r})
{EXCEPT_INTERRUPT}
except Exception as error:
    note = os.path.join(os.environ.get({VARIABLE!r}, ""), "unseen-%d" % os.getpid())
    try:
        with open(note, "x") as file:
            file.write("%d %s\\nits Python cannot load this gpusense: %s" % (os.getpid(), sys.executable, error))
    except OSError:
        pass
"""
    return f"exec({code!r}, {{}})"


def cuda_starts(begin: Callable[[], None]) -> None:
    """CUDA is being initialised in this process, by a thread that waits for this: ``begin()``, so that capture does.

    On a thread of its own, since signal handlers of the program must not end it in the middle.
    """
    done = threads.Bell()

    def begin_and_say() -> None:
        try:
            begin()
        except Exception:  # noqa: BLE001 - never into the program
            log.exception("cuda-starts", "capture could not begin as CUDA did")
        finally:
            done.set()

    if threads.start(begin_and_say, "gpusense-start") is None:
        begin_and_say()
    done.wait(_WAIT_S)


def begun(run: Run, tracer: Any) -> None:
    """``tracer`` records this process of ``run`` from now on, and to its end, however that comes."""
    tracer.recorder.facts["run"] = run.about
    tracer.recorder.store.note(tracer.recorder)
    _end_on_signals(tracer)
    # Programs leave by it to be spared their libraries' exit, and workers of multiprocessing where they were forked.
    process.end_on_os_exit(lambda _: tracer.close())
    if run.watcher:
        from importlib import import_module

        import_module(run.watcher).watch(tracer)


def _end_on_signals(tracer: Any) -> None:
    """Pools end their workers by SIGTERM."""
    if threads.is_main():
        process.end_on_signals(tracer.close)
        return
    from .._capi import main_thread

    main_thread.later(lambda: process.end_on_signals(tracer.close))

"""In a process that ``gpusense attach`` looks at: records it for a while, and goes out of it again.

Both sides talk by files in a folder: the order is taken by renaming it, recording ends early once it is gone, and each
answer is there once it is whole. A copy of gpusense does the recording under a name that nobody else uses: what the
process has imported, of whichever version, stays as it is and hands its blocks over (``_tracing/copies``). That copy
stays loaded for the next time.
"""

import os
import zlib
from collections.abc import Callable
from time import monotonic
from typing import Any

from .._records.json_codec import dumps, loads
from .._runtime import threads
from .._runtime.clock import now_ns
from .._runtime.errors import GpuSenseError

SCRIPT, ORDER, TAKEN, BEGUN, ENDED = "attach.py", "order", "taken", "begun", "ended"
GRAPHS = "it replays CUDA graphs, whose next replay may fail once CUPTI is gone"
_LOOK_S = 0.05
_BEGIN_S = 2.0  # that capture may take to begin where CUDA is in use


def script(folder: str, root: str, version: str) -> str:
    """What the process runs, wherever it is just then: it removes itself and starts a thread, which loads the package
    whose ``__init__`` is ``root``."""
    name = f"gpusense_attached_{zlib.crc32(f'{root} {version}'.encode()):08x}"
    return f"""
def attached():
    import _thread, os, sys
    folder, name, root = {folder!r}, {name!r}, {root!r}
    def begin():
        try:
            os.rename(folder + "/{ORDER}", folder + "/{TAKEN}")
        except OSError:  # nobody waits any more
            return
        try:
            from importlib import import_module, util
            if name not in sys.modules:
                spec = util.spec_from_file_location(name, root, submodule_search_locations=[os.path.dirname(root)])
                sys.modules[name] = util.module_from_spec(spec)
                spec.loader.exec_module(sys.modules[name])
            import_module(name + ".cli._attached").begin(folder)
        except BaseException as error:
            import json
            try:
                with open(folder + "/failed", "w") as file:
                    file.write(json.dumps({{"error": f"gpusense cannot be loaded there: {{error!r}}"}}))
                os.rename(folder + "/failed", folder + "/{ENDED}")
            except OSError:
                pass
    try:
        os.unlink(folder + "/{SCRIPT}")
        gevent, eventlet = sys.modules.get("gevent.monkey"), sys.modules.get("eventlet.patcher")
        if gevent is not None:
            start = gevent.get_original("_thread", "start_new_thread")
        else:
            start = (eventlet.original("_thread") if eventlet is not None else _thread).start_new_thread
        start(begin, ())
    except Exception:  # the interpreter is ending
        pass
attached()
"""


def forget(folder: str) -> str:
    """What is to be in place of the script once nobody waits any more: it removes what is left."""
    return f"import os\nos.unlink({os.path.join(folder, SCRIPT)!r})\nos.rmdir({folder!r})\n"


def say(folder: str, name: str, what: dict[str, Any]) -> None:
    """For the other side."""
    part = os.path.join(folder, f"{name}.part")
    with open(part, "w", encoding="utf-8") as file:
        file.write(dumps(what))
    os.replace(part, os.path.join(folder, name))


def heard(folder: str, name: str) -> dict[str, Any] | None:
    """What the other side has said; None: nothing yet."""
    try:
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            found: dict[str, Any] = loads(file.read())
    except FileNotFoundError:
        return None
    return found


def begin(folder: str) -> None:
    """Does what the order in ``folder`` says, on a thread of its own, and answers there."""
    if threads.start(lambda: _answered(folder), "gpusense-attach") is None:
        say(folder, ENDED, {"error": "no thread can be started there"})


def _answered(folder: str) -> None:
    try:
        answer = {"stays": _record(folder, heard(folder, TAKEN) or {})}
    except Exception as error:  # noqa: BLE001 - whatever it is, who waits is to hear of it
        text = str(error) if isinstance(error, GpuSenseError) else f"{type(error).__name__}: {error}"
        answer = {"error": text}
    try:
        say(folder, ENDED, answer)
    except OSError:  # nobody waits any more
        pass


def _record(folder: str, order: dict[str, Any]) -> str:
    """Why CUPTI stays in the process; empty where it does not."""
    from .._tracing.select import Control

    control = Control()
    if control.settings().mode == "off":
        raise GpuSenseError("it runs with GPUSENSE=off")
    if control.is_in_session():
        raise GpuSenseError("gpusense run or another gpusense attach records it already")
    tracer = control.start_session(path=order["path"], **order["settings"]).tracer
    monitor = None
    try:
        recorder = tracer.recorder
        recorder.looks_for_graphs = True
        recorder.facts.update(run=order["about"], notes=[order["note"]])
        if "nvml" in order["settings"].get("backends", ("nvml",)):
            monitor = tracer.metrics_source = _watch_the_device()
        _wait(_BEGIN_S, lambda: not (recorder.capture and recorder.capture.waiting and recorder.capture.missed()))
        recorder.facts["program_start_ns"] = now_ns()
        recorder.unseen.clear()  # the note says it
        say(folder, BEGUN, {"pid": os.getpid()})
        _wait(order["duration_s"], lambda: not os.path.exists(os.path.join(folder, TAKEN)))
        recorder.facts["program_end_ns"] = end = now_ns()
        stays = _detach(control, recorder)
        recorder.unseen[:] = [unseen for unseen in recorder.unseen if unseen.start_ns < end]
        return stays
    finally:
        tracer.close()
        if monitor is not None:
            monitor.stop()
        control.leave()


def _watch_the_device() -> Any:
    from .. import monitor

    return monitor.start_background(interval=0.5, process_interval=1.0)


def _wait(seconds: float, until: Callable[[], bool]) -> None:
    end, bell = monotonic() + seconds, threads.Bell()
    while monotonic() < end and not until():
        bell.wait(min(_LOOK_S, max(0.0, end - monotonic())))


def _detach(control: Any, recorder: Any) -> str:
    """Recording ends, and CUPTI goes out of the process: "" or why it stays."""
    recorder.flush(1.0)
    if recorder.store.launches.graphs:
        control.disable()
        return GRAPHS
    refused = control.detach()
    return str(refused.reason) if refused else ""

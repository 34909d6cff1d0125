"""Wrappers around encoders and submits: passes get time stamps on their way.

Every wrapper calls the original exactly once with the program's arguments, plus ``timestamp_writes`` where a pass has
none, and lets its exceptions through; :func:`plain_code` is the one exception. Errors of ours end in
:meth:`Hooks.fail`.

What runs for each pass reads attributes instead of asking for them, and calls as little as possible: a frame of Python
costs more than all it does here. A wrapper that the program still holds after ``uninstrument()`` finds no attribute.
"""

import sys
import weakref
from collections.abc import Callable
from time import time_ns
from types import CodeType
from typing import Any

from .._hosts import Patches
from ._batch import DISPATCHES, GRID, KIND, LENT, NAME, PLAIN, POINTER, SOURCE, WRITES, Lent, Pass
from ._hooks import ATTRIBUTE, Hooks
from ._timer import BATCH, DeviceTimer, Passes

UNDEFINED = 0xFFFFFFFF  # WGPU_QUERY_SET_INDEX_UNDEFINED: no time stamp at this end
#: What carries passes on its way: none so far, so that the wrappers need not ask whether there is such an attribute.
CARRIERS = ("GPUCommandEncoder", "GPUComputePassEncoder", "GPURenderPassEncoder", "GPUCommandBuffer")
WORKGROUPS = ("self", "workgroup_count_x", "workgroup_count_y", "workgroup_count_z")
#: Everything that wgpu-py's ``begin_compute_pass`` looks up, and its arguments, where it is known.
PLAIN_NAMES = frozenset(
    [
        "ffi",
        "NULL",
        "check_struct",
        "new_struct_p",
        "_internal",
        "get",
        "lib",
        "WGPU_QUERY_SET_INDEX_UNDEFINED",
        "to_c_string_view",
        "libf",
        "wgpuCommandEncoderBeginComputePass",
        "GPUComputePassEncoder",
        "_device",
    ]
)
#: And every constant in it: one that is not among them may be a label or a check that ours would leave out.
PLAIN_CONSTANTS = frozenset(
    [
        None,
        "ComputePassTimestampWrites",
        "WGPUComputePassDescriptor *",
        "WGPUComputePassTimestampWrites *",  # before wgpu-native 29
        "WGPUPassTimestampWrites *",
        "query_set",
        "beginning_of_pass_write_index",
        "end_of_pass_write_index",
        ("querySet", "beginningOfPassWriteIndex", "endOfPassWriteIndex"),
        ("label", "timestampWrites"),
    ]
)
PLAIN_ARGUMENTS = ("self", "label", "timestamp_writes")


def install(hooks: Hooks, patches: Patches) -> None:
    api = hooks.host.api
    for name in CARRIERS:
        patches.put(getattr(api, name), ATTRIBUTE, None)
    for kind in ("compute", "render"):
        begin = _begin_compute(hooks) if kind == "compute" else _begin(hooks, kind)
        patches.wrap(api.GPUCommandEncoder, f"begin_{kind}_pass", begin)
        native = f"wgpuCommandEncoderBegin{kind.capitalize()}Pass"
        patches.wrap(api.libf, native, lambda function: _native_begin(hooks, function))
    for owner in (api.GPUComputePassEncoder, api.GPURenderPassEncoder):
        patches.wrap(owner, "set_pipeline", _set_pipeline)
    patches.wrap(api.GPUComputePassEncoder, "dispatch_workgroups", _dispatch)
    patches.wrap(api.GPUComputePassEncoder, "dispatch_workgroups_indirect", _dispatch_somehow)
    patches.wrap(api.GPUCommandEncoder, "finish", lambda function: _finish(hooks, function))
    patches.wrap(api.GPUQueue, "submit", _submit)
    patches.wrap(api.libf, "wgpuQueueSubmit", lambda function: _native_submit(hooks, function))


def passes_of(hooks: Hooks, encoder: Any) -> Passes:
    """What goes with the command encoder, made at the first call; IndexError once tracing is off."""
    passes: Passes | None = encoder._gpusense
    if passes is None:
        if not hooks.on:
            raise IndexError
        device = encoder._device
        passes = Passes()
        passes.void = []
        timer = passes.timer = getattr(device, ATTRIBUTE, None) or hooks.timer(device)
        passes.lend, passes.native, passes.own, passes.submitted_ns = timer.free.popleft, None, False, 0
        encoder._gpusense = passes
    return passes


def more(passes: Passes) -> Lent:
    """Queries for a pass where none were left: those of another set. IndexError when there are no more."""
    lent = passes.timer.more()
    if lent is None:
        raise IndexError
    return lent


def _begin(hooks: Hooks, kind: str) -> Callable[[Any], Any]:
    begun_by = _beginner(hooks, kind)

    def make(function: Any) -> Any:
        def begin_pass(self: Any, *args: Any, **kwargs: Any) -> Any:
            return begun_by(function, self, args, kwargs)

        return begin_pass

    return make


def _begin_compute(hooks: Hooks) -> Callable[[Any], Any]:
    """As :func:`_begin`; what wgpu-py does for a pass without options, our wrapper does where that is known."""
    near, block, frame_of = hooks.near, hooks.block, sys._getframe
    begun_by = _beginner(hooks, "compute")

    def make(function: Any) -> Any:
        plain = plain_code(function)
        if plain is None:
            return _begin(hooks, "compute")(function)
        native, made = hooks.host.checked.wgpuCommandEncoderBeginComputePass, hooks.host.api.GPUComputePassEncoder

        def begin_compute_pass(self: Any, *args: Any, **kwargs: Any) -> Any:
            if args or kwargs or self._label or function.__code__ is not plain:
                return begun_by(function, self, args, kwargs)
            try:
                passes = self._gpusense
                if passes is None:
                    passes = passes_of(hooks, self)
                frame, current = frame_of(1), near() and block()
                try:
                    lent = passes.lend()
                except IndexError:
                    lent = more(passes)
            except Exception as error:  # noqa: BLE001
                _untimed(hooks, self, error)
                return function(self)
            try:
                encoder = made("", native(self._internal, lent[PLAIN]), self._device)
            except BaseException:
                passes.timer.give_back([lent])
                raise
            code, at = frame.f_code, frame.f_lasti
            timed = ["compute", "line", None, 0, None, None, current, code, at, lent, None, None]
            encoder._gpusense = timed
            passes.append(timed)
            return encoder

        return begin_compute_pass

    return make


def plain_code(function: Any) -> CodeType | None:
    """The code of wgpu-py's ``begin_compute_pass`` if it is as known.

    It makes a descriptor with an empty label, calls the native function and wraps its answer. Half of the time of an
    unlabelled pass goes into that descriptor, in which only our queries differ from pass to pass; so one lies ready for
    every two queries. A wgpu-py that does anything else has other names or constants in that function, and is called as
    before.
    """
    code: CodeType | None = getattr(function, "__code__", None)
    if code is None or frozenset(code.co_names) != PLAIN_NAMES or function.__defaults__:
        return None
    if not PLAIN_CONSTANTS.issuperset(code.co_consts):
        return None
    arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    known = arguments == PLAIN_ARGUMENTS and function.__kwdefaults__ == {"label": "", "timestamp_writes": None}
    return code if known else None


def _beginner(hooks: Hooks, kind: str) -> Callable[..., Any]:
    """``begun_by(function, encoder, args, kwargs)`` begins a pass by wgpu-py's own function."""
    waiting = hooks.waiting

    def begun_by(function: Any, self: Any, args: Any, kwargs: Any) -> Any:
        timed: Pass | None = None
        try:
            passes = self._gpusense
            if passes is None:
                passes = passes_of(hooks, self)
            timed = _open(hooks, kind, self, kwargs)
        except Exception as error:  # noqa: BLE001
            _untimed(hooks, self, error)
        if timed is None:
            return function(self, *args, **kwargs)
        native = self._internal
        waiting[native] = timed
        try:
            encoder = function(self, *args, **kwargs)
        except BaseException:
            _give_back(hooks, native, passes, timed)
            raise
        if timed[WRITES] is None:
            encoder._gpusense = timed
            passes.append(timed)
        else:
            _give_back(hooks, native, passes, timed)  # never written, so never to be resolved (wgpu#7238)
            hooks.miss("another tool times the pass")
        return encoder

    return begun_by


def _open(hooks: Hooks, kind: str, encoder: Any, kwargs: dict[str, Any]) -> Pass | None:
    """A pass begun three frames further up; None for one that cannot be timed."""
    passes, own = encoder._gpusense, kwargs.get("timestamp_writes")
    lent = writes = queries = code = None
    if own is None:
        block = hooks.near() and hooks.block()
        try:
            lent = passes.lend()
        except IndexError:
            lent = more(passes)
        writes = lent[POINTER[kind]]
    elif not passes.timer.lending:
        raise IndexError
    else:
        queries = _own_queries(hooks, own)
        if queries is None:
            return None
        block, passes.own = hooks.block(), True
    at, name, source = 0, kwargs.get("label"), "pass"
    if not name:
        name, source = encoder._label, "encoder"
    if not name:
        frame = sys._getframe(3)
        name, source, code, at = None, "line", frame.f_code, frame.f_lasti
    return [kind, source, name, 0, None, None, block, code, at, lent, writes, queries]


def _untimed(hooks: Hooks, encoder: Any, error: Exception) -> None:
    """Why a pass is begun without queries. Inside the handler of ``error``: IndexError, if none could be lent."""
    if not hooks.on:
        if hooks.failed:
            hooks.miss("tracing wgpu was given up after errors of gpusense's")
        return
    passes: Passes | None = getattr(encoder, ATTRIBUTE, None)
    if type(error) is not IndexError or passes is None or passes.timer.free:
        hooks.fail("begin_pass")
    elif passes.timer.dead is not None:
        hooks.miss(passes.timer.dead)
    elif passes.timer.lending:
        hooks.miss("more passes were under way than there are queries")
    else:
        hooks.miss("the pass was begun before uninstrument()")


def _native_begin(hooks: Hooks, function: Any) -> Any:
    """Below wgpu-py, where the descriptor is ready: a pointer to our queries costs less than a dict wgpu-py reads."""
    take = hooks.waiting.pop

    def begin(encoder: Any, descriptor: Any) -> Any:
        timed = take(encoder, None)
        if timed is not None and timed[WRITES] is not None and not descriptor.timestampWrites:
            descriptor.timestampWrites = timed[WRITES]
            timed[WRITES] = None
        return function(encoder, descriptor)

    return begin


def _give_back(hooks: Hooks, native: Any, passes: Passes, timed: Pass) -> None:
    """The pass has come to nothing."""
    if hooks.waiting.get(native) is timed:  # it may be that of a pass begun in the middle of this one
        del hooks.waiting[native]
    if timed[LENT] is not None:
        passes.timer.give_back([timed[LENT]])


def _own_queries(hooks: Hooks, own: Any) -> tuple[Any, int, int] | None:
    """The program's own query set and indices; None where they tell no time of the pass."""
    try:
        begin, end = own.get("beginning_of_pass_write_index"), own.get("end_of_pass_write_index")
        query_set = own["query_set"]
        query_set._internal  # noqa: B018 - something to resolve from
    except Exception:  # noqa: BLE001 - the program's mistake, for wgpu-py to report
        return None
    if begin is None or end is None or UNDEFINED in (begin, end):
        hooks.miss("the program times only one end of the pass")
        return None
    return query_set, int(begin), int(end)


def _set_pipeline(function: Any) -> Any:
    def set_pipeline(self: Any, pipeline: Any) -> Any:
        try:
            timed = self._gpusense
            if timed is not None and timed[NAME] is None:
                # Now, and not when the record is made: the pipeline may die before.
                if name := pipeline._label:
                    timed[NAME], timed[SOURCE] = name, "pipeline"
                elif named := pipeline._gpusense_named:
                    if timed[KIND] == "compute":
                        timed[NAME], timed[SOURCE] = named.name, "entry_point"
                    else:
                        timed[NAME] = named.suffix
                else:
                    timed[NAME] = ""
        except AttributeError:  # uninstrumented meanwhile, or no pipeline, for wgpu-py to report
            pass
        return function(self, pipeline)

    return set_pipeline


def _dispatch(function: Any) -> Any:
    code = getattr(function, "__code__", None)
    if code is None or code.co_varnames[: code.co_argcount] != WORKGROUPS or function.__defaults__[-2:] != (1, 1):
        return _dispatch_somehow(function)

    def dispatch_workgroups(
        self: Any, workgroup_count_x: Any, workgroup_count_y: Any = 1, workgroup_count_z: Any = 1
    ) -> Any:
        try:
            timed = self._gpusense
            if timed is not None:
                timed[DISPATCHES] += 1
                timed[GRID] = (workgroup_count_x, workgroup_count_y, workgroup_count_z)
        except AttributeError:  # uninstrumented meanwhile
            pass
        return function(self, workgroup_count_x, workgroup_count_y, workgroup_count_z)

    return dispatch_workgroups


def _dispatch_somehow(function: Any) -> Any:
    """Counts dispatches of how many workgroups is not known: to the GPU alone, or because it is another wgpu-py."""

    def dispatch(self: Any, *args: Any, **kwargs: Any) -> Any:
        timed = getattr(self, ATTRIBUTE, None)
        if timed is not None:
            timed[DISPATCHES] += 1
        return function(self, *args, **kwargs)

    return dispatch


def _finish(hooks: Hooks, function: Any) -> Any:
    finished, reference = hooks.finished, weakref.ref

    def finish(self: Any, *args: Any, **kwargs: Any) -> Any:
        commands = function(self, *args, **kwargs) if args or kwargs else function(self)
        try:
            passes = self._gpusense
            if passes or (passes is not None and passes.void):
                self._gpusense, commands._gpusense = None, passes
                passes.native = native = commands._internal
                finished[native] = reference(passes)
        except AttributeError:  # uninstrumented meanwhile
            pass
        return commands

    return finish


def _submit(function: Any) -> Any:
    def submit(self: Any, *args: Any, **kwargs: Any) -> Any:
        commands: Any = args[0] if args else kwargs.get("command_buffers")
        if type(commands) is not list and type(commands) is not tuple and hasattr(commands, "__iter__"):
            commands = list(commands)  # what a generator makes would be gone before it is submitted
            args, kwargs = ((commands, *args[1:]), kwargs) if args else ((), {**kwargs, "command_buffers": commands})
        return function(self, *args, **kwargs)

    return submit


def _native_submit(hooks: Hooks, function: Any) -> Any:
    """Below wgpu-py, where each submit comes by: also that of a method which the program took before."""
    here = hooks.here

    def submit(queue: Any, number: int, commands: Any) -> Any:
        if not hooks.on:
            return function(queue, number, commands)
        timer = hooks.timer_of(queue)
        if timer is not None and timer.own_waits:
            try:
                timer.read_own()
            except Exception:  # noqa: BLE001
                hooks.fail("submit")
        start = time_ns()
        result = function(queue, number, commands)
        try:
            if here.quiet:  # of a read, which may wait for earlier work in its submit, too
                here.waited_ns += time_ns() - start
            _submitted(hooks, timer, [commands[at] for at in range(number)], start)
        except Exception:  # noqa: BLE001
            hooks.fail("submit")
        return result

    return submit


def _submitted(hooks: Hooks, timer: DeviceTimer | None, commands: list[Any], start_ns: int) -> None:
    finished = hooks.finished
    for native in commands:
        reference = finished.pop(native, None)
        passes = reference() if reference is not None else None
        if passes is not None:
            device = passes.timer.device_ref()
            if passes.timer is timer and device is not None:
                timer.submitted(device, passes, start_ns)
            else:
                hooks.miss("the pass was begun before uninstrument()", len(passes))
                passes.submitted_ns = start_ns  # its death counts nothing any more
    if timer is None:
        if hooks.staged:
            hooks.hand_on()
    elif start_ns >= timer.look_ns or timer.events or timer.queued >= BATCH:
        hooks.pump(timer)

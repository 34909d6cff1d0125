"""Wrappers around encoders and submits: passes get time stamps on their way.

Every wrapper calls the original exactly once with the program's arguments, plus ``timestamp_writes`` where a pass has
none, and lets its exceptions through. Errors of ours end in :meth:`Hooks.fail`.

What runs for each pass reads attributes instead of asking for them, and calls as little as possible: a frame of Python
costs more than all it does here. A wrapper that the program still holds after ``uninstrument()`` finds no attribute.
"""

import sys
from collections.abc import Callable
from time import time_ns
from typing import Any

from .._patches import Patches
from ._device import BATCH
from ._hooks import ATTRIBUTE, Hooks
from ._pass import Pass, Passes, begun

UNDEFINED = 0xFFFFFFFF  # WGPU_QUERY_SET_INDEX_UNDEFINED: no time stamp at this end
#: What carries passes on its way: none so far, so that the wrappers need not ask whether there is such an attribute.
CARRIERS = ("GPUCommandEncoder", "GPUComputePassEncoder", "GPURenderPassEncoder", "GPUCommandBuffer")
WORKGROUPS = ("self", "workgroup_count_x", "workgroup_count_y", "workgroup_count_z")


def install(hooks: Hooks, patches: Patches) -> None:
    api = hooks.host.api
    for name in CARRIERS:
        patches.put(getattr(api, name), ATTRIBUTE, None)
    for kind in ("compute", "render"):
        patches.wrap(api.GPUCommandEncoder, f"begin_{kind}_pass", _begin(hooks, kind))
        native = f"wgpuCommandEncoderBegin{kind.capitalize()}Pass"
        patches.wrap(api.libf, native, lambda function: _native_begin(hooks, function))
    for owner in (api.GPUComputePassEncoder, api.GPURenderPassEncoder):
        patches.wrap(owner, "set_pipeline", _set_pipeline)
    patches.wrap(api.GPUComputePassEncoder, "dispatch_workgroups", _dispatch)
    patches.wrap(api.GPUComputePassEncoder, "dispatch_workgroups_indirect", _dispatch_somehow)
    patches.wrap(api.GPUCommandEncoder, "finish", _finish)
    patches.wrap(api.GPUQueue, "submit", lambda function: _submit(hooks, function))


def passes_of(hooks: Hooks, encoder: Any) -> Passes:
    """What goes with the command encoder, made at the first call."""
    passes: Passes | None = getattr(encoder, ATTRIBUTE, None)
    if passes is None:
        device = encoder._device
        timer = getattr(device, ATTRIBUTE, None) or hooks.timer(device)
        passes = Passes()
        passes.timer, passes.own, passes.submitted_ns = timer, False, 0
        encoder._gpusense = passes
    return passes


def _begin(hooks: Hooks, kind: str) -> Callable[[Any], Any]:
    waiting, open_pass = hooks.waiting, _opener(hooks, kind)

    def make(function: Any) -> Any:
        def begin_pass(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not hooks.on:
                return function(self, *args, **kwargs)
            timed = None
            try:
                timed = open_pass(self, kwargs)
            except Exception:  # noqa: BLE001
                if hooks.on:
                    hooks.fail("begin_pass")
            if timed is None:
                return function(self, *args, **kwargs)
            native, passes = self._internal, self._gpusense
            if timed.writes is not None:
                waiting[native] = timed
            try:
                encoder = function(self, *args, **kwargs) if args or kwargs else function(self)
            except BaseException:
                _give_back(hooks, native, passes, timed)
                raise
            if timed.written or timed.own is not None:
                encoder._gpusense = timed
                passes.append(timed)
            else:
                _give_back(hooks, native, passes, timed)  # never written, so never to be resolved (wgpu#7238)
                hooks.miss("another tool times the pass")
            return encoder

        return begin_pass

    return make


def _opener(hooks: Hooks, kind: str) -> Callable[[Any, dict[str, Any]], Pass | None]:
    near, block, frame_of = hooks.near, hooks.block, sys._getframe

    def open_pass(encoder: Any, kwargs: dict[str, Any]) -> Pass | None:
        """A pass with queries of ours, or with the program's own; None for one that cannot be timed."""
        passes = encoder._gpusense
        if passes is None:
            passes = passes_of(hooks, encoder)
        timer = passes.timer
        if timer.dead is not None:
            hooks.miss(timer.dead)
            return None
        timed: Pass | None
        if kwargs and kwargs.get("timestamp_writes") is not None:
            timed = _open_own(hooks, kind, kwargs, passes)
            if timed is None:
                return None
        else:
            current = near() and block()
            try:
                slot = timer.free.popleft()
            except IndexError:
                hooks.miss("more passes were under way than there are queries")
                return None
            timed = begun(kind, kwargs.get("label") or "" if kwargs else "", slot, current)
            timed.writes = timer.writes[kind][slot >> 1]
        if not timed.name:
            timed.name = encoder._label
            if timed.name:
                timed.label_source = "encoder"
            else:  # its first pipeline may still name it
                frame = frame_of(2)
                timed.code, timed.at, timed.unnamed = frame.f_code, frame.f_lasti, True
        return timed

    return open_pass


def _native_begin(hooks: Hooks, function: Any) -> Any:
    """Below wgpu-py, where the descriptor is ready: a pointer to our queries costs less than a dict wgpu-py reads."""
    take = hooks.waiting.pop

    def begin(encoder: Any, descriptor: Any) -> Any:
        timed = take(encoder, None)
        if timed is not None and not descriptor.timestampWrites:
            descriptor.timestampWrites = timed.writes
            timed.written = True
        return function(encoder, descriptor)

    return begin


def _give_back(hooks: Hooks, native: Any, passes: Passes, timed: Pass) -> None:
    """The pass has come to nothing."""
    if hooks.waiting.get(native) is timed:  # it may be that of a pass begun in the middle of this one
        del hooks.waiting[native]
    if timed.slot >= 0:
        passes.timer.free.append(timed.slot)


def _open_own(hooks: Hooks, kind: str, kwargs: dict[str, Any], passes: Passes) -> Pass | None:
    """A pass with the program's own queries; None for one that cannot be timed."""
    own = kwargs["timestamp_writes"]
    try:
        begin, end = own.get("beginning_of_pass_write_index"), own.get("end_of_pass_write_index")
        query_set = own["query_set"]
        query_set._internal  # noqa: B018 - something to resolve from
    except Exception:  # noqa: BLE001 - the program's mistake, for wgpu-py to report
        return None
    if begin is None or end is None or UNDEFINED in (begin, end):
        hooks.miss("the program times only one end of the pass")
        return None
    timed = begun(kind, kwargs.get("label") or "", -1, hooks.block())
    timed.own = (query_set, int(begin), int(end))
    passes.own = True
    return timed


def _set_pipeline(function: Any) -> Any:
    def set_pipeline(self: Any, pipeline: Any) -> Any:
        try:
            timed = self._gpusense
            if timed is not None and timed.unnamed:
                # Now, and not when the record is made: the pipeline may die before.
                timed.unnamed = False
                name = pipeline._label
                if name:
                    timed.name, timed.label_source = name, "pipeline"
                elif name := pipeline._gpusense_entry:
                    timed.name, timed.label_source = name, "entry_point"
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
                timed.dispatches += 1
                timed.grid = (workgroup_count_x, workgroup_count_y, workgroup_count_z)
        except AttributeError:  # uninstrumented meanwhile
            pass
        return function(self, workgroup_count_x, workgroup_count_y, workgroup_count_z)

    return dispatch_workgroups


def _dispatch_somehow(function: Any) -> Any:
    """Counts dispatches of how many workgroups is not known: to the GPU alone, or because it is another wgpu-py."""

    def dispatch(self: Any, *args: Any, **kwargs: Any) -> Any:
        timed = getattr(self, ATTRIBUTE, None)
        if timed is not None:
            timed.dispatches += 1
        return function(self, *args, **kwargs)

    return dispatch


def _finish(function: Any) -> Any:
    def finish(self: Any, *args: Any, **kwargs: Any) -> Any:
        commands = function(self, *args, **kwargs)
        try:
            passes = self._gpusense
            if passes:
                self._gpusense, commands._gpusense = None, passes
        except AttributeError:  # uninstrumented meanwhile
            pass
        return commands

    return finish


def _submit(hooks: Hooks, function: Any) -> Any:
    def submit(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not hooks.on:
            return function(self, *args, **kwargs)
        commands: Any = args[0] if args else kwargs.get("command_buffers")
        if type(commands) is not list and type(commands) is not tuple and hasattr(commands, "__iter__"):
            commands = list(commands)  # a generator can be read only once
            if args:
                args = (commands, *args[1:])
            else:
                kwargs["command_buffers"] = commands
        start = time_ns()
        result = function(self, *args, **kwargs) if kwargs else function(self, *args)
        try:
            _submitted(hooks, self._device, commands or (), start)
        except Exception:  # noqa: BLE001
            hooks.fail("submit")
        return result

    return submit


def _submitted(hooks: Hooks, device: Any, commands: Any, start_ns: int) -> None:
    timer = getattr(device, ATTRIBUTE, None)
    for buffer in commands:
        passes = getattr(buffer, ATTRIBUTE, None)
        if passes:
            buffer._gpusense = None
            if passes.timer is timer:
                timer.submitted(device, passes, start_ns)
            else:
                hooks.miss("the pass was begun before uninstrument()", len(passes))
                passes.clear()  # its death tells nobody any more
    if timer is None:
        if hooks.staged:
            hooks.hand_on()
    elif start_ns >= timer.look_ns or timer.events or timer.queued >= BATCH or timer.hurry:
        hooks.pump(timer)

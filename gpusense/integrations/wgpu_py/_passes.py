"""Wrappers around devices, encoders and submits: passes and GPU-side copies get time stamps on their way.

Every wrapper calls the original exactly once with the program's arguments, plus ``timestamp_writes`` where a pass has
none, and lets its exceptions through. Errors of ours end in :meth:`Hooks.fail`.
"""

import sys
from collections.abc import Callable
from time import time_ns
from typing import Any

from ._device import Pass, Passes
from ._hooks import ATTRIBUTE, Hooks
from ._patch import Patches

FEATURES = ("timestamp-query",)
COPY_FEATURES = ("timestamp-query", "timestamp-query-inside-encoders")
ENTRY = "_gpusense_entry"
UNDEFINED = 0xFFFFFFFF  # WGPU_QUERY_SET_INDEX_UNDEFINED: no time stamp at this end


def install(hooks: Hooks, patches: Patches) -> None:
    api = hooks.host.api
    for name in ("_request_device", "_request_device_async"):
        patches.wrap(api.GPUAdapter, name, lambda function: _request_device(hooks, function))
    patches.wrap(api.GPUDevice, "__init__", lambda function: _made(hooks, function))
    patches.wrap(api.GPUDevice, "destroy", lambda function: _destroy(hooks, function))
    patches.wrap(api.GPUQuerySet, "destroy", lambda function: _destroy_queries(hooks, function))
    for name, stage in (("create_compute_pipeline", "compute"), ("create_render_pipeline", "vertex")):
        patches.wrap(api.GPUDevice, name, _named_pipeline(stage))
    for kind in ("compute", "render"):
        patches.wrap(api.GPUCommandEncoder, f"begin_{kind}_pass", _begin(hooks, kind))
        native = f"wgpuCommandEncoderBegin{kind.capitalize()}Pass"
        patches.wrap(api.libf, native, lambda function: _native_begin(hooks, function))
    for owner in (api.GPUComputePassEncoder, api.GPURenderPassEncoder):
        patches.wrap(owner, "set_pipeline", _set_pipeline)
    patches.wrap(api.GPUComputePassEncoder, "dispatch_workgroups", _dispatch)
    patches.wrap(api.GPUComputePassEncoder, "dispatch_workgroups_indirect", _dispatch_indirect)
    patches.wrap(api.GPUCommandEncoder, "finish", _finish)
    patches.wrap(api.GPUQueue, "submit", lambda function: _submit(hooks, function))
    patches.wrap(api.error_handler, "log_error", lambda function: _log_error(hooks, function))
    if hooks.copies:
        for method, size in COPIES.items():
            patches.wrap(api.GPUCommandEncoder, method, _copy(hooks, method, size))


# --- devices ------------------------------------------------------------------------------------------------------


def _request_device(hooks: Hooks, function: Any) -> Any:
    def request_device(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not hooks.on:
            return function(self, *args, **kwargs)
        try:
            args, kwargs = _with_features(self, args, kwargs, COPY_FEATURES if hooks.copies else FEATURES)
        except Exception:  # noqa: BLE001
            hooks.fail("request_device")
        return function(self, *args, **kwargs)

    return request_device


def _with_features(adapter: Any, args: Any, kwargs: Any, wanted: tuple[str, ...]) -> tuple[Any, Any]:
    """The arguments with the features the adapter has and the program did not ask for; theirs keep their order.

    Both private methods begin ``(label, required_features, …``; the public ones and those of ``extras`` end here.
    """
    asked = args[1] if len(args) > 1 else kwargs.get("required_features", ())
    if not isinstance(asked, (list, tuple, set)) or not all(isinstance(name, str) for name in asked):
        return args, kwargs  # the program's own mistake, for wgpu-py to report
    present = {name.replace("_", "-") for name in asked}
    features = [*asked, *(name for name in wanted if name not in present and name in adapter.features)]
    if len(args) > 1:
        return (args[0], features, *args[2:]), kwargs
    return args, {**kwargs, "required_features": features}


def _made(hooks: Hooks, function: Any) -> Any:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        function(self, *args, **kwargs)
        if hooks.on:
            try:
                hooks.timer(self)  # now, and not in the middle of the first frame
            except Exception:  # noqa: BLE001
                hooks.fail("device")

    return __init__


def _destroy(hooks: Hooks, function: Any) -> Any:
    def destroy(self: Any, *args: Any, **kwargs: Any) -> Any:
        timer = getattr(self, ATTRIBUTE, None)
        if timer is not None and not hooks.host.exiting:
            try:
                hooks.drain([timer], 0.5)
                timer.stop("the program destroyed the device")
            except Exception:  # noqa: BLE001
                hooks.fail("destroy")
        return function(self, *args, **kwargs)

    return destroy


def _destroy_queries(hooks: Hooks, function: Any) -> Any:
    def destroy(self: Any, *args: Any, **kwargs: Any) -> Any:
        timer = getattr(self._device, ATTRIBUTE, None)
        if timer is None or hooks.host.exiting:  # a forked child may find the lock taken for ever
            return function(self, *args, **kwargs)
        with timer.lock:  # not while a step of ours resolves from it
            return function(self, *args, **kwargs)

    return destroy


def _named_pipeline(stage: str) -> Callable[[Any], Any]:
    def make(function: Any) -> Any:
        def create_pipeline(self: Any, *args: Any, **kwargs: Any) -> Any:
            made = function(self, *args, **kwargs)
            try:
                entry = kwargs[stage]["entry_point"]  # a dict or one of wgpu-py's structs
            except Exception:  # noqa: BLE001 - it need not be given
                return made
            if type(entry) is str:
                setattr(made, ENTRY, entry)
            return made

        return create_pipeline

    return make


def _log_error(hooks: Hooks, function: Any) -> Any:
    def log_error(message: Any, *args: Any) -> Any:
        text = str(message)
        if text.startswith("The WGPU device was lost") and "(Destroyed)" not in text:
            hooks.lost(text.partition("\n")[2] or text)
        return function(message, *args)

    return log_error


# --- passes -------------------------------------------------------------------------------------------------------


def _begin(hooks: Hooks, kind: str) -> Callable[[Any], Any]:
    local = hooks.local

    def make(function: Any) -> Any:
        def begin_pass(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not hooks.on:
                return function(self, *args, **kwargs)
            timed = None
            try:
                timer = getattr(self._device, ATTRIBUTE, None) or hooks.timer(self._device)
                timed = _open(hooks, timer, kind, kwargs)
                if timed is not None and not timed.name:
                    _name(timed, self.label, sys._getframe(1))
            except Exception:  # noqa: BLE001
                hooks.fail("begin_pass")
            if timed is None:
                return function(self, *args, **kwargs)
            writes = timer.writes[kind] + (timed.slot >> 1) if timed.slot >= 0 else None
            # Not None: this is a finalizer or signal handler in the middle of beginning another pass.
            before, local.writes = local.writes, writes
            try:
                encoder = function(self, *args, **kwargs)
            except BaseException:
                _give_back(timer, timed)
                raise
            finally:
                local.writes = before
            if writes is not None and local.taken is not writes:
                _give_back(timer, timed)  # never written, so never to be resolved (wgpu#7238)
                hooks.miss("another tool times the pass")
            else:
                setattr(encoder, ATTRIBUTE, timed)
                _keep(self, timer, timed)
            return encoder

        return begin_pass

    return make


def _give_back(timer: Any, timed: Pass) -> None:
    if timed.slot >= 0:
        timer.free.append(timed.slot)


def _name(timed: Pass, label: str, frame: Any) -> None:
    """For a pass without a label; pipeline and entry point are tried when the record is made."""
    if label:
        timed.name, timed.label_source = label, "encoder"
    else:
        timed.where = (frame.f_code.co_filename, frame.f_lineno)


def _keep(encoder: Any, timer: Any, timed: Pass) -> None:
    """``timed`` goes with its command encoder."""
    passes = getattr(encoder, ATTRIBUTE, None)
    if passes is None:
        passes = Passes(timer)
        setattr(encoder, ATTRIBUTE, passes)
    passes.append(timed)


def _native_begin(hooks: Hooks, function: Any) -> Any:
    """Below wgpu-py, where the descriptor is ready: a pointer to our queries costs less than a dict wgpu-py reads."""
    local = hooks.local

    def begin(encoder: Any, descriptor: Any) -> Any:
        writes = local.writes
        if writes is not None and not descriptor.timestampWrites:
            descriptor.timestampWrites = local.taken = writes
            local.writes = None
        return function(encoder, descriptor)

    return begin


def _open(hooks: Hooks, timer: Any, kind: str, kwargs: dict[str, Any]) -> Pass | None:
    """A pass with queries of ours, or with the program's own; None for one that cannot be timed (and is counted)."""
    if timer.dead is not None:
        hooks.miss(timer.dead)
        return None
    own = kwargs.get("timestamp_writes")
    if own is None:
        try:
            timed = Pass(kind, kwargs.get("label") or "", timer.free.popleft())
        except IndexError:
            hooks.miss("more passes were under way than there are queries")
            return None
        timed.block = hooks.block()
        return timed
    return _open_own(hooks, kind, kwargs, own)


def _open_own(hooks: Hooks, kind: str, kwargs: dict[str, Any], own: Any) -> Pass | None:
    try:
        begin, end = own.get("beginning_of_pass_write_index"), own.get("end_of_pass_write_index")
        query_set = own["query_set"]
        query_set._internal  # noqa: B018 - something to resolve from
    except Exception:  # noqa: BLE001 - the program's mistake, for wgpu-py to report
        return None
    if begin is None or end is None or UNDEFINED in (begin, end):
        hooks.miss("the program times only one end of the pass")
        return None
    timed = Pass(kind, kwargs.get("label") or "", -1)
    timed.own = (query_set, int(begin), int(end))
    timed.block = hooks.block()
    return timed


def _set_pipeline(function: Any) -> Any:
    def set_pipeline(self: Any, pipeline: Any) -> Any:
        timed = getattr(self, ATTRIBUTE, None)
        if timed is not None and not timed.piped and not timed.name:
            timed.piped = True
            _name_by_pipeline(timed, pipeline)
        return function(self, pipeline)

    return set_pipeline


def _name_by_pipeline(timed: Pass, pipeline: Any) -> None:
    """Now, and not when the record is made: the pipeline may die before."""
    label = getattr(pipeline, "label", None)
    if label:
        timed.name, timed.label_source = label, "pipeline"
        return
    entry = getattr(pipeline, ENTRY, None)
    if entry:
        timed.name, timed.label_source = entry, "entry_point"


def _dispatch(function: Any) -> Any:
    def dispatch_workgroups(self: Any, *args: Any, **kwargs: Any) -> Any:
        timed = getattr(self, ATTRIBUTE, None)
        if timed is not None:
            timed.dispatches += 1
            if timed.dispatches == 1:
                timed.arguments = (args, kwargs)
        return function(self, *args, **kwargs)

    return dispatch_workgroups


def _dispatch_indirect(function: Any) -> Any:
    def dispatch_workgroups_indirect(self: Any, *args: Any, **kwargs: Any) -> Any:
        timed = getattr(self, ATTRIBUTE, None)
        if timed is not None:
            timed.dispatches += 1  # how many workgroups is known to the GPU alone
        return function(self, *args, **kwargs)

    return dispatch_workgroups_indirect


def _finish(function: Any) -> Any:
    def finish(self: Any, *args: Any, **kwargs: Any) -> Any:
        commands = function(self, *args, **kwargs)
        passes = getattr(self, ATTRIBUTE, None)
        if passes is not None:
            setattr(self, ATTRIBUTE, None)
            setattr(commands, ATTRIBUTE, passes)
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
        result = function(self, *args, **kwargs)
        try:
            _submitted(hooks, self, commands or (), start)
        except Exception:  # noqa: BLE001
            hooks.fail("submit")
        return result

    return submit


def _submitted(hooks: Hooks, queue: Any, commands: Any, start_ns: int) -> None:
    device = queue._device
    timer = getattr(device, ATTRIBUTE, None)
    for buffer in commands:
        passes = getattr(buffer, ATTRIBUTE, None)
        if passes:
            taken = list(passes)
            passes.clear()  # its death returns no query any more
            for timed in taken:
                timed.submitted_ns = start_ns
            if passes.timer is timer:
                timer.submitted(device, taken)
            else:
                hooks.miss("the pass was begun before uninstrument()", len(taken))
    if timer is not None and (timer.dead is None or not timer.idle):
        hooks.pump(timer)
    elif hooks.staged:
        hooks.hand_on()


# --- GPU-side copies ----------------------------------------------------------------------------------------------


def _copy(hooks: Hooks, method: str, size: Callable[..., int]) -> Callable[[Any], Any]:
    def make(function: Any) -> Any:
        def copy(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not hooks.on:
                return function(self, *args, **kwargs)
            timed = None
            try:
                timed = _open_copy(hooks, self, method, size(args, kwargs))
            except Exception:  # noqa: BLE001
                hooks.fail(method)
            try:
                return function(self, *args, **kwargs)
            finally:
                if timed is not None:
                    _close_copy(hooks, self, timed)

        return copy

    return make


def _open_copy(hooks: Hooks, encoder: Any, method: str, size: int) -> Pass | None:
    timer = hooks.timer(encoder._device)
    if timer.dead is not None or not timer.copies:
        hooks.miss(timer.dead or "the device has no time stamps between passes")
        return None
    try:
        slot = timer.free.popleft()
    except IndexError:
        hooks.miss("more passes were under way than there are queries")
        return None
    try:
        hooks.host.write_timestamp(encoder._internal, timer.query_set, slot)
    except Exception:
        timer.free.append(slot)
        raise
    timed = Pass(method, encoder.label or "", slot)
    timed.bytes = size
    timed.block = hooks.block()
    return timed


def _close_copy(hooks: Hooks, encoder: Any, timed: Pass) -> None:
    timer = hooks.timer(encoder._device)
    try:
        hooks.host.write_timestamp(encoder._internal, timer.query_set, timed.slot + 1)
    except Exception:  # noqa: BLE001
        timer.free.append(timed.slot)
        hooks.fail(timed.kind)
        return
    _keep(encoder, timer, timed)


def _argument(args: Any, kwargs: Any, index: int, name: str) -> Any:
    return args[index] if len(args) > index else kwargs.get(name)


def _buffer_size(args: Any, kwargs: Any) -> int:
    size = _argument(args, kwargs, 4, "size")
    if size is not None:
        return int(size)
    return int(_argument(args, kwargs, 0, "source").size - _argument(args, kwargs, 1, "source_offset"))


def _rows_size(index: int, name: str) -> Callable[[Any, Any], int]:
    def size(args: Any, kwargs: Any) -> int:
        layout, extent = _argument(args, kwargs, index, name), _argument(args, kwargs, 2, "copy_size")
        if isinstance(extent, dict):
            rows = extent.get("height", 1) * extent.get("depth_or_array_layers", 1)
        else:
            _, height, depth = (*extent, 1, 1)[:3]
            rows = height * depth
        return int(layout["bytes_per_row"] * rows)

    return size


COPIES: dict[str, Callable[[Any, Any], int]] = {
    "copy_buffer_to_buffer": _buffer_size,
    "copy_buffer_to_texture": _rows_size(0, "source"),
    "copy_texture_to_buffer": _rows_size(1, "destination"),
}

"""Wrappers around devices and what they make: features for time stamps, a timer each, and their end.

A device gets features that its program did not ask for, and does not show them: a program that branches on
``device.features`` takes the way that it takes without us.
"""

import sys
from collections.abc import Callable
from typing import Any, NamedTuple
from zlib import crc32

from .._hosts import Patches
from . import _finalizers
from ._hooks import ATTRIBUTE, Hooks

FEATURES = ("timestamp-query",)
COPY_FEATURES = ("timestamp-query", "timestamp-query-inside-encoders")
#: On the promise of a device: the function that makes it; the second before wgpu-py 0.26.
MAKERS = ("_handler", "finalizer")
#: On a device: the features that its program did not ask for. It stays: they do, too.
ADDED = "_gpusense_added"
NOT_ASKED_FOR = (
    "Validation Error\n\nCaused by:\n  In wgpuDeviceCreateQuerySet\n"
    "    Features Features { features_wgpu: FeaturesWGPU(0x0), features_webgpu: FeaturesWebGPU(TIMESTAMP_QUERY) } "
    "are required but not enabled on the device"
)
#: On a pipeline: what tells it from others; on a shader module: the checksum of its code.
NAMED, CODE = "_gpusense_named", "_gpusense_code"
PIPELINES = ("GPUComputePipeline", "GPURenderPipeline")
#: Entry points that say nothing.
GENERIC = frozenset(("main", "cs_main", "compute_main"))
#: Lost because the program wanted it so, as wgpu-py's versions spell it.
MEANT = tuple(f"the wgpu device was lost ({why}" for why in ("destroyed", "callbackcancelled", "callback-cancelled"))


def install(hooks: Hooks, patches: Patches) -> None:
    api = hooks.host.api
    for name in ("_request_device", "_request_device_async"):
        patches.wrap(api.GPUAdapter, name, lambda function: _request_device(hooks, function))
    patches.wrap(api.GPUDevice, "__init__", lambda function: _made(hooks, patches, function))
    patches.wrap(api.GPUDevice, "destroy", lambda function: _destroy(hooks, function))
    if hasattr(getattr(api, "classes", None), "GPUValidationError"):
        patches.wrap(api.GPUDevice, "create_query_set", lambda function: _create_query_set(hooks, function))
    patches.wrap(api.GPUQuerySet, "destroy", lambda function: _destroy_queries(hooks, function))
    for name in PIPELINES:
        patches.put(getattr(api, name), NAMED, None)
    patches.put(api.GPUShaderModule, CODE, None)
    patches.wrap(api.GPUDevice, "create_shader_module", _coded_module)
    for name, stages in (("create_compute_pipeline", ("compute",)), ("create_render_pipeline", ("vertex", "fragment"))):
        patches.wrap(api.GPUDevice, name, _named_pipeline(stages, hooks))
    helpers = sys.modules.get(f"{api.__name__.rpartition('.')[0]}._helpers")
    if helpers is not None:
        patches.wrap(helpers, "generate_report", lambda function: _report(hooks, function))
    patches.wrap(api.error_handler, "log_error", lambda function: _log_error(hooks, function))


def _request_device(hooks: Hooks, function: Any) -> Any:
    def request_device(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not hooks.on:
            return function(self, *args, **kwargs)
        added: tuple[str, ...] = ()
        try:
            args, kwargs, added = _with_features(self, args, kwargs, COPY_FEATURES if hooks.copies else FEATURES)
        except Exception:  # noqa: BLE001
            hooks.fail("request_device")
        answer = function(self, *args, **kwargs)
        try:
            return _hidden(hooks, answer, added) if added else answer
        except Exception:  # noqa: BLE001 - a promise that is not as known: the features show
            hooks.fail("request_device")
            return answer

    return request_device


def _hidden(hooks: Hooks, answer: Any, added: tuple[str, ...]) -> Any:
    """``answer``, a device or the promise of one, whose device does not show the features that we ``added``."""

    def hide(device: Any) -> Any:
        try:
            device.features.difference_update(added)
            setattr(device, ADDED, added)
        except Exception:  # noqa: BLE001
            hooks.fail("request_device")
        return device

    maker = next((name for name in MAKERS if hasattr(answer, name)), None)
    if maker is None:
        return hide(answer)
    make = getattr(answer, maker)
    setattr(answer, maker, lambda native: hide(make(native)))
    return answer


def _with_features(adapter: Any, args: Any, kwargs: Any, wanted: tuple[str, ...]) -> tuple[Any, Any, tuple[str, ...]]:
    """The arguments with the features the adapter has and the program did not ask for, which are given apart, too.

    Both private methods begin ``(label, required_features, …``; the public ones and those of ``extras`` end here.
    """
    asked = args[1] if len(args) > 1 else kwargs.get("required_features", ())
    if not isinstance(asked, (list, tuple, set)) or not all(isinstance(name, str) for name in asked):
        return args, kwargs, ()  # the program's own mistake, for wgpu-py to report
    present = {name.replace("_", "-") for name in asked}
    added = tuple(name for name in wanted if name not in present and name in adapter.features)
    features = [*asked, *added]  # theirs keep their order
    if len(args) > 1:
        return (args[0], features, *args[2:]), kwargs, added
    return args, {**kwargs, "required_features": features}, added


def _create_query_set(hooks: Hooks, function: Any) -> Any:
    """What needs a feature that the program did not ask for is refused in wgpu-native's own words."""

    def create_query_set(self: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("type") == "timestamp" and FEATURES[0] in getattr(self, ADDED, ()):
            raise hooks.host.api.classes.GPUValidationError(NOT_ASKED_FOR)
        return function(self, *args, **kwargs)

    return create_query_set


def _made(hooks: Hooks, patches: Patches, function: Any) -> Any:
    opengl: list[Any] = []  # the first device of OpenGL was made

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        function(self, *args, **kwargs)
        if hooks.on:
            try:
                timer = hooks.timer(self)  # now, and not in the middle of the first frame
                if timer.opengl and not opengl:
                    opengl.append(True)
                    _finalizers.install(hooks, patches)
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


class Named(NamedTuple):
    """Of a pipeline, for passes without a label."""

    name: str  # of a compute pass: of the entry point, as far as that tells it from others
    suffix: str  # behind the place where a render pass is begun: whose pipeline it is, and its checksum


def _coded_module(function: Any) -> Any:
    def create_shader_module(self: Any, *args: Any, **kwargs: Any) -> Any:
        made = function(self, *args, **kwargs)
        code = kwargs.get("code")
        if isinstance(code, (str, bytes)):
            setattr(made, CODE, crc32(code.encode("utf-8", "replace") if isinstance(code, str) else code))
        return made

    return create_shader_module


def _named_pipeline(stages: tuple[str, ...], hooks: Hooks) -> Callable[[Any], Any]:
    def make(function: Any) -> Any:
        def create_pipeline(self: Any, *args: Any, **kwargs: Any) -> Any:
            made = function(self, *args, **kwargs)
            try:
                setattr(made, NAMED, _named(hooks, [kwargs.get(stage) for stage in stages], sys._getframe(1)))
            except Exception:  # noqa: BLE001
                hooks.fail("create_pipeline")
            return made

        return create_pipeline

    return make


def _named(hooks: Hooks, stages: list[Any], frame: Any) -> Named:
    """The name for a pipeline of these stages, whose making was asked for in ``frame``. Equal only for equal work: the
    checksum is of the shaders, their entry points and constants."""
    facts = [
        (getattr(stage["module"], CODE, None), stage.get("entry_point"), repr(stage.get("constants")))
        for stage in stages
        if stage is not None
    ]
    entry, digest = facts[0][1], f"{crc32(repr(facts).encode()) & 0xFFFFFF:06x}"
    maker = _maker(frame)
    suffix = f" [{maker} {digest}]" if maker else f" [{digest}]"
    if not isinstance(entry, str) or entry in GENERIC:
        return Named(f"{entry or 'compute'}{suffix}", suffix)
    first = hooks.entries.setdefault(entry, digest)
    return Named(entry if first == digest else f"{entry} [{digest}]", suffix)


def _maker(frame: Any) -> str:
    """The class of the object that makes a pipeline, as an effect's is, or the function; it may have helpers."""
    first = frame.f_code.co_name
    for _ in range(4):
        code = frame.f_code
        if code.co_argcount and code.co_varnames[0] == "self":
            return type(frame.f_locals["self"]).__name__
        frame = frame.f_back
        if frame is None:
            break
    return "" if first == "<module>" else str(first)


def _report(hooks: Hooks, function: Any) -> Any:
    """wgpu-native's count of its objects, by which programs look for leaks of theirs: without ours."""

    def generate_report(*args: Any, **kwargs: Any) -> Any:
        report = function(*args, **kwargs)
        try:
            kinds = [handle.kind for handle in list(hooks.host.handles)]
            for kind, name in (("QuerySet", "querySets"), ("Buffer", "buffers")):
                report["hub"][name]["kept"] -= kinds.count(kind)
        except Exception:  # noqa: BLE001 - another wgpu-py's: ours show
            return report
        return report

    return generate_report


def _log_error(hooks: Hooks, function: Any) -> Any:
    def log_error(message: Any, *args: Any) -> Any:
        text = str(message)
        if text.startswith("The WGPU device was lost") and not text[:60].lower().startswith(MEANT):
            hooks.lost(text.partition("\n")[2] or text)
        return function(message, *args)

    return log_error

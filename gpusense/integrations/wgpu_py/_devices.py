"""Wrappers around devices and what they make: features for time stamps, a timer each, and their end."""

from collections.abc import Callable
from typing import Any

from .._hosts import Patches
from ._hooks import ATTRIBUTE, Hooks

FEATURES = ("timestamp-query",)
COPY_FEATURES = ("timestamp-query", "timestamp-query-inside-encoders")
#: On a pipeline: its entry point, where that can name a pass.
ENTRY = "_gpusense_entry"
PIPELINES = ("GPUComputePipeline", "GPURenderPipeline")
#: Lost because the program wanted it so, as wgpu-py's versions spell it.
MEANT = tuple(f"the wgpu device was lost ({why}" for why in ("destroyed", "callbackcancelled", "callback-cancelled"))


def install(hooks: Hooks, patches: Patches) -> None:
    api = hooks.host.api
    for name in ("_request_device", "_request_device_async"):
        patches.wrap(api.GPUAdapter, name, lambda function: _request_device(hooks, function))
    patches.wrap(api.GPUDevice, "__init__", lambda function: _made(hooks, function))
    patches.wrap(api.GPUDevice, "destroy", lambda function: _destroy(hooks, function))
    patches.wrap(api.GPUQuerySet, "destroy", lambda function: _destroy_queries(hooks, function))
    for name in PIPELINES:
        patches.put(getattr(api, name), ENTRY, None)
    for name, stage in (("create_compute_pipeline", "compute"), ("create_render_pipeline", "vertex")):
        patches.wrap(api.GPUDevice, name, _named_pipeline(stage))
    patches.wrap(api.error_handler, "log_error", lambda function: _log_error(hooks, function))


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
                given = kwargs[stage]
                # One of wgpu-py's structs, too; but pygfx's render pipelines all begin in the same function.
                entry = given["entry_point"] if stage == "compute" or type(given) is dict else None
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
        if text.startswith("The WGPU device was lost") and not text[:60].lower().startswith(MEANT):
            hooks.lost(text.partition("\n")[2] or text)
        return function(message, *args)

    return log_error

"""Wrappers around copies between resources of the GPU: time stamps on the encoder around each."""

from collections.abc import Callable
from typing import Any

from .._hosts import Patches
from ._batch import BYTES, KIND, LENT, Pass, begun
from ._hooks import Hooks
from ._passes import passes_of


def install(hooks: Hooks, patches: Patches) -> None:
    if not hooks.copies:
        return
    for method, size in COPIES.items():
        patches.wrap(hooks.host.api.GPUCommandEncoder, method, _copy(hooks, method, size))


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
    timer, block = hooks.timer(encoder._device), hooks.block()
    if timer.dead is not None or not timer.copies:
        hooks.miss(timer.dead or "the device has no time stamps between passes")
        return None
    try:
        lent = timer.free.popleft()
    except IndexError:
        hooks.miss("more passes were under way than there are queries")
        return None
    try:
        query_set, index = timer.queries.place(lent)
        hooks.host.write_timestamp(encoder._internal, query_set, index)
    except Exception:
        timer.give_back([lent])
        raise
    timed = begun(method, encoder.label or "", lent, block)
    timed[BYTES] = size
    return timed


def _close_copy(hooks: Hooks, encoder: Any, timed: Pass) -> None:
    timer = hooks.timer(encoder._device)
    try:
        query_set, index = timer.queries.place(timed[LENT])
        hooks.host.write_timestamp(encoder._internal, query_set, index + 1)
        passes_of(hooks, encoder).append(timed)
    except Exception:  # noqa: BLE001
        timer.give_back([timed[LENT]])
        hooks.fail(timed[KIND])


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

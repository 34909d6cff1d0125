"""Wrappers around copies between resources of the GPU, and clears: time stamps on the encoder around each."""

import re
from collections.abc import Callable
from typing import Any

from .._hosts import Patches
from ._batch import BYTES, CLEAR, KIND, LENT, Pass, begun
from ._hooks import Hooks
from ._passes import more, passes_of


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
            timed = refused = None
            try:
                timed = _open_copy(hooks, self, method)
            except hooks.host.refusal as error:
                refused = error  # the program's mistake, as the copy will tell; else it is counted below
            except Exception:  # noqa: BLE001
                hooks.fail(method)
            try:
                result = function(self, *args, **kwargs)
            except BaseException:
                if timed is not None:  # its first stamp is written when this encoder is submitted, and not read
                    passes_of(hooks, self).void.append(timed[LENT])
                raise
            if timed is not None:
                _close_copy(hooks, self, timed, lambda: size(args, kwargs))
            elif refused is not None:
                hooks.miss(f"wgpu refused a time stamp beside the copy ({type(refused).__name__})")
            return result

        return copy

    return make


def _open_copy(hooks: Hooks, encoder: Any, method: str) -> Pass | None:
    passes, block = passes_of(hooks, encoder), hooks.block()
    timer = passes.timer
    if timer.dead is not None or not timer.copies:
        hooks.miss(timer.dead or "the device has no time stamps between passes")
        return None
    try:
        lent = passes.lend() if timer.free else more(passes)
    except IndexError:
        hooks.miss("more passes were under way than there are queries")
        return None
    try:
        query_set, index = timer.queries.place(lent)
        hooks.host.write_timestamp(encoder._internal, query_set, index)
    except Exception:
        timer.give_back([lent])
        raise
    return begun(method, encoder.label or "", lent, block)


def _close_copy(hooks: Hooks, encoder: Any, timed: Pass, size: Callable[[], int]) -> None:
    passes = passes_of(hooks, encoder)
    try:
        timed[BYTES] = size()
        query_set, index = passes.timer.queries.place(timed[LENT])
        hooks.host.write_timestamp(encoder._internal, query_set, index + 1)
        passes.append(timed)
    except LookupError:
        passes.void.append(timed[LENT])
        hooks.miss("how many bytes a copy between textures of this format moves is not known")
    except Exception:  # noqa: BLE001
        passes.void.append(timed[LENT])
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
        _, height, depth = _extent(args, kwargs)
        return int(_argument(args, kwargs, index, name)["bytes_per_row"]) * height * depth

    return size


def _texels_size(args: Any, kwargs: Any) -> int:
    width, height, depth = _extent(args, kwargs)
    return width * height * depth * texel_bytes(_argument(args, kwargs, 0, "source")["texture"].format)


def _extent(args: Any, kwargs: Any) -> tuple[int, int, int]:
    extent = _argument(args, kwargs, 2, "copy_size")
    if hasattr(extent, "get"):
        return int(extent["width"]), int(extent.get("height", 1)), int(extent.get("depth_or_array_layers", 1))
    width, height, depth = (*extent, 1, 1)[:3]
    return int(width), int(height), int(depth)


def texel_bytes(texture_format: str) -> int:
    """Bytes of one texel; :class:`LookupError` for formats of blocks, and those that a driver lays out as it likes."""
    if texture_format in _TEXELS:
        return _TEXELS[texture_format]
    found = re.match(r"(r|rg|rgba|bgra)(8|16|32)(unorm|snorm|uint|sint|float)", texture_format)
    if found is None:
        raise LookupError(texture_format)
    return len(found[1]) * int(found[2]) // 8


def _cleared_size(args: Any, kwargs: Any) -> int:
    size = _argument(args, kwargs, 2, "size")
    whole = _argument(args, kwargs, 0, "buffer").size - (_argument(args, kwargs, 1, "offset") or 0)
    return int(whole if size is None else size)


_TEXELS = {
    "rgb9e5ufloat": 4,
    "rgb10a2uint": 4,
    "rgb10a2unorm": 4,
    "rg11b10ufloat": 4,
    "stencil8": 1,
    "depth16unorm": 2,
    "depth32float": 4,
}

COPIES: dict[str, Callable[[Any, Any], int]] = {
    "copy_buffer_to_buffer": _buffer_size,
    "copy_buffer_to_texture": _rows_size(0, "source"),
    "copy_texture_to_buffer": _rows_size(1, "destination"),
    "copy_texture_to_texture": _texels_size,
    CLEAR: _cleared_size,
}

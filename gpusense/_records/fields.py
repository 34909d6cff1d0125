"""Fields of records that a program makes itself, beside those that are parameters: for type checkers, which complete
and check them, and for :func:`check_names`, which refuses others."""

from collections.abc import Mapping
from typing import Any, NoReturn, TypedDict

from .records import Dim3, Path


class KernelFields(TypedDict, total=False):
    """Of a :class:`GpuKernel`."""

    device: int | None
    backend: str
    context: int | None
    stream: int | None
    grid: Dim3 | int | None
    block: Dim3 | int | None
    registers_per_thread: int | None
    static_shared_bytes: int | None
    dynamic_shared_bytes: int | None
    local_bytes_per_thread: int | None
    correlation_id: int | None
    graph_id: int | None
    graph_node_id: int | None
    full_name: str | None
    raw_name: str | None
    label: str | None
    elements: int | None
    occupancy: float | None
    is_slow: bool
    path: Path
    block_id: int | None
    ambiguous: tuple[int, ...]
    owner: Path | None
    attributes: Mapping[str, Any] | None


class TransferFields(TypedDict, total=False):
    """Of a :class:`GpuMemoryTransfer`."""

    device: int | None
    backend: str
    context: int | None
    stream: int | None
    correlation_id: int | None
    source: str | None
    destination: str | None
    source_device: int | None
    destination_device: int | None
    graph_id: int | None
    graph_node_id: int | None
    label: str | None
    usage: str | None
    wait_ns: int | None
    timing: str
    is_slow: bool
    path: Path
    block_id: int | None
    ambiguous: tuple[int, ...]
    owner: Path | None
    attributes: Mapping[str, Any] | None


class ComputeFields(TypedDict, total=False):
    """Of a :class:`ComputeBlock`."""

    thread: int | None
    backend: str
    is_slow: bool
    path: Path
    block_id: int | None
    attributes: Mapping[str, Any] | None


def check_names(function: str, fields: Mapping[str, Any], known: type) -> None:
    """Raises ``TypeError``, as Python does for a parameter, where ``known`` has no such field."""
    for name in fields:
        if name not in known.__annotations__:
            _refuse(function, name, [*known.__annotations__, *_PARAMETERS])


_PARAMETERS = ("name", "direction", "bytes", "start_ns", "end_ns", "duration_ns", "elements")


def _refuse(function: str, name: str, known: list[str]) -> NoReturn:
    from difflib import get_close_matches

    near = get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise TypeError(f"{function}() got an unexpected keyword argument {name!r}{hint}")

"""Collectives in traces of torch.profiler: what Kineto writes beside the kernels of NCCL and RCCL. Pure.

Source: ``appendCollectiveMetadata`` of Kineto's ``output_json.cpp`` and ``saveNcclMeta`` of PyTorch's
``profiler/util.cpp``. Older versions write less: without ``Seq`` ranks are matched in order, without the group's ranks
nobody's place in it is known.
"""

from hashlib import sha256
from typing import Any

from ..._records.records import GpuCollective

NAME = "Collective name"
_GROUP, _ABOUT, _RANKS, _SIZE = (
    "Process Group Name",
    "Process Group Description",
    "Process Group Ranks",
    "Group size",
)
_GIVEN, _GOT, _TYPE, _NUMBER = "In msg nelems", "Out msg nelems", "dtype", "Seq"
_TO, _FROM = "Dst Rank", "Src Rank"
#: What is read of all that stands there.
TOLD = (NAME, _GROUP, _ABOUT, _RANKS, _SIZE, _GIVEN, _GOT, _TYPE, _NUMBER, _TO, _FROM)
#: PyTorch's names begin like these, without underscores: NCCL's name. What begins like two of them is the first.
_FUNCTIONS = {
    "allreduce": "AllReduce",
    "allgather": "AllGather",
    "reducescatter": "ReduceScatter",
    "alltoall": "AllToAll",
    "broadcast": "Broadcast",
    "barrier": "AllReduce",  # by which it is made
    "reduce": "Reduce",
    "gather": "Gather",
    "scatter": "Scatter",
    "send": "Send",
    "recv": "Recv",
}
#: PyTorch's names of types: ours, and bytes of an element.
_TYPES = {
    "Byte": ("uint8", 1),
    "Char": ("int8", 1),
    "Bool": ("bool", 1),
    "Short": ("int16", 2),
    "Int": ("int32", 4),
    "Long": ("int64", 8),
    "Half": ("float16", 2),
    "BFloat16": ("bfloat16", 2),
    "Float": ("float32", 4),
    "Double": ("float64", 8),
    "ComplexFloat": ("complex64", 8),
    "ComplexDouble": ("complex128", 16),
    "Float8_e4m3fn": ("float8_e4m3", 1),
    "Float8_e4m3fnuz": ("float8_e4m3", 1),
    "Float8_e5m2": ("float8_e5m2", 1),
    "Float8_e5m2fnuz": ("float8_e5m2", 1),
}
_MOST_RANKS = 100_000  # of a group whose ranks are worked out


def collective(args: dict[str, Any], start_ns: int, end_ns: int, global_rank: int | None) -> GpuCollective | None:
    """What a kernel's ``args`` tell of the collective that it does; None for other kernels. Its times are the
    kernel's, since nothing else is known of its channels; those of its launch are the caller's to fill in.
    """
    called = args.get(NAME)
    if not isinstance(called, str) or not called:
        return None
    name = _function(called)
    size = _number(args, _SIZE)
    ranks = _ranks(args.get(_RANKS), size)
    kind, width = _TYPES.get(str(args.get(_TYPE)), (None, None))
    given, got = _number(args, _GIVEN), _number(args, _GOT)
    most = max((count for count in (given, got) if count is not None), default=None)
    between_two = name in ("Send", "Recv")
    return GpuCollective(
        name,
        start_ns,
        start_ns,
        communicator=_identity(args),
        communicator_name=_text(args.get(_ABOUT)) or _text(args.get(_GROUP)),
        rank=_place(global_rank, ranks),
        ranks=size,
        # Sends and receives are counted by each rank for itself.
        sequence=None if between_two else _number(args, _NUMBER),
        elements=got if name == "ReduceScatter" else given,
        data_type=kind,
        bytes=most * width if most is not None and width is not None else None,
        peer=_place(_number(args, _TO if name == "Send" else _FROM), ranks) if between_two else None,
        device_start_ns=start_ns,
        device_end_ns=end_ns,
    )


def _function(called: str) -> str:
    plain = called.replace("_", "").lower()
    return next((name for begins, name in _FUNCTIONS.items() if plain.startswith(begins)), called[:100])


def _identity(args: dict[str, Any]) -> str | None:
    """The same for a group in the traces of all its ranks."""
    told = [args.get(name) for name in (_GROUP, _RANKS, _SIZE)]
    return sha256(repr(told).encode("utf-8", "replace")).hexdigest()[:16] if told[0] is not None else None


def _ranks(text: Any, size: int | None) -> list[int] | None:
    """ "[0, 2, 4, 6]", the beginning of a long list "[0, 2, 4, ...]" by its steps."""
    if not isinstance(text, str):
        return None
    parts = [part.strip() for part in text.strip("[] ").split(",")]
    cut = parts[-1:] == ["..."]
    try:
        found = [int(part) for part in parts[: len(parts) - cut]]
    except ValueError:
        return None
    if not cut:
        return found
    if len(found) < 2 or size is None or not len(found) < size <= _MOST_RANKS:
        return None
    step = found[1] - found[0]
    made = [found[0] + step * place for place in range(size)]
    return made if made[: len(found)] == found else None


def _place(global_rank: int | None, ranks: list[int] | None) -> int | None:
    """The rank within the group, by which both ends of a send name each other."""
    return ranks.index(global_rank) if ranks is not None and global_rank in ranks else None


def _number(args: dict[str, Any], name: str) -> int | None:
    value = args.get(name)
    return value if type(value) is int and 0 <= value < 1 << 62 else None


def _text(value: Any) -> str | None:
    return value[:200] if isinstance(value, str) and value else None

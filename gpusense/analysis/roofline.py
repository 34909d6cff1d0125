"""How near work came to what the device can do: from work sizes its author gave, and from counters of blocks.

A kernel or block has a size if its attributes have ``flops`` (floating-point operations) and ``bytes`` (of device
memory moved); a block is measured where :class:`BlockCounters` tell of it. Attainable rate = min(peak, intensity ×
bandwidth), intensity = operations ÷ bytes (Williams, Waterman and Patterson, CACM 52(4), 2009).
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from .._records.counters import BlockCounters
from .._records.device_identity import device_of
from .._records.records import BlockRecord, GpuKernel, Path
from .._runtime.text import UNKNOWN, one_line, percent_text, rate_text
from ..session import Session
from .blocks import BlockNode, block_tree
from .peaks import peaks

#: A block that reaches less of every roof is bound by none of them: it waits, or its grids are too small.
_NEAR = 0.2
#: Kinds of operations below this part of the block's nearest one are not worth a word.
_WORTH = 0.1


class Point(NamedTuple):
    """One kernel name or block path against the device's roof."""

    kind: str  # "kernel" or "block"
    name: str
    flops: float
    bytes: float
    device_ns: int
    intensity: float | None  # flops a byte
    flops_per_s: float
    bytes_per_s: float
    attainable_flops_per_s: float | None  # None where a peak is not known
    bound: str | None  # "memory" or "compute"

    @property
    def share(self) -> float | None:
        """Of what is attainable. Above 1 the work used units that the peak does not count, such as tensor cores."""
        return self.flops_per_s / self.attainable_flops_per_s if self.attainable_flops_per_s else None


def roofline(session: Session) -> list[Point]:
    """Points for every kernel name and block path with sizes, longest first."""
    kernels: dict[tuple[str, int | None], list[float]] = {}
    blocks: dict[tuple[str, ...], list[float]] = {}
    for record in session.records:
        kind = type(record)
        if kind not in (GpuKernel, BlockRecord):
            continue
        sizes = _sizes(record.attributes)
        if sizes is None:
            continue
        if isinstance(record, GpuKernel):
            spent = max(0, record.end_ns - record.start_ns)
            sums = kernels.setdefault((record.name, record.device), [0.0, 0.0, 0.0])
        else:
            spent = 0
            sums = blocks.setdefault(record.path, [0.0, 0.0, 0.0])
        for at, value in enumerate((*sizes, spent)):
            sums[at] += value
    device_ns = {node.path: node.gpu_ns for node in _walk(block_tree(session))} if blocks else {}
    points = [_point(session, "kernel", name, device, *sums) for (name, device), sums in kernels.items()]
    points += [
        _point(session, "block", " › ".join(path), None, sums[0], sums[1], device_ns.get(path, 0))
        for path, sums in blocks.items()
    ]
    return sorted((point for point in points if point.device_ns), key=lambda point: -point.device_ns)


def _sizes(attributes: dict[str, Any] | None) -> tuple[float, float] | None:
    if not isinstance(attributes, dict):
        return None
    flops, size = attributes.get("flops"), attributes.get("bytes")
    if isinstance(flops, (int, float)) and isinstance(size, (int, float)) and flops >= 0 and size >= 0:
        return float(flops), float(size)
    return None


def _point(
    session: Session, kind: str, name: str, device: int | None, flops: float, size: float, spent: float
) -> Point:
    found = device_of(session.devices, "cuda", device)
    top = peaks(found)
    intensity = flops / size if size else None
    attainable = bound = None
    if top.flops_per_s is not None and top.bytes_per_s is not None:
        slope = intensity * top.bytes_per_s if intensity is not None else top.flops_per_s
        attainable, bound = min(top.flops_per_s, slope), "memory" if slope < top.flops_per_s else "compute"
    seconds = spent / 1e9
    rates = (flops / seconds, size / seconds) if seconds else (0.0, 0.0)
    return Point(kind, name, flops, size, int(spent), intensity, *rates, attainable, bound)


def _walk(root: BlockNode) -> Iterator[BlockNode]:
    waiting = [root]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += node.children.values()


# --- measured --------------------------------------------------------------------------------------------------------


class Rate(NamedTuple):
    """Operations of one type, a second. Multiply-adds count as two."""

    type: str  # of the factors: "bf16", "fp32", "int8", …
    tensor: bool  # by tensor cores
    per_s: float
    peak_per_s: float | None  # None where it is not known

    @property
    def share(self) -> float | None:
        """Of the peak."""
        return self.per_s / self.peak_per_s if self.peak_per_s else None


class MeasuredBlock(NamedTuple):
    """All measured passes of one block path on one device, averaged. Rates and shares are of the time in which the
    device worked, where that was counted, else of the time between the block's edges. None is what was counted in no
    pass."""

    path: Path
    device: int | None
    passes: int
    shared_passes: int  # in which other threads had blocks open: their work counts, too
    device_ns: float | None  # of a pass, pauses included
    busy: float | None  # 0…1: how much of that the device worked
    operations: tuple[Rate, ...]  # what comes nearest to its peak first
    read_bytes_per_s: float | None
    write_bytes_per_s: float | None
    peak_bytes_per_s: float | None
    l2_bytes_per_s: float | None
    nvlink_rx_bytes_per_s: float | None
    nvlink_tx_bytes_per_s: float | None
    sm_active: float | None  # 0…1: multiprocessors with a warp resident
    tensor_active: float | None  # 0…1: cycles in which the tensor pipe worked
    sm_clock_mhz: float | None

    @property
    def name(self) -> str:
        return "/".join(self.path)

    @property
    def bytes_per_s(self) -> float | None:
        """Read from and written to the device's memory."""
        if self.read_bytes_per_s is None or self.write_bytes_per_s is None:
            return None
        return self.read_bytes_per_s + self.write_bytes_per_s

    @property
    def operations_per_s(self) -> float | None:
        """Of all types together."""
        return sum(rate.per_s for rate in self.operations) if self.operations else None

    @property
    def intensity(self) -> float | None:
        """Operations a byte of device memory."""
        return self.operations_per_s / self.bytes_per_s if self.operations_per_s and self.bytes_per_s else None

    @property
    def compute_share(self) -> float | None:
        """How much of its time the busiest unit would need at its peak; types of tensor cores share one."""
        if not self.operations or any(rate.share is None and rate.per_s for rate in self.operations):
            return None
        tensor = sum(rate.share or 0.0 for rate in self.operations if rate.tensor)
        return max([tensor, *(rate.share or 0.0 for rate in self.operations if not rate.tensor)])

    @property
    def memory_share(self) -> float | None:
        """Of the memory's bandwidth."""
        if self.bytes_per_s is None or not self.peak_bytes_per_s:
            return None
        return self.bytes_per_s / self.peak_bytes_per_s

    @property
    def roof(self) -> str | None:
        """ "compute" or "memory", whichever is nearer; "neither" where both are far; None where one is not known."""
        if self.compute_share is None or self.memory_share is None:
            return None
        if max(self.compute_share, self.memory_share) < _NEAR:
            return "neither"
        return "compute" if self.compute_share >= self.memory_share else "memory"

    def __str__(self) -> str:
        """One line: what it reached, and which roof it is below."""
        parts = [
            f"{rate_of(rate.per_s, rate.type)} {rate.type}{'' if rate.tensor else ' without tensor cores'}"
            + (f" ({percent_text(rate.share)} of peak)" if rate.share is not None else "")
            for rate in told(self.operations)
        ]
        if self.bytes_per_s is not None:
            share = f" ({percent_text(self.memory_share)})" if self.memory_share is not None else ""
            parts.append(f"{rate_text(self.bytes_per_s)} DRAM{share}")
        if self.intensity is not None:
            parts.append(f"{intensity_text(self.intensity)} operations a byte")
        roof = {"neither": ": far below both roofs", None: ""}.get(self.roof, f": {self.roof} roof")
        shared = ", with work of other threads" if self.shared_passes else ""
        return f"{one_line(self.name)}: {', '.join(parts) or UNKNOWN}{roof}{shared}"


def told(operations: tuple[Rate, ...]) -> list[Rate]:
    """Those that are worth a word."""
    nearest = max((rate.share or 0.0 for rate in operations), default=0.0)
    return [rate for rate in operations if rate.per_s and (rate.share or 0.0) >= _WORTH * nearest][:2]


def intensity_text(value: float) -> str:
    """Three significant figures; all of a large number."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def rate_of(per_s: float | None, type_name: str) -> str:
    """ "412 TFLOP/s"; of integers "1.2 POP/s"."""
    if per_s is None:
        return UNKNOWN
    unit = "OP" if type_name.startswith("int") else "FLOP"
    for scale, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G")):
        if per_s >= scale * 0.9995:
            return f"{per_s / scale:.3g} {letter}{unit}/s"
    return f"{per_s / 1e6:.3g} M{unit}/s"


def measured(session: Session) -> list[MeasuredBlock]:
    """A row for each path of blocks and device that was measured, by falling time of the device."""
    passes: dict[tuple[Path, int | None], list[BlockCounters]] = {}
    for record in session.block_counters:
        passes.setdefault((record.path, record.device), []).append(record)
    rows = [_measured(session, path, device, of) for (path, device), of in passes.items()]
    return sorted(rows, key=lambda row: (-(row.device_ns or 0), row.path))


def _measured(session: Session, path: Path, device: int | None, passes: list[BlockCounters]) -> MeasuredBlock:
    top = peaks(device_of(session.devices, "cuda", device))
    timed = [one for one in passes if one.device_ns]
    busy = _busy(timed)

    def worked(one: BlockCounters) -> float:
        own = (one.graphics_engine_percent or 0.0) / 100
        return (one.device_ns or 0) * min(1.0, own or busy or 1.0)

    def rate(name: str) -> float | None:
        return _per_s([(getattr(one, name), worked(one)) for one in timed])

    def mean(name: str) -> float | None:
        """Of passes weighted by time."""
        found = [(getattr(one, name), one.device_ns or 0) for one in timed if getattr(one, name) is not None]
        spent = sum(length for _, length in found)
        return sum(value * length for value, length in found) / spent if spent else None

    def share(name: str) -> float | None:
        """A percentage of the whole time as a share of that in which the device worked."""
        percent = mean(name)
        return None if percent is None else min(1.0, percent / 100 / (busy or 1.0))

    operations = []
    for field, tensor in (("tensor_ops", True), ("flops", False)):
        found: dict[str, list[tuple[float | None, float]]] = {}
        for one in timed:
            for type_name, count in getattr(one, field):
                found.setdefault(type_name, []).append((count, worked(one)))
        sums: dict[str, float] = {}
        for type_name, counts in found.items():  # one type may be counted in two parts: "fp16", "fp16 mma"
            name = type_name.partition(" ")[0]
            sums[name] = sums.get(name, 0.0) + (_per_s(counts) or 0.0)
        operations += [Rate(name, tensor, per_s, top.of(name, tensor)) for name, per_s in sums.items()]
    return MeasuredBlock(
        path=path,
        device=device,
        passes=len(passes),
        shared_passes=sum(one.shared for one in passes),
        device_ns=sum(one.device_ns or 0 for one in timed) / len(timed) if timed else None,
        busy=busy,
        operations=tuple(sorted(operations, key=lambda one: (-(one.share or 0.0), -one.per_s, one.type))),
        read_bytes_per_s=rate("dram_read_bytes"),
        write_bytes_per_s=rate("dram_write_bytes"),
        peak_bytes_per_s=top.bytes_per_s,
        l2_bytes_per_s=rate("l2_bytes"),
        nvlink_rx_bytes_per_s=rate("nvlink_rx_bytes"),
        nvlink_tx_bytes_per_s=rate("nvlink_tx_bytes"),
        sm_active=share("sm_active_percent"),
        tensor_active=share("tensor_percent"),
        sm_clock_mhz=mean("sm_clock_mhz"),
    )


def _busy(passes: list[BlockCounters]) -> float | None:
    """How much of the time the device worked, of those passes that counted it."""
    known = [(one.device_ns or 0, one.graphics_engine_percent) for one in passes if one.graphics_engine_percent]
    spent = sum(length for length, _ in known)
    return min(1.0, sum(length * percent for length, percent in known) / spent / 100) if spent else None


def _per_s(amounts: list[tuple[float | None, float]]) -> float | None:
    """Of those passes in which the amount was counted."""
    known = [(amount, length) for amount, length in amounts if amount is not None]
    spent = sum(length for _, length in known)
    return sum(amount for amount, _ in known) * 1e9 / spent if spent else None

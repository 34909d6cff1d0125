"""Every record type as a NamedTuple; nothing here computes, loads or imports beyond ``typing`` and the
records of counters.

Rules of this file: units stand in field names, unknown is ``None``, new fields go last and have a default, readers use
names and never positions. Times are nanoseconds since the Unix epoch, the time base of CUPTI on Linux.
"""

from typing import Any, Literal, NamedTuple

from .counters import BlockCounters

Direction = Literal["cpu_to_gpu", "gpu_to_cpu", "gpu_to_gpu", "on_device", "cpu_to_cpu"]
Dim3 = tuple[int, int, int]
Path = tuple[str, ...]


class Unavailable(NamedTuple):
    """Why something is not there: a value, false in a condition, never an exception on its own."""

    what: str
    reason: str
    hint: str = ""

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        return f"{self.what}: {self.reason}" + (f" ({self.hint})" if self.hint else "")


class DeviceInfo(NamedTuple):
    """One physical device. ``index`` is its place in :func:`gpusense.devices`; join on ``uuid`` or ``pci_bus_id``."""

    index: int  # type: ignore[assignment]
    name: str
    vendor: str  # "nvidia", "amd", "intel", "apple", … or "unknown"
    backend: str  # the source that described it first: "cuda", "nvml", "amd_sysfs", "rocm_smi", "wgpu", "drm_files"
    uuid: str | None = None  # "GPU-xxxxxxxx-…", the exact NVML text
    pci_bus_id: str | None = None  # "0000:1b:00.0", lower case, domain of four digits
    memory_total_bytes: int | None = None
    compute_capability: tuple[int, int] | None = None
    sm_count: int | None = None
    clock_max_mhz: float | None = None
    memory_clock_max_mhz: float | None = None
    driver: str | None = None
    cuda_index: int | None = None  # CUDA ordinal in this process, where CUDA is live
    nvml_index: int | None = None
    kind: str | None = None  # "discrete", "integrated", "cpu", "virtual"
    threads_per_sm: int | None = None
    shared_memory_per_sm_bytes: int | None = None
    registers_per_sm: int | None = None
    memory_bus_width_bits: int | None = None
    sources: tuple[str, ...] = ()  # every backend that knows this device
    details: tuple[tuple[str, str], ...] = ()  # what only one backend knows, as (name, value) text


class GpuKernel(NamedTuple):
    """One kernel launch or one wgpu pass, timed by the device."""

    name: (
        str  # label: what runs and on which type, as "reduce<MeanOps<float>>"; in a session no two full names share it
    )
    start_ns: int
    end_ns: int
    device: int | None = None  # CUDA ordinal; of other cards the index in devices(); None where it is not known
    backend: str = "cuda"
    context: int | None = None
    stream: int | None = None
    grid: Dim3 | None = None  # blocks; workgroup counts for wgpu
    block: Dim3 | None = None  # threads a block; workgroup size for wgpu
    registers_per_thread: int | None = None
    static_shared_bytes: int | None = None
    dynamic_shared_bytes: int | None = None
    local_bytes_per_thread: int | None = None
    correlation_id: int | None = None  # widened to 64 bits
    graph_id: int | None = None
    graph_node_id: int | None = None
    full_name: str | None = None  # demangled where that could be done; None where it is no more than ``name``
    raw_name: str | None = None  # as the driver gave it
    label: str | None = None
    elements: int | None = None
    occupancy: float | None = None  # theoretical, 0…1
    is_slow: bool = False
    path: Path = ()  # names of the blocks it was launched in, outermost first
    block_id: int | None = None
    ambiguous: tuple[int, ...] = ()  # candidate block ids where launch order cannot decide; 0: outside all
    owner: Path | None = None  # for a replayed CUDA-graph node: the block that captured it
    attributes: dict[str, Any] | None = None

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns


class GpuMemoryTransfer(NamedTuple):
    """One copy. Device time where ``backend`` is "cuda"; for host-side staging ``timing`` says so."""

    name: str  # label, else the direction
    direction: Direction
    bytes: int
    start_ns: int
    end_ns: int
    device: int | None = None
    backend: str = "cuda"
    context: int | None = None
    stream: int | None = None
    correlation_id: int | None = None
    source: str | None = None  # "pageable", "pinned", "device", "array", "managed", …
    destination: str | None = None
    source_device: int | None = None  # peer copies
    destination_device: int | None = None
    graph_id: int | None = None
    graph_node_id: int | None = None
    label: str | None = None
    usage: str | None = None  # buffer usage flags, wgpu
    wait_ns: int | None = None  # part of the time spent waiting for earlier work
    timing: str = "device"  # "device" or "host"
    is_slow: bool = False
    path: Path = ()
    block_id: int | None = None
    ambiguous: tuple[int, ...] = ()
    owner: Path | None = None
    attributes: dict[str, Any] | None = None

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns

    @property
    def bandwidth_mb_per_s(self) -> float | None:
        """Megabytes (10⁶) a second; None for a zero duration."""
        duration = self.end_ns - self.start_ns
        return self.bytes * 1e3 / duration if duration > 0 else None

    @property
    def bandwidth_mib_per_s(self) -> float | None:
        """Mebibytes (2²⁰) a second; None for a zero duration."""
        duration = self.end_ns - self.start_ns
        return self.bytes * 1e9 / 1048576 / duration if duration > 0 else None


class GpuMemset(NamedTuple):
    """One memset, timed by the device."""

    name: str
    bytes: int
    start_ns: int
    end_ns: int
    device: int | None = None
    backend: str = "cuda"
    context: int | None = None
    stream: int | None = None
    correlation_id: int | None = None
    value: int | None = None
    memory: str | None = None
    graph_id: int | None = None
    graph_node_id: int | None = None
    is_slow: bool = False
    path: Path = ()
    block_id: int | None = None
    ambiguous: tuple[int, ...] = ()
    owner: Path | None = None
    attributes: dict[str, Any] | None = None

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns


class GpuSync(NamedTuple):
    """The host waited for the device (or one stream was told to wait for an event)."""

    name: str  # "stream_synchronize", "context_synchronize", "event_synchronize", "stream_wait_event"
    start_ns: int
    end_ns: int
    device: int | None = None
    backend: str = "cuda"
    context: int | None = None
    stream: int | None = None
    correlation_id: int | None = None
    event_id: int | None = None
    source_line: str | None = None  # "train.py:41 step": where the program made the call
    is_slow: bool = False
    path: Path = ()
    block_id: int | None = None
    ambiguous: tuple[int, ...] = ()
    attributes: dict[str, Any] | None = None

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns


class GpuCollective(NamedTuple):
    """One collective of a communicator, or one send or receive, as NCCL tells of it.

    ``communicator`` and ``sequence`` are the same on every rank that takes part, so that its parts can be put together.
    Times of the device are None where NCCL did not tell them.
    """

    name: str  # NCCL's name of the function: "AllReduce", "ReduceScatter", "Send", …
    start_ns: int  # the host began to launch it
    end_ns: int  # and had ended
    communicator: str | None = None  # NCCL's number of it, 16 digits of hexadecimal
    communicator_name: str | None = None
    rank: int | None = None  # in the communicator
    ranks: int | None = None
    nodes: int | None = None
    sequence: int | None = None  # counts the calls of this function in the communicator; None for sends and receives
    elements: int | None = None  # as given to the call, so of one rank
    data_type: str | None = None  # "float32", "bfloat16", …
    bytes: int | None = None  # what one rank sends or receives in all, whichever is more: NCCL's tests' "size"
    root: int | None = None
    peer: int | None = None  # of sends and receives
    algorithm: str | None = None  # "RING", "TREE", "NVLS", …
    protocol: str | None = None  # "LL", "LL128", "SIMPLE"
    device_start_ns: int | None = None  # the first channel began
    device_end_ns: int | None = None  # the last one ended
    channels: tuple[tuple[int | None, ...], ...] = ()  # (number, start, end) on the device, of those that began
    clock_error_ns: int | None = None  # by how much times of the device may be off
    thread: int | None = None
    backend: str = "nccl"
    path: Path = ()
    block_id: int | None = None
    attributes: dict[str, Any] | None = None

    @property
    def duration_ns(self) -> int | None:
        """From the first channel's start to the last one's end on the device."""
        if self.device_start_ns is None or self.device_end_ns is None:
            return None
        return self.device_end_ns - self.device_start_ns


#: Collectives that are given one rank's part of a whole, which has as many parts as there are ranks.
OF_PARTS = ("AllGather", "ReduceScatter", "AllToAll", "Gather", "Scatter")


def bus_factor(function: str, ranks: int) -> float:
    """Bus bandwidth by algorithm bandwidth, as NCCL's tests define it (doc/PERFORMANCE.md)."""
    if function == "AllReduce":
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if function in OF_PARTS else 1.0


class GpuAllocation(NamedTuple):
    """One allocation or release of device-visible memory (an instant)."""

    name: str  # "alloc" or "free"
    bytes: int
    start_ns: int
    address: int
    device: int | None = None
    backend: str = "cuda"
    context: int | None = None
    stream: int | None = None
    correlation_id: int | None = None
    memory: str | None = None
    path: Path = ()
    block_id: int | None = None
    ambiguous: tuple[int, ...] = ()
    attributes: dict[str, Any] | None = None

    @property
    def end_ns(self) -> int:
        return self.start_ns


#: ``timing`` of a time that is a bound.
AT_MOST = "at_most"


class GpuBlockTime(NamedTuple):
    """From when to when one pass of a block had the streams of a device, by events at its two ends.

    It is the time of the streams, whoever's work they did. An event that finds its stream idle is reached at once, so
    that the time then holds waiting for the first launch, or what followed the last one: ``timing`` is "at_most".
    """

    name: str  # of the block
    start_ns: int
    end_ns: int
    device: int | None = None  # CUDA ordinal
    backend: str = "cuda"
    streams: int = 1  # that the block used, as far as their libraries tell
    timing: str = "device"  # "at_most" where the stream was idle at one of the ends
    clock_error_ns: int | None = None  # by how much both ends may be off the session's clock, in one direction
    path: Path = ()
    block_id: int | None = None
    attributes: dict[str, Any] | None = None

    @property
    def duration_ns(self) -> int:
        """0 of a block between whose ends a busy stream had nothing to do."""
        return self.end_ns - self.start_ns


class ComputeBlock(NamedTuple):
    """CPU or SIMD work measured on the host, on the same timeline."""

    name: str
    start_ns: int
    end_ns: int
    elements: int | None = None
    thread: int | None = None
    backend: str = "cpu"
    is_slow: bool = False
    path: Path = ()
    block_id: int | None = None
    attributes: dict[str, Any] | None = None

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns

    @property
    def elements_per_s(self) -> float | None:
        """None where the elements are not known, and for a zero duration."""
        duration = self.end_ns - self.start_ns
        return self.elements * 1e9 / duration if self.elements is not None and duration > 0 else None


#: Attribute of a block that had not ended when recording did; its end is that of the recording.
OPEN_AT_END = "open_at_end"

#: The block of a wait for torch's DataLoader, and its attributes: how many workers make the batches, and the number of
#: the awaited one in its epoch, from 0.
LOADER, LOADER_WORKERS, LOADER_BATCH = "DataLoader", "torch.loader.workers", "torch.loader.batch"


class BlockRecord(NamedTuple):
    """One finished ``trace()`` block; see ``OPEN_AT_END`` for one that was not."""

    name: str
    block_id: int
    parent_id: int | None
    path: Path  # ends with ``name``
    start_ns: int
    end_ns: int
    thread: int
    attributes: dict[str, Any] | None = None
    error: str | None = None  # type name of the exception that left the block

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns


class Syscall(NamedTuple):
    """One system call of the program, from an external tracer."""

    name: str
    start_ns: int
    end_ns: int
    thread: int | None = None
    result: str | None = None
    detail: str | None = None
    backend: str = "os"
    path: Path = ()
    block_id: int | None = None
    attributes: dict[str, Any] | None = None

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns


def standard_deviation(count: int, total: int, squares: int) -> float:
    """Of a population, from its sums; 0.0 of nothing. In integers, so that nanosecond sums beyond 2**53 do not
    cancel."""
    variance = (squares * count - total * total) / count**2 if count else 0.0
    return variance**0.5 if variance > 0 else 0.0


class Aggregate(NamedTuple):
    """Work that was counted but not kept one by one (and, in a summary, everything of one operation)."""

    path: Path
    #: "kernel", "transfer", "memset", "sync", "compute", "allocation", "syscall", "launch", "unified_memory",
    #: "block_time", and "block" itself
    kind: str
    name: str
    backend: str
    device: int | None
    stream: int | None
    count: int  # type: ignore[assignment]
    total_ns: int
    min_ns: int
    max_ns: int
    sum_squares_ns2: int
    bytes: int = 0
    direction: str | None = None
    source_line: str | None = None  # of waits, where lines were asked for: sums are then kept by line
    owner: Path | None = None  # for nodes of a replayed CUDA graph: the block that captured them
    timing: str = "device"  # of copies, who timed them: "device" or "host"; of block times, as theirs
    full_name: str | None = None  # of kernels, as theirs; None in files of older versions

    @property
    def avg_ns(self) -> float:
        """0 where nothing was counted."""
        return self.total_ns / self.count if self.count else 0.0

    @property
    def std_ns(self) -> float:
        """Population standard deviation."""
        return standard_deviation(self.count, self.total_ns, self.sum_squares_ns2)


#: Begins the reason of an interval that an overhead budget left out.
BUDGET = "overhead budget"

#: Why a process has no work of a GPU where nothing is wrong: there is none, or the program has not used it.
NO_GPU, NOT_USED = "no NVIDIA GPU or driver was found", "the program has not used CUDA"

#: State of capture, and its reason, where the device times blocks and no kernel is recorded.
BLOCKS, BLOCK_TIMES = "blocks", "block times; kernels not recorded"


class UnseenInterval(NamedTuple):
    """A span of time in which work could have happened without being seen, and why."""

    start_ns: int
    end_ns: int | None
    reason: str


class DeviceBusy(NamedTuple):
    """Union of the time in which at least one kernel or copy ran."""

    device: int | None
    kernel_ns: int  # union over kernels
    transfer_ns: int  # union over copies and memsets
    busy_ns: int  # union over everything
    first_ns: int | None
    last_ns: int | None
    backend: str = "cuda"


class Counters(NamedTuple):
    """What became of every record: seen = kept + aggregated + invalid + pre_session."""

    seen: int = 0
    kept: int = 0  # listed one by one
    aggregated: int = 0  # only summed
    invalid: int = 0  # impossible times: none, an end before the start, a month long, an end later than it was read
    pre_session: int = 0  # launched before the recording began, or while blocks had no place among the launches
    dropped: int = 0  # by the driver, which had no room
    missed: int = 0  # buffer requests that found no free buffer
    ambiguous: int = 0  # attributed to no single block
    foreign_buffers: int = 0  # another tool's buffers, left alone; before CUDA 12.8 also ours beyond 32 lent at a time
    unknown_kinds: int = 0  # records of a kind we do not read
    lost_markers: int = 0  # a block's begin or end left no record; launches around it are ambiguous
    sink_errors: int = 0  # a sink raised and was removed
    bytes_dropped: int = 0  # that did not get into the session file: it was at its cap, the disk was full, …
    inherited: int = 0  # launched by a thread without blocks of its own, attributed to the only open chain
    bytes_too_long: int = 0  # those of ``bytes_dropped`` that were too much for one chunk of the file
    failed_blocks: int = 0  # something failed inside gpusense as they began or ended: not recorded, or in part
    shed_blocks: int = 0  # began while too much waited to be recorded; with all blocks inside them
    ignored_records: int = 0  # manual ones, with values that do not fit
    unsent_records: int = 0  # that no sink got: one took too long
    unread_at_end: int = 0  # starts and ends of blocks, and records, that waited when the end had to be given up
    in_future: int = 0  # of ``invalid``: ended more than a second later than it was read; another clock stamped it


Record = (
    GpuKernel
    | GpuMemoryTransfer
    | GpuMemset
    | GpuSync
    | GpuAllocation
    | GpuCollective
    | GpuBlockTime
    | ComputeBlock
    | BlockCounters
    | BlockRecord
    | Syscall
)

#: ``kind`` text of every record type, as used in JSON and in aggregates.
KINDS: dict[type, str] = {
    GpuKernel: "kernel",
    GpuMemoryTransfer: "transfer",
    GpuMemset: "memset",
    GpuSync: "sync",
    GpuAllocation: "allocation",
    GpuCollective: "collective",
    GpuBlockTime: "block_time",
    ComputeBlock: "compute",
    BlockCounters: "block_counters",
    BlockRecord: "block",
    Syscall: "syscall",
}
#: Listed one by one whatever they took: instants, what the ranks of a job are compared by, counters of few passes, and
#: what blocks took, which are listed themselves.
ALWAYS_LISTED = ("allocation", "collective", "block_counters", "block_time")

"""What hardware counters said: over time (:class:`CounterSample`), and exactly for a block (:class:`BlockCounters`).

Amounts are of the interval they stand in, so that they can be summed and split; divide by its length for a rate.
None is a value that was not measured, and never 0.
"""

from typing import Any, NamedTuple


class CounterSample(NamedTuple):
    """All counters of one device over one interval of the sampler, whoever the work was of.

    Shares are in percent of what the unit could have done in the interval, all units of the device together.
    """

    device: int  # CUDA ordinal
    start_ns: int  # when it begins, by the session's clock
    end_ns: int  # when it ends
    graphics_engine_percent: float | None = None  # of the time: a kernel ran, or was being launched
    sm_active_percent: float | None = None  # of the multiprocessors' time: a warp was resident
    sm_occupancy_percent: float | None = None  # of the warps that multiprocessors can hold: resident
    tensor_percent: float | None = None  # of the tensor pipes' cycles: they worked
    dram_read_bytes: float | None = None  # from the device's memory
    dram_write_bytes: float | None = None  # to the device's memory
    l2_bytes: float | None = None  # through the L2 cache, in both directions
    pcie_rx_bytes: float | None = None  # over PCIe towards the device, with what the protocol adds
    pcie_tx_bytes: float | None = None  # over PCIe from the device
    nvlink_rx_bytes: float | None = None  # over all NVLinks towards the device
    nvlink_tx_bytes: float | None = None  # over all NVLinks from the device
    copy_engine_percent: float | None = None  # of the time: the first copy engine worked; of older chips any of them
    dispatches: float | None = None  # kernels that began
    sm_clock_mhz: float | None = None  # of the multiprocessors


class BlockCounters(NamedTuple):
    """Exact counters of one pass of a block on one device: one metric set, nothing replayed.

    They count what ran on the device in this process's context between the block's edges, once the device had come to
    an end before each of them. The record is one of the session's, with the path and the number of its block.
    """

    name: str  # of the block
    start_ns: int  # the session's clock
    end_ns: int
    device: int | None = None  # CUDA ordinal
    device_ns: int | None = None  # of the device between the edges, pauses included
    metric_set: str = ""  # which of the sets this pass was
    #: Multiply-adds count as two. By the type of the factors: "bf16", "fp16", "tf32", "fp8", "int8", "fp64", …
    #: A type that was not counted in this pass is missing; what was counted and did not occur is 0.
    tensor_ops: tuple[tuple[str, float], ...] = ()
    #: Outside the tensor pipe: "fp16", "fp32", "fp64". All that the pipe did, as multiply-adds: at most so many.
    flops: tuple[tuple[str, float], ...] = ()
    dram_read_bytes: float | None = None
    dram_write_bytes: float | None = None
    l2_bytes: float | None = None
    nvlink_rx_bytes: float | None = None
    nvlink_tx_bytes: float | None = None
    sm_active_percent: float | None = None  # multiprocessors with a warp resident
    tensor_percent: float | None = None  # cycles in which the tensor pipe worked
    sm_clock_mhz: float | None = None
    graphics_engine_percent: float | None = None  # of that time the device had work of any kind
    shared: bool = False  # other threads of the program had blocks open meanwhile: their work counts, too
    backend: str = "cupti"
    path: tuple[str, ...] = ()  # of the block
    block_id: int | None = None
    attributes: dict[str, Any] | None = None

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns

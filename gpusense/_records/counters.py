"""What hardware counters said: over time (:class:`CounterSample`), and exactly for a block (:class:`BlockCounters`).

Amounts are of the interval they stand in, so that they can be summed and split; divide by its length for a rate.
None is a value that was not measured, and never 0.
"""

from typing import NamedTuple

from .records import Path


class CounterSample(NamedTuple):
    """All counters of one device over one interval of the sampler, whoever the work was of.

    Shares are in percent of what the unit could have done in the interval, all units of the device together.
    """

    device: int
    start_ns: int  # the session's clock
    end_ns: int
    graphics_engine_percent: float | None = None  # any compute or graphics work resident
    sm_active_percent: float | None = None  # multiprocessors with a warp resident
    sm_occupancy_percent: float | None = None  # warps resident
    tensor_percent: float | None = None  # cycles in which the tensor pipe worked
    dram_read_bytes: float | None = None
    dram_write_bytes: float | None = None
    l2_bytes: float | None = None
    pcie_rx_bytes: float | None = None  # towards the device
    pcie_tx_bytes: float | None = None
    nvlink_rx_bytes: float | None = None
    nvlink_tx_bytes: float | None = None
    copy_engine_percent: float | None = None  # the first of them; of older chips any
    dispatches: float | None = None  # kernels begun
    sm_clock_mhz: float | None = None


class BlockCounters(NamedTuple):
    """Exact counters of one pass of a block on one device: one metric set, nothing replayed.

    They count what ran on the device in this process's context between the block's edges, once the device had come to
    an end before each of them.
    """

    device: int
    path: Path
    start_ns: int  # the session's clock
    end_ns: int
    device_ns: int | None = None  # of the device between the edges
    metric_set: str = ""  # which of the sets this pass was
    #: Multiply-adds count as two. By the type of the factors: "bf16", "fp16", "tf32", "fp8", "int8", "fp64", …
    tensor_ops: tuple[tuple[str, float], ...] = ()
    #: Outside the tensor pipe: "fp16", "fp32", "fp64".
    flops: tuple[tuple[str, float], ...] = ()
    dram_read_bytes: float | None = None
    dram_write_bytes: float | None = None
    l2_bytes: float | None = None
    nvlink_rx_bytes: float | None = None
    nvlink_tx_bytes: float | None = None

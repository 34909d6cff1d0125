"""What counters make of a run: each session has one known cause, and its twin that must not be said to have it."""

import pytest
from support.sessions import H200, MS, T0, US, block, block_counters, kernel, sample, session

from gpusense._records.counter_samples import CounterColumns
from gpusense._records.metrics import Utilization
from gpusense.analysis.facts import Facts
from gpusense.analysis.findings import findings
from gpusense.report.divisions import divisions_of

ADD = "vectorized_elementwise_kernel<4, FillFunctor<float>>"
GEMM = "sgemm_largek_lds64"
STEPS, STEP = 20, 10 * MS
#: Kernels whose names say nothing, for nearly all of a step and for a tenth of it.
BUSY, IDLE = (("my_kernel", 4.9), ("other_kernel", 4.8)), (("my_kernel", 0.5), ("other_kernel", 0.5))


def looped(*parts, grid=(2000, 1, 1), path=("step",)):
    """A loop of kernels, (name, milliseconds) in each step, that leaves little of it empty."""
    records = []
    for number in range(STEPS):
        at = number * STEP
        records.append(block(path, at, at + STEP, number=number + 1))
        for name, length in parts:
            end = at + int(length * MS)
            records.append(
                kernel(name, at, end, full_name=f"void {name}()", grid=grid, block=(256, 1, 1), path=path,
                       registers_per_thread=32, block_id=number + 1, correlation_id=number * 10 + len(records))
            )  # fmt: skip
            at = end + 20 * US
    return session(*records, end=STEPS * STEP, devices=(H200,))


def sampled(run, every=MS // 4, **rates):
    """Samples over the whole run; a rate is a number, or a function of the time in a step."""
    columns = CounterColumns(0, list(rates))
    for at in range(0, STEPS * STEP, every):
        columns.start.append(T0 + at)
        columns.end.append(T0 + at + every)
        for column, rate in zip(columns.values, rates.values(), strict=True):
            column.append(rate(at % STEP) if callable(rate) else rate)
    run.counter_samples.add(columns)
    return run


def found(run, kind):
    return next((one for one in findings(run) if one.kind == kind), None)


def bytes_a_sample(share):
    return share * 4.814e12 * 0.25e-3 / 2  # of each way


def memory(elementwise, others):
    """While the first six milliseconds of a step run, and after."""
    return {
        f"dram_{way}_bytes": lambda at: bytes_a_sample(elementwise if at < 6 * MS else others)
        for way in ("read", "write")
    }


# Bound by memory


def test_elementwise_kernels_at_the_memorys_roof_are_to_be_fused():
    run = sampled(looped((ADD, 6.0), ("ampere_bf16_gemm_tensorop", 3.8)), **memory(0.91, 0.2))
    one = found(run, "memory_bound")
    assert one.title == (
        "GPU 0 runs elementwise kernels for 60 % of each step (6.00 ms of 10.0 ms) at 91 % of its memory's bandwidth: "
        "only moving less data makes them faster."
    )
    assert "Counted while they run: 4.38 TB/s, 91 % of the bandwidth." in one.evidence
    assert one.fix.startswith("Fuse them")


def test_far_from_the_roof_nobody_says_that_memory_is_the_bound():
    assert found(sampled(looped((ADD, 6.0), ("gemm", 3.8)), **memory(0.4, 0.9)), "memory_bound") is None
    assert found(looped((ADD, 6.0), ("gemm", 3.8)), "memory_bound") is None, "nor without counters"
    assert found(sampled(looped(("gemm", 6.0), ("gemm2", 3.8)), **memory(0.95, 0.95)), "memory_bound") is None


def test_a_measured_block_of_elementwise_kernels_tells_as_much():
    run = looped((ADD, 6.0), ("gemm", 3.8))
    run.records.append(block_counters(("step",), MS, 11 * MS, flops={"fp32": 1e9}, read=2.2e10, written=2.1e10))
    assert "at 89 % of its memory's bandwidth" in found(run, "memory_bound").title
    of_products = looped((ADD, 3.0), ("gemm", 6.8))
    of_products.records += run.block_counters
    assert found(of_products, "memory_bound") is None, "the block is not one of elementwise kernels"


def test_a_chain_of_elementwise_kernels_says_what_was_counted():
    run = sampled(looped((ADD, 2.0), (ADD, 2.0), (ADD, 1.9), ("gemm", 3.8)), **memory(0.91, 0.2))
    one = found(run, "unfused_elementwise")
    assert found(run, "memory_bound") is None
    assert one.evidence[-1].startswith("Counted while they run: 4.3")


# Single precision


def products(*, tensor=0.0, fp32=25.4e12, read=4e9):
    """A block of products whose kernels have names that say nothing."""
    run = looped(*BUSY, ("my_kernel", 0.1), path=("forward",))
    length = 9.8e-3
    counted = {"flops": {"fp32": fp32 * length}, "read": read, "written": 1e9, "tensor_percent": tensor}
    run.records.append(block_counters(("forward",), MS, MS + 9_800 * US, **counted))
    return run


def test_products_in_single_precision_beside_idle_tensor_cores():
    one = found(products(), "fp32_math")
    assert one.title == (
        "GPU 0 computes forward in single precision for 98 % of each step (9.80 ms of 10.0 ms): 25.4 TFLOP/s, 38 % of "
        "what it can do without tensor cores. Its tensor cores are idle there and could do 495 TFLOP/s in TF32."
    )
    assert one.fix.startswith("Allow TF32")
    named = products()
    named.records[:] = [
        one._replace(name=GEMM, full_name=f"{GEMM}(float)") if hasattr(one, "stream") else one for one in named.records
    ]
    assert found(named, "fp32_math").evidence[-1] == (
        "Counted in forward: 25.4 TFLOP/s, 38 % of what it can do without tensor cores; tensor cores active 0 %."
    )


@pytest.mark.parametrize(
    "other", [{"tensor": 40.0}, {"fp32": 5e12}, {"read": 4e10}], ids=["tensor cores work", "slow", "elementwise"]
)
def test_single_precision_that_tensor_cores_could_not_take_is_no_fault(other):
    assert found(products(**other), "fp32_math") is None


# How much of the chip


def test_a_busy_device_whose_multiprocessors_are_empty_has_too_small_grids():
    run = sampled(looped(*BUSY), sm_active_percent=12.0)
    one = found(run, "small_grids")
    assert one.title == (
        "GPU 0 is busy 97 % of each step, but its multiprocessors are active only 12 % of the kernels' time: the grids "
        "are too small."
    )
    assert one.confidence == "high"
    assert divisions_of(run).sentence().endswith("GPU 0 busy 97 % of the steps, its multiprocessors active 12 %")


def test_full_multiprocessors_are_no_fault_whatever_the_sizes_of_the_launches():
    small = {"grid": (20, 1, 1)}
    inferred = found(looped(*BUSY, **small), "small_grids")
    assert inferred.confidence == "medium"
    assert "no counter was read" in inferred.evidence[-1]
    agreed = found(sampled(looped(*BUSY, **small), sm_active_percent=15.0), "small_grids")
    assert agreed.confidence == "high"
    assert agreed.evidence[-1].startswith("Counted by the device: its multiprocessors are active 15 %")
    assert found(sampled(looped(*BUSY, **small), sm_active_percent=90.0), "small_grids") is None
    assert found(sampled(looped(*BUSY), sm_active_percent=90.0), "small_grids") is None


def test_a_device_that_mostly_waits_or_communicates_is_not_said_to_have_small_grids():
    assert found(sampled(looped(*IDLE), sm_active_percent=1.0), "small_grids") is None
    talks = sampled(looped(("ncclDevKernel_AllReduce_Sum_bf16", 9.7)), sm_active_percent=12.0)
    assert found(talks, "small_grids") is None


def test_what_the_driver_averages_counts_where_nothing_else_does():
    run = looped(*BUSY)
    run.metrics += [
        sample(at * STEP)._replace(device=H200, utilization=Utilization(gpu_percent=100, sm_active_percent=11.0))
        for at in range(1, STEPS)
    ]
    assert found(run, "small_grids") is not None
    assert "busy 97 % of the steps, its multiprocessors active 11 %" in divisions_of(run).sentence()


def test_counters_of_another_device_say_nothing():
    run = sampled(looped(*BUSY), sm_active_percent=12.0)
    run.records[:] = [one._replace(device=1) if hasattr(one, "stream") else one for one in run.records]
    run.devices = (H200, H200._replace(index=1, cuda_index=1, uuid="GPU-1", pci_bus_id="0000:2b:00.0"))
    assert found(run, "small_grids") is None
    assert run.once(Facts).views

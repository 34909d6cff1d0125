"""Work against what the device can do: its peaks, sizes that the author gave, and counters of blocks."""

import pytest
from support.sessions import H100, H200, MS, US, block, block_counters, kernel, session

from gpusense._records.records import DeviceInfo
from gpusense.analysis.peaks import peaks
from gpusense.analysis.roofline import measured, rate_of, roofline

#: A product of two 4096 × 4096 matrices, and the bytes of each operand of an addition in place on 1 GiB.
PRODUCT, GIB = 2 * 4096**3, 1 << 30


def device(name, capability, sm_count, clock):
    return DeviceInfo(0, name, "nvidia", "cuda", compute_capability=capability, sm_count=sm_count, clock_max_mhz=clock)


@pytest.mark.parametrize(
    ("card", "tera"),
    [
        (H200, {"bf16": 989.4, "fp16": 989.4, "tf32": 494.7, "fp8": 1979, "int8": 1979, "fp64": 66.9}),
        (device("NVIDIA H100 PCIe", (9, 0), 114, 1755.0), {"bf16": 756, "fp8": 1513, "fp64": 51.2}),
        (device("NVIDIA A100-SXM4-80GB", (8, 0), 108, 1410.0), {"bf16": 312, "tf32": 156, "int8": 624, "fp64": 19.5}),
        (device("NVIDIA L40S", (8, 9), 142, 2520.0), {"bf16": 366, "fp8": 733}),
        (device("NVIDIA GeForce RTX 4090", (8, 9), 128, 2520.0), {"bf16": 165.2, "tf32": 82.6, "int8": 660.6}),
        (device("NVIDIA GeForce RTX 5090", (12, 0), 170, 2407.0), {"bf16": 209.5, "fp4": 1676}),
        (device("NVIDIA A10", (8, 6), 72, 1695.0), {"bf16": 125, "int8": 250}),
        (device("Tesla T4", (7, 5), 40, 1590.0), {"fp16": 65.1, "int8": 130.2}),
        (device("Tesla V100-SXM2-16GB", (7, 0), 80, 1530.0), {"fp16": 125}),
    ],
)
def test_peaks_of_tensor_cores_are_those_of_the_data_sheets(card, tera):
    top = peaks(card)
    assert {name: top.of(name, tensor=True) / 1e12 for name in tera} == pytest.approx(tera, rel=0.005)


def test_a_device_that_the_tables_do_not_know_has_no_peaks():
    for card in (
        device("NVIDIA H20", (9, 0), 78, 1980.0),
        device("NVIDIA GeForce GTX 1660", (7, 5), 22, 1785.0),
        device("a card to come", (13, 0), 200, 2000.0),
    ):
        assert peaks(card).tensor == ()
    assert peaks(None) == (None, None, (), ())
    assert peaks(H200._replace(clock_max_mhz=None)) == (None, peaks(H200).bytes_per_s, (), ())


def test_the_bandwidth_of_an_h200_is_that_of_its_data_sheet():
    assert peaks(H200).bytes_per_s == pytest.approx(4.8e12, rel=0.005)
    assert peaks(H200).of("fp32", tensor=False) == pytest.approx(67e12, rel=0.005)


# What the author of the program said


def test_peaks_are_those_of_the_data_sheet():
    top = peaks(H100)
    assert top.flops_per_s == pytest.approx(66.9e12, rel=0.01)
    assert top.bytes_per_s == pytest.approx(3.35e12, rel=0.01)
    assert peaks(H100._replace(compute_capability=None, memory_bus_width_bits=None)) == (None, None, (), ())


def test_points_sit_below_the_roof_they_belong_to():
    run = session(
        kernel("axpy", 0, 100 * US, attributes={"flops": 2e8, "bytes": 1.2e9 / 6}),
        kernel("axpy", 100 * US, 200 * US, attributes={"flops": 2e8, "bytes": 1.2e9 / 6}),
        kernel("gemm", 200 * US, 300 * US, attributes={"flops": 5e9, "bytes": 1e6}),
        kernel("quiet", 300 * US, 400 * US),
        block(("step",), 0, 500 * US, attributes={"flops": 1e9, "bytes": 1e9}),
        kernel("part", 400 * US, 450 * US, path=("step",)),
    )
    points = {point.name: point for point in roofline(run)}
    assert set(points) == {"axpy", "gemm", "step"}
    axpy = points["axpy"]
    assert (axpy.intensity, axpy.bound) == (1.0, "memory")
    assert axpy.flops_per_s == pytest.approx(4e8 / 200e-6)
    assert axpy.attainable_flops_per_s == peaks(H100).bytes_per_s
    assert axpy.share == pytest.approx(2e12 / peaks(H100).bytes_per_s)
    assert points["gemm"].bound == "compute"
    assert points["step"].device_ns == 50 * US


def test_without_peaks_or_sizes_nothing_is_invented():
    run = session(kernel("k", 0, US, attributes={"flops": 10, "bytes": 5}), devices=())
    (point,) = roofline(run)
    assert (point.attainable_flops_per_s, point.bound, point.share) == (None, None, None)
    assert roofline(session(kernel("k", 0, US, attributes={"flops": "many", "bytes": 5}))) == []


# What was counted


def test_a_known_product_reaches_what_it_does_in_its_time():
    passes = [
        block_counters(("step", "product"), 0, 180 * US, tensor={"bf16": PRODUCT}, read=100e6, written=33e6, number=4),
        block_counters(("step", "product"), MS, MS + 180 * US, tensor={"tf32": 0.0}, read=101e6, written=33e6),
    ]
    (row,) = measured(session(*passes, devices=(H200,)))
    assert (row.name, row.passes, row.device_ns) == ("step/product", 2, 180 * US)
    (bf16, tf32) = row.operations
    assert (bf16.type, bf16.tensor) == ("bf16", True)
    assert bf16.per_s == pytest.approx(763.5e12, rel=0.001), "of the pass that counted it, not of all"
    assert bf16.share == pytest.approx(0.772, abs=0.001)
    assert (tf32.per_s, tf32.share) == (0.0, 0.0)
    assert row.bytes_per_s == pytest.approx((100e6 + 101e6 + 66e6) / 360e-6, rel=1e-9), "of both"
    assert row.intensity == pytest.approx(PRODUCT / 133.5e6, rel=0.001)
    assert row.roof == "compute"
    assert str(row) == (
        "step/product: 764 TFLOP/s bf16 (77 % of peak), 742 GB/s DRAM (15 %), 1,030 operations a byte: compute roof"
    )


def test_an_addition_in_place_reads_and_writes_its_operand():
    add = block_counters(("add_",), 0, 520 * US, flops={"fp32": 2.7e8}, read=GIB, written=GIB)
    (row,) = measured(session(add, devices=(H200,)))
    assert row.bytes_per_s == pytest.approx(2 * 1.0737e9 / 520e-6, rel=0.001)
    assert row.memory_share == pytest.approx(0.858, abs=0.001)
    assert row.intensity == pytest.approx(0.1257, abs=0.001)
    assert row.roof == "memory"
    assert str(row) == (
        "add_: 519 GFLOP/s fp32 without tensor cores (0.8 % of peak), 4.13 TB/s DRAM (86 %), 0.126 operations a byte: "
        "memory roof"
    )


def test_rates_are_of_the_time_in_which_the_device_worked():
    """A range has pauses at its edges, which say nothing of the work."""
    tensor, half = {"bf16": PRODUCT}, {"graphics_engine_percent": 40.0}
    counted = block_counters(
        ("product",), 0, 500 * US, tensor=tensor, read=80e6, written=40e6, sm_active_percent=36.0, **half
    )
    links = block_counters(("product",), MS, MS + 500 * US)._replace(nvlink_rx_bytes=1e6, nvlink_tx_bytes=0.0)
    (row,) = measured(session(counted, links, devices=(H200,)))
    assert (row.device_ns, row.busy) == (500 * US, 0.4)
    assert row.operations[0].per_s == pytest.approx(PRODUCT / 200e-6)
    assert row.bytes_per_s == pytest.approx(120e6 / 200e-6)
    assert row.nvlink_rx_bytes_per_s == pytest.approx(1e6 / 200e-6), "of a pass that did not count it, as of the others"
    assert row.sm_active == pytest.approx(0.9)
    assert row.roof == "compute"


def test_a_block_that_mostly_waits_is_below_both_roofs():
    quiet = block_counters(("optimizer",), 0, 10 * MS, flops={"fp32": 5e9}, read=1e9, written=1e9, shared=True)
    (row,) = measured(session(quiet, devices=(H200,)))
    assert (row.roof, row.shared_passes) == ("neither", 1)
    assert str(row).endswith(": far below both roofs, with work of other threads")


def test_what_was_not_counted_or_is_not_known_stays_unknown():
    counted = block_counters(("a",), 0, MS, tensor={"fp4": 1e12})
    (row,) = measured(session(counted, devices=(H200,)))
    assert (row.bytes_per_s, row.intensity, row.compute_share, row.roof) == (None, None, None, None)
    assert str(row) == "a: 1 PFLOP/s fp4"
    (row,) = measured(session(block_counters(("a",), 0, MS, read=1e9, written=0.0), devices=()))
    assert (row.operations_per_s, row.memory_share, row.roof) == (None, None, None)
    assert str(row) == "a: 1.00 TB/s DRAM"
    (row,) = measured(session(block_counters(("a",), 0, MS)._replace(device_ns=None), devices=(H200,)))
    assert (row.passes, row.device_ns, row.bytes_per_s) == (1, None, None)
    assert measured(session()) == []


def test_rates_have_the_unit_of_their_type():
    assert [rate_of(*of) for of in ((1.2e15, "int8"), (3e6, "fp32"), (None, "bf16"))] == [
        *("1.2 POP/s", "3 MFLOP/s", "–"),
    ]

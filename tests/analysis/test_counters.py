"""Counters by block: a device's samples over the time in which it did a block's work."""

import math
from array import array
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusense._records.counter_samples import CounterColumns, CounterTable
from gpusense._records.metrics import GpuMetrics, ProcessUsage
from gpusense._records.records import KINDS, BlockRecord, DeviceInfo, GpuKernel
from gpusense.analysis.counters import LEAST_SAMPLES, Integral, block_shares, device_stretches, series
from gpusense.analysis.unwritten import sampling_notes
from gpusense.session import Session

MS = 1_000_000
T0 = 1_764_280_000_000_000_000
CARD = DeviceInfo(
    0, "H200", "nvidia", "cuda", cuda_index=0, uuid="GPU-1", memory_clock_max_mhz=1000.0, memory_bus_width_bits=4000
)  # peak: 2 × 1 GHz × 500 bytes = 1 TB/s


def samples(tensor, length=MS, device=0, begin=T0, **more):
    """One after the other, with these shares of the tensor pipe; a megabyte read in each, unless ``more`` says."""
    fields = {"tensor_percent": tensor, "dram_read_bytes": [1e6] * len(tensor), "dram_write_bytes": [0] * len(tensor)}
    fields |= more
    found = CounterColumns(device, list(fields))
    found.start = array("q", [begin + number * length for number in range(len(tensor))])
    found.end = array("q", [start + length for start in found.start])
    found.values = tuple(array("f", column) for column in fields.values())
    return found


def session(columns, work=(), blocks=(), **more):
    """``work``: (path, start, end) in milliseconds, of kernels; ``blocks`` the same, of blocks."""
    table = CounterTable()
    table.add(columns)
    kernels = [
        GpuKernel("k", T0 + round(start * MS), T0 + round(end * MS), 0, path=tuple(path), stream=stream or 7)
        for path, start, end, *rest in work
        for stream in (rest[0] if rest else 7,)
    ]
    records = [
        BlockRecord(path[-1], number, None, tuple(path), T0 + round(start * MS), T0 + round(end * MS), 1)
        for number, (path, start, end) in enumerate(blocks, 1)
    ]
    meta = {"pid": 7, "start_ns": T0, "end_ns": T0 + 1000 * MS, "mode": "live"}
    return Session(meta=meta, devices=(CARD,), records=[*records, *kernels], counter_samples=table, **more)


def by_path(found):
    return {row.path: row for row in block_shares(found)}


def test_a_block_has_the_samples_of_its_work_in_proportion_at_the_edges():
    columns = samples([0] * 10 + [80] * 10 + [0] * 20)
    rows = by_path(session(columns, [(("a",), 10, 20), (("b",), 20.5, 30.5)]))
    assert rows["a",].tensor_percent == pytest.approx(80)
    assert rows["a",].samples == pytest.approx(10)
    assert rows["b",].tensor_percent == 0
    assert rows["b",].dram_read_bytes == pytest.approx(10e6)
    assert rows["a",].dram_bytes_per_s == pytest.approx(1e9)
    assert rows["a",].dram_percent == pytest.approx(0.1)
    # Half of a sample at each end of it.
    late = by_path(session(columns, [(("a",), 9.5, 20.5)]))["a",]
    assert late.tensor_percent == pytest.approx(80 * 10 / 11)
    assert late.samples == pytest.approx(11)
    assert late.shared == ()


def test_pauses_of_the_device_inside_a_block_are_the_blocks():
    columns = samples([50] * 10 + [0] * 10 + [50] * 10)
    row = by_path(session(columns, [(("a",), 0, 10), (("a",), 20, 30)]))["a",]
    assert row.device_ns == 30 * MS
    assert row.tensor_percent == pytest.approx(100 / 3)


def test_a_block_has_what_the_blocks_inside_it_have_and_not_what_another_did_meanwhile():
    columns = samples([10] * 10 + [90] * 10 + [30] * 10)
    work = [(("step", "forward"), 0, 10), (("other",), 10, 20), (("step", "backward"), 20, 30)]
    rows = by_path(session(columns, work))
    assert rows["step",].tensor_percent == pytest.approx(20)
    assert rows["other",].tensor_percent == pytest.approx(90)
    assert rows["step", "backward"].tensor_percent == pytest.approx(30)
    assert rows[()].tensor_percent == pytest.approx(130 / 3)
    assert not any(row.shared for row in rows.values())


def test_few_samples_say_nothing():
    columns = samples([50] * 40)
    rows = by_path(session(columns, [(("short",), 0, LEAST_SAMPLES - 0.1), (("long",), 10, 10.1 + LEAST_SAMPLES)]))
    assert ("short",) not in rows
    assert ("long",) in rows
    # Of many passes together there may be enough.
    passes = []
    for begin in range(0, 18, 3):
        passes += [(("short",), begin, begin + 1), (("b",), begin + 1, begin + 3)]
    assert by_path(session(columns, passes))["short",].samples == pytest.approx(6)


def test_work_of_another_block_on_another_stream_is_told():
    columns = samples([50] * 40)
    rows = by_path(session(columns, [(("a",), 0, 20, 7), (("b",), 10, 30, 8)]))
    assert rows["a",].shared == rows["b",].shared == ("other blocks",)
    assert rows[()].shared == ()
    a, b = (by_path(session(columns, [(("a",), 0, 20), (("b",), 20, 30)]))[name,] for name in "ab")
    assert a.shared == b.shared == ()


@pytest.mark.parametrize(("pid", "told"), [(7, ()), (8, ("other processes",))])
def test_work_of_another_process_is_told(pid, told):
    metrics = [GpuMetrics(CARD, T0 + 5 * MS, 1, processes=(ProcessUsage(pid, gpu_percent=30.0),))]
    found = session(samples([50] * 40), [(("a",), 0, 20)], metrics=metrics)
    assert by_path(found)["a",].shared == told


def test_without_records_of_the_device_blocks_have_the_time_of_the_host():
    found = session(samples([50] * 20), blocks=[(("a",), 0, 10), (("a",), 5, 15)])
    row = by_path(found)["a",]
    assert (row.by, row.device_ns, row.samples) == ("host", 15 * MS, pytest.approx(15))
    assert device_stretches(found, 0)[0]["a",][0] == [(T0, T0 + 15 * MS)]


def test_without_records_of_kernels_block_times_of_the_device_come_before_those_of_the_host(monkeypatch):
    class Timed(NamedTuple):
        path: tuple[str, ...]
        start_ns: int
        end_ns: int
        device: int

    monkeypatch.setitem(KINDS, Timed, "block_time")
    found = session(samples([0] * 10 + [50] * 10), blocks=[(("a",), 0, 10)])
    found.records.append(Timed(("a",), T0 + 10 * MS, T0 + 20 * MS, 0))
    found.records.append(Timed(("a",), T0, T0 + 9 * MS, 1))
    row = by_path(found)["a",]
    assert (row.by, row.tensor_percent, row.device_ns) == ("events", pytest.approx(50), 10 * MS)


def test_time_without_samples_is_not_counted():
    table = session(samples([50] * 10), [(("a",), 0, 40)])
    table.counter_samples.add(samples([70] * 10, begin=T0 + 30 * MS))
    row = by_path(table)["a",]
    assert row.sampled_ns == pytest.approx(20 * MS)
    assert row.tensor_percent == pytest.approx(60)
    assert row.dram_bytes_per_s == pytest.approx(1e9)


def test_a_field_that_no_sample_has_is_none():
    columns = samples([50] * 10, nvlink_rx_bytes=[math.nan] * 10)
    row = by_path(session(columns, [(("a",), 0, 10)]))["a",]
    assert row.nvlink_rx_bytes is None
    assert row.sm_active_percent is None


def test_nothing_sampled_nothing_said():
    assert block_shares(Session()) == []


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(0, 100)), min_size=1, max_size=30),
    st.lists(st.tuples(st.integers(-10, 200), st.integers(0, 60)), max_size=8),
)
def test_an_integral_is_the_sum_over_each_nanosecond(drawn, spans):
    columns, now, truth = CounterColumns(0, ["tensor_percent", "dispatches"]), 0, []
    for length, value in drawn:
        columns.start.append(now)
        now += length
        columns.end.append(now)
        columns.values[0].append(value)
        columns.values[1].append(value)
        truth += [(value, value / length)] * length
    stretches = [(first, first + length) for first, length in spans]
    inside = [at for first, last in stretches for at in range(first, last) if 0 <= at < now]
    spent, _, values = Integral(columns).over(stretches)
    assert spent == len(inside)
    if inside:
        assert values["tensor_percent"] == pytest.approx(sum(truth[at][0] for at in inside) / len(inside))
        assert values["dispatches"] == pytest.approx(sum(truth[at][1] for at in inside))


def test_charts_have_rates_and_of_very_many_samples_averages():
    few = {label: points for _, label, _, points in series(session(samples([50] * 10)))}
    assert few["Tensor pipe active"][0] == (T0 + MS // 2, 50.0)
    assert few["DRAM read"][3] == (T0 + 3 * MS + MS // 2, pytest.approx(1e9))
    many = {label: points for _, label, _, points in series(session(samples([20, 40] * 500)), most=100, buckets=10)}
    assert many["Tensor pipe active"] == [(T0 + 50 * MS + 100 * MS * at, pytest.approx(30)) for at in range(10)]
    assert {round(value) for _, value in many["DRAM read"]} == {10**9}


def test_what_went_wrong_with_sampling_is_told():
    def notes(name="counters", **told):
        return sampling_notes(Session(meta={"sources": {name: told, "nccl": {"state": "unavailable"}}}))

    assert notes(state="ended") == []
    assert notes(state="unavailable", reason="taken") == ["no hardware counters: taken"]
    assert notes("rank 1: counters", state="unavailable", reason="taken") == ["rank 1: no hardware counters: taken"]
    assert notes(state="ended", devices={"0": {"gaps": 2, "samples": 300}}) == []
    assert notes(state="ended", devices={"0": {"gaps": 2, "samples": 100}}) == [
        "hardware counters of GPU 0 have 2 gaps: counts were lost on the way"
    ]


@given(st.integers(-2_500_000, 2_500_000), st.integers(0, 999_999))
def test_samples_that_lie_late_are_moved_to_where_the_kernels_are(late, phase):
    work = [(("a",), 20 + 40 * number, 30 + 40 * number) for number in range(8)]
    busy = [0.0] * 360
    for _, first, last in work:
        for at in range(first - 1, last + 1):
            begin = at + phase / MS  # samples do not begin with kernels
            busy[at] = 100 * max(0.0, min(begin + 1, last) - max(begin, first))
    columns = samples(busy, begin=T0 + phase + late, graphics_engine_percent=busy)
    found = session(columns, work)
    row = by_path(found)["a",]
    assert row.moved_ns == pytest.approx(late, abs=30_000)


def test_without_kernels_alone_nothing_is_moved():
    columns = samples([50.0] * 200, graphics_engine_percent=[100.0] * 200)
    assert by_path(session(columns, [(("a",), 0, 190)]))["a",].moved_ns is None

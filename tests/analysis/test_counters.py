"""Counters by block: a device's samples over the time in which it did a block's work."""

import math
import pathlib
from array import array
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusense._records.counter_samples import CounterColumns, CounterTable
from gpusense._records.metrics import GpuMetrics, ProcessUsage
from gpusense._records.records import KINDS, BlockRecord, DeviceInfo, GpuKernel
from gpusense.analysis.counters import LEAST_SAMPLES, Integral, block_shares, busy_before, device_stretches, series
from gpusense.analysis.intervals import intersect, union
from gpusense.session import Session, load, merge

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


def test_a_block_has_the_samples_of_its_work():
    columns = samples([0] * 10 + [80] * 10 + [0] * 20)
    rows = by_path(session(columns, [(("a",), 10, 20), (("b",), 20.5, 30.5)]))
    assert rows["a",].tensor_percent == pytest.approx(80)
    assert rows["a",].samples == pytest.approx(10)
    assert rows["b",].tensor_percent == 0
    assert rows["a",].dram_bytes_per_s == pytest.approx(1e9)
    assert rows["a",].dram_percent == pytest.approx(0.1)
    assert rows["a",].shared == ()
    # Of a short pass no sample that is half of a neighbour's; what is left is of that time.
    assert (rows["b",].samples, rows["b",].sampled_ns, rows["b",].device_ns) == (9, 9 * MS, 10 * MS)
    assert rows["b",].dram_read_bytes == pytest.approx(9e6)
    # Of a long one these too, in proportion.
    long = by_path(session(samples([0] * 100 + [80] * 100), [(("a",), 49.5, 150.5)]))["a",]
    assert (long.samples, long.sampled_ns) == (pytest.approx(101), 101 * MS)
    assert long.tensor_percent == pytest.approx(40)


def simulated(passes, phase, interval, late, told):
    """A session of passes that follow one another, (path, milliseconds, levels of equal parts of it), and by path the
    true share. Its samples say that they may be off by ``told``, and are by that times ``late``."""
    levels, truth, now, work = [], {}, 20.0, []
    for name, length, parts in passes:
        work.append(((name,), now, now + length))
        for part in parts:
            levels.append((now, now + length / len(parts), part))
            now += length / len(parts)
            share = truth.setdefault((name,), [0.0, 0.0])
            share[0] += part * length / len(parts)
            share[1] += length / len(parts)
    values, begin = [], 5 + phase * interval
    while begin < now + 15:
        end = begin + interval
        values.append(
            sum(max(0, min(end, last) - max(begin, first)) * level for first, last, level in levels) / interval
        )
        begin = end
    columns = samples(values, length=round(interval * MS), begin=T0 + round((5 + phase * interval + late * told) * MS))
    found = session(columns, work)
    found.meta["sources"] = {"counters": {"devices": {"0": {"clock_error_ns": round(told * MS)}}}}
    return found, {path: spent / length for path, (spent, length) in truth.items()}


LEVEL, NAME = st.integers(0, 100), st.sampled_from("abc")
CLOCK = {
    "phase": st.floats(0, 1), "interval": st.sampled_from((0.5, 1.0, 2.0)),
    "late": st.floats(-1, 1), "told": st.floats(0.001, 0.3),
}  # fmt: skip


@given(
    levels=st.fixed_dictionaries(dict.fromkeys("abc", LEVEL)),
    passes=st.lists(st.tuples(NAME, st.floats(0.2, 30)), min_size=1, max_size=40),
    **CLOCK,
)
def test_what_is_shown_of_passes_of_any_length_is_the_blocks_own(levels, passes, phase, interval, late, told):
    even = [(name, length, [levels[name]]) for name, length in passes]
    found, truth = simulated(even, phase, interval, late, told)
    rows = by_path(found)
    assert rows.keys() == {(), *truth}
    for path, share in truth.items():
        row = rows[path]
        if row.reason is None:
            assert row.tensor_percent == pytest.approx(share, abs=2)
            assert row.samples >= LEAST_SAMPLES
        else:
            assert row.tensor_percent is None


@given(
    passes=st.lists(st.tuples(NAME, st.floats(30, 60), st.lists(LEVEL, min_size=1, max_size=9)), max_size=9), **CLOCK
)
def test_long_passes_are_shown_right_whatever_is_in_them(passes, phase, interval, late, told):
    passes = [(name, length * interval, parts) for name, length, parts in passes]
    found, truth = simulated(passes, phase, interval, late, told / 30)
    rows = by_path(found)
    for path, share in truth.items():
        assert rows[path].tensor_percent == pytest.approx(share, abs=2)


def test_passes_that_are_too_short_have_a_reason_and_what_to_do():
    passes = [(name, length, [50]) for _ in range(24) for name, length in (("short", 0.3), ("some", 1.4), ("long", 8))]
    rows = by_path(simulated(passes, 0.3, 1.0, 0, 0.02)[0])
    assert rows["long",].reason is None
    assert rows["some",].reason == "passes hold too few samples of 1.00 ms: ask for --counters=2kHz"
    assert rows["short",].reason.endswith("ask for --counters=10kHz")
    rows = by_path(simulated([("a", 0.15, [50]), ("b", 4, [1])] * 40, 0.3, 1.0, 0, 0.02)[0])
    assert rows["a",].reason.endswith("measure() counts them exactly")
    few = by_path(session(samples([50] * 40), [(("short",), 0, LEAST_SAMPLES - 0.1), (("other",), 60, 70)]))
    assert few["short",].reason == "only 4 samples in its time"
    assert few["other",].reason == "no sample in its time"


@pytest.mark.parametrize(("pause", "shown"), [(0.0, True), (0.3, False)])
def test_a_short_pass_that_begins_otherwise_than_it_goes_on_is_not_shown(pause, shown):
    work = []
    for at in range(0, 200, 5):
        start = at + 0.5
        work += [
            (("a",), start, start + 0.1),
            (("a",), start + 0.1 + pause, start + 3),
            (("b",), start + 3, start + 4.9),
        ]
    row = by_path(session(samples([50] * 210), work))["a",]
    assert (row.reason is None) == shown
    if not shown:
        assert row.reason == (
            "passes begin or end unlike their middle, and samples of 1.00 ms are too coarse for it: "
            "ask for --counters=10kHz"
        )


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)), min_size=1, max_size=20), st.integers(-5, 90))
def test_the_time_of_kernels_before_a_moment_counts_each_nanosecond_once(drawn, moment):
    begin = 1_000
    kernels = [GpuKernel("k", begin + start, begin + start + length, 0, path=("a",)) for start, length in sorted(drawn)]
    found = busy_before(Session(meta={"start_ns": 0, "end_ns": 10_000}, devices=(CARD,), records=kernels), 0)
    busy = {at for one in kernels for at in range(one.start_ns, one.end_ns)}
    assert found(begin + moment) == sum(at < begin + moment for at in busy)


def test_what_is_shown_of_a_recorded_run_is_what_its_kernels_say():
    """Kernels, memsets and copies on the device are work of the graphics engine, and so is the launch of the next: here
    pauses of up to 3 µs."""
    import gpusense.cli

    found = load(pathlib.Path(gpusense.cli.__file__).parent / "_demo.gpusense")
    away = {id(copy) for copy in found.transfers if copy.direction != "on_device"}
    work = [one for one in found.records if type(one) is not BlockRecord and id(one) not in away]
    busy = union([(one.start_ns, one.end_ns + 3_000) for one in work])
    stretches, rows = device_stretches(found, 0)[0], by_path(found)
    shown = {path for path, row in rows.items() if row.reason is None}
    assert shown == {(), ("step",), ("step", "forward"), ("step", "backward"), ("validate",)}
    for path in shown:
        spans = stretches[path][0]
        records = sum(end - start for start, end in intersect(busy, spans)) / sum(end - start for start, end in spans)
        assert rows[path].graphics_engine_percent == pytest.approx(100 * records, abs=2), path


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


def test_of_many_passes_together_there_may_be_samples_enough():
    passes = [
        (path, at + begin, at + end) for at in range(0, 18, 3) for path, begin, end in ((("a",), 0, 1), (("b",), 1, 3))
    ]
    assert by_path(session(samples([50] * 40), passes))["a",].samples == 6


@pytest.mark.parametrize("twice", [True, False])
def test_blocks_of_a_merged_session_are_as_they_were_in_their_own(twice):
    def process(pid, *paths):
        columns = samples([10] * 10 + [90] * 10 + [30] * 10)
        one = session(columns, [((path,), begin, begin + 10) for path, begin in paths])
        one.meta |= {"pid": pid, "sources": {"counters": {"devices": {"0": {"clock_error_ns": 0}}}}}
        return one

    first = process(1, ("a", 0), ("b", 20))
    other = process(1, ("a", 0), ("b", 20)) if twice else process(2, ("c", 10))
    merged = by_path(merge([first, other]))
    for path, row in by_path(first).items():
        found = merged[("process 1", *path)]
        assert found._replace(path=path, shared=()) == row
        assert found.shared == (("other processes",) if path or twice or row.device_ns else ())
    assert merged[()].samples == 30


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

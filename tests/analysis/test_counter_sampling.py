"""How well counters were sampled: gaps, their reasons, the clock, and what a reader is told of it."""

from array import array

import pytest

from gpusense._records.counter_samples import CounterColumns, CounterTable
from gpusense._records.records import BlockRecord, DeviceInfo, GpuKernel
from gpusense.analysis.counter_sampling import samplings
from gpusense.analysis.facts import Facts
from gpusense.analysis.unwritten import sampling_notes
from gpusense.report.blocks import tables
from gpusense.report.counter_remarks import remarks
from gpusense.session import Session, merge

MS = 1_000_000
T0 = 1_764_280_000_000_000_000


def session(*runs, work=((0, 300),), reasons=(), by="kernel", pid=7, **told):
    """``runs``: (begin, count) of samples of a millisecond; ``work``: (begin, end) in milliseconds."""
    columns = CounterColumns(0, ["tensor_percent"])
    for begin, count in runs:
        columns.start.extend(T0 + (begin + number) * MS for number in range(count))
    columns.end = array("q", [start + MS for start in columns.start])
    columns.values = (array("f", [50.0] * len(columns)),)
    table = CounterTable()
    table.add(columns)
    times = [(T0 + round(begin * MS), T0 + round(end * MS)) for begin, end in work]
    records = [
        GpuKernel("k", *time, 0, path=("a",), stream=7)
        if by == "kernel"
        else BlockRecord("a", 1, None, ("a",), *time, 1)
        for time in times
    ]
    device = {"clock_error_ns": 300_000, "gap_reasons": dict.fromkeys(reasons, 1)}
    meta = {"pid": pid, "start_ns": T0 - 40 * MS, "end_ns": T0 + 1000 * MS, "mode": "live"}
    meta["sources"] = {"counters": {"state": "ended", "devices": {"0": device}, **told}}
    card = DeviceInfo(0, "H200", "nvidia", "cuda", cuda_index=0, uuid="GPU-1")
    return Session(meta=meta, devices=(card,), records=records, counter_samples=table)


def test_a_device_without_a_sample_is_told():
    found = Session(meta={"sources": {"counters": {"state": "ended", "devices": {"0": {"samples": 0}}}}})
    assert sampling_notes(found) == ["hardware counters of GPU 0: no sample could be read"]


def test_samples_without_gaps():
    (one,) = samplings(session((0, 300)))
    assert (one.samples, one.interval_ns, one.gaps, one.missing_ns, one.why) == (300, MS, 0, 0, ())
    assert (one.clock_error_ns, one.moved_ns, one.longest_gap_at_ns) == (300_000, None, None)
    assert remarks(session((0, 300))) == [
        "GPU 0: 300 samples of 1.00 ms, from 40.0 ms to 340 ms after the start; their times may be off by 300 µs."
    ]
    assert samplings(Session()) == remarks(Session()) == []


def test_a_gap_says_how_many_samples_how_long_where_and_why():
    found = session((0, 100), (112, 88), (204, 96), reasons=("recording was disabled",))
    (one,) = samplings(found)
    assert (one.gaps, one.missing_samples, one.missing_ns) == (2, 16, 16 * MS)
    assert (one.longest_gap_ns, one.longest_gap_at_ns, one.why) == (12 * MS, T0 + 100 * MS, ("recording was disabled",))
    assert remarks(found)[1] == (
        "GPU 0: 16 of 300 samples are missing, 16.0 ms, at 2 places, 12.0 ms of it 140 ms after the start: "
        "recording was disabled."
    )
    assert remarks(session((0, 100), (112, 188)))[1].endswith(
        "12.0 ms, all of it 140 ms after the start: it is not known why."
    )


def test_between_two_processes_nothing_is_missing():
    first, other = session((0, 100)), session((400, 100), work=((400, 500),), pid=8)
    first.meta["end_ns"] = T0 + 100 * MS
    other.meta["start_ns"] = T0 + 400 * MS
    (one,) = samplings(merge([first, other]))
    assert (one.samples, one.gaps) == (200, 0)
    assert one.clock_error_ns == 300_000


def test_blocks_without_figures_are_named_with_the_reason():
    found = remarks(session((0, 300), work=((0, 2),)))
    assert found[1:] == ["GPU 0, not shown: (all work), a. Only 2 samples in its time."]
    assert "a block has the time in which the program was in it" in remarks(session((0, 300), by="block"))[-1]


def test_where_no_block_has_figures_for_one_reason_it_is_said_once_with_the_number():
    found = session((0, 300), work=((0, 300),))
    kernels = [
        GpuKernel("k", T0 + at * MS, T0 + at * MS + MS // 5, 0, path=(f"b{at % 6}",), stream=7) for at in range(240)
    ]
    found = Session(meta=found.meta, devices=found.devices, records=kernels, counter_samples=found.counter_samples)
    told = remarks(found)
    (blocks,) = tables(found, found.once(Facts).blocks, lambda path: None)
    assert "tensor" not in blocks["heads"], "a column without a figure in any row"
    assert told[-1:] == [
        "GPU 0, not shown: all 6 blocks. Passes hold too few samples of 1.00 ms: measure() counts them exactly."
    ]


@pytest.mark.parametrize("who", ["", "rank 1: "])
def test_what_went_wrong_is_among_the_notes(who):
    taken = {f"{who}counters": {"state": "unavailable", "reason": "taken"}, "nccl": {"state": "unavailable"}}
    assert sampling_notes(Session(meta={"sources": taken})) == [f"{who}no hardware counters: taken"]
    assert sampling_notes(session((0, 300))) == sampling_notes(session((0, 100), (105, 195))) == []
    (note,) = sampling_notes(session((0, 100), (150, 150), reasons=("full", "late")))
    assert note.startswith("hardware counters of GPU 0: 50 of 300 samples are missing, 50.0 ms, all of it 140 ms after")
    assert note.endswith(": full, or late")

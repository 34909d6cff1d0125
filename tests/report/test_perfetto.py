"""Native traces read back by a reader of the wire format that shares nothing with the writer."""

import contextlib
import io
import itertools
import math
import struct
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from support.protobuf import fields, one, read_varint
from support.ranks import job_rank
from support.sessions import HOSTILE, T0, US, block, copy, crowd, eventful, kernel, session, sync, training

from gpusense.analysis.facts import Facts
from gpusense.report import perfetto
from gpusense.report.divisions import GAPS
from gpusense.report.protobuf import number, varint
from gpusense.report.tracks import end_of, levels, nest, spread, tracks
from gpusense.session import Session, merge

#: What the counters of ``eventful()`` say, in percent and bytes a second.
CHARTED = {"SM active": 75.0, "DRAM read": 2e12, "DRAM written": 1e12}
#: Tracks of what is concluded.
OURS = ("idle: why", "phases", "steps")


def new_names(packet, known):
    entries = [one(value) for field, value in fields(packet.get(12, b"")) if field == 2]
    assert not {entry[1] for entry in entries} & set(known)
    return {entry[1]: entry[2].decode() for entry in entries}


class Trace:
    """Slices, counters and flows of a trace, as a viewer would find them."""

    def __init__(self, data):
        self.tracks, self.slices, self.counters, self.flows, names = {}, [], [], {}, {}
        stacks = {}
        packets = [one(value) for _, value in fields(data)]
        events = []
        for order, packet in enumerate(packets):
            names.update(new_names(packet, names))
            if 60 in packet:
                entry = one(packet[60])
                self.tracks[entry[1]] = (entry.get(2, b"").decode(), entry.get(5))
            if 11 in packet:
                events.append((packet[8], order, packet[11], list(fields(packet[11]))))
        for time, _, event, every in sorted(events, key=lambda event: event[:2]):  # as viewers sort: stable, by time
            body = one(event)
            assert body[11] in self.tracks
            flows = [struct.unpack("<Q", value)[0] for field, value in every if field == 47]
            if body[9] == 1:
                stacks.setdefault(body[11], []).append((time, names[body[10]]))
                for flow in flows:
                    self.flows.setdefault(flow, []).append(names[body[10]])
            elif body[9] == 2:
                start, name = stacks[body[11]].pop()
                self.slices.append((self.tracks[body[11]][0], name, start, time - start))
            else:
                self.counters.append((self.tracks[body[11]][0], time, struct.unpack("<d", body[44])[0]))
        assert not any(stacks.values())


def trace_of(run):
    file = io.BytesIO()
    perfetto.write(run, file)
    return Trace(file.getvalue())


def test_every_record_is_one_slice_with_absolute_nanoseconds():
    run = training(5)
    trace = trace_of(run)
    got = sorted((start, length) for track, _, start, length in trace.slices if track not in OURS)
    assert got == sorted((record.start_ns, end_of(record) - record.start_ns) for record in run.records)
    names = Counter(name for track, name, _, _ in trace.slices if track.startswith("stream"))
    assert names == Counter(record.name for record in [*run.kernels, *run.memsets])


def test_flows_lead_from_a_block_to_its_work():
    run = session(
        block(("step",), 0, 100, number=5), kernel("a", 10, 20, block_id=5), kernel("b", 30, 40, block_id=5),
        copy("cpu_to_gpu", 8, 50, 60, block_id=9), kernel("c", 70, 80), end=100,
    )  # fmt: skip
    flows = [sorted(ends) for ends in trace_of(run).flows.values()]
    # The copy's block has not ended, so that its flow has one end only.
    assert sorted(flows) == [["a", "step"], ["b", "step"], ["copies host to device"]]


def test_counters_are_the_samples():
    run = training(5)
    power = [(time, value) for track, time, value in trace_of(run).counters if track == "Power"]
    assert power == [(sample.time_ns, sample.power.draw_watts) for sample in run.metrics]


def test_what_the_hardware_counted_stands_from_the_start_of_its_sample_and_ends_where_nothing_is_known():
    run = eventful()
    (part,) = run.counter_samples.parts()
    for times in (part.start, part.end):
        del times[40:50]
    for values in part.values:
        del values[40:50]
    trace = trace_of(run)
    known = {label: [(at, value) for track, at, value in trace.counters if track == label] for label in CHARTED}
    ends = (part.end[39], part.end[-1])
    for label, value in CHARTED.items():
        assert [point for point in known[label] if point[1] == point[1]] == [(start, value) for start in part.start]
        assert [at for at, value in known[label] if math.isnan(value)] == list(ends)
    groups = {trace.tracks[parent][0] for label, parent in trace.tracks.values() if label in CHARTED}
    assert groups == {"GPU 0 · NVIDIA H100 80GB HBM3"}


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=20), st.booleans())
def test_no_overlap_and_no_nesting_is_lost(spans, blocks):
    make = (
        (lambda i, a, n: block((f"n{i}",), a, a + n, number=i))
        if blocks
        else (lambda i, a, n: kernel(f"n{i}", a, a + n))
    )
    run = session(*[make(index, start, length) for index, (start, length) in enumerate(spans)], end=100)
    got = sorted((name, start - T0, length) for track, name, start, length in trace_of(run).slices if track not in OURS)
    assert got == sorted((f"n{index}", start, length) for index, (start, length) in enumerate(spans))


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=20))
def test_lanes(spans):
    records = sorted((kernel("k", a, a + n) for a, n in spans), key=lambda r: (r.start_ns, -r.end_ns))
    lanes = spread(records)
    assert sorted(itertools.chain(*lanes)) == sorted(records)
    for lane in lanes:
        assert all(a.end_ns <= b.start_ns for a, b in itertools.pairwise(lane))
    nested = nest(records)
    assert sorted(itertools.chain(*nested)) == sorted(records)
    for lane in nested:
        for a, b in itertools.combinations(lane, 2):
            assert b.start_ns >= a.end_ns or b.end_ns <= a.end_ns
        rows = levels(lane)
        assert sum(map(len, rows)) == len(lane)
        for row in rows:
            assert all(a.end_ns <= b.start_ns for a, b in itertools.pairwise(row))


def test_ranks_stand_in_the_order_of_their_numbers():
    records = [block((f"rank {rank}", "step"), 0, 10, number=rank + 1) for rank in (10, 2, 0, 11, 1)]
    run = session(*records, end=20, processes=[{"root": f"rank {rank}"} for rank in (10, 2, 0, 11, 1)])
    assert [track.group for track in tracks(run)] == ["rank 0", "rank 1", "rank 2", "rank 10", "rank 11"]


def first_that_fits(records, fits):
    """Lanes as one finds them by looking through all for each record."""
    lanes = []
    for record in records:
        lane = next((lane for lane in lanes if fits(lane, record)), None)
        if lane is None:
            lanes.append([record])
        else:
            lane.append(record)
    return lanes


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=40))
def test_each_record_is_on_the_first_lane_that_has_room(spans):
    records = sorted((kernel("k", a, a + n) for a, n in spans), key=lambda r: (r.start_ns, -r.end_ns))

    def nests(lane, record):
        still_open = [other.end_ns for other in lane if other.end_ns > record.start_ns]
        return not still_open or record.end_ns <= min(still_open)

    assert spread(records) == first_that_fits(records, lambda lane, record: lane[-1].end_ns <= record.start_ns)
    assert nest(records) == first_that_fits(records, nests)


def test_a_thousand_open_at_once_are_not_compared_with_each_other():
    compared = []

    class Counted(int):
        def __le__(self, other):
            compared.append(1)
            return int.__le__(self, other)

        def __lt__(self, other):
            compared.append(1)
            return int.__lt__(self, other)

        __hash__ = int.__hash__

    records = [kernel("k", at, 0)._replace(end_ns=Counted(T0 + 10_000 + at)) for at in range(1_000)]
    for lanes in (spread(records), nest(records)):
        assert len(lanes) == 1_000
    assert len(compared) < 100_000


@given(st.integers(0, 2**64 - 1))
def test_varints(value):
    assert read_varint(varint(value), 0) == (value, len(varint(value)))


@given(st.integers(1 << 28, 2**63 - 1), st.integers(1 << 28, 2**63 - 1))
def test_time_stamps_are_varints(first, second):
    writer = perfetto._Writer(0)
    assert [writer._time(time) for time in (first, second, first)] == [varint(first), varint(second), varint(first)]


def test_negative_numbers_are_twos_complement():
    assert read_varint(number(1, -5), 1)[0] == 2**64 - 5


def test_hostile_names():
    run = session(*[kernel(name, at * US, at * US + 900) for at, name in enumerate(HOSTILE)], end=20 * US)
    names = {name for track, name, _, _ in trace_of(run).slices if track not in OURS}
    expected = {name.replace("\ud800", "\ufffd") or "(unnamed)" for name in HOSTILE}
    assert names == expected


def test_a_cut_leaves_whole_packets_before_it():
    file = io.BytesIO()
    perfetto.write(training(1), file)
    whole = file.getvalue()
    packets = list(fields(whole))
    for cut in range(40, len(whole), 997):
        before = list(itertools.islice(whole_fields(whole[:cut]), len(packets)))
        assert before == packets[: len(before)]
        assert len(before) >= 1


def whole_fields(data):
    with contextlib.suppress(AssertionError, IndexError):
        yield from fields(data)


def test_odd_sessions():
    assert trace_of(Session()).slices == []
    assert [row[:2] for row in trace_of(session(kernel("one", 0, 5))).slices] == [
        ("phases", "main part"),
        ("stream 7", "one"),
    ]
    (slice_,) = [s for s in trace_of(session(kernel("back", 9, 5), end=50)).slices if s[0] not in OURS]
    assert slice_[2:] == (T0 + 9, 0)


def test_it_is_written_in_pieces():
    class Pieces(io.BytesIO):
        largest = 0

        def write(self, data):
            self.largest = max(self.largest, len(data))
            return super().write(data)

    file = Pieces()
    perfetto.write(crowd(60_000), file)
    assert file.largest < 2 << 20 < len(file.getvalue())


def test_a_wait_has_its_line_among_its_arguments():
    record = sync(0, US, source_line="train.py:31 step")
    assert dict(perfetto.arguments(record))["source_line"] == "train.py:31 step"


def test_phases_and_steps_have_tracks():
    run = training(12)
    trace = trace_of(run)
    (program,) = Facts(run).programs
    shown = {track: [row[1:] for row in trace.slices if row[0] == track] for track in OURS}
    assert sorted(start for _, start, _ in shown["phases"]) == [one.start_ns for one in program.phases]
    assert sum(length for _, _, length in shown["phases"]) == run.duration_ns
    assert {name for name, _, _ in shown["phases"]} >= {"start-up", "steps"}
    assert sorted((start, start + length) for _, start, length in shown["steps"]) == list(
        zip(program.steps.starts, program.steps.ends, strict=True)
    )
    assert {name for name, _, _ in shown["idle: why"]} <= set(GAPS.values())
    assert trace_of(Session()).slices == []


def test_the_parts_of_a_collective_are_connected():
    run = merge([job_rank(rank, 3, steps=7, late=1, why="load") for rank in range(3)])
    trace = trace_of(run)
    flows = (ends for ends in trace.flows.values() if ends[0].startswith("AllReduce"))
    assert sorted(flows) == [[f"AllReduce {number}"] * 3 for number in range(7)]
    parts = (
        [one for one in trace.slices if one.name.startswith("AllReduce ")] if hasattr(trace.slices[0], "name") else None
    )
    print(trace.slices[:2], parts)

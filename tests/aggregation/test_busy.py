"""Unions of busy time against ones that are easy to believe: early and late, with and without summing up."""

import random
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.draws import examples

from gpusense._aggregation import busy as _busy
from gpusense._aggregation.busy import Busy, DeviceTime, span_of


def brute(intervals):
    covered = set()
    for start, end in intervals:
        covered.update(range(start, end))
    return len(covered)


def swept(intervals):
    """As :func:`brute`, for times of any length."""
    total, reach = 0, -1
    for start, end in sorted(intervals):
        total += max(end - max(start, reach), 0)
        reach = max(reach, end)
    return total


def columns(intervals):
    return [start for start, _ in intervals], [end for _, end in intervals]


def limited(monkeypatch, held, portion, changes=_busy._INTERVALS_A_CHANGE):
    monkeypatch.setattr(_busy, "HELD", held)
    monkeypatch.setattr(_busy, "PORTION", portion)
    monkeypatch.setattr(_busy, "MOST", 3 * portion)
    monkeypatch.setattr(_busy, "_INTERVALS_A_CHANGE", changes)


INTERVALS = st.lists(
    st.tuples(st.integers(0, 300), st.integers(0, 40)).map(lambda p: (p[0], p[0] + p[1])), min_size=1, max_size=30
)
BATCHES = st.lists(st.tuples(st.booleans(), INTERVALS), max_size=12)
LIMITS = st.tuples(st.integers(20, 400), st.integers(1, 100), st.sampled_from([1, 2, 16]))


@given(INTERVALS)
def test_a_span_covers_what_its_intervals_cover(intervals):
    span = span_of(*columns(intervals))
    assert (span.start, span.end) == (min(columns(intervals)[0]), max(columns(intervals)[1]))
    assert span.busy == brute(intervals) == sum(end - start for start, end in zip(span.starts, span.ends, strict=True))
    assert all(start >= end for start, end in zip(span.starts[1:], span.ends, strict=False))


def test_a_span_that_is_known_to_be_in_order_is_what_it_is_found_to_be():
    starts, ends = [0, 10, 30], [10, 20, 31]
    assert span_of(starts, ends, 21, True) == span_of(starts, ends, 21) == span_of(starts, ends)
    assert span_of([0, 5], [10, 20]) == (0, 20, 20, [0], [20])


@given(INTERVALS, st.integers(1, 340), st.booleans())
def test_a_span_that_is_divided_is_all_there(intervals, at, packed):
    span = span_of(*columns(intervals))
    if packed:
        span = span._replace(starts=memoryview(array("Q", span.starts)), ends=memoryview(array("Q", span.ends)))
    if span.start < at < span.end:
        early, across, late = _busy._split(span, at)
        parts = [part for part in (early, late) if part is not None]
        whole = [pair for part in parts for pair in zip(part.starts, part.ends, strict=True)]
        assert sorted(whole + ([across] if across else [])) == list(zip(span.starts, span.ends, strict=True))
        for part in parts:
            assert part[:3] == (part.starts[0], part.ends[-1], sum(part.ends) - sum(part.starts))
        assert early is None or early.end <= at
        assert late is None or late.start >= at
        assert across is None or across[0] < at < across[1]


@examples(300)
@given(BATCHES, LIMITS)
def test_both_sides_and_their_union_equal_brute_force(batches, limits):
    """Whatever overlaps, as long as nothing comes after its time was summed up: each batch is moved on to that."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        limited(monkeypatch, *limits)
        time, flat = DeviceTime(), {True: [], False: []}
        for kernels, batch in batches:
            begin = max(time._kernels.frontier, time._transfers.frontier, 0)
            moved = [(start + begin, end + begin) for start, end in batch]
            flat[kernels] += moved
            time.add(kernels, span_of(*columns(moved)))
            assert time._kernels.weight + time._transfers.weight <= limits[0]
        expected = brute(flat[True]), brute(flat[False]), brute(flat[True] + flat[False])
        assert time.total_ns() == expected
        assert time.total_ns() == expected  # asking changes nothing
        both = flat[True] + flat[False]
        assert (time.first, time.last) == ((min(both)[0], max(end for _, end in both)) if both else (None, None))
        while time._kernels.spans or time._transfers.spans:
            time._fold()
        assert time.total_ns() == expected


@examples(200)
@given(BATCHES, LIMITS)
def test_what_comes_too_late_counts_where_nothing_was_summed_up_and_never_twice(batches, limits):
    with pytest.MonkeyPatch.context() as monkeypatch:
        limited(monkeypatch, *limits)
        time, flat, sure = DeviceTime(), {True: [], False: []}, {True: [], False: []}
        for number, (kernels, batch) in enumerate(batches):
            moved = [(start + 100 * number, end + 100 * number) for start, end in batch]
            side = time._kernels if kernels else time._transfers
            flat[kernels] += moved
            sure[kernels] += [(max(start, side.frontier), end) for start, end in moved if end > side.frontier]
            time.add(kernels, span_of(*columns(moved)))
        kernel_ns, transfer_ns, busy_ns = time.total_ns()
        assert brute(sure[True]) == kernel_ns <= brute(flat[True])
        assert brute(sure[False]) == transfer_ns <= brute(flat[False])
        assert max(kernel_ns, transfer_ns) <= busy_ns <= brute(flat[True] + flat[False])


def streams(source, count, longest):
    """Intervals of one stream after the other, none of which overlaps the next of the same stream."""
    now, found = 1_700_000_000_000_000_000, []
    for _ in range(count):
        now += source.choice((0, 700, 2_000))
        found.append((now, now + source.randrange(longest)))
        now = found[-1][1]
    return found


def packed(intervals):
    starts, ends = columns(intervals)
    return memoryview(array("Q", starts)), memoryview(array("Q", ends)), sum(ends) - sum(starts), True


@pytest.mark.parametrize("seed", range(6))
def test_buffers_of_several_streams_that_come_when_they_are_full(seed):
    """As live: each thread's work in order, in batches of its own, copies beside it, more than is held at a time."""
    source = random.Random(seed)
    kernels = [streams(source, 40_000, source.choice((3_000, 30_000))) for _ in range(1 + seed % 3)]
    copies = streams(source, 8_000, source.choice((1_000, 90_000)))
    rows = []
    for side, row, size in [(True, row, 1_280) for row in kernels] + [(False, copies, 64)]:
        for at in range(0, len(row), size):
            part = row[at : at + size]
            rows.append((part[-1][1], side, part))
    rows.sort(key=lambda row: row[0] + source.randrange(3_000_000))
    busy = Busy()
    for _, side, part in rows:
        busy.add("cuda", 0, side, *packed(part))
    (row,) = busy.rows()
    flat = [interval for stream in kernels for interval in stream]
    assert (row.kernel_ns, row.transfer_ns, row.busy_ns) == (swept(flat), swept(copies), swept(flat + copies))
    assert (row.first_ns, row.last_ns) == (min(flat + copies)[0], max(end for _, end in flat + copies))
    assert busy.rows() == [row]


SHAPES = {
    "long": lambda i: (i, i + 10**9),
    "nested": lambda i: (i, 10**9 - i),
    "same": lambda i: (5, 10**6),
    "instants": lambda i: (7, 7),
    "ascending ends": lambda i: (3, 4 + i),
    "one long copy": lambda i: (i * 10, i * 10 + 7) if i else (1, 10**9),
    "crowded": lambda i: (2 ** i.bit_length() + i, 2 ** i.bit_length() + i + 10),
}


class Counting(DeviceTime):
    folds = 0

    def _fold(self):
        self.folds += 1
        super()._fold()


@pytest.mark.parametrize("size", [1, 50, 12_000])
@pytest.mark.parametrize("shape", SHAPES)
def test_summing_up_gets_on_whatever_overlaps(shape, size):
    """Bounded, exact, and in no more portions than there is to sum up."""
    count = 120_000 if size > 1 else 6_000
    intervals = [SHAPES[shape](i) for i in range(count)]
    time = Counting()
    time.add(False, span_of(*columns(intervals[:1])))
    for at in range(1, count, size):
        time.add(True, span_of(*columns(intervals[at : at + size])))
        assert time._kernels.weight + time._transfers.weight <= _busy.HELD
    assert time.folds <= 2 * count // min(size, _busy.PORTION // 2)
    assert time.total_ns() == (swept(intervals[1:]), swept(intervals[:1]), swept(intervals))


def test_a_crowd_and_a_straggler_in_each_of_many_spans():
    time, flat = Counting(), []
    for number in range(60):
        begin = number if number < 49 else 10**10 + number * 10**9
        part = [(begin + i * 700, begin + i * 700 + 30) for i in range(1_279)] + [(10**12 + number, 10**12 + 90)]
        flat += part
        time.add(True, span_of(*columns(part)))
    assert time.folds < len(flat) // 100
    assert time._kernels.weight <= _busy.HELD
    assert time.total_ns() == (swept(flat), 0, swept(flat))


@pytest.fixture
def portions(monkeypatch):
    """How many intervals are looked at in one go."""
    sizes, disjoint = [], _busy._disjoint
    monkeypatch.setattr(
        _busy, "_disjoint", lambda spans: sizes.append(sum(len(span.starts) for span in spans)) or disjoint(spans)
    )
    return sizes


def test_no_portion_is_large(portions):
    """However many buffers of how many threads overlap."""
    busy = Busy()
    for cycle in range(1, 41):
        for stream in range(20):
            begin = cycle * 10**6 + stream
            busy.add("cuda", 0, True, *packed([(begin + i * 700, begin + i * 700 + 30) for i in range(1_280)]))
    assert len(portions) > 40
    assert max(portions) <= _busy.MOST


def test_no_portion_is_large_where_many_wait_for_a_straggler_or_all_come_at_once(portions):
    time = DeviceTime()
    for number in range(60):
        part = [(number + i * 700, number + i * 700 + 30) for i in range(1_279)] + [(10**10 + number, 10**10 + 90)]
        time.add(True, span_of(*columns(part)))
    rare = [(10**12 + 2**i, 10**12 + 2**i) for i in range(40)]
    time.add(True, span_of(*columns(rare + [(2 * 10**12 + i * 10, 2 * 10**12 + i * 10 + 5) for i in range(100_000)])))
    assert len(portions) > 80
    assert max(portions) <= _busy.MOST


def test_a_kernel_that_comes_late_counts_where_only_copies_were_summed_up(monkeypatch):
    limited(monkeypatch, 100, 1)
    time = DeviceTime()
    time.add(True, span_of([0], [10]))
    time.add(False, span_of([0, 40], [20, 60]))
    while time._transfers.spans:
        time._fold()
    assert (time._kernels.frontier, time._transfers.frontier) == (10, 60)
    time.add(True, span_of([5, 45, 70], [12, 50, 80]))  # from 5 to 10 is gone, from 45 to 50 was busy all the same
    assert time.total_ns() == (10 + 2 + 5 + 10, 40, 40 + 10)
    time.add(True, span_of([60], [61]))
    assert time.total_ns() == (28, 40, 51)


def test_busy_is_at_least_what_either_side_is(monkeypatch):
    limited(monkeypatch, 100, 1)
    time = DeviceTime()
    time.add(False, span_of([100], [101]))
    time._fold()
    time.add(True, span_of([10], [90]))
    assert time.total_ns() == (80, 1, 80)


def test_busy_by_device_and_side():
    busy = Busy()
    busy.add("cuda", 0, True, [0, 5], [10, 20])
    busy.add("cuda", 0, False, [15], [30])
    busy.add("cuda", 1, True, [0], [1])
    rows = {row.device: row for row in busy.rows()}
    assert (rows[0].kernel_ns, rows[0].transfer_ns, rows[0].busy_ns) == (20, 15, 30)
    assert rows[1].busy_ns == 1

"""Calls in blocks: against a slow answer to the same question, and as a listener."""

import threading
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st
from support.sessions import block

from gpusense._records.records import BlockRecord, Syscall
from gpusense.cli._call_places import CallPlaces

THREAD = 77


def call(at, thread=THREAD):
    return Syscall("read", at, at + 1, thread=thread)


def record(number, start, end, thread=1):
    return BlockRecord(f"b{number}", number, None, (f"b{number}",), start, end, thread)


@st.composite
def nested(draw, low=0, high=200, number=1, depth=0):
    """Blocks that lie in each other, as one thread opens them."""
    found, at = [], low
    for _ in range(draw(st.integers(0, 3 if depth < 3 else 0))):
        if at + 2 > high:
            break
        start = draw(st.integers(at, high - 2))
        end = draw(st.integers(start + 1, high - 1))
        found.append(record(number, start, end))
        inside = draw(nested(start, end, number + 1, depth + 1))
        found += inside
        number, at = number + 1 + len(inside), end + 1
    return found


@given(nested(), st.integers(-5, 205))
def test_a_call_is_in_the_innermost_block_that_is_open(blocks, at):
    places = CallPlaces()
    places.add(blocks, {1: THREAD})
    (found,) = places.placed([call(at)])
    around = [one for one in blocks if one.start_ns <= at < one.end_ns]
    expected = max(around, key=lambda one: one.block_id, default=None)
    assert found.block_id == (expected.block_id if expected else None)
    assert found.path == (expected.path if expected else ())
    assert places.placed([call(at, 78), call(at, None)]) == [call(at, 78), call(at, None)]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=12))
def test_where_blocks_overlap_in_another_way_a_call_is_in_none(spans):
    blocks = [record(number, start, start + length) for number, (start, length) in enumerate(spans, 1)]
    places = CallPlaces()
    places.add(blocks, {1: THREAD})
    for at in range(-1, 45):
        now = sorted((one.start_ns, one.block_id, one.end_ns) for one in blocks if one.start_ns <= at < one.end_ns)
        ends = [end for _, _, end in now]
        expected = now[-1][1] if now and ends == sorted(ends, reverse=True) else None
        assert places.placed([call(at)])[0].block_id == expected


def test_where_tasks_take_turns_nobody_knows():
    places = CallPlaces()
    places.add([record(1, 0, 100), record(2, 10, 60), record(3, 20, 80)], {1: THREAD})
    found = [one.block_id for one in places.placed([call(at) for at in (5, 15, 30, 70, 90, 100)])]
    assert found == [1, 2, None, 3, 1, None]


def test_a_block_of_a_thread_without_a_number_takes_nothing():
    places = CallPlaces()
    places.add([record(1, 0, 100, thread=5), block(("x",), 0, 9)], {1: THREAD})
    assert places.placed([call(5)]) == [call(5)]


def test_blocks_that_are_heard_of():
    places, mine, numbers = CallPlaces(), threading.get_native_id(), []

    def opened(number, start, recorded=True):
        made = SimpleNamespace(block_id=number, path=(f"b{number}",), start_ns=start, end_ns=None, recorded=recorded)
        places.block_opened(made)
        return made

    def closed(made, end):
        made.end_ns = end
        places.block_closed(made)

    outer = opened(1, 10)
    inner = opened(2, 20)
    closed(inner, 30)
    closed(opened(3, 40, recorded=False), 50)
    other = threading.Thread(target=lambda: (numbers.append(threading.get_native_id()), opened(4, 15)))
    other.start()
    other.join()
    found = [one.block_id for one in places.placed([call(at, mine) for at in (5, 12, 25, 45, 999)])]
    assert found == [None, 1, 2, 1, 1]  # the outer one is still open
    assert places.placed([call(20, numbers[0])])[0].block_id == 4
    closed(outer, 60)
    assert places.placed([call(999, mine)])[0].block_id is None

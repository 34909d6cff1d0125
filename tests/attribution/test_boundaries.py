"""Items of the queue, taken apart."""

from types import SimpleNamespace

from gpusense._attribution.boundaries import (
    CLOSE,
    CLOSED,
    ENDED,
    FRAME_ENDED,
    FRAME_FOLLOWED,
    FRAME_OPENED,
    MARKED,
    OPEN,
    OPEN_ENDED_NS,
    PLACED,
    RECORD,
    SWITCH,
    UNPLACED,
    Boundary,
    Frame,
    MarkerCall,
    boundary_of,
    record_of,
    taken_apart,
)
from gpusense._records.records import BlockRecord


def frame(number, name, outer, start_ns, corr):
    made = Frame.__new__(Frame)
    made.number, made.outer, made.block, made.run = number, outer, None, SimpleNamespace(thread=5)
    made.place, made.start_ns, made.corr = SimpleNamespace(name=name, attributes={"of": name}), start_ns, corr
    return made


def test_a_block_leaves_two_boundaries_and_a_record():
    opened = (PLACED, OPEN, 2, 1, 5, 10, "step", 3)
    ended = (ENDED, 0, 6, 4, "step", 2, 1, ("run", "step"), 10, 20, 5, {"a": 1}, "KeyError")
    rows, records = taken_apart([opened, ended])
    assert rows == [opened, (PLACED, CLOSE, 2, 0, 6, 20, "", 4)]
    assert records == [BlockRecord("step", 2, 1, ("run", "step"), 10, 20, 5, {"a": 1}, "KeyError")]


def test_frames_are_boundaries_and_records_of_the_blocks_that_they_would_have_been():
    outer = Frame.__new__(Frame)
    outer.number, outer.block = 1, SimpleNamespace(path=("step",))
    first, second = frame(2, "first", outer, 10, 3), frame(3, "second", outer, 20, 4)
    rows, records = taken_apart(
        [
            (FRAME_OPENED, first),
            (FRAME_FOLLOWED, first, 20, 4, second),
            (FRAME_ENDED, second, 30, 5),
        ]
    )
    assert rows == [
        (PLACED, OPEN, 2, 1, 5, 10, "first", 3),
        (PLACED, CLOSE, 2, None, 5, 20, "", 4),
        (PLACED, OPEN, 3, 1, 5, 20, "second", 4),
        (PLACED, CLOSE, 3, None, 5, 30, "", 5),
    ]
    assert records == [
        BlockRecord("first", 2, 1, ("step", "first"), 10, 20, 5, {"of": "first"}),
        BlockRecord("second", 3, 1, ("step", "second"), 20, 30, 5, {"of": "second"}),
    ]


def test_the_call_of_a_marker_may_not_have_returned_yet():
    call = MarkerCall(7)
    item = (MARKED, CLOSE, 2, None, 5, 10, "", call)
    assert boundary_of(item) == Boundary(CLOSE, 2, None, 5, 10, 10 + OPEN_ENDED_NS, "", 7)
    call.ended_ns = 15
    assert boundary_of(item) == Boundary(CLOSE, 2, None, 5, 10, 15, "", 7)


def test_a_boundary_without_marker_has_no_token():
    assert boundary_of((UNPLACED, SWITCH, 0, 1, 5, 10, "")) == Boundary(SWITCH, 0, 1, 5, 10, 10 + OPEN_ENDED_NS)


def test_finished_records():
    record = BlockRecord("step", 2, 1, ("run", "step"), 10, 20, 5)
    assert record_of((CLOSED, *record)) == record
    assert record_of((RECORD, record)) is record

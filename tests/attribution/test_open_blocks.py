"""Frames: what a framework's modules have in place of blocks, until somebody asks for the innermost block."""

import threading
import time

import pytest
from support.sessions import blocks

import gpusense
from gpusense._attribution.boundaries import FRAME_FOLLOWED, FRAME_OPENED, Frame
from gpusense._attribution.open_blocks import Run, block_ids, running


class Place:
    def __init__(self, name):
        self.name, self.attributes = name, {"of": name}


def opened(run, name):
    """As a framework's integration opens a frame."""
    frame = Frame.__new__(Frame)
    frame.number, frame.place, frame.block = next(block_ids), Place(name), None
    frame.run, frame.outer = run, run.frame
    frame.start_ns, frame.corr = time.time_ns(), run.newest()
    run.append((FRAME_OPENED, frame))
    run.frame = frame
    return frame


@pytest.fixture
def run(reading):
    """Frames in the block "outer", which is open."""
    outer = reading.open_scope("outer")
    run, frame = Run(), Frame.__new__(Frame)
    frame.outer, frame.place, frame.corr, frame.block, frame.number = None, None, -1, outer, outer.block_id
    run.begin(outer, frame)
    assert running[threading.get_ident()] is run
    yield run
    run.end()
    reading.close_scope(outer)
    assert not running


def test_a_frame_is_recorded_as_a_block(reading, run):
    outer = run.base
    first = opened(run, "first")
    inner = opened(run, "inner")
    assert run.close(inner) is None
    assert run.close(first) is None
    found = blocks(reading)
    assert (found["inner"].path, found["inner"].parent_id) == (("outer", "first", "inner"), first.number)
    assert (found["first"].path, found["first"].parent_id) == (("outer", "first"), outer.block_id)
    assert found["first"].attributes == {"of": "first"}
    assert found["first"].start_ns <= found["inner"].start_ns <= found["inner"].end_ns <= found["first"].end_ns


def test_a_frame_that_is_asked_for_is_a_block(reading, run):
    first = opened(run, "first")
    with gpusense.trace("inside") as block:
        assert (block.parent_id, block.path) == (first.number, ("outer", "first", "inside"))
        second = opened(run, "second")
        asked = reading.current_block()
        assert (asked.name, asked.block_id, asked.path[-2:]) == ("second", second.number, ("inside", "second"))
        assert run.close(second) is asked
        asked.__exit__(None, None, None)
        assert reading.current_block() is block
    assert reading.current_block() is first.block
    first.block.__exit__(None, None, None)
    assert reading.current_block() is run.base
    assert {"first", "inside", "second"} <= set(blocks(reading))


def test_frames_end_where_somebody_listens_or_ids_are_not_read(reading, run):
    told = []

    class Listener:
        def block_opened(self, block): ...

        def block_closed(self, block):
            told.append(block.name)

    first = opened(run, "first")
    reading.add_block_listener(Listener())
    assert not run.lean
    block = run.close(first)
    assert block.block_id == first.number
    block.__exit__(None, None, None)
    assert told == ["first"]
    assert reading.ways_of_frames(run.base) is None
    reading._listeners = ()
    assert reading.ways_of_frames(run.base) is not None


@pytest.mark.parametrize("part", ["newest", "marker"])
def test_no_frames_where_ids_are_not_read(reading, monkeypatch, part):
    with reading.trace("outer") as outer:
        monkeypatch.setattr(reading.recorder, part, None)
        assert reading.ways_of_frames(outer) is None


def test_ids_that_may_be_missing_make_a_frame_a_block(reading, run):
    first = opened(run, "first")
    run.newest = lambda: 1 << 32
    block = run.close(first)
    assert (block.name, block.path) == ("first", ("outer", "first"))
    block.__exit__(None, None, None)
    assert "first" in blocks(reading)


def test_after_an_interrupt_no_frame_is_left_open(reading, run):
    outer = run.base
    first, following = opened(run, "first"), opened(run, "following")
    run.give_up(first, following)
    assert (run.frame.block, run.lean) == (outer, False)
    reading.flush()
    attribution = reading.recorder.store.pipeline.attribution
    assert attribution.resolve(threading.get_ident(), 9) == ((outer.block_id,), False)


def test_frames_that_follow_one_another_share_a_boundary(reading, run):
    first = opened(run, "first")
    second = Frame.__new__(Frame)
    second.number, second.place, second.block = next(block_ids), Place("second"), None
    second.run, second.outer = run, first.outer
    second.start_ns, second.corr = time.time_ns(), 7
    run.append((FRAME_FOLLOWED, first, second.start_ns, 7, second))
    run.frame = second
    run.close(second)
    found = blocks(reading)
    assert found["first"].end_ns == found["second"].start_ns
    assert found["second"].path == ("outer", "second")


def test_frames_of_another_thread_are_not_here(reading, run):
    opened(run, "first")
    seen = []
    thread = threading.Thread(target=lambda: seen.append(reading.current_block()))
    thread.start()
    thread.join()
    assert seen == [None]
    assert reading.current_block().name == "first"
    reading.current_block().__exit__(None, None, None)

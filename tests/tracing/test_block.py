"""Scopes for spans of others, and listeners."""

import re
import sys
import threading
from itertools import count

from support.sessions import blocks

import gpusense
from gpusense._tracing import block as _block
from gpusense._tracing import noop


def test_a_scope_below_what_is_no_block_of_a_live_tracer(tracer):
    for parent in (noop.NoopBlock("off", None, None, ""), 5):
        scope = tracer.open_scope("layer", parent=parent)
        with gpusense.trace("inside"):
            pass
        tracer.close_scope(scope)
    assert {block.path for block in tracer.session().blocks} == {("layer",), ("layer", "inside")}


def test_block_listener(tracer):
    events = []

    class Listener:
        def block_opened(self, block):
            events.append(("open", block.name, threading.get_ident()))

        def block_closed(self, block):
            events.append(("close", block.name, block.end_ns is not None))
            raise RuntimeError("listener")

    tracer.add_block_listener(Listener())
    for _ in range(2):
        with gpusense.trace("a"):
            pass
    assert events == [("open", "a", threading.get_ident()), ("close", "a", True)]


def test_sample_rate_opens_one_root_in_so_many(tracer):
    gpusense.configure(sample_rate=0.25)
    for _ in range(100):
        with gpusense.trace("root"), gpusense.trace("child"):
            pass
    summary = gpusense.get_tracer().summary()
    assert summary.operation("root").count == 25
    assert summary.operation("child").count == 25


def test_scopes_for_spans_of_others(tracer):
    scope = tracer.open_scope("GET /", {"http.method": "GET"})
    with gpusense.trace("inside") as block:
        assert block.parent_id == scope.block_id
    tracer.close_scope(scope)
    assert set(blocks(tracer)) == {"GET /", "inside"}


def test_scopes_without_a_block_around_them_are_sampled_and_shed(reading, monkeypatch):
    reading.config = reading.config._replace(sample_rate=0.25)
    for _ in range(100):
        scope = reading.open_scope("scope")
        reading.close_scope(reading.open_scope("inside"))
        reading.close_scope(scope)
    assert [block.name for block in reading.session().blocks].count("scope") == 25
    assert [block.name for block in reading.session().blocks].count("inside") == 25
    reading.config = reading.config._replace(sample_rate=1.0)
    monkeypatch.setattr(_block, "MAX_WAITING", -1)
    reading.close_scope(reading.open_scope("too many"))
    assert (reading.status()["shed_blocks"], "too many" in blocks(reading)) == (1, False)


def interrupted_at(number, call, *given):
    """Whether there is a line of that number, counted as they run, where Ctrl-C comes in the middle of ``call``."""
    lines = count()

    def look(frame, event, _):
        if frame.f_code.co_filename != _block.__file__:
            return None
        if event == "line" and next(lines) == number:
            raise KeyboardInterrupt
        return look

    before = sys.gettrace()
    sys.settrace(look)
    try:
        call(*given)
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def test_an_interrupt_at_any_line_of_a_scope_is_the_programs_and_leaves_no_block_around_others(reading):
    number = 0
    while interrupted_at(number, reading.open_scope, "opened"):
        assert reading.current_block() is None, number
        number += 1
    assert number > 15
    reading.close_scope(reading.current_block())
    number = 0
    scope = reading.open_scope("closed", {"a": 1})
    while interrupted_at(number, reading.close_scope, scope):
        with gpusense.trace("after") as block:
            assert block.parent_id is None or scope.end_ns is None
        reading.close_scope(scope)
        assert scope.end_ns is not None
        with gpusense.trace("after") as block:
            assert block.parent_id is None
        scope = reading.open_scope("closed", {"a": 1})
        number += 1
    assert number > 15
    assert reading.failed_blocks == 0


def test_a_listener_is_told_before_the_record_is_made(reading):
    class Listener:
        def block_opened(self, block): ...

        def block_closed(self, block):
            block.attributes = {"closed_by": "listener", "end_ns": block.end_ns}

    reading.add_block_listener(Listener())
    with gpusense.trace("a") as block:
        pass
    assert blocks(reading)["a"].attributes == {"closed_by": "listener", "end_ns": block.end_ns}


def test_a_scope_may_belong_to_a_block_of_another_thread(tracer):
    with gpusense.trace("backward") as outer:

        def work():
            tracer.close_scope(tracer.open_scope("layer", parent=outer))
            tracer.close_scope(tracer.open_scope("other", parent=outer))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    layer = blocks(tracer)["layer"]
    assert (layer.path, layer.parent_id) == (("backward", "layer"), outer.block_id)
    assert layer.thread != outer.thread
    assert blocks(tracer)["other"].path == ("backward", "other")


def test_a_block_says_what_it_is(tracer):
    block = tracer.trace("never")
    assert repr(block) == "<Block 'never': not entered>"
    with gpusense.trace("outer"), gpusense.trace("inner") as block:
        assert re.fullmatch("<Block outer › inner: open for [0-9.]+ .?s>", repr(block))
        assert block._repr_html_() is None
    assert re.fullmatch("<Block outer › inner: [0-9.]+ .?s>", repr(block))
    assert block._repr_html_() == block.summary().as_html()


def test_a_tracer_says_how_it_is(tracer):
    assert repr(tracer) == f"<Tracer {tracer.status()['state']}: {tracer.status()['reason']}>"
    with gpusense.trace("<step>"):
        pass
    assert "&lt;step&gt;" in tracer._repr_html_()
    assert "<step>" not in tracer._repr_html_()

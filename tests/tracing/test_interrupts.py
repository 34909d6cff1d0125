"""What a signal handler of the program raises in the middle of a block's start or end: it passes, and nothing stays
open."""

import _thread
import contextvars
import functools
import gc
import signal
import sys
import time

import pytest
from support.interruptions import Alarm, raised_at

import gpusense
from gpusense._attribution.boundaries import CLOSE, CLOSED, ENDED, MARKED, OPEN, PLACED, RECORD, UNPLACED

#: Up to Python 3.11 a profile function is asked before the first instruction of a function, where no signal comes.
NOT_ASKED_INSIDE = ("__exit__", "close_scope") if sys.version_info < (3, 12) else ()


class Now:
    """``-now``: a signal that is first looked for at the next function's first instruction."""

    __neg__ = staticmethod(functools.partial(_thread.interrupt_main, signal.SIGINT))


now = Now()


@pytest.fixture
def raising():
    """Has SIGINT raise what it is given."""
    before = signal.getsignal(signal.SIGINT)

    def handle(error):
        def handler(*_):
            raise error

        signal.signal(signal.SIGINT, handler)

    yield handle
    signal.signal(signal.SIGINT, before)


class Kept:
    """The tracer's queue, which nobody empties."""

    def __init__(self, tracer):
        self.items = []
        tracer._append = self.items.append

    def take(self):
        """Ids of blocks that were opened, closed and recorded, and how many records there are."""
        items, self.items[:] = list(self.items), ()
        opened, closed, recorded, others = set(), set(), [], 0
        for item in items:
            kind = item[0]
            if kind in (PLACED, UNPLACED, MARKED) and item[1] in (OPEN, CLOSE):
                (opened if item[1] == OPEN else closed).add(item[2])
            elif kind == ENDED:
                closed.add(item[5])
                recorded.append(item[5])
            elif kind == CLOSED:
                recorded.append(item[2])
            elif kind == RECORD:
                others += 1
        return opened, closed, recorded, others


def _nothing(_):
    return None


@pytest.fixture(params=["unplaced", "read", "marked"])
def queue(request, tracer):
    recorder = tracer.recorder
    if request.param == "read":
        recorder.marker, recorder.newest = _nothing, lambda: 7
    elif request.param == "marked":
        recorder.marker = _nothing
    return Kept(tracer)


class Listener:
    def block_opened(self, block): ...

    def block_closed(self, block): ...


def one():
    with gpusense.trace("one", {"a": 1}):
        pass


def entered_twice():
    block = gpusense.trace("twice")
    with block, block:
        pass


@gpusense.trace("decorated")
def decorated():
    pass


def scopes():
    tracer = gpusense.get_tracer()
    tracer.close_scope(tracer.open_scope("scope", {"a": 1}))


def manual():
    with gpusense.compute_block("cpu"):
        pass
    gpusense.record_kernel("k", duration_ns=5)
    gpusense.record_transfer("t", "cpu_to_gpu", bytes=5, duration_ns=5)


@pytest.mark.parametrize("listens", [False, True])
@pytest.mark.parametrize("call", [one, entered_twice, decorated, scopes, manual])
@pytest.mark.parametrize("error", [Alarm, KeyboardInterrupt])
def test_it_reaches_the_program_and_every_block_that_began_has_ended_once(tracer, queue, call, listens, error):
    listener = Listener()
    if listens:
        tracer.add_block_listener(listener)
    number = 0
    while (reached := raised_at(call, number, error, spared=NOT_ASKED_INSIDE)) is not None:
        assert reached, number
        assert tracer.current_block() is None, number
        opened, closed, recorded, _ = queue.take()
        assert opened <= closed, number
        assert len(recorded) == len(set(recorded)), number
        assert opened <= set(recorded), number
        number += 1
    assert number > 10
    assert tracer.status()["failed_blocks"] == 0


def at_the_end():
    with gpusense.trace("one", {"a": 1}):
        -now  # noqa: B018 - it does something


def at_the_end_after_an_error():
    with gpusense.trace("one"):
        -now / 0


def at_the_end_of_one_inside():
    with gpusense.trace("outer"):
        at_the_end()


def at_the_end_of_a_stand_in():
    block = gpusense.trace("twice")
    with block, block:
        -now  # noqa: B018


def at_the_end_of_a_scope():
    tracer = gpusense.get_tracer()
    close, scope = tracer.close_scope, tracer.open_scope("scope")
    close((-now, scope)[1])


@pytest.mark.parametrize("error", [Alarm, KeyboardInterrupt])
@pytest.mark.parametrize(
    "call",
    [
        at_the_end,
        pytest.param(
            at_the_end_after_an_error,
            marks=pytest.mark.skipif(sys.version_info < (3, 11), reason="3.10 looks before it calls the end"),
        ),
        at_the_end_of_one_inside,
        at_the_end_of_a_stand_in,
        at_the_end_of_a_scope,
    ],
)
def test_a_signal_at_the_very_first_instruction_of_an_end_leaves_nothing_open(tracer, queue, raising, call, error):
    raising(error)
    with pytest.raises(error):
        call()
    assert tracer.current_block() is None
    opened, closed, recorded, _ = queue.take()
    assert opened <= closed
    assert sorted(recorded) == sorted(opened)
    with gpusense.trace("after") as after:
        assert after.parent_id is None
    assert tracer.status()["failed_blocks"] == 0


def test_an_end_that_never_began_is_made_up_for_by_the_block_around(tracer, queue):
    def nested():
        with gpusense.trace("outer"):
            one()

    number = 0
    while (reached := raised_at(nested, number)) is not None:
        assert reached
        inner = tracer.current_block()
        if inner is not None:  # the end of the outermost block itself
            assert inner.name == "outer"
            inner.__exit__(None, None, None)
        opened, closed, recorded, _ = queue.take()
        assert opened <= closed
        assert sorted(recorded) == sorted(set(recorded) | opened)
        number += 1


def test_what_a_name_or_an_attribute_raises_itself_is_not_the_programs_concern(tracer):
    class Rude:
        def __str__(self):
            raise Alarm

        def keys(self):
            raise Alarm

    with gpusense.trace(Rude(), Rude()):
        pass
    assert tracer.current_block() is None
    gpusense.record_kernel(Rude(), duration_ns=5)
    assert tracer.status()["ignored_records"] == 1


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="POSIX only")
def test_a_timeout_by_alarm_ends_a_loop_of_blocks(tracer):
    def handler(*_):
        raise Alarm

    def loop():
        signal.setitimer(signal.ITIMER_REAL, 0.0003)
        give_up = time.monotonic() + 20
        while time.monotonic() < give_up:
            with gpusense.trace("step"):
                pass

    before = signal.signal(signal.SIGALRM, handler)
    gc.disable()  # what is raised while the collector calls back is nobody's
    try:
        for _ in range(200):
            with pytest.raises(Alarm):
                contextvars.copy_context().run(loop)  # an end that never began leaves its block in there
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        gc.enable()

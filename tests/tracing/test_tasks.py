"""Following the steps of tasks: what is marked, and what is left of the host's functions afterwards."""

import asyncio
import asyncio.events
import os
import sys

import pytest

import gpusense
from gpusense._attribution.boundaries import LEAVE, SWITCH, UNPLACED
from gpusense._runtime import log
from gpusense._tracing import block as _block
from gpusense._tracing.tasks import TaskSwitches


@pytest.fixture(autouse=True)
def loop():
    """One loop; and whatever a test does, asyncio is as it was afterwards."""
    before = asyncio.events.Handle._run, asyncio.base_events.BaseEventLoop.create_task
    made = asyncio.new_event_loop()
    yield made
    made.close()
    asyncio.events.Handle._run, asyncio.base_events.BaseEventLoop.create_task = before


@pytest.fixture
def marks():
    return []


@pytest.fixture
def steps(tracer, marks):
    def mark(op, thread, inside):
        marks.append((op, inside))
        return True

    tracer._tasks = made = TaskSwitches(mark)
    made.on()
    yield made
    made.off()
    tracer._tasks = None


async def step(name):
    with gpusense.trace(name) as block:
        await asyncio.sleep(0)
    return block.block_id


async def one(name):
    return await step(name)


async def pair():
    return await asyncio.gather(one("a"), one("b"))


def test_a_switch_is_marked_where_the_block_differs_from_the_last(steps, marks, loop):
    a, b = loop.run_until_complete(pair())
    # The loop begins in no block; a opens its own, so b begins with a switch; each goes on once.
    assert marks == [(SWITCH, 0), (SWITCH, 0), (SWITCH, a), (SWITCH, b), (LEAVE, 0)]


def test_a_step_of_the_block_that_the_thread_is_in_costs_no_mark(steps, marks, loop):
    async def alone():
        with gpusense.trace("alone"):
            for _ in range(100):
                await asyncio.sleep(0)

    loop.run_until_complete(alone())
    assert marks == [(SWITCH, 0), (LEAVE, 0)]


def test_blocks_that_are_not_sampled_count_for_what_is_around_them(steps, marks, loop, tracer, monkeypatch):
    monkeypatch.setattr(tracer, "config", tracer.config._replace(sample_rate=0.0))
    loop.run_until_complete(pair())
    assert marks == [(SWITCH, 0), (LEAVE, 0)]


def test_off_puts_back_what_was_there(steps, marks, loop):
    ours = asyncio.events.Handle._run
    assert ours.__wrapped__.__qualname__ == ours.__qualname__ == "Handle._run"
    steps.off()
    assert asyncio.events.Handle._run is ours.__wrapped__
    loop.run_until_complete(pair())
    assert marks == []
    steps.on()
    loop.run_until_complete(pair())
    assert marks


def foreign(calls):
    below = asyncio.events.Handle._run

    def _run(self):
        calls.append(1)
        return below(self)

    return _run


def test_what_another_tool_put_over_it_stays(steps, marks, loop):
    calls = []
    over = asyncio.events.Handle._run = foreign(calls)
    steps.off()
    assert asyncio.events.Handle._run is over
    loop.run_until_complete(pair())
    assert calls
    assert marks == []
    steps.on()
    loop.run_until_complete(pair())
    assert marks.count((LEAVE, 0)) == 1
    steps.off()
    assert asyncio.events.Handle._run is over


def test_where_somebody_put_the_original_back_it_is_replaced_anew(steps, marks, loop):
    ours = asyncio.events.Handle._run

    async def undone():
        with gpusense.trace("undone"):
            asyncio.events.Handle._run = ours.__wrapped__
            steps.on()
            await asyncio.sleep(0)

    loop.run_until_complete(undone())
    assert asyncio.events.Handle._run is not ours.__wrapped__
    # What went on in between was not seen.
    assert (SWITCH, None) in marks
    assert marks[-1] == (LEAVE, 0)


def test_failures_of_ours_stay_out_of_the_loop(tracer, loop, monkeypatch, caplog):
    def mark(op, thread, inside):
        raise RuntimeError("no room")

    monkeypatch.setattr(log, "_said", set())
    steps = TaskSwitches(mark)
    steps.on()
    assert len(loop.run_until_complete(pair())) == 2
    steps.off()
    (said,) = caplog.records
    assert "could not be followed" in said.message


def test_without_room_for_more_order_decides(tracer, loop, monkeypatch):
    monkeypatch.setattr(tracer, "config", tracer.config._replace(attribution="exact"))
    monkeypatch.setattr(type(tracer.recorder), "tells_tasks", True)
    tracer.follow_tasks()
    got = []
    monkeypatch.setattr(tracer, "_append", got.append)
    monkeypatch.setattr(_block, "MAX_WAITING", -1)
    tracer._tasks._inside[tracer._tasks._get_ident()] = 7
    loop.run_until_complete(pair())
    switches = [item[1:4] for item in got if item[0] == UNPLACED and item[1] in (SWITCH, LEAVE)]
    assert switches == [(SWITCH, 0, None)]
    tracer._tasks.off()


def test_the_program_pays_nothing_while_it_is_off(tracer):
    assert tracer._tasks is None
    assert not hasattr(asyncio.events.Handle._run, "__wrapped__")


def test_no_capture_no_switches(tracer):
    gpusense.configure(attribution="exact")
    assert not hasattr(asyncio.events.Handle._run, "__wrapped__")
    assert tracer.status()["attribution"] == "exact"
    gpusense.configure(attribution="order")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_the_original_again(steps):
    pid = os.fork()
    if pid == 0:
        os._exit(3 if hasattr(asyncio.events.Handle._run, "__wrapped__") else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert hasattr(asyncio.events.Handle._run, "__wrapped__")


@pytest.mark.skipif(sys.version_info < (3, 12), reason="tasks that begin at once are of Python 3.12")
def test_the_call_that_makes_a_task_is_put_back_too(steps):
    ours = asyncio.base_events.BaseEventLoop.create_task
    assert ours.__wrapped__
    steps.off()
    assert asyncio.base_events.BaseEventLoop.create_task is ours.__wrapped__
    steps.on()

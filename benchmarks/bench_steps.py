"""What exact attribution adds to each step of an asyncio task: nothing to do, and a switch marked each time.

The marker is a function that does nothing: a real one takes 2 µs more.
"""

import asyncio

import pytest

import gpusense
from gpusense._tracing import select
from gpusense._tracing.tasks import TaskSwitches

STEPS = 1000


@pytest.fixture
def live():
    assert gpusense.enable()
    yield gpusense.get_tracer()
    select.control.live.close()
    select.control = select.Control()
    gpusense._activate(gpusense._Undecided())


async def steps(name):
    with gpusense.trace(name):
        for _ in range(STEPS // 2):
            await asyncio.sleep(0)


async def two():
    await asyncio.gather(steps("a"), steps("b"))


async def one():
    await steps("a")
    await steps("b")


@pytest.mark.benchmark(group="steps")
@pytest.mark.parametrize("tasks", [one, two], ids=["one task", "two that take turns"])
@pytest.mark.parametrize("exact", [False, True], ids=["order", "exact"])
def test_steps(benchmark, live, tasks, exact):
    loop = asyncio.new_event_loop()
    live.recorder.marker = lambda token: None
    live._steps = followed = TaskSwitches(live._switched) if exact else None
    if followed is not None:
        followed.on()

    def once():
        loop.run_until_complete(tasks())
        live.recorder.events.clear()

    try:
        benchmark(once)
    finally:
        if followed is not None:
            followed.off()
        live._steps = None
        loop.close()
    if benchmark.enabled:
        benchmark.extra_info["ns_a_step"] = round(benchmark.stats.stats.median / STEPS * 1e9)

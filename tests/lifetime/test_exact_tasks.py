"""Exact attribution of tasks, through the whole stack: random tasks, callbacks and loops on scripted libraries, against
the truth. Every kernel is named after the block that the launching code was in by its own context."""

import json
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fake is an ELF library")

HEAD = """
import asyncio, contextvars, ctypes, json, os, random, sys, threading, time
driver = ctypes.CDLL(os.environ["GPUSENSE_LIBCUDA"])
driver.cuInit(0)
driver.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), 0)
import gpusense
options = json.loads(sys.argv[1])
launched = {}
lock = threading.Lock()

def launch(count=1):
    block = gpusense.get_tracer().current_block()
    number = block.block_id if block is not None else 0
    for _ in range(count):
        driver.fake_cuda_launch(b"k%d" % number, 0, 7, ctypes.c_uint64(900))
    with lock:
        launched[number] = launched.get(number, 0) + count

def begin(attribution="exact"):
    gpusense.configure(trace_all=True, max_records_per_second=10**9, attribution=attribution)
    if "path" in options:
        from gpusense._tracing import select
        select.control.start_session(path=options["path"])
    gpusense.enable()
    tracer = gpusense.get_tracer()
    while tracer.recorder.marker is None or not tracer.recorder.capture._opened:
        with gpusense.trace("waiting"):
            time.sleep(0.005)
    tracer.follow_tasks()
    return tracer, ctypes.CDLL(os.environ["GPUSENSE_LIBCUPTI"])

def judge(tracer):
    assert tracer.flush(5)
    status = tracer.status()
    if "path" in options:
        tracer.close()
        session = gpusense.load(options["path"], trace_all=True)
    else:
        session = tracer.session()
    tally = dict.fromkeys(("exact", "ambiguous", "wrong"), 0)
    wrong = []
    for record in session.kernels:
        truth = int(record.name[1:])
        if record.block_id == (truth or None) and not record.ambiguous:
            tally["exact"] += 1
        elif truth in record.ambiguous:
            tally["ambiguous"] += 1
        else:
            tally["wrong"] += 1
            wrong.append([truth, record.block_id, record.path, record.ambiguous])
    tally.update(launched=sum(launched.values()), seen=len(session.kernels), lost=session.counters.lost_markers,
                 inherited=session.counters.inherited, limits=status["attribution_limits"])
    print(json.dumps([tally, wrong[:5]]))
"""

TASKS = """
async def part(chance, depth):
    for _ in range(chance.randrange(1, 4)):
        launch(chance.randrange(3))
        await asyncio.sleep(0)
        what = chance.randrange(8)
        if what == 0 and depth < 3:
            with gpusense.trace("inner"):
                await part(chance, depth + 1)
        elif what == 1 and depth < 3:
            with gpusense.trace("several"):
                await asyncio.gather(*(part(chance, depth + 1) for _ in range(2)))
        elif what == 2:
            asyncio.get_running_loop().call_soon(launch)  # in the context of now
            launch()
        elif what == 3 and depth < 3:
            left = asyncio.ensure_future(part(chance, depth + 1))  # may outlive the block
            left.add_done_callback(lambda _: launch())
            others.append(left)
        elif what == 4:
            context = contextvars.copy_context()
            asyncio.get_running_loop().call_later(0.0001, launch, context=context)
        elif what == 5:
            async with asyncio.Lock():
                with gpusense.trace("locked"):
                    launch()
                    await asyncio.sleep(0.0001)
                launch()
        elif what == 6:
            asyncio.get_running_loop().call_soon(launch, context=contextvars.Context())  # in no block
        elif options["helpers"]:
            with gpusense.trace("helped"):
                await asyncio.to_thread(with_own_block)
        launch(chance.randrange(2))

def with_own_block():
    with gpusense.trace("helper"):
        launch()

async def main(seed):
    chance = random.Random(seed)
    async def one(number):
        if number % 2:
            await part(random.Random(seed * 100 + number), 0)
        else:
            with gpusense.trace("task"):
                await part(random.Random(seed * 100 + number), 0)
    await asyncio.gather(*(one(number) for number in range(6)))
    while others:
        await others.pop()
    await asyncio.sleep(0.001)

def loop_of_its_own(seed):
    global others
    if seed % 2:
        with gpusense.trace("around the loop"):
            asyncio.run(main(seed))
            launch()
    else:
        asyncio.run(main(seed))
    launch(2)
    with gpusense.trace("after"):
        launch(2)
"""

TRUTH = (
    HEAD
    + TASKS
    + """
tracer, cupti = begin(options["attribution"])
class Others(threading.local):
    def __init__(self): self.all = []
    def append(self, item): self.all.append(item)
    def pop(self): return self.all.pop()
    def __bool__(self): return bool(self.all)
others = Others()
for seed in range(options["rounds"]):
    if options["lose"]:
        cupti.fake_cupti_swallow(2, random.Random(seed).randrange(1, 6))
    threads = [threading.Thread(target=loop_of_its_own, args=(seed * 10 + i,)) for i in range(options["threads"])]
    for thread in threads: thread.start()
    loop_of_its_own(seed * 10 + 9)
    for thread in threads: thread.join()
judge(tracer)
"""
)


@pytest.fixture
def program(run_python, build_library):
    def run(code, arguments=None, env=(), wrong_is_fine=False, **more):
        done = run_python(
            code,
            json.dumps(arguments or {}),
            **more,
            GPUSENSE="on",
            GPUSENSE_LIBCUDA=str(build_library("libcuda.c", "libcuda.so.1")),
            GPUSENSE_LIBCUPTI=str(build_library("libcupti.c", "libcupti.so.13")),
            **dict(env),
        )
        assert done.returncode == 0, done.stderr
        assert not done.stderr
        tally, wrong = json.loads(done.stdout.splitlines()[-1])
        print(tally)
        assert tally["seen"] == tally["launched"]
        assert tally["wrong"] == 0 or wrong_is_fine, wrong
        return tally

    return run


PLAIN = {"rounds": 4, "threads": 2, "lose": False, "helpers": True, "attribution": "exact"}


@pytest.fixture
def truth(program):
    return lambda env=(), wrong_is_fine=False, **options: program(TRUTH, {**PLAIN, **options}, env, wrong_is_fine)


def test_tasks_callbacks_and_loops_of_several_threads_are_exact(truth):
    tally = truth()
    assert tally["exact"] > 500
    assert tally["ambiguous"] == tally["lost"] == 0
    assert tally["limits"] == []


def test_the_same_tasks_are_not_told_apart_by_order(truth):
    tally = truth(attribution="order", wrong_is_fine=True)
    assert tally["ambiguous"] > 50


def test_switches_are_in_session_files(truth, tmp_path):
    tally = truth(path=str(tmp_path / "run.gpusense"))
    assert tally["exact"] > 500
    assert tally["ambiguous"] == tally["lost"] == 0


def test_a_lost_switch_costs_the_stretch_to_the_next_one(truth):
    tally = truth(lose=True, threads=1, env={"FAKE_CUPTI_VERSION": "24"})  # later ones need no marker to be read
    assert 0 < tally["lost"] <= 20
    assert tally["ambiguous"] < tally["exact"] / 5


def test_where_buffers_are_shared_it_is_said_and_nothing_is_replaced(program):
    env = {"FAKE_CUPTI_FLAGS": "0", "FAKE_CUPTI_FAIL": "cuptiActivitySetAttribute=1"}
    tally = program(
        HEAD
        + """
before = asyncio.events.Handle._run
tracer, _ = begin()
assert asyncio.events.Handle._run is before
with gpusense.trace("one"): launch()
judge(tracer)
""",
        env=env,
    )
    (limit,) = tally["limits"]
    assert "which thread launched" in limit


EAGER = """
tracer, _ = begin()
async def child(number):
    launch()
    with gpusense.trace("child"):
        launch()
        await asyncio.sleep(0)
        launch()
    launch()
async def main():
    asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
    with gpusense.trace("parent"):
        launch()
        tasks = [asyncio.create_task(child(i)) for i in range(3)]
        launch()
        tasks.append(asyncio.get_running_loop().create_task(child(4), context=contextvars.Context()))
        launch()
        await asyncio.gather(*tasks)
        launch()
asyncio.run(main())
launch()
judge(tracer)
"""


@pytest.mark.skipif(sys.version_info < (3, 12), reason="tasks that begin at once are of Python 3.12")
def test_a_task_that_begins_inside_the_call_that_makes_it(program):
    tally = program(HEAD + EAGER)
    assert tally["ambiguous"] == 0


SURPRISES = """
tracer, _ = begin()
def elsewhere():  # another context on the same thread, without a step
    with gpusense.trace("elsewhere"):
        launch()
async def one(empty):
    with gpusense.trace("one"):
        await asyncio.sleep(0)
        launch()
        empty.run(elsewhere)
        launch()
        await asyncio.sleep(0)
        launch()
        scope = gpusense.get_tracer().open_scope("scope", parent=outer)
        launch()
        gpusense.get_tracer().close_scope(scope)
        launch()
class Stop(BaseException): pass
def stop(): raise SystemExit
with gpusense.trace("outer") as outer:
    empty = contextvars.Context()
    loop = asyncio.new_event_loop()
    async def two(): await asyncio.gather(one(empty), one(empty))
    loop.run_until_complete(two())
    launch()
    left_open = contextvars.copy_context()
    left_open.run(gpusense.get_tracer().open_scope, "left open")
    for end in (loop.stop, stop):
        loop.call_soon(end, context=left_open)
        try: loop.run_forever()
        except SystemExit: pass
        launch()
    loop.close()
judge(tracer)
"""


def test_what_happens_without_a_step_is_ambiguous_rather_than_wrong(program):
    tally = program(HEAD + SURPRISES)
    assert tally["exact"] > tally["ambiguous"]


HELPERS = """
tracer, _ = begin()
async def one(number):
    with gpusense.trace("one"):
        for _ in range(10):
            launch()
            await asyncio.to_thread(launch)
async def main():
    await asyncio.gather(one(1), one(2))
asyncio.run(main())
judge(tracer)
"""


def test_threads_that_work_for_tasks_belong_to_any_that_is_open(program):
    tally = program(HEAD + HELPERS)
    assert tally["exact"] >= 20
    assert tally["ambiguous"] > 0


EARLY = """
async def one(ready):
    with gpusense.trace("early"):
        await ready.wait()
        launch()
        await asyncio.sleep(0)
        with gpusense.trace("inner"):
            launch()
            await asyncio.sleep(0)
        launch()
async def main():
    global tracer
    ready = asyncio.Event()
    tasks = [asyncio.create_task(one(ready)) for _ in range(3)]
    await asyncio.sleep(0.01)
    with gpusense.trace("gone before"):
        await asyncio.sleep(0)
    driver.cuInit(0)
    driver.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), 0)
    while tracer.recorder.marker is None or not tracer.recorder.capture._opened:
        await asyncio.sleep(0.005)
    ready.set()
    launch()
    await asyncio.gather(*tasks)
gpusense.configure(trace_all=True, attribution="exact")
gpusense.enable()
tracer = gpusense.get_tracer()
asyncio.run(main())
judge(tracer)
"""


def test_blocks_that_were_open_before_capture_began(program):
    head = HEAD.replace("driver.cuInit(0)\n", "", 1).replace(
        "driver.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), 0)\n", "", 1
    )
    tally = program(head + EARLY)
    assert tally["ambiguous"] == 0


ON_AND_OFF = """
tracer, _ = begin()
before = asyncio.events.Handle._run
async def one(number):
    with gpusense.trace("one"):
        for _ in range(4):
            launch()
            await asyncio.sleep(0)
async def pair():
    await asyncio.gather(one(1), one(2))
async def main():
    await pair()
    gpusense.configure(attribution="order")
    after = asyncio.events.Handle._run
    await pair()
    gpusense.configure(attribution="exact")
    await pair()
    gpusense.disable()
    off = asyncio.events.Handle._run
    gpusense.enable()
    while tracer.recorder.marker is None or not tracer.recorder.capture._opened:
        await asyncio.sleep(0.005)
    await pair()
    assert before.__wrapped__ is after is off is asyncio.events.Handle._run.__wrapped__
asyncio.run(main())
judge(tracer)
tracer.close()
"""


def test_switched_on_and_off_while_tasks_run(program):
    tally = program(HEAD + ON_AND_OFF)
    assert tally["exact"] >= 24
    assert 0 < tally["ambiguous"] <= 8


OTHER_LOOP = """
import uvloop
tracer, _ = begin()
async def one(number):
    with gpusense.trace("one"):
        for _ in range(4):
            launch()
            await asyncio.sleep(0)
async def main():
    await asyncio.gather(one(1), one(2))
asyncio.run(main())
uvloop.run(main())
with gpusense.trace("after"): launch()
judge(tracer)
"""


def test_another_loop_is_said_to_be_left_to_order(program):
    pytest.importorskip("uvloop")
    tally = program(HEAD + OTHER_LOOP)
    assert 0 < tally["ambiguous"] <= 8
    assert "uvloop" in tally["limits"][0]


TRIO = """
import trio
tracer, _ = begin()
async def part(chance, depth):
    for _ in range(chance.randrange(1, 4)):
        launch(chance.randrange(3))
        await trio.sleep(0)
        if depth < 3:
            with gpusense.trace("inner"):
                await part(chance, depth + 1)
        async with trio.open_nursery() as nursery:
            if depth < 2:
                nursery.start_soon(part, random.Random(chance.random()), depth + 1)
            with gpusense.trace("nursery"):
                launch()
                await trio.sleep(0)
        launch()
async def one(number):
    if number % 2:
        await part(random.Random(number), 0)
    else:
        with gpusense.trace("task"):
            await part(random.Random(number), 0)
async def main(first):
    with gpusense.trace("first"):
        launch()
    async with trio.open_nursery() as nursery:
        for number in range(4):
            nursery.start_soon(one, first + number)
with gpusense.trace("around"):
    trio.run(main, 1)
    launch()
trio.run(main, 5)
launch()
thread = threading.Thread(target=trio.run, args=(main, 9))
thread.start()
trio.run(main, 13)
thread.join()
async def switched_off():
    with gpusense.trace("exact"): launch()
    gpusense.configure(attribution="order")
    await trio.sleep(0)
    try: trio.lowlevel.remove_instrument(tracer._tasks._trio)
    except KeyError: return  # it took itself away
    raise AssertionError
trio.run(switched_off)
judge(tracer)
"""


def test_tasks_of_trio(program):
    pytest.importorskip("trio")
    tally = program(HEAD + TRIO)
    assert tally["exact"] > 100
    assert tally["ambiguous"] == 0

"""Pauses of an overhead budget that take CUPTI out of the process: what is recorded, and when it stays."""

import functools
import sys

import pytest
from support.programs import clean

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fakes are ELF libraries")

SETUP = """
from gpusense._capture import budget, recorder
budget.PERIOD_NS, budget.LONG_NS, budget.ON_NS, recorder.TICK_S = 100_000_000, 200_000_000, 20_000_000, 0.01
budget.SETTLED_NS, budget.WORTH_NS = 20_000_000, 50_000_000
"""
PROGRAM = (
    """
import ctypes, json, os, sys, time
driver = ctypes.CDLL(os.environ["GPUSENSE_LIBCUDA"])
driver.cuInit(0)
driver.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), 0)
import gpusense
from gpusense._tracing import select
"""
    + SETUP
    + """
mode, case = sys.argv[1:]
control, began = select.control, time.time_ns()
run = control.start_session(mode=mode, path="run.gpusense", overhead_budget=0.1, detach_in_pauses=case != "not allowed")
tracer = run.tracer
while tracer.recorder.marker is None:
    with gpusense.trace("waiting"):
        time.sleep(0.005)
tracer.recorder._patience_s = 0.0  # used up, as by many returns
cupti = ctypes.CDLL(os.environ["GPUSENSE_LIBCUPTI"])
if case == "two copies":
    from gpusense._decode import layouts
    from gpusense.backends.cupti import activity as backend
    second = backend.CuptiActivity()
    second.start(layouts.DEFAULT_KINDS, lambda buffer, thread: None, wants={})
def finalized():
    return cupti.fake_cupti_calls(b"cuptiFinalize")
def launch(name, times):
    for _ in range(times):
        driver.fake_cuda_launch(name, 0, 7, ctypes.c_uint64(500))
launched, rounds, states, end = 0, 0, set(), time.monotonic() + 2
# A busy machine has longer pauses, and so fewer.
while time.monotonic() < end or (case == "alone" and finalized() < 3 and time.monotonic() < end + 20):
    with gpusense.trace("outer"):
        with gpusense.trace("a"):
            launch(b"ka", 100)
        launch(b"k", 50)
        with gpusense.trace("b"):
            launch(b"kb", 100)
            if case in ("graphs", "not allowed"):
                identity = driver.fake_cuda_count_call()
                for node in (1, 2):
                    cupti.fake_cupti_graph_kernel(b"node", ctypes.c_uint64(node), ctypes.c_uint64(500), identity)
        time.sleep(0.002)
    launched, rounds = launched + 250, rounds + 1
    states.add(tracer.status()["state"])
overhead, asked = tracer.recorder.meta()["overhead"], time.time_ns()
gpusense.configure(overhead_budget=None)
while tracer.status()["state"] != "running" or tracer.recorder.marker is None:
    with gpusense.trace("waiting"):
        time.sleep(0.005)
with gpusense.trace("last"):
    launch(b"last", 100)
run.finish()
session = gpusense.load("run.gpusense") if mode == "file" else tracer.session()
work = [(a.path, a.name, a.count) for a in session.aggregates if a.kind == "kernel"]
work += [(k.path, k.name, 1) for k in session.kernels]
spans = sorted((s.start_ns, s.end_ns) for s in session.unseen if s.reason.startswith("overhead budget"))
print(json.dumps({
    "launched": launched, "seen": session.counters.seen, "misplaced": session.counters.ambiguous,
    "lost": session.counters.lost_markers + session.counters.dropped + session.counters.missed, "overhead": overhead,
    "work": sorted({("/".join(path), name) for path, name, _ in work}), "states": sorted(states),
    "last": sum(count for path, _, count in work if path == ("last",)), "rounds": rounds,
    "outer": sum(b.name == "outer" for b in session.blocks)
        + sum(a.count for a in session.aggregates if a.kind == "block" and a.name == "outer"),
    "finalized": finalized(), "pauses": len(spans),
    "observed": 1 - sum(max(0, min(end, asked) - start) for start, end in spans) / (asked - began),
    "apart": all(end < after for (_, end), (after, _) in zip(spans, spans[1:])),
}))
"""
)


@pytest.fixture
def program(answer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return functools.partial(answer, PROGRAM)


@pytest.mark.parametrize("mode", ["live", "file"])
def test_pauses_take_cupti_out_and_everything_is_in_its_block(program, mode):
    facts = program(mode, "alone")
    assert facts["finalized"] >= 3
    assert "detached" in facts["states"]
    assert facts["pauses"] >= 3
    assert facts["apart"]  # both parts of a pause are one interval
    assert 0 < facts["seen"] < facts["launched"]
    assert facts["lost"] == facts["misplaced"] == 0
    # Ids begin anew with each return: nothing comes to a block of another time.
    assert set(map(tuple, facts["work"])) <= {
        ("outer/a", "ka"), ("outer/b", "kb"), ("outer", "k"), ("last", "last"),
        ("", "ka"), ("", "k"), ("", "kb"),  # of blocks that were opened before there was a marker again
    }  # fmt: skip
    assert {("outer/a", "ka"), ("outer/b", "kb")} <= set(map(tuple, facts["work"]))
    assert (facts["last"], facts["outer"]) == (100, facts["rounds"])
    assert facts["overhead"]["left"] == 0
    assert "stays" not in facts["overhead"]
    assert facts["overhead"]["observed"] == pytest.approx(facts["observed"], abs=0.1)


@pytest.mark.parametrize("mode", ["live", "file"])
def test_cupti_stays_where_graphs_are_replayed_in_spite_of_the_word(program, mode):
    """They are known by launches with several records; by then CUPTI must not have been out."""
    facts = program(mode, "graphs")
    assert facts["finalized"] == 0
    assert facts["pauses"] >= 1
    assert facts["overhead"]["stays"].startswith("CUDA graphs were replayed")
    assert facts["overhead"]["left"] > 0


def test_nothing_is_told_of_what_nobody_asked_for(program):
    facts = program("live", "not allowed")
    assert facts["finalized"] == 0
    assert "stays" not in facts["overhead"]


def test_cupti_stays_where_another_copy_captures(program):
    facts = program("live", "two copies")
    assert facts["finalized"] == 0
    assert "detached" not in facts["states"]


BEGIN = (
    SETUP
    + """
gpusense.configure(overhead_budget=0.0001, detach_in_pauses=True)
tracer, fake = begin()
end = time.monotonic() + 20
while tracer.status()["state"] != "detached":
    assert time.monotonic() < end, tracer.status()
    with gpusense.trace("work"):
        for _ in range(100): driver.fake_cuda_launch(b"k", 0, 7, ctypes.c_uint64(500))
"""
)


def test_a_cupti_that_cannot_be_taken_out_is_asked_once(run):
    done = run(
        BEGIN
        + """
while tracer.recorder.meta()["overhead"]["left"] < 0.0001:  # a cycle later
    assert time.monotonic() < end + 20, tracer.recorder.meta()["overhead"]
    with gpusense.trace("work"):
        for _ in range(100): driver.fake_cuda_launch(b"k", 0, 7, ctypes.c_uint64(500))
    time.sleep(0.005)
print("12.6" in tracer.session().meta["overhead"]["stays"], fake.fake_cupti_calls(b"cuptiFinalize"))
gpusense.configure(overhead_budget=None)
running(tracer)
print(tracer.status()["state"])
""",
        FAKE_CUPTI_VERSION="23",
    )
    clean(done, "True 0\nrunning\n")


@pytest.mark.parametrize(
    ("act", "state"),
    [
        ("gpusense.disable()", "stopped"),
        ("print(gpusense.detach(), end=' ')", "stopped"),
        ("gpusense.configure(detach_in_pauses=False, overhead_budget=None)", "running"),
        ("gpusense.configure(kinds=('sync',), overhead_budget=None)", "running"),
        ("gpusense.reset()", "detached"),
    ],
)
def test_what_the_program_asks_for_in_a_rest(run, act, state):
    done = run(
        BEGIN
        + f"""
{act}
for _ in range(400):
    if tracer.status()["state"] == {state!r}: break
    time.sleep(0.005)
print(tracer.status()["state"])
gpusense.configure(overhead_budget=None)
gpusense.enable()
running(tracer)
with gpusense.trace("last") as block:
    for _ in range(100): driver.fake_cuda_launch(b"last", 0, 7, ctypes.c_uint64(500))
print(block.summary().kernel_count, all(s.end_ns is None or s.end_ns >= s.start_ns for s in tracer.session().unseen))
"""
    )
    clean(done)
    assert done.stdout.removeprefix("None ") == f"{state}\n100 True\n"


def test_a_process_ends_in_a_rest(run):
    done = run(BEGIN + "import atexit; began = time.monotonic()\nprint(tracer.session().unseen[-1].reason)")
    clean(done, "overhead budget\n")


def test_a_child_of_a_detached_process_goes_on_without_it(run):
    done = run(
        BEGIN
        + """
child = os.fork()
if not child:
    with gpusense.trace("in the child"): pass
    os._exit(0 if tracer.status()["state"] == "unavailable" else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), tracer.status()["state"] in ("detached", "armed", "running"))
"""
    )
    clean(done, "0 True\n")


def test_a_budget_that_ends_in_the_middle_of_a_round_leaves_capture_on(run):
    """The cycle had decided to pause, and did so for a tenth of a second though there was no budget any more."""
    done = run(
        """
tracer, fake = begin()
gpusense.configure(overhead_budget=0.5)
gpusense.configure(overhead_budget=None)
tracer.recorder._follow_budget(False)
print(fake.fake_cupti_enabled(10), tracer.status()["state"])
"""
    )
    clean(done, "1 running\n")


def test_whoever_switches_meanwhile_capture_is_on_in_the_end(run):
    done = run(
        BEGIN
        + """
import random
ended = []
def switch(seed):
    rng = random.Random(seed)
    while not ended:
        rng.choice((
            gpusense.disable, gpusense.enable, gpusense.enable, lambda: tracer.flush(0.1),
            lambda: gpusense.configure(overhead_budget=rng.choice((None, 0.0001, 0.1))),
            lambda: gpusense.configure(detach_in_pauses=rng.random() < 0.8),
        ))()
        time.sleep(rng.random() / 50)
threads = [threading.Thread(target=switch, args=(seed,)) for seed in range(3)]
for thread in threads: thread.start()
end = time.monotonic() + 4
while time.monotonic() < end:
    with gpusense.trace("work"):
        for _ in range(100): driver.fake_cuda_launch(b"k", 0, 7, ctypes.c_uint64(500))
    time.sleep(0.001)
ended.append(True)
for thread in threads: thread.join()
gpusense.configure(overhead_budget=None)
gpusense.disable()
gpusense.enable()
running(tracer)
with gpusense.trace("last") as block:
    for _ in range(100): driver.fake_cuda_launch(b"last", 0, 7, ctypes.c_uint64(500))
print(block.summary().kernel_count, tracer.status()["members"], fake.fake_cupti_enabled(10))
print(sum(s.end_ns is None for s in tracer.session().unseen), all(
    s.end_ns is None or s.end_ns >= s.start_ns for s in tracer.session().unseen))
""",
        timeout=100,
    )
    clean(done, "100 1 1\n0 True\n")

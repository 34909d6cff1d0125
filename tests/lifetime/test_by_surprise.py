"""Signal handlers in the middle of everything that a program calls: they raise, or they ask gpusense themselves.

Nothing hangs, nothing is swallowed, and recording goes on afterwards as before.
"""

import sys

import pytest
from support.machine import ROOT
from support.programs import clean

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fakes are ELF libraries")

_BEGIN = f"""
import faulthandler, sys
sys.path.insert(0, {str(ROOT / "tests")!r})
from support.interruptions import Alarm, interrupted, raised_at
faulthandler.dump_traceback_later(110, exit=True)
tracer, cupti = begin()
"""
_CALLS = """
def kernel(): driver.fake_cuda_launch(b"k", 0, 7, ctypes.c_uint64(900))
with gpusense.trace("earlier") as earlier: kernel()
def block():
    with gpusense.trace("block", {"a": 1}): kernel()
def sink(records): ...
def switched():
    gpusense.disable()
    gpusense.enable()
CALLS = {
    "block": block,
    "compute_block": lambda: gpusense.compute_block("c").__exit__ and manual(),
    "flush": lambda: tracer.flush(0.5),
    "session": lambda: tracer.session(),
    "summary": lambda: earlier.summary(0.5),
    "wait": lambda: earlier.wait(0.5),
    "status": lambda: tracer.status(),
    "reset": lambda: gpusense.reset(),
    "configure": lambda: gpusense.configure(threshold_us=50),
    "switched": switched,
    "sinks": lambda: (tracer.add_sink(sink), tracer.remove_sink(sink)),
    "devices": lambda: gpusense.devices(),
    "own_usage": lambda: gpusense.own_usage(),
}
def manual():
    with gpusense.compute_block("c"): pass
    gpusense.record_kernel("k", duration_ns=5)
    gpusense.record_transfer("t", "cpu_to_gpu", bytes=5, duration_ns=5)
def goes_on(what):
    current = tracer.current_block()
    while current is not None:  # its end was interrupted before it began
        current.__exit__(None, None, None)
        current = tracer.current_block()
    assert gpusense.enable()
    running(tracer)
    with gpusense.trace("after") as after:
        for _ in range(3): kernel()
    found = after.summary(20)
    assert (found.kernel_count, found.complete) == (3, True), (what, found)
for call in CALLS.values(): call()  # what is imported with the first call is there
"""


def test_what_a_handler_raises_in_any_call_reaches_the_program_and_recording_goes_on(run):
    done = run(
        _BEGIN
        + _CALLS
        + """
for name, call in CALLS.items():
    number, reached, step = 0, True, 1
    while (reached := raised_at(call, number, spared=("__exit__",))) is not None:
        assert reached, (name, number)
        if number % 8 == 0: goes_on((name, number))
        step = 1 + number // 12  # many calls have hundreds of points: closer together where they begin
        number += step
    goes_on(name)
print("all")
""",
        timeout=120,
    )
    clean(done, "all\n")


def test_a_handler_that_asks_gpusense_anything_in_any_call_is_answered_and_nothing_hangs(run):
    done = run(
        _BEGIN
        + _CALLS
        + """
import itertools, random
chance = random.Random(1)
longest = (0.0, "")
for name, call in CALLS.items():
    for asked, ask in CALLS.items():
        number = chance.randrange(0, 6)
        while True:
            began = time.monotonic()
            there = interrupted(call, number, ask)
            longest = max(longest, (time.monotonic() - began, f"{asked} in {name} at {number}"))
            if not there: break
            number += 3 + number * 3
    goes_on(name)
assert longest[0] < 8, longest
print("all")
""",
        timeout=120,
    )
    clean(done, "all\n")


def test_finalisers_that_ask_on_any_thread_keep_recording_exact(run):
    done = run(
        _BEGIN
        + """
import gc
gc.set_threshold(200, 2, 2)
count = asked = 0
class Task:
    def __init__(self):
        self.me = self
        self.block = gpusense.trace("task")
        with self.block: driver.fake_cuda_launch(b"k", 0, 7, ctypes.c_uint64(900))
    def __del__(self):
        global asked
        asked += 1
        tracer.flush(0.01)
        self.block.summary(0.01)
        if asked % 20 == 0: tracer.session()
        if asked % 50 == 0: tracer.status()
end = time.monotonic() + 3
while time.monotonic() < end:
    Task()
    count += 1
    time.sleep(0.0002)  # finalisers on other threads hold this one up no more, and CUPTI has room for so much
gc.disable()
assert tracer.flush(20)
found = tracer.session()
launched = sum(row.count for row in found.aggregates if row.kind == "kernel") + len(found.kernels)
inside = sum(row.count for row in found.aggregates if row.kind == "kernel" and row.path == ("task",))
inside += sum(kernel.path == ("task",) for kernel in found.kernels)
print(asked > 10, launched == inside == count, found.counters.ambiguous)
sys.stdout.flush()
os._exit(0)
""",
        timeout=60,
    )
    clean(done, "True True 0\n")

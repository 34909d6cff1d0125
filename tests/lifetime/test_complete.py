"""An answer is complete only where everything was read and nothing was lost; else it says why."""

import sys

import pytest
from support.programs import clean

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fakes are ELF libraries")

_BEGIN = """
tracer, cupti = begin()
tracer.flush(5)
def launch(count):
    for _ in range(count): driver.fake_cuda_launch(b"k", 0, 7, ctypes.c_uint64(900))
def said(block):
    found = block.summary(1)
    return found.kernel_count, found.complete, found.reason
"""


def test_a_flush_that_cupti_refuses_is_none(run):
    done = run(
        _BEGIN
        + """
cupti.fake_cupti_fail(b"cuptiActivityFlushAll", 999)
with gpusense.trace("step") as block: launch(10)
print(tracer.flush(0.2), block.wait(0.2), said(block)[1], "cuptiActivityFlushAll" in said(block)[2])
cupti.fake_cupti_fail(b"cuptiActivityFlushAll", 0)
print(said(block))
"""
    )
    clean(done, "False False False True\n(10, True, '')\n")


def test_a_reader_that_is_busy_holds_nobody_longer_than_said(run):
    done = run(
        _BEGIN
        + """
from gpusense.backends.cupti import broker
hub = broker.interpreter_dict()[broker.KEY]["join"].__self__
held, free = threading.Event(), threading.Event()
def hold():
    with hub._reading:
        held.set()
        free.wait(30)
thread = threading.Thread(target=hold)
thread.start()
held.wait(10)
with gpusense.trace("step") as block: launch(10)
began = time.monotonic()
print(tracer.flush(0.05), time.monotonic() - began < 20, said(block)[1])
free.set()
thread.join()
for _ in range(100):
    if block.summary(1).complete: break
print(said(block))
"""
    )
    clean(done, "False True False\n(10, True, '')\n")


def test_records_that_were_dropped_while_a_block_was_open_are_missing_there_and_nowhere_else(run):
    done = run(
        """
gpusense.configure(buffers=2, buffer_size=4096)
"""
        + _BEGIN
        + """
with gpusense.trace("before") as before: launch(2)
tracer.flush(5)
with gpusense.trace("storm") as storm: launch(5000)
tracer.flush(5)
tracer.flush(5)
with gpusense.trace("after") as after: launch(2)
count, complete, reason = said(storm)
print(said(before), complete, "dropped by the driver" in reason, said(after))
tracer.reset()
print(tracer.session().counters.dropped)
"""
    )
    clean(done, "(2, True, '') False True (2, True, '')\n0\n")


def test_a_block_beside_another_profiler_says_who_had_cupti(run):
    done = run(
        _BEGIN
        + """
import types
flags = types.SimpleNamespace(profiling_on=True)
sys.modules["triton.profiler.flags"] = types.SimpleNamespace(flags=flags)
while tracer.status()["state"] != "paused": time.sleep(0.02)
cupti.fake_cupti_set_flags(32 | 4)
with gpusense.trace("beside a profiler") as block: launch(50)
flags.profiling_on = False
cupti.fake_cupti_set_flags(4)
while tracer.status()["state"] != "running" or tracer.recorder.marker is None: time.sleep(0.02)
count, complete, reason = said(block)
print(count, complete, "Proton" in reason)
"""
    )
    clean(done, "0 False True\n")


def test_a_reset_while_recording_is_disabled_keeps_the_time_that_lasts(run):
    done = run(
        _BEGIN
        + """
gpusense.disable()
gpusense.reset()
began = time.time_ns()
launch(10)
time.sleep(0.3)
gpusense.enable()
running(tracer)
unseen, = [one for one in tracer.session().unseen if "disabled" in one.reason]
print(unseen.start_ns <= began, (unseen.end_ns - unseen.start_ns) > 250_000_000)
"""
    )
    clean(done, "True True\n")


def test_a_sink_that_does_not_return_holds_neither_recording_nor_memory(run):
    done = run(
        """
from gpusense._capture import sinks
sinks.MAX_WAITING = 500
"""
        + _BEGIN
        + """
inside, over = threading.Event(), threading.Event()
def hung(records):
    inside.set()
    over.wait(60)
tracer.add_sink(hung)
with gpusense.trace("first"): pass
assert inside.wait(20)
for _ in range(20):
    with gpusense.trace("step") as block: launch(100)
    for _ in range(50): gpusense.record_kernel("k", duration_ns=10**9)
    block.summary(1)
counters = tracer.session().counters
print(len(tracer.recorder.sinks._outbox) <= 500, counters.unsent_records > 400, len(tracer.recorder.events) < 10)
over.set()
print(tracer.flush(20))
"""
    )
    clean(done, "True True True\nTrue\n")

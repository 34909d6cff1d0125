"""Failures inside live capture, in processes of their own against scripted drivers: the program does not notice."""

import sys

import pytest
from support.programs import clean

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fakes are ELF libraries")


def test_a_block_survives_whatever_fails_inside(run):
    done = run(
        """
tracer, _ = begin()
def fail(*_): raise failure
class Name:
    def __str__(self): raise failure
class Rude:
    block_opened = block_closed = fail
entered = 0
for failure in (MemoryError(), OSError(5, "x"), RuntimeError(), RecursionError()):
    recorder = tracer.recorder
    saved = recorder.marker, tracer._append, recorder.poke, gpusense._tracing.block._get_ident
    recorder.marker = fail
    with gpusense.trace("marker"): entered += 1
    recorder.marker = saved[0]
    tracer._append = fail
    with gpusense.trace("append"): entered += 1
    tracer._append = saved[1]
    recorder.armed, recorder.poke = True, fail
    with gpusense.trace("poke"): entered += 1
    recorder.armed, recorder.poke = False, saved[2]
    gpusense._tracing.block._get_ident = fail
    with gpusense.trace("ident"): entered += 1
    gpusense._tracing.block._get_ident = saved[3]
    tracer.add_block_listener(Rude())
    with gpusense.trace(Name()): entered += 1
    assert tracer.current_block() is None
try:
    with gpusense.trace("the program's own"): raise KeyError("mine")
except KeyError as error:
    print(entered, error, tracer.status()["failed_blocks"] >= 12)
with gpusense.trace("good") as block: launched = _workload.run(gpusense.trace, 1)
print(block.summary().kernel_count == sum(launched.kernels.values()))
"""
    )
    clean(done, "20 'mine' True\nTrue\n")


def test_a_block_entered_twice_or_shared_by_threads_makes_no_circle(run):
    done = run(
        """
tracer, _ = begin()
shared = gpusense.trace("shared")
with shared:
    with shared: pass
    with gpusense.trace("inside") as inside:
        shared.__exit__(None, None, None)
        with shared: pass
def work():
    for _ in range(2000):
        with shared, gpusense.trace("child"): pass
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(tracer.current_block())
with gpusense.trace("after") as block: pass
print(block.parent_id)
""",
        timeout=30,
    )
    clean(done, "None\nNone\n")


@pytest.mark.parametrize("call", ["marker", "newest"])
def test_an_interrupt_leaves_no_block_open(run, call):
    done = run(
        f"call = {call!r}"
        """
tracer, _ = begin()
recorder = tracer.recorder
def interrupt(*token): raise KeyboardInterrupt
before, recorder.newest = (recorder.marker, recorder.newest), None
setattr(recorder, call, interrupt)
try:
    with gpusense.trace("interrupted"): print("not reached")
except KeyboardInterrupt:
    print("interrupted")
recorder.marker, recorder.newest = before
print(tracer.current_block())
"""
    )
    clean(done, "interrupted\nNone\n")


def test_blocks_in_finalisers_and_signal_handlers_do_not_deadlock(run):
    done = run(
        """
import gc, signal
count = 0
def handler(*_):
    global count
    count += 1
    with gpusense.trace("handler"): pass
class Litter:
    def __init__(self): self.me = self if sys.version_info >= (3, 12) else None
    def __del__(self):
        with gpusense.trace("finaliser"): pass
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
# Before 3.12 the collector may run inside ContextVar.set, and CPython then crashes if a finaliser sets one, with or
# without gpusense.
gc.set_threshold(20 if sys.version_info >= (3, 12) else 0)
tracer, _ = begin()
end = time.monotonic() + 0.7
while time.monotonic() < end or (count <= 10 and time.monotonic() < end + 10):
    Litter()
    with gpusense.trace("main"): pass
    tracer.flush(0.1)
signal.setitimer(signal.ITIMER_REAL, 0)
print(count > 10)
""",
        timeout=30,
    )
    clean(done, "True\n")


def test_a_producer_faster_than_us_neither_hangs_nor_fills_memory(run):
    done = run(
        """
from gpusense._tracing import block as blocks
blocks.MAX_WAITING = 500
tracer, _ = begin()
stop = False
def produce():
    while not stop:
        with gpusense.trace("fast"): pass
threads = [threading.Thread(target=produce) for _ in range(3)]
for thread in threads: thread.start()
time.sleep(0.5)
tracer.flush(0.2)
waiting = len(tracer.recorder.events)
stop = True
for thread in threads: thread.join()
print(waiting < 3000, tracer.status()["shed_blocks"] > 0)
""",
        timeout=30,
    )
    clean(done, "True True\n")


#: Every call in turn with every code; 999 is what broken drivers answer to anything.
CALLS = {
    "CUPTI": [
        "cuptiGetVersion",
        "cuptiGetTimestamp",
        "cuptiSubscribe",
        "cuptiUnsubscribe",
        "cuptiActivityRegisterCallbacks",
        "cuptiActivityEnable",
        "cuptiActivityDisable",
        "cuptiActivityFlushAll",
        "cuptiActivityGetNextRecord",
        "cuptiActivityGetAttribute",
        "cuptiActivityGetNumDroppedRecords",
        "cuptiActivityEnableDriverApi",
    ],
    "CUDA": [
        "cuDeviceGetCount",
        "cuDriverGetVersion",
        "cuDevicePrimaryCtxGetState",
        "cuDeviceGetAttribute",
        "cuDeviceGetUuid",
        "cuDeviceGetName",
        "cuDeviceTotalMem_v2",
        "cuDeviceGetPCIBusId",
        "cuCtxGetCurrent",
        "cuThreadExchangeStreamCaptureMode",
    ],
}


CODES = (15, 999, 35, 39, 18, 9, 27, 1, 7)


MATRIX = """
import ctypes, os, sys, time
kind, calls, codes = sys.argv[1], sys.argv[2].split(","), [int(code) for code in sys.argv[3].split(",")]
# Imported once, not in each child.
from gpusense._aggregation import pipeline
from gpusense._capture import attachment, recorder
from gpusense._decode import labels, layouts, names
from gpusense.backends.cupti import activity, broker, engine, mailbox, markers
children = []
for call in calls:
    for code in codes:
        child = os.fork()
        if child == 0:
            os.environ[f"FAKE_{kind}_FAIL"] = f"{call}={code}"
            os.alarm = __import__("signal").alarm(20)
            path = os.environ["GPUSENSE_LIBCUDA"]
            driver = ctypes.CDLL(path)
            driver.cuInit(0)
            try:
                import gpusense
                tracer = gpusense.get_tracer()
                for _ in range(30):
                    with gpusense.trace("block") as block: pass
                    recorder = tracer.recorder
                    if recorder.capture.state in ("running", "unavailable") or recorder.capture._refusal: break
                    time.sleep(0.01)
                with gpusense.trace("work") as block: result = sum(range(100))
                block.summary(0.2)
                session = tracer.session()
                state, reason = tracer.status()["state"], tracer.status()["reason"]
                assert result == 4950
                names = [record.name for record in session.blocks]
                assert "work" in names, names
                assert state == "running" or reason, (state, reason)
                assert "failed" not in reason or "(" in reason
                assert tracer.status()["failed_blocks"] == 0
                tracer.close()
                print(call, code, state, reason, flush=True)
            except BaseException:
                import traceback
                print("BAD", call, code, flush=True)
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
            os._exit(0)
        children.append((call, code, child))
        if len(children) >= 4:
            name, number, first = children.pop(0)
            status = os.waitpid(first, 0)[1]
            if status: print("BAD", name, number, status, flush=True)
for name, number, child in children:
    status = os.waitpid(child, 0)[1]
    if status: print("BAD", name, number, status, flush=True)
"""


@pytest.mark.parametrize("kind", list(CALLS))
def test_every_call_may_fail_with_every_code(run, kind):
    done = run("", "-c", MATRIX, kind, ",".join(CALLS[kind]), ",".join(map(str, CODES)), head="", timeout=110)
    assert "BAD" not in done.stdout, (done.stdout, done.stderr)
    lines = done.stdout.splitlines()
    assert len(lines) == len(CALLS[kind]) * len(CODES)
    if kind == "CUPTI":
        for code in CODES:
            (line,) = [line for line in lines if line.startswith(f"cuptiActivityRegisterCallbacks {code} ")]
            assert f"({code})" in line

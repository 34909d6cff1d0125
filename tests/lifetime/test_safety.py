"""The whole of live capture in processes of its own against scripted drivers: failures, forks, exits, hostile hosts.

Whatever happens inside gpusense, the program's result, output and exit code are those of a run without it.
"""

import signal
import subprocess
import sys

import pytest

import gpusense

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fakes are ELF libraries")

HEAD = """
import ctypes, os, sys, threading, time, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # os.fork in a process with threads, since Python 3.12
driver = ctypes.CDLL(os.environ["GPUSENSE_LIBCUDA"])
driver.cuInit(0)
import gpusense
from gpusense import _workload, cuda
buffer = cuda.Buffer(64, cuda.Device(0))  # blocks are marked once there is a context
def running(tracer):
    for _ in range(400):
        with gpusense.trace("waiting"): pass
        if tracer._recorder.marker: return
        time.sleep(0.005)
    raise SystemExit(f"capture did not begin: {tracer.status()}")
def begin():
    driver.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), 0)
    running(gpusense.get_tracer())
    while gpusense.get_tracer()._recorder.marker is None: time.sleep(0.002)
    return gpusense.get_tracer(), ctypes.CDLL(os.environ["GPUSENSE_LIBCUPTI"])
def kernels(session):
    return sum(row.count for row in session.aggregates if row.kind == "kernel") + len(session.kernels)
"""


@pytest.fixture
def run(environ, tmp_path):
    """Runs code after HEAD where a GPU seems to be."""

    def start(code, *flags, head=HEAD, timeout=60, **env):
        command = [sys.executable, *flags, "-c", head + code]
        return subprocess.run(command, env=environ | env, capture_output=True, text=True, timeout=timeout, cwd=tmp_path)

    return start


def clean(done, stdout=None):
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert done.stderr == ""
    if stdout is not None:
        assert done.stdout == stdout
    return done


# --- failures inside ------------------------------------------------------------------------------------------------


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
    recorder = tracer._recorder
    saved = recorder.marker, tracer._append, recorder.poke, gpusense._tracer._get_ident
    recorder.marker = fail
    with gpusense.trace("marker"): entered += 1
    recorder.marker = saved[0]
    tracer._append = fail
    with gpusense.trace("append"): entered += 1
    tracer._append = saved[1]
    recorder.armed, recorder.poke = True, fail
    with gpusense.trace("poke"): entered += 1
    recorder.armed, recorder.poke = False, saved[2]
    gpusense._block._get_ident = gpusense._tracer._get_ident = fail
    with gpusense.trace("ident"): entered += 1
    gpusense._block._get_ident = gpusense._tracer._get_ident = saved[3]
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
recorder = tracer._recorder
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
while time.monotonic() < end:
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
from gpusense import _scopes
_scopes.MAX_WAITING = 500
tracer, _ = begin()
stop = False
def produce():
    while not stop:
        with gpusense.trace("fast"): pass
threads = [threading.Thread(target=produce) for _ in range(3)]
for thread in threads: thread.start()
time.sleep(0.5)
tracer.flush(0.2)
waiting = len(tracer._recorder.events)
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
                    recorder = tracer._recorder
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


# --- life cycle -----------------------------------------------------------------------------------------------------


def test_a_device_without_free_memory_is_recorded_and_its_blocks_are_marked_later(run):
    """Frameworks take all memory at once; capture was off for good then, for want of four bytes."""
    done = run(
        """
driver.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), 0)
driver.fake_cuda_fail(b"cuMemAlloc_v2", 2)
from gpusense.backends import _cupti_markers
_cupti_markers.RETRY_S = 0.05
tracer = gpusense.get_tracer()
def wait(ready):
    for _ in range(400):
        with gpusense.trace("waiting"): pass
        if ready(): return
        time.sleep(0.005)
    raise SystemExit(str(tracer.status()))
wait(lambda: driver.fake_cuda_calls(b"cuMemAlloc_v2") >= 4)
print(tracer.status()["state"], tracer._recorder.marker, "cuMemAlloc" in tracer.status()["unmarked"])
launch = driver.fake_cuda_count_call
cupti = ctypes.CDLL(os.environ["GPUSENSE_LIBCUPTI"])
zero = ctypes.c_uint64(0)
cupti.fake_cupti_kernel(b"k", 0, 7, zero, zero, launch())
calls = driver.fake_cuda_calls
print(kernels(tracer.session()), calls(b"cuStreamCreate") - calls(b"cuStreamDestroy_v2"))
driver.fake_cuda_fail(b"cuMemAlloc_v2", 0)
wait(lambda: tracer._recorder.marker)
with gpusense.trace("marked") as block:
    cupti.fake_cupti_kernel(b"k", 0, 7, zero, zero, launch())
print(block.summary().kernel_count, "unmarked" in tracer.status())
"""
    )
    clean(done, "running None True\n1 0\n1 False\n")


def test_other_kinds_while_disabled_do_not_begin_capture(run):
    done = run(
        """
tracer, _ = begin()
gpusense.disable()
gpusense.configure(kinds=("sync",))
time.sleep(0.5)
print(tracer.status()["state"], tracer.status()["members"])
"""
    )
    clean(done, "stopped 0\n")


@pytest.mark.parametrize("off", ["gpusense.disable()", "gpusense.configure(kinds=('sync',))"])
def test_capture_begins_though_it_was_off_or_changed_before_cuda_was_live(run, off):
    done = run(
        f"""
assert gpusense.enable()
{off}
assert gpusense.enable()
driver.cuInit(0)
buffer = cuda.Buffer(64, cuda.Device(0))
begin()
print(gpusense.get_tracer().status()["state"])
""",
        head=HEAD.replace("driver.cuInit(0)\n", "").replace("buffer = ", "# "),
    )
    clean(done, "running\n")


def test_a_thousand_times_off_and_on_leaves_nothing_behind(run):
    done = run(
        """
from gpusense import _attribution
_attribution.MAX_EVENTS = _attribution.MAX_BLOCKS = 200  # blocks are remembered for a while, and that is no leak
tracer, _ = begin()
def resident():
    with open("/proc/self/statm") as file: return int(file.read().split()[1]) * 4096
def again():
    gpusense.disable()
    assert gpusense.enable()
    running(tracer)
    with gpusense.trace("round"): pass
    gpusense.reset()  # what was recorded is the program's to keep
for _ in range(100): again()
before, descriptors = resident(), len(os.listdir("/proc/self/fd"))
for _ in range(1000): again()
grown = resident() - before
assert grown < 2 << 20, grown
assert len(os.listdir("/proc/self/fd")) <= descriptors
assert threading.active_count() <= 3, threading.enumerate()
with gpusense.trace("last") as block: launched = _workload.run(gpusense.trace, 1)
print(block.summary().kernel_count == sum(launched.kernels.values()))
""",
        timeout=100,
    )
    clean(done, "True\n")


def test_detaching_removes_cupti_and_enabling_brings_it_back(run):
    done = run(
        """
tracer, fake = begin()
for _ in range(20):
    launched = _workload.run(gpusense.trace, 1)
    print(gpusense.detach(), end=" ")
    _workload.run(gpusense.trace, 1)
    gpusense.enable(); running(tracer)
expected = 20 * sum(launched.kernels.values())
print(kernels(tracer.session()) == expected, fake.fake_cupti_calls(b"cuptiFinalize"))
"""
    )
    clean(done, "None " * 20 + "True 20\n")


@pytest.mark.parametrize(
    ("why", "code", "env"),
    [
        ("another tool", "fake.fake_cupti_set_holder(1)", {}),
        ("12.6", "", {"FAKE_CUPTI_VERSION": "23"}),
        (
            "another copy",
            "from gpusense.backends import cupti\nother = cupti.CuptiActivity()\nother.start([10], lambda *_: None)",
            {},
        ),
        ("still works", "tracer._recorder.capture.synchronise = lambda *_: False", {}),
        ("NOT_SUPPORTED", "fake.fake_cupti_fail(b'cuptiFinalize', 27)", {}),
    ],
)
def test_detaching_is_refused_with_the_reason(run, why, code, env):
    done = run(f"tracer, fake = begin()\n{code}\nanswer = gpusense.detach()\nprint(bool(answer), answer.reason)", **env)
    clean(done)
    assert done.stdout.startswith("False ")
    assert why in done.stdout


FORK = """
tracer, fake = begin()
def child(expected):
    blocks = gpusense.get_tracer()
    with gpusense.trace("in the child") as block: pass
    names = [record.name for record in blocks.session().blocks]
    return (names == expected and "forked" in blocks.status()["reason"]) or not expected and "forked" in blocks.reason
"""


@pytest.mark.parametrize("mode", ["auto", "on"])
def test_a_forked_child_is_told_why_and_records_blocks_where_they_are_wanted(run, mode):
    expected = ["in the child"] if mode == "on" else []
    done = run(
        FORK
        + f"""
with gpusense.trace("open at the fork"):
    launched = _workload.run(gpusense.trace, 1)
    for how in range(6):
        pid = os.fork()
        if pid == 0:
            good = child({expected})
            if how % 2: sys.exit(0 if good else 9)
            os._exit(0 if good else 9)
        _workload.run(gpusense.trace, 1)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), end=" ", flush=True)
print(kernels(tracer.session()) == 7 * sum(launched.kernels.values()))
""",
        GPUSENSE=mode,
    )
    clean(done, "0 0 0 0 0 0 True\n")


def test_a_child_forked_before_cuda_was_used_captures_by_itself(run):
    done = run(
        """
import gpusense
with gpusense.trace("before"): pass
pid = os.fork()
ctypes.CDLL(os.environ["GPUSENSE_LIBCUDA"]).cuInit(0)
buffer = make()
tracer, _ = begin()
with gpusense.trace("work") as block: launched = _workload.run(gpusense.trace, 1)
good = block.summary().kernel_count == sum(launched.kernels.values())
if pid == 0: sys.exit(0 if good else 9)
print(good, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
""",
        head=HEAD.replace("driver.cuInit(0)", "").replace("buffer = cuda.Buffer", "make = lambda: cuda.Buffer"),
    )
    clean(done, "True 0\n")


def test_multiprocessing_of_every_method(run, tmp_path):
    (tmp_path / "work.py").write_text(
        HEAD
        + """
import multiprocessing
def worker(number):
    with gpusense.trace("worker"): return number * 2
if __name__ == "__main__":
    tracer, _ = begin()
    for method in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            print(pool.map(worker, range(3)))
    with gpusense.trace("after") as block: launched = _workload.run(gpusense.trace, 1)
    print(block.summary().kernel_count == sum(launched.kernels.values()))
"""
    )
    done = run("import runpy; runpy.run_path('work.py', run_name='__main__')", head="")
    clean(done, "[0, 2, 4]\n" * 3 + "True\n")


EXITS = {
    "return": ("", 0),
    "sys.exit": ("sys.exit(7)", 7),
    "exception": ("raise ValueError('mine')", 1),
    "sigterm": ("import signal; os.kill(os.getpid(), signal.SIGTERM); time.sleep(30)", -signal.SIGTERM),
    "os._exit": ("os._exit(3)", 3),
    "launching daemons": (
        """
def work():
    card = cuda.Device(0)
    module = cuda.Module.from_ptx(_workload.PTX, card)
    spin = module.function("spin")
    while True:
        with gpusense.trace("loop"): spin.launch((1,), (32,), (1,))
for _ in range(2): threading.Thread(target=work, daemon=True).start()
time.sleep(0.05)
""",
        0,
    ),
}


@pytest.mark.parametrize("how", EXITS)
@pytest.mark.parametrize("late", ["", "1"])
def test_every_exit_is_the_programs_own(run, how, late):
    """With ``late``, CUPTI moves buffers after the interpreter has ended."""
    code, expected = EXITS[how]
    done = run(f"begin()\n_workload.run(gpusense.trace, 1)\n{code}", **({"FAKE_CUPTI_LATE": late} if late else {}))
    assert done.returncode == expected, done.stderr
    assert "gpusense" not in done.stderr
    assert done.stderr == "" or (how == "exception" and done.stderr.endswith("ValueError: mine\n"))


@pytest.mark.parametrize("what", ["a sink", "CUPTI", "a source"])
def test_the_exit_waits_for_nobody_for_long(run, what):
    done = run(
        f"""
import atexit
tracer, fake = begin()
hang = threading.Event()
def wait(*_): hang.wait(60)
if {what!r} == "a sink": tracer.add_sink(wait)
if {what!r} == "CUPTI": tracer._recorder.capture._activity._shared["flush"] = tracer._recorder.capture.flush = wait
class Source:
    name, flush, status = "slow", wait, dict
if {what!r} == "a source": tracer.add_source(Source())
gpusense.record_kernel("slow", duration_ns=10**9)
began = time.monotonic()
atexit._run_exitfuncs()
print(time.monotonic() - began < 5)
"""
    )
    clean(done, "True\n")


# --- several copies, other profilers --------------------------------------------------------------------------------

TWO = (
    HEAD.replace("import gpusense\n", "import one.sense as gpusense, two.sense as second\n").replace(
        "from gpusense import", "from one.sense import"
    )
    + """
def both():
    first = gpusense.get_tracer(), second.get_tracer()
    for tracer, package in zip(first, (gpusense, second)):
        for _ in range(400):
            with package.trace("waiting"): pass
            if tracer._recorder.marker: break
            time.sleep(0.005)
        else: raise SystemExit(str(tracer.status()))
    return first
fake = ctypes.CDLL(os.environ["GPUSENSE_LIBCUPTI"])
"""
)


@pytest.fixture
def copies(tmp_path, run):
    """Two copies, as ``gpusense vendor`` makes them, the second calling itself another version."""
    from gpusense import _vendor

    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
        _vendor.copy(str(tmp_path / name / "sense"))
    init = tmp_path / "two" / "sense" / "__init__.py"
    init.write_text(init.read_text("utf-8").replace(f'"{gpusense.__version__}"', '"9.9.9"'), "utf-8")

    def start(code, **env):
        return run(code, head=TWO, PYTHONPATH=str(tmp_path), **env)

    return start


def test_two_copies_see_every_record_once_through_one_subscription(copies):
    done = copies(
        """
assert second.__version__ == "9.9.9" != gpusense.__version__
a, b = both()
with gpusense.trace("one") as mine, second.trace("two") as theirs:
    launched = _workload.run(gpusense.trace, 2)
count = sum(launched.kernels.values())
print(mine.summary().kernel_count == theirs.summary().kernel_count == count)
print(kernels(a.session()) == kernels(b.session()) == count, fake.fake_cupti_calls(b"cuptiActivityRegisterCallbacks"))
"""
    )
    clean(done, "True\nTrue 1\n")


def test_the_marks_of_one_copys_blocks_are_no_memsets_of_the_other(copies):
    done = copies(
        """
a, b = both()
for _ in range(20):
    with second.trace("theirs"): pass
driver.cuCtxSynchronize()
a.flush(5)
print(sum(row.count for row in a.session().aggregates if row.kind == "memset"))
"""
    )
    clean(done, "0\n")


@pytest.mark.parametrize("leaver", ["gpusense", "second"])
def test_either_copy_may_leave_first(copies, leaver):
    done = copies(
        f"""
a, b = both()
count = sum(_workload.run(gpusense.trace, 1).kernels.values())
{leaver}.disable()
_workload.run(gpusense.trace, 1)
stays, left = (a, b) if {leaver!r} == "second" else (b, a)
print(kernels(stays.session()) == 2 * count, kernels(left.session()) == count)
{leaver}.enable()
both()
_workload.run(gpusense.trace, 1)
print(kernels(stays.session()) == 3 * count, kernels(left.session()) == 2 * count)
"""
    )
    clean(done, "True True\nTrue True\n")


def test_no_copy_sees_what_another_asked_for_nor_its_markers(copies):
    """One wants waits, too; both mark their blocks with memsets."""
    done = copies(
        """
gpusense.configure(kinds=("sync",), trace_all=True)
second.configure(trace_all=True)
a, b = both()
launched = _workload.run(gpusense.trace, 2)
for _ in range(20):
    with gpusense.trace("one"), second.trace("two"): fake.fake_cupti_sync(3, 1, 7, driver.fake_cuda_count_call())
a, b = a.session(), b.session()
print(len(a.syncs), launched.memsets > 0, len(b.syncs), sum(row.count for row in b.aggregates if row.kind == "sync"))
print(len(a.memsets) == len(b.memsets) == launched.memsets, len(a.kernels) == len(b.kernels))
for session in (a, b):
    seen = session.counters
    print(seen.seen == seen.kept + seen.aggregated + seen.invalid + seen.pre_session)
"""
    )
    clean(done, "20 True 0 0\nTrue True\nTrue\nTrue\n")


def test_a_file_of_one_copy_leaves_out_the_other_too(copies, tmp_path):
    done = copies(
        f"""
from one.sense import _select
path = {str(tmp_path / "run.gpusense")!r}
_select.start_session(path=path, trace_all=True)
running(gpusense.get_tracer())
second.configure(kinds=("sync",), trace_all=True)
a, b = both()
launched = _workload.run(gpusense.trace, 2)
for _ in range(20):
    with gpusense.trace("one"), second.trace("two"): fake.fake_cupti_sync(3, 1, 7, driver.fake_cuda_count_call())
waits = len(b.session().syncs)
a.close()
session = gpusense.load(path)
print(waits, len(session.syncs), len(session.memsets) == launched.memsets > 0)
seen = session.counters
print(seen.seen == seen.kept + seen.aggregated + seen.invalid + seen.pre_session)
"""
    )
    clean(done, "20 0 True\nTrue\n")


def test_the_smallest_overhead_budget_holds_for_all_and_the_other_copy_says_so(copies):
    done = copies(
        """
from one.sense import _budget, _capturing, _layouts
import two.sense._budget as others_budget, two.sense._capturing as others_capturing
for module in (_budget, others_budget): module.PERIOD_NS, module.ON_NS = 100_000_000, 20_000_000
for module in (_capturing, others_capturing): module.TICK_S = 0.01
second.configure(overhead_budget=0.5)
a, b = both()
gpusense.configure(overhead_budget=0.0001)
launched, off, end = 0, set(), time.monotonic() + 20
while time.monotonic() < end and not any("another copy" in s.reason and s.end_ns for s in b.session().unseen):
    with gpusense.trace("one"), second.trace("two"):
        launched += sum(_workload.run(gpusense.trace, 1).kernels.values())
    off.add(fake.fake_cupti_enabled(10))
print(sorted(off))
print([package.get_tracer()._recorder.meta()["overhead"]["budget"] for package in (gpusense, second)])
gpusense.disable()
print(fake.fake_cupti_enabled(10), second.get_tracer()._recorder.meta()["overhead"]["observed"] < 1)
before = kernels(b.session())
more = sum(_workload.run(second.trace, 1).kernels.values())
b.flush()
print(kernels(b.session()) == before + more)
for tracer in (a, b): print({s.reason for s in tracer.session().unseen if "budget" in s.reason})
print(b.session().counters.lost_markers)
"""
    )
    clean(
        done,
        "[0, 1]\n[0.0001, 0.0001]\n1 True\nTrue\n"
        "{'overhead budget'}\n{'overhead budget of another copy of gpusense in this process'}\n0\n",
    )


def test_the_smallest_memory_for_buffers_holds_for_all(copies):
    done = copies(
        """
gpusense.configure(buffers=16, buffer_size=4096)
a, b = both()
print(a.status()["buffer_count"], a.status()["buffers_held_back"])
second.configure(buffers=4, buffer_size=4096)
both()
for _ in range(40):
    launched = _workload.run(gpusense.trace, 1)
    a.flush()
print(a.status()["buffer_count"], b.status()["buffers_held_back"])
second.disable()
for _ in range(20):
    _workload.run(gpusense.trace, 1)
    a.flush()
print(a.status()["buffers_held_back"])
"""
    )
    clean(done, "16 0\n16 12\n0\n")


def test_off_in_the_environment_holds_for_every_copy(copies):
    done = copies(
        """
for package in (gpusense, second):
    package.configure(mode="on")
    print(package.enable(), type(package.get_tracer()).__name__)
""",
        GPUSENSE="off",
    )
    clean(done, "False NoopTracer\nFalse NoopTracer\n")


def test_a_copy_that_raises_is_dropped_alone(copies):
    done = copies(
        """
from two.sense._recorder import Recorder
def fail(*_): raise RuntimeError("broken copy")
Recorder._on_buffer = fail
a, b = both()
count = sum(_workload.run(gpusense.trace, 1).kernels.values())
_workload.run(gpusense.trace, 1)
print(kernels(a.session()) == 2 * count, a.status()["dropped_members"], a.status()["members"])
"""
    )
    clean(done, "True 1 1\n")


def test_a_buffer_that_cannot_be_read_is_told(run):
    done = run(
        """
tracer, _ = begin()
feed = tracer._recorder.pipeline.feed
def fail(*_, **__): raise MemoryError("none left")
tracer._recorder.pipeline.feed = fail
for _ in range(3):
    _workload.run(gpusense.trace, 1)
    tracer.flush()
tracer._recorder.pipeline.feed = feed
with gpusense.trace("good") as block: launched = _workload.run(gpusense.trace, 1)
print(block.summary().kernel_count == sum(launched.kernels.values()))
stretch = tracer.session().unseen[-1]
print(stretch.reason, stretch.end_ns > stretch.start_ns)
"""
    )
    clean(done, "True\nrecords could not be read: MemoryError: none left True\n")


def test_a_copy_of_a_foreign_abi_is_told_why(copies):
    done = copies(
        """
from one.sense import _broker
from two.sense import _broker as other
other.ABI = 2
a = gpusense.get_tracer()
for _ in range(400):
    with gpusense.trace("waiting"): pass
    if a._recorder.marker: break
    time.sleep(0.005)
b = second.get_tracer()
for _ in range(400):
    with second.trace("waiting"): pass
    if b._recorder.capture.state == "unavailable": break
    time.sleep(0.005)
print(b.status()["reason"])
"""
    )
    assert "shares CUPTI in a way this copy does not know" in clean(done).stdout
    assert gpusense.__version__ in done.stdout


#: As torch.profiler looks from outside.
TORCH = """
import types
class Profiler(types.ModuleType): _is_profiler_enabled = property(lambda self: torch.on)
torch = types.ModuleType("torch"); torch.on = False
sys.modules["torch"], sys.modules["torch.autograd.profiler"] = torch, Profiler("torch.autograd.profiler")
def until(condition, seconds=3):
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > seconds: raise SystemExit(f"not in time: {gpusense.get_tracer().status()}")
        time.sleep(0.01)
    return time.monotonic() - began
"""
SILENT, PER_THREAD = 32, 4


def test_a_profiler_that_was_first_keeps_cupti_and_we_follow_when_it_ends(run):
    done = run(
        TORCH
        + """
torch.on = True
tracer = gpusense.get_tracer()
for _ in range(5):
    with gpusense.trace("unseen"): time.sleep(0.02)
fake = ctypes.CDLL(os.environ["GPUSENSE_LIBCUPTI"])
status = tracer.status()
print(status["state"], "torch.profiler" in status["reason"], fake.fake_cupti_calls(b"cuptiActivityRegisterCallbacks"))
(stretch,) = tracer.session().unseen
print(stretch.end_ns, "torch.profiler" in stretch.reason)
torch.on = False  # it keeps its subscription, as the real one does
until(lambda: tracer._recorder.marker)
with gpusense.trace("seen") as block: launched = _workload.run(gpusense.trace, 1)
print(block.summary().kernel_count == sum(launched.kernels.values()))
(stretch,) = tracer.session().unseen
print(stretch.end_ns > stretch.start_ns, "torch.profiler" in stretch.reason)
""",
        FAKE_CUPTI_HOLDER="1",
    )
    clean(done, "paused True 0\nNone True\nTrue\nTrue True\n")


@pytest.mark.parametrize("known", [True, False])
def test_a_profiler_that_comes_later_gets_cupti_and_gives_it_back(run, known):
    """It takes the callbacks silently; where nothing names it, our own calls stop showing up."""
    begins, ends = ("torch.on = True", "torch.on = False") if known else ("", "fake.fake_cupti_set_holder(0)")
    done = run(
        TORCH
        + f"""
tracer, fake = begin()
launched = _workload.run(gpusense.trace, 1)
count = sum(launched.kernels.values())
{"" if known else "del sys.modules['torch']"}
fake.fake_cupti_set_holder(1); fake.fake_cupti_set_flags({SILENT | PER_THREAD}); {begins}
taken = time.time_ns()  # by now: before it, a call of ours may still have shown up
print(until(lambda: tracer.status()["state"] == "paused") < 1.3)
before = fake.fake_cupti_calls(b"cuptiActivityFlushAll"), fake.fake_cupti_calls(b"cuptiActivityRegisterCallbacks")
with gpusense.trace("unseen"): _workload.run(gpusense.trace, 1)
print(tracer._recorder.marker, before == (
    fake.fake_cupti_calls(b"cuptiActivityFlushAll"), fake.fake_cupti_calls(b"cuptiActivityRegisterCallbacks")))
fake.fake_cupti_set_flags({PER_THREAD}); {ends}
until(lambda: tracer._recorder.marker)
with gpusense.trace("seen") as block: _workload.run(gpusense.trace, 1)
print(block.summary().kernel_count == count)
session = tracer.session()
stretch = session.unseen[-1]
print(stretch.start_ns <= taken < stretch.end_ns, "profiler" in stretch.reason, kernels(session) == 2 * count)
"""
    )
    clean(done, "True\nNone True\nTrue\nTrue True True\n")


# --- hangs ----------------------------------------------------------------------------------------------------------

HUNG = """
tracer, fake = begin()
_workload.run(gpusense.trace, 1)
card = cuda.Device(0)
spin = cuda.Module.from_ptx(_workload.PTX, card).function("spin")
tracer.flush()
driver.fake_cuda_set_stuck(1)
saxpy = cuda.Module.from_ptx(_workload.PTX, card).function("saxpy")
with gpusense.trace("stuck"):
    spin.launch((1,), (32,), (1,))
    saxpy.launch((1,), (32,), (buffer, buffer, 0.5, 1))
def waits_for_the_device():
    for _ in range(400):
        gpusense.trace("goes on").__enter__().__exit__(None, None, None)
        time.sleep(0.01)
        with tracer._recorder._lock:  # not in the middle of a buffer
            if tracer._recorder._hang.found and tracer._recorder._hang.found[0]["streams"][0]["running"]: break
waits_for_the_device()
"""


@pytest.mark.parametrize("file", [False, True])
def test_a_hang_leaves_evidence(run, tmp_path, file):
    begin = "from gpusense import _select; _select.start_session('file', 's.gpusense')\n" if file else ""
    ending = """
found, = tracer._recorder._hang.found
(row,) = [row for row in found["streams"] if row["running"]]
assert row["last_launched"]["name"] == "saxpy", row
print(row["running"]["name"], row["last_completed"]["kind"], found["last_completed_ns"] < found["noticed_ns"])
frames = [stack["frames"] for stack in found["stacks"] if stack["name"] == "MainThread"][0]
print(frames[0].endswith("waits_for_the_device"), found["ended_ns"])
sys.stdout.flush()
"""
    if file:  # as a watchdog would
        ending += """
def written():
    return any(row["running"] for hang in gpusense.load("s.gpusense").meta.get("hang", ()) for row in hang["streams"])
while not written(): time.sleep(0.01)  # it is written right after it is known; the time limit ends this
os._exit(9)
"""
    else:
        ending += """
from gpusense.report import text
lines = list(text.full(tracer.session()))
print(any("The GPU hung" in line for line in lines), any("waits_for_the_device" in line for line in lines))
driver.fake_cuda_set_stuck(0)
time.sleep(0.2)
with gpusense.trace("goes on") as block: _workload.run(gpusense.trace, 1)
block.wait()
print(found["ended_ns"] > found["noticed_ns"])
"""
    done = run(begin + HUNG + ending, GPUSENSE_HANG_AFTER="0.4", timeout=30)
    assert done.stdout.startswith("spin transfer True\nTrue None\n"), (done.stdout, done.stderr)
    if file:
        assert done.returncode == 9
        (found,) = gpusense.load(tmp_path / "s.gpusense").meta["hang"]
        assert [row["running"]["name"] for row in found["streams"] if row["running"]] == ["spin"]
        assert found["stacks"]
    else:
        clean(done, "spin transfer True\nTrue None\nTrue True\nTrue\n")


def test_an_idle_device_is_no_hang(run):
    done = run(
        """
tracer, fake = begin()
_workload.run(gpusense.trace, 1)
for _ in range(50):
    with gpusense.trace("marks"): time.sleep(0.02)
print(tracer._recorder._hang.found, "hang" in tracer.session().meta)
""",
        GPUSENSE_HANG_AFTER="0.2",
    )
    clean(done, "[] False\n")

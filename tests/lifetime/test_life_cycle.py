"""Live capture off and on again, forks and exits, in processes of their own against scripted drivers."""

import signal
import sys

import pytest
from support.programs import HEAD, clean

import gpusense

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fakes are ELF libraries")


def test_a_device_without_free_memory_is_recorded_and_its_blocks_are_marked_later(run):
    """Frameworks take all memory at once; capture was off for good then, for want of four bytes."""
    done = run(
        """
driver.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), 0)
driver.fake_cuda_fail(b"cuMemAlloc_v2", 2)
from gpusense.backends.cupti import markers
markers.RETRY_S = 0.05
tracer = gpusense.get_tracer()
def wait(ready):
    for _ in range(400):
        with gpusense.trace("waiting"): pass
        if ready(): return
        time.sleep(0.005)
    raise SystemExit(str(tracer.status()))
wait(lambda: driver.fake_cuda_calls(b"cuMemAlloc_v2") >= 4)
print(tracer.status()["state"], tracer.recorder.marker, "cuMemAlloc" in tracer.status()["unmarked"])
launch = driver.fake_cuda_count_call
cupti = ctypes.CDLL(os.environ["GPUSENSE_LIBCUPTI"])
zero = ctypes.c_uint64(0)
cupti.fake_cupti_kernel(b"k", 0, 7, zero, zero, launch())
calls = driver.fake_cuda_calls
print(kernels(tracer.session()), calls(b"cuStreamCreate") - calls(b"cuStreamDestroy_v2"))
driver.fake_cuda_fail(b"cuMemAlloc_v2", 0)
wait(lambda: tracer.recorder.marker)
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
from gpusense._attribution import attributor
attributor.MAX_EVENTS = attributor.MAX_BLOCKS = 200  # blocks are remembered for a while, and that is no leak
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


@pytest.mark.parametrize(
    "again", ["gpusense.disable(); time.sleep(0.2); gpusense.enable()", "gpusense.configure(kinds=('sync',))"]
)
def test_what_was_recorded_before_capture_began_anew_is_not_told_as_unseen(run, again):
    """From CUDA's first use to the new beginning nothing had been seen, reports said."""
    done = run(
        f"""
tracer, fake = begin()
seen_from = time.time_ns()
time.sleep(0.3)
seen_to = time.time_ns()
{again}
running(tracer)
told = [interval for interval in tracer.session().unseen if interval.end_ns > seen_from and interval.start_ns < seen_to]
print(told, tracer.session().unseen[-1].end_ns > seen_to)
"""
    )
    clean(done, "[] True\n")


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
            "from gpusense.backends.cupti.activity import CuptiActivity; CuptiActivity().start([10], lambda *_: None)",
            {},
        ),
        ("still works", "tracer.recorder.capture.synchronise = lambda *_: False", {}),
        ("NOT_SUPPORTED", "fake.fake_cupti_fail(b'cuptiFinalize', 27)", {}),
        ("went unrecorded", "gpusense.disable()", {}),
        ("went unrecorded", "gpusense.disable(); gpusense.enable(); running(tracer)", {}),
        (
            "went unrecorded",
            "pause = tracer.recorder.capture._activity.shared; pause['pause']('test'); pause['resume']()",
            {},
        ),
        ("went unrecorded", "pause = tracer.recorder.capture.sharing.pause_kinds; pause(True); pause(False)", {}),
    ],
)
def test_detaching_is_refused_with_the_reason(run, why, code, env):
    done = run(f"tracer, fake = begin()\n{code}\nanswer = gpusense.detach()\nprint(bool(answer), answer.reason)", **env)
    clean(done)
    assert done.stdout.startswith("False ")
    assert why in done.stdout


def test_detaching_after_work_that_went_unrecorded_takes_a_word_that_there_are_no_graphs(run):
    done = run(
        """
tracer, fake = begin()
gpusense.disable()
print(gpusense.detach().reason[:25], fake.fake_cupti_calls(b"cuptiFinalize"))
print(gpusense.get_tracer().detach(without_graphs=True), tracer.detach(without_graphs=True))
gpusense.enable(); running(tracer)
print(gpusense.detach(), fake.fake_cupti_calls(b"cuptiFinalize"))  # it began anew
"""
    )
    clean(done, "work went unrecorded sinc 0\nNone None\nNone 3\n")


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


def test_a_killed_program_leaves_what_was_read_a_second_before(run, tmp_path):
    """Buffers that wait in order to be written together are written though nothing follows them."""
    done = run(
        """
from gpusense._capture import file_store
from gpusense._tracing import select
tracer = select.control.start_session(mode="file", path="killed.gpusense").tracer
running(tracer)
recorder = tracer.recorder
file_store.WRITE_S, recorder.store._samples_at = 60, time.monotonic() + 60
time.sleep(1)
with gpusense.trace("step"):
    for _ in range(30): driver.fake_cuda_launch(b"k", 0, 7, ctypes.c_uint64(900))
recorder.capture.flush()
recorder.store.add = lambda *_: None  # nor does another buffer write them
time.sleep(1)
os.kill(os.getpid(), 9)
"""
    )
    assert done.returncode == -9, done.stderr
    session = gpusense.load(tmp_path / "killed.gpusense")
    assert {row.path: row.count for row in session.aggregates if row.kind == "kernel"} == {("step",): 30}


@pytest.mark.parametrize("what", ["a sink", "CUPTI", "a source"])
def test_the_exit_waits_for_nobody_for_long(run, what):
    done = run(
        f"""
import atexit
tracer, fake = begin()
hang = threading.Event()
def wait(*_): hang.wait(60)
if {what!r} == "a sink": tracer.add_sink(wait)
if {what!r} == "CUPTI": tracer.recorder.capture._activity._shared["flush"] = tracer.recorder.capture.flush = wait
class Source:
    name, flush, status = "slow", wait, dict
if {what!r} == "a source": tracer.add_source(Source())
gpusense.record_kernel("slow", duration_ns=10**9)
began = time.monotonic()
atexit._run_exitfuncs()
print(time.monotonic() - began < 30)
"""
    )
    clean(done, "True\n")

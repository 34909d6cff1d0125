"""Capture against the scripted libcupti in processes of its own: hangs, exits, forks, copies, memory."""

import shutil
import sys

import pytest

from gpusense._capi.machine import mailbox_code

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fake is an ELF library")

HEAD = """
import ctypes, gc, os, sys, threading, time, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # os.fork in a process with threads, since Python 3.12
from gpusense.backends.cupti import broker
from gpusense._decode import layouts
from gpusense.backends import cuda
from gpusense.backends.cupti import activity as cupti
path = os.environ["GPUSENSE_LIBCUPTI"]
fake = ctypes.CDLL(path)
def kernel(library=fake):
    return library.fake_cupti_kernel(b"k", 0, 7, ctypes.c_uint64(0), ctypes.c_uint64(0), 0)
sizes = []
def begin(receiver=lambda buffer, thread: sizes.append(len(buffer)), buffers=16):
    activity = cupti.CuptiActivity()
    activity.start(layouts.DEFAULT_KINDS, receiver, buffer_size=4096, buffers=buffers)
    return activity
driver = ctypes.CDLL(os.environ["GPUSENSE_LIBCUDA"])
driver.cuInit(0)
"""


@pytest.fixture
def run(run_python, build_library):
    """Runs code after HEAD with both fakes in place."""
    libraries = {
        "GPUSENSE_LIBCUDA": str(build_library("libcuda.c", "libcuda.so.1")),
        "GPUSENSE_LIBCUPTI": str(build_library("libcupti.c", "libcupti.so.13")),
    }

    def start(code, *arguments, **env):
        return run_python(HEAD + code, *arguments, **{"timeout": 60, **libraries, **env})

    return start


def clean(done, stdout=None):
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    if stdout is not None:
        assert done.stdout == stdout
    return done


native = pytest.mark.skipif(
    __import__("platform").machine() not in mailbox_code.CODES, reason="machine code is for x86-64 and aarch64"
)


@native
def test_a_library_that_locks_around_its_callbacks_cannot_hang_us(run):
    """One thread launches with the GIL held, others without, while the library calls back under its lock."""
    done = run(
        """
fake.fake_cupti_set_flags(1)
held = ctypes.PyDLL(path)
activity = begin(buffers=64)
together = threading.Barrier(4)
def work(library):
    together.wait()
    for _ in range(20000):
        kernel(library)
threads = [threading.Thread(target=work, args=(library,)) for library in (held, held, fake, fake)]
for thread in threads: thread.start()
for thread in threads: thread.join()
activity.stop()
status = activity.status()
print(sum(sizes) // 216 + status["dropped"], status["callbacks"] != "ctypes")
""",
        timeout=30,
    )
    clean(done, "80000 True\n")


@native
@pytest.mark.parametrize(
    "end",
    [
        "pass",
        "sys.exit(0)",
        "raise SystemExit",
        "os._exit(0)",
        "threading.Thread(target=lambda: time.sleep(60), daemon=True).start()",
    ],
)
def test_the_interpreter_may_end_with_buffers_in_flight(run, end):
    done = run(f"activity = begin()\nfor _ in range(50): kernel()\n{end}", FAKE_CUPTI_LATE="1")
    clean(done, "" if "_exit" in end else "late\n")


@native
def test_the_interpreter_may_end_while_threads_launch(run):
    for _ in range(5):
        clean(run("activity = begin()\nfake.fake_cupti_storm(2)\ntime.sleep(0.02)"))


def test_exit_codes_and_tracebacks_stay_the_programs_own(run):
    done = run("activity = begin()\nkernel()\nsys.exit(7)")
    assert (done.returncode, done.stderr) == (7, "")
    done = run("activity = begin()\nkernel()\nraise ValueError('mine')")
    assert done.returncode == 1
    assert done.stderr.endswith("ValueError: mine\n")
    assert "gpusense" not in done.stderr
    done = run("import signal\nactivity = begin()\nkernel()\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(30)")
    assert done.returncode == -15


def test_starting_while_the_interpreter_ends_is_quiet(run):
    done = run("""
import atexit
@atexit.register
def late():
    activity = begin()
    kernel()
    activity.stop()
    print(len(sizes))
""")
    clean(done, "1\n")


def test_a_forked_child_sees_nothing_and_spoils_nothing(run):
    """The child launches, flushes, stops and exits; the parent's records are all there, and only those."""
    done = run(
        """
activity = begin()
for _ in range(5): kernel()
children = []
for number in range(10):
    child = os.fork()
    if child == 0:
        sizes.clear()
        for _ in range(100): kernel()
        activity.flush(); activity.flush(True); activity.status()
        try:
            begin()
        except Exception as error:
            good = "forked" in str(error)
        else:
            good = False
        activity.stop()
        os._exit(0 if good and not sizes else 3)
    children.append(child)
    kernel()
codes = [os.waitpid(child, 0)[1] for child in children]
activity.stop()
print(set(codes), sum(sizes) // 216)
"""
    )
    clean(done, "{0} 15\n")


def test_a_fork_in_the_middle_of_a_drain_leaves_no_lock_behind(run):
    done = run(
        """
activity = begin(lambda buffer, thread: time.sleep(0.001))
fake.fake_cupti_storm(1)
drain = threading.Thread(target=lambda: [activity.flush() for _ in range(10**6)], daemon=True)
drain.start()
for _ in range(30):
    child = os.fork()
    if child == 0:
        activity.flush(); activity.stop()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
os._exit(0)
""",
        timeout=40,
    )
    clean(done)


def test_a_child_that_exits_normally_does_not_hang_because_of_us(run):
    done = run(
        """
activity = begin()
kernel()
child = os.fork()
if child == 0:
    sys.exit(5)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    )
    clean(done, "5\n")


def test_multiprocessing_fork_and_spawn(run):
    done = run(
        """
import multiprocessing
activity = begin()
for method in ("fork", "spawn"):
    process = multiprocessing.get_context(method).Process(target=os.getpid)
    process.start()
    process.join(30)
    print(process.exitcode)
kernel()
activity.stop()
print(len(sizes))
"""
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "0\n0\n1\n"


def test_a_thousand_starts_and_ten_thousand_buffers_need_no_more_memory(run):
    done = run(
        """
def resident():
    with open("/proc/self/statm") as file: return int(file.read().split()[1])
def round():
    activity = begin()
    for _ in range(190): kernel()
    activity.flush()
    activity.stop()
for _ in range(200): round()
gc.collect()
before, threads = resident(), len(os.listdir("/proc/self/fd"))
for _ in range(1000): round()
gc.collect()
grown = resident() - before
# The fake keeps each kernel name: 190,000 strings of 32 bytes.
assert grown * 4096 < 190_000 * 32 + (2 << 20), grown
assert len(os.listdir("/proc/self/fd")) <= threads
assert threading.active_count() <= 2
print(sum(sizes) // 216)
"""
    )
    clean(done, f"{1200 * 190}\n")


def test_two_vendored_copies_share_one_subscription(run, tmp_path):
    package = shutil.copytree(
        sys.modules["gpusense"].__path__[0],
        tmp_path / "host" / "_vendor" / "gpusense",
        ignore=shutil.ignore_patterns("*.pyc"),
    )
    (tmp_path / "host" / "__init__.py").touch()
    (tmp_path / "host" / "_vendor" / "__init__.py").touch()
    assert (package / "backends" / "cupti" / "broker.py").exists()
    done = run(
        """
sys.path.insert(0, sys.argv[1])
from host._vendor.gpusense.backends.cupti import activity as other
mine, theirs = [], []
first = begin(lambda buffer, thread: mine.append(len(buffer) // 216))
second = other.CuptiActivity()
assert other.cuda.SOURCE is not cuda.SOURCE
second.start(layouts.DEFAULT_KINDS, lambda buffer, thread: theirs.append(len(buffer) // 216))
kernel()
second.flush()
assert first.status()["members"] == second.status()["members"] == 2
first.stop()
for _ in range(3): kernel()
second.stop()
print(sum(mine), sum(theirs), first.status()["registrations"])
""",
        str(tmp_path),
    )
    clean(done, "1 4 1\n")


def test_the_interpreter_dict_is_only_borrowed(run):
    clean(run("for _ in range(20000): broker.interpreter_dict()\nprint('fine')"), "fine\n")


def test_a_subinterpreter_is_told_why_it_cannot(run):
    done = run(
        """
try:
    import _xxsubinterpreters as sub
except ImportError:
    import _interpreters as sub
code = '''
import sys; sys.path[:0] = {!r}
from gpusense.backends.cupti import broker
print(broker.interpreter_dict().reason, flush=True)
'''.format(sys.path)
try:
    one = sub.create()
    sub.run_string(one, code)
finally:
    os._exit(0)
"""
    )
    assert done.returncode == 0, done.stderr
    # In Python 3.12 an isolated interpreter has no ctypes at all; then the reason says that.
    assert "subinterpreters" in done.stdout


@native
def test_memory_that_must_not_gain_execution_still_gets_machine_code(run):
    done = run(
        """
libc = ctypes.CDLL(None)
if libc.prctl(65, 1, 0, 0, 0) != 0:  # PR_SET_MDWE, Linux 6.3
    print("memfd")
else:
    activity = begin()
    kernel()
    activity.stop()
    assert sizes
    print(activity.status()["callbacks"])
"""
    )
    clean(done, "memfd\n")

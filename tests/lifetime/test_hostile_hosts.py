"""Capture in hosts that are unusual: patched threads, tracers, low limits, no executable memory, no /proc, archives."""

import pathlib
import subprocess
import sys
import zipfile

import pytest

import gpusense

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fakes are ELF libraries")
ROOT = pathlib.Path(gpusense.__file__).resolve().parent.parent

#: Launches a known number of kernels in a block and says whether the block has them, and how capture was done.
WORK = """
import ctypes, os, sys, threading, time
driver = ctypes.CDLL(os.environ["GPUSENSE_LIBCUDA"])
driver.cuInit(0)
import gpusense
from gpusense.cuda import _workload
from gpusense import cuda
buffer = cuda.Buffer(64, cuda.Device(0))  # blocks are marked once there is a context
tracer = gpusense.get_tracer()
def work():
    for _ in range(400):
        with gpusense.trace("waiting"): pass
        if tracer.recorder.marker or tracer.recorder.capture.state == "unavailable": break
        time.sleep(0.005)
    with gpusense.trace("work") as block: launched = _workload.run(gpusense.trace, 2)
    status = tracer.status()
    return block.summary().kernel_count == sum(launched.kernels.values()), status
"""
SAY = "good, status = work()\nprint(good, status['state'], status.get('callbacks'), status['reason'])\n"


@pytest.fixture
def run(environ, tmp_path):
    def start(code, *flags, **env):
        command = [sys.executable, *flags, "-c", code]
        done = subprocess.run(
            command, env=environ | env, capture_output=True, text=True, timeout=60, cwd=tmp_path, check=False
        )
        assert done.returncode == 0, (done.stdout, done.stderr)
        assert done.stderr == ""
        return done.stdout

    return start


@pytest.mark.parametrize(
    "flags", [("-O",), ("-OO",), ("-I",), ("-S",), ("-I", "-S", "-E"), ("-W", "error"), ("-X", "dev")]
)
def test_flags_of_the_interpreter(run, flags):
    assert run(f"import sys; sys.path.insert(0, {str(ROOT)!r})\n" + WORK + SAY, *flags).startswith("True running")


def test_an_archive(run, tmp_path):
    with zipfile.ZipFile(tmp_path / "app.zip", "w") as archive:
        for path in (ROOT / "gpusense").rglob("*"):
            if path.suffix != ".pyc" and path.is_file():
                archive.write(path, path.relative_to(ROOT))
    out = run(
        "import gpusense; print('.zip' in gpusense.__file__)\n" + WORK + SAY, PYTHONPATH=str(tmp_path / "app.zip")
    )
    assert out.startswith("True\nTrue running")


def test_a_debugger_on_every_thread(run):
    code = """
import sys, threading
lines = 0
def trace(frame, event, argument):
    global lines
    lines += 1
    return trace
sys.settrace(trace); threading.settrace(trace)
sys.setprofile(lambda *_: None); threading.setprofile(lambda *_: None)
"""
    assert run(code + WORK + SAY + "print(lines > 1000)").startswith("True running")


def test_gevent_before_everything(run):
    pytest.importorskip("gevent")
    code = "from gevent import monkey; monkey.patch_all()\n"
    greenlets = """
import gevent
good, status = work()
names = []
def request(number):
    with gpusense.trace(f"request {number}"):
        gevent.sleep(0.01)
        names.append(tracer.current_block().name)
gevent.joinall([gevent.spawn(request, number) for number in range(5)])
kept, end = tracer.recorder.store.pipeline.kept, time.monotonic() + 20
# No greenlet gets a turn, the threads of the system do.
while not (kept and kept[-1].name == "request 4") and time.monotonic() < end: pass
print(good, status["state"], sorted(names) == [f"request {number}" for number in range(5)])
print(kept[-1].name)
"""
    assert run(code + WORK + greenlets).splitlines() == ["True running True", "request 4"]


@pytest.mark.parametrize(
    ("what", "limit"),
    [("RLIMIT_NOFILE", "len(os.listdir('/proc/self/fd'))"), ("RLIMIT_AS", "resident() + (48 << 20)")],
)
def test_low_limits(run, what, limit):
    code = f"""
import resource
def resident():
    with open("/proc/self/statm") as file: return int(file.read().split()[0]) * 4096
gpusense.record_kernel("imports", duration_ns=1)
from gpusense.backends.cupti import activity as cupti
import gpusense.session._format, gpusense.cuda
limit = {limit}
resource.setrlimit(resource.{what}, (limit, limit))
"""
    out = run(WORK + code + "try: good, status = work()\n"
              "except (MemoryError, gpusense.BackendError): raise SystemExit(0)\n"
              "print(status['state'], bool(status['reason']) or good)")  # fmt: skip
    assert out in ("running True\n", "unavailable True\n", "")


@pytest.mark.parametrize(
    ("refused", "mode"), [((), "memfd"), (("memfd",), "mprotect"), (("memfd", "protected"), "ctypes")]
)
def test_executable_memory_refused(run, refused, mode):
    code = f"""
from gpusense._capi.machine import executable
def refuse(*_): raise OSError("executable memory refused")
for name in {refused!r}: setattr(executable, "_map_" + name, refuse)
"""
    assert run(WORK + code + SAY).startswith(f"True running {mode} ")


def test_no_proc(run):
    code = """
import builtins, io, os
def without(real):
    def call(path, *arguments, **options):
        if str(path).startswith("/proc"): raise FileNotFoundError(2, "No such file or directory", path)
        return real(path, *arguments, **options)
    return call
builtins.open = io.open = without(open)
os.open, os.listdir = without(os.open), without(os.listdir)
"""
    assert run(code + WORK + SAY).startswith("True running")


def test_no_thread_can_be_started(run):
    code = """
import _thread, threading
def refuse(*_, **__): raise RuntimeError("can't start new thread")
threading._start_new_thread = _thread.start_new_thread = refuse
if hasattr(threading, "_start_joinable_thread"):
    threading._start_joinable_thread = refuse
import gpusense
with gpusense.trace("block"): print("runs")
print(gpusense.get_tracer().reason)
print(gpusense.enable())
"""
    assert run(code) == "runs\nno thread can be started to record with\nFalse\n"


def test_on_a_free_threaded_build_the_reason_is_said(run):
    code = "import sys; sys.abiflags = 't'\n" + WORK + "_, status = work()\nprint(status['state'], status['reason'])"
    assert run(code).startswith("unavailable capture is not supported by a free-threaded Python")


@pytest.mark.skipif(sys.version_info < (3, 14), reason="threads inherit no context before Python 3.14")
def test_where_threads_inherit_a_context_ours_keep_nothing_of_it(run):
    code = """
import contextvars, gc, sys, weakref
import gpusense
from gpusense import monitor, testing
class Request: pass
variable, around = contextvars.ContextVar("request"), []
def serve():
    request = Request()
    variable.set(request)
    with gpusense.trace("request"):
        tracer = gpusense.get_tracer()
        tracer.add_sink(lambda _: around.append((tracer.current_block(), variable.get(None))))
        gpusense.record_transfer("upload", "cpu_to_gpu", bytes=1, duration_ns=1_000_000)
        tracer.flush(5)
    return weakref.ref(request), monitor.start_background(interval=0.005, source=testing.ScriptedSource())
gone, running = contextvars.copy_context().run(serve)
gc.collect()
print(sys.flags.thread_inherit_context, gone(), set(around), running.running)
running.stop()
"""
    assert run(code, "-X", "thread_inherit_context=1", GPUSENSE="on") == "1 None {(None, None)} True\n"


def test_a_subinterpreter_runs_its_blocks_and_is_told_why(run):
    code = f"""
import os, sys
try:
    import _xxsubinterpreters as sub
except ImportError:
    import _interpreters as sub
sub.run_string(sub.create(), '''
import sys, time; sys.path[:0] = [{str(ROOT)!r}]
import gpusense
for _ in range(50):
    with gpusense.trace("block"): time.sleep(0.001)
print("runs", gpusense.get_tracer().status()["reason"] != "")
sys.stdout.flush()
''')
sys.stdout.flush()
os._exit(0)
"""
    assert run(code, "-W", "ignore") == "runs True\n"


def test_a_subinterpreter_disturbs_nothing_in_the_main_one(run):
    """It comes, runs blocks and goes while the main interpreter captures; then the process forks."""
    code = f"""
try:
    import _xxsubinterpreters as sub
except ImportError:
    import _interpreters as sub
first, status = work()
one = sub.create()
failed = sub.run_string(one, '''
import sys, time; sys.path[:0] = [{str(ROOT)!r}]
import gpusense
with gpusense.trace("block"): time.sleep(0.001)
gpusense.get_tracer().flush()
''')
second, status = work()
sub.destroy(one)
third, status = work()
pid = os.fork()
if pid == 0: os._exit(0)
print(failed, first, second, third, status["state"], os.waitpid(pid, 0)[1])
"""
    assert run(WORK + code, "-W", "ignore") == "None True True True running 0\n"


@pytest.mark.parametrize("place", ["/proc/s.gpusense", "/dev/full"])
def test_a_place_that_takes_no_file(run, place):
    """The program runs, or is refused before it began; it never dies of it in the middle."""
    code = f"""
import subprocess, sys
done = subprocess.run([sys.executable, "-m", "gpusense", "run", "-o", {place!r}, "-c", "print(5)"],
                      capture_output=True, text=True)
print(done.returncode, repr(done.stdout), "Traceback" in done.stderr, "gpusense" in done.stderr)
"""
    assert run(code) in ("0 '5\\n' False True\n", "2 '' False True\n")


def test_a_read_only_file_system_for_everything_temporary(run):
    code = """
import os, subprocess, sys
done = subprocess.run([sys.executable, "-c",
    "import tempfile; tempfile._candidate_tempdir_list = lambda: ['/proc']\\n"
    "from gpusense import cli; import sys; sys.argv = ['gpusense', 'run', '-c', 'print(5)']; sys.exit(cli.main())"],
    capture_output=True, text=True, env={**os.environ, "XDG_CACHE_HOME": "/proc"})
print(done.returncode, repr(done.stdout), "s · no GPU work: " in done.stderr, done.stderr.count("\\n"))
"""
    assert run(code) in ("0 '5\\n' True 1\n", "0 '5\\n' True 2\n")  # recorded in memory

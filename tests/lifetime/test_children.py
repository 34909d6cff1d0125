"""``gpusense run`` and the processes that its program starts: each is recorded from its first launch, and no other."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from importlib.util import find_spec

import pytest
from support.followed import counts, kernels, nothing_lost, whole
from support.machine import require

from gpusense.cli import _sessions
from gpusense.session import load

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fakes are ELF libraries")

#: Launches three kernels at once after cuInit, by ctypes alone.
LAUNCHES = """
import ctypes, os
driver, fake = (ctypes.CDLL(os.environ["GPUSENSE_LIB" + name]) for name in ("CUDA", "CUPTI"))
assert driver.cuInit(0) == 0
name, zero = os.environ.get("WAY", "first").encode(), ctypes.c_uint64(0)
for _ in range(3):
    fake.fake_cupti_kernel(name, 0, 7, zero, zero, 0)
"""
FUNCTION = f"""
import multiprocessing, os, subprocess, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # os.fork in a process with threads, since Python 3.12
LAUNCHES = {LAUNCHES!r}
STARTS = "import subprocess, sys; subprocess.run([sys.executable, '-c', " + repr(LAUNCHES) + "])"
def work(_=None):
    exec(LAUNCHES, {{}})
"""
POOL = """
if __name__ == "__main__":
    with multiprocessing.get_context("HOW").Pool(2) as pool:
        for done in [pool.apply_async(work) for _ in range(2)]:
            done.get()
        pool.close()
        pool.join()
"""
TERMINATED = """
if __name__ == "__main__":
    with multiprocessing.get_context("HOW").Pool(1) as pool:
        pool.map(work, range(1))
"""
PROCESS = """
if __name__ == "__main__":
    process = multiprocessing.get_context("HOW").Process(target=work)
    process.start()
    process.join()
"""
EXECUTOR = """
from concurrent.futures import ProcessPoolExecutor
if __name__ == "__main__":
    with ProcessPoolExecutor(1) as pool:
        pool.submit(work).result()
"""
#: As torch's DataLoader has its workers: they look for their parent, and end when the queue tells them.
LOADER = """
def load(indices, results, done):
    parent = os.getppid()
    while os.getppid() == parent and indices.get(timeout=30) is not None:
        work()
        results.put(os.getpid())
    done.wait(30)
    results.cancel_join_thread()
    results.close()
if __name__ == "__main__":
    loader = multiprocessing.get_context("HOW")
    indices, results, done = loader.Queue(), loader.Queue(), loader.Event()
    worker = loader.Process(target=load, args=(indices, results, done), daemon=True)
    worker.start()
    indices.put(0)
    results.get(timeout=30)
    done.set()
    indices.put(None)
    indices.cancel_join_thread()
    indices.close()
    worker.join(30)
"""
#: How a child is started → kernels that all processes launch together.
WAYS = {
    "here": ("work()", 3),
    "subprocess": ("subprocess.run([sys.executable, '-c', LAUNCHES], check=True)", 3),
    "its child": ("subprocess.run([sys.executable, '-c', STARTS], check=True)", 3),
    "environment": ("subprocess.run([sys.executable, '-c', LAUNCHES], env={**os.environ, 'X': '1'}, check=True)", 3),
    "isolated": ("subprocess.run([sys.executable, '-I', '-S', '-c', LAUNCHES], check=True)", 3),
    "exec": ("os.execv(sys.executable, [sys.executable, '-c', LAUNCHES])", 3),
    "system": ("os.environ['CODE'] = LAUNCHES\nos.system(f'{sys.executable} -c \"$CODE\"')", 3),
    "os.fork": ("if os.fork() == 0:\n    work()\n    sys.exit(0)\nos.wait()", 3),
    "os.posix_spawn": (
        "os.waitpid(os.posix_spawn(sys.executable, [sys.executable, '-c', LAUNCHES], os.environ), 0)",
        3,
    ),
    "both": ("pid = os.fork()\nwork()\nif pid:\n    os.wait()\nsys.exit(0)", 6),
    **{f"{how} process": (PROCESS.replace("HOW", how), 3) for how in ("fork", "spawn", "forkserver")},
    **{f"{how} pool": (POOL.replace("HOW", how), None) for how in ("fork", "spawn", "forkserver")},
    **{f"{how} pool that is terminated": (TERMINATED.replace("HOW", how), 3) for how in ("fork", "spawn")},
    "executor": (EXECUTOR, 3),
    "loader": (LOADER.replace("HOW", "fork"), 3),
}
#: Of these, what one program can do after another.
TOGETHER = ("subprocess", "its child", "environment", "isolated", "system", "os.fork", "os.posix_spawn")


def after_another(*ways):
    """A program that starts a child in each way; the child's kernels are called after it."""
    each = "".join(f"os.environ['WAY'] = {way!r}\n{WAYS[way][0]}\n" for way in ways)
    return f"{FUNCTION}if __name__ == '__main__':\n{textwrap.indent(each, '    ')}"


def test_no_launch_of_any_child_is_lost(gpu, tmp_path):
    (tmp_path / "program.py").write_text(after_another(*TOGETHER))
    done = gpu("-o", "s.gpusense", "program.py")
    session = nothing_lost(done, tmp_path / "s.gpusense", 3 * len(TOGETHER))
    assert counts(session) == dict.fromkeys(TOGETHER, 3)


@pytest.mark.parametrize("way", [way for way in WAYS if way not in TOGETHER])
def test_no_launch_of_any_process_is_lost(gpu, tmp_path, way):
    code, launched = WAYS[way]
    (tmp_path / "program.py").write_text(FUNCTION + code)
    done = gpu("-o", "s.gpusense", "program.py")
    # A pool of two may have one worker do all of its work: three launches, since CUDA starts once.
    nothing_lost(done, tmp_path / "s.gpusense", *((3, 6) if launched is None else (launched,)))


def test_workers_of_joblib(gpu, tmp_path):
    require(find_spec("joblib"), "joblib (dependency group integrations)")
    (tmp_path / "program.py").write_text(
        "import os, sys, joblib\n"
        f"LAUNCHES = {LAUNCHES!r}\n"
        "def work(n):\n"
        "    if n == 0:\n        exec(LAUNCHES, {})\n"
        "    return n, os.getpid(), [name for name in sys.modules if 'gpusense' in name]\n"
        "found = joblib.Parallel(n_jobs=2)(joblib.delayed(work)(n) for n in range(20))\n"
        "(gpu,) = [pid for n, pid, _ in found if n == 0]\n"
        "print(gpu, [names for _, pid, names in found if pid != gpu and names])\n"
    )
    done = gpu("-o", "s.gpusense", "program.py")
    pid, idle = done.stdout.split(maxsplit=1)
    assert (done.returncode, idle) == (0, "[]\n"), done.stderr
    assert sorted(os.listdir(tmp_path)) == ["program.py", f"s.{pid}.gpusense", "s.gpusense"]
    assert kernels(whole(tmp_path / "s.gpusense")) == 3


APPLICATION = f"""
import os
def app(environ, start_response):
    exec({LAUNCHES!r}, {{}})
    start_response("200 OK", [])
    return [str(os.getpid()).encode()]
"""


def test_workers_of_gunicorn(gpu, tmp_path):
    require(find_spec("gunicorn"), "gunicorn (dependency group integrations)")
    (tmp_path / "application.py").write_text(APPLICATION)
    server = gpu.begin(
        *("-o", "s.gpusense", "-m", "gunicorn", "--workers", "2", "--bind", "unix:socket", "application:app")
    )
    try:
        while not (tmp_path / "socket").exists():
            assert server.poll() is None, server.communicate()
            time.sleep(0.02)
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(60)
            client.connect(str(tmp_path / "socket"))
            client.sendall(b"GET / HTTP/1.0\r\n\r\n")
            pid = b"".join(iter(lambda: client.recv(4096), b"")).rpartition(b"\r\n")[2].decode()
        server.terminate()
        _, said = server.communicate(timeout=60)
    finally:
        server.kill()
    assert server.returncode == 0, said
    assert sorted(path.name for path in tmp_path.glob("*.gpusense")) == [f"s.{pid}.gpusense", "s.gpusense"]
    assert kernels(whole(tmp_path / "s.gpusense")) == 3


def test_without_a_file_it_is_one_answer_and_kept(gpu, tmp_path):
    (tmp_path / "program.py").write_text(FUNCTION + "work()\n" + WAYS["subprocess"][0])
    done = gpu("program.py")
    assert done.stderr.startswith("gpusense: program.py · 2 processes · ")
    assert "6 short ones summed" in done.stderr
    (folder,) = (tmp_path / "cache" / "gpusense" / "runs").iterdir()
    assert done.stderr.endswith("\nnext: gpusense report --html (kept; see gpusense list)\n")
    assert kernels(whole(folder)) == 6
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


def test_children_are_left_alone_if_they_are_to_be(gpu, tmp_path):
    (tmp_path / "program.py").write_text(FUNCTION + "work()\n" + WAYS["subprocess"][0])
    done = gpu("-o", "s.gpusense", "--no-children", "program.py")
    assert done.returncode == 0, done.stderr
    assert sorted(os.listdir(tmp_path)) == ["program.py", "s.gpusense"]
    assert kernels(load(tmp_path / "s.gpusense")) == 3


IDLE = """
import threading
def looks(_=None):
    import sys
    return threading.active_count(), sorted(name for name in sys.modules if "gpusense" in name)
if __name__ == "__main__":
    import multiprocessing
    for how in ("fork", "spawn"):
        with multiprocessing.get_context(how).Pool(1) as pool:
            print(how, *pool.apply(looks))
"""


def test_a_child_that_uses_no_gpu_has_no_file_no_thread_and_no_module_of_ours(gpu, tmp_path):
    (tmp_path / "program.py").write_text("import warnings\nwarnings.simplefilter('ignore')\n" + IDLE)
    done = gpu("-o", "s.gpusense", "program.py")
    fork, spawn = done.stdout.splitlines()
    assert fork.startswith("fork 1 ")
    assert spawn == "spawn 1 []"
    assert sorted(os.listdir(tmp_path)) == ["program.py", "s.gpusense"]


BLOCKS = """
import gpusense, os, warnings
warnings.simplefilter("ignore")
with gpusense.trace("parent"): pass
if os.fork() == 0:
    with gpusense.trace("child"): pass
    raise SystemExit
os.wait()
"""


def test_a_child_that_uses_gpusense_is_recorded_without_a_gpu(gpu, tmp_path):
    (tmp_path / "program.py").write_text(BLOCKS)
    done = gpu("-o", "s.gpusense", "program.py", GPUSENSE_LIBCUDA="", GPUSENSE_LIBCUPTI="")
    assert done.returncode == 0, done.stderr
    assert {block.path[1:] for block in whole(tmp_path / "s.gpusense").blocks} == {("parent",), ("child",)}


def test_settings_reach_the_children(gpu, tmp_path):
    (tmp_path / "program.py").write_text(FUNCTION + WAYS["subprocess"][0])
    done = gpu("-o", "s.gpusense", "--trace-all", "--label", "night", "program.py")
    assert done.returncode == 0, done.stderr
    (child,) = [path for path in tmp_path.glob("s.*.gpusense") if path.name != "s.gpusense"]
    session = load(child)
    assert (len(session.kernels), session.meta["trace_all"], session.meta["kinds"]) == (3, True, ["sync", "allocation"])
    assert whole(tmp_path / "s.gpusense").meta["run"]["label"] == "night"


LAUNCHER = f"""
import os, subprocess, sys
started = [
    subprocess.Popen([sys.executable, "-c", {LAUNCHES!r}], env={{**os.environ, "RANK": str(n), "WORLD_SIZE": "2"}})
    for n in range(2)
]
for process in started:
    process.wait()
"""


def test_ranks_of_a_launcher_become_one_answer(gpu, tmp_path):
    (tmp_path / "launch.py").write_text(LAUNCHER)
    done = gpu("-o", "s.gpusense", "launch.py")
    assert done.stderr.startswith("gpusense: launch.py · 2 processes · "), done.stderr
    assert {"s.rank0.gpusense", "s.rank1.gpusense"} < set(os.listdir(tmp_path))
    session = whole(tmp_path / "s.gpusense")
    assert [process["root"] for process in session.meta["processes"]] == ["rank 0", "rank 1"]
    assert kernels(session) == 6


def test_ranks_that_are_given_one_name_each_get_their_own(gpu, environ, tmp_path):
    for rank in "01":
        done = gpu("-o", "s.gpusense", "-c", "pass", RANK=rank, WORLD_SIZE="2")
        assert done.returncode == 0
    assert sorted(path.name for path in tmp_path.glob("*.gpusense")) == ["s.rank0.gpusense", "s.rank1.gpusense"]


def test_a_child_that_is_killed_leaves_what_was_recorded(gpu, tmp_path):
    code = "import os, signal, time\ntime.sleep(1)\nos.kill(os.getpid(), signal.SIGKILL)"
    (tmp_path / "program.py").write_text(
        FUNCTION + f"subprocess.run([sys.executable, '-c', LAUNCHES + {code!r}], check=False)"
    )
    done = gpu("-o", "s.gpusense", "program.py")
    assert done.returncode == 0, done.stderr
    assert "The program was ended by a signal, a crash or exec; " in done.stderr
    assert kernels(whole(tmp_path / "s.gpusense")) == 3


def test_what_is_no_python_is_named(gpu, compiler, tmp_path):
    (tmp_path / "solver.c").write_text(
        "#include <dlfcn.h>\n#include <stdlib.h>\n"
        'int main(void) { return ((int (*)(int))dlsym(dlopen(getenv("GPUSENSE_LIBCUDA"), RTLD_NOW), "cuInit"))(0); }\n'
    )
    subprocess.run([*compiler, "-o", tmp_path / "solver", tmp_path / "solver.c", "-ldl"], check=True, timeout=120)
    done = gpu("./solver")
    assert done.returncode == 0
    assert "\nNot recorded: solver used the GPU; it does not run Python.\n" in done.stderr


@pytest.mark.parametrize(("command", "code"), [("exit 5", 5), ("kill -TERM $$", -signal.SIGTERM), ("true", 0)])
def test_a_command_ends_as_it_does(gpu, tmp_path, command, code):
    done = gpu("-o", "s.gpusense", "sh", "-c", f"echo out; {command}")
    assert (done.returncode, done.stdout) == (code, "out\n")
    assert load(tmp_path / "s.gpusense").meta["complete"]


def test_another_tools_injection_is_left_as_it_is_and_what_is_missing_is_the_second_line(gpu, tmp_path):
    (tmp_path / "program.py").write_text(
        LAUNCHES + "import time\ntime.sleep(0.5)\nprint(os.environ['CUDA_INJECTION64_PATH'])"
    )
    done = gpu("-o", "s.gpusense", "program.py", CUDA_INJECTION64_PATH="/opt/other.so")
    assert done.stdout == "/opt/other.so\n"
    assert "another tool has set CUDA_INJECTION64_PATH" in " ".join(done.stderr.split())
    second = done.stderr.splitlines()[1]
    assert second.startswith("Not seen: up to ")
    assert "before capture began" in second
    assert len(load(tmp_path / "s.gpusense").unseen) == 1


@pytest.mark.parametrize("delay_ms", [5, 20, 40, 80])
@pytest.mark.parametrize("loader", ["CDLL", "PyDLL"])  # cuInit is called without the GIL, or with it
def test_ctrl_c_while_capture_begins_is_the_programs(gpu, tmp_path, loader, delay_ms):
    interrupts = f"threading.Timer({delay_ms / 1000}, lambda: os.kill(os.getpid(), signal.SIGINT)).start()\n"
    (tmp_path / "program.py").write_text(
        "import ctypes, os, signal, threading, time\ntry:\n"
        + textwrap.indent(interrupts + LAUNCHES.replace("ctypes.CDLL", f"ctypes.{loader}") + "time.sleep(5)\n", "    ")
        + "except KeyboardInterrupt:\n    print('interrupted')\n"
    )
    done = gpu("-o", "s.gpusense", "program.py")
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("where", ["read-only", "no home", "full"])
def test_a_cache_that_cannot_be_written_changes_nothing(gpu, tmp_path, where):
    (tmp_path / "program.py").write_text(FUNCTION + "work()\n" + WAYS["subprocess"][0] + "\nprint('done')")
    more = {"XDG_CACHE_HOME": "/proc/nowhere"} if where == "read-only" else {"XDG_CACHE_HOME": "", "HOME": "relative"}
    if where == "full":
        more = {"XDG_CACHE_HOME": "/dev/full", "TMPDIR": "/dev/full"}
    done = gpu("program.py", **more)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    assert "6 short ones summed" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_child_whose_python_has_another_version_is_named(gpu, tmp_path):
    older = tmp_path / "older" / "gpusense"
    older.mkdir(parents=True)
    (older / "__init__.py").write_text("__version__ = '0.0.1'\n")
    (tmp_path / "program.py").write_text(
        FUNCTION
        + f"subprocess.run([sys.executable, '-c', LAUNCHES], env={{**os.environ, 'PYTHONPATH': {str(older.parent)!r}}})"
    )
    done = gpu("program.py")
    assert done.returncode == 0
    assert "used the GPU; its Python cannot load this gpusense" in done.stderr


PASSES = """
import ctypes, os, time
import gpusense
from gpusense import cuda
driver, fake = (ctypes.CDLL(os.environ["GPUSENSE_LIB" + name]) for name in ("CUDA", "CUPTI"))
buffer = cuda.Buffer(64, cuda.Device(0))
zero = ctypes.c_uint64(0)
for n in range(1, 9):
    with gpusense.trace("step"):
        with gpusense.trace("inner"):
            fake.fake_cupti_kernel(b"pass%d" % n, 0, 7, zero, zero, driver.fake_cuda_count_call())
    time.sleep(0.05)
"""


@pytest.mark.parametrize(("passes", "wanted"), [(("--passes", "3..5"), "345"), (("--passes", "2"), "2"), ((), "1")])
def test_passes_of_a_block(gpu, tmp_path, passes, wanted):
    (tmp_path / "program.py").write_text(PASSES)
    done = gpu("-o", "s.gpusense", "--trace-all", "--block", "step", *passes, "program.py")
    assert done.returncode == 0, done.stderr
    session = load(tmp_path / "s.gpusense")
    assert [kernel.name for kernel in session.kernels] == [f"pass{n}" for n in wanted]
    assert {kernel.path for kernel in session.kernels} == {("step", "inner")}
    assert sum(block.name == "step" for block in session.blocks) == 8
    assert gpu("--passes", "3", "program.py").returncode == 2


def test_reading_many_sessions_at_the_end_takes_no_longer_than_is_told(gpu, tmp_path):
    (tmp_path / "program.py").write_text(FUNCTION + WAYS["subprocess"][0] + "\n" + WAYS["subprocess"][0])
    assert gpu("-o", "s.gpusense", "program.py").returncode == 0
    main = load(tmp_path / "s.gpusense")
    session = _sessions.joined([main], limit_s=-1)
    assert (kernels(session), session.meta["missing"]) == (
        0,
        ["2 processes are not in this answer, to save time; gpusense report reads all"],
    )
    session = _sessions.joined([main])
    assert (kernels(session), session.meta.get("missing")) == (6, None)
    (tmp_path / main.meta["children"][0]).unlink()
    session = _sessions.joined([main])
    (sentence,) = session.meta["missing"]
    assert kernels(session) == 3
    assert "No such file" in sentence


def test_a_run_within_a_run_is_the_inner_ones(gpu, tmp_path):
    (tmp_path / "program.py").write_text(FUNCTION + "work()")
    done = gpu("-o", "outer.gpusense", "-m", "gpusense", "run", "-o", "inner.gpusense", "program.py")
    assert done.returncode == 0, done.stderr
    assert kernels(whole(tmp_path / "inner.gpusense")) == 3
    (tmp_path / "outer.py").write_text(
        "import subprocess, sys\n"
        "subprocess.run([sys.executable, '-m', 'gpusense', 'run', '-o', 'child.gpusense', 'program.py'], check=True)"
    )
    assert gpu("-o", "first.gpusense", "outer.py").returncode == 0
    assert kernels(whole(tmp_path / "child.gpusense")) == 3
    assert kernels(whole(tmp_path / "first.gpusense")) == 0


@pytest.mark.parametrize("minor", range(10, 16))
def test_on_every_python_that_is_here(environ, tmp_path, minor):
    python = shutil.which(f"python3.{minor}")
    if python is None or subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode:
        pytest.skip(f"no Python 3.{minor} here")
    ways = ("subprocess", "os.fork", "fork process", "spawn process", "forkserver process")
    for name, code, launched in (
        ("children", after_another(*ways), dict.fromkeys(ways, 3)),
        ("exec", FUNCTION + WAYS["exec"][0], {"first": 3}),
    ):
        (tmp_path / "program.py").write_text(code)
        done = subprocess.run(
            [python, "-m", "gpusense", "run", "-o", f"{name}.gpusense", "program.py"],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=60,
        )
        session = nothing_lost(done, tmp_path / f"{name}.gpusense", sum(launched.values()))
        assert counts(session) == launched

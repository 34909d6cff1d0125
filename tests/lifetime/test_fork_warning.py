"""A fork of a program with gpusense in it says what it says without, no record is lost by it, and no child waits."""

import os
import sys

import pytest
from support.machine import warns_of_threads
from support.programs import clean

from gpusense import session

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")

#: Forks in the script itself, where Python shows the warning to everybody, in each way that runs hooks.
CODE = """
import multiprocessing, os, subprocess, sys, threading, time
import gpusense
gpusense.enable()
got = []
gpusense.get_tracer().add_sink(lambda records: got.extend(record.name for record in records))

def fork():
    pid = os.fork()
    if pid == 0:
        with gpusense.trace("child"): pass
        os._exit(0)
    os.waitpid(pid, 0)

def pty():
    pid, descriptor = os.forkpty()
    if pid == 0: os._exit(0)
    os.waitpid(pid, 0)
    os.close(descriptor)

def process():
    started = multiprocessing.get_context("fork").Process(target=fork)
    started.start()
    started.join()

def hook(): subprocess.run([sys.executable, "-c", ""], preexec_fn=lambda: None, check=True)

for number, way in enumerate((fork, pty, process, hook, fork)):
    with gpusense.trace(f"around {number}"): way()
    with gpusense.trace(f"after {number}"): pass
assert gpusense.get_tracer().flush()
expected = [f"{where} {number}" for number in range(5) for where in ("around", "after")]
assert [block.name for block in gpusense.get_tracer().session().blocks] == expected
assert [name for name in got if " " in name] == expected, got
assert {thread.name for thread in threading.enumerate()} == {"MainThread", "gpusense", "gpusense sinks"}
"""


def test_a_fork_warns_of_no_thread_of_ours(run_python):
    done = run_python(
        "import sys; exec(sys.argv[1])", CODE, GPUSENSE="on", PYTHONWARNINGS="always", GPUSENSE_LIBCUDA="/none"
    )
    assert done.returncode == 0, done.stderr
    version = sys.version_info[:3]
    if version >= (3, 12) and not warns_of_threads(version):
        assert "multi-threaded" in done.stderr  # when it no longer does, these versions can be told so
    else:
        assert done.stderr == ""


def test_a_fork_warns_of_the_programs_own_threads(run_python):
    """What the program is warned of without gpusense it is warned of with it."""
    code = """
import os, threading
import gpusense
gpusense.enable()
done = threading.Event()
threading.Thread(target=done.wait, daemon=True).start()
pid = os.fork()
if pid == 0: os._exit(0)
os.waitpid(pid, 0)
with gpusense.trace("after"): pass
assert [block.name for block in gpusense.get_tracer().session().blocks] == ["after"]
"""
    done = run_python(code, PYTHONWARNINGS="always", GPUSENSE_LIBCUDA="/none")
    assert done.returncode == 0, done.stderr
    assert ("multi-threaded" in done.stderr) == (sys.version_info >= (3, 12))


def test_a_fork_while_the_interpreter_ends(run_python):
    """Where Python still allows it, no thread can be started after it: the last records reach the sink all the same."""
    code = """
import atexit, os
import gpusense
def late():
    try:
        pid = os.fork()
    except RuntimeError:  # since 3.12
        return
    if pid == 0: os._exit(0)
    os.waitpid(pid, 0)
gpusense.enable()
gpusense.get_tracer().add_sink(lambda records: print([record.name for record in records]))
with gpusense.trace("last"): pass
atexit.register(late)
"""
    done = run_python(code, PYTHONWARNINGS="ignore", GPUSENSE_LIBCUDA="/none")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "['last']\n"
    assert done.stderr == ""


@pytest.mark.skipif(sys.platform != "linux", reason="the fakes are ELF libraries")
def test_under_gpusense_run(run_python, tmp_path, scripted):
    script = tmp_path / "script.py"
    script.write_text(
        "import os, time\n"
        "pid = os.fork()\n"
        "if pid == 0: os._exit(0)\n"
        "os.waitpid(pid, 0)\n"
        "import gpusense\n"
        "with gpusense.trace('after the fork'): time.sleep(0.01)\n"
    )
    done = run_python(
        "import sys; sys.argv[0] = 'gpusense'; from gpusense.cli import main; sys.exit(main())",
        "run", "-o", "out.gpusense", "script.py",
        **scripted,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    version = sys.version_info[:3]
    counted_late = version >= (3, 12) and not warns_of_threads(version)
    assert ("multi-threaded" in done.stderr) == counted_late
    assert [block.name for block in session.load(tmp_path / "out.gpusense").blocks][-1] == "after the fork"


def test_a_child_decides_where_another_thread_of_its_parent_was_about_to(run_python):
    code = """
import faulthandler, os, threading, warnings
import gpusense
from gpusense._tracing.select import control
warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside a thread of the program
deciding, forked, possible = threading.Event(), threading.Event(), control._possible
def slow():
    if threading.current_thread() is other:
        deciding.set()
        forked.wait()
    return possible()
def traced(name):
    with gpusense.trace(name): pass
    return [block.name for block in gpusense.get_tracer().session().blocks]
control._possible = slow
other = threading.Thread(target=traced, args=("parent",))
other.start()
deciding.wait()
pid = os.fork()
if pid == 0:
    faulthandler.dump_traceback_later(20, exit=True)
    os._exit(traced("child") != ["child"])
print(os.waitpid(pid, 0)[1])
forked.set()
other.join()
"""
    clean(run_python(code, GPUSENSE="on"), "0\n")

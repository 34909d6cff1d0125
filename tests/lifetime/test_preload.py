"""Servers that load the application once and fork workers, as gunicorn does with --preload."""

import os

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")

SERVER = """
import os, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # 3.12 warns of forking with threads
import gpusense

def master():
    {master}

def worker(number):
    {worker}
    with gpusense.trace("request", {{"worker": number}}):
        gpusense.record_kernel("infer", duration_ns=1_000_000)
    tracer = gpusense.get_tracer()
    session = tracer.session()
    return [type(tracer).__name__, getattr(tracer, "reason", ""), len(session.blocks), len(session.kernels)]

master()
children = []
for number in range(2):
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.write(writing, repr(worker(number)).encode())
        os._exit(0)
    os.close(writing)
    children.append((pid, reading))
for pid, reading in children:
    answer = os.read(reading, 4096).decode()
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    print(answer)
with gpusense.trace("master"):
    pass
print([block.name for block in gpusense.get_tracer().session().blocks])
"""

ON = "assert gpusense.enable()"


def serve(run_python, master, worker, **environ):
    done = run_python(SERVER.format(master=master, worker=worker), timeout=60, **environ)
    assert done.returncode == 0, done.stderr
    return [eval(line) for line in done.stdout.splitlines()]


def test_a_master_that_only_imported_has_workers_that_trace(run_python):
    first, second, _ = serve(run_python, "pass", ON)
    assert first == second == ["Tracer", "", 1, 1]


def test_workers_of_a_master_that_recorded_without_cuda_decide_anew(run_python):
    first, second, master = serve(run_python, "with gpusense.trace('boot'): pass", "pass", GPUSENSE="on")
    assert first == second == ["Tracer", "", 1, 1]
    assert master == ["boot", "master"]


def test_a_worker_may_begin_anew(run_python):
    """gunicorn's post_fork is the place for it."""
    first, second, master = serve(run_python, ON + "\n    with gpusense.trace('boot'): pass", ON)
    assert first == second == ["Tracer", "", 1, 1]
    assert master == ["boot", "master"]


def test_a_fork_inside_a_block_leaves_the_parents_block_alone(run_python):
    done = run_python("""
import os, warnings
warnings.simplefilter("ignore", DeprecationWarning)
import gpusense
gpusense.enable()
with gpusense.trace("outer"):
    pid = os.fork()
    if not pid:
        with gpusense.trace("child"):
            pass
if not pid:
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
print([block.name for block in gpusense.get_tracer().session().blocks])
""")
    assert (done.returncode, done.stdout) == (0, "['outer']\n"), done.stderr

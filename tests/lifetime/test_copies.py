"""Several copies of gpusense in one process, against scripted drivers."""

import json
import os
import subprocess
import sys

import pytest
from support.machine import ROOT
from support.programs import HEAD, clean

import gpusense
from gpusense.cli import vendor

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fakes are ELF libraries")


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
            if tracer.recorder.marker: break
            time.sleep(0.005)
        else: raise SystemExit(str(tracer.status()))
    return first
fake = ctypes.CDLL(os.environ["GPUSENSE_LIBCUPTI"])
"""
)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    """A folder with two copies, as ``gpusense vendor`` makes them, the second calling itself another version."""
    folder = tmp_path_factory.mktemp("hosts")
    for name in ("one", "two"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").touch()
        vendor.copy(str(folder / name / "sense"))
    init = folder / "two" / "sense" / "__init__.py"
    init.write_text(init.read_text("utf-8").replace(f'"{gpusense.__version__}"', '"9.9.9"'), "utf-8")
    return folder


@pytest.fixture
def copies(hosts, run):
    def start(code, **env):
        return run(code, head=TWO, PYTHONPATH=str(hosts), **env)

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
from one.sense._tracing import select as _select
path = {str(tmp_path / "run.gpusense")!r}
_select.control.start_session(path=path, trace_all=True)
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
from one.sense._capture import budget as _budget, recorder as _recorder
from one.sense._decode import layouts as _layouts
from two.sense._capture import budget as others_budget, recorder as others_recorder
for module in (_budget, others_budget): module.PERIOD_NS, module.ON_NS = 100_000_000, 20_000_000
for module in (_recorder, others_recorder): module.TICK_S = 0.01
second.configure(overhead_budget=0.5)
a, b = both()
gpusense.configure(overhead_budget=0.0001)
launched, off, end = 0, set(), time.monotonic() + 20
while time.monotonic() < end and not any("another copy" in s.reason and s.end_ns for s in b.session().unseen):
    with gpusense.trace("one"), second.trace("two"):
        launched += sum(_workload.run(gpusense.trace, 1).kernels.values())
    off.add(fake.fake_cupti_enabled(10))
print(sorted(off))
print([package.get_tracer().recorder.meta()["overhead"]["budget"] for package in (gpusense, second)])
paused = second.get_tracer().recorder.meta()["overhead"]["observed"] < 1  # it counts anew with its own budget
gpusense.disable()
print(fake.fake_cupti_enabled(10), paused)
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
from two.sense._capture.recorder import Recorder
def fail(*_): raise RuntimeError("broken copy")
Recorder.on_buffer = fail
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
feed = tracer.recorder.store.pipeline.feed
def fail(*_, **__): raise MemoryError("none left")
tracer.recorder.store.pipeline.feed = fail
for _ in range(3):
    _workload.run(gpusense.trace, 1)
    tracer.flush()
tracer.recorder.store.pipeline.feed = feed
with gpusense.trace("good") as block: launched = _workload.run(gpusense.trace, 1)
print(block.summary().kernel_count == sum(launched.kernels.values()))
interval = tracer.session().unseen[-1]
print(interval.reason, interval.end_ns > interval.start_ns)
"""
    )
    clean(done, "True\nrecords could not be read: MemoryError: none left True\n")


def test_a_copy_of_a_foreign_abi_is_told_why(copies):
    done = copies(
        """
from one.sense.backends.cupti import broker as _broker
from two.sense.backends.cupti import broker as other
other.ABI = 2
a = gpusense.get_tracer()
for _ in range(400):
    with gpusense.trace("waiting"): pass
    if a.recorder.marker: break
    time.sleep(0.005)
b = second.get_tracer()
for _ in range(400):
    with second.trace("waiting"): pass
    if b.recorder.capture.state == "unavailable": break
    time.sleep(0.005)
print(b.status()["reason"])
"""
    )
    assert "shares CUPTI in a way this copy does not know" in clean(done).stdout
    assert gpusense.__version__ in done.stdout


_LIBRARY = """
import json, os, threading
import gpusense, one.sense as lib, two.sense as old
from gpusense import cuda
from gpusense.cuda import _workload
cuda.Device(0)
seen = []
lib.configure(sinks=[seen.extend])
with gpusense.trace("app"), lib.trace("solve"):
    launched = _workload.run(lib.trace, 2)
with old.trace("lost"): pass
thread = threading.Thread(target=lib.trace("thread")(lambda: None))
thread.start(), thread.join()
child = os.fork()
if not child:
    with gpusense.trace("of the child"), lib.trace("of the child"): pass
    os._exit(0)
code = os.waitpid(child, 0)[1]
with lib.trace("after"): pass
lib.get_tracer().flush()
names = {record.name for record in seen if type(record).__name__ == "BlockRecord"}
own = sorted(names & {"app", "solve", "lost", "thread", "of the child", "after"})
print(json.dumps([sum(launched.kernels.values()), own, code]))
"""


def test_blocks_of_a_librarys_copy_are_in_the_answer_of_a_run(hosts, environ, tmp_path):
    """The library's copy records as well, for sinks of its own. One of a version that hands over nothing is named."""
    spoken, path = hosts / "two" / "sense" / "_tracing" / "copies.py", tmp_path / "run.gpusense"
    text = spoken.read_text("utf-8")
    spoken.write_text(text.replace("VERSION = 1 ", "VERSION = 0 "), "utf-8")
    try:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "gpusense", "run", "-o", path, "-c", _LIBRARY],
            env=environ | {"PYTHONPATH": os.pathsep.join((str(ROOT), str(hosts)))},
            capture_output=True,
            text=True,
            timeout=60,
            cwd=tmp_path,
        )
    finally:
        spoken.write_text(text, "utf-8")
    assert done.returncode == 0, done.stderr
    launched, seen, code = json.loads(done.stdout)
    assert (seen, code) == (["after", "solve", "thread"], 0)
    sentence = "not recorded: blocks of two.sense, whose gpusense 9.9.9 is too old to hand them over"
    assert f": {sentence}." in " ".join(done.stderr.split())
    session = gpusense.load(path)
    assert session.meta["notes"] == [sentence]
    blocks = sorted(session.blocks, key=lambda record: record.start_ns)
    ours = [record.path for record in blocks if record.path[:2] != ("app", "solve") or len(record.path) == 2]
    assert ours == [("app",), ("app", "solve"), ("thread",), ("after",)]
    assert session.summary().operation("solve").kernel_count == launched > 0


_FORK = """
import os, warnings
warnings.simplefilter("ignore", DeprecationWarning)
import gpusense, one.sense as lib
gpusense.enable()
with lib.trace("before"): pass
across = lib.trace("across").__enter__()
child = os.fork()
if not child:
    with lib.trace("nobody records"): pass
    across.__exit__(None, None, None)
    gpusense.enable()
    with lib.trace("in the child"): pass
    print([record.name for record in gpusense.get_tracer().session().blocks], flush=True)
    os._exit(0)
print(os.waitpid(child, 0)[1])
across.__exit__(None, None, None)
with lib.trace("after"): pass
print([record.name for record in gpusense.get_tracer().session().blocks])
"""


def test_blocks_of_a_copy_in_a_forked_child_are_the_childs(hosts, run_python):
    done = run_python(_FORK, PYTHONPATH=str(hosts))
    clean(done, "['in the child']\n0\n['before', 'across', 'after']\n")

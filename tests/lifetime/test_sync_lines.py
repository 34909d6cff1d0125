"""Lines of synchronising calls, end to end on scripted libraries: which line, who else wants CUPTI, threads, exits."""

import json
import shutil
import sys
from collections import Counter

import pytest

from gpusense.backends.cupti.sync_lines import code as lines_code

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the fake is an ELF library"),
    pytest.mark.skipif(
        __import__("platform").machine() not in lines_code.CODES, reason="machine code is for x86-64 and aarch64"
    ),
]

#: A program that waits in known lines. ``waits(...)`` gives up the GIL as torch does, ``held`` does not.
HEAD = """
import ctypes, json, os, signal, sys, threading, time, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # os.fork in a process with threads, since Python 3.12
driver = ctypes.CDLL(os.environ["GPUSENSE_LIBCUDA"])
driver.cuInit(0)
driver.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), 0)
import types
torch = types.ModuleType("torch")  # as torch.profiler looks from outside
torch.on = False
class Profiler(types.ModuleType): _is_profiler_enabled = property(lambda self: torch.on)
sys.modules["torch.autograd.profiler"] = Profiler("torch.autograd.profiler")
if os.environ.get("TORCH"):
    sys.modules["torch"] = torch
import gpusense
from gpusense._tracing import select
if os.environ.get("NO_CODE"):
    from gpusense.backends.cupti.sync_lines import reader
    def refuse(machine, mode): raise OSError("refused")
    reader.executable.map_code = refuse
kinds = tuple(os.environ.get("KINDS", "sync_lines").split(","))
path = os.environ.get("SESSION")
if path:
    run = select.control.start_session("file", path, kinds=kinds)
else:
    gpusense.configure(kinds=kinds)
    gpusense.enable()
tracer = gpusense.get_tracer()
while tracer.recorder.marker is None:
    with gpusense.trace("waiting"):
        time.sleep(0.005)
fake = ctypes.CDLL(os.environ["GPUSENSE_LIBCUPTI"])
holding = ctypes.PyDLL(os.environ["GPUSENSE_LIBCUPTI"])
MS = 1_000_000
RUNTIME, DRIVER = (2, 131, 3), (1, 17, 4)   # cudaStreamSynchronize, cuCtxSynchronize
COPY = (2, 31, 0)                           # cudaMemcpy
def lines():
    return tracer.status()["sync_lines"]
def until(condition, seconds=20):
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > seconds: raise SystemExit(f"not in time: {tracer.status()}")
        time.sleep(0.01)
def sums(session):
    found = {}
    for row in session.aggregates:
        if row.kind == "sync": found[row.source_line] = found.get(row.source_line, 0) + row.count
    return found
def session():
    return run.finish() if path else tracer.session()
def kernel(library):
    library.fake_cupti_kernel(b"k", 0, 7, ctypes.c_uint64(0), ctypes.c_uint64(0), 0)
def waits(call, length=MS, library=fake):
    return library.fake_cupti_wait(*call, ctypes.c_uint64(length), driver.fake_cuda_count_call())
"""


@pytest.fixture
def program(run_python, build_library, tmp_path):
    """Runs HEAD and then ``code``, of which the file is train.py, in a process of its own; ``at(mark)`` is the line
    that ends in that comment."""
    libraries = {
        "GPUSENSE": "on",
        "GPUSENSE_LIBCUDA": str(build_library("libcuda.c", "libcuda.so.1")),
        "GPUSENSE_LIBCUPTI": str(build_library("libcupti.c", "libcupti.so.13")),
    }

    def start(code, **env):
        folder = tmp_path / "program"
        library = folder / "site-packages"  # so that its frames are not taken for the program's
        library.mkdir(parents=True, exist_ok=True)
        (library / "head.py").write_text(HEAD)
        (folder / "train.py").write_text("from head import *\n" + code)
        paths = [str(folder), str(library)]
        return run_python(f"import sys; sys.path[:0] = {paths}; import train", **{"timeout": 60, **libraries, **env})

    def at(mark):
        text = (tmp_path / "program" / "train.py").read_text().splitlines()
        (number,) = [i for i, line in enumerate(text, 1) if line.endswith(f"# {mark}")]
        return number

    start.at = at
    return start


def clean(done, stdout=None):
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    if stdout is not None:
        assert done.stdout == stdout
    return done


WAITS = """
class Loop:
    def step(self):
        waits(RUNTIME)  # item
def context():
    waits(DRIVER, 2 * MS, holding)  # synchronize
def loader():
    for _ in range(3):
        waits(RUNTIME)  # loader
def short():
    for _ in range(50):
        waits(RUNTIME, 20_000)  # short
threads = [threading.Thread(target=loader) for _ in range(2)]
with gpusense.trace("epoch"):
    for _ in range(4): Loop().step()
    for thread in threads: thread.start()
    context(); short()
    waits(COPY)  # copy
    waits((1, 999, 3))  # a function that is not asked for
    for thread in threads: thread.join()
found = session()
print(json.dumps({
    "syncs": sorted([sync.source_line or "", sync.name, sync.duration_ns] for sync in found.syncs),
    "sums": [[row.source_line, row.count, row.total_ns] for row in found.aggregates if row.kind == "sync"],
    "copies": [copy.attributes for copy in found.transfers],
    "status": found.meta["capture"]["sync_lines"], "kinds": found.meta["kinds"],
    "counters": [found.counters.seen, found.counters.kept, found.counters.aggregated],
}))
"""


@pytest.mark.parametrize("mode", ["live", "file"])
def test_each_wait_names_its_line(program, mode, tmp_path):
    where = {"SESSION": str(tmp_path / "run.gpusense")} if mode == "file" else {}
    facts = json.loads(clean(program(WAITS, **where)).stdout)
    qualified = sys.version_info >= (3, 11)
    step, at = ("Loop.step" if qualified else "step"), program.at
    assert facts["syncs"] == sorted(
        [[f"train.py:{at('item')} {step}", "stream_synchronize", 10**6]] * 4
        + [[f"train.py:{at('synchronize')} context", "context_synchronize", 2 * 10**6]]
        + [[f"train.py:{at('loader')} loader", "stream_synchronize", 10**6]] * 6
        + [["", "stream_synchronize", 10**6]]
    )
    assert facts["sums"] == [[f"train.py:{at('short')} short", 50, 10**6]]
    assert facts["copies"] == [{"source_line": f"train.py:{at('copy')} <module>"}]
    assert facts["kinds"] == ["sync_lines", "sync"]
    status = facts["status"]
    assert {"lost": 0, "foreign": 0, "without_frame": 0}.items() <= status.items()
    seen, kept, counted = facts["counters"]
    assert seen == kept + counted


def test_a_session_file_gives_the_same_answer_at_another_threshold(program, tmp_path):
    from gpusense import session

    path = tmp_path / "run.gpusense"
    clean(program(WAITS, SESSION=str(path)))
    again = session.load(path, threshold_us=10)
    short = [sync for sync in again.syncs if (sync.source_line or "").endswith(" short")]
    assert len(short) == 50
    higher = session.load(path, threshold_us=10_000)
    assert not higher.syncs
    sums = Counter()
    for row in higher.aggregates:
        if row.kind == "sync":
            sums[row.source_line] += row.count
    assert sorted(sums.values()) == [1, 1, 4, 6, 50]


def test_nothing_is_subscribed_or_noted_unasked(program):
    done = program(
        """
subscribed = fake.fake_cupti_subscribed(), fake.fake_cupti_calls(b"cuptiEnableCallback")
waits(RUNTIME)
found = session()
print(subscribed, [sync.source_line for sync in found.syncs], "sync_lines" in tracer.status())
""",
        KINDS="sync",
    )
    clean(done, "(0, 0) [None] False\n")


@pytest.mark.parametrize(("version", "known"), [("130001", 33), ("18", 32)])
def test_functions_that_a_release_does_not_have_are_left_out(program, version, known):
    done = program("print(lines()['running'], fake.fake_cupti_calls_wanted())", FAKE_CUPTI_VERSION=version)
    clean(done, f"True {known}\n")


def test_another_profiler_keeps_the_subscription_and_waits_go_on_without_lines(program):
    """torch keeps the subscription when its profiler has ended, so capture itself is possible."""
    done = program(
        """
from gpusense.report import text
status = lines()
print(status["running"], "another profiler" in status["reason"])
waits(RUNTIME)
found = session()
print([sync.source_line for sync in found.syncs])
print("another profiler" in " ".join(" ".join(text.summary(found)).split()))
fake.fake_cupti_set_holder(0)
until(lambda: lines()["running"])
waits(RUNTIME)
print([bool(sync.source_line) for sync in session().syncs], lines()["reason"] == "")
""",
        FAKE_CUPTI_HOLDER="1",
        TORCH="1",
    )
    clean(done, "False True\n[None]\nTrue\n[False, True] True\n")


def test_the_subscription_is_free_while_another_profiler_runs_and_after_disable(program):
    done = program(
        """
def state():
    return fake.fake_cupti_subscribed(), lines()["running"], lines()["reason"]
torch.on = True
until(lambda: tracer.status()["state"] == "paused")
print(*state()[:2], "torch.profiler" in state()[2])
waits(RUNTIME)
torch.on = False
until(lambda: tracer.status()["state"] == "running" and lines()["running"])
waits(RUNTIME)
print([bool(sync.source_line) for sync in session().syncs if sync.duration_ns == MS][-1], *state())
gpusense.disable()
print(*state())
gpusense.enable()
until(lambda: tracer.recorder.marker is not None and lines()["running"])
waits(RUNTIME)
print(*state(), bool(session().syncs[-1].source_line))
gpusense.configure(kinds=("sync",))
until(lambda: not fake.fake_cupti_subscribed())  # at once, unless the recording thread is busy
print(fake.fake_cupti_subscribed())
""",
        TORCH="1",
    )
    clean(done, "0 False True\nTrue 1 True \n0 False capture was stopped\n1 True  True\n0\n")


def test_graph_owners_and_lines_do_not_take_the_subscription_from_each_other(program):
    done = program("""
from gpusense._capture.graph_owners import GraphOwners
owners = GraphOwners(tracer)
print(owners.capture_began(), owners.reason)
owners.capture_ended()
print(lines()["running"])
activity = tracer.recorder.capture._activity
tracer.recorder._watch = lambda capture: None  # it would take the subscription up again in between
activity.end_lines("a test")
print(owners.capture_began())
activity.begin_lines()
print(lines()["running"], lines()["reason"])
owners.capture_ended()
del tracer.recorder._watch
until(lambda: lines()["running"])
""")
    held = "cuptiSubscribe: gpusense itself holds CUPTI's subscription, for {} (39)"
    clean(
        done,
        f"False {held.format('the lines of synchronising calls')}\nTrue\nTrue\nFalse {held.format('graph owners')}\n",
    )


def test_threads_without_python_never_wait_for_the_gil(program):
    """They wait on the device while a thread holds the GIL for as long as they are at it."""
    done = program("""
def work():
    fake.fake_cupti_foreign_waits(2, ctypes.c_uint64(5000))
    while fake.fake_cupti_foreign_left(): kernel(holding)
sys.setswitchinterval(1000)  # nobody is asked to give the GIL up
work()
# A call of the runtime comes twice, with its driver's part; calls between the two by another thread hide that.
print(10000 <= lines()["foreign"] <= 20000, lines()["noted"])
""")
    clean(done, "True 0\n")


def test_holders_of_the_gil_and_others_launch_and_wait_beside_each_other(program):
    done = program(
        """
together = threading.Barrier(4)
def work(library):
    together.wait()
    for _ in range(2000):
        waits(RUNTIME, 1000, library)  # here
        kernel(library)
threads = [threading.Thread(target=work, args=(library,)) for library in (holding, holding, fake, fake)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(sums(session()), lines()["lost"])
""",
        timeout=50,
    )
    clean(done, f"{{'train.py:{program.at('here')} work': 8000}} 0\n")


@pytest.mark.parametrize(
    "end",
    [
        "pass",
        "sys.exit(3)",
        "raise SystemExit(3)",
        "os._exit(3)",
        "import atexit; atexit.register(waits, RUNTIME)",
        "fake.fake_cupti_foreign_waits(2, ctypes.c_uint64(10**9))",
    ],
)
def test_the_interpreter_may_end_while_threads_wait(program, end):
    """Threads of Python that go on for ever, giving up the GIL around each call."""
    done = program(
        f"""
def forever():
    while True: waits(RUNTIME, 1000)
for _ in range(3): threading.Thread(target=forever, daemon=True).start()
until(lambda: lines()["noted"])
{end}
"""
    )
    assert (done.returncode, done.stderr) == (3 if "3)" in end and "atexit" not in end else 0, "")


def test_a_call_while_the_interpreter_ends_does_not_enter_it(program):
    """CUPTI may call until the process ends; the subscription of a capture that could not end is still there."""
    done = program("""
tracer.recorder.end_capture = int  # does nothing
from gpusense.backends.cupti.sync_lines import code as lines_code
from gpusense.backends.cupti.sync_lines.reader import LineLog
class Late:
    def __del__(self, write=os.write, fake=fake, words=LineLog._machine.words, noted=lines_code.NOTED // 8):
        fake.fake_cupti_wait(2, 131, 3, 1000, 0)  # when modules are cleared, after all that atexit does
        write(1, b"%d %d\\n" % (fake.fake_cupti_subscribed(), words[noted]))
late = Late()
waits(RUNTIME)
""")
    clean(done, "1 1\n")


def test_a_forked_child_notes_nothing_and_the_parent_goes_on(program):
    done = program("""
waits(RUNTIME)  # before
children = []
for _ in range(3):
    child = os.fork()
    if child == 0:
        waits(RUNTIME)
        from gpusense.backends.cupti.sync_lines.reader import LineLog
        code = 0 if not any(LineLog._machine.words[:]) and not LineLog._owner.running else 4
        calls = fake.fake_cupti_calls(b"cuptiUnsubscribe")
        LineLog._owner.end()
        os._exit(code or fake.fake_cupti_calls(b"cuptiUnsubscribe") - calls)
    children.append(os.waitpid(child, 0)[1])
child = os.fork()
if child == 0:
    waits(RUNTIME)
    sys.exit(0)
children.append(os.waitpid(child, 0)[1])
waits(RUNTIME)  # after
print(children, [sync.source_line for sync in session().syncs], lines()["noted"])
""")
    before, after = (f"'train.py:{program.at(mark)} <module>'" for mark in ("before", "after"))
    clean(done, f"[0, 0, 0, 0] [{before}, {after}] 2\n")


def test_what_a_signal_handler_raises_as_a_call_begins_reaches_the_program(program):
    done = program("""
def handler(number, frame):
    raise KeyError("mine")
signal.signal(signal.SIGUSR1, handler)
caught = 0
for _ in range(20):
    fake.fake_cupti_signal_before_call(signal.SIGUSR1)
    try:
        waits(RUNTIME)
    except KeyError:
        caught += 1
print(caught, lines()["noted"])
""")
    clean(done, "20 20\n")


LIBRARY = """
library = {"waits": waits, "RUNTIME": RUNTIME}
def installed(name, text):
    exec(compile(text, f"/x/site-packages/lib/{name}.py", "exec"), library)
installed("deep", "def deep(n, call): return deep(n - 1, call) if n else call()")
installed("wait", "def wait():\\n    waits(RUNTIME)")
deep, wait = library["deep"], library["wait"]
"""


@pytest.mark.parametrize("packages", ["", "other,lib"])
def test_calls_through_libraries_are_the_programs_line_that_led_there(program, packages):
    done = program(
        LIBRARY
        + """
def step():
    deep(5, wait)  # through
step()
deep(60, wait)  # too deep
print(*(sync.source_line for sync in session().syncs), sep=chr(10))
""",
        GPUSENSE_LINE_PACKAGES=packages,
    )
    waits = HEAD.splitlines().index("def waits(call, length=MS, library=fake):") + 2
    if packages:
        clean(done, "lib/wait.py:2 wait\nlib/wait.py:2 wait\n")
    else:
        clean(done, f"train.py:{program.at('through')} step\nhead.py:{waits} waits\n")


def test_calls_beyond_the_room_of_the_ring_are_counted_and_recorded_without_line(program):
    done = program(
        LIBRARY
        + """
with tracer.recorder._lock:  # nobody reads meanwhile
    for _ in range(4000): deep(60, wait)
found = session()
kept = [sync.source_line for sync in found.syncs]
unnamed = kept.count(None) + sums(found).get(None, 0)
print(len(kept) + sum(sums(found).values()), unnamed == lines()["lost"] > 0)
"""
    )
    clean(done, "4000 True\n")


def test_the_pages_of_the_ring_are_used_again_and_again(program):
    """More calls than the ring has room for, with the reader at work in between; none is lost, none named wrongly."""
    done = program("""
import random
functions = {}
source = "".join(f"def f{i}():\\n    waits(RUNTIME, 1000)\\n" for i in range(50))
exec(compile(source, "many.py", "exec"), globals())
called = {}
for number in range(60):
    for _ in range(1000):
        i = number % 50
        globals()[f"f{i}"]()
    called[f"many.py:{2 * i + 2} f{i}"] = called.get(f"many.py:{2 * i + 2} f{i}", 0) + 1000
    tracer.flush()
print(sums(session()) == called, lines()["lost"])
""")
    clean(done, "True 0\n")


def test_nothing_is_noted_while_the_overhead_budget_keeps_capture_off(program):
    done = program("""
gpusense.configure(overhead_budget=0.5)
budget, wanted = tracer.recorder._budget, [True]
budget.step = lambda *_: wanted[0]
def switch(on):
    wanted[0] = on
    until(lambda: (budget._lasting is None) == on)
switch(False)
waits(RUNTIME)
print(lines()["noted"], lines()["running"])
switch(True)
waits(RUNTIME)  # again
print(lines()["noted"], [sync.source_line for sync in session().syncs])
""")
    clean(done, f"0 True\n1 ['train.py:{program.at('again')} <module>']\n")


def test_a_second_copy_is_told_who_notes_lines(program, tmp_path):
    folder = tmp_path / "program" / "host"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    shutil.copytree(
        sys.modules["gpusense"].__path__[0], folder / "gpusense", ignore=shutil.ignore_patterns("*.pyc", "*.gpusense")
    )
    done = program("""
from gpusense._decode import layouts
from host.gpusense.backends.cupti import activity as other
second = other.CuptiActivity()
second.start({*layouts.DEFAULT_KINDS, layouts.SYNCHRONIZATION}, lambda *_: None)
second.note_lines(())
print(second.lines.status()["reason"])
waits(RUNTIME)
print([bool(sync.source_line) for sync in session().syncs], second.lines.take())
gpusense.disable()
second.begin_lines()
waits(RUNTIME)  # theirs
print([line for _, line in second.lines.take()])
second.stop()
print(fake.fake_cupti_subscribed())
""")
    reason = "cuptiSubscribe: gpusense itself holds CUPTI's subscription, for the lines of synchronising calls (39)"
    clean(done, f"{reason}\n[True] []\n['train.py:{program.at('theirs')} <module>']\n0\n")


def test_without_executable_memory_waits_go_on_without_lines(program):
    done = program(
        """
waits(RUNTIME)
print(lines()["running"], lines()["reason"], [sync.source_line for sync in session().syncs])
""",
        NO_CODE="1",
    )
    clean(
        done,
        "False lines that wait are recorded by machine code, not possible here: "
        "memfd: refused; mprotect: refused [None]\n",
    )

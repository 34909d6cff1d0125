"""``gpusense attach``: into a Python process of 3.14 or later, against scripted drivers; elsewhere why not."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
from support.machine import ROOT

import gpusense
from gpusense import cli
from gpusense._tracing import run as runs
from gpusense.cli import _attached, _runs, _target, attach

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc, and the fakes are ELF libraries")
can_attach = pytest.mark.skipif(
    not getattr(sys, "is_remote_debug_enabled", bool)(),
    reason="attaching is of Python 3.14 and later (sys.remote_exec)",
)

OURS = ".".join(map(str, sys.version_info[:2]))

#: Works on the GPU all the time, with blocks that its own gpusense does not record, and does what it reads.
PROGRAM = """
import ctypes, json, os, sys, threading, time
import gpusense
from gpusense import cuda
from gpusense.cuda import _workload
gpusense.disable()
cuda.Device(0)
cupti = ctypes.CDLL(os.environ["GPUSENSE_LIBCUPTI"])
asked, graphs = [], False
threading.Thread(target=lambda: asked.extend(iter(sys.stdin.readline, "")), daemon=True).start()
print("ready", flush=True)
driver = ctypes.CDLL(os.environ["GPUSENSE_LIBCUDA"])
while True:
    with gpusense.trace("step"):
        _workload.run(gpusense.trace, 1)
        if graphs:
            number = driver.fake_cuda_count_call()
            cupti.fake_cupti_graph_kernel(b"node", ctypes.c_uint64(1), ctypes.c_uint64(500), number)
    time.sleep(0.005)
    word = asked.pop(0).strip() if asked else ""
    graphs = graphs or word == "graphs"
    if word == "block": ctypes.CDLL(None).usleep(ctypes.c_uint(900_000))
    if word == "end": break
    if word:
        threads = sorted(thread.name for thread in threading.enumerate()), len(os.listdir("/proc/self/task"))
        calls = cupti.fake_cupti_calls(b"cuptiFinalize"), cupti.fake_cupti_enabled(10)
        print(json.dumps([*threads, *calls, len(sys.modules), gpusense.get_tracer().active]), flush=True)
"""


class Target:
    def __init__(self, process):
        self.process, self.pid = process, process.pid
        assert process.stdout.readline() == "ready\n"

    def ask(self, word):
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def facts(self, word="facts"):
        self.ask(word)
        return json.loads(self.process.stdout.readline())


@pytest.fixture(scope="module")
def start(build_library):
    """Starts the program; ended with the module."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("GPUSENSE", "PYTHON"))}
    kept |= {
        "PYTHONPATH": str(ROOT),
        "GPUSENSE_LIBCUDA": str(build_library("libcuda.c", "libcuda.so.1")),
        "GPUSENSE_LIBCUPTI": str(build_library("libcupti.c", "libcupti.so.13")),
    }
    started = []

    def run(*words, **env):
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen([sys.executable, *words], env=kept | env, **streams))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def target(start):
    return Target(start("-c", PROGRAM))


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Where folders to talk by are made."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    return tmp_path / "temporary"


@can_attach
def test_a_process_is_recorded_and_left_as_it_was(target, folders, tmp_path, capsys):
    before = target.facts()
    path = tmp_path / "{pid}.gpusense"
    assert cli.main(["attach", str(target.pid), "--duration", "0.3", "-o", str(path), "--label", "mine"]) == 0
    answer = capsys.readouterr().err
    path = tmp_path / f"{target.pid}.gpusense"
    session = gpusense.load(path)
    (note,) = session.meta["notes"]
    assert note.startswith(f"not seen: what process {target.pid} did before gpusense was attached to it at ")
    assert f"\nN{note[1:]}.\n" in answer
    assert "gpusense: mine" in answer
    assert not session.unseen
    assert "CUPTI stays" not in answer
    assert session.meta["run"]["command"].startswith(sys.executable)
    assert sum(record.path == ("step",) for record in session.blocks) > 3
    paths = {row.path for row in session.aggregates if row.kind == "kernel"}
    assert ("step", "demo", "step", "forward") in paths  # what was open as it was attached to has no block
    assert os.stat(path).st_mode & 0o777 == 0o600
    threads, tasks, finalized, enabled, modules, active = target.facts()
    assert (threads, tasks, active) == (before[0], before[1], False)
    assert (finalized, enabled) == (before[2] + 1, 0)
    assert not list(folders.iterdir())
    # The copy that it has is used again.
    assert cli.main(["attach", str(target.pid), "--duration", "0.1", "-o", str(tmp_path / "page.html")]) == 0
    answer = capsys.readouterr().err
    assert f"\nwritten: {tmp_path / 'page.html'}\n" in answer
    assert "(kept; see gpusense list)" in answer
    assert _runs.described(_runs.runs()[-1])["attached"] == target.pid
    again = target.facts()
    assert (again[:2], again[2], again[4]) == ([threads, tasks], finalized + 1, modules)


@can_attach
def test_one_records_at_a_time_and_may_end_early(target, folders):
    order = attach._order(arguments(target.pid, "--duration", "30"))
    with attach.Visit(target.pid) as first:
        first.begin(order)
        with (
            attach.Visit(target.pid) as second,
            pytest.raises(gpusense.GpuSenseError, match="or another gpusense attach records it"),
        ):
            second.begin(order)
        assert first.end() == []
        assert gpusense.load(first.session()).blocks
        os.replace(first.session(), folders / "elsewhere")
        os.symlink(folders / "elsewhere", os.path.join(first._folder, _runs.MAIN))
        with pytest.raises(gpusense.GpuSenseError, match="a link in place"):
            first.session()
        (folders / "elsewhere").unlink()
    with attach.Visit(target.pid) as third:  # whoever waited has gone
        third.begin(order)
    until(lambda: target.facts()[0] == ["MainThread", "Thread-1 (<lambda>)"])
    assert not list(folders.iterdir())


@can_attach
def test_the_first_interrupt_ends_recording_with_the_answer(target, tmp_path, capsys, monkeypatch):
    def interrupt(visit, seconds):
        time.sleep(0.1)
        raise KeyboardInterrupt

    monkeypatch.setattr(attach.Visit, "wait", interrupt)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "folder").mkdir()
    assert cli.main(["attach", str(target.pid), "--duration", "600", "-o", str(tmp_path / "folder")]) == 0
    answer = capsys.readouterr().err
    assert f"\nNot written: {tmp_path / 'folder'}: Is a directory.\nnext: gpusense report --html (kept" in answer
    assert gpusense.load(os.path.join(_runs.runs()[-1], _runs.MAIN)).blocks


@can_attach
def test_a_process_that_runs_no_python_code_is_told_and_left_alone(target, folders, capsys, monkeypatch):
    monkeypatch.setattr(attach, "_TAKEN_S", 0.2)
    target.ask("block")
    time.sleep(0.1)
    assert cli.main(["attach", str(target.pid)]) == 2
    assert f"process {target.pid} ran no Python code on its main thread for 0.2 s" in capsys.readouterr().err
    until(lambda: not list(folders.iterdir()))  # it goes on, and removes what was left
    before = json.loads(target.process.stdout.readline())
    assert target.facts() == before


@can_attach
def test_cupti_stays_where_graphs_are_replayed(target, tmp_path, capsys):
    before = target.facts("graphs")
    assert cli.main(["attach", str(target.pid), "--duration", "0.3", "-o", str(tmp_path / "a.gpusense")]) == 0
    assert f"\nCUPTI stays in process {target.pid}: it replays CUDA graphs" in capsys.readouterr().err
    threads, _, finalized, enabled, *_ = target.facts()
    assert (finalized, enabled) == (before[2], 0)
    assert threads == before[0]
    until(lambda: target.facts()[1] == before[1])


@can_attach
def test_what_was_recorded_of_a_process_that_ends_is_shown(start, tmp_path, capsys, monkeypatch):
    target, wait = Target(start("-c", PROGRAM)), attach.Visit.wait

    def end(visit, seconds):
        time.sleep(0.2)
        target.ask("end")
        wait(visit, seconds)

    monkeypatch.setattr(attach.Visit, "wait", end)
    assert cli.main(["attach", str(target.pid), "--duration", "30", "-o", str(tmp_path / "a.gpusense")]) == 0
    assert f"Process {target.pid} ended while it was recorded" in capsys.readouterr().err
    assert gpusense.load(tmp_path / "a.gpusense").blocks
    assert target.process.wait(10) == 0


@can_attach
@pytest.mark.parametrize(
    ("env", "why"),
    [
        ({"PYTHON_DISABLE_REMOTE_DEBUG": "1"}, "it was started with PYTHON_DISABLE_REMOTE_DEBUG"),
        ({"GPUSENSE": "off"}, "it runs with GPUSENSE=off"),
    ],
)
def test_a_process_that_does_not_want_it_says_so(start, capsys, folders, env, why):
    process = start("-c", "import time; print(0, flush=True)\nwhile True: time.sleep(0.01)", **env)
    process.stdout.readline()
    assert cli.main(["attach", str(process.pid)]) == 2
    assert why in capsys.readouterr().err
    assert not list(folders.iterdir())


# --- on any Python ----------------------------------------------------------------------------------------------------


def arguments(*words):
    return cli.parser_of("attach").parse_args([str(word) for word in words])


def until(true, seconds=20):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture
def named(tmp_path):
    """Runs a program that lies in a file of this name."""
    started = []

    def run(name):
        shutil.copy(shutil.which("sleep"), tmp_path / name)
        started.append(subprocess.Popen([tmp_path / name, "60"]))
        until(lambda: (_target.command_of(started[-1].pid) or [""])[0].endswith(name))
        return started[-1].pid

    yield run
    for process in started:
        process.kill()
        process.wait()


def refused(pid, capsys):
    assert cli.main(["attach", str(pid)]) == 2
    return capsys.readouterr().err


def test_what_is_no_process_is_refused(capsys):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    assert refused(ended.pid, capsys) == f"gpusense attach: there is no process {ended.pid}\n"  # a zombie
    ended.wait()
    for pid in (ended.pid, 0, 1 << 40):
        assert refused(pid, capsys) == f"gpusense attach: there is no process {pid}\n"
    assert "is this command itself" in refused(os.getpid(), capsys)


def test_what_runs_no_python_is_refused(named, capsys):
    pid = named("program")
    assert refused(pid, capsys) == f"gpusense attach: process {pid} (program) runs no Python\n"


def test_versions_are_named_with_what_is_needed(named, capsys, monkeypatch):
    old, new = named("python3.9"), named("python3.99")
    said = refused(old, capsys)
    assert f"process {old} runs Python 3.9, and only Python 3.14 and later can be attached to" in said
    assert "gpusense run records a program from its beginning" in said
    monkeypatch.setattr(sys, "version_info", (3, 11, 0))
    said = refused(new, capsys)
    assert f"process {new} runs Python 3.99, and this is 3.11: attaching needs Python 3.14 or later; " in said
    assert f"python3.99 -m gpusense attach {new}" in said
    monkeypatch.setattr(sys, "version_info", (3, 14, 0))
    assert "this is 3.14: both sides must be the same; python3.99 -m" in refused(new, capsys)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert refused(new, capsys) == "gpusense attach: attaching is for Linux, where kernels are traced\n"


@pytest.mark.skipif(hasattr(sys, "remote_exec"), reason="before Python 3.14")
def test_this_python_is_too_old(capsys):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert f"runs Python {OURS}, and only Python 3.14 and later" in refused(process.pid, capsys)


def test_another_users_process_and_the_systems_rules(named, monkeypatch, tmp_path):
    pid = named("program")
    scope = tmp_path / "ptrace_scope"
    monkeypatch.setattr(_target, "_SCOPE", str(scope))
    assert "CAP_SYS_PTRACE is missing" in _target.sentence(pid, PermissionError(1, "Operation not permitted"))
    for number, rule in (("1", "only root and the process that started it"), ("2", "only root"), ("3", "nobody")):
        scope.write_text(f"{number}\n")
        assert f"ptrace_scope is {number}, so {rule}" in _target.denied(pid)
    scope.write_text("0\n")
    assert "CAP_SYS_PTRACE is missing" in _target.denied(pid)
    me = _target._user(os.geteuid())
    monkeypatch.setattr(os, "geteuid", lambda: 4_000_123)
    assert f"process {pid} is {me}'s, and you are user 4000123: attach as that user, or as root" in _target.denied(pid)


def test_a_process_in_a_container_is_told(named, monkeypatch):
    pid, read = named(f"python{OURS}"), os.readlink
    monkeypatch.setattr(sys, "version_info", (3, 14, 0))
    monkeypatch.setattr(_target, "python_of", lambda pid: (3, 14))
    assert _target.refusal(pid) == ""
    monkeypatch.setattr(os, "readlink", lambda path: f"{read(path)}{path == f'/proc/{pid}/ns/mnt'}")
    assert "sees other files than this one" in _target.refusal(pid)


def test_other_answers_of_the_interpreter_are_passed_on(named):
    pid = named("program")
    assert "does not let itself be attached to" in _target.sentence(
        pid, RuntimeError("Remote debugging is not enabled")
    )
    assert _target.sentence(pid, RuntimeError("odd")) == f"process {pid} cannot be attached to: odd"
    os.kill(pid, signal.SIGKILL)
    until(lambda: _target.started(pid) is None)
    assert _target.sentence(pid, RuntimeError("gone")) == f"process {pid} has ended"


def test_the_script_removes_itself_and_says_where_gpusense_cannot_be_loaded(tmp_path):
    folder, root = tmp_path / "talk", tmp_path / "broken" / "__init__.py"
    folder.mkdir(), root.parent.mkdir()
    root.write_text("raise ImportError('not for this process')")
    _attached.say(str(folder), _attached.ORDER, {"duration_s": 1.0})
    text = _attached.script(str(folder), str(root), runs.version())
    (folder / _attached.SCRIPT).write_text(text)
    exec(text, {})
    until(lambda: _attached.heard(str(folder), _attached.ENDED))
    answer = _attached.heard(str(folder), _attached.ENDED)
    assert answer == {"error": "gpusense cannot be loaded there: ImportError('not for this process')"}
    assert sorted(os.listdir(folder)) == [_attached.ENDED, _attached.TAKEN]
    exec(text, {})  # a second time there is no order
    (folder / _attached.SCRIPT).write_text("")
    for name in (_attached.ENDED, _attached.TAKEN):
        (folder / name).unlink()
    exec(_attached.forget(str(folder)), {})
    assert not folder.exists()
    for name in [name for name in sys.modules if name.startswith("gpusense_attached_")]:
        del sys.modules[name]

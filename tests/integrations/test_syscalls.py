"""System calls on the timeline: the real strace where it is installed and may trace, and imported traces anywhere."""

import shutil
import signal
import subprocess
import sys

import pytest
from support.machine import ROOT, require

import gpusense
from gpusense import cli
from gpusense.cli import _syscalls

LINES = """\
9 1700000000.000000 ioctl(4, 0x46, 0x7) = 0 <0.000250>
9 1700000000.001000 read(3, "x", 8) = 1 <0.000020>
9 1700000000.002000 read(3, "x", 8) = 1 <0.000030>
9 1700000009.000000 write(1, "x", 1) = 1 <0.000200>
"""


def may_trace() -> bool:
    strace = shutil.which("strace")
    return bool(strace) and subprocess.run([strace, "-o", "/dev/null", "true"], capture_output=True).returncode == 0


@pytest.fixture
def traced(tmp_path):
    """``traced(code, *options)``: a program under ``gpusense run --syscalls``; the finished process and its session."""
    if sys.platform != "linux" or (shutil.which("strace") and not may_trace()):
        pytest.skip("strace may not trace here")
    require(may_trace(), "strace")

    def run(code, *options, ended=None):
        script, out = tmp_path / "program.py", tmp_path / "out.gpusense"
        script.write_text(code)
        command = [sys.executable, "-m", "gpusense", "run", *(options or ("--syscalls",)), "-o", str(out), str(script)]
        done = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if ended is not None:
            ended(done)
        done.out, done.err = done.communicate(timeout=60)
        return done, gpusense.load(out, trace_all=True)

    return run


def test_calls_are_recorded_and_the_exit_code_is_the_programs(traced):
    done, session = traced("""
import os, sys, threading, time
assert not [name for name in os.environ if "STRACE" in name]
r, w = os.pipe()
reader = threading.Thread(target=os.read, args=(r, 3))
reader.start()
time.sleep(0.05)
os.write(w, b"abc")
reader.join()
sys.exit(7)
""")
    assert done.returncode == 7, done.err
    reads = [call for call in session.syscalls if call.name == "read" and call.duration_ns > 40_000_000]
    assert len(reads) == 1
    assert reads[0].thread != session.meta["pid"]
    assert any(call.name == "write" and call.result == "3" for call in session.syscalls)
    assert session.meta["start_ns"] - 10**9 < reads[0].start_ns < session.meta["end_ns"]
    assert session.meta["sources"]["strace"]["unreadable"] == 0
    assert "records: " in done.err


def test_calls_of_gpusense_itself_are_left_out(traced):
    """Its threads wait with futex while the program sleeps, and its imports read hundreds of files."""
    _, session = traced("import time; open('/dev/null').read(1); time.sleep(0.5)")
    counts = session.meta["sources"]["strace"]
    assert counts["before_the_program"] > 100
    assert counts["own"] > 0
    assert counts["calls"] == counts["own"] + counts["before_the_program"] + len(session.syscalls)
    assert sum(call.duration_ns for call in session.syscalls if call.name == "futex") < 250_000_000  # its threads: 500
    assert {call.thread for call in session.syscalls} == {session.meta["pid"]}


@pytest.mark.parametrize("way", ["file", "live"])
def test_calls_are_in_the_blocks_of_their_threads(traced, way):
    options = ("--syscalls=pread64", "--trace-all", *(["--live"] if way == "live" else []))
    _, session = traced(
        """
import os, threading, gpusense
zero = os.open("/dev/zero", os.O_RDONLY)
def work():
    with gpusense.trace("worker"):
        os.pread(zero, 2, 0)
        with gpusense.trace("inner"):
            os.pread(zero, 3, 0)
    os.pread(zero, 4, 0)
worker = threading.Thread(target=work)
with gpusense.trace("main"):
    worker.start()
    worker.join()
    os.pread(zero, 5, 0)
""",
        *options,
    )
    found = {call.result: (call.path, call.block_id) for call in session.syscalls if "zero" not in call.name}
    ids = {one.path: one.block_id for one in session.blocks}
    expected = {"2": ("worker",), "3": ("worker", "inner"), "4": (), "5": ("main",)}
    assert {size: found[size] for size in expected} == {size: (path, ids.get(path)) for size, path in expected.items()}


def test_other_calls_by_name(traced):
    _, session = traced("import os; os.mkdir('x') if False else os.getcwd()", "--syscalls=getcwd")
    assert {call.name for call in session.syscalls} == {"getcwd"}


def test_a_signal_ends_the_program_as_it_would_without(traced):
    def end(process):
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)

    # Short sleeps: one goes on where another thread is given the signal, as it may be while strace holds this one.
    program = "import time; print('ready', flush=True); [time.sleep(0.05) for _ in range(600)]"
    done, session = traced(program, ended=end)
    assert done.returncode == -signal.SIGTERM
    assert session.meta["complete"]


def test_without_strace_or_with_a_wrong_name_it_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv(_syscalls.VARIABLE, raising=False)
    script = tmp_path / "x.py"
    script.write_text("")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert cli.main(["run", "--syscalls", str(script)]) == 2
    assert "--syscalls needs strace" in capsys.readouterr().err
    refusing = tmp_path / "strace"
    refusing.write_text("#!/bin/sh\necho 'strace: ptrace(PTRACE_TRACEME): Operation not permitted' >&2\nexit 1\n")
    refusing.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda name: str(refusing))
    assert cli.main(["run", "--syscalls", str(script)]) == 2
    assert "cannot trace here: ptrace(PTRACE_TRACEME): Operation not permitted" in capsys.readouterr().err


def test_reading_the_trace_does_not_chase_its_own_calls(tmp_path):
    """Each read of the trace is itself a traced call: what comes after the start of a flush is left for the next."""
    path = tmp_path / "trace"
    path.write_text(LINES)

    got = []

    def take(records):
        got.extend(records)
        with path_again.open("a") as file:
            file.write(LINES)

    path_again = tmp_path / "again"
    path_again.hardlink_to(path)
    trace = _syscalls.Trace(str(path), 0)
    trace.start(take)
    assert not path.exists()
    assert trace.flush(1.0)
    assert len(got) == 4
    assert trace.flush(1.0)
    assert len(got) == 8
    assert trace.status()["calls"] == 8
    trace.stop()
    assert trace.flush(1.0)
    assert len(got) == 8


@pytest.fixture
def trace_file(tmp_path):
    path = tmp_path / "trace.txt"
    path.write_text(LINES)
    return path


def test_import(trace_file, tmp_path, capsys):
    out = tmp_path / "out.gpusense"
    assert cli.main(["import", "strace", str(trace_file), "-o", str(out)]) == 0
    session = gpusense.load(out)
    assert [call.name for call in session.syscalls] == ["ioctl", "write"]
    (reads,) = session.aggregates
    assert (reads.kind, reads.name, reads.count, reads.total_ns) == ("syscall", "read", 2, 50_000)
    assert (session.counters.seen, session.counters.kept, session.counters.aggregated) == (4, 2, 2)
    assert session.meta["pid"] == 9
    assert cli.main(["report", str(out)]) == 0
    assert "syscall: read" in capsys.readouterr().out
    assert cli.main(["import", "strace", str(trace_file), "-o", str(out), "--trace-all"]) == 0
    assert len(gpusense.load(out).syscalls) == 4


def test_import_into_a_session(trace_file, tmp_path, capsys):
    from gpusense.session import Session, save

    base, out = tmp_path / "base.gpusense", tmp_path / "out.gpusense"
    start = 1_700_000_000_000_000_000
    block = gpusense.BlockRecord("b", 3, None, ("a", "b"), start, start + 500_000, 140)
    kernel = gpusense.GpuKernel("k", start + 100, start + 500)
    counters = gpusense.Counters(seen=1, kept=1)
    meta = {"start_ns": start, "end_ns": start + 10**9, "threshold_ns": 25_000, "mode": "live"}
    meta["threads"] = [{"thread": 140, "native_id": 9, "name": "MainThread"}]
    save(Session(records=[kernel, block], counters=counters, meta=meta), base)
    assert cli.main(["import", "strace", str(trace_file), "-o", str(out), "--into", str(base)]) == 0
    assert "3 calls, 1 outside the session" in capsys.readouterr().err
    session = gpusense.load(out)
    assert session.kernels == [kernel]
    assert [(call.name, call.block_id, call.path) for call in session.syscalls] == [
        ("ioctl", 3, ("a", "b")),
        ("read", None, ()),
    ]
    assert session.counters.seen == 4


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("9      0.500000 ioctl(4, 0x7) = 0 <0.000250>", "the times are relative to the line before (-r)"),
        ("9 04:52:51.123456 ioctl(4) = 0 <0.000250>", "the times are of a day that is not named (-t, -tt)"),
        ("9 1700000000 ioctl(4, 0x7) = 0 <0.000250>", "the times are whole seconds (-ttt writes microseconds)"),
        ("9 ioctl(4, 0x7) = 0", "there are no times (no -ttt)"),
        ("% time     seconds  usecs/call     calls    errors syscall", "this is a summary of calls (-c)"),
    ],
)
def test_other_forms_of_time_are_refused_by_their_name(line, why, tmp_path, capsys):
    path = tmp_path / "trace.txt"
    path.write_text(line + "\n")
    assert cli.main(["import", "strace", str(path), "-o", str(tmp_path / "o")]) == 1
    said = f"gpusense import: no system call in 1 line: {why}; record with strace -f -ttt -T\n"
    assert capsys.readouterr().err == said
    assert not (tmp_path / "o").exists()


def test_import_of_something_else(tmp_path, capsys):
    other = tmp_path / "other"
    other.write_bytes(b"\xff\xfe nothing\n" * 3)
    assert cli.main(["import", "strace", str(other), "-o", str(tmp_path / "o")]) == 1
    assert "no system call in 3 lines" in capsys.readouterr().err
    assert cli.main(["import", "strace", str(tmp_path / "absent"), "-o", str(tmp_path / "o")]) == 2
    assert "No such file" in capsys.readouterr().err

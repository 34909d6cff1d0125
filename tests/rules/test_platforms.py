"""Windows and macOS as far as a Linux machine can play them: names, paths, missing functions. Never run there."""

import json
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="plays other systems on Linux")

#: Makes this interpreter look like another system to whatever is imported afterwards.
PLAY = """
import atexit, ctypes, json, logging, multiprocessing, os, platform, random
import socket, subprocess, sys, tempfile, threading
system = sys.argv[1]
platform.platform()  # is remembered; asked later, it would call what only that system has
absent = {
    "win32": ["fork", "register_at_fork", "uname", "memfd_create", "pread", "getuid", "geteuid", "fchmod", "mkfifo",
              "posix_spawn", "O_CLOEXEC", "sched_getaffinity", "waitstatus_to_exitcode", "killpg"],
    "darwin": ["memfd_create", "sched_getaffinity"],
}[system]
for name in absent:
    if hasattr(os, name):
        delattr(os, name)
if system == "win32":
    import signal
    for name in ("pthread_sigmask", "SIGKILL", "SIGUSR1"):
        if hasattr(signal, name):
            delattr(signal, name)
    import mmap
    for name in ("PROT_READ", "PROT_WRITE", "PROT_EXEC", "MAP_PRIVATE", "MAP_ANONYMOUS"):
        if hasattr(mmap, name):
            delattr(mmap, name)
    for name in ("fcntl", "resource", "termios", "pwd"):
        sys.modules[name] = None
sys.platform = system
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event in ("open", "ctypes.dlopen") else None)
"""


@pytest.fixture(params=["win32", "darwin"])
def play(request, run_python):
    def start(code):
        done = run_python(PLAY + code, request.param, timeout=90)
        assert done.returncode == 0, done.stderr[-3000:]
        assert "Traceback" not in done.stderr, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    start.system = request.param
    return start


def test_tracing_monitoring_and_sessions(play, tmp_path):
    facts = play("""
import gpusense
idle = type(gpusense.get_tracer()).__name__, getattr(gpusense.get_tracer(), "reason", "")
assert gpusense.enable()
with gpusense.trace("step") as block:
    gpusense.record_kernel("k", duration_ns=200_000)
summary = block.summary()
seen = gpusense.devices()
samples = gpusense.monitor.snapshot()
monitor = gpusense.monitor.start_background(lambda metrics: None, interval=0.05)
monitor.stop()
from gpusense import session
session.save(gpusense.get_tracer().session(), "run.gpusense")
again = gpusense.load("run.gpusense")
print(json.dumps({
    "idle": idle, "kernels": summary.kernel_count, "devices": len(seen), "samples": len(samples),
    "blocks": [record.name for record in again.blocks], "damage": again.meta["damage"],
    "linux paths": [path for path in opened if path.startswith(("/proc", "/sys", "/dev/nvidia"))],
}))
""")
    kind, reason = facts["idle"]
    assert kind == "NoopTracer"
    assert {"win32": "nvcuda.dll is not installed", "darwin": "no CUDA driver for darwin"}[play.system] in reason
    assert facts["kernels"] == 1
    assert facts["blocks"] == ["step"]
    assert facts["damage"] == []


def test_each_backend_is_there_or_says_why_not(play):
    facts = play("""
from gpusense.backends import BACKENDS, open_backend
print(json.dumps({row.name: (bool(found), str(getattr(found, "reason", "")))
                  for row in BACKENDS for found in [open_backend(row.name)]}))
""")
    for name in ("cupti", "cuda", "nvml", "rocm_smi"):
        found, reason = facts[name]
        assert not found, name
        assert reason, name
    if play.system == "darwin":
        assert "macOS" in facts["nvml"][1]


def test_callbacks_fall_back_to_ctypes(play):
    facts = play("""
from gpusense.backends.cupti import mailbox
box = mailbox.Mailbox(4, 4096)
print(json.dumps({"mode": box.mode, "reason": box.reason}))
""")
    assert facts["mode"] == "ctypes"
    assert facts["reason"]


def test_the_command_line(play):
    facts = play("""
import contextlib, io
from gpusense import cli
answers = {}
os.environ["PATH"] = ""  # no strace
for words in (["--help"], ["devices", "--json"], ["doctor", "--json"], ["run", "--syscalls", __import__("os").devnull]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(words)
    answers[words[0]] = [code, out.getvalue(), err.getvalue()]
print(json.dumps(answers))
""")
    assert facts["--help"][0] == 0
    assert json.loads(facts["devices"][1])["schema"] == "gpusense.devices/1"
    assert json.loads(facts["doctor"][1])["schema"] == "gpusense.doctor/1"
    assert facts["run"][0] == 2
    assert "--syscalls needs strace" in facts["run"][2]


def test_run_keeps_a_session(play):
    facts = play("""
from gpusense import cli
open("program.py", "w").write("import gpusense\\nwith gpusense.trace('x'): pass\\n")
def check():
    import gpusense
    session = gpusense.load("out.gpusense")
    print(json.dumps({"blocks": [record.name for record in session.blocks], "complete": session.meta["complete"]}))
atexit.register(check)  # runs after the recording has ended
cli.main(["run", "-o", "out.gpusense", "program.py"])
""")
    assert facts == {"blocks": ["x"], "complete": True}

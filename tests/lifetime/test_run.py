"""``gpusense run`` beside plain ``python``: same output, exit code, traceback and signal, whatever the program does."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import textwrap
import time

import pytest

import gpusense
from gpusense.session import load

ROOT = pathlib.Path(gpusense.__file__).resolve().parent.parent
POSIX = pytest.mark.skipif(os.name == "nt", reason="POSIX only")


def environment(**more):
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("GPUSENSE", "PYTHON"))}
    return environ | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"} | more


def plain(*arguments, cwd, **options):
    return finish([sys.executable, *arguments], cwd, **options)


def traced(*arguments, cwd, **options):
    return finish([sys.executable, "-m", "gpusense", "run", *arguments], cwd, **options)


def finish(command, cwd, stdin="", encoding="utf-8", **env):
    return subprocess.run(
        command, cwd=cwd, env=environment(**env), input=stdin, capture_output=True, encoding=encoding, timeout=60
    )


def normal(text):
    """Without what differs from run to run: addresses, and how deep a recursion came."""
    return re.sub(r"0x[0-9a-f]+|repeated \d+ more times", "…", text)


def split(stderr):
    """What the program wrote, and our answer."""
    before, mark, answer = stderr.partition("gpusense: ")
    return before, mark + answer


def program(folder, text, name="program.py"):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return name


def same(folder, *arguments, **options):
    """Runs both ways and compares everything but our answer; returns the traced run."""
    one = plain(*arguments, cwd=folder, **options)
    two = traced(*arguments, cwd=folder, **options)
    written, answer = split(two.stderr)
    assert normal(two.stdout) == normal(one.stdout)
    assert normal(written) == normal(one.stderr)
    assert two.returncode == one.returncode
    lines = answer.splitlines()
    assert len(lines) <= 15, answer
    assert lines[-1].startswith("next: ") or (len(lines) < 3 and "no GPU work: " in " ".join(answer.split()))
    return two


FACTS = """
import sys
main = sys.modules["__main__"]
names = ("__name__", "__doc__", "__package__", "__spec__", "__file__", "__cached__")
print(sys.argv, sys.path[0], [getattr(main, name, "absent") for name in names])
print(type(__loader__).__name__, type(__builtins__).__name__, main.__dict__ is globals())
if main:
    answer: "int" = 42
print(sorted(globals()), main.__annotations__, sys.stdin.read())
"""


# ---- what the program sees


def test_a_script(tmp_path):
    same(tmp_path, program(tmp_path, '"""Doc."""\n' + FACTS), "--flag", "-o", "x", stdin="input")


def test_a_script_elsewhere_and_through_a_link(tmp_path):
    program(tmp_path, FACTS, "real/program.py")
    (tmp_path / "link.py").symlink_to(tmp_path / "real" / "program.py")
    same(tmp_path, "./real/../real/program.py")
    same(tmp_path, "link.py")
    same(tmp_path, str(tmp_path / "link.py"))


def test_a_module_and_a_package(tmp_path):
    program(tmp_path, FACTS, "mod.py")
    program(tmp_path, FACTS, "package/__main__.py")
    program(tmp_path, "", "package/__init__.py")
    same(tmp_path, "-m", "mod", "-m", "x")
    same(tmp_path, "-m", "package", "--help")
    same(tmp_path, "-mmod")


def test_code(tmp_path):
    same(tmp_path, "-c", "import sys; print(sys.argv, sys.path[0], __name__, '__file__' in globals())", "-c", "y")
    same(tmp_path, "-c", "import sys; print(sys.modules['__main__'].__loader__, __spec__, type(__builtins__))")
    same(tmp_path, "-c", "import sys; x: int = 1; print(sys.modules['__main__'].__annotations__, sorted(globals()))")


def test_a_folder_and_an_archive(tmp_path):
    import zipfile

    program(tmp_path, FACTS.replace("__file__", "__name__"), "folder/__main__.py")
    same(tmp_path, "folder", "a")
    with zipfile.ZipFile(tmp_path / "app.pyz", "w") as archive:
        archive.write(tmp_path / "folder" / "__main__.py", "__main__.py")
    same(tmp_path, "app.pyz", "a")


def test_functions_of_main_can_be_pickled_and_spawned(tmp_path):
    name = program(
        tmp_path,
        """
        import multiprocessing, pickle
        def double(x):
            return 2 * x
        if __name__ == "__main__":
            assert pickle.loads(pickle.dumps(double)) is double
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(double, [1, 2]))
        """,
    )
    same(tmp_path, name)


# ---- how it ends


@pytest.mark.parametrize(
    "code",
    [
        "pass",
        "raise SystemExit",
        "raise SystemExit(7)",
        "raise SystemExit(None)",
        "raise SystemExit('said')",
        "raise SystemExit([1, 2])",
        "import sys; sys.exit(-1)",
        "import sys; sys.exit(300)",
        "class Code(SystemExit): pass\nraise Code(3)",
        "1/0",
        "raise KeyError('x') from ValueError('y')",
        "def f(n):\n    return f(n + 1)\ntry:\n    f(0)\nexcept RecursionError:\n    raise ValueError('deep')",
        "this is no python",
        "import sys\nsys.excepthook = lambda *a: print('hook', a[0], a[2].tb_frame.f_code.co_name)\n1/0",
        "import sys\nsys.excepthook = lambda *a: sys.exit(5)\n1/0",
        "import sys\ndef hook(*a):\n    [][1]\nsys.excepthook = hook\n1/0",
        "import sys, atexit\natexit.register(lambda: print('bye', sys.last_value, sys.last_traceback.tb_lineno))\n1/0",
        "import threading\nthreading.Thread(target=lambda: 1/0).start()",
        "import warnings\nwarnings.warn('careful', DeprecationWarning)",
    ],
)
def test_it_ends_as_it_would(tmp_path, code):
    same(tmp_path, program(tmp_path, code))


def test_tracebacks_of_modules_and_code(tmp_path):
    program(tmp_path, "def f():\n    1/0\nf()", "mod.py")
    program(tmp_path, "import mod", "outer.py")
    same(tmp_path, "-m", "mod")
    same(tmp_path, "outer.py")
    same(tmp_path, "-c", "def f():\n    1/0\nf()")
    same(tmp_path, "-c", "(")
    same(tmp_path, "-m", "no_such_module")
    same(tmp_path, "-m", "json.tool.nothing")
    program(tmp_path, "(", "broken.py")
    same(tmp_path, "-m", "broken")


def test_a_variable_that_cannot_be_used_is_told(tmp_path):
    done = traced("-c", "print(1)", cwd=tmp_path, GPUSENSE_THRESHOLD_US="soon")
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert done.stderr.startswith("gpusense: GPUSENSE_THRESHOLD_US='soon' is ignored: ")


def test_what_cannot_be_opened(tmp_path):
    one, two = plain("absent.py", cwd=tmp_path), traced("absent.py", cwd=tmp_path)
    assert two.returncode == one.returncode == 2
    assert two.stderr == "gpusense run: " + one.stderr.split(": ", 1)[1]
    assert traced("nowhere", cwd=tmp_path).stderr.endswith("; no command 'nowhere' is on the PATH\n")


@pytest.mark.parametrize("live", [(), ("--live",)], ids=["file", "live"])
def test_exit_from_under_everything(tmp_path, live):
    code = """
    import os, gpusense
    if os.fork() == 0: os._exit(3)  # says nothing of itself
    with gpusense.trace("last"):
        try: os._exit("9")
        except TypeError: print(os.wait()[1] >> 8, flush=True)
        os._exit(9)
    """
    done = traced(*live, "-o", "s.gpusense", program(tmp_path, code), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (9, "3\n")
    assert done.stderr.count("next: gpusense report s.gpusense") == 1
    session = load(tmp_path / "s.gpusense")
    assert session.meta["complete"] is True
    (block,) = session.blocks
    assert (session.meta["exit_code"], block.name, block.attributes) == (9, "last", {"open_at_end": True})
    assert "1 block has no end, “last”: its time is at least what is shown." in done.stderr


def named(how):
    """What ended a program, as the answer says it where the program's parent has not asked yet."""
    return {
        "exec": "exec, or by the C library's _exit; some of what it did in its last second may be missing.",
        "6": "SIGABRT, a crash: gpusense run -X faulthandler says where",
        "9": "SIGKILL, sent by somebody, or by a system that is short of memory",
    }[how]


def test_the_answer_imports_nothing_of_the_programs(tmp_path):
    """What it needs is there as at the start, whatever the program has made of the search path or calls its files."""
    (tmp_path / "its").mkdir()
    for name in ("textwrap", "bisect", "statistics", "json"):
        (tmp_path / "its" / f"{name}.py").write_text("raise SystemError")
    code = "import gpusense, sys\nwith gpusense.trace('x'):\n    pass\nsys.path.clear()\n"
    done = traced(os.path.join("its", program(tmp_path / "its", code)), cwd=tmp_path)
    assert done.returncode == 0
    assert "could not be ended" not in done.stderr
    assert "records: 1 listed" in done.stderr


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="a process can wait for its children alone")
def test_a_program_that_cannot_answer_is_answered_for(tmp_path):
    """A crash, exec and SIGKILL in the middle; the program sees no child, and nobody who reads its output waits."""
    code = """
    import os, sys, time, gpusense
    try: os.wait()
    except ChildProcessError: print("alone", flush=True)
    with gpusense.trace("last"):
        gpusense.record_kernel("k", duration_ns=10**9)
        time.sleep(1)
        if sys.argv[1] == "9" and os.fork() == 0:  # who lives on has no claim on the file
            os.closerange(0, 3)
            time.sleep(2)
            os._exit(0)
        os.execvp("true", ["true"]) if sys.argv[1] == "exec" else os.kill(os.getpid(), int(sys.argv[1]))
    """
    name = program(tmp_path, code)
    for how, ended in (("exec", 0), (str(int(signal.SIGABRT)), -signal.SIGABRT)):
        done = traced("--no-keep", name, how, cwd=tmp_path, TMPDIR=str(tmp_path))
        assert (done.returncode, done.stdout) == (ended, "alone\n")
        said = " ".join(done.stderr.split())
        assert said.count(f"The program was ended by {named(how)}") == 1
        assert "1 block has no end, “last”: its time is at least what is shown." in said
        assert "records: 2 listed" in done.stderr
        assert [path.name for path in tmp_path.iterdir()] == [name]
    done = traced("-o", "page.html", "--quiet", name, "9", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (-signal.SIGKILL, "")
    assert f"<p class='note'>The program was ended by {named('9')}" in (tmp_path / "page.html").read_text()
    done = traced("-o", "kept.gpusense", "--quiet", name, "9", cwd=tmp_path)
    session = load(tmp_path / "kept.gpusense")
    (block,) = session.blocks
    assert (session.meta["complete"], session.meta["damage"]) == (False, [])
    assert session.meta["ended_by"] == "SIGKILL"  # it was inside to the end, which its own chunks do not say
    assert session.meta["program_end_ns"] == block.end_ns >= block.start_ns + 10**9
    done = traced("--live", "-o", "s.gpusense", name, "9", cwd=tmp_path)
    assert done.stderr.startswith("gpusense: Nothing is kept of this run: ")
    assert not (tmp_path / "s.gpusense").exists()


def test_daemon_threads_and_late_work(tmp_path):
    name = program(
        tmp_path,
        """
        import atexit, threading, time
        threading.Thread(target=time.sleep, args=(999,), daemon=True).start()
        threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
        atexit.register(print, "atexit")
        """,
    )
    same(tmp_path, name)


# ---- signals


@POSIX
@pytest.mark.parametrize("how", [("program.py",), ("-m", "program")])
def test_ctrl_c(tmp_path, how):
    program(
        tmp_path, "import os, signal\nprint('on', flush=True)\nos.kill(os.getpid(), signal.SIGINT)\nwhile True: pass"
    )
    done = same(tmp_path, *how)
    assert done.returncode == -signal.SIGINT


@POSIX
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL] if os.name != "nt" else [])
def test_a_signal_ends_it_by_that_signal(tmp_path, number):
    code = f"import os; print('on', flush=True); os.kill(os.getpid(), {int(number)})\nwhile True: pass"
    one, two = plain("-c", code, cwd=tmp_path), traced("-o", "s.gpusense", "-c", code, cwd=tmp_path)
    assert (two.returncode, two.stdout) == (one.returncode, one.stdout)
    assert two.returncode == -number
    session = load(tmp_path / "s.gpusense")
    assert session.meta["complete"] is (number != signal.SIGKILL)
    assert "next: gpusense report s.gpusense" in two.stderr


@POSIX
def test_the_programs_own_sigterm_handler_wins(tmp_path):
    code = """
    import os, signal, sys
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(4))
    os.kill(os.getpid(), signal.SIGTERM)
    """
    same(tmp_path, program(tmp_path, code))


@POSIX
def test_a_forked_child_is_left_alone(tmp_path):
    code = """
    import os, signal, sys, warnings
    warnings.simplefilter("ignore", DeprecationWarning)  # from 3.12 on forking a process with threads warns
    child = os.fork()
    if child == 0:
        sys.exit(3)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    child = os.fork()
    if child == 0:
        signal.pause()
    os.kill(child, signal.SIGTERM)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    same(tmp_path, program(tmp_path, code))


# ---- stderr, stdout


@pytest.mark.parametrize(
    "code",
    [
        "import sys; sys.stderr.close()",
        "import sys; sys.stderr = None",
        "import os; os.close(2)",
        "import os; os.close(2); file = open('data', 'w'); file.write('whole'); print(file.fileno())",
        "import sys; sys.stdout.close()",
        "import contextlib, io; contextlib.redirect_stderr(io.StringIO()).__enter__()",
    ],
)
def test_streams_the_program_took_away(tmp_path, code):
    one, two = plain("-c", code, cwd=tmp_path), traced("-c", code, cwd=tmp_path)
    assert (two.returncode, two.stdout) == (one.returncode, one.stdout)
    assert split(two.stderr)[0] == one.stderr
    if (tmp_path / "data").exists():
        assert (tmp_path / "data").read_text() == "whole"


@POSIX
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_broken_pipe(tmp_path, stream):
    code = "import sys\nfor n in range(200_000): print(n, file=sys.STREAM)".replace("STREAM", stream)

    def ended(*command):
        with subprocess.Popen(
            [sys.executable, *command, "-c", code],
            cwd=tmp_path,
            env=environment(),
            **{"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, stream: subprocess.PIPE},
        ) as child:
            getattr(child, stream).readline()
            getattr(child, stream).close()
            return child.wait(60)

    found = ended("-m", "gpusense", "run")
    # Python's own status depends on where in a line the pipe breaks.
    assert any(ended() == found for _ in range(20))


def test_the_answer_fits_any_encoding(tmp_path):
    for encoding in ("ascii", "cp1252", "utf-8"):
        done = traced("-c", "pass", cwd=tmp_path, encoding=encoding, PYTHONIOENCODING=encoding, COLUMNS="60")
        assert done.returncode == 0
        assert "\x1b" not in done.stderr
        assert max(map(len, done.stderr.splitlines())) <= 60


# ---- our own behaviour


BLOCKS = """
import gpusense, time
time.sleep(0.03)  # in which ran what is recorded by hand
with gpusense.trace("outer", {"batch": 64}):
    with gpusense.trace("inner"):
        now = time.time_ns()
        gpusense.record_kernel("matmul", now - 5_000_000, now, device=0)
        gpusense.record_kernel("tiny", now - 5_000, now, device=0)
        gpusense.record_transfer("mesh", "cpu_to_gpu", bytes=10_485_760, duration_ns=25_000_000)
"""


def test_the_session_holds_what_happened(tmp_path):
    done = traced("-o", "s.gpusense", program(tmp_path, BLOCKS), cwd=tmp_path)
    assert done.returncode == 0
    assert "matmul" in done.stderr
    assert "records: 4 listed, 1 short one summed" in done.stderr
    assert "next: gpusense report s.gpusense --html" in done.stderr
    session = load(tmp_path / "s.gpusense")
    assert [(kernel.name, kernel.path) for kernel in session.kernels] == [("matmul", ("outer", "inner"))]
    assert [(row.name, row.count, row.total_ns) for row in session.aggregates] == [("tiny", 1, 5000)]
    assert {block.name for block in session.blocks} == {"outer", "inner"}
    assert (tmp_path / "s.gpusense").stat().st_mode & 0o777 == 0o600


def test_flags_reach_the_session(tmp_path):
    name = program(tmp_path, BLOCKS)
    assert traced("-o", "s.gpusense", "--trace-all", name, cwd=tmp_path).returncode == 0
    assert len(load(tmp_path / "s.gpusense").kernels) == 2
    assert traced("-o", "s.gpusense", "--threshold-us", "5", name, cwd=tmp_path).returncode == 0
    assert len(load(tmp_path / "s.gpusense").kernels) == 2
    assert traced("-o", "s.gpusense", "--live", "--threshold-us=10000", name, cwd=tmp_path).returncode == 0
    session = load(tmp_path / "s.gpusense")
    assert (len(session.kernels), session.meta["mode"]) == (0, "live")
    assert len(session.transfers) == 1


def test_without_a_gpu_it_says_why(tmp_path):
    done = traced("-c", "print('work')", cwd=tmp_path)
    assert done.stdout == "work\n"
    said = " ".join(done.stderr.split())
    assert re.fullmatch(r"gpusense: .* · no GPU work: .*; see gpusense doctor", said)


def test_nothing_temporary_stays(tmp_path):
    (tmp_path / "tmp").mkdir()
    for code in ("pass", "1/0", "raise SystemExit(3)"):
        traced("-c", code, cwd=tmp_path, TMPDIR=str(tmp_path / "tmp"))
        assert list((tmp_path / "tmp").iterdir()) == []


def test_off_means_off(tmp_path):
    code = "import gpusense; print(type(gpusense.get_tracer()).__name__)"
    done = traced("-o", "s.gpusense", "-c", code, cwd=tmp_path, GPUSENSE="off")
    assert (done.returncode, done.stdout) == (0, "NoopTracer\n")
    assert done.stderr == "gpusense: Nothing is recorded, because GPUSENSE=off.\n"
    assert not (tmp_path / "s.gpusense").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "name what to run: a script"),
        (("-m",), "name what to run: a script"),
        (("--threshold-us", "-1", "x.py"), "not a time in microseconds"),
        (("--threshold-us", "soon", "x.py"), "'soon' is not a number; say 50 for 50 µs"),
        (("--buffer-size", "0", "x.py"), "not a size"),
        (("--buffer-size", "1", "-c", "pass"), "buffer_size"),
        (("--unknown", "x.py"), "unrecognized"),
        (("-o", "no/such/folder/s.gpusense", "-c", "print(1)"), "No such file"),
        (("-o", "program.py", "-c", "print(1)"), "is not a gpusense session and is not overwritten"),
        (("-o", "no/such/folder/page.html", "-c", "print(1)"), "there is no folder"),
        (("-o", "{user}.gpusense", "-c", "print(1)"), "braces in a name stand for a fact of the run: {pid}, {rank}, "),
        (("--passes", "5..2", "--block", "b", "x.py"), "'5..2' are not passes"),
        (("--duration", "-1", "x.py"), "not a time in seconds"),
        (("--overhead", "0", "-c", "pass"), "overhead_budget"),
        (("--kinds", "waits", "-c", "pass"), "unknown kind 'waits'"),
    ],
)
def test_wrong_words_run_nothing(tmp_path, arguments, said):
    program(tmp_path, "print('ran')")
    done = traced(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@POSIX
def test_a_full_disk_does_not_reach_the_program(tmp_path):
    limit = "import os, resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))\n"
    many = (
        "for _ in range(99): gpusense.record_compute_block(os.urandom(50).hex(), 10**18, 2 * 10**18)\nprint('done')\n"
    )
    done = traced("-o", "s.gpusense", program(tmp_path, limit + "import gpusense\n" + many), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert "writing ended early: File too large" in done.stderr
    assert "Traceback" not in done.stderr


@POSIX
@pytest.mark.parametrize("output", [(), ("-o", "page.html")], ids=["kept", "page"])
def test_a_program_that_has_used_up_its_descriptors_is_answered(tmp_path, output):
    code = """
import os, resource, gpusense
with gpusense.trace("step"): gpusense.record_kernel("_Z3foov", duration_ns=5_000_000)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
try:
    while True: os.open("/dev/null", os.O_RDONLY)
except OSError: print("none left")
"""
    done = traced(*output, program(tmp_path, code), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "none left\n")
    assert "foo" in done.stderr
    assert "could not" not in done.stderr
    assert (tmp_path / "page.html").exists() == bool(output)


@POSIX
def test_files_under_the_numbers_of_ours_that_a_program_has_closed_stay_open(tmp_path):
    code = """
import os
from gpusense.cli._ending import Ending
def end(ending):  # the answer, in its place
    for descriptor in held: os.fstat(descriptor)
    print("all open")
Ending._end = end
os.closerange(3, 64)
held = [os.open("/dev/null", os.O_RDONLY) for _ in range(32)]
"""
    done = traced("-c", code, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "all open\n")


@POSIX
def test_the_program_may_take_its_time_with_the_terminal(tmp_path):
    """SIGTERM in the middle of a long C call: the session is flushed once the call returns."""
    code = "import time; print('on', flush=True); time.sleep(60)"
    with subprocess.Popen(
        [sys.executable, "-m", "gpusense", "run", "-o", "s.gpusense", "-c", code],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout.readline() == "on\n"
        begun = time.monotonic()
        child.terminate()
        _, stderr = child.communicate(timeout=30)
    assert child.returncode == -signal.SIGTERM
    assert time.monotonic() - begun < 20
    assert "no GPU work: " in " ".join(stderr.split())


# ---- any command, and what is said of it


def test_standard_input(tmp_path):
    same(tmp_path, "-", "a", "-b", stdin=FACTS.replace("sys.stdin.read()", "1"))
    same(tmp_path, "-", stdin="1/0")
    same(tmp_path, "-", stdin="raise SystemExit(4)")
    same(tmp_path, "-", stdin="(")


@pytest.mark.parametrize("options", [("-u",), ("-X", "dev"), ("-Wignore",), ("-OO",), ("-W", "error", "-s")])
def test_options_of_the_interpreter(tmp_path, options):
    code = "import sys\nprint(sys.flags, sys.warnoptions, sys.argv, __debug__)"
    same(tmp_path, *options, program(tmp_path, code), "-u")


@POSIX
def test_console_scripts_on_path(tmp_path):
    folder = tmp_path / "bin"
    folder.mkdir()
    interpreter = {"direct": f"#!{sys.executable}\n", "env": "#!/usr/bin/env python\n"}
    interpreter["long"] = f"#!/bin/sh\n'''exec' \"{sys.executable}\" \"$0\" \"$@\"\n' '''\n"
    environ = {"PATH": f"{folder}{os.pathsep}{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}"}
    for name, line in interpreter.items():
        (folder / name).write_text(f"{line}import sys\nprint(sys.argv, sys.path[0], __name__, __file__)\nsys.exit(3)\n")
        (folder / name).chmod(0o755)
        one = subprocess.run(
            [name, "a"], cwd=tmp_path, env=environment(**environ), capture_output=True, text=True, timeout=60
        )
        two = traced(name, "a", cwd=tmp_path, **environ)
        assert (two.returncode, two.stdout) == (one.returncode, one.stdout) == (3, one.stdout)
        assert "no GPU work: " in two.stderr
    (folder / "shell").write_text("#!/bin/sh\necho $0 $1\n")
    (folder / "shell").chmod(0o755)
    assert traced("shell", "a b", cwd=tmp_path, **environ).stdout == f"{folder}/shell a b\n"
    (tmp_path / "direct").mkdir()  # a folder of that name is in the way of nothing
    assert traced("direct", cwd=tmp_path, **environ).returncode == 3


def test_what_was_run_is_known_and_what_is_private_is_not(tmp_path):
    name = program(tmp_path, BLOCKS)
    assert traced("-o", "s.gpusense", "--label", "night", name, "--token", "secret", cwd=tmp_path).returncode == 0
    meta = load(tmp_path / "s.gpusense").meta
    assert (meta["run"]["command"], meta["run"]["label"]) == ("program.py --token secret", "night")
    assert meta["start_ns"] <= meta["program_start_ns"] < meta["program_end_ns"] <= meta["end_ns"]
    assert (meta["kinds"], meta["exit_code"]) == (["sync", "allocation"], 0)
    assert traced("-o", "t.gpusense", "--no-arguments", name, "--token", "secret", cwd=tmp_path).returncode == 0
    assert load(tmp_path / "t.gpusense").meta["run"]["command"] == "program.py"
    assert b"secret" not in (tmp_path / "t.gpusense").read_bytes()


def test_a_session_is_never_overwritten(tmp_path):
    name = program(tmp_path, BLOCKS)
    for _ in range(2):
        done = traced("-o", "s.gpusense", name, cwd=tmp_path)
    assert "The session that was in s.gpusense is now" in done.stderr
    assert sorted(path.name for path in tmp_path.glob("*.gpusense")) == ["s.gpusense", "s.old1.gpusense"]
    assert all(load(path).kernels for path in tmp_path.glob("*.gpusense"))


@pytest.mark.parametrize(("suffix", "begins"), [(".html", "<!doctype html>"), (".json", "{"), (".trace.json", "{")])
def test_the_suffix_chooses_the_format(tmp_path, suffix, begins):
    done = traced("-o", f"page{suffix}", program(tmp_path, BLOCKS), cwd=tmp_path)
    assert f"\nwritten: {tmp_path / 'page'}{suffix}\n" in done.stderr
    assert (tmp_path / f"page{suffix}").read_text("utf-8").lower().startswith(begins)
    assert done.stderr.endswith("(kept; see gpusense list)\n")


def test_a_report_that_cannot_be_written_is_told_and_nothing_is_lost(tmp_path):
    (tmp_path / "page.html").mkdir()
    done = traced("-o", "page.html", program(tmp_path, BLOCKS), cwd=tmp_path)
    assert done.returncode == 0
    assert "matmul" in done.stderr
    place = tmp_path / "page.html"
    said = " ".join(done.stderr.split())
    assert f"Not written: {place}: cannot be written: it is a folder. The session is kept" in said


def test_quiet(tmp_path):
    assert traced("--quiet", "-c", "print(1)", cwd=tmp_path).stderr == ""
    assert traced("-q", "-c", "print(1)", cwd=tmp_path).stderr == ""


WINDOW = """
import gpusense, time
begun = time.monotonic()
for n in range(12):
    with gpusense.trace(f"at {n}"): pass
    time.sleep(max(0.0, begun + 0.25 * (n + 1) - time.monotonic()))
"""


@pytest.mark.parametrize(
    ("window", "seen", "unseen"),
    [(("--delay", "1.5"), {10, 11}, {0, 1, 2}), (("--duration", "1.5s"), {0, 1, 2}, {10, 11})],
)
def test_a_part_of_the_time(tmp_path, window, seen, unseen):
    assert traced("-o", "s.gpusense", *window, program(tmp_path, WINDOW), cwd=tmp_path).returncode == 0
    found = {int(block.name.split()[1]) for block in load(tmp_path / "s.gpusense").blocks}
    assert seen <= found
    assert not unseen & found


@pytest.mark.parametrize("keep", [(("--no-keep",), {}), ((), {"GPUSENSE_KEEP": "0"})])
def test_nothing_is_kept_where_nothing_is_to_be(tmp_path, keep):
    options, environ = keep
    done = traced(*options, program(tmp_path, BLOCKS), cwd=tmp_path, XDG_CACHE_HOME=str(tmp_path / "cache"), **environ)
    assert done.returncode == 0
    assert not (tmp_path / "cache").exists()
    assert "keeps the session" in done.stderr


def test_an_option_that_is_misspelt_and_a_script_without_the_verb(tmp_path):
    done = traced("--trcae-all", "-c", "pass", cwd=tmp_path)
    assert done.returncode == 2
    assert "unrecognized arguments: --trcae-all; did you mean --trace-all?" in done.stderr
    program(tmp_path, "", "train.py")
    done = finish([sys.executable, "-m", "gpusense", "train.py"], tmp_path)
    assert done.returncode == 2
    assert "did you mean gpusense run train.py?" in done.stderr
    done = finish([sys.executable, "-m", "gpusense", "help", "run"], tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith("usage: gpusense run")

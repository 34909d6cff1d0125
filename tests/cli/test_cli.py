"""The command as a user types it: verbs, words that are wrong, output that goes away, files that are damaged."""

import importlib
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from support import strict
from support.sessions import session as make_session
from support.sessions import training

import gpusense
from gpusense import cli, doctor
from gpusense._records.protocols import Backend
from gpusense._runtime import log
from gpusense._runtime import process as _process
from gpusense._tracing import select
from gpusense.backends import cuda
from gpusense.backends.amd import rocm_smi
from gpusense.backends.amd import sysfs as amd_sysfs
from gpusense.backends.drm import source as drm_files
from gpusense.backends.nvml import source as nvml
from gpusense.backends.wgpu import source as wgpu
from gpusense.cli.demo import RECORDED
from gpusense.session import save

VERBS = [verb for verb in cli.VERBS if verb in cli._present() and verb != "run"]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    path = tmp_path_factory.mktemp("cli") / "run.gpusense"
    save(training(), path)
    return str(path)


@pytest.fixture(autouse=True)
def no_software_driver(monkeypatch):
    """That of this machine takes a second each time that a process asks for its devices."""
    monkeypatch.setenv("GPUSENSE_LIBWGPU_NATIVE", "/none")


# ---- verbs


def test_help_lists_what_there_is(capsys):
    for words in ([], ["--help"], ["-h"], ["help"]):
        assert cli.main(words) == 0
        shown = capsys.readouterr().out
        assert all(f"\n  {verb} " in shown for verb in cli._present())
    absent = set(cli.VERBS) - set(cli._present())
    assert not any(f"\n  {verb} " in shown for verb in absent)


def test_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"gpusense {gpusense.__version__}\n"


@pytest.mark.parametrize(("word", "said"), [("rum", "did you mean run?"), ("xyzzy", "gpusense --help lists the verbs")])
def test_a_verb_there_is_not(capsys, word, said):
    assert cli.main([word]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("verb", [*VERBS, "run"])
def test_every_verb_explains_itself(capsys, verb):
    with pytest.raises(SystemExit) as left:
        cli.main([verb, "--help"])
    assert left.value.code == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: gpusense {verb}")
    assert len(shown.splitlines()) > 4


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_the_same_shape(verb):
    module = importlib.import_module(f"gpusense.cli.{cli._module(verb)}")
    assert callable(module.add_arguments)
    assert module.main.__code__.co_argcount == 1


@pytest.mark.parametrize("verb", [*VERBS, "run"])
def test_an_unknown_option_is_refused(capsys, verb):
    with pytest.raises(SystemExit) as left:
        cli.main([verb, "--no-such-option"])
    assert left.value.code == 2
    assert "usage: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "--trcae-all", "train.py"], "unrecognized arguments: --trcae-all; did you mean --trace-all?"),
        (["report", "--speedscop", "x"], "unrecognized arguments: --speedscop; did you mean --speedscope?"),
        (["run", "--passes", "3", "train.py"], "error: --passes needs --block NAME\n"),
        (["run", "--threshold-us", "soon", "x"], "argument --threshold-us: 'soon' is not a number; say 50 for 50 µs"),
        (["run", "--buffer-size", "big", "x"], "argument --buffer-size: 'big' is not a size; say 256K or 1M"),
        (["run", "--devices", "all", "x"], "argument --devices: 'all' are not device numbers; say 0 or 0,1"),
        (["run", "--passes", "last", "x"], "argument --passes: 'last' are not passes; say 10..20, counted from 1"),
        (["run", "--overhead", "1", "x"], "argument --overhead: '1' could be 1% or 100%; say which"),
        (["run", "--duration", "nan", "x"], "argument --duration: 'nan' is not a time in seconds; say 1.5 for 1.5 s"),
        (["monitor", "--interval", "x"], "argument --interval: 'x' is not a number; say 1.5 for 1.5 s"),
        (["run", "--counters=fast", "x"], "counters must be on, off, exact or a rate from 1Hz to 20kHz, not 'fast'"),
    ],
)
def test_what_is_wrong_is_named_with_what_to_say(capsys, words, said):
    with pytest.raises(SystemExit) as left:
        cli.main(words)
    assert left.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["--counters", "50Hz", "train.py"], "--counters=50Hz"),
        (["--quiet", "--counters", "exact", "train.py"], "--counters=exact"),
        (["--syscalls", "ioctl,read", "train.py"], "--syscalls=ioctl,read"),
        (["--counters", "train"], ""),
        (["--counters", "train.py"], ""),
        (["--quiet", "50Hz"], ""),
    ],
)
def test_a_value_behind_a_blank_is_not_taken_for_a_program(capsys, monkeypatch, tmp_path, words, meant):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["run", *words]) == 2
    said = capsys.readouterr().err
    assert said.endswith(f". Did you mean {meant}?\n" if meant else "\n")
    assert ("Did you mean" in said) == bool(meant)


def test_a_program_may_be_called_as_a_rate(monkeypatch, tmp_path):
    from gpusense.cli import _program

    monkeypatch.chdir(tmp_path)
    (tmp_path / "50Hz").write_text("")
    assert _program.problem(_program.program_of(["50Hz"])) is None


def test_help_imports_next_to_nothing(run_python):
    done = run_python(
        "import sys; before = set(sys.modules)\nfrom gpusense.cli import main\nmain(['--help'])\n"
        "print(sorted(name for name in set(sys.modules) - before if name.startswith('gpusense')))\n"
        "print([name for name in ('argparse', 'typing', 'json', 'ctypes') if name in set(sys.modules) - before])"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == ["['gpusense', 'gpusense.cli']", "[]"]


def test_python_m_is_the_same_command(run_python):
    done = run_python("import runpy; runpy.run_module('gpusense', run_name='__main__', alter_sys=True)")
    assert done.returncode == 0
    assert done.stdout.startswith("usage: gpusense VERB")


# ---- report, diff


def test_report_as_text_and_json(capsys, recorded):
    assert cli.main(["report", recorded]) == 0
    assert "Operations on the device" in capsys.readouterr().out
    assert cli.main(["report", recorded, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "gpusense.report/1"


@pytest.mark.parametrize(
    ("form", "suffix", "begins"),
    [
        ("--html", ".html", b"<!doctype html>"),
        ("--perfetto", ".pftrace", b"\n"),
        ("--chrome", ".trace.json", b"{"),
        ("--speedscope", ".speedscope.json", b"{"),
    ],
)
def test_every_format_is_written_beside_the_session(capsys, monkeypatch, tmp_path, form, suffix, begins):
    source = tmp_path / "a.gpusense"
    save(training(2), source)
    assert cli.main(["report", str(source), form]) == 0
    written = tmp_path / f"a{suffix}"
    assert capsys.readouterr() == ("", f"written: {written}\n")
    assert written.read_bytes()[: len(begins)].lower() == begins
    assert cli.main(["report", str(source), form, "-o", str(tmp_path / "b")]) == 0
    assert (tmp_path / "b").read_bytes() == written.read_bytes()
    with open(tmp_path / "redirected", "w") as empty, monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", empty)
        assert cli.main(["report", str(source), form]) == 0
    assert capsys.readouterr().err.endswith(" (replaced); nothing went to standard output (-o - writes there)\n")
    assert (tmp_path / "redirected").read_bytes() == b""


def test_flamegraph_and_text_go_to_standard_output_or_a_file(capsys, tmp_path, recorded):
    assert cli.main(["report", recorded, "--flamegraph"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert all(line.rsplit(" ", 1)[1].isdigit() for line in lines)
    assert cli.main(["report", recorded, "-o", str(tmp_path / "r.txt")]) == 0
    assert "Operations on the device" in (tmp_path / "r.txt").read_text(encoding="utf-8")
    assert cli.main(["report", recorded, "--html", "-o", "-"]) == 0
    assert capsys.readouterr().out.lower().startswith("<!doctype html>")


@pytest.mark.parametrize(("form", "suffix"), [("--flamegraph", ".folded"), ("--json", ".json")])
def test_what_another_program_reads_is_not_poured_over_a_terminal(capsys, monkeypatch, tmp_path, form, suffix):
    source = tmp_path / "a.gpusense"
    save(training(2), source)
    assert cli.main(["report", str(source), form]) == 0
    piped = capsys.readouterr().out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert cli.main(["report", str(source), form]) == 0
    assert capsys.readouterr() == ("", f"written: {source.with_suffix(suffix)}\n")
    assert source.with_suffix(suffix).read_text("utf-8") == piped
    assert cli.main(["report", str(source), form, "-o", "-"]) == 0
    assert capsys.readouterr().out == piped


def test_two_sessions_become_one_report(capsys, tmp_path):
    for number in (0, 1):
        one = training(2)
        one.meta |= {"rank": number, "world_size": 2}
        save(one, tmp_path / f"{number}.gpusense")
    assert cli.main(["report", str(tmp_path / "0.gpusense"), str(tmp_path / "1.gpusense"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [process["root"] for process in report["meta"]["processes"]] == ["rank 0", "rank 1"]


def test_a_threshold_given_afterwards(capsys, recorded):
    assert cli.main(["report", recorded, "--json", "--threshold-us", "1e9"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["records"] == []
    assert report["aggregates"]


def test_what_cannot_be_read(capsys, tmp_path, recorded):
    (tmp_path / "text").write_text("hello, this is no session")
    for path, said in ((tmp_path / "absent", "No such file"), (tmp_path / "text", "not a gpusense session")):
        assert cli.main(["report", str(path)]) == 2
        shown = capsys.readouterr()
        assert shown.out == ""
        assert shown.err.startswith(f"gpusense report: {path}: ")
        assert said in shown.err
    assert cli.main(["report", recorded, "--html", "-o", str(tmp_path / "no" / "folder")]) == 2
    assert f"there is no folder {tmp_path}/no" in capsys.readouterr().err


def test_a_damaged_file_is_reported_with_its_fault(capsys, tmp_path):
    save(training(2), tmp_path / "s")
    data = bytearray((tmp_path / "s").read_bytes())
    data[-60] ^= 1
    (tmp_path / "s").write_bytes(data)
    assert cli.main(["report", str(tmp_path / "s")]) == 0
    shown = capsys.readouterr().out
    assert "Damage" in shown
    assert "offset" in shown


def test_diff(capsys, tmp_path, recorded):
    save(make_session(*training().records[:50]), tmp_path / "less")
    assert cli.main(["diff", recorded, recorded, "--fail-over", "10%"]) == 0
    assert "same" in capsys.readouterr().out
    assert cli.main(["diff", str(tmp_path / "less"), recorded, "--fail-over", "0.1"]) == 3
    assert cli.main(["diff", str(tmp_path / "less"), recorded, "--json"]) == 0
    capsys.readouterr()
    assert cli.main(["diff", f"{recorded},{recorded}", recorded, "--html", "-o", str(tmp_path / "d.html")]) == 0
    assert "<html" in (tmp_path / "d.html").read_text(encoding="utf-8")
    assert cli.main(["diff", recorded, str(tmp_path / "absent")]) == 2


# ---- output


@pytest.mark.skipif(os.name == "nt", reason="POSIX pipes")
def test_head_is_no_error(recorded):
    command = f"{sys.executable} -m gpusense report --json {recorded} | head -c 10; echo ${{PIPESTATUS[0]}}"
    root = os.path.dirname(os.path.dirname(gpusense.__file__))
    done = subprocess.run(
        ["bash", "-c", command], env={**os.environ, "PYTHONPATH": root}, capture_output=True, text=True, timeout=60
    )
    assert done.stderr == ""
    assert done.stdout.endswith(("0\n", "141\n"))


@pytest.mark.parametrize("verb", [["report"], ["devices"], ["doctor"], ["demo"], ["--help"]])
def test_every_encoding(recorded, verb):
    words = verb + [recorded] * (verb == ["report"])
    root = os.path.dirname(os.path.dirname(gpusense.__file__))
    for encoding in ("ascii", "cp1252"):
        environ = {**os.environ, "PYTHONPATH": root, "PYTHONIOENCODING": encoding}
        done = subprocess.run(
            [sys.executable, "-m", "gpusense", *words], env=environ, capture_output=True, encoding=encoding, timeout=60
        )
        assert done.returncode in (0, 1), done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.skipif(os.name == "nt", reason="POSIX shells")
@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("report RECORDED", 0),
        ("report RECORDED --html -o page.html", 0),
        ("report no-such-file", 2),
        ("xyzzy", 2),
        ("--version", 0),
        ('run -c \'open("ran", "w")\'', 0),
    ],
)
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_change_nothing(recorded, tmp_path, words, code, closed):
    done = shell(f"{words.replace('RECORDED', recorded)} {closed}", tmp_path, GPUSENSE_THRESHOLD_US="nonsense")
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
    assert os.listdir(tmp_path) == (["page.html"] if "page" in words else ["ran"] if "ran" in words else [])


@pytest.mark.skipif(os.name == "nt", reason="POSIX shells")
def test_a_program_runs_where_nobody_can_be_told_that_it_is_not_recorded(tmp_path):
    assert shell('run -c \'open("ran", "w")\' 2>&-', tmp_path, GPUSENSE="off").returncode == 0
    assert os.listdir(tmp_path) == ["ran"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
@pytest.mark.parametrize("words", ["report RECORDED", "report RECORDED --json", "--help", "--version", "doctor"])
def test_a_full_disk_is_one_sentence(recorded, tmp_path, words):
    done = shell(f"{words.replace('RECORDED', recorded)} > /dev/full", tmp_path)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert "No space left on device" in done.stderr


def shell(words, folder, before="", **environ):
    """The command in a shell, in ``folder``."""
    root = os.path.dirname(os.path.dirname(gpusense.__file__))
    return subprocess.run(
        ["bash", "-c", f"{before} {sys.executable} -m gpusense {words}"],
        env={**os.environ, "PYTHONPATH": root, **environ},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.skipif(os.name == "nt", reason="POSIX shells")
def test_a_trace_on_standard_input_of_any_encoding_or_none(tmp_path):
    line = "printf '1 1700000000.1 read(3, \"\\xff\", 2) = 2 <0.1>\\n'"
    strict = {"PYTHONIOENCODING": "utf-8:strict"}
    done = shell("import strace - -o s.gpusense", tmp_path, before=f"{line} |", **strict)
    assert (done.returncode, done.stderr) == (0, "s.gpusense: 1 call\n")
    done = shell("import strace - -o s.gpusense <&-", tmp_path)
    assert (done.returncode, done.stderr) == (2, "gpusense import: standard input is closed\n")


def test_a_report_does_not_replace_its_session(capsys, recorded):
    with open(recorded, "rb") as file:
        before = file.read()
    for words in (["report", recorded, "-o", recorded], ["diff", recorded, recorded, "-o", recorded]):
        assert cli.main(words) == 2
        assert capsys.readouterr().err.endswith(f"{recorded} is the session itself; give -o another path\n")
    with open(recorded, "rb") as file:
        assert file.read() == before


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="POSIX pipes")
@pytest.mark.parametrize("form", ["--json", "--perfetto"])
def test_a_pipe_and_a_link_stay_what_they_are(recorded, tmp_path, form):
    pipe, link, page = tmp_path / "pipe", tmp_path / "link", tmp_path / "page"
    os.mkfifo(pipe)
    with tempfile.TemporaryFile() as read:
        with subprocess.Popen(["cat", pipe], stdout=read):
            assert cli.main(["report", recorded, form, "-o", str(pipe)]) == 0
        read.seek(0)
        piped = read.read()
    page.write_bytes(b"older")
    link.symlink_to(page.name)
    assert cli.main(["report", recorded, form, "-o", str(link)]) == 0
    assert link.is_symlink()
    assert page.read_bytes() == piped
    assert sorted(os.listdir(tmp_path)) == ["link", "page", "pipe"]


def test_a_folder_that_is_not_there_is_named(capsys, recorded, tmp_path):
    for path in (tmp_path / "none" / "page.html", tmp_path):
        assert cli.main(["report", recorded, "--html", "-o", str(path)]) == 2
        assert capsys.readouterr().err.startswith(f"gpusense report: {path}: ")
    assert os.listdir(tmp_path) == []


ROOT = os.path.dirname(os.path.dirname(gpusense.__file__))


@pytest.mark.skipif(os.name == "nt", reason="POSIX shell")
@pytest.mark.parametrize("verb", ["doctor", "top", "top --once", "monitor", "demo --recorded", "--help", "--version"])
def test_a_closed_stream_is_no_error(verb):
    command = [sys.executable, "-m", "gpusense", *verb.split()]
    environ = {**os.environ, "PYTHONPATH": ROOT}
    codes = (0, 1) if verb.startswith(("top", "monitor")) else (0,)  # 1: this machine has no device
    for closed in (">&-", ">&- 2>&-"):
        done = subprocess.run(
            ["bash", "-c", f'"$@" {closed}', "bash", *command], env=environ, capture_output=True, text=True, timeout=60
        )
        assert done.returncode in codes
        assert done.stderr == ""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux")
@pytest.mark.parametrize("verb", ["doctor", "--help", "--version"])
def test_a_full_disk_is_told_in_a_sentence(verb):
    with open("/dev/full", "w", encoding="utf-8") as full:
        command, environ = [sys.executable, "-m", "gpusense", verb], {**os.environ, "PYTHONPATH": ROOT}
        done = subprocess.run(command, env=environ, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr == f"gpusense{'' if verb[0] == '-' else ' ' + verb}: No space left on device\n"


# ---- doctor, devices


def test_doctor_names_every_backend_and_its_reason(capsys):
    assert cli.main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["schema"] == "gpusense.doctor/1"
    from gpusense.backends import BACKENDS

    assert [row["name"] for row in report["backends"]] == [row.name for row in BACKENDS]
    for row in report["backends"]:
        assert set(row) == set(doctor.Check._fields)
        assert row["available"] or row["reason"], row
    assert {"python", "platform", "callbacks"} <= {row["name"] for row in report["environment"]}
    assert report["selftest"] is None


def test_doctor_as_text(capsys, monkeypatch):
    monkeypatch.setenv("GPUSENSE_THRESHOLD_US", "50")
    monkeypatch.setenv("CUDA_INJECTION64_PATH", "/opt/nsys/libinjection.so")
    assert cli.main(["doctor"]) == 0
    shown = capsys.readouterr().out
    for word in ("cupti", "nvml", "python", "GPUSENSE_THRESHOLD_US", "/opt/nsys/libinjection.so is loaded"):
        assert word in shown


def test_doctor_says_which_levels_of_measuring_a_card_has(monkeypatch):
    from gpusense.backends.cupti.counters import host, permission

    def levels(capability, refused=None, version=None, **absent):
        card = gpusense.DeviceInfo(0, "card", "nvidia", "nvml", compute_capability=capability)
        monkeypatch.setattr(doctor, "devices", lambda checks: ((card,), ()))
        monkeypatch.setattr(permission, "refusal", lambda: refused)
        monkeypatch.setattr(host, "open_api", lambda: "functions")
        checks = [doctor.Check(name, name not in absent, absent.get(name, "")) for name in ("cuda", "nvml", "cupti")]
        checks[-1] = checks[-1]._replace(version=version)
        return {row.name: (row.available, row.reason) for row in doctor.levels(checks)}

    assert [available for available, _ in levels((10, 0)).values()] == [True] * 4
    hopper = levels((9, 0))
    assert [name for name, (available, _) in hopper.items() if not available] == ["hardware events"]
    assert "Blackwell" in hopper["hardware events"][1]
    ampere = levels((8, 0), refused=gpusense.Unavailable("counters", "for administrators", "as root"))
    assert ampere["averages"] == (False, "device averages of SMs, tensor cores and memory come with Hopper")
    assert ampere["counters"] == (False, "for administrators")
    assert levels((7, 0))["counters"][0] is False
    assert levels((10, 0), version="13.4 (130401)")["hardware events"][0] is True
    assert "this one is 130001" in levels((10, 0), version="13.0 (130001)")["hardware events"][1]
    for name in ("counters", "hardware events"):
        assert levels((10, 0), cupti="no libcupti")[name] == (False, "no libcupti")
    assert levels((9, 0), cuda="no driver", nvml="no driver") == {}, "a laptop is told nothing of it"


def test_doctor_says_what_a_free_threaded_build_lacks(monkeypatch):
    monkeypatch.setattr(sys, "abiflags", "", raising=False)
    rows = {row.name: row for row in doctor.environment()}
    assert rows["python"][1:4] == (True, "", "")
    monkeypatch.setattr(sys, "abiflags", "t", raising=False)
    rows = {row.name: row for row in doctor.environment()}
    assert rows["python"][1:4] == (
        False, "capture is not supported by a free-threaded Python", "run with the usual build of Python",
    )  # fmt: skip


def test_doctor_names_variables_without_effect(monkeypatch):
    for name, value in (("THRESHOLD_US", "soon"), ("TRESHOLD_US", "5"), ("SAMPLE_RATE", "0.5"), ("OTEL", "off")):
        monkeypatch.setenv(f"GPUSENSE_{name}", value)
    rows = {row.name: row for row in doctor.environment()}
    assert not rows["GPUSENSE_THRESHOLD_US"].available
    assert "'soon' is ignored" in rows["GPUSENSE_THRESHOLD_US"].reason
    assert "no setting has this name" in rows["GPUSENSE_TRESHOLD_US"].reason
    assert rows["GPUSENSE_SAMPLE_RATE"][:3] == ("GPUSENSE_SAMPLE_RATE", True, "0.5")
    assert rows["GPUSENSE_OTEL"].available


def test_a_backend_that_breaks_is_an_absence(monkeypatch, capsys):
    from gpusense.backends.nvml import source as nvml

    def broken():
        raise RuntimeError("boom")

    monkeypatch.setattr(nvml, "open", broken)
    row = next(row for row in doctor.backends() if row.name == "nvml")
    assert (row.available, row.reason) == (False, "RuntimeError: boom")


def test_a_selftest_without_a_gpu_says_so(capsys, monkeypatch):
    monkeypatch.setenv("GPUSENSE_LIBCUDA", "/nowhere/libcuda.so.1")
    assert cli.main(["doctor", "--selftest", "--json"]) == 4
    tested = json.loads(capsys.readouterr().out)["selftest"]
    assert tested["passed"] is None
    assert "/nowhere/libcuda.so.1" in tested["reason"]


@pytest.mark.parametrize("words", [["doctor"], ["doctor", "--json"], ["devices"]])
def test_a_driver_that_hangs_is_named(monkeypatch, capsys, words):
    with hanging(monkeypatch):
        code = cli.main(words)
    said = capsys.readouterr()
    assert code == (words == ["devices"])
    if words == ["doctor", "--json"]:
        rows = {row["name"]: row["reason"] for row in json.loads(said.out)["backends"]}
        assert rows["nvml"] == "has not answered for 5 s"
        assert rows["amd_sysfs"] != rows["nvml"]
    elif words == ["doctor"]:
        assert "-- nvml\n   has not answered for 5 s\n   try: its driver hangs" in said.out
        assert said.out.splitlines()[1].startswith("GPU kernels cannot be recorded here: ")
        assert "\n0 devices, without those of nvml\n" in said.out
    else:
        assert (
            said.err == "Devices of nvml are not known: the driver does not answer; gpusense doctor says what to do.\n"
        )


@contextmanager
def hanging(monkeypatch, patience_s=0.5):
    """NVML's driver does not return, and no other device is there."""
    release, asked = threading.Event(), []

    def wait():
        asked.append(threading.current_thread())
        release.wait()
        return gpusense.Unavailable("nvml", "too late")

    monkeypatch.setattr(nvml, "open", wait)
    for other in (cuda, amd_sysfs, rocm_smi, drm_files, wgpu):
        monkeypatch.setattr(other, "open", lambda: gpusense.Unavailable("other", "not here"))
    monkeypatch.setattr(_process, "PATIENCE_S", patience_s)
    monkeypatch.setattr(log, "_said", set())
    try:
        yield asked
    finally:
        release.set()
        for thread in asked:
            thread.join()


def test_who_asks_for_devices_is_not_held_by_a_driver(monkeypatch, caplog):
    """It hung with the driver; what others list is given."""
    from support.sessions import H100

    other = Backend(
        "amd_sysfs", "", devices=SimpleNamespace(devices=lambda: (H100._replace(name="MI300", vendor="amd"),))
    )
    with hanging(monkeypatch, 2.0) as asked:
        monkeypatch.setattr(amd_sysfs, "open", lambda: other)
        assert [device.name for device in gpusense.devices()] == ["MI300"]
        began = time.monotonic()
        for _ in range(5):
            assert [device.name for device in gpusense.devices()] == ["MI300"]
        assert time.monotonic() - began < 8  # who asks again does not wait again, or it would be ten
        assert len(asked) == 1
        assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
            "gpusense: nvml has not answered; its devices are left out"
        ]
    monkeypatch.setattr(nvml, "open", lambda: other._replace(name="nvml"))
    assert len(gpusense.devices()) == 1
    assert not [name for name in _process._open_questions if "devices" in name]


def test_a_forked_child_asks_anew(monkeypatch):
    with hanging(monkeypatch) as asked:
        assert gpusense.devices() == ()
        _process._open_questions["gpusense-devices-nvml"].pid += 1  # as after a fork: the thread is the parent's
        assert gpusense.devices() == ()
        assert len(asked) == 2


def test_devices_without_one(capsys, monkeypatch):
    monkeypatch.setattr("gpusense.backends.all_devices", lambda without: ((), ()))
    assert cli.main(["devices"]) == 1
    assert "gpusense doctor" in capsys.readouterr().err
    assert cli.main(["devices", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == {"schema": "gpusense.devices/1", "devices": []}


def test_devices_with_one(capsys, monkeypatch):
    from support.sessions import H100

    odd = H100._replace(name="odd\x1b[31m\udc80")
    monkeypatch.setattr("gpusense.backends.all_devices", lambda without: ((odd,), ()))
    assert cli.main(["devices", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["devices"][0]["sm_count"] == 132
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert cli.main(["devices"]) == 0
    assert b"132 SMs" in sys.stdout.buffer.getvalue()
    assert b"\x1b" not in sys.stdout.buffer.getvalue()


def test_demo_without_gpu_and_recording_is_clear(capsys, monkeypatch):
    from gpusense.cli import demo

    monkeypatch.setattr(select, "possible", lambda: gpusense.Unavailable("cuda", "no device here"))
    monkeypatch.setattr(demo, "RECORDED", "/nowhere/_demo.gpusense")
    assert cli.main(["demo"]) == 1
    assert "no device here; and this copy comes without the recorded run" in capsys.readouterr().err


def test_demo_shows_the_recorded_run_and_says_so(capsys, monkeypatch, recorded, tmp_path):
    from gpusense.cli import demo

    monkeypatch.setattr(demo, "RECORDED", recorded)
    assert cli.main(["demo", "--recorded", "-o", str(tmp_path / "copy.gpusense")]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("This is a recorded run")
    assert "verdict: " in shown
    assert (tmp_path / "copy.gpusense").exists()
    assert f"\nnext: gpusense report {tmp_path}" in shown


def test_demo_says_what_kernels_do_in_a_process_without_a_cpp_runtime():
    command = [sys.executable, "-m", "gpusense", "demo", "--recorded"]
    environ = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(gpusense.__file__))}
    shown = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60).stdout
    assert "elementwise<direct_copy<bf16>>" in shown
    assert "ILi" not in shown


def test_what_demo_says_to_do_next_can_be_done(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["demo", "--recorded"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    command, _, said = last.removeprefix("next: gpusense ").partition(" keeps ")
    assert said == "the session for gpusense report"
    assert cli.main([*command.split(), "--recorded"]) == 0
    assert cli.main(["report", "demo.gpusense"]) == 0


@pytest.mark.parametrize(
    "words",
    [
        ["report", "{}"], ["diff", "{}", "{}"], ["export", "--otlp", "http://x", "{}"], ["top", "--replay", "{}"],
        ["monitor", "--once", "--device", "{}"], ["top", "--once", "--device", "{}"], ["vendor", "--check", "{}"],
        ["import", "strace", "{}", "-o", "x"], ["{}"],
    ],
)  # fmt: skip
def test_a_terminal_obeys_no_name_in_a_complaint(words, capsys):
    name = "no\x1b[2J\u202esuch"
    assert cli.main([word.format(name) for word in words]) == 2
    said = capsys.readouterr()
    strict.terminal(said.err + said.out)
    assert "such" in said.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", "-o", "-", "-c", "1"), "-: a session is not written to standard output; name a file"),
        (("run", "-o", "x.md", "-c", "1"), "x.md: a table in Markdown is not what this command writes"),
        (("import", "-o", "x.html", "trace.json"), "x.html: one offline HTML page is not what this command writes"),
        (("import", "-o", "-", "trace.json"), "-: a session is not written to standard output"),
        (("demo", "-o", "x.json"), "x.json: one JSON object, schema gpusense.report/1 is not what this command writes"),
        (("report", "--json", "-o", "x.html", "DEMO"), "x.html: the suffix asks for one offline HTML page, --json"),
        (("diff", "-o", "x.pftrace", "DEMO", "DEMO"), "x.pftrace: a native Perfetto trace for ui.perfetto.dev is not"),
        (("diff", "--json", "-o", "x.md", "DEMO", "DEMO"), "x.md: the suffix asks for a table in Markdown, --json for"),
    ],
)
def test_a_suffix_that_contradicts_the_command_writes_nothing(monkeypatch, capsys, tmp_path, words, said):
    monkeypatch.chdir(tmp_path)
    assert cli.main([RECORDED if word == "DEMO" else word for word in words]) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kinds", [(), ("cpu",), ("cpu", "discrete")])
def test_a_processor_that_plays_a_device_is_none(monkeypatch, capsys, kinds):
    """devices said 0 where monitor and top said 1."""
    from support.sessions import H100

    found = tuple(H100._replace(index=at, kind=kind) for at, kind in enumerate(kinds))
    monkeypatch.setattr(doctor, "devices", lambda: (found, ()))
    assert cli.main(["devices"]) == ("discrete" not in kinds)
    told = capsys.readouterr()
    assert told.out.count("\n") == len(kinds)
    assert told.err == {
        (): "No device was found; gpusense doctor says why.\n",
        ("cpu",): "No device was found, but for a processor that plays one; gpusense doctor says why.\n",
    }.get(kinds, "")

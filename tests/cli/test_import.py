"""``gpusense import`` as a command: what it knows, files known by their content, where it writes, what it refuses."""

import json
import sys

import pytest
from support.sessions import training

from gpusense import cli, load

EVENT = {"ph": "X", "cat": "user_annotation", "name": "step", "pid": 1, "tid": 2, "ts": 1_700_000_000_000_000, "dur": 9}
CHROME = json.dumps({"traceEvents": [EVENT]}).encode()
STRACE = b"77 1700000000.000123 ioctl(4, 0x7) = 0 <0.000250>\n"


@pytest.fixture
def imported(tmp_path, monkeypatch, capsys):
    """``imported(name, data, …)``: exit code and what was said of a file, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(name, data, *options):
        if data is not None:
            (tmp_path / name).write_bytes(data)
        code = cli.main(["import", name, *options])
        return code, capsys.readouterr().err

    return run


def test_without_a_file_it_says_what_it_knows_and_how_to_make_it(capsys):
    assert cli.main(["import"]) == 0
    shown = capsys.readouterr().out
    for how in ("export_chrome_trace", "nsys export --type sqlite", "proton.start", "strace -f -ttt -T"):
        assert how in shown


@pytest.mark.parametrize(
    ("name", "data", "made"),
    [
        ("run.pt.trace.json", CHROME, "run.gpusense"),
        ("trace", b"\xef\xbb\xbf \n" + CHROME, "trace.gpusense"),
        ("list.json", b"[\n" + json.dumps(EVENT).encode() + b"]", "list.gpusense"),
        ("calls.txt", STRACE, "calls.gpusense"),
        ("calls", b"[pid 77] 1700000000.0 ioctl(4) = 0 <0.1>\n", "calls.gpusense"),
        ("strace", STRACE, "strace.gpusense"),
    ],
)
def test_a_file_is_known_by_its_content(imported, name, data, made):
    code, said = imported(name, data)
    assert (code, said.startswith(f"{made}: 1 ")) == (0, True)
    assert len(load(made).records) == 1
    assert imported(name, data) == (2, f"gpusense import: {made} is there already; -o names another\n")
    assert imported(name, data, "-o", made)[0] == 0  # a name that was given is written over


@pytest.mark.parametrize(
    ("name", "data", "why"),
    [
        ("a.nsys-rep", b"\x00\x01\x02", "nsys export --type sqlite a.nsys-rep"),
        ("a.bin", b"\x00" * 5000, "not a trace of torch.profiler"),
        ("a.txt", b"hello\n", "not a trace of torch.profiler"),
        ("empty", b"", "not a trace of torch.profiler"),
        ("absent", None, "No such file"),
    ],
)
def test_what_it_does_not_know_is_refused(imported, name, data, why):
    code, said = imported(name, data)
    assert (code, why in said) == (2, True), said


def test_what_is_of_strace_alone_is_refused_elsewhere(imported):
    assert imported("a.json", CHROME, "--pid", "7")[0] == 2
    assert imported("a.json", CHROME, "b.json")[0] == 2


def test_standard_input_is_read(imported, monkeypatch, tmp_path):
    (tmp_path / "in").write_bytes(CHROME)
    with open(tmp_path / "in", encoding="utf-8") as file:
        monkeypatch.setattr(sys, "stdin", file)
        assert imported("-", None)[0] == 0
    assert load("trace.gpusense").blocks[0].name == "step"
    monkeypatch.setattr(sys, "stdin", None)
    assert imported("-", None, "-o", "x")[0] == 2


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("own.trace.json", "own.trace.json: gpusense wrote this file: gpusense report reads the session"),
        ("own.json", "own.json: gpusense wrote this file: gpusense report reads the session or the JSON report"),
        ("own.gpusense", "own.gpusense: this is a session already: gpusense report own.gpusense"),
    ],
)
def test_what_gpusense_wrote_itself_is_no_other_tool_s_trace(imported, tmp_path, name, said):
    training(1).save(tmp_path / name)
    code, told = imported(name, None, "-o", "again.gpusense")
    assert (code, list(tmp_path.iterdir())) == (2, [tmp_path / name])
    assert said in told

"""Runs that are kept in the user's cache: private, the last ten, a gigabyte at most; what ``report`` finds there."""

import json
import os
import tempfile

import pytest
from support.sessions import training

from gpusense import cli
from gpusense.cli import _runs, _sessions, run
from gpusense.cli._ending import Ending
from gpusense.session import save


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "gpusense" / "runs"


def kept(home, number, steps=1):
    folder = home / f"20260101-0000{number:02}-{number}"
    folder.mkdir(parents=True)
    save(training(steps), folder / _runs.MAIN)
    return folder


def test_a_run_has_a_folder_of_its_own_that_nobody_else_reads(home):
    folder = _runs.make(keep=True)
    assert folder.kept
    assert os.path.dirname(folder.path) == str(home)
    assert {os.stat(path).st_mode & 0o777 for path in (home, folder.path)} == {0o700}


def test_without_keeping_it_is_gone_afterwards(home):
    folder = _runs.make(keep=False)
    assert not folder.kept
    folder.remove()
    assert not os.path.exists(folder.path)
    assert not home.exists()


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="POSIX")
@pytest.mark.parametrize("wrong", ["others may write", "another user's", "a file", "no home"])
def test_a_cache_that_is_not_this_users_alone_is_not_used(home, monkeypatch, wrong):
    home.parent.mkdir()
    if wrong == "a file":
        home.write_text("")
    elif wrong == "no home":
        monkeypatch.setenv("XDG_CACHE_HOME", "relative")
        monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    else:
        home.mkdir(mode=0o700)
        if wrong == "others may write":
            home.chmod(0o777)
        else:
            monkeypatch.setattr(os, "geteuid", lambda: os.stat(home).st_uid + 1)
    folder = _runs.make(keep=True)
    assert not folder.kept
    folder.remove()


def test_no_folder_at_all_is_none_and_is_told(home, monkeypatch):
    def full(**_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "mkdtemp", full)
    assert _runs.make(keep=False) is None
    monkeypatch.setenv("GPUSENSE_LIBCUDA", "libcuda.so.1")
    ending = Ending(None, None, None, None, run.parser().parse_args([]))
    assert ending._missing() == [
        "capture cannot begin as CUDA does, nor in other processes: no temporary folder can be made"
    ]


def test_the_last_ten_are_kept(home):
    folders = [kept(home, number) for number in range(13)]
    _runs.prune()
    assert [folder.exists() for folder in folders] == [False] * 3 + [True] * 10
    running = _runs.make(keep=True)  # and one that is being recorded is among them
    assert [folder.exists() for folder in folders] == [False] * 4 + [True] * 9
    assert len(_runs.runs()) == 10
    running.remove()


def test_a_gigabyte_is_kept_and_what_is_being_written(home, monkeypatch):
    fcntl = pytest.importorskip("fcntl")
    monkeypatch.setattr(_runs, "MOST_BYTES", 3 * os.path.getsize(kept(home, 0) / _runs.MAIN) + 10)
    folders = [kept(home, number) for number in range(1, 7)]
    with open(folders[0] / _runs.MAIN, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        _runs.prune()
    assert [folder.exists() for folder in folders] == [True, False, False, True, True, True]


def test_report_without_a_file_is_of_the_last_run(home, capsys):
    assert cli.main(["report"]) == 2
    assert capsys.readouterr().err.startswith("gpusense report: name a session file: no run is kept yet")
    kept(home, 1)
    folder = kept(home, 2, steps=3)
    (home / "20260101-000009-9").mkdir()  # it has begun and recorded nothing yet
    assert cli.main(["report", "--html"]) == 0
    assert capsys.readouterr().err == f"written: {folder / 'page.html'}\n"
    assert cli.main(["report", str(home / "20260101-000009-9")]) == 2
    assert "there is no session file (*.gpusense) in this folder" in capsys.readouterr().err


def test_list(home, capsys):
    assert cli.main(["list"]) == 0
    assert "No run is kept yet" in capsys.readouterr().err
    folder = kept(home, 1)
    (folder / "run.json").write_text('{"about": {"command": "train.py --epochs 3", "start_s": 1.0}}')
    damaged = kept(home, 2)
    (damaged / "run.json").write_text("{")
    assert cli.main(["list"]) == 0
    shown = capsys.readouterr().out
    assert "train.py --epochs 3" in shown
    assert shown.index(str(folder)) < shown.index(str(damaged))
    assert cli.main(["list", "--json"]) == 0
    assert '"schema": "gpusense.runs/1"' in capsys.readouterr().out


def test_each_child_is_in_the_answer_or_named_wherever_it_was_killed(tmp_path):
    facts = {"command": "train.py", "start_s": 1.0}
    child = training(1)
    child.meta["run"] = facts
    save(child, tmp_path / "child.gpusense")
    content = (tmp_path / "child.gpusense").read_bytes()
    names = [f"{size}.gpusense" for size in range(0, len(content), max(1, len(content) // 60))]
    for name in names:
        (tmp_path / name).write_bytes(content[: int(name.partition(".")[0])])
    main = training(1)
    main.meta.update(run=facts, path=str(tmp_path / "main.gpusense"), children=[*names, "gone.gpusense"])
    session = _sessions.joined([main])
    missing = session.meta["missing"]
    assert len(missing) + len(session.meta["processes"]) - 1 == len(names) + 1
    assert len(missing) > 3


def test_list_shows_what_the_flight_recorder_wrote(home, capsys):
    home.mkdir(parents=True)
    session = training(1)
    session.meta |= {"flight": {"reasons": [{"text": "request took 412 ms"}]}, "end_ns": 5 * 10**9, "pid": 7}
    (home / "flight-20260101-000000-7.gpusense").write_text("damaged")
    save(session, home / "flight-20260101-000001-7.gpusense")
    kept(home, 1)
    assert cli.main(["list"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[2].endswith("B  dump        ?")
    assert shown[4].endswith("dump        request took 412 ms")
    assert shown[5].strip() == str(home / "flight-20260101-000001-7.gpusense")
    assert cli.main(["list", "--json"]) == 0
    damaged, whole = json.loads(capsys.readouterr().out)["dumps"]
    assert (damaged["reason"], damaged["end_s"], damaged["bytes"]) == (None, None, 7)
    assert (whole["reason"], whole["end_s"], whole["pid"]) == ("request took 412 ms", 5.0, 7)


def test_dumps_are_no_runs(home):
    kept(home, 1)
    (home / "flight-20260101-000000-7.gpusense").write_text("")
    _runs.prune()
    assert (home / "flight-20260101-000000-7.gpusense").exists()
    assert len(_runs.runs()) == 1

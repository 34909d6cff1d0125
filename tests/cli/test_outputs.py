"""What ``-o`` means: names in braces, and sessions that are there already."""

import os

import pytest
from support.sessions import MS, block, session, training

from gpusense import cli
from gpusense._runtime.errors import GpuSenseError
from gpusense.cli import _outputs
from gpusense.session import load, save


def test_names_in_braces(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"):
        monkeypatch.delenv(name, raising=False)
    pid = str(os.getpid())
    assert _outputs.filled("run.gpusense") == "run.gpusense"
    assert _outputs.filled("run-{pid}-%p.gpusense") == f"run-{pid}-{pid}.gpusense"
    assert _outputs.filled("run-{rank}") == f"run-{pid}"
    assert "{" not in _outputs.filled("{host}-{time}")
    for wrong in ("{user}", "{", "{}", "{pid.x}", "{pid!r:>9}{x}"):
        with pytest.raises(GpuSenseError, match=r"braces in a name stand for a fact of the run: [{]pid[}], "):
            _outputs.filled(wrong)


def test_ranks_have_names_of_their_own(monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert _outputs.filled("out/run.gpusense") == os.path.join("out", "run.rank3.gpusense")
    assert _outputs.filled("run") == "run.rank3"
    assert _outputs.filled("r{rank}.trace.json") == "r3.trace.json"
    assert _outputs.filled("page.trace.json") == "page.rank3.trace.json"


def test_a_session_that_is_there_is_set_aside_and_nothing_else(tmp_path):
    path = tmp_path / "run.gpusense"
    assert _outputs.set_aside(str(path)) is None
    for number in (1, 2):
        save(training(1), path)
        assert _outputs.set_aside(str(path)) == str(tmp_path / f"run.old{number}.gpusense")
        assert not path.exists()
    path.write_text("not ours")
    assert _outputs.set_aside(str(path)) is None
    assert path.read_text() == "not ours"


def test_one_that_is_being_written_stays(tmp_path):
    fcntl = pytest.importorskip("fcntl")
    path = tmp_path / "run.gpusense"
    save(training(1), path)
    with open(path, "rb+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert _outputs.set_aside(str(path)) is None
    assert path.exists()


@pytest.mark.parametrize(("suffix", "begins"), [(".html", b"<!doctype html>"), (".json", b"{"), (".pftrace", b"\n")])
def test_report_goes_by_the_suffix_and_says_what_it_replaces(capsys, tmp_path, suffix, begins):
    source, target = tmp_path / "a.gpusense", tmp_path / f"b{suffix}"
    save(training(2), source)
    for more in ("", " (replaced)"):
        assert cli.main(["report", str(source), "-o", str(target)]) == 0
        assert capsys.readouterr().err == f"written: {target}{more}\n"
    assert target.read_bytes().lower().startswith(begins)


def test_a_file_of_stacks_without_work_of_a_device_is_said_to_be_empty(capsys, tmp_path):
    source, target = tmp_path / "a.gpusense", tmp_path / "b.folded"
    save(session(block(("step",), 0, MS), end=MS), source)
    assert cli.main(["report", str(source), "-o", str(target)]) == 0
    assert capsys.readouterr().err == f"written: {target} (empty: the session has no work of a device)\n"
    assert _outputs.written(load(source), str(target), "flamegraph", None, False) == [
        f"written: {target} (replaced) (empty: the session has no work of a device)"
    ]
    assert target.read_bytes() == b""


def test_report_can_write_a_session(capsys, tmp_path):
    save(training(2), tmp_path / "a.gpusense")
    assert cli.main(["report", str(tmp_path / "a.gpusense"), "-o", str(tmp_path / "b.gpusense")]) == 0
    assert load(tmp_path / "b.gpusense").records == load(tmp_path / "a.gpusense").records

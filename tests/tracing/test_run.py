"""The run that a process belongs to: each of its processes has a session file of its own."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpusense._tracing import run as runs


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv(runs.VARIABLE, str(tmp_path))
    monkeypatch.setattr(runs, "_began", None)
    monkeypatch.setattr(runs, "_known", None)
    return runs.Run("gpusense", runs.version(), str(tmp_path / "s."), ".gpusense", {}, "", {}, True)


@pytest.mark.parametrize("rank", ["3", ""])
def test_processes_of_one_rank_or_one_number_that_begin_together_have_a_file_each(run, tmp_path, monkeypatch, rank):
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", "4")
    with ThreadPoolExecutor(16) as pool:
        paths = list(pool.map(lambda _: run.path(), range(64)))
    assert len(set(paths)) == 64
    assert sorted(runs.children(str(tmp_path))) == sorted(paths)
    assert {os.stat(path).st_mode & 0o777 for path in paths} == {0o600}
    who = f"rank{rank}" if rank else os.getpid()
    assert {str(tmp_path / f"s.{who}.gpusense"), str(tmp_path / f"s.{who}-64.gpusense")} < set(paths)


def test_the_first_process_does_not_belong_to_it_and_others_do_while_its_folder_is_there(run, tmp_path, monkeypatch):
    run.write(str(tmp_path))
    assert runs.of_this_process() is None
    monkeypatch.setattr(runs, "_began", os.getppid())
    assert runs.of_this_process() == run
    monkeypatch.setattr(runs, "_known", None)
    assert runs.of_this_process() == run
    (tmp_path / runs.FILE).unlink()
    assert runs.of_this_process() is None

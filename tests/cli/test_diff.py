"""Which files a comparison reads, and what a share is."""

import argparse
import json
import os
import sys

import pytest
from support.sessions import MS, kernel
from support.sessions import session as make_session

from gpusense import cli
from gpusense.cli._arguments import share
from gpusense.session import save


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """before-1, before-2 and after-1, after-2, of 10 and of 12 kernels."""
    monkeypatch.chdir(tmp_path)
    for side, count in (("before", 10), ("after", 12)):
        for number in (1, 2):
            made = make_session(*(kernel("sgemm", at * MS, at * MS + 1000) for at in range(count)), end=20 * MS)
            save(made, f"{side}-{number}.gpusense")
    return tmp_path


@pytest.mark.parametrize(
    ("text", "value"), [("10%", 0.1), ("10", 0.1), ("0.1", 0.1), ("150", 1.5), ("1%", 0.01), ("100%", 1.0), ("0", 0)]
)
def test_a_share_is_written_in_three_ways(text, value):
    assert share(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["1", "1.0", "-5%", "nan", "inf", "1e9"])
def test_what_is_no_share_or_could_be_two_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError):
        share(text)


def test_ten_is_ten_percent(runs, capsys):
    """A gate that can never fail is worse than none."""
    for over, code in (("10", 3), ("10%", 3), ("0.1", 3), ("25", 0), ("1", 2)):
        try:
            found = cli.main(["diff", "before-1.gpusense", "after-1.gpusense", "--fail-over", over])
        except SystemExit as ending:
            found = ending.code
        assert (over, found) == (over, code)
    assert "say which" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["before-*.gpusense", "after-*.gpusense"],
        ["before-1.gpusense,before-2.gpusense", "after-?.gpusense"],
        ["--before", "before-1.gpusense", "before-2.gpusense", "--after", "after-1.gpusense", "after-2.gpusense"],
        ["--before", "before-*", "--after", "after-1.gpusense,after-2.gpusense"],
    ],
)
def test_several_runs_a_side(runs, capsys, words):
    assert cli.main(["diff", *words, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["names"] == {
        side: [f"{side}-1.gpusense", f"{side}-2.gpusense"] for side in ("before", "after")
    }  # fmt: skip


def test_a_run_of_several_processes_is_called_by_what_was_asked_for(runs, capsys):
    """The file that the others belong to, or the folder of all."""
    about = {"command": "launch.py", "label": None, "start_s": 1.0}
    folder = runs / "ranks"
    folder.mkdir()
    for rank in (0, 1):
        made = make_session(kernel("sgemm", MS, 2 * MS), run=about, rank=rank, world_size=2)
        save(made, str(folder / f"job.rank{rank}.gpusense"))
    launcher = make_session(end=20 * MS, run=about, children=[f"job.rank{rank}.gpusense" for rank in (0, 1)])
    save(launcher, str(folder / "job.gpusense"))
    assert cli.main(["diff", "ranks/job.gpusense", "ranks/"]) == 0
    shown = capsys.readouterr().out
    assert "  before: job.gpusense\n  after: ranks\n" in shown
    assert "kernels" in shown


def test_a_file_whose_name_looks_like_a_pattern_is_that_file(runs, capsys):
    (runs / "before-1.gpusense").rename(runs / "b[1],x.gpusense")
    assert cli.main(["diff", "b[1],x.gpusense", "after-1.gpusense", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["names"]["before"] == ["b[1],x.gpusense"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothing-*", "after-1.gpusense"], "nothing-*: no file matches this pattern"),
        (["before-1.gpusense"], "1 session given"),
        ([], "0 sessions given"),
        (["before-1.gpusense", "before-2.gpusense", "after-1.gpusense"], "use --before and --after"),
        (["--before", "before-1.gpusense"], "0 sessions given"),
        (["a", "b", "--before", "c", "--after", "d"], "not both"),
    ],
)
def test_what_is_not_clear_is_refused(runs, capsys, words, said):
    assert cli.main(["diff", *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("suffix", "begins"), [("json", "{"), ("html", "<!doctype html>"), ("md", "### "), ("txt", "1 run")]
)
def test_the_suffix_of_a_path_chooses_the_form(runs, tmp_path, suffix, begins):
    target = tmp_path / f"d.{suffix}"
    assert cli.main(["diff", "before-1.gpusense", "after-1.gpusense", "-o", str(target)]) == 0
    assert target.read_text("utf-8").startswith(begins)


def test_markdown(runs, capsys):
    assert cli.main(["diff", "before-1.gpusense", "after-1.gpusense", "--markdown", "--fail-over", "10"]) == 3
    shown = capsys.readouterr().out
    assert shown.startswith("### ❌ gpusense: 1 figure grew by more than 10%.")
    assert "- `kernels: 10 → 12 (+20%)`" in shown


def test_a_terminal_gets_a_file_instead_of_a_page(runs, capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for form in ("html", "json"):
        assert cli.main(["diff", "before-1.gpusense", "after-1.gpusense", f"--{form}"]) == 0
        assert capsys.readouterr() == ("", f"written: diff.{form}\n")
        assert os.path.getsize(f"diff.{form}") > 500

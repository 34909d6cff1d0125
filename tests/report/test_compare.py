"""A comparison in words: the last line never says what a row denies, and Markdown is short and inert."""

import io
import json
import random

import pytest
from support.sessions import HOSTILE, MS, US, block, kernel, session, sync, training

from gpusense._records.records import Aggregate
from gpusense.analysis.diff import compare
from gpusense.report import compare as report


def run(length, *, seed=1, calls=60, **meta):
    rng = random.Random(seed)
    kernels = (kernel("sgemm", at * MS, at * MS + int(length * rng.gauss(1, 0.02))) for at in range(calls))
    return session(*kernels, end=calls * MS, **meta)


def last(diff, over=None):
    """The last sentence of the text, unwrapped."""
    shown = report.text(diff, over=over, width=1000).splitlines()
    assert shown[-1] == report.conclusion(diff, over)
    return shown[-1]


def test_a_slower_kernel_of_one_run_a_side_is_told_and_not_judged():
    diff = compare([run(200 * US)], [run(400 * US, seed=2)])
    said = last(diff, 0.1)
    assert said.startswith(
        "No count grew by more than 10%; times were not judged with 1 run a side (5 are needed). "
        "Slower in these runs, by single calls and passes: sgemm (+"
    )
    assert "Nothing grew" not in report.text(diff, over=0.1)
    assert "slower in these runs (p " in report.text(diff, over=0.1)
    assert ", 60 calls)" in report.text(diff, over=0.1)
    assert last(diff).startswith("No count changed; times were not judged with 1 run a side")


def test_a_sure_change_that_is_too_small_is_no_difference_and_says_why():
    diff = compare([run(200 * US, calls=2000)], [run(201 * US, seed=2, calls=2000)])
    (row,) = [row for row in diff.times if row.what == "sgemm"]
    assert row.probability < 1e-6
    assert row.verdict == "no difference shown"
    shown = report.text(diff)
    assert "less than 1 % (p " in shown
    assert "no difference shown (p" not in shown
    page = io.StringIO()
    report.write(diff, page)
    assert "less than 1 % in these runs" in page.getvalue()
    assert "no difference shown (p 1)" in report.text(compare([run(200 * US)], [run(200 * US)]))


def test_counts_that_grew_and_do_not_decide_are_in_the_last_line():
    def counted(**calls):
        rows = [
            Aggregate((), "kernel", name, "cuda", 0, 7, many, many * US, US, US, many * US * US)
            for name, many in calls.items()
        ]
        return session(aggregates=rows, end=MS)

    moved = compare([counted(a=50, b=50)], [counted(a=80, b=20)])
    assert last(moved, 0.1).startswith("No total count grew by more than 10% (1 operation had more calls); ")
    runs = [[counted(**{f"k{one}": one}) for one in side] for side in ((10, 40, 20), (30, 35, 38))]
    assert last(compare(*runs), 0.1).startswith(
        "No total count grew by more than 10% (1 total varies from run to run); times were not judged with 3 runs"
    )
    one_side = compare([session(kernel("k", 0, 9), end=99)], [session(kernel("k", 0, 9), sync(9, 12), end=99)])
    assert "(1 total was recorded on one side only)" in last(one_side, 0.1)


def test_with_runs_enough_times_are_judged_and_the_last_line_says_so():
    same = compare([run(200 * US, seed=at) for at in range(6)], [run(200 * US, seed=50 + at) for at in range(6)])
    assert last(same, 0.1) == "No count grew by more than 10%; no time grew by more than 10% beyond chance."
    slower = compare([run(200 * US, seed=at) for at in range(6)], [run(300 * US, seed=50 + at) for at in range(6)])
    shown = report.text(slower, over=0.1).splitlines()
    place = shown.index("Grew by more than 10%:")
    assert [line.split(":")[0].strip() for line in shown[place + 1 :]] == ["GPU busy", "sgemm"]
    assert last(slower).startswith("No count changed; 2 times slower and 0 faster beyond chance")


def test_something_small_that_is_slower_for_sure_is_not_passed_over():
    def pair(seed, small):
        big = [kernel("big", at * MS, at * MS + 800 * US + seed) for at in range(20)]
        little = [kernel("little", at * MS + 900 * US, at * MS + 900 * US + small + seed) for at in range(20)]
        return session(*big, *little, end=20 * MS)

    diff = compare([pair(at, 30_000) for at in range(6)], [pair(at + 9, 36_000) for at in range(6)])
    assert diff.failures(0.1) == ()
    assert last(diff, 0.1).endswith("beyond chance. Slower in these runs, too small to decide: little (+20.0 %).")


@pytest.mark.parametrize("form", ["text", "markdown", "json", "html"])
def test_names_and_conditions_are_in_every_form(form):
    before = run(200 * US, run={"label": "main"}, path="/x/before-1.gpusense", python="3.11")
    after = run(200 * US, run={"label": "pr"}, path="/x/after-1.gpusense", python="3.13")
    file = io.StringIO()
    assert report.command([before], [after], fail_over=None, form=form, target=file) == 0
    for word in ("main (before-1.gpusense)", "pr (after-1.gpusense)", "Python 3.11 → 3.13"):
        assert word in file.getvalue().replace("\\u2192", "→")


def test_markdown_has_the_verdict_first_and_is_short():
    diff = compare([training(4)], [training(5)])
    lines = report.markdown(diff, over=0.1).splitlines()
    assert lines[0].startswith("### ❌ gpusense: ")
    assert lines[2].startswith("- `kernels: 396 → 495 (+25%)`")
    assert "| `kernels` | 396 | 495 | +25.0 % | more |" in lines
    assert len(lines) < 50
    assert report.markdown(compare([training(4)], [training(4)]), over=0.1).startswith("### ✅ gpusense: No count grew")
    assert report.markdown(diff).startswith("### gpusense: ")


def test_names_make_no_markup_in_markdown():
    names = (*HOSTILE, "a|b", "`tick`", "@someone", "[x](http://e)", "**bold**", "<b>")
    calls = [kernel(name, at * US, at * US + 900) for at, name in enumerate(names)]
    blocks = [block((name,), at, at + 9, number=at) for at, name in enumerate(names, 1)]
    hostile = session(*calls, *blocks, end=MS, run={"label": "[l](http://e) @you <b>"}, frameworks={"*t*": "|1|"})
    for other in (hostile, session(kernel("k", 0, 5), end=MS)):
        shown = report.markdown(compare([hostile], [other]), over=0.1)
        shown.encode()
        for line in shown.splitlines():
            assert line.isprintable()
            prose = "".join(line.split("`")[::2])  # what is not code
            assert "](" not in prose
            assert "@" not in prose
            assert "<b>" not in prose
            if line.startswith("|"):
                assert line.replace("\\|", "").count("|") == 6


def test_json_has_blocks_and_what_decides():
    def passes(length):
        return session(
            *(block(("load",), at * MS, at * MS + length + at, number=at) for at in range(1, 21)), end=30 * MS
        )

    shown = json.loads(report.json_text(compare([passes(1000)], [passes(3000)]), over=0.1))
    assert shown["schema"] == "gpusense.diff/1"
    (row,) = shown["blocks"]
    assert (row["what"], row["kind"], row["basis"], row["verdict"]) == ("load", "block", "passes", "slower")
    assert (row["decides"], row["samples"]) == (False, {"before": 20, "after": 20})
    assert shown["failures"] == []
    assert shown["conclusion"].startswith("No count grew by more than 10%; times were not judged")

"""Hardware counters of two sets of runs: what is compared, how far it varies, and when it is judged."""

import io
import json
import random

import pytest
from support.sessions import MS, T0, kernel, session

from gpusense._records.counter_samples import CounterColumns
from gpusense.analysis.conditions import clocks_are_known
from gpusense.analysis.counters import block_shares
from gpusense.analysis.diff import compare
from gpusense.analysis.diff_counters import counter_changes
from gpusense.report import compare as report

FIELDS = ("sm_active_percent", "tensor_percent", "dram_read_bytes", "dram_write_bytes", "sm_clock_mhz")


def run(seed=1, *, tensor=50.0, mhz=1980.0, length=400, noise=0.02, drift=0.0, device=0, root=(), **meta):
    """A device that works on "step" for ``length`` samples of a millisecond. ``drift``: how slowly its noise passes."""
    rng = random.Random(seed)
    kept = CounterColumns(device, FIELDS)
    level = 0.0
    for at in range(length):
        level = drift * level + rng.gauss(0, noise)
        kept.start.append(T0 + at * MS)
        kept.end.append(T0 + at * MS + MS)
        for column, value in zip(kept.values, (80.0, tensor, 1.5e9, 0.5e9, mhz), strict=True):
            column.append(value * (1 + level))
    made = session(kernel("gemm", 0, length * MS, device=device, path=(*root, "step")), end=length * MS, **meta)
    made.counter_samples.add(kept)
    return made


def by_figure(rows):
    return {(row.block, row.figure): row for row in rows}


def test_one_run_a_side_is_judged_by_parts_of_the_time_and_decides_nothing():
    sides = [run(1)], [run(2, tensor=40.0)]
    rows = by_figure(counter_changes(*sides))
    row = rows[("step",), "tensor"]
    assert (row.verdict, row.basis, len(row.before), row.samples) == ("lower", "parts", 24, (400, 400))
    assert row.change == pytest.approx(-0.2, abs=0.01)
    assert 0 < row.deviations[0] < 1
    assert {key for key, one in rows.items() if one.verdict != "no difference shown"} == {
        ((), "tensor"),
        (("step",), "tensor"),
    }
    shown = {one.path: one for one in block_shares(sides[0][0])}["step",]
    assert row.means[0] == shown.tensor_percent  # as the run's own report has it
    assert rows[("step",), "DRAM"].means[0] == shown.dram_bytes_per_s
    assert compare(*sides).failures(0.01) == ()


def test_of_runs_enough_each_is_one_value():
    sides = [run(seed) for seed in range(5)], [run(seed, tensor=44.0) for seed in range(5, 10)]
    row = by_figure(counter_changes(*sides))[("step",), "tensor"]
    assert (row.basis, len(row.before), row.verdict) == ("runs", 5, "lower")
    few = by_figure(counter_changes(sides[0][:4], sides[1]))[("step",), "tensor"]
    assert (few.basis, len(few.before), len(few.after)) == ("parts", 96, 120)


@pytest.mark.parametrize(("length", "verdict"), [(39, "not tested"), (40, "lower")])
def test_too_few_samples_are_shown_and_not_judged(length, verdict):
    row = by_figure(counter_changes([run(1, length=length)], [run(2, tensor=10.0)]))[("step",), "tensor"]
    assert row.verdict == verdict
    assert row.means[1] == pytest.approx(10, rel=0.02)
    assert counter_changes([run(length=4)], [run()]) == []


def test_samples_that_are_like_the_one_before_make_no_difference():
    """Compared one by one they differ in nearly every pair of equal runs."""
    pairs = [[run(seed + more, length=480, noise=0.1, drift=0.9) for more in (0, 100)] for seed in range(10)]
    found = [counter_changes([before], [after]) for before, after in pairs]
    wrong = sum(any(row.verdict in ("higher", "lower") for row in rows) for rows in found)
    assert wrong <= 2


def test_what_is_the_same_and_smaller_than_an_effect_is_called_none():
    row = by_figure(counter_changes([run(noise=0)], [run(noise=0, tensor=50.2)]))[("step",), "tensor"]
    assert row.probability < 1e-6
    assert row.verdict == "no difference shown"
    idle = by_figure(counter_changes([run(tensor=0.0)], [run(tensor=0.0)]))[("step",), "tensor"]
    assert (idle.change, idle.verdict) == (None, "no difference shown")


def test_processes_without_a_rank_are_told_by_their_place():
    def job(pid):
        both = [{"root": f"process {pid + at}", "pid": pid + at, "rank": None} for at in range(2)]
        return run(root=(f"process {pid}",), processes=both)

    blocks = {row.block for row in counter_changes([job(400)], [job(700)])}
    assert ("process 1", "step") in blocks


def test_clocks_that_were_counted_are_conditions():
    lower = compare([run(noise=0)], [run(noise=0, mhz=1742.0)])
    assert lower.conditions == ("same kernels, SM clock 12 % lower (1,980 → 1,742 MHz)",)
    assert not any("Clocks were not sampled" in note for note in lower.notes)
    assert not clocks_are_known([run()], [session()])
    one_sided = compare([run()], [session(kernel("gemm", 0, MS))])
    assert one_sided.counters == ()
    assert "Hardware counters were sampled on one side only: they are not compared." in one_sided.notes


def test_what_a_report_does_not_tell_of_a_block_is_not_compared_either():
    """Its passes begin otherwise than they go on."""
    work = [
        (kernel("a", at + 500_000, at + 600_000, path=("a",)), kernel("a", at + 900_000, at + 3_500_000, path=("a",)))
        for at in range(0, 200 * MS, 5 * MS)
    ]
    others = [kernel("b", at + 3_500_000, at + 5_400_000, path=("b",)) for at in range(0, 200 * MS, 5 * MS)]
    made = session(*(one for both in work for one in both), *others, end=210 * MS)
    made.counter_samples.add(run(length=210).counter_samples.parts()[0])
    untold = {row.path for row in block_shares(made) if row.reason is not None}
    assert ("a",) in untold
    assert not untold & {row.block for row in counter_changes([made], [made])}


@pytest.mark.parametrize("form", ["text", "markdown", "html"])
def test_each_form_has_what_changed(form, tmp_path):
    sides, path = ([run(noise=0)], [run(noise=0, tensor=40.0)]), tmp_path / "diff"
    report.command(*sides, fail_over=0.01, form=form, target=path)
    shown = path.read_text()
    assert "step: tensor" in shown
    assert "-10.0 points" in shown
    assert "lower in these runs" in shown
    assert ("step: DRAM" in shown) == (form != "markdown")  # which has only what changed
    assert max(map(len, report.text(compare(*sides)).splitlines())) <= 100


def test_json_has_all_of_them_and_devices_are_named_where_there_are_several():
    diff = compare([run(device=0)], [run(device=0)])
    (found,) = (
        row
        for row in json.loads(report.json_text(diff))["counters"]
        if (row["block"], row["figure"]) == (["step"], "SM clock")
    )
    assert found["before_mean"] == pytest.approx(1980, rel=0.01)
    assert found["before_deviation"] > 0
    assert (found["unit"], found["samples"], found["basis"]) == ("MHz", {"before": 400, "after": 400}, "parts")
    both = [session(kernel("gemm", 0, 400 * MS, path=("step",)), kernel("gemm", 0, 400 * MS, device=1, path=("step",)))]
    for device in (0, 1):
        both[0].counter_samples.add(run(device=device).counter_samples.parts()[0])
    report.write(compare(both, both), out := io.StringIO())
    assert "step · GPU 1: SM clock" in out.getvalue()

import io
import itertools
import json
import random
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.sessions import HOSTILE, MS, T0, US, alloc, block, copy, kernel, session, sync, training

from gpusense._records.records import OPEN_AT_END, Aggregate, Counters, UnseenInterval
from gpusense.analysis import diff as diff_module
from gpusense.analysis.diff import compare
from gpusense.analysis.significance import benjamini_hochberg, holm, mann_whitney, runs_needed
from gpusense.report import compare as report
from gpusense.report import text
from gpusense.session import fold, load, merge, save


def run_of(seed, *, gemm=1.0, kernels=200, noise=0.02, extra=()):
    """A run whose totals vary from seed to seed, by counts only."""
    rng = random.Random(seed)
    drift = rng.gauss(1, noise)
    rows, wall = [], 0
    for name, each in (("gemm", 100 * US * gemm), ("norm", 20 * US), ("copy_kernel", 30 * US)):
        total = int(each * kernels * drift * rng.gauss(1, noise))
        rows.append(Aggregate(("run",), "kernel", name, "cuda", 0, 7, kernels, total, 1, total, total**2 // kernels))
        wall += total
    return session(*extra, aggregates=rows, end=int(wall * 1.2))


def brute_force(left, right):
    values = [*left, *right]
    order = sorted(values)
    rank = {value: order.index(value) + order.count(value) / 2 + 0.5 for value in values}
    ranks = [rank[value] for value in values]
    mean = len(left) * (len(values) + 1) / 2
    far = abs(sum(ranks[: len(left)]) - mean)
    ways = [abs(sum(chosen) - mean) >= far - 1e-9 for chosen in itertools.combinations(ranks, len(left))]
    return sum(ways) / len(ways)


@given(st.lists(st.integers(0, 6), min_size=1, max_size=5), st.lists(st.integers(0, 6), min_size=1, max_size=5))
def test_mann_whitney_is_the_share_of_all_dealings_ties_included(left, right):
    assert mann_whitney(left, right) == pytest.approx(brute_force(left, right))


def test_mann_whitney_known_values():
    assert mann_whitney(range(5), range(5, 10)) == 2 / comb(10, 5)
    assert mann_whitney([1, 2], [1, 2]) == 1
    assert mann_whitney([], [1]) == 1
    assert mann_whitney([3] * 50, [3] * 50) == 1


def test_the_approximation_for_large_samples_is_close_to_the_exact_distribution():
    rng = random.Random(2)
    for shift in (0, 0.4, 0.8):
        left, right = [rng.gauss(0, 1) for _ in range(20)], [rng.gauss(shift, 1) for _ in range(20)]
        exact, close = mann_whitney(left, right), mann_whitney([*left, 1e9], [*right, 2e9])
        assert close == pytest.approx(exact, abs=0.05)


def test_corrections():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert benjamini_hochberg([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.04, 0.04])
    assert holm([]) == benjamini_hochberg([]) == []
    assert (runs_needed(1), runs_needed(12)) == (4, 6)


def test_equal_runs_show_no_difference_and_fail_nothing():
    run = training(4)
    diff = compare([run], [run])
    assert {row.verdict for row in diff.counts} == {"same"}
    assert {row.verdict for row in diff.times} <= {"no difference shown", "not tested"}
    assert diff.failures(0.0) == ()


def test_wall_time_is_the_length_that_every_report_gives():
    runs = [run_of(seed) for seed in (1, 2)]
    for run in runs:  # the process lives longer than the program
        run.meta |= {"program_start_ns": T0 + MS, "program_end_ns": T0 + 5 * MS}
    (wall,) = [row for row in compare(*([run] for run in runs)).times if row.what == "wall time"]
    assert (wall.before, wall.after) == ((4 * MS,), (4 * MS,))
    assert runs[0].summary().wall_ns == 4 * MS
    assert " · 4.00 ms" in text.summary(runs[0])[0]


def test_who_captured_a_replayed_kernel_is_no_difference():
    def run(*owners):
        row = Aggregate(("run",), "kernel", "k", "cuda", 0, 7, 10, 10 * US, US, US, 10 * US * US)
        return session(aggregates=[row._replace(owner=owner) for owner in owners], end=MS)

    diff = compare([run(("build", "forward"), ("build", "backward"))], [run(None, None)])
    assert {row.verdict for row in diff.counts} == {"same"}
    assert next(row for row in diff.counts if row.what == "kernels").before == (20,)
    assert (diff.appeared, diff.vanished) == ((), ())


def test_counts_are_recomputed_and_decide_with_one_run_a_side():
    before, after = training(4), training(5)
    diff = compare([before], [after])
    counts = {row.what: row for row in diff.counts}
    assert counts["kernels"].before == (len(before.kernels),)
    assert counts["kernels"].after == (len(after.kernels),)
    assert counts["bytes to the GPU"].after == (sum(r.bytes for r in after.transfers if r.direction == "cpu_to_gpu"),)
    assert counts["synchronisations"].before == (4,)
    assert counts["calls of flash_fwd_kernel"].after == (60,)
    assert counts["kernels"].change == pytest.approx(0.25)
    failures = diff.failures(0.10)
    assert any(failure.startswith("kernels: 396 → 495 (+25%)") for failure in failures)
    assert diff.failures(0.30) == ()
    assert not any("wall" in failure for failure in failures)  # times of one run decide nothing


def test_counts_that_vary_from_run_to_run_decide_only_beyond_their_range():
    def runs(*numbers):
        return [session(*[kernel("k", i, i + 1) for i in range(number)], end=1000) for number in numbers]

    overlapping = compare(runs(100, 130, 110), runs(125, 140, 150))
    assert overlapping.counts[0].verdict == "varies"
    assert overlapping.failures(0.1) == ()
    apart = compare(runs(100, 105, 110), runs(125, 140, 150))
    assert apart.counts[0].verdict == "more"
    assert len(apart.failures(0.1)) == 1


def test_a_kind_recorded_on_one_side_only_is_a_note_and_no_failure():
    diff = compare(
        [session(kernel("k", 0, 9), end=99)], [session(kernel("k", 0, 9), sync(9, 12), alloc(8, 1, 64), end=99)]
    )
    assert diff.failures(0.0) == ()
    assert sum("recorded on one side only" in note for note in diff.notes) == 3
    grown = compare(
        [session(kernel("k", 0, 9), end=99)], [session(kernel("k", 0, 9), copy("gpu_to_cpu", 8, 20, 30), end=99)]
    )
    assert any("from none" in failure for failure in grown.failures(0.0))


def test_where_nothing_changed_the_heaviest_is_first():
    rows = [kernel(name, at, at + length) for name, at, length in (("a", 0, 10), ("c", 20, 30), ("b", 60, 20))]
    blocks = [block((name,), at, end, number=at + 1) for name, at, end in (("x", 0, 15), ("z", 20, 50), ("y", 60, 81))]
    both = [session(*rows, *blocks, end=100)]
    diff = compare(both, both)
    assert [row.what for row in diff.times] == ["wall time", "GPU busy", "c", "b", "a"]
    assert [row.what for row in diff.blocks] == ["z", "y", "x"]


def test_a_slower_kernel_is_found_among_runs_and_its_neighbours_are_not():
    before = [run_of(seed) for seed in range(8)]
    after = [run_of(300 + seed, gemm=1.3) for seed in range(8)]
    diff = compare(before, after)
    verdicts = {row.what: row.verdict for row in diff.times}
    assert verdicts["gemm"] == "slower"
    assert verdicts["norm"] == verdicts["copy_kernel"] == "no difference shown"
    assert verdicts["wall time"] == "slower"
    failures = diff.failures(0.10)
    assert any(failure.startswith("gemm: +") for failure in failures)
    assert diff.failures(0.50) == ()
    faster = {row.what: row.verdict for row in compare(after, before).times}
    assert faster["gemm"] == "faster"
    assert compare(after, before).failures(0.1) == ()


def test_noise_alone_rarely_fails_a_build():
    wrong = sum(
        bool(
            compare([run_of(s * 10 + i) for i in range(5)], [run_of(9000 + s * 10 + i) for i in range(5)]).failures(0.0)
        )
        for s in range(120)
    )
    # Wall and GPU time together err at most 5 % of the time, operations likewise: 12 of 120 expected at the very most.
    assert wrong <= 12


def test_one_run_a_side_compares_single_calls_but_does_not_decide():
    rng = random.Random(3)

    def run(mean):
        calls, at = [], 0
        for _ in range(60):
            length = int(rng.gauss(mean, mean * 0.05))
            calls.append(kernel("gemm", at, at + length))
            at += length
        return session(*calls, end=at)

    diff = compare([run(100 * US)], [run(130 * US)])
    (row,) = [row for row in diff.times if row.what == "gemm"]
    assert (row.basis, row.verdict) == ("calls", "slower")
    assert row.change == pytest.approx(0.3, abs=0.05)
    assert diff.failures(0.1) == ()
    assert any("noise from run to run" in note for note in diff.notes)


def test_few_runs_say_how_many_it_takes():
    diff = compare([run_of(i) for i in range(3)], [run_of(9 + i) for i in range(3)])
    assert {row.verdict for row in diff.times} == {"not tested"}
    assert "5 or more" in diff.notes[0]


def test_operations_on_one_side_only_and_lost_records_are_named():
    before = session(kernel("old", 0, 10), end=99)
    after = session(kernel("new", 0, 10), end=99, counters=Counters(seen=1, kept=1, dropped=7))
    diff = compare([before], [after])
    assert (diff.appeared, diff.vanished) == (("new",), ("old",))
    assert any("7 after" in note for note in diff.notes)


def test_kernels_are_compared_by_their_full_names():
    """Of one label there may be many: a kernel that became another one is no faster."""

    def run(full_name, length):
        calls = (kernel("gemm", at * MS, at * MS + length, full_name=full_name) for at in range(20))
        return session(*calls, end=20 * MS)

    diff = compare([run("void gemm<4>(float*)", 400 * US)], [run("void gemm<8>(float*)", 100 * US)])
    assert [row for row in diff.times if row.kind == "kernel"] == []
    assert (len(diff.appeared), len(diff.vanished)) == (1, 1)
    assert diff.appeared != diff.vanished
    same = compare([run("void gemm<4>(float*)", 400 * US)], [run("void gemm<4>(float*)", 100 * US)])
    (row,) = [row for row in same.times if row.kind == "kernel"]
    assert (row.verdict, same.appeared) == ("faster", ())


def test_calls_that_were_only_summed_are_compared_one_by_one_where_all_rows_are_there(tmp_path):
    """A saved run lists what is long; its rows have the rest."""

    def run(name, length):
        made = session(*(kernel("gemm", at * MS, at * MS + length + at) for at in range(30)), end=30 * MS)
        made.take_work(made.work)
        fold(made, 10**9)
        save(made, tmp_path / name)
        return load(tmp_path / name)

    before, after = run("before", 200 * US), run("after", 400 * US)
    assert before.kernels == []
    (row,) = [row for row in compare([before], [after]).times if row.kind == "kernel"]
    assert (row.verdict, row.basis, len(row.before)) == ("slower", "calls", 30)
    assert row.effect_ns == 30 * 200 * US


# --- blocks


def looped(seed, *, load=1.0, root=("train",), passes=30, **meta):
    """A run of a block in which another is passed again and again."""
    rng = random.Random(seed)
    records, at = [], 0
    for number in range(passes):
        for name, mean in (("load", 2 * MS * load), ("step", 5 * MS)):
            length = int(mean * rng.gauss(1, 0.03))
            records.append(block((*root, name), at, at + length, number=2 * number + len(name), parent=1))
            at += length
    return session(*records, block(root, 0, at, number=1), end=at, **meta)


def test_a_block_that_is_three_times_slower_shows_with_one_run_a_side():
    diff = compare([looped(1)], [looped(2, load=3)])
    first, *others = diff.blocks
    assert (first.what, first.verdict, first.basis) == ("train › load", "slower", "passes")
    assert first.change == pytest.approx(2, abs=0.1)
    assert first.effect_ns == pytest.approx(30 * 4 * MS, rel=0.05)
    assert not first.decides
    assert {row.what: row.verdict for row in others} == {
        "train › step": "no difference shown",
        "train": "not tested",  # one pass a side
    }
    assert diff.failures(0.1) == ()


def test_blocks_decide_with_runs_enough():
    before, after = [looped(seed) for seed in range(6)], [looped(90 + seed, load=1.5) for seed in range(6)]
    rows = {row.what: row for row in compare(before, after).blocks}
    assert (rows["train › load"].verdict, rows["train › load"].basis) == ("slower", "runs")
    assert len(rows["train › load"].before) == 6
    assert rows["train › step"].verdict == "no difference shown"
    failures = compare(before, after).failures(0.1)
    assert any(failure.startswith("block train › load: +5") for failure in failures)
    assert compare(before, [looped(400 + seed) for seed in range(6)]).failures(0.1) == ()


def test_passes_that_were_only_summed_are_shown_and_not_tested():
    run = looped(1)
    counted = Aggregate(("train",), "block", "load", "cpu", None, None, 40, 80 * MS, 2 * MS, 2 * MS, 160 * MS * MS)
    some = looped(2)
    some.aggregates.append(counted)
    rows = {row.what: row for row in compare([run], [some]).blocks}
    assert (rows["train › load"].basis, rows["train › load"].verdict) == ("untested", "not tested")


def test_a_block_without_a_pass_that_ended_is_not_compared():
    killed = looped(2)
    killed.records[-1] = killed.records[-1]._replace(attributes={OPEN_AT_END: True})
    diff = compare([looped(1)], [killed])
    assert {row.what for row in diff.blocks} == {"train › load", "train › step"}
    assert (diff.appeared, diff.vanished) == ((), ())


def test_blocks_of_one_side_are_named_and_processes_are_told_by_their_place():
    diff = compare([looped(1)], [looped(1, root=("fit",))])
    assert diff.blocks == ()
    assert diff.appeared == ("block fit", "block fit › load", "block fit › step")
    assert diff.vanished == ("block train", "block train › load", "block train › step")
    before, after = (merge([looped(seed, pid=first + seed) for seed in (1, 2)]) for first in (40, 70))
    diff = compare([before], [after])
    assert (diff.appeared, diff.vanished) == ((), ())
    assert "process 2 › train › load" in {row.what for row in diff.blocks}


def test_an_empty_side_is_an_error():
    with pytest.raises(ValueError, match="at least one session"):
        compare([], [session()])


@pytest.mark.parametrize("width", [40, 100])
def test_text_fits_its_width_and_has_the_decision(width):
    text = report.text(compare([training(4)], [training(5)]), over=0.1, width=width)
    assert max(map(len, text.splitlines())) <= width
    assert "Grew by more than 10%" in text
    assert "\x1b" not in text
    hostile = session(*[kernel(name, at * US, at * US + 900) for at, name in enumerate(HOSTILE)], end=MS)
    text = report.text(compare([hostile], [session(kernel("k", 0, 5), end=MS)]), width=width)
    assert all(line.isprintable() for line in text.splitlines())


def test_the_dictionary_is_json_and_says_what_the_text_says():
    diff = compare([training(4)], [training(5)])
    shown = json.loads(json.dumps(report.to_dict(diff, over=0.1)))
    assert shown["schema"] == "gpusense.diff/1"
    assert shown["failures"] == list(diff.failures(0.1))
    assert len(shown["counts"]) == len(diff.counts)
    assert "failures" not in report.to_dict(diff)


def test_the_page_is_inert():
    hostile = session(*[kernel(name, at * US, at * US + 900) for at, name in enumerate(HOSTILE)], end=MS)
    file = io.StringIO()
    report.write(compare([hostile], [session(kernel("k", 0, 5), end=MS)]), file, over=0.1)
    page = file.getvalue()
    page.encode("utf-8")
    assert "<script" not in page
    assert "<img" not in page
    assert "script-src" not in page
    assert "&lt;/script&gt;" in page


@pytest.mark.parametrize(("form", "start"), [("text", "1 run before"), ("json", "{"), ("html", "<!doctype html>")])
def test_the_command_writes_and_decides(form, start):
    for over, code in ((None, 0), (0.1, 3), (0.3, 0)):
        file = io.StringIO()
        assert report.command([training(4)], [training(5)], fail_over=over, form=form, target=file) == code
        assert file.getvalue().startswith(start)


def test_a_run_that_saw_nothing_does_not_pass():
    seen, nothing = session(kernel("k", 0, 10), end=99), session(end=99)
    diff = compare([seen, seen], [seen, nothing])
    (sentence,) = diff.failures(9.0)
    assert sentence == "no GPU work was recorded in 1 of 2 runs after, and in each run before"
    assert "Does not pass:" in report.text(diff, over=0.1)
    page = io.StringIO()
    report.write(diff, page, over=0.1)
    assert "No GPU work was recorded in 1 of 2 runs after" in page.getvalue()
    assert report.command([seen], [nothing], fail_over=0.1, form="text", target=io.StringIO()) == 3
    for before, after in (([nothing], [nothing]), ([seen, nothing], [nothing, nothing]), ([seen], [seen])):
        assert compare(before, after).failures(0.1) == ()


def test_files_that_were_cut_off_are_named():
    whole, cut = session(kernel("k", 0, 10), end=99, complete=True), session(kernel("k", 0, 10), end=99, complete=False)
    damaged = session(kernel("k", 0, 10), end=99, damage=["a chunk"])
    assert any("incomplete or damaged (1 before, 2 after)" in note for note in compare([cut], [cut, damaged]).notes)
    assert not any("incomplete" in note for note in compare([whole], [whole]).notes)


@pytest.mark.parametrize(
    ("spoilt", "note"),
    [
        ({"counters": Counters(missed=3)}, "Requests for a buffer found none free (0 before, 3 after)"),
        (
            {"counters": Counters(bytes_dropped=1_500_000)},
            "Session files do not hold all that was recorded (0 B before, 1.50 MB after)",
        ),
        (
            {"unseen": [UnseenInterval(T0 + 10 * MS, T0 + 60 * MS, "overhead budget")]},
            "Capture was off for a time (0 ns before, 50.0 ms after)",
        ),
    ],
)
def test_counts_that_are_too_small_are_told(spoilt, note):
    whole = session(kernel("k", 0, 10), kernel("k", 20, 30), end=100 * MS)
    after = session(kernel("k", 0, 10), end=100 * MS, **spoilt)
    assert f"{note}: counts are lower bounds." in compare([whole], [after]).notes
    assert not any("lower bounds" in one for one in compare([whole], [whole]).notes)
    moment = session(kernel("k", 0, 10), end=100 * MS, unseen=[UnseenInterval(T0, T0 + MS // 2, "not attached yet")])
    assert not any("lower bounds" in one for one in compare([whole], [moment]).notes)


def test_what_is_left_out_of_a_comparison_is_counted():
    before = session(*(kernel(f"k{i}", i * 100, i * 100 + 10) for i in range(300)), end=99_999)
    after = session(*(kernel(f"k{i}", j * 100, j * 100 + 10) for j in range(600) for i in [j // 2]), end=99_999)
    shown = report.text(compare([before], [after]))
    assert "and 288 more" in shown
    assert "and 290 more" in shown
    page = io.StringIO()
    report.write(compare([before], [after]), page)
    assert "and 288 more" in page.getvalue()
    assert "and 102 more" in page.getvalue()
    page = io.StringIO()
    report.write(compare([before], [session(kernel("other", 0, 10), end=99_999)]), page)
    assert "and 200 more" in page.getvalue()


def test_a_small_share_is_not_written_as_none():
    before = session(*(kernel("k", i * 100, i * 100 + 10) for i in range(1000)), end=999_999)
    after = session(*(kernel("k", i * 100, i * 100 + 10) for i in range(1006)), end=999_999)
    shown = report.text(compare([before], [after]), over=0.005)
    assert "Grew by more than 0.5%:" in shown
    assert "1,000 → 1,006 (+0.6%)" in shown


def test_a_comparison_of_many_operations_takes_time_in_proportion(monkeypatch):
    """What both runs kept whole is worked out once, not for each operation."""
    intersected = []

    class Watched(set):
        def __and__(self, other):
            intersected.append(1)
            return set.__and__(self, other)

    complete = diff_module._complete
    monkeypatch.setattr(diff_module, "_complete", lambda run: Watched(complete(run)))
    run = session(*(kernel(f"k{i % 50}", i * 100, i * 100 + 10) for i in range(1000)), end=999_999)
    assert len(compare([run], [run]).times) > 50
    assert len(intersected) == 1

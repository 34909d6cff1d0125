"""Each device in each phase: parts that add up, one denominator, the same numbers on all pages, whatever is listed."""

import json
import pathlib
import re

import pytest
from support.pages import page_of
from support.sessions import MS, RECORDED, T0, US, block, copy, kernel, session, sync, training

from gpusense._records.records import Aggregate, UnseenInterval
from gpusense._runtime.text import percent_text, time_text
from gpusense.analysis.facts import Facts
from gpusense.analysis.findings import ranked
from gpusense.analysis.program import STEADY
from gpusense.analysis.words import IDLE
from gpusense.report import text
from gpusense.report.divisions import ALL, PARTS, Divisions, divisions_of, steps_text
from gpusense.report.json import to_dict
from gpusense.report.style import Style
from gpusense.session import load, merge

DATA = pathlib.Path(__file__).parents[1] / "data/two_gpus"


def looped(number=40):
    """Start-up of 50 ms with one kernel, ``number`` steps of 10 ms of which 6 are work, an interruption, a tail."""
    records = [kernel("init", 20 * MS, 21 * MS)]
    for step in range(number):
        at = 50 * MS + step * 10 * MS + (30 * MS if step >= number // 2 else 0)
        records += [
            copy("cpu_to_gpu", 1000, at, at + MS, source="pinned"),
            kernel("gemm_kernel", at + MS, at + 5 * MS, grid=(8, 1, 1)),
            kernel("gelu_elementwise_kernel", at + 5 * MS + 20 * US, at + 6 * MS, grid=(9, 1, 1)),
        ]
    at = 50 * MS + number // 2 * 10 * MS
    records += [kernel(f"evaluate_{i}", at + i * MS, at + i * MS + 900 * US) for i in (6, 7, 9, 15)]
    records.sort(key=lambda record: record.start_ns)
    return session(*records, end=50 * MS + number * 10 * MS + 30 * MS + 15 * MS)


def check(divisions):
    """What holds of every session."""
    for one in divisions.all:
        assert sum(one.parts.values()) == one.length_ns
        assert set(one.parts) <= set(PARTS)
        assert min(one.parts.values(), default=0) >= 0
        assert one.busy_ns == one.length_ns - sum(spent for name, spent in one.parts.items() if name in IDLE)
        for row in one.operations:
            assert row.share == pytest.approx(row.total_ns / one.length_ns)
        assert sum(one.families().values()) == sum(row.total_ns for row in one.operations)
    by_device = {}
    for one in divisions.all:
        by_device.setdefault((one.program.root, one.key), []).append(one)
    for *phases, whole in by_device.values():
        assert whole.phase == ALL
        if phases:
            assert whole.length_ns == sum(one.length_ns for one in phases)
            assert whole.busy_ns == sum(one.busy_ns for one in phases)
            assert sum(row.count for row in whole.operations) == sum(
                row.count for one in phases for row in one.operations
            )
            for name in PARTS:
                assert whole.parts.get(name, 0) == sum(one.parts.get(name, 0) for one in phases)


@pytest.mark.parametrize(
    "made",
    [
        looped,
        training,
        lambda: load(RECORDED),
        lambda: load(DATA / "both.gpusense"),
        lambda: merge([load(DATA / f"rank{rank}.gpusense") for rank in (0, 1)]),
        lambda: session(kernel("k", 0, MS), unseen=[UnseenInterval(T0 + 2 * MS, T0 + 5 * MS, "paused")], end=9 * MS),
        lambda: session(aggregates=[Aggregate((), "kernel", "k", "cuda", 0, 7, 9, 90, 10, 10, 900)], end=200),
        lambda: session(),
    ],
)
def test_parts_add_up_and_phases_to_the_run(made):
    check(Divisions(Facts(made())))


def test_each_phase_is_what_was_put_into_it():
    divisions = Divisions(Facts(looped()))
    assert divisions.names == ["steady", "start-up", "interlude", "tail", ALL]
    steady, start = divisions.of("steady")[0], divisions.of("start-up")[0]
    assert steady.program.steps.median_ns == 10 * MS
    assert steady.length_ns == 390 * MS
    assert steady.parts["compute"] == 38 * 4 * MS + 39 * 980 * US  # a step begins with the last kernel of a turn
    assert (steady.parts["copy"], steady.parts["launch"]) == (38 * MS, 38 * 20 * US)
    assert steady.families() == {
        "matmul": 38 * 4 * MS, "elementwise": 39 * 980 * US, "copies and memsets": 38 * MS
    }  # fmt: skip
    assert start.parts == {"compute": 5 * MS, "copy": MS, "launch": 20 * US, "host": 29 * MS, "none": 20 * MS}
    assert divisions.of("interlude")[0].parts["compute"] == 4 * 900 * US + 4 * MS
    assert {row.name: row.count for row in start.operations} == {"cpu_to_gpu": 1, "gemm_kernel": 1, "init": 1}


def test_a_gap_counts_in_each_phase_as_far_as_it_lies_in_it():
    """Of steps that were busy 64 % of the time it was said that they waited for the host 64 % of it."""
    run = looped()
    records = [record for record in run.records if not record.name.startswith("evaluate_6")]
    facts = Facts(session(*records, end=run.duration_ns))
    (view,) = facts.views
    (steady,) = Divisions(facts).of("steady")
    (between,) = Divisions(facts).of("interlude")
    assert view.beyond
    lost = sum(cause.total_ns for name, cause in view.causes.items() if name != "unseen")
    assert lost + view.parts.busy == view.length_ns == steady.length_ns
    assert sum(view.gap_by_step(view.causes["host"].gaps)) == view.causes["host"].total_ns == steady.parts["host"]
    assert "none" not in between.parts  # the rest of the gap has its reason there, too


def test_the_same_numbers_stand_on_every_page():
    run = looped()
    facts = Facts(run)
    (one,) = Divisions(facts).of("steady")
    head = text.summary(run, Style(200))[1]
    assert head.startswith(steps_text(one.steps))
    assert head.endswith("GPU 0 busy 59 % of the steps")
    (view,) = [row for row in to_dict(run)["views"] if row["phase"] == "steady"]
    assert (view["busy_ns"], view["length_ns"]) == (one.busy_ns, one.length_ns)
    assert {row["name"]: row["total_ns"] for row in view["parts"]} == one.parts
    assert [row["share"] for row in view["kernels"]] == [row.share for row in one.operations if row.kind == "kernel"]
    finding = ranked(facts)[0]
    assert finding.phase == "steady"
    assert finding.share == pytest.approx(one.share(finding.saving_ns))


def test_the_recorded_demo_does_not_contradict_itself():
    """Of one time it was said that its reason was unknown, and that it waited for the host; of another that it was the
    run, and that the run was longer."""
    lines = "\n".join(text.full(load(RECORDED), Style(200)))
    assert "reason unknown" not in lines
    (steady,) = Divisions(Facts(load(RECORDED))).of("steady")
    said = re.search(r"GPU 0 is idle for (\d+) % of each step", lines)
    assert int(said[1]) == round(100 * steady.share(steady.parts["launch"]))


def test_waits_of_the_host_are_in_no_share_of_a_device():
    run = session(kernel("k", 0, 2 * MS), sync(0, 8 * MS), block(("b",), 0, 9 * MS), end=10 * MS)
    lines = list(text.full(run, Style(200)))
    of_device = lines[lines.index("Operations on the device, main part") :]
    assert not any("synchronize" in line for line in of_device[: of_device.index("")])
    at = lines.index("Waits and other work of the host")
    assert lines[at + 1].split()[:3] == ["%", "of", "run"]
    assert lines[at + 2].split()[:2] == ["80", "%"]


def test_a_threshold_changes_what_is_listed_and_nothing_else():
    """Of short work the sums were known alone, so that a file had another verdict when it was read with another one."""

    def told(threshold):
        run = load(RECORDED, threshold_us=threshold)
        found = to_dict(run)
        page = page_of(run).data
        return len(found["records"]), json.dumps(
            [
                *(found[name] for name in ("window_ns", "verdict", "phases", "steps", "views", "busy")),
                [page["phases"], page["timeline"]["phases"]],
                list(text.full(run, Style(200)))[:2],
            ]
        )

    listed, said = zip(*(told(threshold) for threshold in (0, 20, 100, 1_000_000)), strict=True)
    assert listed[0] > listed[1] > listed[2] > listed[3]
    assert len(set(said)) == 1


def test_shares_beyond_100_percent_say_why():
    """Three streams at once: what a table calls 225 % is a device that is busy 75 % of the time."""
    alone, beside = (
        session(
            *(kernel("k", at * MS, at * MS + 750 * US, stream=stream) for at in range(20) for stream in streams),
            end=20 * MS,
        )
        for streams in ((7,), (7, 8, 9))
    )
    said = [" ".join(" ".join(text.summary(run, Style(200))).split()) for run in (alone, beside)]
    assert "at the same time" not in said[0]
    (division,) = divisions_of(beside).judged
    together = sum(row.share for row in division.operations)
    assert together == pytest.approx(3 * division.busy_share)
    assert f"counts each time: {percent_text(together)} of the" in said[1]
    assert "at the same time" in " ".join(text.full(beside))
    assert [one["at_once"] != "" for one in page_of(beside).data["phases"] if one["judged"]] == [True]
    assert not any(one["at_once"] for one in page_of(alone).data["phases"])


def two_lengths():
    """Two processes on one device, of 40 and of 24 steps."""
    runs = [looped(), looped(24)]
    for rank, run in enumerate(runs):
        run.meta.update(rank=rank, pid=40 + rank)
    return merge(runs)


def test_a_row_of_the_page_divides_the_time_of_a_process_by_its_own_steps():
    run = two_lengths()
    (steps,) = [phase for phase in page_of(run).data["phases"] if phase["name"] == STEADY]
    owned = {bar["device"].rpartition(" · ")[2]: bar["steps"] for bar in steps["breakdown"]}
    assert owned == {f"{one.program.root} (shared)": one.steps.number for one in divisions_of(run).of(STEADY)}
    assert len(set(owned.values())) == 2


def test_the_tiles_of_a_phase_are_of_one_process_that_of_the_headline_and_name_it():
    run = two_lengths()
    divisions = divisions_of(run)
    first = divisions.judged[0].program
    (owner, *_) = divisions.sentence().partition(" · ")[0].rpartition("(")[2:]
    assert owner == first.root
    for phase in page_of(run).data["phases"]:
        (mine,) = [one for one in divisions.of(phase["name"]) if one.program is first]
        tiles = {tile["label"]: tile for tile in phase["tiles"]}
        run_tile = tiles.pop("Run", None)
        assert all(re.match(f"{owner}( · |$)", tile["note"]) for tile in tiles.values())
        assert tiles["GPU busy"]["value"] == percent_text(mine.busy_share)
        kernels = sum(row.count for row in mine.operations if row.kind == "kernel")
        assert tiles["Kernels"]["value"] == f"{kernels:,}"
        if phase["name"] == ALL:  # of the job
            whole = time_text(run.duration_ns)
            assert (run_tile["value"], run_tile["note"], phase["note"]) == (whole, "all processes", whole)
        else:
            assert phase["note"].startswith(f"{owner} · ")


def test_each_phase_of_a_merged_report_names_its_process_although_one_alone_has_it():
    runs = [looped(), session(kernel("gemm", 0, MS), end=2 * MS)]
    for rank, run in enumerate(runs):
        run.meta.update(rank=rank, pid=40 + rank)
    lines = list(text.full(merge(runs)))
    at = lines.index("Phases")
    rows = [line.strip() for line in lines[at + 2 : lines.index("", at)]]
    assert [row.partition("  ")[0] for row in rows if "interruption" in row] == [
        "rank 0 · GPU 0 (shared): interruptions"
    ]
    note = next(at for at, row in enumerate(rows) if row.startswith("Shared: "))
    assert note > 6
    assert all(row.startswith(("rank 0 · GPU 0 (shared): ", "rank 1 · GPU 0 (shared): ")) for row in rows[:note])


def test_operations_of_a_merged_report_name_their_process():
    run = two_lengths()
    (steps,) = [phase for phase in page_of(run).data["phases"] if phase["name"] == STEADY]
    assert {row["card"] for row in steps["operations"]} == {"rank 0 · GPU 0", "rank 1 · GPU 0"}
    lines = list(text.full(run))
    at = lines.index("Operations on the device, steps")
    rows = [line.split("  ")[-1].strip() for line in lines[at + 2 : lines.index("", at)]]
    assert {row.rpartition(" ")[0] for row in rows if "gemm" in row} == {"rank 0 [0]", "rank 1 [0]"}


@pytest.mark.parametrize("after", [0, 10_000 * MS], ids=["at once", "one after the other"])
def test_shares_of_a_device_that_processes_used_at_once_are_called_shared(after):
    runs = [looped(), looped(24)]
    for rank, run in enumerate(runs):
        run.meta.update(rank=rank, pid=40 + rank)
    moved = {"start_ns": after, "end_ns": after}
    runs[1].records = [
        record._replace(**{name: getattr(record, name) + ns for name, ns in moved.items()})
        for record in runs[1].records
    ]
    runs[1].meta.update({name: runs[1].meta[name] + ns for name, ns in moved.items()})
    run = merge(runs)
    said = "\n".join(text.full(run))
    judged = next(phase for phase in page_of(run).data["phases"] if phase["judged"])
    told = [
        "rank 0 · GPU 0 (shared): steps" in said,
        "Shared: other processes used the device meanwhile" in said,
        all(bar["device"].endswith(" (shared)") for bar in judged["breakdown"]),
        judged["shared"].startswith("shared: other processes"),
        any("(all processes')" in tile["note"] for tile in judged["tiles"]),
    ]
    assert told == [not after] * 5


def test_shares_that_are_beyond_100_percent_with_the_idle_time_say_why():
    """Two streams for a part of the time: operations are 90 % of it, and with the idle time 120 %."""
    beside = session(
        *(kernel("a", at * MS, at * MS + 600 * US, stream=7) for at in range(20)),
        *(kernel("b", at * MS, at * MS + 200 * US, stream=8) for at in range(20)),
        end=20 * MS,
    )
    (division,) = divisions_of(beside).judged
    assert sum(row.total_ns for row in division.operations) < division.length_ns
    said = " ".join(" ".join(text.full(beside)).split())
    where = said[said.index("Where the time went") :].partition("Operations on the device")[0]
    assert "work that ran at the same time counts each time" in where.lower()

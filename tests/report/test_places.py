"""Where rows of the page are on the timeline: of each the longest times, from the records themselves."""

import random
from itertools import accumulate

import pytest
from support.pages import page_of
from support.sessions import MS, RECORDED, T0, US, block, compute, copy, eventful, kernel, session, sync, training

from gpusense._records.records import Aggregate
from gpusense.analysis.facts import Facts, Finding
from gpusense.report.divisions import Divisions
from gpusense.report.html.places import Places
from gpusense.report.tracks import end_of, label
from gpusense.session import load


def times(data, place):
    """(start, length) of each, where each start is told from the one before."""
    at = data["places"][place]["at"]
    return list(zip(accumulate(at[::2]), at[1::2], strict=True))


@pytest.fixture(scope="module")
def trained():
    run = training(4)
    return run, page_of(run).data


def test_every_call_of_an_operation_is_one_of_its_times(trained):
    run, data = trained
    for row in [*data["phases"][0]["operations"], *data["host"]]:
        calls = sorted(
            (one.start_ns - T0, end_of(one) - one.start_ns)
            for one in run.records
            if label(one.name) == row["name"] and getattr(one, "direction", None) == row["direction"]
        )
        place = data["places"][row["place"]]
        assert place["of"] == len(calls)
        longest = sorted(length for _, length in calls)[-len(place["at"]) // 2 :]
        assert set(times(data, row["place"])) <= set(calls)
        assert sorted(length for _, length in times(data, row["place"])) == longest


def test_every_pass_of_a_block_is_one_of_its_times(trained):
    run, data = trained
    table = next(table for table in data["tables"] if table["title"] == "Blocks")
    for path, place in zip(table["paths"], table["places"], strict=True):
        passes = [(one.start_ns - T0, one.end_ns - one.start_ns) for one in run.blocks if " › ".join(one.path) == path]
        assert times(data, place) == sorted(passes)
        assert data["places"][place]["name"] == path.rpartition(" › ")[2]


def test_a_bar_of_the_flame_graph_has_what_its_own_block_launched(trained):
    run, data = trained
    rows, places = data["flame"]["rows"], data["flame"]["places"]
    for at, ((parent, name, spent, kind), place) in enumerate(zip(rows, places, strict=True)):
        if kind == "kernel":
            path, above = [], parent
            while above > 0:
                path.insert(0, rows[above][1])
                above = rows[above][0]
            mine = [one for one in run.kernels if one.name == name and one.path == tuple(path)]
            assert sum(one.duration_ns for one in mine) == spent
            found = times(data, place)
            assert data["places"][place]["of"] == len(mine)
            assert set(found) <= {(one.start_ns - T0, one.duration_ns) for one in mine}
            assert max(length for _, length in found) == max(one.duration_ns for one in mine)
        elif kind == "block":
            assert (place is None) == (at == 0)


def test_many_calls_are_their_longest():
    rng = random.Random(3)
    run = session(*(kernel("k", at * US, at * US + rng.randrange(100, 900)) for at in range(1_000)), end=2 * MS)
    data = page_of(run).data
    (row,) = data["phases"][0]["operations"]
    found = times(data, row["place"])
    longest = sorted(run.kernels, key=lambda one: -one.duration_ns)[: len(found)]
    assert data["places"][row["place"]]["of"] == 1_000
    assert len(found) == 60
    assert found == sorted(found)
    assert sorted(length for _, length in found) == sorted(one.duration_ns for one in longest)


def test_short_work_that_is_only_in_columns_has_its_times():
    data = page_of(load(RECORDED)).data
    assert all(row["place"] is not None for phase in data["phases"] for row in phase["operations"])


def test_what_was_only_summed_has_no_place():
    counted = Aggregate((), "kernel", "summed", "cuda", 0, None, 5, 50, 10, 10, 500)
    run = session(kernel("k", 0, MS), end=2 * MS, aggregates=[counted])
    rows = {row["name"]: row["place"] for row in page_of(run).data["phases"][0]["operations"]}
    assert (rows["k"] is None, rows["summed"]) == (False, None)


def test_findings_lead_to_gaps_and_copies_and_phases(trained):
    _, data = trained
    for finding in data["findings"]:
        if finding["phase"]:
            assert times(data, finding["place"])
    demo = page_of(load(RECORDED)).data
    first = demo["places"][demo["findings"][0]["place"]]
    assert demo["findings"][0]["kind"] == "launch_bound"
    assert (first["what"], first["name"]) == ("gap", "idle: launch overhead")
    pageable = next(one for one in demo["findings"] if one["kind"] == "pageable_copies")
    assert demo["places"][pageable["place"]]["name"] == "copies host to device"


def test_rows_of_the_smaller_tables_have_places():
    data = page_of(eventful()).data
    found = {table["title"]: table for table in data["tables"]}
    for title in ("Copies", "Waits by line", "Warm-up", "Memory by block", "Energy by block"):
        assert all(place is not None for place in found[title]["places"]), title
        assert len(found[title]["places"]) == len(found[title]["rows"])
    (line,) = found["Waits by line"]["places"]
    assert data["places"][line]["name"] == "stream_synchronize at train.py:41 step"
    assert len(times(data, line)) == 20
    table = found["Warm-up"]
    places = {row[0].partition(" ")[0]: place for row, place in zip(table["rows"], table["places"], strict=True)}
    assert times(data, places["scan"]) == [(4 * MS, 200 * US + 3 * MS)]  # the first call, and not the longest there


def test_waits_lead_to_the_timeline_though_they_do_not_say_for_which_device():
    data = page_of(load(RECORDED)).data
    waits = [row for row in data["host"] if row["kind"] == "sync"]
    assert waits
    assert all(row["place"] is not None for row in waits)


def test_ends_before_starts_and_names_without_end_do_no_harm():
    run = session(
        kernel("x" * 10_000, 50, 20), copy("cpu_to_gpu", 5, 60, 70), sync(70, 80), compute("c", 0, 9),
        block(("b",), 5, 3), end=MS,
    )  # fmt: skip
    data = page_of(run).data
    assert all(length >= 0 for place in range(len(data["places"])) for _, length in times(data, place))
    assert max(len(place["name"] or "") for place in data["places"]) == 512


def test_a_rank_that_is_late_leads_to_the_times_in_which_the_others_wait_for_it():
    data = page_of(eventful()).data
    (late,) = (one for one in data["findings"] if one["kind"] == "late_rank")
    row = data["places"][late["place"]]
    assert (row["name"], row["what"], row["of"]) == ("waiting for rank 1", "wait", 10)
    assert {length for _, length in times(data, late["place"])} == {1000}


def test_a_finding_leads_to_its_own_device():
    """The longest gap of the same cause may be on another one."""
    records = []
    for device, apart in ((0, 3), (1, 9)):  # the second waits longer, and works as much
        at = 0
        for number in range(20):
            records.append(kernel("k", at * MS, at * MS + MS, device=device, path=("step",)))
            at += 1 + (apart if number % 4 == 3 else 2)
    run = session(*records, end=120 * MS, devices=())
    facts = Facts(run)
    divisions = Divisions(facts)
    views = {found[0].called: found for found in divisions.views.values()}
    assert set(views) == {"GPU 0", "GPU 1"}
    for device, found in views.items():
        places = Places(facts, divisions, T0)
        finding = Finding("starved", "", (), "", "high", phase=found[0].program.judged, device=device)
        row = places.rows[places.finding(finding)]
        gaps = {(gap.start_ns - T0, gap.end_ns - gap.start_ns) for gap in divisions.gaps(found[0].key)}
        mine = set(times({"places": [row]}, 0))
        assert mine <= gaps
        assert max(length for _, length in mine) == (3 if device == "GPU 0" else 9) * MS
        assert row["group"].startswith(device)

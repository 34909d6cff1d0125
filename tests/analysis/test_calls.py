"""Calls grouped once for several analyses: each against what it says, worked out record by record."""

import statistics

from hypothesis import given, settings
from hypothesis import strategies as st
from support.sessions import compute, copy, kernel, memset, session, sync

from gpusense.analysis.anomalies import anomalies
from gpusense.analysis.calls import OPERATIONS, calls, duration_ns, ordered
from gpusense.analysis.facts import Facts
from gpusense.analysis.launch import SHORT_NS, launches
from gpusense.analysis.operation import operations
from gpusense.analysis.phases import first_calls

lengths = st.sampled_from([0, 5, 9_999, 10_000, 10_001, 50_000, 70_000, 2_000_000])
times = st.tuples(st.integers(0, 10**8), lengths)
kernels = st.builds(
    lambda name, at, device, grid, full: kernel(
        name, at[0], at[0] + at[1], device=device, grid=grid, block=(32, 1, 1), full_name=full
    ),
    st.sampled_from("ab"),
    times,
    st.sampled_from([0, 1, None]),
    st.sampled_from([None, (1, 1, 1), (2, 1, 1)]),
    st.sampled_from([None, "a<1>", "a<2>"]),
)
copies = st.builds(
    lambda direction, size, at, label: copy(direction, size, at[0], at[0] + at[1])._replace(name=label or direction),
    st.sampled_from(["cpu_to_gpu", "gpu_to_cpu"]),
    st.sampled_from([64, 1 << 20]),
    times,
    st.sampled_from([None, "mesh"]),
)
others = st.builds(lambda make, at: make(at), st.sampled_from([
    lambda at: memset(64, at[0], at[0] + at[1]),
    lambda at: sync(at[0], at[0] + at[1]),
    lambda at: compute("sum", at[0], at[0] + at[1]),
]), times)  # fmt: skip
records = st.lists(kernels | copies | others, max_size=60)


def named(record, *fields):
    return OPERATIONS[type(record)], *(getattr(record, field, None) for field in fields)


def by(found, *fields):
    groups = {}
    for record in found:
        groups.setdefault(named(record, *fields), []).append(record)
    return groups


@settings(deadline=None)
@given(records)
def test_every_call_is_in_one_group_in_order_of_its_start(found):
    groups = calls(session(*found))
    assert sorted(map(repr, (record for group in groups for record in group.records))) == sorted(map(repr, found))
    for group in groups:
        starts = [record.start_ns for record in group.records]
        assert starts == sorted(starts)
        assert group.lengths == [duration_ns(record) for record in group.records]
        assert group.ordered == sorted(group.lengths)
        assert group.first == min((record.start_ns, duration_ns(record)) for record in group.records)
        assert {named(record, "name", "backend", "device", "direction") for record in group.records} == {
            (group.kind, group.name, group.backend, group.device, group.direction)
        }
    assert ordered(groups) == sorted(map(duration_ns, found)) if groups else not found


@settings(deadline=None)
@given(records)
def test_operations_and_first_calls_are_those_of_the_records(found):
    run = session(*found)
    rows = {(row.kind, row.name, row.backend, row.device, row.direction): row for row in operations(run)}
    expected = by(found, "name", "backend", "device", "direction")
    assert set(rows) == set(expected)
    for key, mine in expected.items():
        row, spent = rows[key], [duration_ns(record) for record in mine]
        assert (row.count, row.kept, row.total_ns) == (len(mine), len(mine), sum(spent))
        assert (row.min_ns, row.max_ns, row.median_ns) == (min(spent), max(spent), statistics.median(spent))
        assert abs(row.std_ns - statistics.pstdev(spent)) < 1e-3
        assert row.bytes == sum(getattr(record, "bytes", 0) for record in mine)
        assert row.first_ns == min((record.start_ns, duration_ns(record)) for record in mine)[1]
        names = {record.full_name for record in mine if getattr(record, "full_name", None)}
        assert (row.variants, row.full_name) == (len(names), names.pop() if len(names) == 1 else None)
    slow = {}
    for key, mine in by(found, "name", "backend", "device").items():
        spans = sorted((record.start_ns, duration_ns(record)) for record in mine)
        later = [length for _, length in spans[1:]]
        if len(spans) >= 5 and spans[0][1] >= max(2 * statistics.median(later), statistics.median(later) + 10_000):
            slow[key[0], key[1], key[3]] = (spans[0][1], statistics.median(later), len(spans))
    assert {
        (row.kind, row.name, row.device): (row.first_ns, row.steady_ns, row.calls) for row in first_calls(run)
    } == slow


@settings(deadline=None)
@given(records)
def test_anomalies_compare_calls_of_one_name_and_size(found):
    expected = []
    for (kind, name, *_), mine in by(found, "name", "backend", "device", "full_name", "grid", "block", "bytes").items():
        mine.sort(key=lambda record: record.start_ns)
        spent = [duration_ns(record) for record in mine]
        if len(mine) < 8:
            continue
        middle = statistics.median(spent[1:])
        mad = statistics.median(abs(length - middle) for length in spent[1:])
        spread = mad / 0.6745 if mad else 1.2533 * sum(abs(length - middle) for length in spent[1:]) / len(spent[1:])
        for record, length in zip(mine[1:], spent[1:], strict=True):
            floor = max(middle + 10_000, middle * 1.2, middle + 3.5 * spread)
            if spread and length >= floor:
                expected.append((kind, name, getattr(record, "device", None), length, float(middle), len(mine)))
    rows = anomalies(session(*found))
    assert sorted(map(repr, expected)) == sorted(
        repr((row.kind, row.name, row.device, row.duration_ns, row.typical_ns, row.calls)) for row in rows
    )
    assert [(-row.excess_ns, row.start_ns) for row in rows] == sorted((-row.excess_ns, row.start_ns) for row in rows)


@settings(deadline=None)
@given(records)
def test_launches_count_the_kernels_of_a_device(found):
    rows = {row.device: (row.kernels, row.short_kernels) for row in launches(session(*found))}
    mine = by([record for record in found if OPERATIONS[type(record)] == "kernel"], "device")
    assert rows == {
        device: (len(of), sum(duration_ns(record) < SHORT_NS for record in of)) for (_, device), of in mine.items()
    }


@settings(deadline=None)
@given(records)
def test_facts_give_what_each_analysis_gives_alone(found):
    run = session(*found)
    facts = Facts(run)
    assert facts.operations == operations(run)
    assert facts.first_calls == first_calls(run)
    assert facts.anomalies == anomalies(run)
    assert facts.launches == launches(run)


def test_a_call_without_an_end_lasts_no_time():
    run = session(kernel("a", 10, 20), kernel("a", 5, 5)._replace(end_ns=None), kernel("a", 30, 25))
    (group,) = calls(run)
    assert group.lengths == [0, 10, 0]
    assert operations(run)[0].total_ns == 10

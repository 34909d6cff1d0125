"""What needs no OpenTelemetry: cleaning of values, names, the budget, histograms, work counted below the threshold."""

import math
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusense._records.counters import BlockCounters
from gpusense._records.records import (
    KINDS,
    Aggregate,
    BlockRecord,
    ComputeBlock,
    Counters,
    GpuAllocation,
    GpuBlockTime,
    GpuCollective,
    GpuKernel,
    GpuMemoryTransfer,
    GpuMemset,
    GpuSync,
    Syscall,
)
from gpusense.exporters._instruments import COLLECTIVES, INSTRUMENTS
from gpusense.exporters.opentelemetry._attributes import MAX_ATTRIBUTES, clean, nanoseconds, shape
from gpusense.exporters.opentelemetry._budget import Allowance, Placed, longest, select
from gpusense.exporters.opentelemetry._histograms import OTHER, Deltas, Family, Work
from gpusense.exporters.opentelemetry._otlp import signal_url
from gpusense.session import Session, save

SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.builds(object))
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner), max_leaves=8)
ANY_TEXT = st.text(st.characters(codec=None), max_size=200)


def sendable(value):
    if isinstance(value, list):
        return all(sendable(item) for item in value) and len({type(item) for item in value}) <= 1
    if isinstance(value, str):
        value.encode()
        return len(value) <= 1024
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, bool) or (isinstance(value, int) and -(2**63) <= value < 2**63)


@given(VALUES)
def test_cleaned_values_can_be_sent(value):
    cleaned = clean(value)
    assert cleaned is None or sendable(cleaned)


@given(st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False)))
def test_good_values_stay(value):
    assert clean(value) == value
    assert type(clean(value)) is type(value)


def test_no_record_has_more_than_the_allowed_attributes():
    users = {f"key{number}": number for number in range(30)}
    full = [
        GpuKernel(
            "k", 1, 2, 0, "cuda", 1, 2, (1, 1, 1), (1, 1, 1), 1, 1, 1, 1, 1, 1, 1, "full", "raw", "l", 1, 0.5, True,
            owner=("a",), attributes=users,
        ),
        GpuMemoryTransfer(
            "t", "gpu_to_gpu", 1, 1, 2, 0, "cuda", 1, 1, 1, "a", "b", 0, 1, 1, 1, "l", "u", 1, "host", True,
            owner=("a",), attributes=users,
        ),
        GpuMemset("m", 1, 1, 2, 0, attributes=users),
        GpuSync("s", 1, 2, 0, source_line="a.py:1", attributes=users),
        GpuAllocation("alloc", 1, 1, 1, attributes=users),
        ComputeBlock("c", 1, 2, 1, 1, attributes=users),
        BlockRecord("b", 1, None, ("b",), 1, 2, 1, users),
        Syscall("read", 1, 2, attributes=users),
        GpuCollective("a", 1, 2, "ab", "w", 1, 2, 1, 1, 1, "int8", 8, 0, 1, "RING", "LL", attributes=users),
    ]  # fmt: skip
    # The span of its block has a block's time, and reports have its counters.
    assert {type(record) for record in full} == set(KINDS) - {GpuBlockTime, BlockCounters}
    for record in full:
        made = shape(record)
        assert len(made.attributes) == MAX_ATTRIBUTES
        assert all(sendable(list(value) if isinstance(value, tuple) else value) for value in made.attributes.values())


@given(ANY_TEXT, ANY_TEXT)
def test_any_name_becomes_a_short_name_that_encodes(name, full):
    made = shape(GpuKernel(name, 1, 2, full_name=full))
    made.name.encode()
    assert len(made.name) <= 120 + len("gpu_kernel: ")
    assert all(sendable(value) for value in made.attributes.values())


@given(st.one_of(st.integers(), st.floats(), st.text(max_size=3), st.none()))
def test_times_are_positive_integers_or_nothing(value):
    time = nanoseconds(value)
    assert time is None or (type(time) is int and 0 < time < 2**63)


PLACED = st.lists(
    st.builds(
        lambda name, duration, key: Placed(GpuKernel(name, 1000, 1000 + duration, 0, stream=7), key, key),
        st.sampled_from("abc"),
        st.integers(0, 10**6),
        st.integers(0, 3),
    ),
    max_size=60,
)


@given(PLACED, st.integers(0, 70))
def test_the_budget_holds_and_nothing_is_lost(placed, budget):
    chosen = select(placed, budget)
    assert len(chosen.individual) + len(chosen.groups) <= budget
    folded = sum(group.count for group in chosen.groups)
    assert len(chosen.individual) + folded + chosen.refused == len(placed)
    if chosen.threshold_ns is not None:
        assert all(item.record.duration_ns >= chosen.threshold_ns for item in chosen.individual)
        assert all(group.max_ns <= chosen.threshold_ns for group in chosen.groups)
    total = sum(item.record.duration_ns for item in chosen.individual) + sum(group.total_ns for group in chosen.groups)
    if not chosen.refused:
        assert total == sum(item.record.duration_ns for item in placed)


@given(PLACED, st.integers(0, 70))
def test_longest_keeps_the_longest(placed, budget):
    kept, refused = longest(placed, budget)
    assert len(kept) + refused == len(placed)
    assert len(kept) <= max(budget, 0) or len(placed) <= budget


def test_allowance_refills_up_to_its_burst():
    allowance = Allowance(100, 100, now_s=0.0)
    assert allowance.available(0.0) == 100
    allowance.spend(100)
    assert allowance.available(0.5) == 50
    assert allowance.available(60.0) == 100
    assert allowance.available(59.0) == 100  # a clock that goes back takes nothing away
    assert Allowance(None, 0, 0.0).available(1.0) is None


@given(st.lists(st.tuples(st.integers(0, 1), st.sampled_from("abcdefgh"), st.floats(1e-7, 100)), max_size=80))
def test_histogram_series_are_bounded_exact_and_never_go_back(values):
    family = Family((0.001, 1.0), top=3, now_ns=0)
    seen = {}
    for number, (device, name, value) in enumerate(values):
        family.add(device, name, value)
        if number % 7 == 0:
            for series in family.read(number + 1):
                key = (series.device, series.name)
                assert series.histogram.count >= seen.get(key, 0)
                seen[key] = series.histogram.count
    final = family.read(1000)
    for device in (0, 1):
        assert len([row for row in final if row.device == device and row.name != OTHER]) <= 3
    assert sum(row.histogram.count for row in final) == len(values)
    assert math.isclose(sum(row.histogram.sum for row in final), sum(value for *_, value in values), rel_tol=1e-9)
    assert all(sum(row.histogram.counts) == row.histogram.count for row in final)


def test_bounds_are_inclusive_above():
    family = Family((1.0, 2.0), top=3, now_ns=0)
    for value in (0.5, 1.0, 1.5, 2.0, 2.5):
        family.add(0, "k", value)
    assert family.read(1)[0].histogram.counts == [2, 2, 1]


def test_deltas_add_up():
    family, deltas, total = Family((1.0,), top=3, now_ns=0), Deltas(), 0
    for moment in range(1, 5):
        family.add(0, "k", 0.5)
        family.add(0, "k", 2.0)
        (row,) = deltas.of(family.read(moment), moment)
        assert row.histogram.counts == [1, 1]
        assert row.histogram.start_ns == moment - 1
        total += row.histogram.count
    assert total == 8
    assert deltas.of(family.read(9), 9) == []


def session(aggregates=(), records=(), kept=0, start_ns=1):
    return SimpleNamespace(
        aggregates=list(aggregates), records=list(records), counters=Counters(kept=kept), meta={"start_ns": start_ns}
    )


def counted(count, total):
    return Aggregate((), "kernel", "k", "cuda", 0, 7, count, total, 1, 1, 0)


def kernels(number):
    return [GpuKernel("k", 10, 110, 0) for _ in range(number)]


def total(work):
    return [(row.count, row.total_ns) for row in work.totals()]


def test_work_below_the_threshold_is_counted_once():
    work = Work(50, 0)
    work.baseline(session([counted(5, 50)]))
    work.add(kernels(3))
    work.absorb(session([counted(8, 80)], kept=3))
    work.absorb(session([counted(8, 80)], kept=3))
    assert total(work) == [(6, 330)]


def test_records_that_left_the_tracers_memory_are_not_counted_again():
    work = Work(50, 0)
    work.baseline(session())
    work.add(kernels(10))
    work.absorb(session([counted(7, 700)], kernels(3), kept=3))  # seven of the ten were demoted
    assert total(work) == [(10, 1000)]
    work.absorb(session([counted(9, 720)], kernels(3), kept=3))  # and two short ones were counted since
    assert total(work) == [(12, 1020)]


def test_a_reset_tracer_starts_from_nothing():
    work = Work(50, 0)
    work.baseline(session([counted(5, 50)]))
    work.absorb(session([counted(6, 60)]))
    work.absorb(session([counted(2, 20)], start_ns=2))
    assert total(work) == [(3, 30)]


def test_signal_urls():
    for base in ("http://host:4318", "http://host:4318/", "http://host:4318/v1/traces", "http://host:4318/v1/metrics"):
        assert signal_url(base, "traces") == "http://host:4318/v1/traces"
        assert signal_url(base, "metrics") == "http://host:4318/v1/metrics"
    assert signal_url("https://host/otlp", "traces") == "https://host/otlp/v1/traces"


@pytest.mark.parametrize(
    ("endpoint", "of_grpc"),
    [
        ("localhost:4317", True),
        ("grpc://localhost:4317", True),
        ("grpc://collector", True),
        ("localhost:4318", False),
        ("ftp://localhost:4318", False),
        ("localhost:43170", False),
        ("", False),
    ],
)
def test_what_is_no_url_is_refused_with_what_to_say_instead(endpoint, of_grpc):
    with pytest.raises(ValueError, match="such as 'http://localhost:4318'") as refused:
        signal_url(endpoint, "traces")
    assert ("port 4317 takes gRPC" in str(refused.value)) is of_grpc


def test_instrument_names_are_unique():
    names = [row.name for row in (*INSTRUMENTS, *COLLECTIVES)]
    assert len(names) == len(set(names))


MISSING = """
import sys
sys.modules[sys.argv[1]] = None
from gpusense.exporters import opentelemetry as otel
from gpusense.session import Session
from gpusense.cli import main
for ask in (
    lambda: otel.instrument(private=True),
    lambda: otel.Instrumentor().instrument() if sys.argv[1] == "opentelemetry" else otel.instrument(private=True),
    lambda: otel.export_session(Session(), "http://localhost:4318"),
):
    try:
        ask()
    except ImportError as error:
        print(type(error).__name__, error)
print(main(["export", "--otlp", "http://localhost:4318", sys.argv[2]]), flush=True)
main(["run", "--live", "--otlp", "http://localhost:4318", "-c", "0"])
"""


@pytest.mark.parametrize("missing", ["opentelemetry", "opentelemetry.sdk", "opentelemetry.exporter"])
def test_who_lacks_the_packages_is_told_of_the_extra(run_python, tmp_path, missing):
    """The name of the missing module alone was said."""
    save(Session(records=[GpuKernel("k", 1, 2)]), tmp_path / "s")
    done = run_python(MISSING, missing, str(tmp_path / "s"), GPUSENSE="on")
    told = [*done.stdout.splitlines(), *done.stderr.splitlines()]
    code = told.pop(3)
    assert code == "2", done
    assert len(told) == 5, done
    for line in told:
        assert line.count("pip install 'gpusense[otel]'") == 1, done

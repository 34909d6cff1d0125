"""Kernels as columns: whatever takes them, what comes of them is what comes of their records one after the other."""

from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st
from support.draws import examples
from support.sessions import watch

from gpusense._aggregation.pipeline import Limits, Pipeline
from gpusense._aggregation.same_kernels import SameKernels, expanded
from gpusense._attribution.boundaries import RECORD
from gpusense._capture.file_store import FileStore
from gpusense._capture.recorder import Recorder
from gpusense._records.records import GpuKernel, GpuSync
from gpusense._runtime.config import Settings
from gpusense._tracing.tracer import Tracer
from gpusense.session import load

T0 = 1_790_000_000_000_000_000

KINDS = [
    GpuKernel("shadows", 0, 0, backend="wgpu", label="shadows", grid=(8, 1, 1), attributes={"operation": "compute"}),
    GpuKernel("shadows", 0, 0, backend="wgpu", attributes={"operation": "render"}),
    GpuKernel("blur", 0, 0, backend="wgpu", path=("frame", "post"), block_id=2),
    GpuKernel("blur", 0, 0, backend="wgpu", block_id=1),  # its path is looked up
    GpuKernel("old", 0, 0, backend="wgpu", block_id=77, is_slow=True),  # of a block nobody knows
]

#: (kind, start, duration): few starts, so that some are equal
passes = st.tuples(st.integers(0, len(KINDS) - 1), st.integers(0, 40), st.integers(0, 400_000))
batches = st.lists(st.lists(passes, min_size=1, max_size=30), min_size=1, max_size=4)
limits = st.builds(
    Limits,
    threshold_ns=st.sampled_from([0, 1_000, 100_000, 10**9]),
    trace_all=st.booleans(),
    max_per_second=st.sampled_from([1, 3, 5_000]),
    max_records=st.sampled_from([2, 10, 200_000]),
)


def columns(batch, start=T0):
    which, starts, durations = zip(*batch, strict=True)
    return SameKernels(list(KINDS), list(which), [start + at * 10_000 for at in starts], list(durations))


def records(batch, start=T0):
    made = [
        KINDS[kind]._replace(start_ns=start + at * 10_000, end_ns=start + at * 10_000 + duration)
        for kind, at, duration in batch
    ]
    return sorted(made, key=lambda record: record.start_ns)


def outcome(given_limits, items, burst=0):
    """Everything that a pipeline says of ``items``."""
    out = []
    made = Pipeline(given_limits, emit=out.append)
    made.attribution.know(1, None, "frame")
    made.attribution.know(2, 1, "post")
    watch(made, 1, 2)
    for number, item in enumerate(items):
        made.record(item, T0 + number * burst)
    groups = sorted(made.ledger.aggregates(), key=repr)
    totals = [made.totals(block).rows for block in (1, 2)]
    threshold = made.threshold
    return [
        out,
        list(made.kept),
        groups,
        made.ledger.busy(),
        made.counters(),
        totals,
        (threshold.effective_ns, threshold.highest_ns, threshold.kept),
    ]


@examples(300)
@given(batches, limits, st.sampled_from([0, 10**9]))
def test_a_pipeline_makes_the_same_of_both(parts, given_limits, burst):
    together = outcome(given_limits, [[columns(batch)] for batch in parts], burst)
    assert together == outcome(given_limits, [records(batch) for batch in parts], burst)


@settings(deadline=None)
@given(st.lists(passes, min_size=1, max_size=30))
def test_times_that_cannot_be_are_counted_one_by_one(batch):
    for items, others in (
        ([columns(batch, start=-200_000)], records(batch, start=-200_000)),
        (
            [columns([(kind, at, duration - 100_000) for kind, at, duration in batch])],
            records([(kind, at, duration - 100_000) for kind, at, duration in batch]),
        ),
    ):
        assert outcome(Limits(), [items]) == outcome(Limits(), [others])


@settings(deadline=None)
@given(st.lists(passes, min_size=1, max_size=30))
def test_records_come_in_order_and_among_others(batch):
    made = columns(batch)
    assert len(made) == len(batch)
    assert made.records() == records(batch)
    sync = GpuSync("map_buffer", T0, T0 + 1, backend="wgpu")
    assert expanded([sync, made, sync]) == [sync, *records(batch), sync]


BATCH = [(0, 1, 250_000), (1, 0, 50), (2, 2, 70)]


def test_a_tracer_takes_columns():
    tracer = Tracer(Settings(), Recorder(Settings(), None))
    try:
        tracer.record([columns(BATCH)])
        session = tracer.session()
        assert [record.name for record in session.kernels] == ["shadows"]
        assert [(row.name, row.count, row.total_ns) for row in session.aggregates] == [
            ("shadows", 1, 50),
            ("blur", 1, 70),
        ]
        assert session.counters.seen == 3
        assert tracer.ignored_records == 0
    finally:
        tracer.close()


def test_a_file_holds_every_record(tmp_path):
    recorder = Recorder(Settings(), None, partial(FileStore, str(tmp_path / "run.gpusense")))
    received = []
    recorder.sinks.add(received.extend)
    recorder.events.append((RECORD, columns(BATCH)))
    recorder.tick()
    recorder.close()
    assert received == records(BATCH)
    session = load(recorder.store.writer.path)
    assert session.counters.seen == 3
    assert sum(row.count for row in session.aggregates) + len(session.kernels) == 3

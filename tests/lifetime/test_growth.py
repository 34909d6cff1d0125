"""Ten times as much as any table of a tracer holds: the table keeps to its bound, and what is beyond is told."""

import array
import collections
import types

import pytest
from support.cupti import STRIDES, T0, kernel, memcpy, sync, view

import gpusense
from gpusense._aggregation import busy, groups, pipeline, placement, sums, wait_lines
from gpusense._attribution import attributor, boundaries
from gpusense._attribution.boundaries import CLOSE, DARK, GONE, LIT, OPEN, Boundary
from gpusense._capi import demangle
from gpusense._capture import losses, recorder, store
from gpusense._decode import kinds, names, record
from gpusense._records import work
from gpusense._records.records import BlockRecord, UnseenInterval
from gpusense._runtime import log, threads
from gpusense._tracing import block as blocks
from gpusense._tracing import noop


def test_names_of_blocks_that_do_nothing(monkeypatch):
    idle = noop.NoopTracer("off")
    for number in range(10 * noop._LIMIT):
        with idle.trace(f"name {number}"), idle.compute_block(f"name {number}"):
            pass
    assert len(idle._blocks) <= noop._LIMIT
    assert len(idle._compute_blocks) <= noop._LIMIT


@pytest.mark.parametrize("root", [False, True])
def test_blocks_that_nobody_reads_are_counted(tracer, monkeypatch, root):
    """Also inside a block that is open for days."""
    monkeypatch.setattr(blocks, "MAX_WAITING", 500)
    tracer._worker.end()
    tracer._worker._thread.join(10)
    shed = tracer.status()["shed_blocks"]
    around = tracer.trace("for days")
    if root:
        around.__enter__()
    for _ in range(5_000):
        with gpusense.trace("step"):
            pass
        tracer.close_scope(tracer.open_scope("scope"))
    around.__exit__(None, None, None)
    assert len(tracer.recorder.events) < 1_000
    assert tracer.status()["shed_blocks"] - shed > 20


def test_times_in_which_work_was_not_seen(tracer):
    recording = tracer.recorder
    for number in range(10 * recorder.MAX_UNSEEN):
        recording._add_unseen(UnseenInterval(number, number + 1, "recording was disabled"))
    assert len(recording.unseen) == recorder.MAX_UNSEEN
    assert recording.unseen[-1].end_ns == 10 * recorder.MAX_UNSEEN
    assert recording.unseen[-1].reason == f"recording was disabled{recorder.IN_PART}"


def test_threads_of_gpusense_that_have_ended(monkeypatch):
    """One for each fork of a server, and for each monitor that was begun."""
    monkeypatch.setattr(threads, "_lives", [])
    monkeypatch.setattr(threads, "MOST_LIVES", 3)
    goes_on = threads.Event()
    lasting = threads.start(lambda: goes_on.wait(10), "lasting")
    for _ in range(30):
        threads.start(lambda: None, "short").join(10)
    assert len(threads._lives) <= 4
    assert [life for life in threads._lives if life[2] is None] == threads._lives[:1]
    goes_on.set()
    lasting.join(10)


def test_times_in_which_blocks_have_no_place(monkeypatch):
    monkeypatch.setattr(attributor, "MAX_DARK", 5)
    told = attributor.Attributor()
    for at in range(50):
        told.boundary(Boundary(DARK, 0, None, 0, 0, 0), 10 * at)
        told.boundary(Boundary(LIT, 0, None, 0, 0, 0), 10 * at + 5)
    assert len(told._dark) == 5
    assert told.unseen(493, 493)
    assert not told.unseen(497, 497)


#: Of all that a pipeline remembers.
SMALL = 20
TABLES = (
    (attributor, "MAX_EVENTS"), (attributor, "MAX_BLOCKS"), (attributor, "MAX_DARK"), (groups, "MAX_GROUPS"),
    (sums, "MAX_NAMES"), (sums, "MAX_LINES"), (placement, "MAX_CONTEXTS"), (names, "MAX_NAMES"), (names, "MAX_SETS"),
    (record, "MAX_LAUNCHES"), (kinds, "_MAX_KNOWN"), (work, "MAX_KINDS"), (work, "MAX_PATHS"), (store, "MAX_OWNERS"),
    (wait_lines, "MAX_CALLS"), (wait_lines, "MAX_FILES"), (busy, "HELD"),
)  # fmt: skip


def entries(thing, seen):
    """Of all that is kept in ``thing``, and in what that holds."""
    if id(thing) in seen or isinstance(thing, (type, types.ModuleType, types.FunctionType, str, bytes)):
        return 0
    seen[id(thing)] = thing
    if isinstance(thing, dict):
        return len(thing) + sum(entries(one, seen) for one in [*thing, *thing.values()])
    if isinstance(thing, (list, tuple, set, frozenset, collections.deque)):
        return len(thing) + sum(entries(one, seen) for one in thing)
    if isinstance(thing, (array.array, bytearray)):
        return len(thing) if len(thing) < 1 << 20 else 0
    own = [getattr(thing, name, None) for base in type(thing).__mro__ for name in getattr(base, "__slots__", ())]
    return sum(entries(one, seen) for one in [*own, *getattr(thing, "__dict__", {}).values()])


def test_what_a_pipeline_remembers_of_names_threads_streams_contexts_ids_blocks_and_graphs(monkeypatch):
    """Each request has its own of everything, as long as the server runs."""
    for module, name in TABLES:
        monkeypatch.setattr(module, name, SMALL)
    texts, held = {}, []
    made = pipeline.Pipeline(pipeline.Limits(0, max_per_second=1 << 62, max_records=SMALL, max_rows=SMALL))
    cache = names.NameCache(demangle)
    resolve = names.Names(cache, lambda pointer: texts.get(pointer, b""))
    for at in range(1, 30 * SMALL + 1):
        block, thread, launched = 2 * at, 0x7F0000000000 + 0x1000 * at, T0 + 1_000_000 * at
        texts = {0x1000 * at: b"kernel_%d" % at}
        opened = (boundaries.PLACED, OPEN, block, None, thread, launched, f"request {at}", 10 * at)
        closed = (boundaries.PLACED, CLOSE, block, None, thread, launched + 9, "", 10 * at + 5)
        made.boundaries_after([opened, closed, (boundaries.PLACED, GONE, 0, None, thread, launched, "", 10 * at + 6)])
        store.remember(made.owners, {at: (f"capture {at}",)})
        made.lines.add([(10 * at + 2, f"file_{at}.py:{at} f")])
        buffer = view(
            kernel(launched, launched + 5, 10 * at + 1, name=0x1000 * at, stream=at, context=at, block=(at, 1, 1)),
            sync(launched + 5, launched + 8, 10 * at + 2, stream=at),
            memcpy(launched, launched + 5, 10 * at + 3, stream=at, size=at),
        )
        cache.new_buffer(float(at))
        made.feed(buffer, thread, STRIDES, resolve, now_ns=launched)
        made.record([BlockRecord(f"request {at}", block, None, (), launched, launched + 9, thread)])
        made.cycle(launched)
        if at % (10 * SMALL) == 0:
            held.append(entries([made, cache], {}))
            assert max(len(made.work.kinds), len(made.work.paths)) <= 4 * SMALL
    assert made.counters().kept + made.counters().aggregated == made.counters().seen == 4 * 30 * SMALL
    assert held[2] < 1.3 * held[1], held


def test_losses(monkeypatch):
    found = losses.Losses(0)
    for at in range(1, 10 * losses.MAX_KEPT):
        found.look({"dropped": at // 2}, at)
    assert len(found._found["dropped"]) <= losses.MAX_KEPT


def test_different_warnings(monkeypatch, caplog):
    monkeypatch.setattr(log, "_said", set())
    for number in range(10 * log.MAX_SAID):
        log.once(f"key {number}", "gpusense: %s", number)
    assert len(log._said) <= log.MAX_SAID


def test_blocks_that_somebody_may_ask(tracer):
    for _ in range(20):
        for _ in range(1_000):
            with gpusense.trace("step"):
                pass
        tracer.flush(10)
    assert len(tracer.watched) < 10_000

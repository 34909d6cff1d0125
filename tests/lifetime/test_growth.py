"""Ten times as much as any table of a tracer holds: the table keeps to its bound, and what is beyond is told."""

import pytest

import gpusense
from gpusense._attribution import attributor
from gpusense._attribution.boundaries import DARK, LIT, Boundary
from gpusense._capture import losses, recorder
from gpusense._records.records import UnseenInterval
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

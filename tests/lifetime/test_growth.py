"""Ten times as much as any table of a tracer holds: the table keeps to its bound, and what is beyond is told."""

import pytest

import gpusense
from gpusense._capture import losses, recorder
from gpusense._records.records import UnseenInterval
from gpusense._runtime import log
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

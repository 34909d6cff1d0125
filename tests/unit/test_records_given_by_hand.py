"""What a program hands to the tracer by mistake: it is told nothing, and every report is made all the same."""

import asyncio
import inspect

import pytest

import gpusense
from gpusense import _log, _noop, _select


@pytest.fixture
def tracer(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GPUSENSE", "on")
    monkeypatch.setattr(_select, "_tracer", None)
    monkeypatch.setattr(_select, "_layers", type(_select._layers)())
    monkeypatch.setattr(gpusense, "_active", gpusense._Undecided())
    made = gpusense.get_tracer()
    yield made
    made.close()


def ignored(tracer) -> int:
    return tracer.status()["ignored_records"]


NO_RECORDS = {
    "bytes that are text": lambda tracer: tracer.record_transfer("t", "cpu_to_gpu", bytes="many", duration_ns=5),
    "bytes that are nothing": lambda tracer: tracer.record_transfer("t", "cpu_to_gpu", bytes=None, duration_ns=5),
    "times that are text": lambda tracer: tracer.record_kernel("k", start_ns="a", end_ns="b"),
    "a number as text": lambda tracer: tracer.record_kernel("k", duration_ns="5"),
    "an infinite time": lambda tracer: tracer.record_kernel("k", duration_ns=float("inf")),
    "no time at all": lambda tracer: tracer.record_compute_block("c", start_ns=float("nan"), end_ns=5),
    "elements that are a list": lambda tracer: tracer.record_compute_block("c", 1, 2, elements=[]),
    "an unknown field": lambda tracer: tracer.record_kernel("k", duration_ns=5, nonsense=1),
    "a field twice": lambda tracer: tracer.record_kernel("k", duration_ns=5, device="first"),
    "what is no record": lambda tracer: tracer.record([5]),
}


@pytest.mark.parametrize("case", NO_RECORDS)
def test_what_is_no_record_is_ignored_counted_and_logged_once(tracer, case, caplog, monkeypatch) -> None:
    monkeypatch.setattr(_log, "_said", set())
    NO_RECORDS[case](_noop.NoopTracer("off"))  # where nothing is recorded, as where something is
    for _ in range(2):
        NO_RECORDS[case](tracer)
    gpusense.record_kernel("good", duration_ns=10**9)
    assert tracer.flush(5)
    assert ignored(tracer) == 2
    assert len([entry for entry in caplog.records if entry.levelname == "WARNING"]) == 1
    assert [record.name for record in tracer.session().records] == ["good"]
    tracer.summary()
    tracer.export_json()


def test_numbers_of_other_types_become_whole_ones(tracer) -> None:
    gpusense.record_transfer("t", "cpu_to_gpu", bytes=4.0, duration_ns=1e9)  # type: ignore[arg-type]
    (record,) = tracer.session().transfers
    assert (type(record.bytes), record.bytes, record.duration_ns) == (int, 4, 10**9)


def test_a_name_without_a_text(tracer) -> None:
    class Odd:
        def __str__(self) -> str:
            raise RuntimeError("no text")

    with gpusense.compute_block(Odd()):  # type: ignore[arg-type]
        pass
    assert ignored(tracer) == 1


def test_a_compute_block_on_a_coroutine_function(tracer) -> None:
    gpusense.configure(trace_all=True)

    @gpusense.compute_block("later")
    async def later() -> int:
        await asyncio.sleep(0.01)
        return 1

    assert inspect.iscoroutinefunction(later)
    assert asyncio.run(later()) == 1
    (record,) = tracer.session().compute_blocks
    assert record.duration_ns >= 5_000_000


def test_a_decorated_compute_block_after_disable(tracer) -> None:
    gpusense.configure(trace_all=True)

    @gpusense.compute_block("work")
    def work() -> None:
        return None

    gpusense.disable()
    work()
    gpusense.enable()
    assert tracer.session().compute_blocks == []
    work()
    assert len(tracer.session().compute_blocks) == 1

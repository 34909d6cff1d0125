"""What a tracer calls: sinks, sources, watchers, and what they raise."""

import asyncio
import threading
import time

import pytest
from support.control import begun

import gpusense
from gpusense._attribution.boundaries import RECORD
from gpusense._capture import sinks


def test_sink_gets_lists_and_one_that_raises_is_removed(tracer):
    got, calls = [], []

    def bad(records):
        calls.append(records)
        raise RuntimeError("sink")

    gpusense.configure(sinks=(got.extend, bad))
    for _ in range(2):
        gpusense.record_kernel("slow", duration_ns=10**6)
        gpusense.record_kernel("fast", duration_ns=10)
        tracer.flush()
    assert [record.name for record in got] == ["slow", "slow"]
    assert len(calls) == 1
    assert tracer.session().counters.sink_errors == 1


def test_asking_with_a_limit_ends_though_a_sink_hangs(tracer):
    hang, inside = threading.Event(), threading.Event()

    got = []

    def sink(records):
        got.extend(records)
        inside.set()
        hang.wait(30)

    tracer.add_sink(sink)
    with gpusense.trace("one"):
        pass
    assert inside.wait(10)
    with gpusense.trace("two"):
        pass
    asking = threading.Thread(target=tracer.flush, args=(0.1,))
    asking.start()
    asking.join(5)
    ended = not asking.is_alive()
    told = tracer.flush(0.01)
    hang.set()
    asking.join(10)
    assert ended
    assert told is False
    assert tracer.flush(10)
    assert [record.name for record in got] == ["one", "two"]  # what it could not be given then came later


def test_a_sink_is_called_on_gpusense_s_thread_and_whoever_asks_waits_no_longer_than_said(tracer):
    hang, threads = threading.Event(), set()

    def sink(records):
        threads.add(threading.get_ident())
        hang.wait(30)

    tracer.add_sink(sink)
    gpusense.record_kernel("one", duration_ns=10**6)
    began = time.monotonic()
    told = tracer.flush(0.2)
    took = time.monotonic() - began
    hang.set()
    assert (told, took < 10) == (False, True)
    assert tracer.flush(float("inf"))
    for _ in range(50):
        gpusense.record_kernel("more", duration_ns=10**6)
        assert tracer.flush(10)
    assert len(threads) == 1
    assert threading.get_ident() not in threads


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError(), GeneratorExit()], ids=repr)
def test_a_sink_that_ends_with_more_than_an_exception_is_removed(tracer, error):
    def sink(records):
        raise error

    tracer.add_sink(sink)
    gpusense.record_kernel("k", duration_ns=10**9)
    tracer.flush(5)
    gpusense.record_kernel("k", duration_ns=10**9)
    tracer.flush(5)
    assert tracer.session().counters.sink_errors == 1


def wait_until(what):
    end = time.monotonic() + 10
    while not what():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("asked", [True, False])
def test_a_sink_that_ends_gpusense_s_own_thread_is_removed(tracer, caplog, error, asked):
    """It was called again with each list, where it had interrupted itself."""
    calls, others = [], []

    def sink(records):
        calls.append(threading.current_thread().name)
        raise error

    tracer.add_sink(sink)
    tracer.add_sink(others.extend)
    for number in range(3):
        gpusense.record_kernel("k", duration_ns=10**9)
        if asked:
            assert tracer.flush(5)
        else:
            wait_until(lambda seen=number: len(others) > seen)
    assert calls == ["gpusense sinks"]
    assert len(others) == 3
    assert tracer.session().counters.sink_errors == 1


class Source:
    name = "odd"

    def __init__(self, error):
        self.error, self.calls = error, 0

    def flush(self, timeout_s):
        self.calls += 1
        raise self.error

    def status(self):
        return {}


@pytest.mark.parametrize("error", [RuntimeError(), SystemExit(3), asyncio.CancelledError()], ids=repr)
def test_a_source_that_ends_with_anything_is_removed(tracer, error):
    source = Source(error)
    tracer.add_source(source)
    for _ in range(2):
        assert tracer.flush(5)
    assert source.calls == 1


def test_ctrl_c_in_a_source_is_the_programs_and_a_sources_own_is_not(tracer):
    source = Source(KeyboardInterrupt())
    tracer.add_source(source)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            tracer.flush(5)
    done = threading.Event()
    assert tracer._worker.errand(lambda: (tracer.recorder.sources.flush(1.0), done.set()))
    assert done.wait(10)
    assert tracer.flush(5)
    assert source.calls == 3
    assert tracer._worker._thread.is_alive()


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()], ids=repr)
def test_a_watcher_and_an_end_that_interrupt_themselves_leave_the_thread(tracer, error):
    calls = []

    def interrupted():
        calls.append(threading.current_thread().name)
        raise error

    tracer._worker.add_watcher(interrupted)
    assert tracer._worker.finish(interrupted, 10, 10)
    wait_until(lambda: len(calls) == 2)
    for _ in range(3):
        tracer._worker.wake()
        gpusense.record_kernel("k", duration_ns=10**9)
        assert tracer.flush(5)
    assert calls == ["gpusense", "gpusense"]
    assert tracer._worker._thread.is_alive()


def test_ctrl_c_in_a_sink_is_the_programs(tracer, monkeypatch):
    """Where no thread can be started a sink runs on one of the program's."""
    tracer._worker.end()
    tracer._worker._thread.join(10)
    monkeypatch.setattr(sinks.threads, "start", lambda target, name: None)
    calls = []

    def sink(records):
        calls.append(records)
        if len(calls) == 1:
            raise KeyboardInterrupt

    tracer.add_sink(sink)
    gpusense.record_kernel("k", duration_ns=10**9)
    with pytest.raises(KeyboardInterrupt):
        tracer.flush(5)
    gpusense.record_kernel("k", duration_ns=10**9)
    tracer.flush(5)
    assert len(calls) == 2


def test_a_sink_given_before_recording_begins_is_kept_for_it(tracer, monkeypatch):
    tracer.close()
    begun(monkeypatch)
    got = []
    gpusense.configure(sinks=[got.extend])
    assert not gpusense.get_tracer().active
    assert gpusense.enable()
    with gpusense.trace("step"):
        pass
    gpusense.get_tracer().close()
    assert [record.name for record in got] == ["step"]


def test_a_watcher_is_asked_until_it_is_done_or_raises(tracer, caplog):
    asked = {"done": 0, "bad": 0}
    finished = threading.Event()

    def done():
        asked["done"] += 1
        if asked["done"] == 3:
            finished.set()
        return asked["done"] == 3

    def bad():
        asked["bad"] += 1
        raise RuntimeError

    tracer.add_watcher(bad)
    tracer.add_watcher(done)
    while not finished.wait(0.01):
        tracer._worker.wake()
    tracer.close()
    assert asked == {"done": 3, "bad": 1}
    assert "a check that runs beside the recording raised" in caplog.text


def test_what_was_given_up_at_the_end_is_not_read_at_a_second_one(tracer):
    tracer.close()
    tracer.recorder.events.append((RECORD, None))
    tracer.close()
    assert len(tracer.recorder.events) == 1

"""What a monitor calls back, and how it stops."""

import sys
import threading

import pytest
from support.devices import wait_until

from gpusense import monitor
from gpusense._records.metrics import GpuMetrics
from gpusense.monitor._callbacks import Dispatcher


def test_a_callback_gets_every_sample_of_every_device(two):
    got: list[GpuMetrics] = []
    two.start(got.append, interval=0.1)
    two.clock.advance(1)
    wait_until(lambda: len(got) == 22)
    assert {sample.device.index for sample in got} == {0, 1}
    assert [sample.sequence for sample in got if sample.device.index == 0] == list(range(11))


def test_a_callback_that_raises_does_not_stop_the_monitor(rig):
    errors: list[BaseException] = []

    def callback(sample):
        raise ValueError("mine")

    running = rig.start(callback, interval=0.1, on_error=errors.append)
    rig.clock.advance(1)
    wait_until(lambda: running.stats().callback_errors == 11)
    assert [str(error) for error in errors] == ["mine"]  # once, not eleven times
    for reported in (2, 3):  # not both at once: whoever calls back late sees only where the clock has come to
        rig.clock.advance(10)
        wait_until(lambda reported=reported: len(errors) == reported)
    assert running.running


def test_an_on_error_that_raises_is_survived(rig):
    def callback(sample):
        raise ValueError("mine")

    def on_error(error):
        raise KeyError("worse")

    running = rig.start(callback, interval=0.1, on_error=on_error)
    rig.clock.advance(1)
    wait_until(lambda: running.stats().callback_errors == 11)


def test_a_slow_callback_loses_the_oldest_and_counts_them():
    release, got, begun = threading.Event(), [], threading.Event()

    def callback(item):
        begun.set()
        release.wait(10)
        got.append(item)

    dispatcher = Dispatcher(callback, room=4)
    dispatcher.start()
    dispatcher.put(0)
    begun.wait(10)
    for item in range(1, 11):
        dispatcher.put(item)
    release.set()
    wait_until(lambda: len(got) == 5)
    assert got == [0, 7, 8, 9, 10]
    assert dispatcher.dropped == 6
    dispatcher.stop(5)


def test_a_slow_callback_does_not_delay_sampling(rig):
    release = threading.Event()
    running = rig.start(lambda sample: release.wait(10), interval=0.1)
    rig.clock.advance(20)
    assert len(running.history()) == 201
    assert running.stats().callbacks_dropped > 100
    release.set()


class Outcome(BaseException):
    """As pytest's skip and fail are, and asyncio's CancelledError."""


def stop_everything(error):
    raise Outcome


@pytest.mark.parametrize("on_error", [None, stop_everything])
def test_a_callback_may_raise_anything(on_error):
    def callback(item):
        raise Outcome

    dispatcher = Dispatcher(callback, on_error)
    dispatcher.start()
    for item in range(3):
        dispatcher.put(item)
    wait_until(lambda: dispatcher.errors == 3)
    dispatcher.stop(5)


@pytest.mark.parametrize("on_error", [None, lambda error: sys.exit(2)])
def test_a_callback_that_exits_ends_neither_itself_nor_the_monitor(on_error):
    """SystemExit ended the thread without a word, and every later sample was dropped."""
    called = []

    def callback(item):
        called.append(item)
        sys.exit(1)

    dispatcher = Dispatcher(callback, on_error)
    dispatcher.start()
    for item in range(3):
        dispatcher.put(item)
    wait_until(lambda: dispatcher.errors == 3)
    assert called == [0, 1, 2]
    dispatcher.stop(5)


def test_no_call_after_stop(rig):
    got: list[GpuMetrics] = []
    running = rig.start(got.append, interval=0.1)
    rig.clock.advance(1)
    wait_until(lambda: got)
    running.stop()
    seen = len(got)
    running.accept(got[0])
    rig.clock.advance(1)
    assert len(got) == seen


def test_stop_waits_for_the_call_that_runs():
    begun, order = threading.Event(), []

    def callback(item):
        begun.set()
        threading.Event().wait(0.05)
        order.append("callback")

    dispatcher = Dispatcher(callback)
    dispatcher.start()
    dispatcher.put(1)
    begun.wait(10)
    dispatcher.put(2)
    dispatcher.stop(10)
    order.append("stopped")
    assert order == ["callback", "stopped"]


def test_stop_from_the_callback_and_twice(rig):
    got, running = [], []

    def callback(sample):
        got.append(sample)
        running[0].stop()
        running[0].stop()

    running.append(rig.start(callback, interval=0.1))
    rig.clock.advance(1)
    wait_until(lambda: not running[0].running)
    running[0].stop()
    assert len(got) == 1


def test_many_threads_may_stop_at_once(rig):
    running = rig.start(lambda sample: None, interval=0.1)
    rig.clock.advance(0.5)
    threads = [threading.Thread(target=running.stop) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def test_a_monitor_is_a_context_manager(rig):
    with rig.start() as running:
        assert running.running
        assert monitor.current() is running
    assert not running.running
    assert monitor.current() is None

"""The recording thread around forks: ended before them, there again after them, and never two of it; its pauses."""

import os
import threading
import types

import pytest
from support.machine import warns_of_threads

from gpusense._capture import worker as _worker
from gpusense._capture.worker import Worker

WAIT_S = 20


class Recorder:
    """Cycles that a test can hold up and count, on however many threads."""

    capture = None

    def __init__(self):
        self.spent_s = 0.0
        self.steps = 0
        self.threads = []
        self.ticked = threading.Event()
        self.free = threading.Event()
        self.free.set()

    def tick(self, lazily):
        self.threads.append(threading.get_native_id())
        self.ticked.set()
        assert self.free.wait(WAIT_S)

    def pace(self, waited_s):
        return 3600

    def again(self, worker):
        """The system's number of the thread that runs a cycle which begins now."""
        self.ticked.clear()
        worker.wake()
        assert self.ticked.wait(WAIT_S)
        return self.threads[-1]


@pytest.fixture
def recorder():
    return Recorder()


@pytest.fixture
def worker(recorder):
    worker = Worker(recorder)
    assert worker.start()
    assert recorder.ticked.wait(WAIT_S)
    yield worker
    recorder.free.set()
    thread = worker._thread
    worker.end()
    if thread is not None:
        thread.join(WAIT_S)


def alive(native_id):
    return any(thread.native_id == native_id for thread in threading.enumerate())


def test_the_thread_is_gone_for_a_fork_and_another_goes_on(worker, recorder):
    first = recorder.again(worker)
    worker.before_fork()
    assert not alive(first)
    assert not os.path.exists(f"/proc/self/task/{first}")
    worker.after_fork_in_parent()
    second = recorder.again(worker)
    assert alive(second)
    assert sum(thread.name == "gpusense" for thread in threading.enumerate()) == 1


def test_errands_of_meanwhile_are_run(worker, recorder):
    done = threading.Event()
    worker.before_fork()
    worker._errands.append(done.set)
    worker.after_fork_in_parent()
    assert done.wait(WAIT_S)


def test_a_cycle_that_takes_long_holds_no_fork_and_goes_on(worker, recorder):
    recorder.free.clear()
    first = recorder.again(worker)
    worker.before_fork()
    assert alive(first)
    worker.after_fork_in_parent()
    recorder.free.set()
    assert recorder.again(worker) == first


def test_a_thread_that_ends_late_is_followed_by_another(worker, recorder):
    recorder.free.clear()
    first = worker._thread
    recorder.again(worker)
    worker.before_fork()
    recorder.free.set()  # while the fork is under way
    first.join(WAIT_S)
    assert not first.is_alive()
    worker.after_fork_in_parent()
    assert alive(recorder.again(worker))


@pytest.mark.parametrize("chance", ["wake", "fork"])
def test_where_the_system_has_no_room_for_a_thread_the_next_chance_is_taken(worker, recorder, monkeypatch, chance):
    first = recorder.again(worker)
    worker.before_fork()
    with monkeypatch.context() as full:
        full.setattr(_worker.threads, "start", lambda *_: None)
        worker.after_fork_in_parent()
        worker.wake()
        worker.before_fork()
        worker.after_fork_in_parent()
    assert not worker.started
    recorder.ticked.clear()
    if chance == "fork":
        worker.before_fork()
        worker.after_fork_in_parent()
        assert worker.started
    worker.wake()
    assert recorder.ticked.wait(WAIT_S)
    assert recorder.threads[-1] != first
    assert sum(thread.name == "gpusense" for thread in threading.enumerate()) == 1


def test_a_fork_inside_a_fork(worker, recorder):
    """A signal handler may fork between any two steps of the program's own fork."""
    worker.before_fork()
    worker.before_fork()
    worker.after_fork_in_parent()
    second = recorder.again(worker)
    worker.after_fork_in_parent()
    assert recorder.again(worker) == second
    worker.before_fork()
    worker.after_fork_in_parent()
    worker.before_fork()
    assert not alive(recorder.threads[-1])
    worker.after_fork_in_parent()
    assert alive(recorder.again(worker))


def test_a_fork_of_the_thread_itself_leaves_it_alone(worker, recorder):
    """A sink may fork."""
    done = threading.Event()

    def fork():
        worker.before_fork()
        worker.after_fork_in_parent()
        done.set()

    first = recorder.again(worker)
    assert worker.errand(fork)
    assert done.wait(WAIT_S)
    assert recorder.again(worker) == first


def test_while_capture_runs_the_thread_stays(worker, recorder):
    first = recorder.again(worker)
    recorder.capture = types.SimpleNamespace(attached=True)
    worker.before_fork()
    assert alive(first)
    worker.after_fork_in_parent()
    recorder.capture.attached = False
    worker.before_fork()
    assert not alive(first)
    worker.after_fork_in_parent()


def test_one_that_has_ended_stays_so(worker, recorder):
    thread = worker._thread
    worker.end()
    thread.join(WAIT_S)
    worker.before_fork()
    worker.after_fork_in_parent()
    assert worker._thread is thread


def test_the_end_waits_for_the_thread_as_long_as_it_is_told(worker, recorder):
    thread = worker._thread
    recorder.free.clear()
    recorder.again(worker)
    worker.end(0.01)
    assert thread.is_alive()
    recorder.free.set()
    worker.end(WAIT_S)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    ("version", "helps"),
    [
        ((3, 11, 9), False),
        ((3, 12, 0), True),
        ((3, 12, 12), True),
        ((3, 13, 0), False),
        ((3, 13, 9), False),
        ((3, 13, 10), True),
        ((3, 14, 0), False),
        ((3, 14, 1), True),
        ((3, 15, 0), True),
    ],
)
def test_versions_of_python_in_which_it_helps(version, helps):
    assert warns_of_threads(version) is helps


def test_a_thread_that_gevent_would_complain_of_stays(worker, recorder, monkeypatch):
    first = recorder.again(worker)
    monkeypatch.setattr("gpusense._runtime.threads.patched", lambda: True)
    worker.before_fork()
    assert alive(first)
    worker.after_fork_in_parent()
    assert recorder.again(worker) == first


# --- pauses --------------------------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch):
    """Nanoseconds that pass only where a test says so, and in pauses."""
    now, slept = [7], []
    monkeypatch.setattr(_worker, "perf_counter_ns", lambda: now[0])

    def sleep(seconds):
        slept.append(seconds)
        now[0] += int(seconds * 1e9)

    monkeypatch.setattr(_worker, "sleep", sleep)
    return now, slept


def test_pauses_come_when_they_are_due(clock):
    now, slept = clock
    pause = _worker.Pauses()
    now[0] = 10**12
    pause.begin()
    found = []
    for _ in range(10):
        now[0] += 200_000
        pause()
        found.append(len(slept))
    assert found == [0, 0, 1, 1, 1, 2, 2, 2, 3, 3]
    pause.begin()
    now[0] += 499_999
    pause()
    assert slept == [_worker.PAUSE_S] * 3


@pytest.mark.parametrize(("goes_on", "longest_s", "ended"), [(True, 60, True), (False, 60, False), (True, 0.2, False)])
def test_the_end_has_time_as_long_as_it_goes_on(worker, recorder, goes_on, longest_s, ended):
    over = threading.Event()

    def end():
        for _ in range(30):
            recorder.steps += goes_on
            if over.wait(0.05):
                return

    assert worker.finish(end, 0.4, longest_s) is ended
    over.set()

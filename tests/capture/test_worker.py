"""The recording thread around forks: ended before them, there again after them, and never two of it."""

import os
import threading
import types

import pytest

from gpusense._capture.worker import Worker
from gpusense._runtime import process

WAIT_S = 20


class Recorder:
    """Rounds that a test can hold up and count, on however many threads."""

    capture = None

    def __init__(self):
        self.spent_s = 0.0
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
        """The system's number of the thread that runs a round which begins now."""
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
    worker.rest()
    assert not alive(first)
    assert not os.path.exists(f"/proc/self/task/{first}")
    worker.go_on()
    second = recorder.again(worker)
    assert alive(second)
    assert sum(thread.name == "gpusense" for thread in threading.enumerate()) == 1


def test_errands_of_meanwhile_are_run(worker, recorder):
    done = threading.Event()
    worker.rest()
    worker._errands.append(done.set)
    worker.go_on()
    assert done.wait(WAIT_S)


def test_a_round_that_takes_long_holds_no_fork_and_goes_on(worker, recorder):
    recorder.free.clear()
    first = recorder.again(worker)
    worker.rest()
    assert alive(first)
    worker.go_on()
    recorder.free.set()
    assert recorder.again(worker) == first


def test_a_thread_that_ends_late_is_followed_by_another(worker, recorder):
    recorder.free.clear()
    first = worker._thread
    recorder.again(worker)
    worker.rest()
    recorder.free.set()  # while the fork is under way
    first.join(WAIT_S)
    assert not first.is_alive()
    worker.go_on()
    assert alive(recorder.again(worker))


def test_a_fork_inside_a_fork(worker, recorder):
    """A signal handler may fork between any two steps of the program's own fork."""
    worker.rest()
    worker.rest()
    worker.go_on()
    second = recorder.again(worker)
    worker.go_on()
    assert recorder.again(worker) == second
    worker.rest()
    worker.go_on()
    worker.rest()
    assert not alive(recorder.threads[-1])
    worker.go_on()
    assert alive(recorder.again(worker))


def test_a_fork_of_the_thread_itself_leaves_it_alone(worker, recorder):
    """A sink may fork."""
    done = threading.Event()

    def fork():
        worker.rest()
        worker.go_on()
        done.set()

    first = recorder.again(worker)
    assert worker.errand(fork)
    assert done.wait(WAIT_S)
    assert recorder.again(worker) == first


def test_while_capture_runs_the_thread_stays(worker, recorder):
    first = recorder.again(worker)
    recorder.capture = types.SimpleNamespace(attached=True)
    worker.rest()
    assert alive(first)
    worker.go_on()
    recorder.capture.attached = False
    worker.rest()
    assert not alive(first)
    worker.go_on()


def test_one_that_has_ended_stays_so(worker, recorder):
    thread = worker._thread
    worker.end()
    thread.join(WAIT_S)
    worker.rest()
    worker.go_on()
    assert worker._thread is thread


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
    assert process.warns_of_threads(version) is helps


def test_a_thread_that_gevent_would_complain_of_stays(worker, recorder, monkeypatch):
    first = recorder.again(worker)
    monkeypatch.setattr("gpusense._runtime.threads.patched", lambda: True)
    worker.rest()
    assert alive(first)
    worker.go_on()
    assert recorder.again(worker) == first

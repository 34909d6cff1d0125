"""Threads, locks and events of the system, in plain programs and under real gevent and eventlet."""

import contextvars
import sys
import threading
import time

import pytest
from support.machine import skip_without

from gpusense._runtime import threads

WAIT_S = 20


@pytest.fixture(params=["threading", "patched"])
def start(request, monkeypatch):
    """``threads.start`` as it is, and as where ``threading`` makes greenlets."""
    if request.param == "patched":
        monkeypatch.setattr(threads, "patched", lambda: True)
    return threads.start


def test_a_started_thread_is_alive_until_it_can_be_joined(start):
    go, seen = threads.Event(), []
    thread = start(lambda: (go.wait(WAIT_S), seen.append(threading.get_ident())), "gpusense-test")
    assert thread.is_alive()
    thread.join(0.01)
    assert thread.is_alive()
    go.set()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert seen == [thread.ident] != [threading.get_ident()]


def test_a_thread_has_a_name_and_none_of_the_programs_context():
    word = contextvars.ContextVar("word", default="none")
    word.set("the program's")
    seen = []
    thread = threads.start(lambda: seen.append((word.get(), threading.current_thread().name)), "gpusense-test")
    thread.join(WAIT_S)
    assert seen == [("none", "gpusense-test")]


@pytest.mark.parametrize("error", [RuntimeError, MemoryError])
def test_where_no_thread_can_be_started_there_is_none(start, monkeypatch, error):
    def refuse(*_):
        raise error("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    monkeypatch.setattr(threads, "native", lambda name: refuse if name == "start_new_thread" else threading.Lock)
    assert start(print, "gpusense-test") is None


@pytest.mark.parametrize("patched", [False, True])
def test_the_interpreter_waits_for_a_thread_that_is_no_daemon(run_python, patched):
    code = f"""
import time
from gpusense._runtime import threads
threads.patched = lambda: {patched}
threads.start(lambda: (time.sleep(0.3), print("done", flush=True)), "gpusense-test", daemon=False)
threads.start(lambda: time.sleep(60), "gpusense-test")
"""
    done = run_python(code)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["done"], "")


def test_an_event_wakes_all_who_wait_and_stays_set():
    event, woken = threads.Event(), []
    waiting = [threads.start(lambda: woken.append(event.wait(WAIT_S)), "gpusense-test") for _ in range(4)]
    assert not event.is_set()
    assert not event.wait(0.01)
    assert not event.wait(-1.0)
    event.set()
    for thread in waiting:
        thread.join(WAIT_S)
    assert woken == [True] * 4
    assert event.is_set()
    assert event.wait()
    event.clear()
    assert not event.is_set()
    assert not event.wait(0.0)


def test_events_that_are_set_while_others_give_up_lose_nobody():
    event, rounds = threads.Event(), 300
    seen = []

    def wait():
        seen.extend(event.wait(0.0005) for _ in range(rounds))

    waiting = [threads.start(wait, "gpusense-test") for _ in range(3)]
    while any(thread.is_alive() for thread in waiting):
        event.set()
        event.clear()
    assert len(seen) == 3 * rounds
    assert not event.wait(0.0)
    event.set()
    assert event.wait(WAIT_S)


def test_a_bell_is_silenced_by_who_hears_it():
    bell = threads.Bell()
    bell.set()
    bell.set()
    assert bell.wait(0.0)
    assert not bell.wait(0.0)
    bell.set()
    bell.clear()
    assert not bell.wait(0.0)


def test_a_lock_knows_its_owner():
    lock, seen = threads.rlock(), []
    with lock:
        assert threads.mine(lock)
        assert lock.acquire(timeout=0.0)
        lock.release()
        other = threads.start(lambda: seen.append((threads.mine(lock), lock.acquire(timeout=0.0))), "gpusense-test")
        other.join(WAIT_S)
    assert seen == [(False, False)]
    assert not threads.mine(lock)
    with pytest.raises(RuntimeError):
        lock.release()


def test_a_count_is_exact_over_threads():
    count = threads.Count()

    def add():
        for _ in range(1000):
            count.add()

    adding = [threads.start(add, "gpusense-test") for _ in range(4)]
    for thread in adding:
        thread.join(WAIT_S)
    assert count.total() == 4000


#: A program that never lets greenlets run, and a thread that must run all the same and wake a second one.
BUSY = """
import time
from gpusense._runtime import threads
{early}
begun, over, seen = threads.Event(), threads.Event(), []
def first():
    with threads.rlock(), threads.lock():
        seen.append(threads.thread_id()())
        begun.set()
def second():
    seen.append(begun.wait(5))
    over.set()
waiting = threads.start(second, "gpusense-test")
running = threads.start(first, "gpusense-test")
until = time.monotonic() + 20
while not over.is_set() and time.monotonic() < until: pass
print(threads.patched(), over.is_set(), seen[1:], seen[0] != threads.thread_id()(), threads.foreign(running))
"""


@pytest.mark.parametrize(
    ("library", "patch"),
    [
        ("gevent", "from gevent import monkey; monkey.patch_all()"),
        ("eventlet", "import eventlet; eventlet.monkey_patch()"),
    ],
)
@pytest.mark.parametrize("when", ["first", "late"])
def test_a_patched_program_that_never_yields_holds_no_thread(run_python, library, patch, when):
    skip_without(library)
    code = patch + BUSY.format(early="") if when == "first" else BUSY.format(early=patch)
    done = run_python(code, PYTHONWARNINGS="ignore")
    assert done.stdout.split("\n")[0] == "True True [True] True False", done.stderr


def test_the_system_knows_its_threads():
    thread = threads.system_id()
    assert sys.platform != "linux" or (thread and threads.exists(thread))
    assert not threads.exists(2**31 - 1)


def test_threads_of_gpusense_are_known_by_number_and_time():
    begun, go, numbers = time.time_ns(), threads.Event(), []

    def work():
        numbers.append(threads.system_id())
        go.wait(10)

    thread = threads.start(work, "gpusense-test")
    while not numbers:
        time.sleep(0.001)
    during = time.time_ns()
    assert threads.is_own(numbers[0], during)
    assert not threads.is_own(numbers[0], begun - 1)
    assert not threads.is_own(threads.system_id(), during)
    go.set()
    thread.join(10)
    assert threads.is_own(numbers[0], during)
    assert not threads.is_own(numbers[0], time.time_ns() + 1)

"""SIGUSR2 asks for a dump beside what the program does with it, as long as that is wanted."""

import os
import signal
import threading

import pytest

from gpusense._capture import dump_signal
from gpusense._capture.dump_signal import DumpSignal

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGUSR2"), reason="there is no SIGUSR2")


@pytest.fixture
def got():
    return []


@pytest.fixture
def asked(got):
    made = DumpSignal(lambda: got.append("asked"))
    before = signal.getsignal(signal.SIGUSR2)
    yield made
    signal.signal(signal.SIGUSR2, before)


def raised():
    os.kill(os.getpid(), signal.SIGUSR2)


def test_it_is_set_where_it_is_wanted_and_the_default_comes_back(asked, got):
    assert (asked.state, signal.getsignal(signal.SIGUSR2)) == ("off", signal.SIG_DFL)
    asked.want(True)
    assert asked.state == dump_signal.SET
    raised()
    assert got == ["asked"]
    asked.want(True)
    asked.want(False)
    assert (asked.state, signal.getsignal(signal.SIGUSR2)) == ("off", signal.SIG_DFL)


def test_a_handler_of_the_program_is_called_with_what_it_expects_and_comes_back(asked, got):
    def theirs(number, frame):
        got.append((number, frame.f_code.co_name))

    signal.signal(signal.SIGUSR2, theirs)
    asked.want(True)
    raised()
    assert got == ["asked", (signal.SIGUSR2, "raised")]
    asked.want(False)
    assert signal.getsignal(signal.SIGUSR2) is theirs


def test_what_a_handler_of_the_program_raises_is_the_programs(asked, got):
    def theirs(number, frame):
        raise TimeoutError

    signal.signal(signal.SIGUSR2, theirs)
    asked.want(True)
    with pytest.raises(TimeoutError):
        raised()
    assert got == ["asked"]


def test_one_that_the_program_sets_afterwards_stays_and_may_call_ours(asked, got):
    asked.want(True)
    ours = signal.getsignal(signal.SIGUSR2)

    def theirs(number, frame):
        ours(number, frame)

    signal.signal(signal.SIGUSR2, theirs)
    assert asked.state == "the program has set another handler since"
    raised()
    asked.want(False)
    assert signal.getsignal(signal.SIGUSR2) is theirs
    raised()
    assert got == ["asked"]


def test_from_another_thread_it_is_set_on_the_main_one(asked, got, monkeypatch):
    later = []
    monkeypatch.setattr(dump_signal.main_thread, "later", lambda action: later.append(action) or True)
    thread = threading.Thread(target=asked.want, args=(True,))
    thread.start()
    thread.join()
    assert asked.state == dump_signal.WAITS
    assert signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL
    later.pop()()
    assert asked.state == dump_signal.SET


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ("no room", "the main thread has too many calls waiting"),
        ("of C", "a handler that is not Python's has SIGUSR2"),
        ("refused", "signal only works in main thread of the main interpreter"),
        ("none", "this system has no SIGUSR2"),
    ],
)
def test_where_it_cannot_be_set_it_says_why(asked, monkeypatch, wrong, reason):
    with monkeypatch.context() as patch:
        if wrong == "no room":
            patch.setattr(dump_signal.threads, "is_main", lambda: False)
            patch.setattr(dump_signal.main_thread, "later", lambda action: False)
        elif wrong == "of C":
            patch.setattr(signal, "getsignal", lambda number: None)
        elif wrong == "none":
            patch.delattr(signal, "SIGUSR2")
        else:

            def refuse(number, handler):
                raise ValueError(reason)

            patch.setattr(signal, "signal", refuse)
        asked.want(True)
        assert asked.state == reason
    assert signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL

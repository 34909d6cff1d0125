"""A block opened while another thread attaches waits, so that what it launches is seen, but not for ever."""

import threading
from time import monotonic
from types import SimpleNamespace

import pytest

from gpusense._capture import capturing
from gpusense._records.records import UnseenStretch
from gpusense._runtime import config


class Capture:
    """Attaches when the gate is opened."""

    waiting, running, attached = True, False, False

    def __init__(self):
        self.inside, self.gate = threading.Event(), threading.Event()
        self.marker, self.marker_shape, self.newest = len, None, None

    def try_attach(self, on_view):
        self.inside.set()
        self.gate.wait(60)
        self.running = True
        return UnseenStretch(0, 0, "")

    def prepare_marker(self):
        return True

    def watch(self):
        return None


@pytest.fixture
def attaching():
    recorder = capturing.Capturing(config.Settings(), Capture())
    thread = threading.Thread(target=recorder.poke)
    thread.start()
    assert recorder.capture.inside.wait(10)
    recorder._last_poke = 0.0
    yield SimpleNamespace(recorder=recorder, gate=recorder.capture.gate)
    recorder.capture.gate.set()
    thread.join(10)


def test_a_block_waits_for_the_thread_that_attaches(attaching):
    recorder, marked = attaching.recorder, []

    def block():
        recorder.poke()
        marked.append(recorder.marker)

    recorder._patience_s = 30.0
    opener = threading.Thread(target=block)
    opener.start()
    opener.join(0.2)
    assert not marked
    attaching.gate.set()
    opener.join(20)
    assert marked == [len]


def test_blocks_wait_no_longer_than_a_while_in_all(attaching):
    recorder = attaching.recorder
    recorder._patience_s = 0.05
    recorder.poke()
    assert recorder.marker is None
    assert recorder._patience_s == 0.0
    recorder._last_poke = 0.0
    began = monotonic()
    for _ in range(100):
        recorder._last_poke = 0.0
        recorder.poke()
    assert monotonic() - began < 20  # none of them waited; a hundred waits of a second would have
    assert recorder.armed

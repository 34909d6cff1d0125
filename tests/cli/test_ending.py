"""How a run ends, in this process: what a terminal shows meanwhile."""

import gc
import os
import threading
from types import SimpleNamespace

import pytest

from gpusense.cli import _ending
from gpusense.report import text
from gpusense.session import Session


@pytest.fixture
def ended(monkeypatch):
    monkeypatch.setattr(_ending, "_SILENT_S", 0.01)

    def end(summary, wrote=None, *, terminal=True):
        monkeypatch.setattr(os, "isatty", lambda _: terminal)
        monkeypatch.setattr(text, "summary", summary)
        settings = SimpleNamespace(
            quiet=False, open=False, delay=None, duration=None, block=None, passes=None, otlp=None
        )
        ending, written = _ending.Ending(None, None, None, None, settings), []
        monkeypatch.setattr(ending, "_write", lambda said: (written.append(said), wrote and wrote.set()))
        tracer = SimpleNamespace(recorder=SimpleNamespace(facts={}))
        ending.recording = SimpleNamespace(finish=Session, tracer=tracer)
        ending.at_exit()
        return written

    return end


def test_a_terminal_says_so_while_an_answer_takes_long(ended):
    collected, wrote = [], threading.Event()

    def slow(*_, **__):
        collected.append(gc.isenabled())
        assert wrote.wait(10)
        return ["gpusense: train.py", "next: gpusense report"]

    assert ended(slow, wrote) == [
        "gpusense: reading what was recorded …",
        "\r\x1b[K",
        "gpusense: train.py\nnext: gpusense report\n",
    ]
    assert collected == [False]
    assert gc.isenabled()


def test_elsewhere_there_is_the_answer_alone(ended):
    assert ended(lambda *_, **__: ["gpusense: a", "next: b"], terminal=False) == ["gpusense: a\nnext: b\n"]


def test_an_answer_that_fails_is_said_and_ends_the_waiting(ended):
    def fails(*_, **__):
        raise ValueError("of no use")

    *_, last = ended(fails)
    assert last == "gpusense: the session could not be ended: ValueError: of no use\n"
    for thread in threading.enumerate():
        if thread.name == "gpusense-waiting":
            thread.join(10)
            assert not thread.is_alive()

"""How a run ends, in this process: what a terminal shows meanwhile."""

import gc
import os
import sys
import threading
from types import SimpleNamespace

import pytest
from support.sessions import MS, block, session

from gpusense.cli import _ending
from gpusense.cli._window import Passes
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


def test_a_run_ends_in_a_folder_that_is_no_more(ended, tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert ended(lambda *_, **__: ["all of it"], terminal=False) == ["all of it\n"]


def test_threads_of_the_program_find_their_modules_while_an_answer_is_made(ended, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    before, seen = [*sys.path], []

    def waiting(_):  # behind the beginning of the run
        sys.path.insert(0, "its")
        return SimpleNamespace(end=lambda: None)

    monkeypatch.setattr(_ending, "Waiting", waiting)
    ended(lambda *_, **__: seen.extend(sys.path) or ["all of it"], terminal=False)
    assert "its" in seen
    assert seen[0] in before
    assert sys.path == ["its", *before]


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


@pytest.mark.parametrize(
    ("ended", "first", "said"),
    [
        (0, 1, "--block step: no block of that name ended; blocks: load, train"),
        (0, 3, "--block step: no block of that name ended; blocks: load, train"),
        (2, 3, "--block step: it ended 2 times, so --passes 3..4 was not reached"),
        (1, 1, ""),
        (9, 3, ""),
    ],
)
def test_a_block_that_was_asked_for_and_never_came_is_said(ended, first, said):
    passes, step = Passes("step", (first, first + 1)), SimpleNamespace(name="step")
    recorder = SimpleNamespace(**dict.fromkeys(("pause_capture", "resume_capture"), lambda: None), capture=None)
    recorder.synchronise = lambda _: None
    listeners = {name: lambda _: None for name in ("add_block_listener", "remove_block_listener")}
    passes.begin(SimpleNamespace(recorder=recorder, **listeners))
    for _ in range(ended):
        passes.block_closed(step)
    other = session(block(("load",), 0, MS), block(("train",), 0, MS), block(("train",), 0, MS))
    assert passes.missed(other) == said


def test_where_no_block_came_at_all_that_is_said():
    assert Passes("step", (1, 1)).missed(session()) == "--block step: no block of that name ended, nor any other"

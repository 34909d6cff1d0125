"""Names of threads: from Python to a session, and on the tracks of every timeline."""

import io
import json
import sys
import threading
import types

from support import strict
from support.sessions import MS, US, block, session

import gpusense
from gpusense._capture import thread_names
from gpusense._capture.thread_names import ThreadNames
from gpusense._records.records import Syscall
from gpusense._runtime import threads
from gpusense.report import chrome, perfetto
from gpusense.report.tracks import tracks
from gpusense.session import merge


class Running:
    """A thread that is there, and its numbers."""

    def __init__(self, name, start=None):
        self.go, self.there = threading.Event(), threading.Event()
        if start is None:
            self.thread = threading.Thread(target=self.run, name=name)
            self.thread.start()
        else:
            self.thread = start(self.run, name)
        self.there.wait(10)

    def run(self):
        self.numbers = threading.get_ident(), threading.get_native_id()
        self.there.set()
        self.go.wait(10)

    def end(self):
        self.go.set()
        self.thread.join(10)


def test_threads_of_the_program_and_no_other():
    ours, theirs = Running("gpusense-like", threads.start), Running("loader")
    names = ThreadNames()
    names.look()
    ours.end()
    theirs.end()
    names.look()  # what has ended stays
    found = {row["name"]: (row["thread"], row["native_id"]) for row in names.rows()}
    assert found["loader"] == theirs.numbers
    assert found["MainThread"] == (threading.main_thread().ident, threading.main_thread().native_id)
    assert "gpusense-like" not in found


def test_a_process_without_threading_and_one_with_very_many(monkeypatch):
    names = ThreadNames()
    monkeypatch.setitem(sys.modules, "threading", None)
    names.look()
    assert names.rows() == []
    monkeypatch.setitem(
        sys.modules,
        "threading",
        types.SimpleNamespace(_active={n: types.SimpleNamespace(name="w") for n in range(9000)}),
    )
    names.look()
    assert len(names.rows()) == thread_names._MOST


def test_of_a_thread_for_each_request_the_newest_and_those_that_run_have_names(monkeypatch):
    monkeypatch.setattr(thread_names, "_MOST", 10)
    names, main = ThreadNames(), types.SimpleNamespace(name="main")
    for number in range(1, 100):
        active = {0: main, number: types.SimpleNamespace(name=f"request {number}")}
        monkeypatch.setitem(sys.modules, "threading", types.SimpleNamespace(_active=active))
        names.look()
    assert [row["name"] for row in names.rows()] == ["main", *(f"request {number}" for number in range(91, 100))]


def test_a_recording_knows_the_names(monkeypatch):
    from support.control import begun

    monkeypatch.setenv("GPUSENSE", "on")
    begun(monkeypatch)
    tracer = gpusense.get_tracer()
    worker = threading.Thread(target=lambda: gpusense.trace("inside").__enter__().__exit__(None, None, None), name="x")
    try:
        with gpusense.trace("outside"):
            held = Running("loader")
            tracer.flush(5)
            held.end()
        worker.start()  # it is gone before the next cycle
        worker.join()
        found = tracer.session()
    finally:
        tracer.close()
    assert {"MainThread", "loader", "x"} <= {row["name"] for row in found.meta["threads"]}
    assert f"blocks · MainThread ({threading.main_thread().native_id})" in [track.name for track in tracks(found)]


def recorded(*rows, root=None):
    found = session(
        block(("a",), 0, MS, thread=11, number=1),
        block(("b",), 0, MS, thread=12, number=2),
        Syscall("read", 1, 2, thread=7001),
        block(("c",), 0, 20 * US, thread=13, number=3),
        end=MS,
        threads=[{"thread": thread, "native_id": native, "name": name} for thread, native, name in rows],
    )
    found.meta["pid"] = hash(root) % 1000 + 1
    return found


def names_of(found):
    return sorted(track.name for track in tracks(found))


def test_tracks_have_the_names():
    assert names_of(recorded((11, 7001, "MainThread"), (12, 7002, "loader"))) == [
        "blocks · MainThread (7001)",
        "blocks · loader (7002)",
        "blocks · thread 13",
        "syscalls · MainThread (7001)",
    ]


def test_one_name_of_two_threads_has_two_tracks_and_one_number_of_two_threads_both_names():
    assert names_of(recorded((11, 1, "twin"), (12, 2, "twin"), (13, 3, "one"), (13, 4, "two"), (13, 5, "one"))) == [
        "blocks · one (3), two (4), one (5)",
        "blocks · twin (1)",
        "blocks · twin (2)",
        "syscalls · thread 7001",
    ]


def test_merged_processes_have_their_own_names():
    one, other = recorded((11, 1, "left")), recorded((11, 1, "right"), root="r")
    assert {"blocks · left (1)", "blocks · right (1)"} <= set(names_of(merge([one, other])))


def test_names_of_a_file_are_shown_and_not_obeyed():
    found = recorded((11, 1, "a\x1b[2J\u202e\ud800"), (12, None, ""))
    for name in names_of(found):
        strict.terminal(name)
    text, data = io.StringIO(), io.BytesIO()
    chrome.write(found, text)
    perfetto.write(found, data)
    strict.json_value(text.getvalue())
    shown = "blocks · a\ufffd[2J\ufffd\ufffd (1)"
    assert shown in strict.perfetto(data.getvalue())
    assert shown in {event.get("args", {}).get("name") for event in json.loads(text.getvalue())["traceEvents"]}

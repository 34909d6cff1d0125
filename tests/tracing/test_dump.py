"""``gpusense.dump()`` and the flight recorder of a tracer: who writes, and what it says where nothing is written."""

import os
import threading
import time

import pytest
from support.control import begun

import gpusense
from gpusense._aggregation.same_kernels import SameKernels
from gpusense._capture import dump as writing
from gpusense._records.records import GpuKernel
from gpusense._runtime import threads
from gpusense.session import load


@pytest.fixture
def flight(tracer, tmp_path, monkeypatch):
    """A tracer with a flight recorder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    gpusense.configure(flight_recorder=10.0)
    return tracer


def told(tracer):
    return tracer.status()["flight_recorder"]


def request(number=1, error=None):
    try:
        with gpusense.trace("request", {"number": number}), gpusense.trace("model"):
            gpusense.record_kernel("gemm", duration_ns=900, device=0)
            if error is not None:
                raise error
    except type(error or ValueError()):
        pass


def test_what_was_recorded_is_written_where_the_program_wants_it(flight, tmp_path):
    for number in range(5):
        request(number)
    path = gpusense.dump(tmp_path / "a.gpusense")
    assert path == str(tmp_path / "a.gpusense")
    session = load(path)
    assert [block.attributes["number"] for block in session.blocks if block.name == "request"] == list(range(5))
    assert [kernel.path for kernel in session.kernels] == [("request", "model")] * 5
    assert {kernel.block_id for kernel in session.kernels} == {b.block_id for b in session.blocks if b.name == "model"}
    assert len(session.work) == 5
    assert session.meta["flight"]["reasons"][0]["text"] == "the program asked for it"
    assert told(flight)["last"] == path


def test_without_a_recorder_there_is_nothing_to_write(tracer, tmp_path):
    request()
    assert gpusense.dump(tmp_path / "a") is None
    assert "flight_recorder" not in tracer.status()
    assert os.listdir(tmp_path) == []


def test_gpusenses_thread_writes_and_the_program_waits_for_it(flight, tmp_path, monkeypatch):
    ident, by = threads.thread_id(), []
    held = writing.held
    monkeypatch.setattr(writing, "held", lambda *what: by.append(ident()) or held(*what))
    assert gpusense.dump(tmp_path / "a")
    assert by[0] != ident()
    assert flight.recorder.owner.on_own_thread() is False


def test_several_threads_that_ask_at_once_all_get_their_own(flight):
    request()
    found = []
    asking = [threading.Thread(target=lambda: found.append(gpusense.dump())) for _ in range(4)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    assert len(set(found)) == 4
    assert all(len(load(path).blocks) == 2 for path in found)


def test_who_asks_in_the_middle_of_gpusenses_own_work_gets_it_soon(flight):
    found = []
    flight.recorder._guarded(lambda: found.append(gpusense.dump()))
    assert found == [None]
    until = time.monotonic() + 20
    while not told(flight)["written"] and time.monotonic() < until:
        time.sleep(0.01)
    assert told(flight)["written"] == 1


def test_an_error_that_ends_a_request_is_written_by_itself(flight):
    request(7, RuntimeError("out of memory"))
    until = time.monotonic() + 20
    while not told(flight)["written"] and time.monotonic() < until:
        time.sleep(0.01)
    session = load(told(flight)["last"])
    assert [(one["error"], one["path"]) for one in session.meta["flight"]["reasons"]] == [
        ("RuntimeError", ["request", "model"]),
        ("RuntimeError", ["request"]),
    ]


def test_what_waits_as_the_program_ends_is_written_then(flight, tmp_path):
    request(7, RuntimeError("out of memory"))
    flight.close()
    (path,) = (tmp_path / "cache" / "gpusense" / "runs").iterdir()
    assert len(load(path).blocks) == 2


def test_a_dump_that_cannot_be_written_is_counted_and_named(flight, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert gpusense.dump() is None
    assert gpusense.dump(tmp_path / "file" / "a") is None
    assert told(flight)["failed"] == 2
    assert told(flight)["failure"].endswith("file/a: Not a directory")
    request()
    assert gpusense.dump(tmp_path / "a")


def test_while_disabled_what_was_recorded_before_can_be_written(flight, tmp_path):
    request()
    gpusense.disable()
    request(2)
    assert len(load(gpusense.dump(tmp_path / "a")).blocks) == 2
    gpusense.enable()
    request(3)
    session = load(gpusense.dump(tmp_path / "b"))
    assert [block.attributes["number"] for block in session.blocks if block.attributes] == [1, 3]


def test_passes_of_wgpu_go_the_same_way(flight, tmp_path):
    with gpusense.trace("frame") as frame:
        kind = GpuKernel("blur", 0, 0, backend="wgpu", label="horizontal", block_id=frame.block_id)
        now = time.time_ns()
        flight.record([SameKernels([kind], [0, 0, 0], [now, now + 10, now + 20], [5, 5, 5])])
    session = load(gpusense.dump(tmp_path / "a"))
    assert [(one.label, one.start_ns - now, one.path) for one in session.kernels] == [
        ("horizontal", at, ("frame",)) for at in (0, 10, 20)
    ]
    assert len(session.work) == 3


def test_a_reset_forgets_what_is_held(flight, tmp_path):
    request()
    gpusense.reset()
    request(2)
    session = load(gpusense.dump(tmp_path / "a"))
    assert [block.attributes["number"] for block in session.blocks if block.attributes] == [2]


def test_it_is_turned_off_and_on_like_any_setting(flight, tmp_path):
    request()
    gpusense.configure(flight_recorder=20.0, flight_factor=5.0)
    assert told(flight)["seconds"] == 20.0
    assert len(load(gpusense.dump(tmp_path / "a")).blocks) == 2
    gpusense.configure(flight_recorder=None)
    assert gpusense.dump(tmp_path / "b") is None
    assert flight.recorder.store.recent is None
    gpusense.configure(flight_recorder=10.0)
    assert load(gpusense.dump(tmp_path / "b")).blocks == []


def test_in_file_mode_the_session_file_has_all_of_it(tmp_path, monkeypatch):
    recording = begun(monkeypatch).start_session("file", str(tmp_path / "run.gpusense"), flight_recorder=10.0)
    try:
        assert recording.tracer.dump(tmp_path / "a") is None
        assert told(recording.tracer) == {"reason": "off: the session file has all of it"}
    finally:
        recording.finish()


def test_the_tracers_that_record_nothing_write_nothing():
    from gpusense._tracing.noop import NoopTracer

    assert NoopTracer("for a test").dump() is None
    assert gpusense._Idle().dump() is not None  # which is why the function looks at what it got

"""What a session file keeps while the program runs."""

import ctypes
import threading
from collections import deque
from functools import partial
from time import thread_time_ns
from types import SimpleNamespace

import pytest
from support.control import begun
from support.cupti import STRIDES, kernel, view

import gpusense
from gpusense import testing
from gpusense._attribution.boundaries import CLOSE, ENDED, MARKED, OPEN, PLACED, MarkerCall
from gpusense._capi import cstring
from gpusense._capture import file_store
from gpusense._capture.recorder import Owner, Recorder
from gpusense._decode.names import no_glance
from gpusense._records.metrics import GpuMetrics
from gpusense._records.records import UnseenInterval
from gpusense._runtime.config import Settings
from gpusense.session import _format as file
from gpusense.session import load


class Monitor:
    """Remembers the last twenty samples, as a monitor with a short history does."""

    def __init__(self):
        self.kept = deque(maxlen=20)
        self.taken = 0

    def sample(self, count):
        for _ in range(count):
            self.taken += 1
            self.kept.append(GpuMetrics(testing.device(), self.taken, self.taken))

    def history(self, seconds):
        return tuple(self.kept)


@pytest.fixture
def clock(monkeypatch):
    now = SimpleNamespace(s=100.0)
    monkeypatch.setattr(file_store, "monotonic", lambda: now.s)
    return now


@pytest.fixture
def recorder(clock, tmp_path):
    made = Recorder(Settings(), None, partial(file_store.FileStore, str(tmp_path / "run.gpusense")))
    made.source = Monitor()
    made.belong_to(Owner(metrics=lambda: made.source))
    yield made
    made.close()


def test_a_file_holds_every_device_sample_of_the_run(recorder, clock):
    for _ in range(50):
        recorder.source.sample(10)
        clock.s += 0.1
        recorder.tick()
    recorder.source.sample(5)
    recorder.close()
    assert [sample.monotonic_ns for sample in load(recorder.store.writer.path).metrics] == list(range(1, 506))


def test_a_long_history_is_looked_at_every_ten_seconds(recorder, clock):
    recorder.source.kept = deque(maxlen=600)
    looks = []
    recorder.belong_to(Owner(metrics=lambda: looks.append(clock.s) or recorder.source))
    for _ in range(3000):
        recorder.source.sample(1)
        clock.s += 0.1
        recorder.tick()
    assert 20 < len(looks) < 60
    assert looks[-1] - looks[-2] == pytest.approx(10, abs=0.2)
    recorder.close()
    assert len(load(recorder.store.writer.path).metrics) == 3000


def test_samples_are_in_the_file_of_a_program_that_was_killed(recorder, clock):
    recorder.source.sample(3)
    recorder.tick()
    assert len(load(recorder.store.writer.path).metrics) == 3


def test_a_source_of_samples_that_raises_reaches_nobody(recorder):
    def fails(seconds):
        raise OSError("gone")

    recorder.source.history = fails
    recorder.tick()
    assert recorder.flush(1)


def test_a_module_that_is_loaded_to_the_place_of_another_has_its_own_names_at_once(clock, tmp_path):
    made = Recorder(Settings(trace_all=True), None, partial(file_store.FileStore, str(tmp_path / "run.gpusense")))
    made.store._capture = SimpleNamespace(
        strides=STRIDES,
        name=cstring.read,
        glance=cstring.Glance,
        sharing=SimpleNamespace(others_markers=frozenset()),
    )
    made.store.writer.layout(file_store.LAYOUT_ID, STRIDES, marker=[], kinds=[], others_markers=[], epoch=0)
    text, names = ctypes.create_string_buffer(64), ["first", "second", "second", "third"]
    for number, name in enumerate(names, 1):
        text.value, at = name.encode(), made.start_ns + number
        made.store.add(view(kernel(at, at + 5, number, name=ctypes.addressof(text))), 5, None)
    made.close()
    assert [record.name for record in load(made.store.writer.path).kernels] == names


def test_names_of_modules_that_are_gone_are_forgotten_and_none_is_missing(clock, tmp_path, monkeypatch):
    monkeypatch.setattr(file_store, "MAX_NAMES", 10)
    made = Recorder(Settings(trace_all=True), None, partial(file_store.FileStore, str(tmp_path / "run.gpusense")))
    made.store._capture = SimpleNamespace(
        strides=STRIDES,
        name=lambda at: b"kernel_%d" % at,
        glance=no_glance,
        sharing=SimpleNamespace(others_markers=frozenset()),
    )
    made.store.writer.layout(file_store.LAYOUT_ID, STRIDES, marker=[], kinds=[], others_markers=[], epoch=0)
    for number in range(1, 300):
        at = made.start_ns + number
        made.store.add(view(kernel(at, at + 5, number, name=number), kernel(at, at + 5, number, name=7)), 5, None)
        assert [made.store.name(number), made.store.name(7)] == [f"kernel_{number}", "kernel_7"]
        assert len(made.store._known) <= 12
    made.close()
    records = load(made.store.writer.path).kernels
    assert {record.name for record in records} == {f"kernel_{number}" for number in range(1, 300)}


def test_two_threads_that_keep_samples_write_each_once(recorder):
    recorder.source.sample(20)
    threads = [threading.Thread(target=recorder.store._keep_samples, args=(recorder,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    recorder.close()
    assert len(load(recorder.store.writer.path).metrics) == 20


@pytest.fixture(params=["live", "file"])
def recording(request, monkeypatch, tmp_path):
    """As ``gpusense run`` begins it."""
    made = begun(monkeypatch).start_session(request.param, str(tmp_path / "run.gpusense"))
    yield made
    made.tracer.close()


def test_a_program_may_configure_what_is_kept(recording):
    gpusense.record_kernel("counted", duration_ns=5_000)
    gpusense.configure(threshold_us=1)
    gpusense.record_kernel("kept", duration_ns=5_000)
    gpusense.configure(threshold_us=10)
    gpusense.record_kernel("counted", duration_ns=5_000)
    gpusense.configure(trace_all=True)
    gpusense.record_kernel("all", duration_ns=5_000)
    found = recording.finish()
    assert [kernel.name for kernel in found.kernels] == ["kept", "all"]
    assert [(row.name, row.count) for row in found.aggregates] == [("counted", 2)]
    assert (found.meta["threshold_ns"], found.meta["trace_all"]) == (10_000, True)


def test_a_running_program_is_told_what_was_left_out(recording):
    left_out = {"failed_blocks": 2, "shed_blocks": 3, "ignored_records": 1}
    lasting = UnseenInterval(1, None, "another profiler has CUPTI")
    recorder = recording.tracer.recorder
    recorder.belong_to(recorder.owner._replace(left_out=lambda: left_out))
    recorder._add_unseen(lasting)
    for found in (recording.tracer.session(), recording.finish()):
        assert {name: getattr(found.counters, name) for name in left_out} == left_out
        assert found.unseen == [lasting]


def test_reading_back_for_the_program_is_gpusense_s_own_time(recording):
    gpusense.record_kernel("k", duration_ns=5_000)
    before = thread_time_ns()
    for _ in range(5):
        recording.tracer.session()
    took = thread_time_ns() - before
    told = recording.finish().meta["overhead"]["answers_cpu_ns"]
    assert 0 < told <= took


def test_a_program_may_forget_what_was_recorded(recording):
    source = Monitor()
    recording.tracer.metrics_source = source
    with gpusense.trace("outer"):
        with gpusense.trace("before"):
            gpusense.record_kernel("before", duration_ns=10**6)
        gpusense.record_kernel("before", duration_ns=5)
        assert len(recording.tracer.session().records) == 2
        gpusense.reset()
        with gpusense.trace("after"):
            gpusense.record_kernel("after", duration_ns=10**6)
    for found in (recording.tracer.session(), recording.finish()):
        assert [record.name for record in found.records if record in found.kernels] == ["after"]
        assert {block.path for block in found.blocks} == {("outer",), ("outer", "after")}
        assert (found.aggregates, found.counters.seen, found.counters.kept) == ([], 3, 3)
        assert [row.kernel_ns for row in found.busy] == [10**6]


def test_boundaries_that_were_read_and_marked_stay_in_order(recorder, monkeypatch):
    monkeypatch.setattr(recorder, "capture", SimpleNamespace(lines=lambda: None, status=dict, versions=dict))
    recorder.events += [
        (PLACED, OPEN, 1, None, 5, 10, "read", 3),
        (MARKED, OPEN, 2, 1, 5, 20, "marked", MarkerCall(7)),
        (MARKED, CLOSE, 2, 1, 5, 30, "", MarkerCall(8)),
        (ENDED, None, 5, 9, "read", 1, None, ("read",), 10, 40, 5, None, None),
    ]
    recorder._consume()
    recorder.store.writer.release()
    monkeypatch.undo()
    with file.Reader(recorder.store.writer.path) as reader:
        found = [chunk.type for chunk in reader if chunk.type in (file.BOUNDARY, file.BLOCKS)]
    assert found == [file.BLOCKS, file.BOUNDARY, file.BLOCKS]


def test_many_blocks_at_once_are_split_over_chunks(recorder):
    for i in range(10_000):
        attributes = {"text": f"{i}" * 700}
        recorder.events += [
            (PLACED, OPEN, i + 1, None, 5, 10, "a", i),
            (ENDED, None, 5, i, "a", i + 1, None, ("a",), 10, 20, 5, attributes, None),
        ]
    recorder._consume()
    recorder.store.writer.release()
    with file.Reader(recorder.store.writer.path) as reader:
        sizes = [len(chunk.payload) for chunk in reader if chunk.type == file.BLOCKS]
    assert max(sizes) < 3 << 20
    assert [block.attributes for block in load(recorder.store.writer.path).blocks] == [
        {"text": f"{i}" * 700} for i in range(10_000)
    ]

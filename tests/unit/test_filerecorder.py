"""What a session file keeps while the program runs."""

import threading
from collections import deque
from types import SimpleNamespace

import pytest
from cupti_bytes import STRIDES, kernel, view

from gpusense import _filerecorder, testing
from gpusense._config import Settings
from gpusense._metrics import GpuMetrics
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
    monkeypatch.setattr(_filerecorder, "monotonic", lambda: now.s)
    return now


@pytest.fixture
def recorder(clock, tmp_path):
    made = _filerecorder.FileRecorder(Settings(), None, str(tmp_path / "run.gpusense"))
    made.source = Monitor()
    made.metrics_source = lambda: made.source
    yield made
    made.close()


def test_a_file_holds_every_device_sample_of_the_run(recorder, clock):
    for _ in range(50):
        recorder.source.sample(10)
        clock.s += 0.1
        recorder.tick()
    recorder.source.sample(5)
    recorder.close()
    assert [sample.monotonic_ns for sample in load(recorder.writer.path).metrics] == list(range(1, 506))


def test_a_long_history_is_looked_at_every_ten_seconds(recorder, clock):
    recorder.source.kept = deque(maxlen=600)
    looks = []
    recorder.metrics_source = lambda: looks.append(clock.s) or recorder.source
    for _ in range(3000):
        recorder.source.sample(1)
        clock.s += 0.1
        recorder.tick()
    assert 20 < len(looks) < 60
    assert looks[-1] - looks[-2] == pytest.approx(10, abs=0.2)
    recorder.close()
    assert len(load(recorder.writer.path).metrics) == 3000


def test_samples_are_in_the_file_of_a_program_that_was_killed(recorder, clock):
    recorder.source.sample(3)
    recorder.tick()
    assert len(load(recorder.writer.path).metrics) == 3


def test_a_source_of_samples_that_raises_reaches_nobody(recorder):
    def fails(seconds):
        raise OSError("gone")

    recorder.source.history = fails
    recorder.tick()
    assert recorder.flush(1)


def test_names_of_modules_that_are_gone_are_forgotten_and_none_is_missing(clock, tmp_path, monkeypatch):
    monkeypatch.setattr(_filerecorder, "MAX_NAMES", 10)
    made = _filerecorder.FileRecorder(Settings(trace_all=True), None, str(tmp_path / "run.gpusense"))
    made.capture = SimpleNamespace(
        strides=STRIDES, name=lambda at: b"kernel_%d" % at, sharing=SimpleNamespace(others_markers=frozenset())
    )
    made.writer.layout(_filerecorder.LAYOUT_ID, STRIDES, marker=[], kinds=[], others_markers=[], epoch=0)
    for number in range(1, 300):
        at = made.start_ns + number
        made._read(view(kernel(at, at + 5, number, name=number), kernel(at, at + 5, number, name=7)), 5)
        assert [made._name(number), made._name(7)] == [f"kernel_{number}", "kernel_7"]
        assert len(made._known) <= 12
    made.capture = None
    made.close()
    records = load(made.writer.path).kernels
    assert {record.name for record in records} == {f"kernel_{number}" for number in range(1, 300)}


def test_two_threads_that_keep_samples_write_each_once(recorder):
    recorder.source.sample(20)
    threads = [threading.Thread(target=recorder._keep_samples) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    recorder.close()
    assert len(load(recorder.writer.path).metrics) == 20

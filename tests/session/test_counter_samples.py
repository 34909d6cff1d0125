"""Samples of hardware counters in a session: saved, damaged, merged."""

import time
from array import array

from gpusense._capture.file_store import FileStore
from gpusense._records.counter_samples import CounterColumns, CounterTable
from gpusense._records.records import DeviceInfo
from gpusense.session import Session, _format, load, merge, save

T0 = 1_764_280_000_000_000_000
MS = 1_000_000


def columns(count=5, device=0, begin=T0, first=0.0):
    found = CounterColumns(device, ("tensor_percent", "dispatches"))
    found.start = array("q", [begin + number * MS for number in range(count)])
    found.end = array("q", [start + MS for start in found.start])
    found.values = (array("f", [first + number for number in range(count)]), array("f", [2.0] * count))
    return found


def session(*parts, **more):
    table = CounterTable()
    for part in parts:
        table.add(part)
    return Session(meta={"start_ns": T0, "end_ns": T0 + 10**9, "mode": "live", **more}, counter_samples=table)


def test_a_saved_session_has_them_again(tmp_path):
    one = session(columns(), columns(3, device=1))
    save(one, tmp_path / "one.gpusense")
    found = load(tmp_path / "one.gpusense")
    assert found.counter_samples == one.counter_samples
    assert found.meta["damage"] == []
    assert list(found.counter_samples)[1].tensor_percent == 1.0


def test_a_payload_that_is_none_is_named_and_the_rest_is_there(tmp_path, monkeypatch):
    import gpusense._records.counter_samples as module

    real = module.packed
    monkeypatch.setattr(module, "packed", lambda part: [*real(part), [b"\x03\0\0\0\x01\0\0\0{}"]])
    save(session(columns()), tmp_path / "one.gpusense")
    found = load(tmp_path / "one.gpusense")
    assert len(found.counter_samples) == 5
    assert "the samples in the chunk at offset" in found.meta["damage"][0]


def test_older_readers_pass_over_them(tmp_path, monkeypatch):
    save(session(columns()), tmp_path / "one.gpusense")
    monkeypatch.delitem(_format.TYPES, _format.SAMPLES)
    found = load(tmp_path / "one.gpusense")
    assert len(found.counter_samples) == 0
    assert "is unknown to this version and was skipped" in found.meta["damage"][0]


def test_merged_sessions_have_them_under_the_numbers_of_their_devices_in_order():
    def rank(number, begin, first):
        one = session(columns(3, begin=begin, first=first), pid=number, rank=number)
        one.devices = (DeviceInfo(0, "H200", "nvidia", "cuda", cuda_index=0, uuid=f"GPU-{number % 2}"),)
        return one

    found = merge([rank(0, T0 + 10**8, 50), rank(1, T0, 20), rank(2, T0, 0)]).counter_samples
    assert found.devices == [0, 1]
    assert [sample.tensor_percent for sample in found if sample.device == 0] == [0, 1, 2, 50, 51, 52]
    assert [sample.tensor_percent for sample in found if sample.device == 1] == [20, 21, 22]


def test_a_file_that_is_written_as_the_program_runs_has_them_and_forgets_those_before_a_reset(tmp_path):
    from gpusense._capture.recorder import Recorder
    from gpusense._runtime.config import Settings

    recorder = Recorder(Settings(), None, lambda *given: FileStore(str(tmp_path / "run.gpusense"), *given))
    recorder.take_counters(columns(begin=recorder.start_ns + MS))
    assert len(recorder.session().counter_samples) == 5
    time.sleep(0.01)  # until all of them have ended
    recorder.reset()
    recorder.take_counters(columns(2, begin=recorder.start_ns + MS))
    recorder.close()
    recorder.take_counters(columns(2, begin=recorder.start_ns + 9 * MS))  # too late: nothing happens
    assert len(load(tmp_path / "run.gpusense").counter_samples) == 2


def test_a_live_recorder_has_them_until_a_reset():
    from gpusense._capture.recorder import Recorder
    from gpusense._runtime.config import Settings

    recorder = Recorder(Settings(), None)
    recorder.take_counters(columns())
    found = recorder.session().counter_samples
    recorder.take_counters(columns(begin=T0 + 10**8))
    assert (len(found), len(recorder.session().counter_samples)) == (5, 10)
    recorder.reset()
    assert len(recorder.session().counter_samples) == 0
    recorder.close()

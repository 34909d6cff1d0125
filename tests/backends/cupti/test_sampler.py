"""PM sampling against a scripted CUPTI: the machine code that reads, the sampler, its clock, its trial, its source."""

import ctypes
import itertools
import math
import pathlib
import shutil
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.machine import FAKES, assembled

from gpusense._capi import loading
from gpusense._capi.machine import samples_code
from gpusense._runtime import cache
from gpusense._runtime.errors import BackendError
from gpusense.backends import cuda
from gpusense.backends.cupti.counters import host, sampler, selftest, source
from gpusense.backends.cupti.counters.anchor import DRIFT, Anchor

MS = 1_000_000
SECOND = 1_000 * MS


@pytest.mark.parametrize("machine", samples_code.CODES)
def test_the_bytes_are_what_the_source_assembles_to(machine, tmp_path):
    code = samples_code.CODES[machine]
    text, symbols = assembled(machine, code.assembly, tmp_path)
    assert text == code.machine
    assert symbols["read"] == code.entries["read"]


@pytest.fixture
def library(build_library, monkeypatch, tmp_path):
    """A scripted libcupti with a profiler; CUDA is live with one device in use."""
    built = build_library("libcupti.c", "libcupti.so.13", str(FAKES / "libcupti_profiler.c"))
    path = shutil.copy(built, tmp_path / "libcupti.so.13")  # its state is per file
    monkeypatch.setenv("GPUSENSE_LIBCUPTI", str(path))
    monkeypatch.setattr(loading, "_handles", {})
    monkeypatch.setenv("GPUSENSE_LIBCUDA", str(build_library("libcuda.c", "libcuda.so.1")))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(host, "_initialized", False)
    monkeypatch.setattr(selftest, "_passed", set())
    monkeypatch.setattr(cuda.SOURCE, "driver_version", lambda: (13, 0))
    monkeypatch.setattr(cuda.SOURCE, "in_use", lambda: [0])
    monkeypatch.setattr(cuda.SOURCE, "devices", lambda: ["one"])
    monkeypatch.setattr(selftest, "identity", lambda *_: "driver device")
    return ctypes.CDLL(str(path))


@pytest.fixture
def api(library):
    return host.bind_api(library, library._name)


@pytest.fixture
def beside(build_library, library):
    """The library that evaluates lies beside libcupti, as it does in NVIDIA's wheels."""
    folder = pathlib.Path(library._name).parent
    shutil.copy(build_library("libcupti_profiler.c", "libnvperf_host.so"), folder / "libnvperf_host.so")


def read_for(one, seconds=0.06):
    one.start()
    time.sleep(seconds)
    return one.read()


@pytest.mark.parametrize("in_one_call", [True, False])
def test_samples_are_read_with_their_times_and_values(api, monkeypatch, in_one_call):
    if not in_one_call:
        monkeypatch.setattr(sampler, "_address", lambda: None)
    one = sampler.Sampler(api, 0, MS)
    found = read_for(one)
    assert one.by == ("machine code" if in_one_call else "ctypes")
    assert 30 <= len(found.starts) <= 200
    assert found.drained
    assert not found.overflow
    assert found.starts[2:] == found.ends[1:-1]
    assert {end - start for start, end in zip(found.starts[1:], found.ends[1:], strict=True)} == {MS}
    columns = dict(zip(one.fields, found.columns, strict=True))
    assert set(columns["dram_read_bytes"]) == {3e6}
    assert set(columns["sm_clock_mhz"]) == {1980.0}
    assert columns["tensor_percent"] == [float(number) for number in range(len(found.starts))]
    time.sleep(0.01)
    assert one.read().starts[0] == found.ends[-1]
    one.end()
    one.end()


@pytest.mark.usefixtures("beside")
@pytest.mark.parametrize(("script", "by"), [("0", "libnvperf_host"), ("1", "CUPTI")], ids=["agrees", "does not agree"])
def test_values_come_from_where_names_are_looked_up_once_if_that_agrees(api, library, monkeypatch, script, by):
    monkeypatch.setenv("FAKE_NVPERF_WRONG", script)
    one = sampler.Sampler(api, 0, MS)
    found = read_for(one)
    assert one.evaluated_by == by
    assert dict(zip(one.fields, found.columns, strict=True))["tensor_percent"][:3] == [0.0, 1.0, 2.0]
    asked = library.fake_profiler_calls(b"cuptiProfilerHostEvaluateToGpuValues")
    assert (asked <= sampler.COMPARED) == (by == "libnvperf_host")
    one.end()


@pytest.mark.usefixtures("library")
def test_a_chip_that_is_not_known_yet_is_asked_for_again(api, monkeypatch):
    monkeypatch.setattr(host, "_CHIP_WAIT_S", 0.001)
    monkeypatch.setenv("FAKE_PM_UNKNOWN", "3")
    sampler.Sampler(api, 0, MS).end()
    monkeypatch.setenv("FAKE_PM_UNKNOWN", "1000")
    with pytest.raises(BackendError, match="does not know the chip"):
        sampler.Sampler(api, 0, MS)


def test_what_an_image_does_not_hold_is_lost(api, monkeypatch):
    monkeypatch.setattr(sampler, "SAMPLES", 16)
    one = sampler.Sampler(api, 0, MS)
    first = read_for(one)
    assert (len(first.starts), first.drained) == (16, False)
    time.sleep(0.01)
    assert one.read().starts[0] > first.ends[-1] + 20 * MS
    one.end()


def test_a_sample_that_is_refused_is_counted_and_the_others_are_there(api, monkeypatch):
    one = sampler.Sampler(api, 0, MS)
    # From the third evaluation on.
    monkeypatch.setenv("FAKE_PM_REFUSE", "cuptiProfilerHostEvaluateToGpuValues:1")
    monkeypatch.setenv("FAKE_PM_AFTER", "3")
    found = read_for(one)
    assert len(found.starts) == 2
    assert found.failed > 20
    one.end()


def test_counts_that_nobody_read_in_time_are_told(api, monkeypatch):
    monkeypatch.setenv("FAKE_PM_HARDWARE", "10")
    one = sampler.Sampler(api, 0, MS)
    assert read_for(one).overflow
    one.end()


def test_fields_that_do_not_fit_one_pass_are_left_out_the_least_important_first(api, monkeypatch):
    monkeypatch.setenv("FAKE_PM_MOST", "5")
    one = sampler.Sampler(api, 0, MS)
    assert one.fields == ("sm_active_percent", "tensor_percent", "dram_read_bytes", "dram_write_bytes", "dispatches")
    one.end()


@pytest.mark.parametrize(
    ("name", "code", "says"),
    [
        ("cuptiProfilerInitialize", 38, "LEGACY_PROFILER"),
        ("cuptiPmSamplingEnable", 26, "in use by another profiler"),
        ("cuptiPmSamplingEnable", 35, "NVreg_RestrictProfilingToAdminUsers=0"),
        ("cuptiPmSamplingSetConfig", 8, "out of memory"),
        ("cuptiPmSamplingGetCounterDataSize", 999, "without a reason"),
    ],
)
def test_a_refusal_says_why_and_leaves_the_hardware_free(api, monkeypatch, name, code, says):
    monkeypatch.setenv("FAKE_PM_REFUSE", f"{name}:{code}")
    with pytest.raises(BackendError, match=says):
        sampler.Sampler(api, 0, MS)
    monkeypatch.delenv("FAKE_PM_REFUSE")
    sampler.Sampler(api, 0, MS).end()  # which an owner that is still there would refuse


# --- the clock --------------------------------------------------------------------------------------------------------


@given(
    offset=st.integers(-(10**18), 10**18),
    drift=st.floats(-5e-5, 5e-5),
    latency=st.integers(0, 300_000),
    interval=st.integers(10_000, 10 * MS),
    pauses=st.lists(st.integers(100_000, 300 * MS), min_size=2, max_size=40),
    spent=st.integers(1_000, 2 * MS),
)
def test_the_true_distance_lies_between_the_bounds(offset, drift, latency, interval, pauses, spent):
    def device(host_ns):
        return round((host_ns - 10**15) * (1 - drift)) + 10**15 - offset

    anchor, now, done = Anchor(), 10**15, 0
    origin = device(now)
    for pause in pauses:
        now += pause
        before = now
        there = max(0, (device(before - latency) - origin) // interval)
        now += spent
        if there > done:
            anchor.look(before, now, origin + (done + 1) * interval, origin + there * interval, drained=True)
            done = there
        else:
            anchor.nothing(before)
    if anchor.offset_ns is not None:
        true = now - device(now)
        slack = DRIFT * (spent + interval) + 3  # the bounds are of moments within the last reading and sample
        if anchor.error_ns is None:
            assert anchor.offset_ns >= true - slack  # what was read had ended
        else:
            assert true - slack - anchor.error_ns <= anchor.offset_ns <= true + slack + anchor.error_ns + latency


def test_many_readings_find_the_distance_to_a_part_of_a_sample():
    anchor, offset, interval, done = Anchor(), 7 * SECOND, MS, 0
    for number in range(1, 200):
        now = number * 730_000
        there = now // interval
        if there > done:
            anchor.look(now, now + 1000, (done + 1) * interval - offset, there * interval - offset, drained=True)
            done = there
        else:
            anchor.nothing(now)
    assert abs(anchor.offset_ns - offset) <= 15_000
    assert anchor.error_ns <= 15_000


@pytest.mark.parametrize("drift", [-5e-5, 3e-6, 5e-5])
def test_the_error_stays_small_however_long_and_whatever_the_clocks_drift(drift):
    """A reading each 230 ms that takes nine, and each ten seconds some short ones, as the source reads."""
    anchor, now, done, errors = Anchor(), 10**15, 0, []

    def device(host_ns):
        return round((host_ns - 10**15) * (1 - drift)) + 5

    def reading(spent):
        nonlocal now, done
        before, there = now, device(now) // MS
        now += spent
        if there > done:
            anchor.look(before, now, (done + 1) * MS, there * MS, drained=True)
            done = there
        else:
            anchor.nothing(before)

    for moment in range(300 * 4):
        for _ in range(source.COMPARISONS if moment == 0 else source.COMPARED_AGAIN if moment % 40 == 0 else 0):
            now += round(source.COMPARE_S * 1e9)
            reading(900_000)
        now += 230 * MS
        reading(9 * MS)
        assert abs(anchor.offset_ns - (now - device(now))) <= anchor.error_ns + 2000
        errors.append(anchor.error_ns)
    assert max(errors[400:]) < 1_000_000
    assert sorted(errors[400:])[400] < 700_000


def test_a_clock_that_was_set_is_found_anew():
    anchor = Anchor()
    for number in range(1, 20):
        moved = 0 if number < 10 else SECOND
        end = number * 10 * MS
        anchor.look(end + 1000, end + 2000, end + moved, end + moved, drained=True)
    assert abs(anchor.offset_ns + SECOND) <= anchor.error_ns + 2000 < 10 * MS


@given(
    st.lists(
        st.tuples(st.integers(1, 300), st.integers(0, 3_000_000), st.integers(0, 15_000_000)), min_size=1, max_size=20
    )
)
def test_samples_keep_their_length_whatever_is_found_of_the_clocks(readings):
    """Each: samples, how late they can be read, how long the reading takes."""

    now = [0]

    class Scripted:
        device, fields, interval_ns = 0, ("dispatches",), MS

        def __init__(self):
            self.next, self.plan = 5, iter(readings)

        def read(self):
            count, _, spent = next(self.plan)
            starts = [(self.next + number) * MS for number in range(count)]
            self.next += count
            ends = [start + MS for start in starts]
            return sampler.Samples(starts, ends, [[1.0] * count], True, False, 0, now[0] + spent)

    one, slow, end = source.Device(Scripted()), source.Device(Scripted()), 5 * MS
    slow._follow = lambda *_: False  # each sample for itself
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "monotonic_ns", lambda: now[0])
        for count, late, _ in readings:
            end += count * MS
            now[0] = end + late
            one.read()
            slow.read()
    columns = one.columns
    assert [*columns] == [*slow.columns]
    assert (one.samples, one.gaps) == (slow.samples, slow.gaps)
    assert len(columns) == sum(count for count, _, _ in readings) - 1  # without the first of all
    assert (one.gaps, one.missing_ns) == ({}, 0)
    assert columns.start[1:] == columns.end[:-1]
    for start, end in zip(columns.start, columns.end, strict=True):
        assert abs(end - start - MS) <= 0.31 * MS


def test_what_is_no_number_is_not_measured():
    assert list(map(math.isnan, source._single([1.0, math.inf, math.nan, 1e39, -1e39]))) == [False, *[True] * 4]
    assert list(source._single([1.0, 2.0])) == [1.0, 2.0]


def test_samples_that_cupti_leaves_out_are_a_gap_of_which_nobody_knows_why():
    class Scripted:
        device, fields, interval_ns = 0, ("dispatches",), MS
        plan = iter(((range(1, 5), False), (range(5, 8), True), (range(20, 23), True)))  # the first filled its image

        def read(self):
            numbers, drained = next(self.plan)
            starts = [number * MS for number in numbers]
            ends = [at + MS for at in starts]
            return sampler.Samples(starts, ends, [[1.0] * len(starts)], drained, False, 0, 30 * MS)

    one = source.Device(Scripted())
    for _ in range(3):
        one.read()
    assert (one.gaps, one.missing_ns) == ({source.UNTOLD: 1}, pytest.approx(12 * MS, abs=MS / 10))
    one.compared()
    assert (one.samples, one.gaps, one.missing_ns, len(one.columns)) == (0, {}, 0, 0)


def test_no_sample_ends_before_it_begins_where_a_clock_is_set_back(monkeypatch):
    class Scripted:
        device, fields, interval_ns = 0, ("dispatches",), MS
        plan = iter((range(1, 5), range(5, 9)))

        def read(self):
            starts = [number * MS for number in next(self.plan)]
            return sampler.Samples(starts, [at + MS for at in starts], [[1.0] * 4], True, False, 0, 30 * MS)

    one = source.Device(Scripted())
    one.read()
    monkeypatch.setattr(one.anchor, "_between", (one.anchor.offset_ns - 2 * source.JUMP_NS,) * 2)
    monkeypatch.setattr(one.anchor, "_lines", lambda _: one.anchor._between)
    one.read()
    columns = one.columns
    assert len(columns) == 3 + 4
    assert all(start < end for start, end in zip(columns.start, columns.end, strict=True))
    assert columns.start[1:] == columns.end[:-1]


# --- the trial --------------------------------------------------------------------------------------------------------


def test_what_went_well_in_a_child_is_not_tried_again(library, monkeypatch):
    path = library._name
    assert selftest.passed(path, 0, "driver") is None
    monkeypatch.setenv("FAKE_PM_CRASH", "cuptiPmSamplingStart")
    assert selftest.passed(path, 0, "driver") is None
    monkeypatch.setattr(selftest, "_passed", set())
    assert selftest.passed(path, 0, "driver") is None, "another process knows it"
    refused = selftest.passed(path, 0, "another driver")
    assert "cuptiPmSamplingStart ended it (signal 11)" in refused.reason
    assert cache.folder("counters")


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ({"FAKE_PM_HANG": "cuptiPmSamplingDecodeData"}, "cuptiPmSamplingDecodeData did not return within 1.5 s"),
        ({"FAKE_PM_REFUSE": "cuptiPmSamplingEnable:26"}, "HARDWARE_BUSY: the profiling hardware is in use"),
        ({"FAKE_CUDA_FAIL": "cuInit=100"}, "cuInit"),
    ],
)
def test_what_happens_in_the_child_is_the_reason(library, monkeypatch, script, says):
    for name, value in script.items():
        monkeypatch.setenv(name, value)
    assert says in selftest.passed(library._name, 0, "driver", limit_s=1.5 if "FAKE_PM_HANG" in script else 20).reason


# --- the source -------------------------------------------------------------------------------------------------------


class Session:
    def __init__(self):
        self.columns, self.wanted, self.source = [], True, None

    def begin(self, setting="1kHz"):
        self.source = source.CounterSource(setting, self.columns.append, lambda: self.wanted)
        return self.source

    @property
    def samples(self):
        return [sample for columns in self.columns for sample in columns]

    def until(self, condition, seconds=15):
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, self.source.status()
            time.sleep(0.01)


@pytest.fixture
def session(library):
    one = Session()
    yield one
    if one.source is not None:
        one.source.end(2.0)


@pytest.fixture
def tried(monkeypatch):
    """The trial in a child went well before."""
    monkeypatch.setattr(selftest, "passed", lambda *_: None)


@pytest.mark.usefixtures("tried")
def test_samples_lie_on_the_sessions_clock_without_gaps_and_overlaps(session, monkeypatch):
    monkeypatch.setenv("FAKE_PM_OFFSET", "1234567890")
    one = session.begin()
    session.until(lambda: one.state == "sampling")
    begin = source.clock.SESSION.now_ns()
    time.sleep(0.6)
    assert one.flush(1.0)
    end = source.clock.SESSION.now_ns()
    found = session.samples
    assert found
    for before, after in itertools.pairwise(found):
        assert before.end_ns == after.start_ns
        assert abs(after.end_ns - after.start_ns - MS) < MS
    assert found[-1].end_ns <= end
    inside = [sample for sample in found if begin <= sample.start_ns <= end]
    assert (end - begin) / MS - 20 <= len(inside) <= (end - begin) / MS + 2
    assert {sample.dram_read_bytes for sample in found} == {3e6}
    assert {sample.nvlink_rx_bytes for sample in found} == {None}, "NaN is not measured"
    told = one.status()["devices"]["0"]
    assert told["clock_error_ns"] < MS
    assert told["gaps"] == told["failed"] == told["missing_ns"] == 0
    assert (one.status()["cost_percent_of_a_processor"], one.status()["cost_reason"]) == (None, "judged after 3 s")
    assert one.end(2.0)
    ended = one.status()
    assert ended["state"] == "ended"
    assert ended["devices"]["0"]["samples"] == len(session.samples), "what was read while clocks were compared is gone"
    assert ended["cost_percent_of_a_processor"] > 0, "it ended before it was judged"
    assert one.cpu_ns > 0
    assert threading.active_count() == 1 or not any(t.name == "gpusense-counters" for t in threading.enumerate())


@pytest.mark.usefixtures("tried")
def test_it_pauses_while_nothing_is_to_be_recorded(session, library, monkeypatch):
    monkeypatch.setattr(source, "READ_S", 0.01)
    one = session.begin()
    session.until(lambda: one.state == "sampling")
    session.wanted = False
    session.until(lambda: one.state == "paused")
    assert library.fake_profiler_calls(b"cuptiPmSamplingStop") == 1
    session.wanted = True
    session.until(lambda: one.state == "sampling")
    assert one.flush(1.0)
    assert one.status()["devices"]["0"]["gap_reasons"] == {"recording was disabled": 1}


@pytest.mark.usefixtures("tried")
def test_an_overflow_is_a_gap_that_is_told(session, monkeypatch):
    one = session.begin()
    session.until(lambda: one.state == "sampling" and one.flush(1.0) and session.samples)
    monkeypatch.setenv("FAKE_PM_HARDWARE", "20")
    session.until(lambda: one.status()["devices"]["0"]["gaps"])
    monkeypatch.delenv("FAKE_PM_HARDWARE")
    time.sleep(0.3)
    assert one.flush(1.0)
    gaps = [after.start_ns - before.end_ns for before, after in itertools.pairwise(session.samples)]
    told = one.status()["devices"]["0"]
    assert told["gap_reasons"] == {source.OVERFLOW: told["gaps"]}
    assert told["missing_ns"] == sum(gaps) > 0


@pytest.mark.usefixtures("tried")
def test_images_are_read_before_they_are_full_and_one_that_was_is_a_gap(session, monkeypatch):
    monkeypatch.setattr(sampler, "SAMPLES", 100)
    monkeypatch.setattr(source, "SAMPLES", 100)  # full in a tenth of a second
    one = session.begin()
    session.until(lambda: one.state == "sampling")
    time.sleep(0.6)
    assert one.flush(1.0)
    assert one.status()["devices"]["0"]["gaps"] == 0
    monkeypatch.setattr(source, "FULL", 2.0)
    session.until(lambda: one.status()["devices"]["0"]["gaps"])
    assert set(one.status()["devices"]["0"]["gap_reasons"]) == {source.IMAGE_FULL}


@pytest.mark.usefixtures("tried")
def test_a_sampler_that_goes_silent_is_opened_anew(session, library, monkeypatch):
    monkeypatch.setattr(source, "SILENT_S", 0.1)
    monkeypatch.setattr(source, "RENEW_S", 0.1)
    one = session.begin()
    session.until(lambda: one.state == "sampling" and one.flush(1.0) and session.samples)
    monkeypatch.setenv("FAKE_PM_SILENT", "1")
    session.until(lambda: one.status()["devices"]["0"]["renewed"] > 1)
    monkeypatch.delenv("FAKE_PM_SILENT")
    before = len(session.samples)
    session.until(lambda: one.flush(1.0) and len(session.samples) > before)
    told = one.status()["devices"]["0"]
    assert told["gap_reasons"] == {source.SILENT: 1}
    assert told["missing_ns"] > 2e8
    assert library.fake_profiler_calls(b"cuptiPmSamplingDisable") == told["renewed"]


@pytest.mark.usefixtures("tried")
@pytest.mark.parametrize(("spin", "longer"), [("4000000", True), ("0", False)])
def test_the_rate_becomes_what_may_be_spent_where_it_is_left_to_us(session, monkeypatch, spin, longer):
    monkeypatch.setattr(source, "JUDGE_S", 0.3)
    monkeypatch.setattr(source, "COMPARISONS", 1)
    monkeypatch.setenv("FAKE_PM_SPIN", spin)  # nanoseconds a sample
    one = session.begin("auto")

    def interval():
        return one.status()["devices"].get("0", {}).get("interval_ns") if "devices" in one.status() else None

    session.until(lambda: interval() not in (None, 10 * MS))
    assert (interval() > 10 * MS) == longer
    session.until(lambda: one.flush(1.0) and session.samples)


@pytest.mark.usefixtures("tried")
def test_a_rate_that_was_asked_for_stays(session, monkeypatch):
    monkeypatch.setattr(source, "JUDGE_S", 0.3)
    monkeypatch.setattr(source, "COMPARISONS", 1)
    monkeypatch.setenv("FAKE_PM_SPIN", "100000")
    one = session.begin("1kHz")
    session.until(lambda: one.cost is not None)
    assert one.cost > 0.01
    assert one.status()["devices"]["0"]["interval_ns"] == MS


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ({"FAKE_PM_REFUSE": "cuptiPmSamplingEnable:26", "FAKE_PM_IN": "parent"}, "HARDWARE_BUSY"),
        ({"FAKE_PM_CRASH": "cuptiPmSamplingEnable", "FAKE_PM_IN": "child"}, "ended it (signal 11)"),
        ({"FAKE_PM_REFUSE": "cuptiPmSamplingEnable:33"}, "virtual GPU"),
    ],
)
def test_without_a_sampler_the_reason_is_told_and_nothing_else_happens(session, monkeypatch, script, says):
    for name, value in script.items():
        monkeypatch.setenv(name, value)
    one = session.begin()
    session.until(lambda: one.state == "unavailable")
    assert says in one.status()["reason"]
    assert one.flush(1.0)
    assert session.samples == []


def test_under_mps_nothing_is_tried(session, library, monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    (tmp_path / "control").touch()
    one = session.begin()
    session.until(lambda: one.state == "unavailable")
    assert one.status()["reason"].startswith("this program runs under CUDA MPS")
    assert library.fake_profiler_calls(b"cuptiProfilerInitialize") == 0
    refused = selftest.passed(library._name, 0, "driver", what=selftest.RANGES)
    assert "under CUDA MPS" in refused.reason


@pytest.mark.usefixtures("tried")
def test_a_sampler_that_fails_later_keeps_what_it_gave(session, monkeypatch):
    monkeypatch.setattr(source, "SILENT_S", 0.0)  # it has been silent, too, and is not opened anew for that
    monkeypatch.setattr(source, "RENEW_S", 0.0)
    one = session.begin()
    session.until(lambda: one.state == "sampling" and one.flush(1.0) and session.samples)
    monkeypatch.setenv("FAKE_PM_REFUSE", "cuptiPmSamplingDecodeData:999")
    session.until(lambda: one.state == "unavailable")
    assert "sampling ended: cuptiPmSamplingDecodeData" in one.status()["reason"]
    told = one.status()["devices"]["0"]
    assert told["samples"] > 0
    assert told["renewed"] == 0


@pytest.mark.usefixtures("tried")
def test_a_call_that_never_returns_does_not_hold_the_end(session, monkeypatch):
    one = session.begin()
    session.until(lambda: one.state == "sampling")
    monkeypatch.setenv("FAKE_PM_HANG", "cuptiPmSamplingDecodeData")
    time.sleep(0.4)
    began = time.monotonic()
    assert not one.flush(0.2)
    assert not one.end(0.2)
    assert time.monotonic() - began < 1.0
    assert "did not return" in one.status()["reason"]
    session.source = None


@pytest.mark.usefixtures("tried")
def test_a_fork_leaves_the_sampler_to_the_parent(session):
    one = session.begin()
    session.until(lambda: one.state == "sampling")
    one.before_fork()
    assert not one._thread.is_alive()
    one.after_fork_in_parent()
    time.sleep(0.05)
    assert one.flush(1.0)
    assert one.state == "sampling"


def test_a_library_without_the_functions_is_a_reason(build_library, library, session, monkeypatch, tmp_path):
    old = shutil.copy(build_library("libcupti.c", "libcupti.so.13"), tmp_path / "old.so")
    monkeypatch.setenv("GPUSENSE_LIBCUPTI", str(old))
    one = session.begin()
    session.until(lambda: one.state == "unavailable")
    assert "use the libcupti of CUDA 12.6 or later" in one.status()["reason"]

"""Hardware events against a scripted CUPTI and a scripted driver: asked for in time, refused, gone again."""

import ctypes
import shutil
import sys

import pytest
from support.cupti import SMALL, Receiver, kernel

from gpusense._capi import loading
from gpusense._capture.attachment import Capture
from gpusense._decode import layouts
from gpusense._runtime.config import Settings
from gpusense._runtime.errors import BackendError
from gpusense.backends import cuda
from gpusense.backends.cupti import activity as cupti
from gpusense.backends.cupti import broker

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fakes are ELF libraries")

BLACKWELL, BEARS = 10, 130401
MAJOR = 75  # the driver's number for it


@pytest.fixture
def driver(fresh, build_library, tmp_path, monkeypatch):
    """A driver that is live, of one device, which has no context yet."""
    path = shutil.copy(build_library("libcuda.c", "libcuda.so.1"), tmp_path / "fake-libcuda.so")
    monkeypatch.setenv("GPUSENSE_LIBCUDA", str(path))
    monkeypatch.setattr(loading, "_handles", {})
    monkeypatch.setattr(cuda, "SOURCE", cuda.CudaSource())
    library = ctypes.CDLL(str(path))
    library.fake_cuda_set_live(1)
    library.fake_cuda_set_attribute(0, MAJOR, BLACKWELL)
    return library


@pytest.fixture
def fake(load_fake):
    fake = load_fake()
    fake.set_version(BEARS)
    for kind, layout in layouts.LAYOUTS.items():
        fake.set_stride(kind, ctypes.c_size_t(layout.sizes[-1][1]))
    return fake


@pytest.fixture
def begin():
    """Starts capture with hardware events, and says what the status has of them."""
    started = []

    def begin(wanted=True):
        activity = cupti.CuptiActivity()
        activity.meet(**SMALL, hardware_events=wanted)
        got = Receiver(activity.strides, activity.name)
        activity.start(layouts.DEFAULT_KINDS, got, **SMALL)
        started.append(activity)
        return activity, got

    yield begin
    for activity in started:
        activity.stop()


def told(activity):
    status = activity.status()
    return status["hardware_events"], status["hardware_events_reason"]


def test_they_are_asked_for_once_and_before_any_kind(driver, fake, begin):
    activity, got = begin()
    assert told(activity) == (True, "")
    activity.stop()
    activity.start(layouts.DEFAULT_KINDS, got, **SMALL)
    assert fake.calls("cuptiActivityEnableHWTrace") == 1
    assert told(activity) == (True, "")


def test_their_records_are_read_as_others_are_and_what_they_lack_is_unknown(driver, fake, begin):
    activity, got = begin()
    fake.kernel("matmul")
    fake.raw(kernel(0, 0).ljust(248, b"\0"), 248)  # CUPTI says so where it could not time one
    fake.memcpy()
    fake.memset()
    activity.flush()
    matmul = next(record for record in got.records if record.name == "matmul")
    assert (matmul.grid, matmul.attributes) == ((4, 1, 1), None), "a priority of 0 would be a claim"
    assert len(got.records) == 3
    assert sum(tally.invalid for tally in got.tallies) == 1
    # Who asks for buffers, and when records begin in them, has not been seen on such a device.
    assert got.threads == [0]
    assert activity.newest() is None


def too_old(driver, fake):
    fake.set_version(130400)
    return "CUDA 13.4 Update 1 (130401); this one is 130400"


def not_on_this_chip(driver, fake):
    driver.fake_cuda_set_attribute(0, MAJOR, 9)
    return "they come with Blackwell (compute capability 10.0); the newest device here has 9.0"


def too_late(driver, fake):
    driver.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), 0)
    return "CUDA had a context before"


def refused(code):
    def refuse(driver, fake):
        fake.fail("cuptiActivityEnableHWTrace", code)
        return f"({code})"

    return refuse


@pytest.mark.parametrize("lack", [too_old, not_on_this_chip, too_late, refused(27), refused(43), refused(47)])
def test_without_them_work_is_timed_as_usual_and_the_reason_is_told(driver, fake, begin, lack):
    reason = lack(driver, fake)
    activity, got = begin()
    fake.kernel()
    activity.flush()
    on, why = told(activity)
    assert on is False
    assert reason in why
    assert fake.calls("cuptiActivityEnableHWTrace") == (reason[0] == "(")
    assert len(got.records) == 1
    assert got.threads != [0]
    assert activity.newest() is not None


def test_a_library_without_the_function_is_told(driver, load_fake, begin):
    load_fake("-DWITHOUT_LATER").set_version(BEARS)
    on, why = told(begin()[0])
    assert on is False
    assert "has no function cuptiActivityEnableHWTrace" in why


def test_nobody_gets_them_who_has_not_asked(driver, fake, begin):
    activity, _ = begin(wanted=False)
    assert fake.calls("cuptiActivityEnableHWTrace") == 0
    assert "hardware_events" not in activity.status()


def test_nobody_asks_while_cuda_starts(driver, fake, begin):
    """A program crashed that did, and the device cannot be looked at then."""
    driver.fake_cuda_set_live(0)
    with cuda.SOURCE.starting():
        activity, got = begin()
    driver.fake_cuda_set_live(1)
    assert fake.calls("cuptiActivityEnableHWTrace") == 0
    assert told(activity) == (
        False,
        "recording began as CUDA started, and CUPTI 13.5 has crashed when asked for them then",
    )
    fake.kernel()
    activity.flush()
    assert got.threads != [0]


@pytest.fixture
def session():
    """What a session with these settings has of hardware events in its status."""
    begun = []

    def session(kernels):
        capture = Capture(Settings(kernels=kernels))
        capture.try_attach(lambda *_: None, lambda: None, lambda *_: None)
        begun.append(capture)
        assert capture.running, capture.reason
        return capture.status().get("hardware_events"), capture.status().get("hardware_events_reason")

    yield session
    for capture in begun:
        capture.stop()


def test_a_session_that_comes_late_is_told(driver, fake, session):
    assert session("every")[0] is None
    assert session("hardware") == (False, "CUPTI was in use in this process before")
    assert fake.calls("cuptiActivityEnableHWTrace") == 0


def test_a_session_is_told_of_them_if_it_asked_or_has_them(driver, fake, session, fresh):
    assert session("hardware") == (True, "")
    assert session("every")[0] is True
    fresh.pop(broker.KEY)
    reason = not_on_this_chip(driver, fake)
    assert session("hardware") == (False, reason)
    assert session("every") == (None, None)


def test_cupti_stays_in_a_process_that_has_them(driver, fake, begin):
    activity, got = begin()
    activity.stop()
    with pytest.raises(BackendError, match="hardware events"):
        activity.detach()
    assert fake.calls("cuptiFinalize") == 0
    activity.forget_newest()  # another profiler has done it
    assert told(activity) == (False, "another profiler took CUPTI out of the process")
    activity.start(layouts.DEFAULT_KINDS, got, **SMALL)
    assert fake.calls("cuptiActivityEnableHWTrace") == 1

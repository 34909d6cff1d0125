"""The CUPTI backend against a scripted libcupti that refuses."""

import sys

import pytest
from support.cupti import SMALL, Receiver

from gpusense._capi import cupti as capi
from gpusense._decode import layouts
from gpusense._records.records import Unavailable
from gpusense._runtime.errors import BackendError, MissingSymbol
from gpusense.backends.cupti import activity as cupti
from gpusense.backends.cupti import broker

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fake is an ELF library")


CODES = (1, 8, 9, 14, 15, 18, 27, 35, 39, 45, 777, 999)


@pytest.mark.parametrize("call", [*capi.REQUIRED, "cuptiSubscribe", "cuptiUnsubscribe"])
def test_any_call_may_fail_with_any_code(call, fake, fresh):
    # A subscription that could not be given back shows as a refused one in the next round.
    blamed = {call, "cuptiSubscribe"} if call == "cuptiUnsubscribe" else {call}
    for code in CODES:
        fresh.pop(broker.KEY, None)
        fake.fail(call, code)
        backend = cupti.open()
        if isinstance(backend, Unavailable):
            assert call in ("cuptiGetVersion", "cuptiActivityGetNextRecord")
            assert str(code) in backend.reason or "kernel records" in backend.reason
        else:
            error = run_through(backend.activity, fake)
            assert error is None or error.call in blamed
            assert error is None or error.code == (39 if error.call != call else code)
            assert call == "cuptiActivityDisable" or not any(fake.enabled(kind) for kind in range(64))
        fake.fail(call, 0)


def run_through(activity, fake):
    """A whole life; the error of the start, the only step that may raise."""
    try:
        activity.start(layouts.DEFAULT_KINDS, Receiver(activity.strides, activity.name), **SMALL)
    except BackendError as error:
        return error
    fake.kernel()
    activity.status()
    activity.flush()
    activity.stop()
    return None


def test_a_failing_flush_is_told_in_the_status_and_later_ones_deliver(fake, start):
    activity, got = start()
    fake.kernel()
    fake.fail("cuptiActivityFlushAll", 999)
    activity.flush()
    assert "cuptiActivityFlushAll: UNKNOWN" in activity.status()["flush_error"]
    fake.fail("cuptiActivityFlushAll", 0)
    activity.flush()
    assert len(got.records) == 1
    assert activity.status()["flush_error"] == ""


def test_failing_once_does_not_spoil_the_next_start(fake, start):
    fake.fail("cuptiActivityEnable:10", 15)
    activity = cupti.CuptiActivity()
    got = []
    with pytest.raises(BackendError, match=r"NOT_INITIALIZED.*15"):
        activity.start(layouts.DEFAULT_KINDS, lambda buffer, _: got.append(len(buffer)), **SMALL)
    assert not any(fake.enabled(kind) for kind in range(64))
    fake.fail("cuptiActivityEnable:10", 0)
    activity.start(layouts.DEFAULT_KINDS, lambda buffer, _: got.append(len(buffer)), **SMALL)
    fake.kernel()
    activity.stop()
    assert got == [216]


def test_a_kind_that_is_not_known_is_left_out_and_named(fake, start):
    fake.fail("cuptiActivityEnable:22", 21)
    activity, got = start()
    fake.kernel()
    activity.flush()
    assert len(got.records) == 1
    assert "INVALID_KIND" in activity.status()["refused_kinds"][22]


@pytest.mark.parametrize("code", sorted(capi.RESULTS))
def test_every_listed_code_says_what_it_means(code):
    name, meaning = capi.RESULTS[code]
    assert name == name.upper()
    assert len(meaning.split()) >= 4
    assert str(code) in str(BackendError("cuptiX", code, capi.text(code)))


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (15, "driver"),
        (35, "NVreg_RestrictProfilingToAdminUsers"),
        (45, "WSL"),
        (39, "another profiler"),
        (999, "driver"),
    ],
)
def test_common_refusals_say_what_to_do(code, advice):
    assert advice in capi.text(code)
    assert "does not know" in capi.text(12345)


def test_a_library_without_the_functions_is_no_cupti(build_library, fresh, monkeypatch):
    path = build_library("loadable.c", "libcupti.so.12")
    monkeypatch.setenv("GPUSENSE_LIBCUPTI", str(path))
    backend = cupti.open()
    assert isinstance(backend, Unavailable)
    assert "cuptiActivityRegisterCallbacks" in backend.reason


def test_what_an_old_library_lacks_says_so_when_asked_for(load_fake, start):
    load_fake("-DWITHOUT_LATER")
    activity, _ = start()
    with pytest.raises(MissingSymbol, match="cuptiActivityEnableDriverApi"):
        activity.select_api(layouts.DRIVER, 307, False)

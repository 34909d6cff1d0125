"""C++ names without a C++ runtime in this process."""

import pytest

from gpusense._capi import demangle
from gpusense._runtime import child


@pytest.fixture
def nothing_here(monkeypatch):
    """As in a process that no C++ library is in."""
    monkeypatch.setattr(demangle, "_cache", {})
    monkeypatch.setattr(demangle, "_resolve", lambda may_load: None)


def test_names_become_readable_by_way_of_a_child_process(nothing_here):
    demangle.learn(["_Z3foov", "_ZN2at4gemmIfEEvi", "_Znonsense", "plain", "_Z3foov"])
    if not demangle._cache:
        pytest.skip("no C++ runtime on this machine")
    assert demangle.demangle("_Z3foov") == "foo()"
    assert demangle.demangle("_ZN2at4gemmIfEEvi") == "void at::gemm<float>(int)"
    assert demangle.demangle("_Znonsense") is None


@pytest.mark.parametrize("executable", ["", "/usr/sbin/uwsgi", "/nowhere/python"])
def test_where_no_child_can_be_started_names_stay_as_they_are(nothing_here, monkeypatch, executable):
    monkeypatch.setattr(child.sys, "executable", executable)
    demangle.learn(["_Z3foov"])
    assert demangle.demangle("_Z3foov") is None


def test_no_child_is_started_for_nothing(nothing_here, monkeypatch):
    monkeypatch.setattr(child, "run", None)
    demangle.learn([])
    demangle.learn(["sgemm", "plain"])

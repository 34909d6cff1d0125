"""A process in which gpusense has not been used yet."""

import gpusense
from gpusense._tracing import select


def nothing_to_capture():
    return gpusense.Unavailable("cuda", "not in this test")


def begun(monkeypatch, possible=nothing_to_capture):
    """Has the test begin with no tracer and no settings; gives what decides from here on."""
    control = select.Control(possible)
    monkeypatch.setattr(select, "control", control)
    monkeypatch.setattr(gpusense, "_active", gpusense._Undecided())
    return control

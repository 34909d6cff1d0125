"""A live tracer for each test; no host stays instrumented after it."""

import pytest

import gpusense
from gpusense import _config, _select
from gpusense.integrations import cupy, jax, torch


@pytest.fixture
def tracer(monkeypatch):
    """A tracer of its own, without capture."""
    monkeypatch.delenv("GPUSENSE", raising=False)
    monkeypatch.setattr(_select, "_layers", _config.Layers())
    monkeypatch.setattr(_select, "_tracer", None)
    monkeypatch.setattr(_select, "possible", lambda: gpusense.Unavailable("cuda", "not in this test"))
    monkeypatch.setattr(gpusense, "_active", gpusense._Undecided())
    assert gpusense.enable()
    yield gpusense.get_tracer()
    for integration in (torch, cupy, jax):
        integration.uninstrument()
    _select._tracer.close()

"""A live tracer for each test; no host stays instrumented after it."""

import itertools

import pytest
from support.control import begun

import gpusense
from gpusense.integrations import cupy, jax, torch


@pytest.fixture
def tracer(monkeypatch):
    """A tracer of its own, without capture."""
    monkeypatch.delenv("GPUSENSE", raising=False)
    control = begun(monkeypatch)
    assert gpusense.enable()
    yield gpusense.get_tracer()
    for integration in (torch, cupy, jax):
        integration.uninstrument()
    control.live.close()


@pytest.fixture(params=["blocks", "frames"])
def way(request, tracer):
    """With "frames" ids are read, as on CUDA 13: modules below a model are frames until somebody asks for a block."""
    if request.param == "frames":
        tracer.recorder.marker, tracer.recorder.newest = (lambda token: None), itertools.count(7).__next__
    return request.param

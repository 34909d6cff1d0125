"""Tracers without capture, hubs without CUPTI, and monitors over scripted sources, which end with the test."""

import pytest

import gpusense
from gpusense._runtime import config
from gpusense._tracing import select
from gpusense.backends.cupti import broker
from support.cupti import Engine
from support.devices import Rig


@pytest.fixture
def rig():
    made = Rig()
    yield made
    for one in made.started:
        one.stop()


@pytest.fixture
def two():
    made = Rig(2)
    yield made
    for one in made.started:
        one.stop()


# -- deadlines -----------------------------------------------------------------------------------------------------


@pytest.fixture
def tracer(monkeypatch):
    """A live tracer of its own, without capture."""
    for name in ("GPUSENSE", "GPUSENSE_THRESHOLD_US", "GPUSENSE_LIBCUDA", "GPUSENSE_LIBCUPTI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(select, "_layers", config.Layers())
    monkeypatch.setattr(select, "_tracer", None)
    monkeypatch.setattr(select, "possible", lambda: gpusense.Unavailable("cuda", "not in this test"))
    monkeypatch.setattr(gpusense, "_active", gpusense._Undecided())
    assert gpusense.enable()
    yield gpusense.get_tracer()
    select._tracer.close()


@pytest.fixture
def reading(tracer):
    """A tracer that places its blocks by the newest correlation id, which is 7."""
    tracer._recorder.marker, tracer._recorder.newest = (lambda token: None), (lambda: 7)
    return tracer


@pytest.fixture
def engine(monkeypatch):
    """Hubs start no thread."""
    monkeypatch.setattr(broker.threads, "start", lambda target, name: None)
    return Engine()


@pytest.fixture
def hub(engine):
    return broker.Hub(engine)

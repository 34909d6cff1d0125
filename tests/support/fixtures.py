"""Tracers without capture, hubs without CUPTI, and monitors over scripted sources, which end with the test."""

import pytest

import gpusense
from gpusense.backends.cupti import broker
from support.control import begun
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
    control = begun(monkeypatch)
    assert gpusense.enable()
    yield gpusense.get_tracer()
    control.live.close()


@pytest.fixture
def reading(tracer):
    """A tracer that places its blocks by the newest correlation id, which is 7."""
    tracer.recorder.marker, tracer.recorder.newest = (lambda token: None), (lambda: 7)
    return tracer


@pytest.fixture
def engine(monkeypatch):
    """Hubs start no thread."""
    monkeypatch.setattr(broker.threads, "start", lambda target, name: None)
    return Engine()


@pytest.fixture
def hub(engine):
    return broker.Hub(engine)

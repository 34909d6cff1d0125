"""What a block costs: off beside a ``with`` on a shared do-nothing object, live without kernels, and as a decorator."""

import pytest

import gpusense
from gpusense._tracing import select


class Shared:
    __slots__ = ()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


SHARED = Shared()


@pytest.fixture
def live():
    assert gpusense.enable()
    yield gpusense.get_tracer()
    select.control.live.close()
    select.control = select.Control()
    gpusense._activate(gpusense._Undecided())


@pytest.mark.benchmark(group="block")
def test_with_on_a_shared_object(benchmark):
    def once():
        for _ in range(1000):
            with SHARED:
                pass

    benchmark(once)


@pytest.mark.benchmark(group="block")
def test_trace_when_off(benchmark):
    gpusense.get_tracer()

    def once():
        for _ in range(1000):
            with gpusense.trace("x"):
                pass

    benchmark(once)


@pytest.mark.benchmark(group="block")
def test_trace_live_without_kernels(benchmark, live):
    def once():
        for _ in range(1000):
            with gpusense.trace("x"):
                pass
        live.recorder.events.clear()

    benchmark(once)

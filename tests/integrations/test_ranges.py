"""Ranges of CuPy and JAX as blocks: on stand-ins, and on the real JAX where it is installed (CI does without)."""

import sys
import types

import pytest

import gpusense
from gpusense import integrations
from gpusense.integrations import cupy, jax, wgpu_py


class Range:
    def __init__(self, message):
        self.message = message

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        return None


@pytest.fixture
def fake_cupy(monkeypatch):
    class TimeRange(Range):
        pass

    spec = types.SimpleNamespace(_initializing=False, name="cupy", origin=None)
    host = types.ModuleType("cupy")
    host.__spec__ = spec
    host.get_default_memory_pool = lambda: types.SimpleNamespace(used_bytes=lambda: 512, total_bytes=lambda: 2048)
    host.get_default_pinned_memory_pool = lambda: types.SimpleNamespace(n_free_blocks=lambda: 3)
    profiler = types.ModuleType("cupyx.profiler")
    profiler.time_range = TimeRange
    for name, module in (("cupy", host), ("cupyx", types.ModuleType("cupyx")), ("cupyx.profiler", profiler)):
        monkeypatch.setitem(sys.modules, name, module)
    return profiler


@pytest.fixture
def fake_jax(monkeypatch):
    class TraceMe:  # tells nobody its name
        def __init__(self, name, **kwargs):
            pass

        def __enter__(self):
            return self

        def __exit__(self, kind, value, trace):
            return None

    class TraceAnnotation(TraceMe):
        pass

    class StepTraceAnnotation(TraceAnnotation):
        def __init__(self, name, **kwargs):
            super().__init__(name, _r=1, **kwargs)

    host, profiler = types.ModuleType("jax"), types.ModuleType("jax.profiler")
    host.__spec__ = types.SimpleNamespace(_initializing=False, name="jax", origin=None)
    host.profiler = profiler
    profiler.TraceAnnotation, profiler.StepTraceAnnotation = TraceAnnotation, StepTraceAnnotation
    monkeypatch.setitem(sys.modules, "jax", host)
    monkeypatch.setitem(sys.modules, "jax.profiler", profiler)
    return profiler


def blocks(tracer):
    return {" / ".join(block.path): block for block in tracer.session().blocks}


def test_cupy_ranges(fake_cupy, tracer):
    own = dict(vars(fake_cupy.time_range))
    assert cupy.instrument() is True
    assert cupy.instrument() is True
    with pytest.raises(ZeroDivisionError), fake_cupy.time_range("outer"), fake_cupy.time_range("inner"):
        1 / 0  # noqa: B018
    found = blocks(tracer)
    assert set(found) == {"outer", "outer / inner"}
    assert found["outer / inner"].error == "ZeroDivisionError"
    assert found["outer"].attributes is None
    cupy.uninstrument()
    assert dict(vars(fake_cupy.time_range)) == own
    with fake_cupy.time_range("after"):
        pass
    assert "after" not in blocks(tracer)


def test_cupy_memory_on_request(fake_cupy, tracer):
    cupy.instrument(memory=True)
    with fake_cupy.time_range("x"):
        pass
    assert blocks(tracer)["x"].attributes == {
        "cupy.memory.used_bytes": 512,
        "cupy.memory.held_bytes": 2048,
        "cupy.memory.pinned_free_blocks": 3,
    }


def test_one_range_object_may_be_entered_again_inside_itself(fake_cupy, tracer):
    cupy.instrument()
    range_ = fake_cupy.time_range("x")
    with range_, range_:
        pass
    assert set(blocks(tracer)) == {"x", "x / x"}


def test_a_failure_switches_it_off_and_the_program_goes_on(fake_cupy, tracer, caplog):
    cupy.instrument(memory=True)
    sys.modules["cupy"].get_default_memory_pool = None
    for _ in range(2):
        with fake_cupy.time_range("x"):
            pass
    assert caplog.text.count("failed once") <= 1
    assert not cupy._installed.now.on
    assert tracer.current_block() is None


def test_jax_annotations(fake_jax, tracer):
    own = dict(vars(fake_jax.TraceAnnotation))
    assert jax.instrument() is True
    with fake_jax.StepTraceAnnotation("train", step_num=3), fake_jax.TraceAnnotation("forward"):
        pass
    assert set(blocks(tracer)) == {"train", "train / forward"}
    jax.uninstrument()
    assert dict(vars(fake_jax.TraceAnnotation)) == own


@pytest.mark.parametrize(("module", "host"), [(cupy, "fake_cupy"), (jax, "fake_jax")])
def test_polls_and_refusals(module, host, tracer, monkeypatch, request):
    name = module.__name__.rpartition(".")[2]
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, f"{name}.profiler", None)
    assert module.when_imported() is False
    assert f"{name} cannot be imported" in module.instrument().reason
    request.getfixturevalue(host)
    sys.modules[name].__spec__._initializing = True
    assert module.when_imported() is False
    sys.modules[name].__spec__._initializing = False
    gpusense.disable()
    assert "disabled" in module.instrument().reason
    gpusense.enable()
    assert module.when_imported() is True


def test_watch_instruments_what_gets_imported(fake_jax, tracer):
    class Tracer:
        watchers = ()

        def add_watcher(self, watcher):
            self.watchers = (*self.watchers, watcher)

    taken = Tracer()
    integrations.watch(taken)
    wgpu_py.uninstrument()  # it waits for an import that would come in another test
    assert [watcher() for watcher in taken.watchers] == [name == "jax" for name in integrations.POLLED]
    assert jax._installed.now is not None


def test_real_jax(tracer):
    real = pytest.importorskip("jax")  # CI has no JAX
    jax.instrument()
    with real.profiler.StepTraceAnnotation("train", step_num=1), real.profiler.TraceAnnotation("forward"):
        real.numpy.ones(3).sum().block_until_ready()

    @real.profiler.annotate_function
    def work():
        return 1

    assert work() == 1
    found = blocks(tracer)
    assert {"train", "train / forward"} <= set(found)
    assert any(name.endswith("work") for name in found)
    jax.uninstrument()
    assert not {"__init__", "__enter__", "__exit__"} & set(vars(real.profiler.TraceAnnotation))

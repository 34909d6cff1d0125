"""The public names as a user may use them, on a machine without a GPU: what is documented, and the slips around it."""

import asyncio
import inspect
import pathlib
import pickle
import subprocess
import sys

import pytest

import gpusense
from gpusense._tracing import noop, select

HERE = pathlib.Path(__file__).resolve().parent


@pytest.fixture(params=["off", "auto", "on"])
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    """The tracer of a program that has just begun, under ``GPUSENSE``."""
    monkeypatch.setenv("GPUSENSE", request.param)
    yield from _fresh(monkeypatch)


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch):
    """``auto`` where no GPU is: nothing is recorded until ``enable()``."""
    monkeypatch.delenv("GPUSENSE", raising=False)
    monkeypatch.setattr(select, "possible", lambda: gpusense.Unavailable("cuda", "no GPU in this test"))
    yield from _fresh(monkeypatch)


def _fresh(monkeypatch: pytest.MonkeyPatch):
    for name, value in (("_tracer", None), ("_disabled", False), ("_layers", type(select._layers)())):
        monkeypatch.setattr(select, name, value)
    monkeypatch.setattr(gpusense, "_active", gpusense._Undecided())
    yield
    made = select._tracer
    if made is not None:
        made.close()


def blocks() -> list[str]:
    return [block.name for block in gpusense.get_tracer().session().blocks]


def test_methods_of_every_kind_stay_what_they_are(mode) -> None:
    class Model:
        @gpusense.trace("static")
        @staticmethod
        def static(value):
            return value

        @gpusense.trace("class")
        @classmethod
        def of_class(cls):
            return cls

        @gpusense.trace("property")
        @property
        def size(self):
            """How big."""
            return 5

        @size.setter
        def size(self, value):
            self.kept = value

    model = Model()
    model.size = 7
    assert (Model.static(1), model.static(2), Model.of_class(), model.size, model.kept) == (1, 2, Model, 5, 7)
    assert Model.size.__doc__ == "How big."


def test_a_class_stays_a_class(mode) -> None:
    @gpusense.trace("model")
    class Model:
        pass

    class Larger(Model):
        pass

    assert isinstance(Larger(), Model)


def test_without_parentheses(mode) -> None:
    @gpusense.trace
    def double(value):
        return 2 * value

    assert double(4) == 8
    assert double.__name__ == "double"


def test_an_object_that_is_a_coroutine_function(mode) -> None:
    class Server:
        async def __call__(self, value):
            return value

    served = gpusense.trace("serve")(Server())
    assert asyncio.run(served(3)) == 3
    if gpusense.get_tracer().active:
        assert inspect.iscoroutinefunction(served)


def test_manual_records_are_taken_alike_everywhere(mode) -> None:
    gpusense.record_kernel("k", duration_ns=5, attributes={"a": 1})
    gpusense.record_transfer("t", "cpu_to_gpu", bytes=3, duration_ns=5, label="x")
    gpusense.record_compute_block("c", duration_ns=5, attributes={"a": 1})
    gpusense.record_compute_block("c", 3, 4, 10)


def test_a_name_that_cannot_be_hashed(mode) -> None:
    class Odd:
        def __hash__(self):
            raise RuntimeError("no hash")

    with gpusense.trace(Odd()):
        pass


def test_attributes_that_are_no_dict_spoil_no_report(mode) -> None:
    with gpusense.trace("n", 3):
        pass
    gpusense.get_tracer().flush(5)
    gpusense.get_tracer().summary()
    assert gpusense.get_tracer().export_json()


def test_decorated_while_idle_recorded_once_enabled(idle) -> None:
    @gpusense.compute_block("normalise", elements=10, attributes={"axis": 1})
    def normalise():
        return 1

    @gpusense.trace("forward")
    def forward():
        return 2

    gpusense.configure(trace_all=True)
    assert gpusense.enable()
    assert normalise() + forward() == 3
    gpusense.get_tracer().flush(5)
    (made,) = gpusense.get_tracer().session().compute_blocks
    assert (made.name, made.elements, made.attributes) == ("normalise", 10, {"axis": 1})
    assert blocks() == ["forward"]


def test_disabled_before_the_first_use(monkeypatch: pytest.MonkeyPatch, mode) -> None:
    gpusense.disable()
    with gpusense.trace("unseen"):
        pass
    gpusense.configure(threshold_us=3)
    with gpusense.trace("unseen"):
        pass
    assert not gpusense.get_tracer().active
    assert blocks() == []
    if gpusense.enable():
        with gpusense.trace("seen"):
            pass
        gpusense.get_tracer().flush(5)
        assert blocks() == ["seen"]


def test_one_sink_is_enough_and_what_is_none_is_said(idle) -> None:
    from gpusense._runtime.config import ConfigurationError

    for wrong in (3, [3], "print", [None]):
        with pytest.raises(ConfigurationError, match="sinks must be callables"):
            gpusense.configure(sinks=wrong)
    found: list = []
    gpusense.configure(sinks=found.extend)
    gpusense.enable()
    gpusense.record_kernel("k", duration_ns=10**9)
    assert gpusense.get_tracer().flush(5)
    assert [record.name for record in found] == ["k"]


@pytest.mark.parametrize(
    "error",
    [
        gpusense.BackendError("cuInit", 100, "no device"),
        gpusense.BackendUnavailable("cuda: no driver"),
        gpusense.SessionError("no session"),
        gpusense.cuda.CompileError("cuModuleLoadDataEx", 218, "ptxas fatal"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_come_through_a_process_pool(error: gpusense.GpuSenseError) -> None:
    same = pickle.loads(pickle.dumps(error))
    assert (type(same), str(same), vars(same)) == (type(error), str(error), vars(error))


def test_what_is_shown_of_idle_objects(idle) -> None:
    tracer = gpusense.get_tracer()
    assert isinstance(tracer, noop.NoopTracer)
    assert "no GPU in this test" in repr(tracer)
    assert "'step'" in repr(gpusense.trace("step"))
    assert "0 records" in repr(tracer.session())


def test_a_users_program_is_typed() -> None:
    pytest.importorskip("mypy")
    program = HERE / "typed" / "program.py"
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-incremental", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=HERE.parent.parent, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr


def test_settings_know_every_backend():
    from gpusense._runtime import config
    from gpusense.backends import BACKENDS

    assert tuple(name for name, _ in BACKENDS) == config.BACKEND_NAMES
    for wrong in ({"backends": ("cupt",)}, {"devices": (-1,)}):
        with pytest.raises(config.ConfigurationError):
            gpusense.configure(**wrong)


def test_a_scope_that_is_open_while_recording_is_disabled_ends_all_the_same(idle):
    gpusense.enable()
    scope = gpusense.get_tracer().open_scope("outer")
    gpusense.disable()
    gpusense.get_tracer().close_scope(scope)
    gpusense.enable()
    with gpusense.trace("later") as block:
        pass
    assert block.path == ("later",)
    assert [record.path for record in gpusense.get_tracer().session().blocks] == [("outer",), ("later",)]

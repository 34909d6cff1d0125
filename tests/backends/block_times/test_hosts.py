"""What torch and CuPy say of their streams, by modules of the same shape."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from gpusense.backends.block_times import hosts


@pytest.fixture
def told():
    return []


@pytest.fixture
def found(told):
    made = hosts.Hosts(*(lambda name=name: told.append(name) for name in ("leaves", "arrives", "came")))
    yield made
    made.forget()


@pytest.fixture
def torch(monkeypatch):
    """Its current streams by device are ``streams``."""
    module = ModuleType("torch")
    module.streams = {0: 0, 1: 70}
    module._C = SimpleNamespace(
        _cuda_getCurrentRawStream=lambda device: module.streams[device], _cuda_getDevice=lambda: 1
    )
    module.cuda = SimpleNamespace(
        is_initialized=lambda: True, set_stream=lambda stream: module.streams.update({1: stream}) or "set"
    )
    monkeypatch.setitem(sys.modules, "torch", module)
    return module


@pytest.fixture
def cupy(monkeypatch):
    class Base:
        def __init__(self, ptr):
            self.ptr = ptr

        def use(self):
            module.current = self
            return self

        def __enter__(self):
            self.before = module.current
            return self.use()

        def __exit__(self, *_):
            module.current = self.before

    class Stream(Base):
        pass

    module = ModuleType("cupy")
    module.cuda = SimpleNamespace(Stream=Stream, get_current_stream=lambda: module.current)
    module.current = Stream(0)
    monkeypatch.setitem(sys.modules, "cupy", module)
    return module


def test_torch_says_the_streams_of_the_thread_and_when_it_goes_to_another(found, torch, told):
    original = torch.cuda.set_stream
    assert found.streams(()).streams == (hosts.Current(1, 70),)
    assert found.streams((0,)) is found.streams(())
    assert found.streams((0, 1)).streams == (hosts.Current(0, 0), hosts.Current(1, 70))
    assert torch.cuda.set_stream(80) == "set"
    assert told == ["came", "leaves", "arrives"]
    assert found.streams(()).streams == (hosts.Current(1, 80),)
    found.forget()
    assert torch.cuda.set_stream is original


def test_torch_without_cuda_and_before_it_has_initialised_it_says_nothing(found, torch):
    torch.cuda.is_initialized = lambda: False
    assert found.streams(()).streams == ()
    found.forget()
    del torch._C._cuda_getCurrentRawStream
    assert found.streams(()).streams == ()


def test_cupy_says_its_stream_keeps_it_and_tells_of_each_way_to_another(found, cupy, told):
    assert found.streams(()).streams == (hosts.Current(None, 0, cupy.current),)
    stream = cupy.cuda.Stream(90)
    with stream:
        assert found.streams(()).streams == (hosts.Current(None, 90, stream),)
    assert told == ["came", "leaves", "leaves", "arrives", "arrives", "leaves", "arrives"]  # enters by its own ``use``
    told.clear()
    stream.use()
    assert told == ["leaves", "arrives"]


def test_of_two_libraries_both_say_their_streams_where_they_have_any(found, torch, cupy):
    assert found.streams(()).streams == (hosts.Current(1, 70), hosts.Current(None, 0, cupy.current))
    found.forget()
    torch.cuda.is_initialized = lambda: False
    assert found.streams(()).streams == (hosts.Current(None, 0, cupy.current),)


def test_a_library_is_met_once_it_is_imported_to_its_end(found, torch, told):
    torch.__spec__ = SimpleNamespace(_initializing=True)
    found.look()
    assert told == []
    torch.__spec__ = None
    found.look()
    assert told == ["came"]


def test_a_library_of_another_shape_says_nothing_and_nothing_fails(found, torch, caplog):
    del torch.cuda
    assert found.streams(()).streams == ()


def test_a_switch_that_fails_is_the_librarys_and_the_stream_is_looked_at_all_the_same(found, cupy, told, monkeypatch):
    def use(self):
        raise RuntimeError("the library's")

    monkeypatch.setattr(cupy.cuda.Stream.__mro__[1], "use", use)
    found.look()
    with pytest.raises(RuntimeError, match="the library's"):
        cupy.cuda.Stream(1).use()
    assert told == ["came", "leaves", "arrives"]


def test_what_fails_in_us_does_not_reach_the_library(torch, caplog, monkeypatch):
    monkeypatch.setattr(hosts.log, "_said", set())

    def fails():
        raise ValueError("ours")

    found = hosts.Hosts(fails, fails, list)
    found.look()
    assert torch.cuda.set_stream(80) == "set"
    assert "a change of streams was not noticed" in caplog.text
    found.forget()


def test_libraries_that_tell_nobody_are_known(monkeypatch):
    for name in hosts.SILENT:
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert hosts.silent() == ""
    monkeypatch.setitem(sys.modules, "jaxlib", ModuleType("jaxlib"))
    assert hosts.silent() == "JAX"

"""Defects that are shown and not mended yet: each test is expected to fail, and says so when it does not any more."""

import threading
from itertools import count

import pytest
from cupti_bytes import STRIDES, T0, kernel, view

import gpusense
from gpusense import _config, _select, _tracer
from gpusense._config import Settings
from gpusense._recorder import Recorder

defect = pytest.mark.xfail(strict=True)
KERNELS = 10


# --- the recorder ---------------------------------------------------------------------------------------------------


@pytest.fixture
def tracer(monkeypatch):
    for name in ("GPUSENSE", "GPUSENSE_LIBCUDA", "GPUSENSE_LIBCUPTI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(_select, "_layers", _config.Layers())
    monkeypatch.setattr(_select, "_tracer", None)
    monkeypatch.setattr(_select, "possible", lambda: gpusense.Unavailable("cuda", "not in this test"))
    monkeypatch.setattr(gpusense, "_active", gpusense._Undecided())
    assert gpusense.enable()
    yield gpusense.get_tracer()
    _select._tracer.close()


@defect
def test_asking_with_a_limit_ends_though_a_sink_hangs(tracer):
    """``_deliver`` waits for the thread that is in the sink, without a limit."""
    hang, inside = threading.Event(), threading.Event()

    def sink(records):
        inside.set()
        hang.wait(30)

    tracer.add_sink(sink)
    with gpusense.trace("one"):
        pass
    assert inside.wait(10)
    with gpusense.trace("two"):
        pass
    asking = threading.Thread(target=tracer.flush, args=(0.1,))
    asking.start()
    asking.join(5)
    ended = not asking.is_alive()
    hang.set()
    asking.join(10)
    assert ended


@defect
def test_a_buffer_whose_reading_is_interrupted_is_told():
    """Ctrl-C during ``block.summary()``: the buffer goes back, its records are gone, and seen is more than the rest."""
    recorder = Recorder(Settings(), None)
    recorder.start_ns = recorder.pipeline.start_ns = 0

    class Interrupted:
        strides, marker_shape, running = STRIDES, None, True

        def name(self, pointer):
            raise KeyboardInterrupt

        def losses(self):
            return {}

    recorder.capture = Interrupted()
    buffer = view(*[kernel(T0 + i * 1000, T0 + i * 1000 + 500, correlation=100 + i) for i in range(20)])
    with pytest.raises(KeyboardInterrupt):
        recorder._on_buffer(buffer, 5)
    counters = recorder.counters()
    told = counters.kept + counters.aggregated + counters.invalid + counters.pre_session
    assert counters.seen == told or recorder.unseen


@defect
def test_tokens_have_32_bits_also_after_four_billion(tracer, monkeypatch):
    """The one after 2**32 - 1 has 33 bits, and its record another value."""
    monkeypatch.setattr(_tracer, "_tokens", count(0xFFFFFFFF))
    tokens = []
    for _ in range(3):
        event = [0] * 8
        tracer._mark(event, lambda token: tokens.append(token))
    assert all(0 < token <= 0xFFFFFFFF for token in tokens)

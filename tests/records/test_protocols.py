"""What the package gives as a source is what its protocol asks for, and a tracer takes one that knows nothing of us."""

import inspect
import threading
import time

import pytest

import gpusense
from gpusense._records.protocols import Backend, DeviceSource, RecordSource
from gpusense.backends.wgpu.source import WgpuSource
from gpusense.cli._syscalls import Trace


def members(protocol):
    return [name for name in vars(protocol) if not name.startswith("_")]


@pytest.mark.parametrize(
    ("kind", "protocol"), [(WgpuSource, DeviceSource), (WgpuSource, RecordSource), (Trace, RecordSource)]
)
def test_a_source_has_what_its_protocol_asks_for(kind, protocol):
    assert members(protocol)
    for name in members(protocol):
        asked, given = getattr(protocol, name), getattr(kind, name)
        if isinstance(asked, property):
            assert type(given) is str
        else:
            assert [*inspect.signature(given).parameters] == [*inspect.signature(asked).parameters]


def test_a_backend_without_records():
    assert Backend._fields[-1] == "records"
    assert Backend("acme").records is None


class Jobs:
    """Jobs that end on a thread of their own."""

    name = "acme"

    def __init__(self):
        self.calls, self.threads = [], []
        self._on_records = None

    def start(self, on_records):
        self.calls.append("start")
        self._on_records = on_records

    def stop(self):
        self.calls.append("stop")
        self._on_records = None

    def run(self, name):
        def job():
            now = time.time_ns()
            if self._on_records is not None:
                self._on_records([gpusense.GpuKernel(name, now - 1_000_000, now, backend="acme")])

        self.threads.append(threading.Thread(target=job))
        self.threads[-1].start()

    def flush(self, timeout_s):
        self.calls.append("flush")
        for thread in self.threads:
            thread.join(timeout_s)
        return True

    def status(self):
        return {"jobs": len(self.threads)}


def test_a_tracer_takes_records_until_the_source_is_removed(tracer):
    jobs = Jobs()
    tracer.add_source(jobs)
    tracer.add_source(jobs)
    jobs.run("first")
    session = tracer.session()
    assert [kernel.name for kernel in session.kernels] == ["first"]
    assert session.meta["sources"] == {"acme": {"jobs": 1}}
    assert jobs.calls == ["start", "flush"]
    tracer.remove_source(jobs)
    tracer.remove_source(jobs)
    jobs.run("second")
    jobs.flush(10)
    assert jobs.calls == ["start", "flush", "stop", "flush"]
    assert [kernel.name for kernel in tracer.session().kernels] == ["first"]
    assert tracer.session().meta["sources"] == {}


def test_a_source_that_cannot_start_is_not_added(tracer):
    class Broken(Jobs):
        def start(self, on_records):
            raise OSError("no such device")

    jobs = Broken()
    with pytest.raises(OSError, match="no such device"):
        tracer.add_source(jobs)
    tracer.flush(5)
    assert jobs.calls == []


def test_where_nothing_is_recorded_no_source_is_started():
    from gpusense._runtime.config import Settings
    from gpusense._tracing.noop import NoopTracer

    jobs, off = Jobs(), NoopTracer("off", Settings())
    off.add_source(jobs)
    off.remove_source(jobs)
    assert jobs.calls == []

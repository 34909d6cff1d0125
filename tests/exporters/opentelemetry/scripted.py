"""A small tracer with the real one's seams, driven manually: records go to sinks only when ``flush`` is called."""

import threading
import time
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from types import SimpleNamespace

from gpusense._records.records import BlockRecord, Counters, DeviceInfo, GpuKernel, GpuMemoryTransfer
from gpusense.session import Session

_current = ContextVar("scripted_block", default=None)

GPU = DeviceInfo(
    index=0,
    name="Test GPU",
    vendor="nvidia",
    backend="cuda",
    uuid="GPU-11111111-2222-3333-4444-555555555555",
    pci_bus_id="0000:1b:00.0",
    compute_capability=(9, 0),
    sm_count=132,
    driver="550.54.15",
    cuda_index=0,
)


def _here():
    block = _current.get()
    while block is not None and block.end_ns is not None:
        block = block.outer
    return block


class ScriptedTracer:
    def __init__(self, threshold_us=100, devices=(GPU,)):
        self.config = SimpleNamespace(threshold_ns=threshold_us * 1000, trace_all=False)
        self.metrics_source = None
        self.devices = devices
        self.aggregates = []
        self.records = []
        self.meta = {"backends": {"cupti": "13.0"}, "pid": 1, "start_ns": 1, "threshold_ns": threshold_us * 1000}
        self._ids = count(1)
        self._pending = []
        self._sinks = []
        self._listeners = []
        self._lock = threading.Lock()

    def add_sink(self, sink):
        self._sinks.append(sink)

    def remove_sink(self, sink):
        self._sinks = [known for known in self._sinks if known != sink]

    def add_block_listener(self, listener):
        self._listeners.append(listener)

    def remove_block_listener(self, listener):
        self._listeners = [known for known in self._listeners if known is not listener]

    def open_scope(self, name, attributes=None, key=None, links=None):
        outer = _here()
        block = SimpleNamespace(
            name=name,
            attributes=attributes,
            links=links,
            block_id=next(self._ids),
            parent_id=outer.block_id if outer else None,
            path=(*(outer.path if outer else ()), name),
            start_ns=time.time_ns(),
            end_ns=None,
            thread=threading.get_ident(),
            outer=outer,
            error=None,
        )
        _current.set(block)
        for listener in self._listeners:
            listener.block_opened(block)
        return block

    def close_scope(self, block, error=None):
        block.end_ns = time.time_ns()
        if _current.get() is block:
            _current.set(block.outer)
        for listener in self._listeners:
            listener.block_closed(block)
        self.record(
            [
                BlockRecord(
                    block.name,
                    block.block_id,
                    block.parent_id,
                    block.path,
                    block.start_ns,
                    block.end_ns,
                    block.thread,
                    block.attributes,
                    error,
                )
            ]
        )

    @contextmanager
    def trace(self, name, attributes=None, links=None):
        block = self.open_scope(name, attributes, links=links)
        error = None
        try:
            yield block
        except BaseException as raised:
            error = type(raised).__name__
            raise
        finally:
            self.close_scope(block, error)

    def kernel(self, name="sgemm", start_ns=None, duration_ns=200_000, **fields):
        start = time.time_ns() if start_ns is None else start_ns
        here = _here()
        if here is not None and "block_id" not in fields:
            fields |= {"block_id": here.block_id, "path": here.path}
        fields.setdefault("device", 0)
        self.record([GpuKernel(name, start, start + duration_ns, **fields)])

    def transfer(self, name="cpu_to_gpu", start_ns=None, duration_ns=200_000, size=1024, **fields):
        start = time.time_ns() if start_ns is None else start_ns
        here = _here()
        if here is not None:
            fields.setdefault("block_id", here.block_id)
        self.record([GpuMemoryTransfer(name, "cpu_to_gpu", size, start, start + duration_ns, 0, **fields)])

    def record(self, records):
        with self._lock:
            self._pending += records
            self.records += records

    def flush(self, timeout_s=1.0):
        with self._lock:
            pending, self._pending = self._pending, []
        if pending:
            for sink in self._sinks:
                sink(pending)
        return True

    def session(self):
        self.flush()
        counted = sum(row.count for row in self.aggregates)
        return Session(
            meta=dict(self.meta),
            devices=self.devices,
            records=list(self.records),
            aggregates=list(self.aggregates),
            counters=Counters(seen=len(self.records) + counted, kept=len(self.records), aggregated=counted),
        )

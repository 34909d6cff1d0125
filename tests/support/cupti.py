"""CUPTI without CUPTI: records as bytes, a scripted libcupti and what receives its buffers, an engine."""

import ctypes
import struct
from collections import deque

from gpusense._decode import layouts
from gpusense._decode.record import record
from gpusense._decode.walk import batches
from gpusense._runtime.errors import BackendError

KERNEL = struct.Struct("<IBBHIIQQQIIIiiiiiiiiIIIqQQQQBBBBIQIIQII")
MEMCPY = struct.Struct("<IBBBBQQQIIIIIIQQIIII")
API = struct.Struct("<IIQQIIII")
SYNC = struct.Struct("<IIQQIIII")
STRIDES = {10: KERNEL.size, 1: MEMCPY.size, 4: API.size, 38: SYNC.size}
T0 = 1_764_280_000_000_000_000
MARKER_CBID = 2


def kernel(start, end, correlation=1, *, name=0x100, stream=7, device=0, context=1, block=(128, 1, 1), registers=32):
    return KERNEL.pack(
        10, 0, 0, registers, 0, 0, start, end, end, device, context, stream, 4, 1, 1, *block, 0, 0, 0, 0, correlation,
        0, name, *(0,) * 14,
    )  # fmt: skip


def memcpy(start, end, correlation=1, *, copy=1, size=4096, stream=7, device=0, kinds=(1, 3)):
    return MEMCPY.pack(1, copy, *kinds, 0, size, start, end, device, 1, stream, correlation, 0, 0, 0, 0, 0, 0, 0, 0)


def marker(start, correlation, thread):
    return API.pack(4, MARKER_CBID, start, start + 100, 1, thread & 0xFFFFFFFF, correlation & 0xFFFFFFFF, 0)


def sync(start, end, correlation=1, *, kind=3, stream=7):
    return SYNC.pack(38, kind, start, end, correlation, 1, stream, 0xFFFFFFFF)


def view(*records):
    return memoryview(b"".join(records))


LOCKED, OWN_THREAD, PER_THREAD, REVERSED, NAMES_DIE, SILENT, TORN, UNKNOWN = (1 << bit for bit in range(8))
SMALL = {"buffer_size": 4096, "buffers": 16}


class Fake:
    """The control functions of one copy of tests/fakes/libcupti.c."""

    def __init__(self, path):
        self.path = str(path)
        self.library = ctypes.CDLL(self.path)
        self.library.fake_cupti_requests.restype = ctypes.c_uint64
        self.library.fake_cupti_refusals.restype = ctypes.c_uint64

    def kernel(self, name="k", device=0, stream=7, start=0, end=0, correlation=0):
        return self.library.fake_cupti_kernel(
            name.encode(), device, stream, ctypes.c_uint64(start), ctypes.c_uint64(end), correlation
        )

    def memcpy(self, copy=1, size=4096):
        zero = ctypes.c_uint64(0)
        return self.library.fake_cupti_memcpy(copy, ctypes.c_uint64(size), 0, 7, zero, zero, 0)

    def memset(self, value=5, size=64):
        return self.library.fake_cupti_memset(value, ctypes.c_uint64(size), 0, 7, 0)

    def calls(self, name):
        return self.library.fake_cupti_calls(name.encode())

    def fail(self, name, code):
        self.library.fake_cupti_fail(name.encode(), code)

    def __getattr__(self, name):
        return getattr(self.library, f"fake_cupti_{name}")


class Receiver:
    """Decodes what it is shown, and keeps everything."""

    def __init__(self, strides, name):
        self.strides, self.name = strides, name
        self.records, self.threads, self.tallies, self.names = [], [], [], []

    def __call__(self, buffer, thread):
        assert buffer.readonly
        self.threads.append(thread)
        found, tally = batches(buffer, self.strides)
        self.tallies.append(tally)
        for batch in found:
            if batch.kind in layouts.WORK_KINDS:
                for i in range(len(batch.offsets)):
                    self.records.append(record(buffer, batch, i, self.describe))

    def describe(self, pointer):
        text = self.name(pointer).decode("utf-8", "replace")
        self.names.append(pointer)
        return text, None, text

    @property
    def correlations(self):
        return [record.correlation_id for record in self.records]


KERNELS, COPIES, SYNCS, MEMSETS = 10, 1, 38, 2


class Engine:
    """Remembers what it was asked; ``full`` are buffers that wait to be taken."""

    def __init__(self):
        self.calls, self.full, self.given, self.refuse = [], deque(), [], {}
        self.used, self.older = 0, ()
        self.in_flush = None

    def _call(self, name, *arguments):
        self.calls.append((name, *arguments))
        code = self.refuse.get((name, *arguments)) or self.refuse.get(name)
        if code:
            raise BackendError(name, code, "refused")

    def register(self, after_another=False):
        self._call("register")

    def enable(self, kind):
        self._call("enable", kind)

    def disable(self, kind):
        self._call("disable", kind)

    def flush(self, forced):
        self._call("flush", forced)
        if self.in_flush:
            self.in_flush()

    def take(self):
        return self.full.popleft() if self.full else None

    def give(self, address):
        self.given.append(address)

    def discard(self, address):
        self._call("discard", address)
        return address not in self.older

    def forget_newest(self): ...

    def in_use(self):
        return self.used

    def status(self, ask):
        if ask:
            self._call("dropped")
        return {"callbacks": "test", "buffer_count": 8, "buffer_size": 4096}

    def named(self, *names):
        return [call for call in self.calls if call[0] in names]

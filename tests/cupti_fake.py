"""A scripted libcupti, and what receives its buffers."""

import ctypes

from gpusense._decode import decode, layouts

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
        found, tally = decode.batches(buffer, self.strides)
        self.tallies.append(tally)
        for batch in found:
            if batch.kind in layouts.WORK_KINDS:
                for i in range(len(batch.offsets)):
                    self.records.append(decode.record(buffer, batch, i, self.describe))

    def describe(self, pointer):
        text = self.name(pointer).decode("utf-8", "replace")
        self.names.append(pointer)
        return text, None, text

    @property
    def correlations(self):
        return [record.correlation_id for record in self.records]

"""A driver whose streams have times of their own, and a clock that goes on as a test says, and a little with a look."""

import ctypes
import threading
from ctypes import byref, c_uint64, c_void_p

from gpusense._attribution.open_blocks import block_ids, innermost
from gpusense.backends.block_times import marks

BEGIN = 1_000_000_000
#: From the call to where an idle stream comes to an event.
LATENCY = 4_000
LOOK = 100
#: From work to a mark behind it, and from a mark to the work behind it.
MARK = 1_500


class Driver:
    """The scripted driver; its clock is the monotonic one of what is tested."""

    def __init__(self, path, monkeypatch):
        self.library = ctypes.CDLL(str(path))
        for name in ("set_now", "set_latency", "set_mark", "set_look", "work"):
            function = self.library[f"fake_cuda_{name}"]
            function.argtypes = (c_void_p, c_uint64) if name == "work" else (c_uint64,)
            setattr(self, name, function)
        self.look = self.library.fake_cuda_look
        self.look.restype = c_uint64
        self.library.fake_cuda_set_capturing.argtypes = (c_void_p, ctypes.c_int)
        self.library.fake_cuda_set_live(1)
        self.set_latency(LATENCY)
        self.set_mark(MARK)
        self.set_look(LOOK)
        self.at = self.set_now
        self.at(BEGIN)
        monkeypatch.setattr(marks, "monotonic_ns", self.look)
        clock = ctypes.cast(self.library.fake_cuda_clock_gettime, c_void_p).value
        monkeypatch.setattr(marks.executable, "libc_address", lambda name: clock)
        monkeypatch.setattr(marks, "APART_NS", 2.0 * MARK)

    @property
    def now(self):
        self.set_look(0)
        now = self.look()
        self.set_look(LOOK)
        return now

    def later(self, ns):
        self.at(self.now + ns)

    def context(self, device=0):
        """That of the device becomes the current one of this thread."""
        context = c_void_p()
        assert self.library.cuDevicePrimaryCtxRetain(byref(context), device) == 0
        assert self.library.cuCtxPushCurrent_v2(context) == 0
        return context.value

    def leave(self):
        assert self.library.cuCtxPopCurrent_v2(byref(c_void_p())) == 0

    def stream(self):
        made = c_void_p()
        assert self.library.cuStreamCreate(byref(made), 1) == 0
        return made.value

    def capturing(self, stream, on):
        self.library.fake_cuda_set_capturing(stream, int(on))

    def calls(self, name):
        return self.library.fake_cuda_calls(name.encode())

    def fail(self, name, code):
        self.library.fake_cuda_fail(name.encode(), code)

    @property
    def breaks(self):
        return self.library.fake_cuda_capture_breaks()


class Block:
    """As much of a block as is asked for."""

    def __init__(self, times, name):
        self.times, self.name, self.marked, self.thread = times, name, None, threading.get_ident()

    def __enter__(self):
        self.outer, self.block_id = innermost.get(), next(block_ids)
        self.path = (*(self.outer.path if self.outer else ()), self.name)
        innermost.set(self)
        self.times.block_opened(self)
        return self

    def __exit__(self, *_):
        innermost.set(self.outer)
        self.times.block_closed(self)

"""A library that plays NCCL, and the one plugin of this process."""

import ctypes
import os
import time

import pytest

from gpusense.backends.nccl import plugin as plugins
from gpusense.backends.nccl.source import NcclSource

HANDLE, TEXT, NUMBER = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
PROTOTYPES = {
    "fake_init": (HANDLE, NUMBER, ctypes.c_uint64, TEXT, NUMBER, NUMBER, NUMBER),
    "fake_profiler": (TEXT, HANDLE),
    "fake_mask": (NUMBER,),
    "fake_finalize": (None, HANDLE),
    "fake_launch": (HANDLE, HANDLE, NUMBER, TEXT, ctypes.c_uint64, TEXT, ctypes.c_size_t, NUMBER, NUMBER),
    "fake_channel_begins": (HANDLE, HANDLE, HANDLE, NUMBER, ctypes.c_uint64),
    "fake_channel_ends": (None, HANDLE, HANDLE, ctypes.c_uint64),
    "fake_timer": (ctypes.c_uint64,),
    "fake_storm": (None, ctypes.POINTER(HANDLE), NUMBER, NUMBER, NUMBER),
}


class Nccl:
    """The fake's functions, and communicators that outlive a test, as NCCL's may."""

    def __init__(self, path) -> None:
        self.library = ctypes.CDLL(str(path))
        for name, (result, *arguments) in PROTOTYPES.items():
            function = getattr(self.library, name)
            function.restype, function.argtypes = result, arguments
            setattr(self, name[len("fake_") :], function)

    @property
    def timer_ahead_ns(self) -> int:
        return ctypes.c_int64.in_dll(self.library, "fake_timer_ahead").value

    def run(self, communicator, handle, channels, length_ns=1000):
        """The device runs these channels of one, and NCCL's thread tells of it. [(number, start, end)]"""
        spans, begun = [], []
        for number in channels:
            start = self.timer()
            begun.append((self.channel_begins(communicator, handle, number, start), number, start))
        for channel, number, start in begun:
            spans.append((number, start, start + length_ns))
            self.channel_ends(communicator, channel, start + length_ns)
        return spans


@pytest.fixture(scope="module")
def plugin():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(plugins.VARIABLE, "")  # put back at the end, whatever is there then
        made = plugins.install()
        assert isinstance(made, plugins.Plugin), made
        os.environ[plugins.VARIABLE] = plugins.IN_THE_PROCESS  # also where another file's tests have installed it
        yield made


@pytest.fixture
def nccl(plugin, build_library):
    fake = Nccl(build_library("libnccl.c", "libnccl.so.2", "-ldl"))
    plugin.switch(True)
    yield fake
    for later_s in (1000, 1001):  # it gives them up, and then takes them
        plugin.take(time.monotonic_ns() + later_s * 10**9)


@pytest.fixture
def source(plugin, nccl):
    records: list = []
    made = NcclSource(plugin)
    made.start(records.extend)
    made.records = records
    yield made
    made.stop()

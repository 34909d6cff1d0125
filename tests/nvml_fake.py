"""The scripted libnvidia-ml of tests/fakes as an object: ``fake.code("nvmlDeviceGetPowerUsage", 3)``."""

import ctypes
import pathlib

from gpusense._records.protocols import Backend
from gpusense.backends.nvml import source as nvml

EVERYTHING = ("fast", "medium", "slow")


def without_symbols(library: bytes, names: tuple[str, ...]) -> bytes:
    """The same library with some names gone from its dynamic symbol table, the first place a name stands in."""
    for name in names:
        found = b"\0" + name.encode() + b"\0"
        assert found in library, name
        library = library.replace(found, b"\0" + b"X" + name[1:].encode() + b"\0", 1)
    return library


class FakeNvml:
    """One copy of the fake library, loaded in this process; every copy has its own script and counts."""

    def __init__(self, built: pathlib.Path, folder: pathlib.Path, lacks: tuple[str, ...] = ()) -> None:
        """``lacks``: functions that this driver does not export."""
        self.path = str(folder / "libnvidia-ml.so.1")
        pathlib.Path(self.path).write_bytes(without_symbols(built.read_bytes(), lacks))
        self.library = ctypes.CDLL(self.path)
        self.sysfs = folder / "sys"
        self.procfs = folder / "proc"
        for name in ("fake_calls", "fake_all_calls"):
            self.library[name].restype = ctypes.c_long
        self.library.fake_calls.argtypes = (ctypes.c_char_p,)
        self.library.fake_calls.restype = ctypes.c_long
        self.library.fake_all_calls.restype = ctypes.c_long
        self.library.fake_code.argtypes = (ctypes.c_char_p, ctypes.c_int, ctypes.c_long, ctypes.c_int)
        self.library.fake_value.argtypes = (ctypes.c_char_p, ctypes.c_int, ctypes.c_ulonglong)

    def code(self, function: str, code: int, device: int = -1, after: int = 0) -> None:
        """``function`` answers ``code`` once it has succeeded ``after`` more times; "*": every function of a device."""
        self.library.fake_code(function.encode(), device, after, code)

    def value(self, what: str, value: int, device: int = -1) -> None:
        self.library.fake_value(what.encode(), device, value % (1 << 64))

    def slow(self, function: str, milliseconds: int) -> None:
        self.library.fake_slow(function.encode(), milliseconds)

    def devices(self, count: int) -> None:
        self.library.fake_devices(count)

    def name(self, device: int, raw: bytes) -> None:
        self.library.fake_name(device, raw, len(raw))

    def calls(self, function: str | None = None) -> int:
        return self.library.fake_all_calls() if function is None else self.library.fake_calls(function.encode())

    def references(self) -> int:
        return self.library.fake_references()

    def flags(self) -> int:
        return self.library.fake_flags()

    def shut_down(self) -> None:
        """As a rude library in the same process would."""
        self.library.nvmlShutdown()

    def open(self):
        return nvml.open(sysfs=str(self.sysfs), procfs=str(self.procfs))

    def source(self):
        backend = self.open()
        assert isinstance(backend, Backend), backend
        return backend.metrics

    def sample(self, device: int = 0, lanes=EVERYTHING):
        source = self.source()
        return source.sample(source.devices()[device], lanes)

    def pci(self, bus: str, *, status: str = "active", control: str = "auto", power: str = "D0") -> pathlib.Path:
        """A PCI display device of NVIDIA's in this fake's own /sys."""
        folder = self.sysfs / "bus" / "pci" / "devices" / bus
        (folder / "power").mkdir(parents=True, exist_ok=True)
        (folder / "vendor").write_text("0x10de\n")
        (folder / "class").write_text("0x030200\n")
        (folder / "power" / "runtime_status").write_text(status + "\n")
        (folder / "power" / "control").write_text(control + "\n")
        (folder / "power_state").write_text(power + "\n")
        return folder

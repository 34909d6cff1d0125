"""Who uses the device: pids with their memory and share of the SMs, joined to /proc only where the pids are ours."""

import ctypes
import struct
import sys
from typing import Any

from ..._capi import nvml as c
from ..._records.metrics import ProcessUsage
from ..sysfs import process_name, sees_host_pids
from .reader import Reader

_ROOM = 64  # rows at first; grows as the driver asks
_MOST = 1 << 16
_SPARE = 8  # processes may start between asking for the size and reading
_STRIDES = (24, 32, 16)  # v2 and v3, a v3 that some 525 and 535 drivers widened, v1
_UNKNOWN_LAYOUT = "out of range: the driver's process list has a layout we do not know"
_HIGHEST_PID = 1 << 22 if sys.platform == "linux" else 1 << 32

_KINDS = {
    "compute": ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2",
                "nvmlDeviceGetComputeRunningProcesses"),
    "graphics": ("nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v2",
                 "nvmlDeviceGetGraphicsRunningProcesses"),
    "mps": ("nvmlDeviceGetMPSComputeRunningProcesses_v3",),
}  # fmt: skip


class Processes:
    """The processes that use one device, with their memory and shares of it."""

    def __init__(self, reader: Reader, procfs: str) -> None:
        self._reader = reader
        self._procfs = procfs
        self._room = _ROOM
        self._buffer = ctypes.create_string_buffer(32 * _ROOM)
        self._count = ctypes.c_uint()
        self._seen_us = 0
        self._kept: dict[int, int] | None = None  # the last shares
        self._kept_ns = 0

    def read(self, now_ns: int, rest_ns: int) -> tuple[ProcessUsage, ...] | None:
        """One row a process, largest memory first; None with a reason where the driver does not tell of all.

        Shares of the SMs cost 2.6 ms: those not yet ``rest_ns`` old serve again.
        """
        memory: dict[int, int | None] = {}
        for kind, names in _KINDS.items():
            field = "processes" if kind == "compute" else f"~processes_{kind}"
            rows = self._rows(field, names)
            if rows is None and (kind == "compute" or self._reader.supported(field)):
                if (why := self._reader.why(field)) is None or kind != "compute":
                    self._reader.odd("processes", why or _UNKNOWN_LAYOUT)
                return None  # a list that lacks some would say that there are no others
            for pid, used in rows or ():
                known = memory.get(pid)
                memory[pid] = used if known is None else max(known, used or 0)
        if self._kept is None or now_ns - self._kept_ns >= rest_ns:
            self._kept, self._kept_ns = self._shares(), now_ns
        shares = self._kept
        ours = sees_host_pids(self._procfs)
        found = [self._usage(pid, used, shares.get(pid), ours) for pid, used in memory.items()]
        return tuple(sorted(found, key=lambda row: (-(row.memory_used_bytes or 0), row.pid)))

    def _usage(self, pid: int, used: int | None, share: int | None, ours: bool | None) -> ProcessUsage:
        name = process_name(pid, self._procfs) if ours else None
        visible = None if ours is None else ours and name is not None
        return ProcessUsage(pid, used, None if share is None else float(share), name, visible)

    def _rows(self, field: str, names: tuple[str, ...]) -> list[tuple[int, int | None]] | None:
        reader = self._reader
        if reader.why(field) is not None:
            return None
        function = next(filter(None, (getattr(reader.api, name) for name in names)), getattr(reader.api, names[0]))
        for _ in range(4):
            self._count.value = self._room
            ctypes.memset(self._buffer, 0, len(self._buffer))
            code = function(reader.handle, ctypes.byref(self._count), self._buffer)
            if code != c.INSUFFICIENT_SIZE:
                break
            self._grow(self._count.value + _SPARE)
        if code:
            reader.fail(field, code, function.__name__)
            return None
        reader.good += 1
        return self._parse(min(self._count.value, self._room), 16 if function.__name__ == names[-1] else 24)

    def _grow(self, rows: int) -> None:
        self._room = min(max(rows, self._room * 2), _MOST)
        self._buffer = ctypes.create_string_buffer(32 * self._room)

    def _parse(self, count: int, stride: int) -> list[tuple[int, int | None]] | None:
        """Rows at the stride that makes every pid possible; the documented one first."""
        for step in (stride, *(other for other in _STRIDES if other != stride)):
            rows = [struct.unpack_from(c.PROCESS_V1, self._buffer, place * step) for place in range(count)]
            if all(0 < pid < _HIGHEST_PID for pid, _ in rows):
                return [(pid, self._bytes(used)) for pid, used in rows]
        self._reader.out_of_range += 1
        return None

    def _bytes(self, used: int) -> int | None:
        """WDDM and WSL give all bits set: the system, not the driver, owns the memory."""
        return used if used < 1 << 50 else None

    def _shares(self) -> dict[int, int]:
        """pid → newest share of the SMs in percent, for processes that ran since the last call."""
        reader, field = self._reader, "~process_shares"
        call: Any = reader.api.nvmlDeviceGetProcessUtilization
        if reader.why(field) is not None:
            return {}
        size = struct.calcsize(c.PROCESS_SAMPLE)
        room = 256
        buffer = ctypes.create_string_buffer(size * room)
        self._count.value = room
        code = call(reader.handle, buffer, ctypes.byref(self._count), self._seen_us)
        if code == c.INSUFFICIENT_SIZE:
            room = min(self._count.value + _SPARE, _MOST)
            buffer = ctypes.create_string_buffer(size * room)
            self._count.value = room
            code = call(reader.handle, buffer, ctypes.byref(self._count), self._seen_us)
        if code == c.NOT_FOUND:  # nothing ran
            return {}
        if code:
            reader.fail(field, code, call.__name__)
            return {}
        newest: dict[int, tuple[int, int]] = {}
        for place in range(min(self._count.value, room)):
            pid, stamp, share, *_ = struct.unpack_from(c.PROCESS_SAMPLE, buffer, place * size)
            self._seen_us = max(self._seen_us, stamp if stamp < 1 << 62 else 0)
            if share <= 100 and stamp >= newest.get(pid, (0, 0))[0]:
                newest[pid] = stamp, share
        return {pid: share for pid, (_, share) in newest.items()}

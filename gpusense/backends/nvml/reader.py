"""How one lane of one device is read: scratch memory, what failed and for how long, which values can be true."""

import ctypes
import struct
from typing import Any

from ..._capi import nvml as c
from ..._runtime import threads
from .library import DeviceGone, LibraryGone

_LONGEST_BACK_OFF = 64  # ticks
_REFUSED_NS, _LONGEST_DOUBLINGS = 1_000_000_000, 8

#: Field id → (value, bits of the counter's type).
Fields = dict[int, tuple[int | float, int]]


class Reader:
    """One thread at a time. Fields are dotted names; a call that feeds several names them with commas; a name that
    begins with "~" is one of several ways to the same value and is not reported.

    What the library lacks is asked once. A refusal ("not supported") may be that of a mode, or of a driver that still
    starts: it is asked again after 1, 2, 4 … 256 seconds. Anything else is asked again after 1, 2, 4 … 64 ticks.
    """

    def __init__(self, api: Any) -> None:
        self.api = api
        self.lock = threads.lock()
        self.handle: int | None = None
        self._life = (0, 0)
        self.reborn = True  # what the library gave out before is void
        self.parts: dict[str, Any] | None = None  # of the last sample
        self.read_ns = 0  # when that was
        self.rest_ns = 0  # how long a running monitor is content with it
        self.lean = False  # a running monitor asks, which is content with less
        self.version = 0  # changes with what is silent
        self.good = 0  # answers in this sample
        self.transient = 0  # calls that failed in this sample and may work later
        self.out_of_range = 0  # ever
        self._silent: dict[str, str] = {}  # field → reason; not asked while it is here
        self._until: dict[str, int] = {}  # field → tick at which it is asked again
        self._refused: dict[str, int] = {}  # field → when it is asked again
        self._failures: dict[str, int] = {}  # field → in a row
        self._retried: list[str] = []  # asked again in this sample, after a pause
        self._now_ns = 0
        self._odd: dict[str, str] = {}  # reasons of this sample only
        self._reasons: tuple[tuple[str, str], ...] | None = ()
        self._tick = 0
        self._u32, self._u32b, self._u64 = ctypes.c_uint(), ctypes.c_uint(), ctypes.c_ulonglong()
        self._at32, self._at32b = ctypes.byref(self._u32), ctypes.byref(self._u32b)
        self._at64 = ctypes.byref(self._u64)

    def begin(self, handle: int, life: tuple[int, int], now_ns: int) -> None:
        """Starts a sample. What was learned with another handle or in another life is forgotten."""
        self._tick += 1
        self._now_ns = now_ns
        self.good = self.transient = 0
        if self._odd:
            self._odd.clear()
            self._reasons = None
        if handle != self.handle or life != self._life:
            self.reborn = life[0] != self._life[0]
            self.handle, self._life = handle, life
            self.forget()
        elif self._failures:
            self._end_pauses()

    def _end_pauses(self) -> None:
        for field in self._retried:
            if field not in self._silent:
                del self._failures[field]
        self._retried = [name for name, tick in self._until.items() if tick <= self._tick]
        self._retried += [name for name, due_ns in self._refused.items() if due_ns <= self._now_ns]
        for field in self._retried:
            self._until.pop(field, None)
            self._refused.pop(field, None)
            del self._silent[field]
            self.version += 1
            self._reasons = None

    def rests(self, handle: int, life: tuple[int, int], now_ns: int) -> bool:
        """Whether the last sample's groups, with their reasons, still stand."""
        return (
            self.parts is not None
            and now_ns - self.read_ns < self.rest_ns
            and handle == self.handle
            and life == self._life
        )

    def read(self, now_ns: int, gpm: bool = False) -> dict[str, Any]:
        """The groups of a GpuMetrics that this lane knows."""
        raise NotImplementedError

    def forget(self) -> None:
        self._silent.clear()
        self._until.clear()
        self._refused.clear()
        self._failures.clear()
        self._retried = []
        self.parts = None
        self.version += 1
        self._reasons = None

    def reasons(self) -> tuple[tuple[str, str], ...]:
        """(field, reason) of everything without a value; the same object as long as nothing changed."""
        if self._reasons is None:
            both = {**self._silent, **self._odd}
            self._reasons = tuple(
                (name, why) for fields, why in both.items() if fields[0] != "~" for name in fields.split(",")
            )
        return self._reasons

    def why(self, field: str) -> str | None:
        """Why a field has no value; None where it has one, or was not asked."""
        return self._silent.get(field)

    def supported(self, field: str) -> bool:
        """False where the library lacks it or the device refuses it."""
        return field not in self._silent or field in self._until

    def call(self, field: str, function: Any, *arguments: Any) -> bool:
        """Whether the call answered; what it wrote lies where the arguments point."""
        if field in self._silent:
            return False
        code = function(self.handle, *arguments)
        if code:
            self.fail(field, code, function.__name__)
            return False
        self.good += 1
        return True

    def rate(self, field: str, counter: "ByteCounter") -> float | None:
        """Bytes a second since the last call; None with a reason."""
        if field in self._silent:
            return None
        value, why = counter.rate()
        if value is None:
            self.odd(field, why)
        return self.within(field, value, 0, 1e13)

    def u32(self, field: str, function: Any, *arguments: int) -> int | None:
        """The 32-bit number that the call writes; None with the reason."""
        return self._u32.value if self.call(field, function, *arguments, self._at32) else None

    def u64(self, field: str, function: Any, *arguments: int) -> int | None:
        """As :meth:`u32`, of 64 bits."""
        return self._u64.value if self.call(field, function, *arguments, self._at64) else None

    def pair(self, field: str, function: Any) -> tuple[int, int] | None:
        """Both numbers that the call writes."""
        return (self._u32.value, self._u32b.value) if self.call(field, function, self._at32, self._at32b) else None

    def first(self, field: str, function: Any) -> int | None:
        """The first of two values; the second is the driver's averaging window in microseconds."""
        return self._u32.value if self.call(field, function, self._at32, self._at32b) else None

    def four(self, field: str, function: Any) -> tuple[int, int, int, int] | None:
        """All four numbers that the call writes."""
        out = (ctypes.c_uint * 4)()
        if not self.call(field, function, *(ctypes.byref(out, 4 * place) for place in range(4))):
            return None
        return out[0], out[1], out[2], out[3]

    def struct(self, field: str, function: Any, layout: "Packed") -> tuple[Any, ...] | None:
        """The members of a struct the call fills in; a versioned one goes in with its version."""
        layout.reset()
        return layout.members() if self.call(field, function, layout.buffer) else None

    def how_many(self, field: str, function: Any, *arguments: int) -> int | None:
        """What a list call says it would need room for; INSUFFICIENT_SIZE is the answer here, not a failure."""
        if field in self._silent:
            return None
        self._u32.value = 0
        nothing = (None,) * (len(function.argtypes) - len(arguments) - 2)
        code = function(self.handle, *arguments, self._at32, *nothing)
        if code not in (c.SUCCESS, c.INSUFFICIENT_SIZE):
            self.fail(field, code, function.__name__)
            return None
        self.good += 1
        return self._u32.value

    def fail(self, field: str, code: int, call: str) -> None:
        """Files a result code under its class; raises where it ends the whole sample."""
        if code in c.GONE:
            raise DeviceGone(call, code)
        if code in c.LIBRARY_GONE:
            raise LibraryGone(call, code)
        if code in c.ABSENT:
            self._silence(field, f"unsupported: {call}: {c.code_name(code)}")
            return
        earlier = self._failures.get(field, 0)
        self._failures[field] = earlier + 1
        if code in c.REFUSED:
            self._silence(field, f"unsupported: {call}: {c.code_name(code)}")
            self._refused[field] = self._now_ns + (_REFUSED_NS << min(earlier, _LONGEST_DOUBLINGS))
            return
        word = "denied" if code == c.NO_PERMISSION else "stale"
        self.transient += word == "stale"
        pause = _LONGEST_BACK_OFF if word == "denied" else min(1 << earlier, _LONGEST_BACK_OFF)
        self._silence(field, f"{word}: {call}: {c.code_name(code)}")
        self._until[field] = self._tick + pause

    def odd(self, field: str, why: str) -> None:
        """Notes why ``field`` has no value in this sample alone."""
        self._odd[field] = why
        self._reasons = None

    def within(self, field: str, value: float | None, low: float, high: float, scale: float = 1.0) -> float | None:
        """``value × scale``, or None with a reason where ``value`` cannot be true."""
        if value is None:
            return None
        if not low <= value <= high:  # also catches NaN
            self.out_of_range += 1
            self.odd(field, f"out of range: {value}")
            return None
        return value * scale

    def count(self, field: str, value: int | None, high: int = 1 << 62) -> int | None:
        """As :func:`within`, for whole numbers."""
        return None if self.within(field, value, 0, high) is None else value

    def celsius(self, field: str, value: float | None) -> float | None:
        """A temperature. With all 32 bits set, which is -1, drivers say that they do not know."""
        return self.within(field, c.ALL_BITS if value == -1 else value, -60, 200)

    def _silence(self, field: str, why: str) -> None:
        self._silent[field] = why
        self.version += 1
        self._reasons = None


class Packed:
    """A struct as plain memory and a ``struct`` format; 256 spare bytes follow, should a newer driver write more."""

    def __init__(self, layout: str, *start: int) -> None:
        self._struct = struct.Struct(layout)
        self._start = struct.pack(f"<{len(start)}I", *start) if start else b""
        self.buffer = ctypes.create_string_buffer(self._struct.size + 256)

    def reset(self) -> None:
        """What the call reads of it, as at first."""
        ctypes.memmove(self.buffer, self._start, len(self._start))

    def members(self) -> tuple[Any, ...]:
        """What the call wrote."""
        return self._struct.unpack_from(self.buffer)


_ENTRY = struct.Struct(c.FIELD_VALUE)
_VALUES = {kind: struct.Struct(layout) for kind, layout in c.VALUE_FORMATS.items()}


class FieldBatch:
    """Many values in one nvmlDeviceGetFieldValues call; each entry has its own result. Refused ones leave the batch."""

    def __init__(self, wanted: dict[int, tuple[str, int]]) -> None:
        """``wanted``: field id → (dotted name, scope id)."""
        self._wanted = wanted
        self._ids: tuple[int, ...] = ()
        self._template = b""
        self._buffer = ctypes.create_string_buffer(_ENTRY.size * len(wanted))
        self._version = -1  # of what is silent, when the ids were chosen
        self.time_us = 0

    def read(self, reader: Reader) -> Fields:
        """What the driver has of the wanted values now."""
        if self._version != reader.version:
            self._prepare(reader)
        ids = self._ids
        if not ids:
            return {}
        # Entries the driver leaves alone must not show the last sample's value: they start as failed.
        ctypes.memmove(self._buffer, self._template, len(self._template))
        call = reader.api.nvmlDeviceGetFieldValues
        code = call(reader.handle, len(ids), self._buffer)
        if code:
            for i in ids:
                reader.fail(self._wanted[i][0], code, call.__name__)
            return {}
        values: Fields = {}
        for place, wanted in enumerate(ids):
            field, _, stamp, _, kind, result, raw = _ENTRY.unpack_from(self._buffer, place * _ENTRY.size)
            if result:
                reader.fail(self._wanted[wanted][0], result, f"field {wanted}")
            elif kind not in _VALUES or field not in self._wanted:
                reader.out_of_range += 1
                reader.odd(self._wanted[wanted][0], f"out of range: value type {kind}")
            else:
                reader.good += 1
                values[field] = _VALUES[kind].unpack(raw)[0], c.VALUE_BITS.get(kind, 64)
                self.time_us = stamp or self.time_us
        return values

    def _prepare(self, reader: Reader) -> None:
        self._version = reader.version
        self._ids = tuple(i for i, (name, _) in self._wanted.items() if reader.why(name) is None)
        self._template = b"".join(_ENTRY.pack(i, self._wanted[i][1], 0, 0, 0, c.UNKNOWN, b"\0" * 8) for i in self._ids)


class ByteCounter:
    """A counter that wraps, turned into bytes a second between reports.

    ``peak`` is the most the link can carry in bytes a second: where the counter could have wrapped twice between two
    reads nobody knows the difference. What was counted until then is dropped, and counting begins anew with the later.
    """

    def __init__(self, unit: int = 1) -> None:
        self._unit = unit
        self._last: tuple[int, int] | None = None
        self._since_ns = 0
        self._units = 0
        self._unclear: str | None = None
        self.window_s: float | None = None

    def add(self, raw: int, bits: int, now_ns: int, peak: float | None) -> None:
        if self._last is None:
            self._last, self._since_ns = (raw, now_ns), now_ns
            return
        before, then_ns = self._last
        elapsed = (now_ns - then_ns) / 1e9
        self._last = raw, now_ns
        if peak is not None and bits < 64 and elapsed * peak >= (1 << bits) * self._unit:
            self._unclear = f"out of range: the {bits}-bit counter may wrap more than once in {elapsed:.2f} s"
            self._units, self._since_ns = 0, now_ns
        else:
            self._units += (raw - before) % (1 << bits)

    def rate(self) -> tuple[float | None, str]:
        """(bytes a second since the last call, why there are none); ``window_s`` is how long they were counted."""
        if self._last is None:
            return None, "stale: not read yet"
        elapsed = (self._last[1] - self._since_ns) / 1e9
        units, unclear = self._units, self._unclear
        if elapsed <= 0:
            return None, unclear or "stale: a rate needs two samples"
        self._units, self._unclear, self._since_ns = 0, None, self._last[1]
        self.window_s = elapsed
        return units * self._unit / elapsed, ""

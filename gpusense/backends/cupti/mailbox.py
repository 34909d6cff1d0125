"""CUPTI's buffer callbacks: machine code where it can be mapped, ctypes callbacks with the reason where it cannot.

A Python callback needs the GIL, and a library that calls it under a lock of its own hangs with a thread that waits for
that lock and holds the GIL. The machine code (``_capi/machine``) waits for nothing and outlives the interpreter:
CUPTI may hold a buffer, or the callbacks' addresses, until the process ends, so everything given to it is mapped with
libc and never unmapped. There is one mailbox in use a process.
"""

import ctypes
import sys
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ..._capi.machine import executable
from ..._capi.machine import mailbox_code as code
from ..._capi.machine import mailbox_layout as layout
from ..._runtime import threads

PAGE = executable.PAGE

_MAP_NORESERVE = 0x4000
_MADV_DONTNEED, _MADV_WIPEONFORK, _MADV_POPULATE_WRITE = 4, 18, 23

REQUEST = ctypes.CFUNCTYPE(
    None, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t)
)
COMPLETE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)

Full = tuple[int, int, int]

#: What :attr:`Mailbox.newest` adds where ids may be missing.
MISSING = 1 << 32


class MailboxCounters(NamedTuple):
    """Totals since a mailbox was made."""

    requested: int  # calls of CUPTI for a buffer
    completed: int  # calls of CUPTI with one
    missed: int  # requests that found none free: records were lost
    foreign: int  # completed pointers that we had not lent: another tool's, left alone


class Mailbox:
    """Buffers on their way between CUPTI and one reader. ``mode`` is "memfd", "mprotect" or "ctypes".

    ``requested`` and ``completed`` are the addresses for ``cuptiActivityRegisterCallbacks``. ``reason`` says why a
    better mode was not possible, "" where there is none. Raises ``OSError`` where not even the buffers can be had.

    ``take()`` gives (address, valid bytes, ``threading.get_ident()`` of the thread that asked for the buffer) or None;
    ``give(address)`` makes a taken buffer free. Both are for one reader at a time.

    ``newest()``, where there is machine code for it, is the newest correlation id (32 bits, 0 before the first) among
    all records that CUPTI has begun to write into these buffers, by any thread's launches that have returned;
    :data:`MISSING` and more where ids may be missing. Needs :meth:`know`. Any thread; some 0.2 µs.
    """

    mode: str
    reason: str
    requested: int
    completed: int
    take: Callable[[], Full | None]
    give: Callable[[int], None]
    newest: Callable[[], int] | None = None

    def __init__(
        self, count: int = 128, size: int = 256 << 10, *, scrap: int = 0, modes: tuple[str, ...] = executable.MODES
    ) -> None:
        """``count`` buffers of ``size`` bytes (rounded up to a power of two, fewer where memory is short).

        ``scrap`` more are lent, and what they get is lost, where CUPTI cannot bear a refusal.
        """
        self.buffer_size = 1 << max(int(size - 1).bit_length(), 12)
        self._libc = executable.libc()
        self.arena, self.count = self._map_arena(min(max(count, 1), layout.MAX_SLOTS - scrap), scrap)
        self.scrap = scrap
        self.wiped_on_fork = self._wipe_on_fork(self.arena, (self.count + scrap) * self.buffer_size)
        self.mode, self.reason = "ctypes", ""
        native = executable.native(code.CODES)
        if native is None:
            self.reason = "no machine code for this processor and system"
        elif self._map_code(native, modes):
            return
        self._use_ctypes()

    def _map_arena(self, count: int, scrap: int) -> tuple[int, int]:
        try:
            return executable.map_memory((count + scrap) * self.buffer_size, _MAP_NORESERVE), count
        except OSError:
            if count < 4:
                raise
            return self._map_arena(count // 2, scrap)

    def _wipe_on_fork(self, address: int, size: int) -> bool:
        return bool(self._libc.madvise(address, size, _MADV_WIPEONFORK) == 0)

    # --- machine code ---

    def _map_code(self, native: executable.Code, modes: tuple[str, ...]) -> bool:
        self._control = executable.map_memory(layout.CONTROL_BYTES)
        self._wipe_on_fork(self._control, layout.CONTROL_BYTES)
        try:
            base, self.mode, self.reason = executable.map_first(
                self._control.to_bytes(8, sys.byteorder) + native.machine[8:], modes
            )
        except OSError as error:
            self.reason = str(error)
            return False
        self._bind_code({name: base + place for name, place in native.entries.items()})
        return True

    def _bind_code(self, entries: dict[str, int]) -> None:
        self.requested, self.completed = entries["requested"], entries["completed"]
        take = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(entries["take"])
        give = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(entries["give"])
        words = (ctypes.c_uint64 * (layout.CONTROL_BYTES // 8)).from_address(self._control)
        total = self.count + self.scrap
        words[layout.SHIFT // 8] = self.buffer_size.bit_length() - 1
        words[layout.SIZE // 8] = self.buffer_size
        words[layout.ARENA // 8] = self.arena
        words[layout.ARENA_BYTES // 8] = total * self.buffer_size
        for slot in range(total):
            words[layout.STATE // 8 + slot] = layout.FREE
        # The first page faults then do not fall into a kernel launch. Old kernels refuse, which costs only that.
        self._libc.madvise(self.arena, min(total, 4) * self.buffer_size, _MADV_POPULATE_WRITE)
        words[layout.NEWEST // 8] = layout.UNSET
        words[layout.TOTAL // 8] = total
        words[layout.SLOTS // 8] = self.count
        self._words = words
        if "newest" in entries:
            self.newest = ctypes.PYFUNCTYPE(ctypes.c_uint64)(entries["newest"])
        distance = executable.thread_distance(entries["thread"])
        out = (ctypes.c_uint64 * 3)()
        place = ctypes.addressof(out)

        def take_full() -> Full | None:
            return (out[0], out[1], out[2] + distance) if take(place) else None

        def give_back(address: int) -> None:
            give(address)

        self.take, self.give = take_full, give_back

    # --- ctypes ---

    def _use_ctypes(self) -> None:
        """Python callbacks that append to a deque and return; they can hang with a library that locks around them."""
        size, first, last = self.buffer_size, self.arena, self.arena + self.count * self.buffer_size
        free = deque(range(first, last, size))
        scrap = deque(range(last, last + self.scrap * size, size))
        lent: dict[int, int] = {}
        full: deque[Full] = deque()
        counts = self._counts = [0, 0, 0, 0]

        get_ident = threads.thread_id()

        def requested(buffer: Any, length: Any, records: Any) -> None:
            counts[0] += 1
            records[0] = 0
            try:
                address = free.popleft()
            except IndexError:
                counts[2] += 1
                address = scrap[0] if scrap else 0
                scrap.rotate(-1)
            lent[address] = get_ident()
            buffer[0] = address or None
            length[0] = size if address else 0

        def completed(_context: Any, _stream: int, buffer: int | None, _size: int, valid: int) -> None:
            counts[1] += 1
            thread = lent.pop(buffer or 0, None)
            if thread is None:
                counts[3] += 1
            elif buffer is not None and buffer < last:
                full.append((buffer, min(valid, size), thread))

        def take() -> Full | None:
            return full.popleft() if full else None

        callbacks = REQUEST(requested), COMPLETE(completed)
        for callback in callbacks:
            # Immortal like the buffers: CUPTI may call when nothing in Python refers to them any more.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(callback))
        self.requested, self.completed = (ctypes.cast(callback, ctypes.c_void_p).value or 0 for callback in callbacks)
        self.take, self.give = take, free.append
        self._free, self._lent, self._full = free, lent, full

    # --- newest id ---

    def know(self, kinds: Mapping[int, tuple[int, int]]) -> None:
        """Of each record kind that may come, its size and where in it the correlation id is, 0 for none."""
        if self.newest is not None:
            for kind, (size, place) in kinds.items():
                if 0 <= kind < layout.MAX_KINDS:
                    self._words[layout.KINDS // 8 + kind] = place << 32 | size

    def forget_newest(self) -> None:
        """The ids begin anew."""
        if self.newest is not None:
            self._words[layout.NEWEST // 8] = layout.UNSET

    def follow(self, other: "Mailbox") -> None:
        """Takes the place of ``other``, whose ``newest()`` says from now on that ids may be missing."""
        if self.newest is not None and other.newest is not None:
            for place in range(layout.KINDS // 8, layout.KINDS // 8 + layout.MAX_KINDS):
                self._words[place] = other._words[place]
            self._words[layout.NEWEST // 8] = other._words[layout.NEWEST // 8]
            other._words[layout.BLIND // 8] = 1

    # --- what is known ---

    def holds(self, address: int) -> bool:
        """Whether a buffer is one of these."""
        return self.arena <= address < self.arena + (self.count + self.scrap) * self.buffer_size

    def lent(self) -> tuple[int, int]:
        """Buffers that CUPTI has, and those that are not with the reader: what there is to lend."""
        if self.mode == "ctypes":
            lent = len([address for address in list(self._lent) if self.arena <= address < self._first_scrap])
            return lent, lent + len(self._free) + len(self._full)
        states = self._states()
        return states.count(layout.LENT), self.count - states.count(layout.TAKEN)

    def in_use(self) -> int:
        """Buffers that CUPTI has, and those it has returned."""
        if self.mode == "ctypes":
            return self.lent()[0] + len(self._full)
        states = self._states()
        return states.count(layout.LENT) + states.count(layout.FULL)

    def _states(self) -> list[int]:
        first = layout.STATE // 8
        return list(self._words[first : first + self.count])

    @property
    def _first_scrap(self) -> int:
        return self.arena + self.count * self.buffer_size

    def retire(self) -> None:
        """Another takes its place: what the reader has not seen stays, the rest takes no memory. It is still mapped,
        since CUPTI may write there."""
        if self.mode == "ctypes":
            kept = {full[0] for full in list(self._full)}
            idle = [at for at in range(self.arena, self._first_scrap, self.buffer_size) if at not in kept]
        else:
            states = enumerate(self._states())
            idle = [self.arena + i * self.buffer_size for i, state in states if state in (layout.FREE, layout.LENT)]
        for address in idle:
            self._libc.madvise(address, self.buffer_size, _MADV_DONTNEED)  # none is lent again

    def discard(self, address: int) -> None:
        """Gives the memory of a taken buffer back to the system until it is filled again. Where the program has locked
        its memory, that is refused: then it is clean at least."""
        if self._libc.madvise(address, self.buffer_size, _MADV_DONTNEED) != 0:
            ctypes.memset(address, 0, self.buffer_size)
        if self.mode != "ctypes":
            self._words[layout.VALID // 8 + (address - self.arena) // self.buffer_size] = 0  # it is clean already

    def counters(self) -> MailboxCounters:
        """Totals since the mailbox was made."""
        if self.mode == "ctypes":
            return MailboxCounters(*self._counts)
        words = self._words
        return MailboxCounters(
            *(words[offset // 8] for offset in (layout.REQUESTED, layout.COMPLETED, layout.MISSED, layout.FOREIGN))
        )

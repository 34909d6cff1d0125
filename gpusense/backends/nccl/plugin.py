"""The profiler that NCCL finds in this process, and its table.

NCCL looks for a profiler when the first communicator is made. With ``NCCL_PROFILER_PLUGIN=STATIC_PLUGIN`` it takes one
whose symbols are in the process: here those of a library of variables that exists in memory only, which hold the
addresses of machine code (:mod:`~gpusense._capi.machine.nccl_code`). NCCL keeps these addresses, so nothing of it is
ever taken out; :meth:`Plugin.switch` has NCCL call nothing.
"""

import ctypes
import os
import platform
import struct
import sys
from typing import Any, NamedTuple

from ..._capi.machine import executable, shared_object
from ..._capi.machine import nccl_code as code
from ..._records.records import Unavailable
from ..._runtime import threads
from . import events

VARIABLE = "NCCL_PROFILER_PLUGIN"
IN_THE_PROCESS = "STATIC_PLUGIN"
VERSIONS = (2, 3, 4, 5, 6)
SLOTS, ROWS = 2048, 512
EVENTS = code.EVENT_COLLECTIVE | code.EVENT_POINT_TO_POINT | code.EVENT_CHANNEL
#: A launch whose channels NCCL has told nothing of for so long is given up where later ones of its communicator ended.
PATIENCE_NS = 10_000_000_000
#: Where more slots are in use, the oldest whose channels NCCL has told nothing of are given up, so that what follows
#: has room: a communicator whose collectives have no channels would hold all of them otherwise.
CROWD = SLOTS // 2
#: From then on no channel begins in it, and so long a thread may need that was just about to begin one.
PARTING_NS = 50_000_000
#: After the last end that was told, where fewer channels began than NCCL said at first.
SETTLED_NS = 100_000_000

_lock = threads.lock()
_plugin: "Plugin | None" = None


class Communicator(NamedTuple):
    """One rank of a communicator in this process. Before version 4 NCCL tells version and life alone."""

    row: int  # its address: what slots refer to
    version: int  # of the interface
    id: int
    name: str
    nodes: int
    ranks: int
    rank: int
    destroyed: bool


class Slot(NamedTuple):
    """What the table has of one collective, send or receive."""

    ticket: int  # counts them all, in the order of their launches
    row: int  # of its communicator; 0 where there was no room for one
    begun_ns: int  # host, CLOCK_MONOTONIC
    ended_ns: int  # 0: the host is still launching it
    channels_begun: int
    channels_ended: int
    thread: int  # that launched it, as Python numbers threads
    first_ns: int  # device: start of the channel that was told first
    first_seen_ns: int  # host: when that was; 0: no channel has begun
    last_seen_ns: int  # host: when the last end was told
    event: bytes
    channels: tuple[tuple[int, int, int], ...] = ()  # (number, start, end) by the device, 0 where it is not known
    why: str = ""  # of one that was given up


_HEAD = struct.Struct("<QQQQQQQIIQQQQQQ")  # from STATE to LAST_SEEN
_TIMES = struct.Struct("<QQ")  # of a channel


class Plugin:
    """One a process, for as long as that lives. Its methods are for one thread at a time."""

    def __init__(self, native: executable.Code, image: bytes) -> None:
        self._control = executable.map_memory(executable.PAGE)
        self._table = executable.map_memory(SLOTS * code.SLOT_BYTES)
        self._slots = memoryview((ctypes.c_char * (SLOTS * code.SLOT_BYTES)).from_address(self._table)).cast("B")
        self._rows = executable.map_memory(ROWS * code.ROW_BYTES)
        self._words = (ctypes.c_uint64 * (code.CONTROL_BYTES // 8)).from_address(self._control)
        self._communicators: dict[int, Communicator] = {}  # as they were when it was last looked, by their rows
        self._open: list[int] = []  # tickets whose slots are to be looked at
        self._parting: dict[int, tuple[int, str]] = {}  # those that are given up: since when, and why
        self._known = SLOTS  # tickets that were given before; none is 0
        for place, value in (
            (code.ASKED, SLOTS),
            (code.TABLE, self._table),
            (code.SLOT_MASK, SLOTS - 1),
            (code.EVENTS, EVENTS),
            (code.ROWS, self._rows),
            (code.ROW_COUNT, ROWS),
            (code.CLOCK, executable.libc_address("clock_gettime")),
        ):
            self._words[place // 8] = value
        base = executable.map_first(code.image(native, self._control)).address
        self._distance = executable.thread_distance(base + native.entries["thread"])
        self._name = ctypes.create_string_buffer(b"gpusense")
        self._library = _load(image)
        functions = [base + native.entries[name] for name in ("start", "stop", "state", "finalize")]
        for version in VERSIONS:
            members = (ctypes.c_uint64 * 6).in_dll(self._library, f"ncclProfiler_v{version}")
            members[:] = [ctypes.addressof(self._name), base + native.entries[f"init{version}"], *functions]

    def switch(self, on: bool) -> None:
        """Whether NCCL calls for what it launches from now on. For all communicators, those of later included."""
        self._words[code.EVENTS // 8] = EVENTS if on else 0
        switch = self._words[code.SWITCH // 8]
        if switch:
            ctypes.c_int.from_address(switch).value = EVENTS if on else 0

    @property
    def used(self) -> bool:
        """Whether NCCL has found it: a communicator was made."""
        return bool(self._words[code.SWITCH // 8])

    @property
    def lost(self) -> int:
        """Collectives, sends and receives for which there was no room."""
        return int(self._words[code.LOST // 8])

    @property
    def late(self) -> int:
        """Channels that began after their collective was given up."""
        return int(self._words[code.LATE // 8])

    def communicators(self) -> dict[int, Communicator]:
        """All there were, by the addresses of their rows. Any thread may ask."""
        found = {}
        for number in range(min(self._words[code.COMMUNICATORS // 8], ROWS)):
            row = self._rows + number * code.ROW_BYTES
            state = ctypes.c_uint64.from_address(row).value
            if not state:  # it is being made
                continue
            known = self._communicators.get(row)
            if known is None or known.destroyed != (state == 2):
                known = self._communicators[row] = _communicator(row, state)
            found[row] = known
        return found

    @property
    def unnamed(self) -> int:
        """Communicators for which there was no row: of their collectives nobody can say which they are of."""
        return max(0, int(self._words[code.COMMUNICATORS // 8]) - ROWS)

    def take(self, now_ns: int) -> list[Slot]:
        """Those that have ended, and those of whose channels NCCL tells nothing, in the order of their launches.
        ``now_ns``: CLOCK_MONOTONIC."""
        slots = self.pending()
        if not slots:
            return []
        communicators = self.communicators()
        whole = {slot.ticket for slot in slots if _is_whole(slot, communicators.get(slot.row), now_ns)}
        self._give_up(slots, communicators, whole, now_ns)
        taken = []
        for slot in slots:
            since_ns, why = self._parting.get(slot.ticket, (now_ns, ""))
            if slot.ticket in whole or now_ns - since_ns >= PARTING_NS:
                taken.append(Slot(*slot[:-2], self.channels(slot), why))
                ctypes.memset(self._table + self._place(slot.ticket) + 8, 0, code.SLOT_BYTES - 8)
                self._set(slot.ticket, code.FREE)  # after all else
                self._parting.pop(slot.ticket, None)
        gone = {slot.ticket for slot in taken}
        self._open = [ticket for ticket in self._open if ticket not in gone]
        return taken

    def _give_up(self, slots: list[Slot], communicators: dict[int, Communicator], whole: set[int], now_ns: int) -> None:
        """No channel begins any more in those of which NCCL has told none, and will tell none as it seems."""
        newest = {slot.row: slot.ticket for slot in slots if slot.ticket in whole}
        crowd = len(slots) - len(whole) - CROWD
        for slot in slots:
            if not slot.ended_ns or slot.ticket in whole:
                continue
            if slot.channels_begun:
                if self._parting.pop(slot.ticket, None):  # one has begun at the last moment
                    self._set(slot.ticket, code.LAUNCHED)
                continue
            of = communicators.get(slot.row)
            passed = slot.ticket < newest.get(slot.row, 0) or (of is not None and of.destroyed)
            crowd -= 1
            if slot.ticket in self._parting or not (crowd >= 0 or (passed and now_ns - slot.ended_ns > PATIENCE_NS)):
                continue
            why = "NCCL told of no channels" if passed else "given up for others to have room"
            self._parting[slot.ticket] = now_ns, why
            self._set(slot.ticket, code.GIVEN_UP)

    def _set(self, ticket: int, state: int) -> None:
        ctypes.c_uint64.from_address(self._table + self._place(ticket)).value = state

    @property
    def under_way(self) -> int:
        """How many were not taken when it was last looked."""
        return len(self._open)

    def pending(self) -> list[Slot]:
        """Those that have begun and were not taken yet, in the order of their launches; without their channels."""
        asked = self._words[code.ASKED // 8]
        if asked - self._known <= SLOTS:
            self._open += range(self._known, asked)
            self._known = asked
        else:  # a launch asks again where it finds a slot in use: there may be far more tickets than slots
            self._look_at_all(asked)
        found, still = [], []
        for ticket in self._open:
            slot = self._slot(ticket)
            if slot.ticket in (0, ticket):  # 0: it is being filled in; another's: there was no room
                still.append(ticket)
                if slot.ticket and slot.begun_ns:
                    found.append(slot)
        self._open = still
        return found

    def _look_at_all(self, asked: int) -> None:
        """Which tickets have got a slot; some may be about to write theirs into it, and it is looked again."""
        raw = [struct.unpack_from("<QQ", self._slots, self._place(number)) for number in range(SLOTS)]
        self._open = sorted({*self._open, *(ticket for _, ticket in raw if ticket >= self._known)})
        if all(ticket for state, ticket in raw if state):
            self._known = asked

    def channels(self, slot: Slot) -> tuple[tuple[int, int, int], ...]:
        """(number, start, end) of a pending one's channels that have begun; 0 where a time is not known."""
        found: list[tuple[int, int, int]] = []
        at = self._place(slot.ticket) + code.CHANNELS
        for number in range(code.CHANNEL_COUNT if slot.channels_begun else 0):
            start, end = _TIMES.unpack_from(self._slots, at + number * _TIMES.size)
            if start or end:
                found.append((number, start, end))
                if len(found) == slot.channels_begun:  # fewer where a replayed graph had some of them again
                    break
        return tuple(found)

    def _slot(self, ticket: int) -> Slot:
        at = self._place(ticket)
        _, mine, row, s0, n0, s1, n1, begun, ended, thread, first, s2, n2, s3, n3 = _HEAD.unpack_from(self._slots, at)
        event = bytes(self._slots[at + code.EVENT : at + code.EVENT + code.EVENT_BYTES])
        times = (s0 * 10**9 + n0, s1 * 10**9 + n1, s2 * 10**9 + n2, s3 * 10**9 + n3)
        return Slot(
            *(mine, row, times[0], times[1], begun, ended, thread + self._distance, first, times[2], times[3], event)
        )

    def _place(self, ticket: int) -> int:
        """Where its slot begins in the table."""
        return ticket % SLOTS * code.SLOT_BYTES


def install() -> "Plugin | Unavailable":
    """The plugin of this process, made now if it is not there: in time for every communicator that is made later.

    Where the user has chosen a profiler it is left alone.
    """
    global _plugin
    with _lock:
        if _plugin is None:
            made = _make()
            if not isinstance(made, Plugin):
                return made
            _plugin = made
        return _plugin


def why_not() -> Unavailable | None:
    """Why NCCL will tell this process nothing through gpusense; None where nothing is in the way. Changes nothing."""
    if _plugin is not None:
        return None
    chosen = os.environ.get(VARIABLE, "")
    if chosen not in ("", IN_THE_PROCESS):  # the latter stands here if a parent has set it, too
        return Unavailable("nccl", f"{VARIABLE} names another profiler, {chosen}, which stays", f"unset {VARIABLE}")
    if any(_is_defined(f"ncclProfiler_v{version}") for version in range(1, 10)):
        return Unavailable("nccl", "another profiler for NCCL is in the process")
    found = _installed() if not chosen else None
    if found is not None:
        return Unavailable("nccl", f"NCCL takes the profiler {found}, which stays", f"{VARIABLE}={IN_THE_PROCESS}")
    if executable.native(code.CODES) is None:
        return Unavailable("nccl", f"no code for {sys.platform} on {platform.machine()}")
    return None


def _installed() -> str | None:
    """The profiler that NCCL finds by its name where no variable names one."""
    folders = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    for folder in (*folders, "/usr/local/lib", "/usr/lib64", "/usr/lib", f"/usr/lib/{platform.machine()}-linux-gnu"):
        path = os.path.join(folder, "libnccl-profiler.so")
        if os.path.exists(path):
            return path
    return None


def _make() -> "Plugin | Unavailable":
    absent = why_not()
    if absent is not None:
        return absent
    native = executable.native(code.CODES)
    image = native and shared_object.data_object(os.uname().machine, [f"ncclProfiler_v{n}" for n in VERSIONS], 48)
    if native is None or image is None:
        return Unavailable("nccl", f"no code for {platform.machine()}")
    try:
        made = Plugin(native, image)
    except (OSError, AttributeError) as error:
        return Unavailable("nccl", str(error))
    os.environ[VARIABLE] = IN_THE_PROCESS
    return made


def _load(image: bytes) -> Any:
    file = os.memfd_create("gpusense-nccl", os.MFD_CLOEXEC)
    try:
        os.write(file, image)
        return ctypes.CDLL(f"/proc/self/fd/{file}", ctypes.RTLD_GLOBAL)
    finally:
        os.close(file)


def _is_defined(name: str) -> bool:
    try:
        ctypes.CDLL(None)[name]
    except AttributeError:
        return False
    return True


def _communicator(row: int, state: int) -> Communicator:
    raw = ctypes.string_at(row, code.ROW_BYTES)
    identity, version, nodes, ranks, rank = struct.unpack_from("<8xQIIII", raw)
    if version < events.TELLS_RANKS:  # what stands there was in registers by chance
        nodes = ranks = rank = 0
    name = raw[code.ROW_NAME :].split(b"\0", 1)[0].decode("utf-8", "replace")
    return Communicator(row, version, identity, name, nodes, ranks, rank, state == 2)


def _is_whole(slot: Slot, communicator: Communicator | None, now_ns: int) -> bool:
    """Whether nothing more will be told of it. The proxy sees one channel end before it has seen another begin."""
    if communicator is not None and communicator.version < events.TELLS_CHANNELS:
        return bool(slot.ended_ns)
    if not slot.ended_ns or not slot.channels_begun or slot.channels_ended != slot.channels_begun:
        return False
    expected = events.channels(slot.event, communicator.version if communicator else events.NEWEST)
    # 0: of collectives by the network (CollNet) it says nothing of channels beforehand, and tells of them nevertheless.
    return slot.channels_begun >= expected > 0 or now_ns - slot.last_seen_ns > SETTLED_NS

"""Notes from which lines of the program synchronising calls are made, while capture runs with that kind.

That needs CUPTI's one subscription of the process, which other profilers want, too: it is held from
:meth:`LineLog.begin` to :meth:`LineLog.end`. Where another holds it nothing is noted, and :attr:`LineLog.reason` says
so. What CUPTI calls is machine code (``code.py``); here its ring is read.
"""

import ctypes
import os
from collections.abc import Callable
from time import monotonic, sleep
from typing import Any

from ...._aggregation.wait_lines import Files, line_text
from ...._capi import cupti_waits
from ...._capi.machine import executable
from ...._runtime import process
from ...._runtime.errors import GpuSenseError
from . import code

ROOM = 1 << 18  # numbers: 3,000 calls from deep within libraries, 50,000 from the program itself
PURPOSE = "the lines of synchronising calls"
LEAVE_WAIT_S = 0.2  # for calls that are being noted when that ends
MAX_CODES = MAX_STACKS = 20_000

_MADV_WIPEONFORK = 18


class _Machine:
    """Code, control block and ring: one of each a process, mapped at the first use and never unmapped."""

    def __init__(self) -> None:
        native = executable.native(code.CODES)
        if native is None:
            raise OSError("there is no machine code for this system")
        self.function = executable.map_first(native.machine).address
        self.control = executable.map_memory(executable.PAGE)
        ring = executable.map_memory(ROOM * 8)
        # A forked child gets zeros: not armed.
        executable.libc().madvise(self.control, executable.PAGE, _MADV_WIPEONFORK)
        words = self.words = (ctypes.c_uint64 * (code.CONTROL_BYTES // 8)).from_address(self.control)
        self.ring = (ctypes.c_uint64 * ROOM).from_address(ring)
        python = ctypes.PyDLL(None)
        for at, name in enumerate(code.PYTHON_FUNCTIONS, code.FUNCTIONS // 8):
            words[at] = ctypes.cast(python[name], ctypes.c_void_p).value or 0
        self.release = python["Py_DecRef"]
        self.release.restype, self.release.argtypes = None, (ctypes.c_void_p,)
        interpreter = python["PyInterpreterState_Get"]
        interpreter.restype = ctypes.c_void_p
        words[code.INTERPRETER // 8] = interpreter()
        words[code.RING // 8], words[code.ROOM // 8] = ring, ROOM


class LineLog:
    """The lines of one capture. gpusense's own threads call; one of them at a time reads."""

    _machine: _Machine | None = None
    _impossible = ""  # why there is no machine code, once that has been tried
    _owner: "LineLog | None" = None  # the one that notes, or was the last to do so

    def __init__(self, activity: Any, packages: tuple[str, ...] = ()) -> None:
        self._activity = activity
        self._files = Files(packages)
        self._unsubscribe: Callable[[], Any] | None = None
        self._codes: dict[
            int, tuple[Any, bool]
        ] = {}  # code objects by address, kept alive; whether the walk ends there
        self._stacks: dict[tuple[int, ...], str] = {}  # line by the frames of a row
        self._before: dict[str, int] = {}
        self._pid = os.getpid()
        self._exiting = False
        self.reason = "not begun"
        self.without_frame = 0
        process.register(self)

    @property
    def running(self) -> bool:
        return self._unsubscribe is not None

    def begin(self) -> bool:
        """From now on lines are noted; where not, :attr:`reason` says why. Takes the one subscriber of the process."""
        if self.running:
            return True
        if self._exiting:
            return False
        machine = self._prepare()
        if machine is None:
            return False
        words = machine.words
        words[code.LAST // 8] = 0
        words[code.ARMED // 8] = 1
        try:
            subscribe = self._activity.subscribe
            self._unsubscribe = subscribe(machine.function, machine.control, cupti_waits.CALLS, PURPOSE, some=True)
            self.reason = ""
        except GpuSenseError as error:
            self._disarm()
            self.reason = str(error)
        return self.running

    def _prepare(self) -> _Machine | None:
        owner = LineLog._owner
        if owner is not None and owner is not self and owner.running:
            self.reason = "another tracer of this process notes lines"
            return None
        if LineLog._machine is None and not LineLog._impossible:
            try:
                LineLog._machine = _Machine()
            except (OSError, AttributeError) as error:
                LineLog._impossible = f"lines that wait are recorded by machine code, not possible here: {error}"
        machine = LineLog._machine
        if machine is None:
            self.reason = LineLog._impossible
        elif owner is not self:
            LineLog._owner = self
            self._forget_codes(machine)
            self.take()  # what the one before left
            self.without_frame, self._before = 0, self._counts()
        return machine

    def hold(self, wanted: bool) -> None:
        """Nothing is noted for now, or again; the subscription stays."""
        machine = LineLog._machine
        if self.running and machine is not None:
            machine.words[code.ARMED // 8] = 0 if wanted or self._exiting else 1

    def end(self, reason: str = "ended") -> None:
        """Nothing is noted any more, and the subscription is free. What was noted can still be taken."""
        unsubscribe, self._unsubscribe = self._unsubscribe, None
        if unsubscribe is None or self._pid != os.getpid():
            return
        self._disarm()
        self.reason = reason
        unsubscribe()

    def _disarm(self) -> None:
        """Returns once no thread is in the machine code any more, which each leaves as soon as it gets the GIL."""
        machine = LineLog._machine
        if machine is None:
            return
        machine.words[code.ARMED // 8] = 0
        deadline = monotonic() + LEAVE_WAIT_S
        sleep(0)  # gives up the GIL, so that the store is seen before the count is looked at
        while machine.words[code.INSIDE // 8] and monotonic() < deadline:
            sleep(0.001)

    def take(self) -> list[tuple[int, str]]:
        """(correlation id, line) of each call since the last time, in the order in which they were made."""
        machine = LineLog._machine
        if machine is None or LineLog._owner is not self:
            return []
        words, ring = machine.words, machine.ring
        head, tail = int(words[code.HEAD // 8]), int(words[code.TAIL // 8])
        if head == tail:
            return []
        begin, stop = tail % ROOM, head % ROOM
        numbers = ring[begin:stop] if begin < stop else ring[begin:] + ring[:stop]
        words[code.TAIL // 8] = head
        return self._rows(machine, numbers)

    def _rows(self, machine: _Machine, numbers: list[int]) -> list[tuple[int, str]]:
        found: list[tuple[int, str]] = []
        release, stacks, at = machine.release, self._stacks, 0
        while at < len(numbers):
            count, correlation = numbers[at] >> 32, numbers[at] & 0xFFFFFFFF
            stack = tuple(numbers[at + 1 : at + 1 + 2 * count])
            at += 1 + 2 * count
            text = stacks.get(stack)
            if text is None and stack:
                text = self._text(machine, stack)
                stacks[stack] = text
            for pointer in stack[::2]:
                release(pointer)  # what the machine code held; what the answer rests on is in _codes
            if text is None:
                self.without_frame += 1
            else:
                found.append((correlation, text))
        return found

    def _text(self, machine: _Machine, stack: tuple[int, ...]) -> str:
        """The innermost frame of the program; where all are of libraries, the innermost."""
        if len(self._stacks) >= MAX_STACKS or len(self._codes) >= MAX_CODES:
            self._forget_codes(machine)
        for pointer, line in zip(stack[::2], stack[1::2], strict=True):
            found, programs = self._codes.get(pointer) or self._learn(machine, pointer)
            if programs:
                return line_text(found, line, self._files)
        return line_text(self._codes[stack[0]][0], stack[1], self._files)

    def _learn(self, machine: _Machine, pointer: int) -> tuple[Any, bool]:
        """The code object at an address that the ring holds a reference of, and whether the walk ends there."""
        found = ctypes.cast(pointer, ctypes.py_object).value
        programs = self._files.is_programs(found.co_filename)
        self._codes[pointer] = (found, programs)
        if programs:
            machine.words[code.STOPS // 8 + (pointer >> code.STOP_SHIFT) % code.STOP_COUNT] = pointer
        return found, programs

    def _forget_codes(self, machine: _Machine) -> None:
        for at in range(code.STOPS // 8, code.CONTROL_BYTES // 8):
            machine.words[at] = 0  # first: an address may come to be another code object's
        self._stacks.clear()
        self._codes.clear()

    def _counts(self) -> dict[str, int]:
        machine = LineLog._machine
        places = {"noted": code.NOTED, "lost": code.LOST, "foreign": code.FOREIGN}
        return {name: int(machine.words[at // 8]) if machine is not None else 0 for name, at in places.items()}

    def status(self) -> dict[str, Any]:
        """``running``, and why not; calls ``noted``, ``lost`` for want of room, ``foreign`` (of threads without
        Python), ``without_frame`` (of threads in which no Python code runs)."""
        counts = {name: count - self._before.get(name, 0) for name, count in self._counts().items()}
        return {"running": self.running, "reason": self.reason, **counts, "without_frame": self.without_frame}

    def after_fork_in_child(self) -> None:
        """No call to CUPTI, which does not work there."""
        if LineLog._machine is not None:
            LineLog._machine.words[code.ARMED // 8] = 0
        self._unsubscribe, self.reason = None, "this process was forked from one that used CUDA"

    def at_exit(self) -> None:
        """Before the interpreter ends: from now on the machine code does not enter it. Capture's end tells CUPTI."""
        self._exiting = True
        if self.running and self._pid == os.getpid():
            self._disarm()

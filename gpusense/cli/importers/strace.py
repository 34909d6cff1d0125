"""Reads what ``strace -f -ttt -T`` wrote, line by line. Pure: text in, :class:`Syscall` records out.

Calls that another thread interrupts come as two lines, ``<unfinished ...>`` and ``<... resumed>``. What a call read or
wrote is dropped: the details of a record hold no text of the program. A line whose time is no moment (``-r``, ``-tt``)
gives no record: :meth:`Parser.why_not` says which option it was.
"""

import re
from collections.abc import Iterable
from typing import Any

from ..._records.records import Syscall

DETAIL_LIMIT = 160
#: The thread, with its name where --decode-pids gives it, which holds any characters.
_THREAD = r"(?:\[pid +(\d{1,10})(?:<.{0,64}?>)?\] |(\d{1,10})(?:<.{0,64}?>)? +)?"
_LINE = re.compile(_THREAD + r"(\d{9,11})\.(\d{1,9}) (.*)")
_UNTIMED = re.compile(_THREAD + " *")
#: Between time and call: the time since the last one (-r), the call's number (-n), the instruction pointer (-i).
_BETWEEN = re.compile(r"(?:\(\+ *\d+(?:\.\d+)?\) )?(?:\[ *\d+\] )?(?:\[(?:[0-9a-f]{8,16}|\?+)\] )?")
#: What stands where the time should be, and what wrote it.
_OTHER_TIMES = (
    (re.compile(r"\d{9,11} "), "the times are whole seconds (-ttt writes microseconds)"),
    (re.compile(r"\d{1,8}(?:\.\d{3,9})? [a-z_<+-]"), "the times are relative to the line before (-r)"),
    (re.compile(r"\d\d:\d\d:\d\d(?:\.\d+)? "), "the times are of a day that is not named (-t, -tt)"),
    (re.compile(r"% time "), "this is a summary of calls (-c)"),
    (re.compile(r"\w+\(|<\.\.\. |--- SIG|\+\+\+ "), "there are no times (no -ttt)"),
)
_RESUMED = re.compile(r"<\.\.\. (\w+) resumed>")
_NAME = re.compile(r"(\w+)\(")
_END = re.compile(r"\s= (\?|-?\w+)(.*?)(?: <(\d+)\.(\d{1,9})>)?$")
_TEXT = re.compile(r'"(?:[^"\\]|\\.)*(?:"(?:\.\.\.)?|\\?$)')  # one without an end reaches to that of the line
_SIGNAL = re.compile(r"--- (SIG\w+) ")
_EXIT = re.compile(r"\+\+\+ (?:exited with|killed by) ")
_UNFINISHED = "<unfinished ...>"


class Parser:
    """:meth:`feed` lines as they come. Counters: ``lines``, ``calls``, ``signals``, ``exits``, ``unreadable``,
    ``half`` (ends of calls whose beginning was not seen), and :attr:`open_calls`."""

    def __init__(self, pid: int | None = None) -> None:
        """``pid``: of the process that was traced, for lines that name none."""
        self._pid = pid
        self._open: dict[int | None, tuple[str, int, str]] = {}
        self._other_times: dict[str, int] = {}
        self.lines = self.calls = self.signals = self.exits = self.unreadable = self.half = 0

    @property
    def open_calls(self) -> int:
        """Calls that have begun and not returned; ``exit_group`` never does."""
        return len(self._open)

    def counters(self) -> dict[str, int]:
        names = ("lines", "calls", "signals", "exits", "unreadable", "half", "open_calls")
        return {name: getattr(self, name) for name in names}

    def why_not(self) -> str:
        """Why most of the unreadable lines could not be read; "" where that is not known."""
        return max(self._other_times, key=self._other_times.__getitem__, default="")

    def feed(self, lines: Iterable[str]) -> list[Syscall]:
        """The calls that these lines complete."""
        records = []
        for line in lines:
            line = line.rstrip("\r\n")
            if not line:
                continue
            self.lines += 1
            record = self._line(line)
            if record is not None:
                self.calls += 1
                records.append(record)
        return records

    def _line(self, line: str) -> Syscall | None:
        found = _LINE.fullmatch(line)
        if found is None:
            self._other(line)
            return None
        pid = int(found[1] or found[2]) if found[1] or found[2] else self._pid
        at, rest = _nanoseconds(found[3], found[4]), _BETWEEN.sub("", found[5], count=1)
        if _SIGNAL.match(rest):
            self.signals += 1
            return None
        if _EXIT.match(rest):
            self.exits += 1
            self._open.pop(pid, None)
            return None
        return self._call(pid, at, rest)

    def _other(self, line: str) -> None:
        if line.startswith(("strace: ", " > ")):  # its own words, and the stacks of -k
            return
        self.unreadable += 1
        rest = _UNTIMED.sub("", line, count=1)
        for form, why in _OTHER_TIMES:
            if form.match(rest):
                self._other_times[why] = self._other_times.get(why, 0) + 1
                return

    def _call(self, pid: int | None, at: int, rest: str) -> Syscall | None:
        resumed = _RESUMED.match(rest)
        if resumed:
            begun = self._open.pop(pid, None)
            if begun is None or begun[0] != resumed[1]:
                self.half += 1
                return None
            name, start, arguments = begun
            rest = arguments + rest[resumed.end() :]
        else:
            called = _NAME.match(rest)
            if called is None:
                self.unreadable += 1
                return None
            name, start, rest = called[1], at, rest[called.end() :]
        if rest.endswith(_UNFINISHED):
            self._open[pid] = name, start, rest[: -len(_UNFINISHED)].rstrip()
            return None
        return self._complete(pid, name, start, at, rest)

    def _complete(self, pid: int | None, name: str, start: int, at: int, rest: str) -> Syscall | None:
        rest = _TEXT.sub('"…"', rest)  # first: a text may look like the end of a call
        end = _END.search(rest)
        if end is None:
            self.unreadable += 1
            return None
        if end[1] == "?" and end[3] is None:  # never returned
            self._open[pid] = name, start, ""
            return None
        took = _nanoseconds(end[3], end[4]) if end[3] is not None else at - start
        if took >= 1 << 62:
            self.unreadable += 1
            return None
        arguments = rest[: end.start()].rstrip().removesuffix(")")
        error = end[2].split(maxsplit=1)[0] if end[2].strip() and end[1] in ("-1", "?") else ""
        return Syscall(
            name,
            start,
            start + took,
            thread=pid,
            result=f"{end[1]} {error}".rstrip(),
            detail=arguments[:DETAIL_LIMIT] or None,
        )


def _nanoseconds(seconds: Any, fraction: Any) -> int:
    return int(seconds) * 1_000_000_000 + int(fraction.ljust(9, "0"))

"""Evidence of a hang: nothing completes on the device although it has work, or work waits for another process that does
not come. Numbers in, plain values out.

Used by one thread at a time (under the recorder's lock), but for :meth:`HangWatch.due` and :class:`WaitWatch`. Waits
for nothing itself.
"""

import os
import struct
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import repeat
from time import monotonic
from typing import Any

from .._aggregation.markers import MARKER_BYTES, OwnStream, on_own_streams
from .._decode import layouts
from .._decode.batch import Batch
from .._decode.record import unpack
from .._decode.walk import batches
from .._records.protocols import Wait
from .._runtime import log, threads
from .._runtime.clock import now_ns
from .._runtime.text import terminal

_NAMES = {
    layouts.CONCURRENT_KERNEL: "kernel",
    layouts.MEMCPY: "transfer",
    layouts.MEMCPY2: "transfer",
    layouts.MEMSET: "memset",
}
MOST_HANGS = 10
#: That work waits for another process, where no setting says after how long a hang is one: saving a checkpoint may take
#: as long on one rank, so it is told, and nothing else is done.
WAIT_S, LOOK_S = 30.0, 1.0
SAID = 3  # of them, that each process of a run tells on the terminal
MOST_STREAMS = 500  # those with the newest work; a program may make a new stream for each request
_MOST_THREADS = 200
_MOST_FRAMES = 60

#: Where work is done.
Place = tuple[int | None, int | None, int | None]
_PLACE = ("device", "context", "stream")
_NOTHING: dict[str, Any] = {"running": None, "last_launched": None}

#: ``name(pointer)`` → a kernel's name.
Name = Callable[[int], str]
#: True once what the device had when it was asked for has ended.
Ended = Callable[[], bool]


class HangWatch:
    """Follows what completes. While nothing does, the device is asked whether it has work; if that question is not
    answered either, for ``after_s`` in all, ``found`` gets what is known of each stream and of each Python thread."""

    def __init__(self, after_s: float, clock: Callable[[], float] = monotonic) -> None:
        self.after_s = after_s
        self.found: list[dict[str, Any]] = []
        self._clock = clock
        self._progress = clock()
        self._last: dict[Place, dict[str, Any]] = {}
        self._ended: Ended | None = None
        self._asked = 0.0
        self._lasting: dict[str, Any] | None = None

    def read(self, buffer: memoryview, strides: Mapping[int, int], name: Name, own: Collection[OwnStream] = ()) -> None:
        """Notes what completed; while a hang lasts, also what a forced flush brought without an end.

        ``own``: where blocks are marked. Markers complete however much else is stuck.
        """
        found, _ = batches(buffer, strides)
        for batch in found:
            if batch.kind in _NAMES:
                self._complete(batch, name, own if batch.kind == layouts.MEMSET else ())
        if self._lasting is not None:
            for raw in _unfinished(buffer, strides):
                row = self._stream(raw["device"], raw["context"], raw["stream"])
                work = {
                    "kind": _NAMES[raw["kind"]],
                    "name": name(raw["name"]) if raw.get("name") else _NAMES[raw["kind"]],
                    "start_ns": raw["start"] or None,
                    "correlation_id": raw["correlation"],
                }
                # The oldest is what runs, the newest what was launched last; ids grow with each launch.
                row["running"] = min(row["running"] or work, work, key=_order)
                row["last_launched"] = max(row["last_launched"] or work, work, key=_order)

    def _complete(self, batch: Batch, name: Name, own: Collection[OwnStream]) -> None:
        places = zip(batch.device, batch.context, batch.stream, strict=True)
        ours = on_own_streams(own, batch) or repeat(False)
        rows = enumerate(zip(places, ours, batch.bytes, strict=False))
        latest = {place: i for i, (place, mine, size) in rows if not mine or size != MARKER_BYTES}
        if not latest:
            return
        noticed = self._lasting["noticed_ns"] if self._lasting is not None else None
        if noticed is None or max(batch.end[i] for i in latest.values()) > noticed:
            self._progress = self._clock()
            self._ended = None
            if self._lasting is not None:
                self._lasting["ended_ns"] = now_ns()
                self._lasting = None
        # Else it ended before the hang, in a buffer that CUPTI kept because of what is stuck: a forced flush brings it.
        for place, i in latest.items():
            if place in self._last and self._last[place]["end_ns"] > batch.end[i]:
                continue  # another kind of work ended later
            self._last.pop(place, None)  # so that the streams stand in the order of their last work
            kernel = batch.kind == layouts.CONCURRENT_KERNEL
            self._last[place] = {
                "kind": _NAMES[batch.kind],
                "name": name(batch.key[i]) if kernel else _NAMES[batch.kind],
                "end_ns": batch.end[i],
                "correlation_id": batch.correlation[i],
            }
            if self._lasting is not None:
                self._stream(*place)["last_completed"] = dict(self._last[place])
                self._lasting["last_completed_ns"] = max(self._lasting["last_completed_ns"] or 0, batch.end[i])
        for place in list(self._last)[: max(0, len(self._last) - MOST_STREAMS)]:
            del self._last[place]

    def _stream(self, *place: int | None) -> dict[str, Any]:
        assert self._lasting is not None
        streams: list[dict[str, Any]] = self._lasting["streams"]
        for row in streams:
            if (row["device"], row["context"], row["stream"]) == place:
                return row
        streams.append({**dict(zip(_PLACE, place, strict=True)), "last_completed": None, **_NOTHING})
        return streams[-1]

    def due(self, ask: Callable[[], Ended]) -> bool:
        """Whether a hang has just been noticed. ``ask`` begins to wait for the device elsewhere."""
        now = self._clock()
        idle = now - self._progress
        if self._lasting is not None or idle < self.after_s / 2 or len(self.found) >= MOST_HANGS:
            return False
        if self._ended is None:
            self._ended, self._asked = ask(), now
            return False
        if self._ended():  # the device has nothing to do
            self._ended, self._progress = None, now
            return False
        return idle >= self.after_s and now - self._asked >= self.after_s / 2

    def note(self) -> dict[str, Any]:
        """The evidence of the hang that :meth:`due` noticed, in ``found``; filled further by :meth:`read`."""
        last: list[dict[str, Any]] = [
            {**dict(zip(_PLACE, place, strict=True)), "last_completed": dict(done), **_NOTHING}
            for place, done in self._last.items()
        ]
        ends = [row["last_completed"]["end_ns"] for row in last]
        self._lasting = {
            "noticed_ns": now_ns(),
            "after_s": self.after_s,
            "last_completed_ns": max(ends, default=None),
            "ended_ns": None,
            "streams": last,
            "stacks": stacks(),
        }
        self.found.append(self._lasting)
        return self._lasting


class WaitWatch:
    """Follows what sources wait for (:class:`Wait`): each wait that lasts for ``after_s`` is in ``found``, once."""

    def __init__(self, after_s: float | None, clock: Callable[[], float] = monotonic) -> None:
        self.configure(after_s)
        self.found: list[dict[str, Any]] = []
        self._clock = clock
        self._again = 0.0
        self._lasting: dict[Any, dict[str, Any]] = {}

    def configure(self, after_s: float | None) -> None:
        """Waits that are noticed from now on have lasted for ``after_s``; None: :data:`WAIT_S`."""
        self.after_s = WAIT_S if after_s is None else after_s

    def due(self) -> bool:
        """Whether sources are to be asked again."""
        now = self._clock()
        if now < self._again:
            return False
        self._again = now + min(LOOK_S, self.after_s / 2)
        return True

    def look(self, waits: Iterable[Wait], on_terminal: bool = False) -> list[dict[str, Any]]:
        """The evidence of those that are new, which are told: the first ones also ``on_terminal``, since each of many
        ranks may have many. What was found before is told to have ended, if it has."""
        lasting = {wait.key: wait for wait in waits}
        for key in self._lasting.keys() - lasting.keys():
            self._lasting.pop(key)["ended_ns"] = now_ns()
        new = []
        for key, wait in lasting.items():
            if key not in self._lasting and len(self.found) < MOST_HANGS:
                self._lasting[key] = found = {
                    "noticed_ns": now_ns(),
                    "after_s": self.after_s,
                    "last_completed_ns": None,
                    "ended_ns": None,
                    "streams": [],
                    "stacks": stacks(),
                    "text": wait.text,
                    "wait": {"since_ns": wait.since_ns, **wait.facts},
                }
                self.found.append(found)
                new.append(found)
                log.once(f"wait {wait.text}", "%s", wait.text)
                if on_terminal and len(self.found) <= SAID:
                    _say(wait.text)
        return new


def _say(text: str) -> None:
    """One line for who looks at the terminal of a run while it hangs."""
    stderr = sys.__stderr__
    try:
        if stderr is not None:
            stderr.write(terminal(f"gpusense: {text}\n"))
            stderr.flush()
    except (OSError, ValueError):  # the program has closed it
        pass


def _order(work: dict[str, Any]) -> int:
    return int(work["correlation_id"])


def _unfinished(buffer: memoryview, strides: Mapping[int, int]) -> Iterator[dict[str, Any]]:
    """Records of work that has not ended."""
    offset = 0
    while offset + 4 <= len(buffer):
        (kind,) = struct.unpack_from("<I", buffer, offset)
        stride = strides.get(kind)
        if not stride or offset + stride > len(buffer):
            return
        if kind in _NAMES:
            raw = unpack(buffer, kind, stride, offset)
            if not raw["end"]:
                yield {**raw, "kind": kind}
        offset += stride


def stacks() -> list[dict[str, Any]]:
    """Every Python thread with its frames, innermost first, as ``file:line function``; gpusense's own last."""
    import threading

    names = {thread.ident: thread.name for thread in threading.enumerate()}
    found: list[dict[str, Any]] = []
    own: list[dict[str, Any]] = []
    for ident, top in list(sys._current_frames().items())[:_MOST_THREADS]:
        frames: list[str] = []
        into = found
        frame: Any = top
        while frame is not None and len(frames) < _MOST_FRAMES:
            code = frame.f_code
            into = own if code.co_filename == threads.__file__ and code.co_name == "run" else into
            frames.append(f"{os.path.basename(code.co_filename)}:{frame.f_lineno} {code.co_name}")
            frame = frame.f_back
        into.append({"thread": ident, "name": names.get(ident, "?"), "frames": frames})
    return found + own

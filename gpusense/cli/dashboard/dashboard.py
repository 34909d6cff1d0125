"""The dashboard behind ``gpusense top``: live from a monitor, or replayed from a session's samples."""

import os
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from ..._records.metrics import GpuMetrics
from ..._runtime.text import mib_number
from .frame import HISTORY_S, Kept, State, frame, picture
from .paint import Theme
from .processes import Facts, Host
from .view import SEEK_S, View, press

if TYPE_CHECKING:
    from ...session import Session

_SECOND = 1_000_000_000


class Feed(Protocol):
    """Where the samples come from."""

    def state(self, view: View) -> State:
        """What to draw now."""

    def seek(self, seconds: float) -> bool:
        """Moves in time, where that can be done."""


class Live:
    """The samples of a running monitor (anything with ``latest()`` and ``history(seconds, device)``).

    ``absent()`` gives the sentences that explain an empty list of devices. ``focus(index)`` is called with the device
    that is shown in full, and may answer with a monitor that knows more of it. ``host`` looks at processes.
    """

    def __init__(
        self,
        monitor: Any,
        absent: Callable[[], tuple[str, ...]] = tuple,
        clock: Callable[[], int] = time.monotonic_ns,
        focus: Callable[[int], Any] | None = None,
        host: Host | None = None,
    ) -> None:
        self._monitor = monitor
        self._host = host
        self._focus = focus
        self._absent = absent
        self._clock = clock
        self._reasons: tuple[str, ...] | None = None

    def state(self, view: View) -> State:
        latest: tuple[GpuMetrics, ...] = tuple(self._monitor.latest())
        problem = getattr(self._monitor, "problem", None)
        if not latest:
            if self._reasons is None and problem is None:
                self._reasons = self._absent()
            return State(notes=(problem,) if problem else self._reasons or (), keys=_keys(latest), view=view)
        selected = view.selected % len(latest)
        device = latest[selected].device
        history: tuple[GpuMetrics, ...] = tuple(self._monitor.history(HISTORY_S, device))
        closer = self._focus(device.index) if self._focus is not None else None
        if closer is not None:
            history, newest = _joined(history, tuple(closer.history(HISTORY_S))), closer.latest()
            if newest and newest[0].monotonic_ns >= latest[selected].monotonic_ns:
                latest = (*latest[:selected], newest[0], *latest[selected + 1 :])
        watched = latest if view.page == "processes" else (latest[selected],)
        return State(
            latest,
            history,
            selected,
            self._clock(),
            notes=(problem,) if problem else (),
            keys=_keys(latest),
            view=view,
            histories=[
                history if place == selected else tuple(self._monitor.history(HISTORY_S, sample.device))
                for place, sample in enumerate(latest)
            ]
            if view.page == "curves"
            else (),
            facts=None if self._host is None else facts_of(self._host, watched),
        )

    def seek(self, seconds: float) -> bool:
        return False


class Replay:
    """The samples of a recorded session, played at the speed they were taken."""

    def __init__(self, session: "Session", clock: Callable[[], int] = time.monotonic_ns) -> None:
        devices: dict[Any, list[GpuMetrics]] = {}
        for sample in sorted(session.metrics, key=_time):
            device = sample.device
            # The graphs run on the recording's wall clock: its monotonic one may be another machine's.
            on_wall = sample._replace(monotonic_ns=sample.time_ns)
            devices.setdefault(device.uuid or device.pci_bus_id or device.index, []).append(on_wall)
        self._devices = list(devices.values())
        # As long as the run, which its samples may not fill.
        meta = session.meta
        self.start_ns = min([samples[0].time_ns for samples in self._devices] + _known(meta.get("start_ns")), default=0)
        self.end_ns = max([samples[-1].time_ns for samples in self._devices] + _known(meta.get("end_ns")), default=0)
        self._live = _live_allocations(session)
        self._clock = clock
        self._position_ns = self.start_ns
        self._before_ns: int | None = None

    def state(self, view: View) -> State:
        now = self._clock()
        if self._before_ns is not None and not view.paused:
            self._position_ns = min(self._position_ns + now - self._before_ns, self.end_ns)
        self._before_ns = now
        return self.at(self._position_ns, view)

    def at(self, time_ns: int, view: View) -> State:
        """What the dashboard showed at a moment of the recording."""
        if not self._devices:
            note = "the session holds no device metrics: record it where gpusense monitor finds a device"
            return State(title="gpusense top, replay", notes=(note,), keys=_keys(()), view=view)
        ends = [max(bisect_right(samples, time_ns, key=_time), 1) for samples in self._devices]
        latest = tuple(samples[end - 1] for samples, end in zip(self._devices, ends, strict=True))
        selected = view.selected % len(latest)
        histories = [
            samples[bisect_right(samples, time_ns - HISTORY_S * _SECOND, key=_time) : end]
            for samples, end in zip(self._devices, ends, strict=True)
        ]
        at = _position((time_ns - self.start_ns) / _SECOND, (self.end_ns - self.start_ns) / _SECOND)
        return State(
            latest,
            histories[selected],
            selected,
            time_ns,
            f"gpusense top, replay {at}",
            keys=(*_keys(latest), f"left/right {SEEK_S} s"),
            allocations=self._allocated(time_ns),
            view=view,
            histories=histories,
        )

    def seek(self, seconds: float) -> bool:
        moved = self._position_ns + int(seconds * _SECOND)
        self._position_ns = min(max(moved, self.start_ns), self.end_ns)
        return True

    def _allocated(self, time_ns: int) -> str | None:
        """Live allocations at ``time_ns``, where the session recorded any."""
        if not self._live:
            return None
        place = bisect_right(self._live, time_ns, key=lambda row: row[0])
        _, count, size = self._live[place - 1] if place else (0, 0, 0)
        return f"{count} live, {mib_number(size)} MiB"


def _position(done_s: float, whole_s: float) -> str:
    """Where a replay stands, as finely as its length asks for."""
    if not whole_s:
        return "of one moment"
    digits = 0 if whole_s >= 10 else 1 if whole_s >= 1 else 2 if whole_s >= 0.1 else 4
    return f"{done_s:.{digits}f} s of {whole_s:.{digits}f} s"


def _known(time_ns: int | None) -> list[int]:
    return [time_ns] if time_ns else []


def facts_of(host: Host, samples: Iterable[GpuMetrics]) -> Mapping[int, Facts]:
    """What this host knows of the processes on devices: of those whose pid is one of ours."""
    return host.facts(usage.pid for sample in samples for usage in sample.processes or () if usage.visible)


def _joined(before: tuple[GpuMetrics, ...], after: tuple[GpuMetrics, ...]) -> tuple[GpuMetrics, ...]:
    """What was seen before a closer look began, and what that saw."""
    if not after:
        return before
    return before[: bisect_left(before, after[0].monotonic_ns, key=_taken)] + after


def _taken(sample: GpuMetrics) -> int:
    return sample.monotonic_ns


def _time(sample: GpuMetrics) -> int:
    return sample.time_ns


def _live_allocations(session: "Session") -> list[tuple[int, int, int]]:
    """(time, allocations alive, their bytes) after each event."""
    live: dict[tuple[Any, int], int] = {}
    size = 0
    rows = []
    for record in sorted(session.allocations, key=lambda record: record.start_ns):
        key = (record.device, record.address)
        size -= live.pop(key, 0)
        if record.name != "free":
            live[key] = record.bytes
            size += record.bytes
        rows.append((record.start_ns, len(live), size))
    return rows


def _keys(latest: Sequence[GpuMetrics]) -> tuple[str, ...]:
    if not latest:
        return ("q quit", "h keys")
    gpus = ("tab next GPU", "a curves") if len(latest) > 1 else ()
    return ("q quit", "h keys", "p pause", *gpus, "t processes", "s sort", "/ filter")


def run(
    feed: Feed, screen: Any, theme: Theme, interval: float = 0.5, clock: Callable[[], float] = time.monotonic
) -> None:
    """Draws until the user quits. A key or a resize redraws at once, without taking new samples while paused."""
    view, graphs = View(), Kept()
    frozen: State | None = None
    due = clock()
    while True:
        if view.paused and frozen is not None and not isinstance(feed, Replay):
            state = _frozen(frozen, view)
        else:
            state = feed.state(view)
        frozen = state
        width, height = screen.size()
        lines, view = picture(state, width, height, theme, graphs)
        screen.draw(lines)
        now = clock()
        if now >= due:
            due += interval * (int((now - due) / interval) + 1)
        while True:
            pressed = screen.wait(due - clock())
            if pressed or clock() >= due or screen.size() != (width, height):
                break
        for key in pressed:
            after = press(key, view, feed)
            if after is None:
                return
            view = after


def _frozen(state: State, view: View) -> State:
    """The last picture while paused, looked at otherwise; another device shows its last sample, without a graph."""
    state = state._replace(view=view)
    if not state.latest or view.selected % len(state.latest) == state.selected:
        return state
    return state._replace(selected=view.selected % len(state.latest), history=())


def once(
    samples: Sequence[GpuMetrics],
    width: int,
    theme: Theme,
    notes: tuple[str, ...] = (),
    facts: Mapping[int, Facts] | None = None,
) -> list[str]:
    """Every device in full, one below the other, for a pipe or a glance."""
    if not samples:
        return _trimmed(frame(State(notes=notes, keys=()), width, 1000, theme))
    lines = frame(State(tuple(samples)), width, 1, theme)  # the title alone
    for sample in samples:
        lines += _trimmed(frame(State((sample,), keys=(), facts=facts), width, 1000, theme))[1:]
    return lines


def _trimmed(lines: list[str]) -> list[str]:
    while lines and not lines[-1].strip():
        lines.pop()
    return lines


def theme_for(out: TextIO, in_ascii: bool = False) -> Theme:
    """Colour where ``out`` is a terminal that has it and NO_COLOR is not set; ASCII where its encoding lacks blocks,
    and under ``LC_ALL=C``, which Python takes for UTF-8.
    """
    terminal = out.isatty() and os.environ.get("TERM") != "dumb"
    in_ascii = in_ascii or os.environ.get("LC_ALL") in ("C", "POSIX")
    try:
        "█▏⣿─▶▲▼°·×–…".encode(getattr(out, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        in_ascii = True
    return Theme(color=terminal and not os.environ.get("NO_COLOR"), ascii=in_ascii)

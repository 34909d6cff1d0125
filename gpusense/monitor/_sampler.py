"""How one device is sampled for every monitor of the process: lanes, deadlines, joined samples."""

import _thread
import time
from typing import Any, NamedTuple, Protocol

from .._records.metrics import GROUPS, GpuMetrics, fill, finite, without_values
from .._records.protocols import MetricsSource
from .._records.records import DeviceInfo
from .._runtime import log, threads
from .._runtime.interrupts import is_the_programs
from ._lane_threads import LaneThreads, Task

SECOND = 1_000_000_000
_TRAFFIC_NS = 2 * SECOND  # between two looks at the PCIe byte counters
_CLOSE_NS, _READINGS = 1_000_000, 5
_LOOK_NS = SECOND // 40  # how long one look lasts where the counters would wrap before the next


class Clock:
    """Where time comes from and how a thread waits; tests give their own."""

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()

    def time_ns(self) -> int:
        return time.time_ns()

    def suspended_ns(self) -> int:
        """How long the machine slept since it started; 0 where the system does not say."""
        if not hasattr(time, "CLOCK_BOOTTIME"):
            return 0
        # The two clocks cannot be read at once. A thread held up between them would seem to have slept, so the other
        # is read before and after, and the closest of a few readings counts.
        closest = 1 << 62, 0
        for _ in range(_READINGS):
            before = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
            boot = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
            doubt = time.clock_gettime_ns(time.CLOCK_MONOTONIC) - before
            closest = min(closest, (doubt, boot - before - doubt // 2))
            if doubt <= _CLOSE_NS:
                break
        return closest[1]

    def wait(self, event: threads.Event, seconds: float) -> None:
        event.wait(min(seconds, _thread.TIMEOUT_MAX / 2))

    def enlist(self, thread: Any) -> None:
        """Called with every thread that was just started and will wait here."""


class Schedule:
    """Absolute deadlines on one grid: a deadline that passed while the last one ran is skipped and counted.

    The first is ``start_ns``, the others lie whole periods from ``origin_ns``: those who share it are due together.
    """

    __slots__ = ("_origin_ns", "late", "next_ns", "period_ns", "skipped", "ticks")

    def __init__(self, period_ns: int, start_ns: int, origin_ns: int | None = None) -> None:
        self.period_ns = period_ns
        self.next_ns = start_ns
        self._origin_ns = start_ns if origin_ns is None else origin_ns
        self.ticks = self.late = self.skipped = 0

    def at(self, period_ns: int, now_ns: int) -> tuple["Schedule", bool]:
        """One with this period and the same counts, due at once, and True; itself where the period is the same."""
        if period_ns == self.period_ns:
            return self, False
        other = Schedule(period_ns, now_ns, self._origin_ns)
        other.ticks, other.late, other.skipped = self.ticks, self.late, self.skipped
        return other, True

    def begin(self, now_ns: int) -> bool:
        """Whether a tick is due."""
        if now_ns < self.next_ns:
            return False
        self.ticks += 1
        self.late += now_ns - self.next_ns > max(self.period_ns // 10, 1_000_000)
        return True

    def done(self, now_ns: int) -> None:
        """Moves to the first deadline after ``now_ns``."""
        passed = max(1, (now_ns - self.next_ns) // self.period_ns + 1)
        self.skipped += passed - 1
        after = self.next_ns + passed * self.period_ns
        on_grid = after - (after - self._origin_ns) % self.period_ns
        self.next_ns = on_grid if on_grid > now_ns else on_grid + self.period_ns


class Listener(Protocol):
    """A monitor, as its samplers see it. ``accept`` is called on the sampling thread and must be quick."""

    interval_ns: int
    lanes_ns: tuple[int, int]  # of the medium and the slow lane
    process_ns: int
    gpm: bool
    continuous: bool  # wants the exact PCIe traffic of every interval

    def accept(self, sample: GpuMetrics) -> None: ...


class SamplerStats(NamedTuple):
    """What sampling one device did and cost; ``background_…`` counts the medium and slow lanes together."""

    ticks: int
    late: int
    skipped: int
    samples: int
    mean_cost_ns: float
    max_cost_ns: int
    background_ticks: int
    background_skipped: int


class DeviceSampler:
    """Two tasks of a source's threads: the fast lane, and medium and slow lanes together, so that a call that blocks
    delays no sample. ``lanes`` are the threads of other samplers of the same source; its own by default."""

    def __init__(
        self,
        source: MetricsSource,
        device: DeviceInfo,
        clock: Clock,
        medium_ns: int,
        slow_ns: int,
        lanes: LaneThreads | None = None,
    ) -> None:
        self.device = device
        self.key = id(source), device
        self.lanes = lanes or LaneThreads(clock, lambda: _notify(source, "watch"), lambda: _notify(source, "unwatch"))
        self._source: Any = source
        self._clock = clock
        self._lock = threads.rlock()  # a signal handler may stop a monitor that is being started
        self._listeners: dict[Listener, int] = {}  # → when it next wants a sample
        self._ended = False
        self._tasks = (
            Task(self.step, lambda: self.fast.period_ns),
            Task(self.step_background, lambda: self._medium.period_ns),
        )
        self._started = False
        now = clock.monotonic_ns()
        origin = self.lanes.origin_ns
        self.fast = Schedule(100_000_000, now, origin)
        self._counters: Schedule | None = None
        self._medium, self._slow = Schedule(medium_ns, now, origin), Schedule(slow_ns, now, origin)
        self._continuous = False
        self._process_ns = SECOND
        self._fast_words: tuple[str, ...] = ("fast", "lean")
        self._traffic_ns = self._listing_ns = now  # when PCIe traffic and processes are next due
        self._look_until_ns: int | None = None  # when the look at the PCIe counters that has begun ends
        self._kept: dict[str, GpuMetrics] = {}  # the last sample of each background lane
        self._background: GpuMetrics | None = None
        self._sequence = self._cost_ns = self._max_cost_ns = 0
        self._last_ns: int | None = None  # when the device last answered
        self._suspended_ns, self._slept_ns = clock.suspended_ns(), 0  # in all; since the device last answered

    # -- users ---------------------------------------------------------------------------------------------------

    def attach(self, listener: Listener) -> None:
        """Samples as often as the most eager listener wants. Raises RuntimeError if no thread starts."""
        with self._lock:
            self._listeners = {**self._listeners, listener: 0}
            self._set_period()
            if self._started:
                return
            self._started = True
            try:
                for lane, task in zip(("fast", "slow"), self._tasks, strict=True):
                    self.lanes.add(lane, task)
            except RuntimeError:
                self._end()
                raise
            if self._ended:  # by a signal handler on this thread, before the tasks were there
                self._end()

    def retire(self, listener: Listener) -> bool:
        """True when ``listener`` was the last one: sampling ends, when the driver gives its threads back."""
        with self._lock:
            self._listeners = {one: due for one, due in self._listeners.items() if one is not listener}
            if self._listeners:
                self._set_period()
                return False
            self._end()
        return True

    def _end(self) -> None:
        self._ended = True
        for task in self._tasks:
            self.lanes.remove(task)

    def join(self, deadline_s: float) -> None:
        """Waits for the end of a retired sampler until ``time.monotonic()`` is ``deadline_s``, unless it is called
        from one of its threads."""
        if self._ended:
            self.lanes.join(self._tasks, deadline_s)

    def stats(self) -> SamplerStats:
        samples = self._sequence
        return SamplerStats(
            self.fast.ticks,
            self.fast.late,
            self.fast.skipped,
            samples,
            self._cost_ns / samples if samples else 0.0,
            self._max_cost_ns,
            self._medium.ticks + self._slow.ticks,
            self._medium.skipped + self._slow.skipped,
        )

    # -- the lanes -----------------------------------------------------------------------------------------------

    def _set_period(self) -> None:
        self._continuous = any(listener.continuous for listener in self._listeners)
        self._process_ns = min(listener.process_ns for listener in self._listeners)
        self._listing_ns = min(self._listing_ns, self._clock.monotonic_ns() + self._process_ns)
        gpm = ("gpm",) if any(listener.gpm for listener in self._listeners) else ()
        self._fast_words = ("fast", "lean", *gpm, *(("pcie",) if self._continuous else ()))
        now = self._clock.monotonic_ns()
        self.fast, changed = self.fast.at(min(listener.interval_ns for listener in self._listeners), now)
        if changed:
            self.lanes.ask(self._tasks[0])
        medium_ns, slow_ns = map(min, zip(*(listener.lanes_ns for listener in self._listeners), strict=True))
        self._medium, medium_changed = self._medium.at(medium_ns, now)
        self._slow, slow_changed = self._slow.at(slow_ns, now)
        if medium_changed or slow_changed:
            self.lanes.ask(self._tasks[1])

    def step(self) -> int:
        """Does what is due in the fast lane; nanoseconds until the next deadline."""
        now = self._clock.monotonic_ns()
        fast = self.fast
        if fast.begin(now):
            self._tick(now)
            fast.done(self._clock.monotonic_ns())
            self._plan_counters(now)
            if self._counters is not None:
                self._counters.done(now)  # the tick has read them
        counters = self._counters
        if counters is None:
            return fast.next_ns - self._clock.monotonic_ns()
        if counters.begin(self._clock.monotonic_ns()):
            self._sample(("counters",))
            counters.done(self._clock.monotonic_ns())
        return min(fast.next_ns, counters.next_ns) - self._clock.monotonic_ns()

    def step_background(self) -> int:
        """Does what is due in the medium and slow lanes; nanoseconds until the next deadline."""
        now = self._clock.monotonic_ns()
        wait = self._begin_look(now)
        if wait > 0:
            return wait
        gpm = ("gpm",) if "gpm" in self._fast_words else ()
        for lane, schedule in (("medium", self._medium), ("slow", self._slow)):
            if schedule.begin(self._clock.monotonic_ns()):
                words = (lane, "lean", *gpm, *(self._dear_words(now) if lane == "medium" else ()))
                self._keep(lane, self._sample(words))
                schedule.done(self._clock.monotonic_ns())
        return min(self._medium.next_ns, self._slow.next_ns) - self._clock.monotonic_ns()

    def _begin_look(self, now: int) -> int:
        """Where the next medium pass gives PCIe rates and the counters wrap too fast to be read once a pass: reads them
        a moment before it. How long that moment still lasts, or 0."""
        if self._look_until_ns is not None:
            return self._look_until_ns - now
        if now < self._medium.next_ns or now < self._traffic_ns or self._continuous:
            return 0
        period = self._counter_period_s()
        if period is None or period * SECOND > _TRAFFIC_NS:
            return 0
        self._sample(("counters",))
        self._look_until_ns = self._clock.monotonic_ns() + min(_LOOK_NS, int(period * SECOND))
        return self._look_until_ns - now

    def _dear_words(self, now: int) -> tuple[str, ...]:
        """What costs too much for every medium pass and is due in this one."""
        self._look_until_ns = None
        words: tuple[str, ...] = ()
        if now >= self._traffic_ns and not self._continuous:
            self._traffic_ns = now + _TRAFFIC_NS - self._medium.period_ns // 2
            words += ("pcie",)
        if now >= self._listing_ns:
            self._listing_ns = now + self._process_ns - self._medium.period_ns // 2
            words += ("processes",)
        return words

    def _counter_period_s(self) -> float | None:
        ask = getattr(self._source, "counter_period_s", None)
        period: float | None = ask(self.device) if ask is not None else None
        return period

    def _plan_counters(self, now: int) -> None:
        """Reads the byte counters between the ticks where they would otherwise wrap twice unseen."""
        period = self._counter_period_s() if self._continuous else None
        if period is None or period * SECOND > self.fast.period_ns:
            self._counters = None
        elif self._counters is None:
            parts = -(-self.fast.period_ns // int(period * SECOND))
            every = self.fast.period_ns // parts
            self._counters = Schedule(every, self.fast.next_ns - self.fast.period_ns + every)

    def _tick(self, now: int) -> None:
        gap = self._gap(now)
        if gap:
            self._begin_anew(now)
        found = self._sample((*self._fast_words, "anew") if gap else self._fast_words)
        if found.state in ("lost", "degraded"):
            gap = 0  # it lasts until the device answers
        else:
            self._last_ns, self._slept_ns = now, 0
        sample = self._join(found, sequence=self._sequence, gap_ns=gap)
        self._cost_ns += sample.cost_ns
        self._max_cost_ns = max(self._max_cost_ns, sample.cost_ns)
        self._sequence += 1
        for listener, due in self._listeners.items():
            # Half a period of tolerance: a listener at twice the period gets every second tick, not every third.
            if now >= due - self.fast.period_ns // 2:
                on_time = due and now - due < listener.interval_ns
                with self._lock:
                    if listener in self._listeners:  # else it was retired meanwhile
                        self._listeners[listener] = (due if on_time else now) + listener.interval_ns
                listener.accept(sample)

    def _sample(self, lanes: tuple[str, ...]) -> GpuMetrics:
        return ask(self._source, self.device, lanes, self._clock)

    # -- joining the lanes ---------------------------------------------------------------------------------------

    def _keep(self, lane: str, sample: GpuMetrics) -> None:
        self._kept[lane] = sample
        medium, slow = self._kept.get("medium"), self._kept.get("slow")
        self._background = fill(medium, slow) if medium and slow else medium or slow

    def _join(self, fast: GpuMetrics, **changed: Any) -> GpuMetrics:
        if fast.reasons and fast.reasons[0][0] == "*":
            return fast._replace(**changed)
        for lane, schedule in (("medium", self._medium), ("slow", self._slow)):
            kept = self._kept.get(lane)
            age = fast.monotonic_ns - kept.monotonic_ns if kept is not None else 0
            if kept is not None and age > 3 * schedule.period_ns + 5 * SECOND and not _is_stale(kept):
                self._keep(lane, _stale(kept, f"stale: last read {age / 1e9:.0f} s ago"))
        if self._background is None:
            return fast._replace(reasons=(*fast.reasons, ("*", "stale: not read yet")), **changed)
        return fill(fast, self._background, **changed)

    def _gap(self, now: int) -> int:
        """Nanoseconds before this sample in which nobody watched: the machine slept, a tick came more than a second
        late, or the device did not answer."""
        suspended = self._clock.suspended_ns()
        self._slept_ns += suspended - self._suspended_ns
        self._suspended_ns = suspended
        if self._last_ns is None:
            return 0
        unwatched = now - self._last_ns - self.fast.period_ns
        gap = unwatched if unwatched > max(SECOND, 2 * self.fast.period_ns) else 0
        return gap + (self._slept_ns if self._slept_ns > 10_000_000 else 0)

    def _begin_anew(self, now: int) -> None:
        """Nothing that the slower lanes said before a gap stands after it: they are due at once."""
        self._kept.clear()
        self._background = self._look_until_ns = None
        self._medium.next_ns = self._slow.next_ns = self._traffic_ns = self._listing_ns = now
        self.lanes.ask(self._tasks[1])


def ask(source: Any, device: DeviceInfo, lanes: tuple[str, ...], clock: Clock) -> GpuMetrics:
    """One sample; of a source that raises, or gives something else, one without values. Never raises."""
    try:
        found: GpuMetrics = source.sample(device, lanes)
        if not getattr(source, "checked", False):
            found = finite(found)
    except Exception as error:  # a foreign source; ours never raise
        if is_the_programs(error):
            raise
        log.exception(f"source {type(source).__name__}", "a source of device metrics raised")
        bare = GpuMetrics(device, clock.time_ns(), clock.monotonic_ns())
        return without_values(bare, "lost", f"lost: {type(error).__name__}: {error}")
    return found


def _notify(source: Any, what: str) -> None:
    """Begins or ends watching for events, where ``source`` can; that may ask the driver."""
    try:
        getattr(source, what, bool)()
    except Exception as error:  # a foreign source; ours never raise
        if is_the_programs(error):
            raise
        log.exception(f"source {type(source).__name__} {what}", "a source of device metrics raised")


def _is_stale(sample: GpuMetrics) -> bool:
    return sample.state == "stale"


def _stale(sample: GpuMetrics, why: str) -> GpuMetrics:
    """A background lane that has not answered for long: its values become reasons, field by field."""
    reasons = tuple(
        (f"{group}.{field}", why)
        for group, empty in GROUPS.items()
        for field, value in zip(empty._fields, getattr(sample, group), strict=True)
        if value is not None
    )
    processes = (("processes", why),) if sample.processes is not None else ()
    bare = without_values(sample, "stale", why)
    return bare._replace(reasons=reasons + processes + sample.reasons)

"""Hardware counters over time as a source of the recorder: one sampler a device, read on a thread of its own.

The thread waits until the program uses CUDA, tries the sampler in a child process, and then reads four times a second,
or as often as the image needs it. What it costs is counted: a sample takes CUPTI 60 to 100 µs, of which decoding is the
most. Where the rate was left to gpusense it becomes what one percent of a processor can read.
"""

import math
from array import array
from collections.abc import Callable
from operator import sub
from time import monotonic, monotonic_ns, sleep, thread_time
from typing import Any

from ...._records.counter_samples import CounterColumns
from ...._records.records import Unavailable
from ...._runtime import clock, log, process, threads
from ...._runtime.config import sampling_rate
from ...._runtime.errors import BackendError, GpuSenseError
from ... import cuda
from . import COUNTED, host, selftest
from .anchor import Anchor
from .sampler import SAMPLES, Sampler, Samples, opened

#: The rate where it is left to gpusense, at first, and the share of a processor that it may cost then.
USUAL_HZ, MOST_COST = 100.0, 0.01
SLOWEST_HZ, FASTEST_HZ = 10.0, 1000.0
#: It is changed, which costs a gap of some milliseconds, where it is further off than this.
NEAR = 1.5
#: Between two readings, and at first, when the two clocks are compared.
READ_S, COMPARE_S, COMPARISONS = 0.25, 0.0007, 40
#: They move apart, so they are compared again, at each of so many seconds and by so many short readings.
AGAIN_S, COMPARED_AGAIN = 10.0, 12
#: Of an image, that is full at the next reading, at most: the rest is for a thread that comes late.
FULL = 0.6
#: Without a sample for so long, in seconds and in samples, a sampler has gone silent. It is opened anew, which takes
#: 100 ms, at most every so many seconds.
SILENT_S, SILENT_SAMPLES, RENEW_S = 1.0, 20, 5.0
WAIT_S, LONGEST_WAIT_S = 0.05, 1.0  # for CUDA
LOOK_S = 2.0  # for devices that the program begins to use
JUDGE_S = 3.0  # of readings, after which their cost is judged
HAND_ON_S = 0.5
#: The distance of the clocks follows what is known of it by a thousandth of the time; at once where it is so far off.
SLEW, JUMP_NS = 1000, 20_000_000
#: A sample that is so many times too long is none: the first of a session lasts seconds.
BOGUS = 100
#: Why there are no samples for a while.
UNTOLD, OVERFLOW, IMAGE_FULL, SILENT, PAUSED, ANOTHER_RATE = (
    "CUPTI gave none and did not say why",
    "they were not read in time, and the hardware's buffer was full",
    "they were not read in time, and the image that they are read into was full",
    "the device gave none, which a fault of another program on it may cause",
    "recording was disabled",
    "the rate was changed",
)


class Device:
    """The sampling of one device: what was read, and where it lies in time. For the source's thread."""

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler
        self.anchor = Anchor()
        self.failed = self.bogus = self.renewed = 0
        self._forget()
        self._fresh = True  # the next sample is the first after a start
        self._why = UNTOLD  # the next sample does not follow the last one, if it does not
        self.heard_at = self.opened_at = monotonic()  # of the last sample; of the sampler
        self._before: tuple[int, int] | None = None  # end of the last sample by the sampler's clock, and by ours
        self._ahead: int | None = None  # our clock minus the sampler's, as samples have it by now

    def _forget(self) -> None:
        self.columns = self._empty()
        self.samples = self.missing_ns = 0
        self.gaps: dict[str, int] = {}  # by reason
        self._last = 0  # end of the last sample by our clock, also before a gap

    def _empty(self) -> CounterColumns:
        return CounterColumns(self.sampler.device, self.sampler.fields)

    def take(self) -> CounterColumns:
        """What was read since the last time."""
        found, self.columns = self.columns, self._empty()
        return found

    def read(self) -> None:
        """What there is by now. Raises :class:`BackendError`."""
        before = monotonic_ns()
        found = self.sampler.read()
        self.failed += found.failed
        ends = found.ends[1:] if self._fresh else found.ends  # of the first of a session no time is to be believed
        if ends:
            self.anchor.look(before, found.decoded_ns, ends[0], ends[-1], found.drained)
        elif found.drained:
            self.anchor.nothing(before)
        if found.starts:
            self.heard_at = monotonic()
            self._keep(found)
        if not found.drained:
            self._why = IMAGE_FULL
        if found.overflow:
            self.restart(self.sampler.interval_ns, OVERFLOW)

    def _keep(self, found: Samples) -> None:
        ahead = self._distance(found)
        if self._follow(found, ahead):
            ours = [end + ahead for end in found.ends]
            assert self._before is not None
            self.columns.start.append(self._before[1])
            self.columns.start.extend(ours[:-1])
            self.columns.end.extend(ours)
            self._last = ours[-1]
            self._before, self._why = (found.ends[-1], self._last), UNTOLD
            self.samples += len(ours)
            columns = found.columns
        else:
            kept = self._place(found, ahead)
            columns = [[values[row] for row in kept] for values in found.columns]
        for column, values in zip(self.columns.values, columns, strict=True):
            column.extend(_single(values))

    def _follow(self, found: Samples, ahead: int) -> bool:
        """Whether all of them follow one another and the last one before, as they do in all but a few readings, also
        by our clock, which may have been set."""
        starts, ends = found.starts, found.ends
        if self._fresh or self._before is None or self._before[0] != starts[0] or starts[1:] != ends[:-1]:
            return False
        if ends[0] + ahead <= self._before[1]:
            return False
        lengths: list[int] = list(map(sub, ends, starts))
        return min(lengths) > 0 and max(lengths) < self.sampler.interval_ns * BOGUS

    def _place(self, found: Samples, ahead: int) -> list[int]:
        """One by one. Gives the rows that are kept."""
        limit, kept = self.sampler.interval_ns * BOGUS, []
        for row, (start, end) in enumerate(zip(found.starts, found.ends, strict=True)):
            if self._fresh or not 0 < end - start < limit:
                self._fresh = False
                self.bogus += 1
                continue
            kept.append(row)
            before = self._before
            if before is not None and start - before[0] < self.sampler.interval_ns // 2:
                ours = before[1]
            else:
                ours = max(start + ahead, self._last)
                self.missing_ns += ours - self._last if self._last else 0
                if before is not None:
                    self._gap(self._why)
            self._why = UNTOLD
            self._last = max(end + ahead, ours + 1)
            self._before = end, self._last
            self.columns.start.append(ours)
            self.columns.end.append(self._last)
        self.samples += len(kept)
        return kept

    def _distance(self, found: Samples) -> int:
        """The session's clock minus the sampler's, for these samples. It is known better and better; what is added to
        it or taken away comes little by little, since samples follow one another without a gap."""
        offset = self.anchor.offset_ns
        if offset is None:
            return self._ahead or 0
        wanted = offset + clock.SESSION.of_monotonic(0)
        if self._ahead is None or abs(wanted - self._ahead) > JUMP_NS:
            self._ahead = wanted
        else:
            most = (found.ends[-1] - found.starts[-1]) * len(found.ends) // SLEW
            self._ahead += max(-most, min(most, wanted - self._ahead))
        return self._ahead

    def compared(self) -> None:
        """The clocks have been compared: what was read meanwhile lies where it was not known yet, and goes."""
        self._forget()
        self._ahead, self._before = None, None

    def _gap(self, why: str) -> None:
        self.gaps[why] = self.gaps.get(why, 0) + 1

    def restart(self, interval_ns: int, why: str) -> None:
        """With samples of this length from now on, behind a gap."""
        self._gap(why)
        self.sampler.stop()
        self.sampler.configure(interval_ns)
        self._start()

    def renew(self, sampler: Sampler) -> None:
        """With this sampler from now on, behind the gap that the silence of the one before is. All was taken before."""
        self.sampler, self.columns = sampler, CounterColumns(sampler.device, sampler.fields)
        self.opened_at = monotonic()
        self.renewed += 1
        if not self._fresh:  # else it has been silent since the last time, too
            self._gap(SILENT)
        self._start()

    def _start(self) -> None:
        self.sampler.start()
        self.heard_at = monotonic()
        self._fresh, self._before, self._why = True, None, UNTOLD
        self.anchor.restarted()

    def is_silent(self, now: float) -> bool:
        """Whether it gives no samples any more, though nothing says so."""
        limit_s = max(SILENT_S, SILENT_SAMPLES * self.sampler.interval_ns / 1e9)
        return now - self.heard_at > limit_s and now - self.opened_at > RENEW_S


class CounterSource:
    """What ``tracer.recorder.sources`` has: ``name``, :meth:`flush`, :meth:`end`, :meth:`status`. Any thread.

    ``setting``: a rate as "1kHz", or "auto" for as many as :data:`MOST_COST` allows.
    ``hand_on(columns)`` gets what was read; ``wanted()`` is false while nothing is to be recorded. ``only``: devices.
    ``changed()`` is called when :attr:`state` has changed.
    """

    name = "counters"

    def __init__(
        self,
        setting: str,
        hand_on: Callable[[CounterColumns], None],
        wanted: Callable[[], bool],
        only: tuple[int, ...] | None = None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.setting = setting
        self.rate = rate = sampling_rate(setting)
        self._hand_on, self._wanted, self._only, self._changed = hand_on, wanted, only, changed
        self._interval_ns = round(1e9 / (rate or USUAL_HZ))
        self.state = "waiting"  # "trying", "sampling", "paused", "unavailable", "ended"
        self.reason = "the program does not use CUDA yet"
        self._devices: dict[int, Device] = {}
        self._refused: dict[int, str] = {}
        self._bell = threads.Bell()
        self._asked = self._answered = 0  # readings that somebody waits for
        self._answer = threads.Event()
        self._ending = self._pausing = False
        self._api: Any = None
        self._lost: list[Device] = []  # those that ended by themselves
        self._handed_at = self._judged_at = self._judged_cpu_s = self._compared_at = 0.0
        self.cost: float | None = None  # share of a processor, at the last judgement
        self._cpu_s = self._before_cpu_s = 0.0  # of all threads so far, and of those before this one
        self._thread: Any = None
        process.register(self)
        self._begin()

    def _begin(self) -> None:
        self._thread = threads.start(self._run, "gpusense-counters")
        if self._thread is None:
            self._give_up("no thread can be started to read with")

    # --- for the recorder -------------------------------------------------------------------------------------------

    def flush(self, timeout_s: float) -> bool:
        """What was counted until now is handed on; False where that took longer."""
        if self.state != "sampling" or self._thread is None or not self._thread.is_alive():
            return True
        self._answer.clear()
        self._asked += 1
        wanted = self._asked
        self._bell.set()
        deadline = monotonic() + timeout_s
        while self._answered < wanted and self._thread.is_alive():
            if not self._answer.wait(max(0.0, deadline - monotonic())):
                return False
            self._answer.clear()
        return True

    def end(self, timeout_s: float) -> bool:
        """Reads the rest and gives the hardware back; False where CUPTI did not return in time."""
        self._ending = True
        self._bell.set()
        thread = self._thread
        if thread is not None:
            thread.join(timeout_s)
            if thread.is_alive():
                self._give_up("CUPTI did not return when sampling was to end")
                return False
        return True

    def status(self) -> dict[str, Any]:
        """What is sampled and how well; as builtins."""
        found: dict[str, Any] = {"state": self.state}
        if self.reason:
            found["reason"] = self.reason
        found["cost_percent_of_a_processor"] = None if self.cost is None else round(100 * self.cost, 3)
        if self.cost is None:
            found["cost_reason"] = f"judged after {JUDGE_S:g} s" if self._judged_at else "nothing was sampled"
        devices = {}
        for device in [*self._lost, *self._devices.values()]:
            sampler = device.sampler
            devices[str(sampler.device)] = {
                "chip": sampler.chip,
                "interval_ns": sampler.interval_ns,
                "fields": list(sampler.fields),
                "samples": device.samples,
                "gaps": sum(device.gaps.values()),
                "gap_reasons": dict(device.gaps),
                "missing_ns": device.missing_ns,
                "failed": device.failed,
                "renewed": device.renewed,
                "clock_error_ns": device.anchor.error_ns,
                "read_by": sampler.by,
                "evaluated_by": sampler.evaluated_by,
                "image_bytes": sampler.image_bytes,
            }
        if devices:
            found["devices"] = devices
        if self._refused:
            found["refused"] = {str(number): reason for number, reason in list(self._refused.items())}
        return found

    @property
    def cpu_ns(self) -> int:
        """Processor time of the thread so far."""
        return int(self._cpu_s * 1e9)

    # --- life -------------------------------------------------------------------------------------------------------

    def before_fork(self) -> None:
        self._pausing = True
        self._bell.set()
        if self._thread is not None:
            self._thread.join(0.5)

    def after_fork_in_parent(self) -> None:
        self._pausing = False
        if not self._over and (self._thread is None or not self._thread.is_alive()):
            self._begin()

    def after_fork_in_child(self) -> None:
        """The sampler is the parent's; nothing of CUPTI is called here."""
        self._devices, self._thread = {}, None
        self.state, self.reason = "ended", "this process was forked"

    def at_exit(self) -> None:
        if not self._over:
            self.end(1.0)

    @property
    def _over(self) -> bool:
        return self._ending or self.state in ("ended", "unavailable")

    def _give_up(self, reason: str, state: str = "unavailable") -> None:
        if not self._over or state == "unavailable":
            log.once(f"counters {reason}", "no counters: %s", reason)
        self.state, self.reason = state, reason
        self._changed()

    # --- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        self._before_cpu_s = self._cpu_s
        try:
            self._wait_for_cuda()
            if self._devices:  # of a thread that a fork has ended
                self._judge_anew()
            while self._goes_on and self.state != "unavailable":
                self._look_for_devices()
                self._sample_for(LOOK_S)
        except GpuSenseError as error:
            self._give_up(str(error))
        except Exception as error:  # noqa: BLE001 - the program goes on without
            log.exception("counters", "sampling of counters failed and is off")
            self._give_up(f"{type(error).__name__}: {error}")
        finally:
            if not self._pausing:
                self._end_all()
            self._cpu_s = self._before_cpu_s + thread_time()
            if self.cost is None and self._judged_at:
                self.cost = self._spent(monotonic())
            self._answered = self._asked
            self._answer.set()

    @property
    def _goes_on(self) -> bool:
        return not self._ending and not self._pausing

    def _wait_for_cuda(self) -> None:
        wait_s = WAIT_S
        while self._goes_on and not cuda.SOURCE.devices():
            self._bell.wait(wait_s)
            wait_s = min(wait_s * 1.5, LONGEST_WAIT_S)

    def _look_for_devices(self) -> None:
        """Begins with each device that the program has begun to use."""
        used = cuda.SOURCE.in_use()
        for number in used if self._only is None else [number for number in used if number in self._only]:
            if number not in self._devices and number not in self._refused and self._goes_on and self._wanted():
                self._begin_with(number)
        self._give_up_without_devices()

    def _give_up_without_devices(self) -> None:
        if self._refused and not self._devices:
            number, reason = min(self._refused.items())
            self._give_up(reason if len(self._refused) == 1 else f"device {number}: {reason}")

    def _begin_with(self, number: int) -> None:
        if number in COUNTED:
            self._refused[number] = "blocks are measured in this process, and nothing else counts beside that"
            return
        if not self._devices:
            self.state, self.reason = "trying", "the sampler is tried in a child process"
        api = self._api = self._api or host.open_api()
        if isinstance(api, Unavailable):
            self._refused[number], self._api = str(api), None
            return
        refused = selftest.passed(host.path_of(api), number, selftest.identity(cuda.SOURCE.api(), number))
        if refused is not None:
            self._refused[number] = refused.reason + (f" ({refused.hint})" if refused.hint else "")
            return
        if not self._goes_on:
            return
        try:
            device = Device(opened(api, cuda.SOURCE.api(), number, self._interval_ns))
            device.sampler.start()
        except BackendError as error:
            self._refused[number] = str(error)
            return
        self._devices[number] = device
        self._compare(COMPARISONS)
        device.compared()
        if number in self._devices:
            self.state, self.reason = "sampling", ""
            self._changed()
        self._judge_anew()

    def _compare(self, readings: int) -> None:
        """Reads often for a moment: each reading bounds the distance of the two clocks."""
        self._compared_at = monotonic()
        for _ in range(readings):
            if not self._goes_on:
                return
            sleep(COMPARE_S)
            for device in list(self._devices.values()):
                self._read(device)

    def _sample_for(self, seconds: float) -> None:
        until = monotonic() + seconds
        while self._goes_on and monotonic() < until and self.state != "unavailable":
            asked, self._cpu_s = self._asked, self._before_cpu_s + thread_time()
            if self._wanted() != (self.state != "paused"):
                self._pause(self.state != "paused")
            began = monotonic()
            for number, device in list(self._devices.items()) if self.state == "sampling" else ():
                self._read(device)
                if number in self._devices and device.is_silent(began):
                    self._renew(device)
            now = monotonic()
            if asked != self._answered or now - self._handed_at >= HAND_ON_S:
                self._handed_at = now
                self._hand_all()
                self._answered = asked
                self._answer.set()
            if self.state == "sampling" and now - self._compared_at >= AGAIN_S:
                self._compare(COMPARED_AGAIN)
            if self.state == "sampling" and now - self._judged_at >= JUDGE_S:
                self._judge(now)
            self._bell.wait(max(0.0, min(READ_S, FULL * SAMPLES * self._interval_ns / 1e9) - (now - began)))

    def _read(self, device: Device) -> None:
        try:
            device.read()
        except BackendError as error:
            self._lose(device.sampler.device, str(error))

    def _renew(self, device: Device) -> None:
        """A sampler that has gone silent stays so, also when it is stopped and started; one that is opened anew does
        not (measured: CUPTI 13.0, H200, after another process launched a kernel with an illegal address)."""
        number = device.sampler.device
        self._hand(device)
        self._end_sampler(device)
        try:
            device.renew(opened(self._api, cuda.SOURCE.api(), number, self._interval_ns))
        except BackendError as error:
            self._lose(number, str(error))

    def _lose(self, number: int, reason: str) -> None:
        """What was sampled so far stays."""
        device = self._devices.pop(number)
        self._refused[number] = f"sampling ended: {reason}"
        self._lost.append(device)
        self._hand(device)
        self._end_sampler(device)
        self._give_up_without_devices()

    def _pause(self, pause: bool) -> None:
        for number, device in list(self._devices.items()):
            try:
                if pause:
                    device.sampler.stop()
                    self._read(device)  # what was counted until now
                    self._hand(device)
                else:
                    device.restart(self._interval_ns, PAUSED)
            except BackendError as error:  # noqa: PERF203 - a device at a time
                self._lose(number, str(error))
        if self._devices:
            self.state, self.reason = ("paused", "recording is disabled") if pause else ("sampling", "")
            self._judge_anew()

    def _judge_anew(self) -> None:
        self._judged_at, self._judged_cpu_s = monotonic(), thread_time()

    def _spent(self, now: float) -> float:
        return (thread_time() - self._judged_cpu_s) / max(1e-9, now - self._judged_at)

    def _judge(self, now: float) -> None:
        """What the last seconds cost; the rate follows it where that was left to us."""
        self.cost = self._spent(now)
        if self.rate is None:
            fitting = self._interval_ns * self.cost / MOST_COST
            fitting = min(max(fitting, 1e9 / FASTEST_HZ), 1e9 / SLOWEST_HZ)
            if not 1 / NEAR < fitting / self._interval_ns < NEAR:
                self._change_to(max(1, round(fitting * 1.1 / 1e6)) * 1_000_000)
        self._judge_anew()

    def _change_to(self, interval_ns: int) -> None:
        self._interval_ns = interval_ns
        for number, device in list(self._devices.items()):
            try:
                device.restart(interval_ns, ANOTHER_RATE)
            except BackendError as error:  # noqa: PERF203 - a device at a time
                self._lose(number, str(error))

    def _hand_all(self) -> None:
        for device in list(self._devices.values()):
            self._hand(device)

    def _hand(self, device: Device) -> None:
        columns = device.take()
        if len(columns):
            self._hand_on(columns)

    def _end_all(self) -> None:
        """Reads the rest and gives the hardware back."""
        for device in list(self._devices.values()):
            if device.sampler.running:
                self._read(device)
        self._hand_all()
        for device in list(self._devices.values()):
            self._end_sampler(device)
        if self.state != "unavailable":
            self.state, self.reason = "ended", "" if self._devices else self.reason

    def _end_sampler(self, device: Device) -> None:
        try:
            device.sampler.end()
        except BackendError as error:
            log.once(f"counters end {error}", "sampling could not be ended: %s", error)


def _single(values: list[float]) -> "array[float]":
    """As a column holds them: NaN for what is no number of it."""
    if not abs(sum(values)) < 3e38:
        values = [value if abs(value) < 3e38 else math.nan for value in values]
    return array("f", values)

"""The state shared by all wrappers: timers of devices, staged transfers, counters, and the way to the tracer."""

import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, NamedTuple

from ..._aggregation.same_kernels import SameKernels
from ..._records.records import Record
from ..._runtime import log, process
from ...backends.wgpu.source import WgpuSource
from ._batch import LENT, Pass, Timed
from ._host import Host
from ._poller import ROUND_S, SOON_S, Poller
from ._records import Staged, kernels, transfers
from ._timer import DeviceTimer, Passes

STAGE = 64  # transfers are handed on in lists of this length
MAX_ERRORS = 20
IDLE_NS = 200_000_000
ATTRIBUTE = "_gpusense"
#: Passes not submitted yet, by the handle of their command buffer; also those of an instrumentation that has ended.
FINISHED: "dict[Any, weakref.ref[Passes]]" = {}


class Asked(NamedTuple):
    """Of whom the wrappers ask what."""

    block: Callable[[], Any]  # the block that is current on this thread, or None
    near: Callable[[], Any]  # where it is cheaper: whether ``block()`` need be asked at all
    recording: Callable[[], bool]  # whether finished passes are wanted


class Hooks:
    """What is timed goes to ``source``, on the way to whoever has started that."""

    def __init__(self, host: Host, source: WgpuSource, asked: Asked, copies: bool) -> None:
        self.host, self.source, self.copies = host, source, copies
        self.block, self.near, self._recording = asked
        self.on = True
        self.failed = False  # off because of errors of ours
        self.here = source.here
        self.waiting: dict[Any, Pass] = {}  # passes on their way to the native call, by their encoder's handle
        self.finished = FINISHED
        self.entries: dict[str, str] = {}  # entry points that name passes, and which pipeline each stands for
        self.staged: deque[tuple[Any, ...]] = deque()  # fields of Staged
        self.pending: set[DeviceTimer] = set()
        self.counts: Counter[str] = Counter()
        self.untimed: Counter[str] = Counter()
        self._timers: weakref.WeakSet[DeviceTimer] = weakref.WeakSet()
        self._by_queue: weakref.WeakValueDictionary[Any, DeviceTimer] = weakref.WeakValueDictionary()
        self._unsubmitted: deque[int] = deque()  # passes of each encoder or command buffer that died so
        self._not_run = 0
        self._poller = Poller(self._look)
        self._lock = threading.RLock()  # a lost device is reported in the middle of a call made under it
        self._errors = 0
        process.register(self)
        source.timed_by(self)

    def timer(self, device: Any) -> DeviceTimer:
        """The timer of ``device``, made at its first use; two threads get the same one."""
        found = getattr(device, ATTRIBUTE, None)
        if found is None:
            with self._lock:
                found = getattr(device, ATTRIBUTE, None)
                if found is None:
                    found = DeviceTimer(self.host, device, self)
                    setattr(device, ATTRIBUTE, found)
                    self._timers.add(found)
                    self._by_queue[found.queue] = found
        return found

    def timer_of(self, queue: Any) -> DeviceTimer | None:
        """That of the device with this native queue, if it has one."""
        return self._by_queue.get(queue)

    def timers(self) -> list[DeviceTimer]:
        """Those of all devices that live."""
        with self._lock:
            return list(self._timers)

    def stage(self, item: Staged) -> None:
        """A transfer, which becomes a record with some others."""
        self.staged.append(item)
        number = len(self.staged)
        if number == 1 or number >= STAGE:
            self.staged_some(number)

    def staged_some(self, number: int) -> None:
        """The first transfer is staged, or so many that they are handed on."""
        if number >= STAGE:
            self.hand_on()
        else:
            self.wake()

    def hand_on(self, all_of_them: bool = False) -> None:
        """Staged transfers become records, once it is known on which device. Any thread; each item is taken once."""
        taken: list[Any] = []
        take = self.staged.popleft
        try:
            while True:
                taken.append(take())
        except IndexError:
            pass
        if not all_of_them and any(item[-1] is not None and not item[-1].clock.ready for item in taken):
            self.staged.extendleft(reversed(taken))
            return
        if taken:
            self._emit(transfers(taken), "transfers")

    def deliver(self, timer: DeviceTimer, timed: Timed) -> None:
        """Passes with their ticks become records."""
        found, refused = kernels(timer, timed, time.time_ns())
        for reason, number in refused.items():
            self.miss(reason, number)
        if found:
            self._emit(found, "timed")

    def miss(self, reason: str, number: int = 1) -> None:
        """Counts what has no record, by reason. Any thread."""
        with self._lock:
            self.untimed[reason] += number

    def never_ran(self, passes: Passes) -> None:
        """Passes that the program dropped unsubmitted: no GPU time is missing for them. Called by finalizers."""
        passes.timer.give_back([*passes.void, *(timed[LENT] for timed in passes if timed[LENT] is not None)])
        if passes:
            self._unsubmitted.append(len(passes))
        if passes.native is not None:
            known = self.finished.get(passes.native)
            if known is not None and known() is passes:  # the handle may be another command buffer's by now
                del self.finished[passes.native]

    def wake(self) -> None:
        """There is something that a program which goes quiet would leave."""
        self._poller.wake()

    def hurry(self) -> None:
        """A device is let go: what is under way on it is read at once. Called in the middle of anything."""
        if self.pending:
            self._poller.hurry()

    def fail(self, where: str) -> None:
        """An error of ours: logged once a place; after a few of them the wrappers only pass through."""
        self._errors += 1
        log.exception(f"wgpu {where}", "tracing wgpu failed in %s", where)
        if self._errors >= MAX_ERRORS and self.on:
            self.failed = True
            self._off()
            log.once("wgpu off", "wgpu tracing is off after %d errors", self._errors)

    def pump(self, timer: DeviceTimer) -> None:
        """Moves ``timer`` along, and hands on what is staged."""
        timer.pump()
        if self.staged:
            self.hand_on()

    def drain(self, timers: list[DeviceTimer], timeout_s: float) -> bool:
        """Waits, without blocking in a driver, until everything submitted has been read. False: it was too long, or a
        poll does not return."""
        deadline = time.monotonic() + timeout_s
        for timer in timers if self.staged else ():
            timer.clock.wait(max(0.0, deadline - time.monotonic()))
        self.hand_on(all_of_them=True)
        for timer in timers:
            pause = 0.0002
            while True:
                try:
                    timer.pump(force=True)
                except Exception:  # noqa: BLE001 - what failed has been given up; the next step is another one
                    self.fail("flush")
                left = deadline - time.monotonic()
                if timer.over(left):
                    break
                if left <= 0:
                    return False
                if not self._poller.run(timer.poll, left):
                    return False
                if not timer.events:  # what has arrived is the next step's at once
                    timer.settle(min(pause, left))
                    pause = min(pause * 2, 0.005)
        return True

    def lost(self, message: str) -> None:
        """wgpu-py reports a lost device without saying which: none is touched again."""
        for timer in self.timers():
            if timer.dead is None:
                timer.dead = f"a device was lost: {message}"  # no lock: this runs inside a native callback
                timer.lend_no_more()
            timer.gone = True

    def flush(self, timeout_s: float) -> bool:
        """Everything submitted so far has been timed and handed on; False when that took too long."""
        return self.host.exiting or self.drain(self.timers(), timeout_s)

    def status(self) -> dict[str, Any]:
        """The fields of ``Statistics``."""
        with self._lock:
            untimed = dict(self.untimed)
            while self._unsubmitted:
                self._not_run += self._unsubmitted.popleft()
        return {
            "timed": self.counts["timed"],
            "transfers": self.counts["transfers"],
            "untimed": untimed,
            "not_run": self._not_run,
            "errors": self._errors,
            "clocks": tuple((str(timer.info.get("device")), timer.clock_text()) for timer in self.timers()),
        }

    def close(self) -> None:
        """Wrappers only pass through from now on; devices made so far are as they were before."""
        self._off()
        self._poller.end()
        self.source.timed_by(None)
        for timer in self.timers():
            device = timer.device_ref()
            if device is not None:
                device.__dict__.pop(ATTRIBUTE, None)
        self.pending.clear()

    def at_exit(self) -> None:
        if self.on and not self.host.exiting:
            self.flush(1.0)
        self._off()
        self._poller.end()
        self.host.exiting = True

    def after_fork_in_child(self) -> None:
        """A forked child has no GPU."""
        self._lock = threading.RLock()
        self._off()
        self.host.exiting = True

    def _look(self) -> float:
        """The poller's step: takes those of devices whose programs have not submitted for a while. When the next is
        due, in seconds; 0: nothing is left to do."""
        if not self.on:
            return 0
        for timer in list(self.pending):
            if timer.orphan or timer.idle_ns(time.time_ns()) > IDLE_NS:
                timer.poll()
                try:
                    timer.pump(force=True)
                except Exception:  # noqa: BLE001 - what failed has been given up
                    self.fail("poll")
        if self.staged:
            self.hand_on()
        left = list(self.pending)
        return (SOON_S if any(timer.orphan for timer in left) else ROUND_S) if left else 0

    def _off(self) -> None:
        self.on = False
        for timer in self.timers():
            timer.lend_no_more()

    def _emit(self, found: "list[Record | SameKernels] | list[Record]", counter: str) -> None:
        self.counts[counter] += sum(len(item) if isinstance(item, SameKernels) else 1 for item in found)
        try:
            if self._recording():
                self.source.hand_on(found)
        except Exception:  # noqa: BLE001 - never into the program
            self.fail("emit")

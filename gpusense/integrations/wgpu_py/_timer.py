"""Timing of one wgpu device's passes: queries lent out, gated, resolved in a submission of our own, read back.

A pass borrows two neighbouring queries. After the program's submit its passes wait until enough have come together or
the oldest is old enough; then a work-done callback gates them, because some drivers resolve zeros for work that has not
finished (gfx-rs/wgpu#6406, #9414); then they are resolved, mapped and decoded. Each step is taken when the program
next submits, never by waiting; and not at each submit, but when something has arrived, enough has come together, or
nobody has looked for a few milliseconds.

Threads: whoever gets the lock without waiting moves the steps along; the others append to deques.
``__del__`` and native callbacks only append.
"""

import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from time import sleep, time_ns
from typing import Any

from ._batch import LENT, OWN, Batch, Lent, Pass, Timed
from ._clock_setup import ClockSetup
from ._host import Host, Pair
from ._queries import RESOLVE_ALIGNMENT, Places, Queries, taken

BATCH = 512
AGE_NS = 100_000_000
LOOK_NS = 5_000_000
IN_FLIGHT = 4
OWN_IN_FLIGHT = 16


class Passes(list[Pass]):
    """The passes of one encoder, later of its command buffer; gives the queries back if it dies unsubmitted."""

    __slots__ = ("device", "lend", "own", "submitted_ns", "timer")

    device: Any  # lives until they are read
    lend: Any  # of the timer
    own: bool  # some have the program's own queries
    submitted_ns: int  # 0: not yet
    timer: "DeviceTimer"

    def __del__(self) -> None:
        if not self.submitted_ns and self:
            lent = [timed[LENT] for timed in self]
            self.timer.events.append((self.timer.give_up, (lent, "its commands were never submitted")))


class DeviceTimer:
    """``deliver(timer, timed)`` gets raw ticks, ``miss(reason, count)`` what has none."""

    def __init__(
        self,
        host: Host,
        device: Any,
        deliver: Callable[["DeviceTimer", Timed], None],
        miss: Callable[[str, int], None],
        pending: set["DeviceTimer"],
    ) -> None:
        self.device_ref = weakref.ref(device)
        self.host = host
        self.dead: str | None = None  # why this device's passes are not timed
        self.gone = False  # destroyed or lost: not to be touched in any way
        self.free: deque[Lent] = deque()
        self.lending = True
        self.events: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self.look_ns = 0  # the next step is due
        self.queued = 0  # passes submitted since the last step, or fewer: threads may count over each other
        self.hurry = False  # queries of the program's own are to be read before it writes them again
        self.lock = threading.RLock()
        self.copies = False
        self._deliver, self._miss, self._pending_timers = deliver, miss, pending
        self._submitted: deque[Passes] = deque()
        self._ready = Batch()
        self._own: list[tuple[Pass, int]] = []
        self._undated: list[Timed] = []
        self._oldest_ns = self._last_ns = 0
        self._stepping = False
        self._flying: dict[int, Batch] = {}
        self._numbers = count(1)
        self._pool: list[Pair] = []
        self._device: Any = None  # held while passes are pending
        held = device.__dict__
        self._keep = (device.adapter, held.get("_uncaptured_error_callback"), held.get("_device_lost_callback"))
        self._queue = device.queue._internal  # valid as long as the device; ``_device`` holds that
        adapter = device.adapter
        self.info = dict(getattr(adapter, "info", None) or getattr(adapter, "_adapter_info", None) or {})
        features = set(device.features)
        if "timestamp-query" not in features:
            self.dead = "the device has no timestamp-query (made before instrument(), or its adapter lacks it)"
            return
        metal = str(self.info.get("backend_type")) == "Metal"
        # On Metal submissions with stamps between passes never end (wgpu-native#624).
        self.copies = "timestamp-query-inside-encoders" in features and not metal
        try:
            self.queries = Queries(host, device._internal, self._keep, one_set=metal)
        except Exception as error:  # noqa: BLE001 - Metal allows few a process; once is enough to know
            self.dead = f"no query set could be made ({type(error).__name__})"
            return
        self.free.extend(self.queries.all)
        self.clock = ClockSetup(self.info, host.period_ns(self._queue))

    # --- the program's side ---------------------------------------------------------------------------------------

    def submitted(self, device: Any, passes: Passes, now_ns: int) -> None:
        """Passes that the program submitted at ``now_ns``."""
        passes.submitted_ns = self._last_ns = now_ns
        self.queued += len(passes)
        if not passes.own and self.lock.acquire(False):
            try:
                if not self._stepping:
                    self._stepping = True
                    try:
                        self._device, ready = device, self._ready
                        if not ready.which:
                            self._oldest_ns = now_ns
                            self._pending_timers.add(self)
                        ready.add(passes, now_ns)
                    finally:
                        self._stepping = False
                    return
            finally:
                self.lock.release()
        passes.device = device
        if passes.own:
            self.hurry = True
        first = not self._submitted
        self._submitted.append(passes)
        if first:
            self._pending_timers.add(self)

    def pump(self, force: bool = False) -> None:
        """Takes every step that can be taken without waiting; at once a no-op when another thread is at it."""
        if not self.lock.acquire(blocking=False):
            return
        try:
            if self._stepping:  # a callback or finalizer of the program, run in the middle of a step, came here again
                return
            self._stepping = True
            try:
                self._step(force)
            finally:
                self._stepping = False
        finally:
            self.lock.release()

    @property
    def idle(self) -> bool:
        """Nothing is under way."""
        return not (self._submitted or self._ready or self._own or self._flying or self._undated or self.events)

    def poll(self) -> None:
        """Lets native callbacks run; the program's own polls and submits do the same."""
        device = self._device
        if device is not None and self.dead is None and device._internal is not None:
            self.host.poll(device._internal)

    def idle_ns(self, now_ns: int) -> int:
        """How long ago the program last submitted."""
        return now_ns - self._last_ns

    def settle(self, seconds: float) -> None:
        """Waits for the clock to be ready, else just a moment."""
        if self._undated and not self.clock.ready:
            self.clock.wait(seconds)
        else:
            sleep(seconds)

    def stop(self, reason: str) -> None:
        """Nothing of ours reaches the device once this returns; what is pending is counted under ``reason``."""
        self.dead, self.gone = reason, True
        self.lend_no_more()
        with self.lock:
            pass  # a step that another thread was taking is over
        self.pump()

    def give_back(self, lent: Sequence[Lent]) -> None:
        """Queries that may be lent again."""
        if self.lending:
            self.free.extend(lent)

    def lend_no_more(self) -> None:
        """The wrappers find no queries, and so need not ask whether there is a reason to time nothing."""
        self.lending = False
        self.free.clear()

    def give_up(self, lent: Sequence[Lent | None], reason: str) -> None:
        """Returns queries whose values will not be read."""
        self.give_back([queries for queries in lent if queries is not None])
        if lent:
            self._miss(reason, len(lent))

    def clock_text(self) -> str:
        """How this device's ticks reach the wall clock, for people."""
        if self.dead is not None:
            return self.dead
        if not self.clock.ready:
            return "not ready yet"
        clock = self.clock.clock
        if clock is None:
            return self.clock.reason
        quality = clock.quality(time_ns())
        reason = clock.rejected or self.clock.calibration
        if quality["clock_uncertainty_ns"] is None:
            return "nothing known before its first pass" + (f" ({reason})" if reason else "")
        return f"{quality['clock']}, ±{quality['clock_uncertainty_ns']} ns" + (f" ({reason})" if reason else "")

    # --- under the lock -------------------------------------------------------------------------------------------

    def _step(self, force: bool) -> None:
        self.queued, self.hurry = 0, False
        while self.events:
            action, arguments = self.events.popleft()
            action(*arguments)
        self._take()
        now = time_ns()
        if self.dead is not None:
            self._abandon(self.dead)
        else:
            self._advance(force, now)
        self.look_ns = now + LOOK_NS
        if self._undated and self.clock.ready:
            undated, self._undated = self._undated, []
            for found in undated:
                self._deliver(self, found)
        if self.idle:
            self._device = None
            self._pending_timers.discard(self)
            if self._submitted:  # another thread submitted in between
                self._pending_timers.add(self)

    def _take(self) -> None:
        """Passes that were submitted while another step was taken, or that have the program's own queries."""
        while self._submitted:
            passes = self._submitted.popleft()
            if passes.own:
                self._own += [(timed, passes.submitted_ns) for timed in passes if timed[OWN] is not None]
                passes[:] = [timed for timed in passes if timed[OWN] is None]
            self._device, ready = passes.device, self._ready
            if not ready:
                self._oldest_ns = passes.submitted_ns
            ready.add(passes, passes.submitted_ns)

    def _advance(self, force: bool, now_ns: int) -> None:
        if self._own and len(self._flying) < OWN_IN_FLIGHT:
            self._resolve_own()
        waiting = len(self._ready)
        due = force or waiting >= BATCH or now_ns - self._oldest_ns >= AGE_NS
        if due and waiting and len(self._flying) < IN_FLIGHT:
            self._gate()

    def _abandon(self, reason: str) -> None:
        ready, own, self._ready, self._own = self._ready, self._own, Batch(), []
        self.give_up([*ready.lent, *[None for _ in own]], reason)
        for batch in self._flying.values():
            self.give_up(batch.lent, reason)
        self._flying.clear()  # what still arrives is not expected any more

    def _gate(self) -> None:
        batch, self._ready = self._ready, Batch()
        if not batch or self.gone:
            self.give_up(batch.lent, self.dead or "")
            return
        number, events = next(self._numbers), self.events

        def done(succeeded: bool) -> None:
            events.append((self._finished, (number, succeeded, time_ns())))

        self._flying[number] = batch
        try:
            self.host.when_done(self._queue, done)
        except Exception:
            del self._flying[number]
            self.give_up(batch.lent, "the work-done callback could not be set")
            raise

    def _finished(self, number: int, succeeded: bool, seen_ns: int) -> None:
        batch = self._flying.pop(number, None)
        if batch is None:
            return
        if not succeeded:
            self.give_up(batch.lent, "the device failed while the work was under way")
            return
        order, places = self.queries.places(batch.lent)
        self._read(batch if order is None else batch.pick(order), places, seen_ns)

    def _resolve_own(self) -> None:
        """Passes with the program's own queries, right behind its submit: the next frame writes the same ones again."""
        own, self._own = self._own, []
        latest: dict[tuple[int, int], Pass] = {}
        for timed, _ in own:
            query_set, *indices = timed[OWN]
            for index in indices:
                latest[id(query_set), index] = timed
        places = Places([], [], [])
        offset = overwritten = gone = 0
        batch = Batch()
        for timed, submitted_ns in own:
            query_set, begin, end = timed[OWN]
            if query_set._internal is None:
                gone += 1
            elif any(latest[id(query_set), index] is not timed for index in (begin, end)):
                overwritten += 1
            else:
                for index, found in ((begin, places.begins), (end, places.ends)):
                    places.runs.append((query_set._internal, index, 1, offset))
                    found.append(slice(offset >> 3, (offset >> 3) + 1))
                    offset += RESOLVE_ALIGNMENT
                batch.add([timed], submitted_ns)
        self.give_up([None] * overwritten, "a later pass wrote the same queries")
        self.give_up([None] * gone, "the program destroyed its query set")
        if batch:
            self._read(batch, places, None)

    def _read(self, batch: Batch, places: Places, seen_ns: int | None) -> None:
        """Resolves the queries and, when the data has arrived, takes the stamps of ``batch``."""
        _, _, stamps, offset = places.runs[-1]
        size = offset + 8 * stamps
        device = self._device
        if device is None or device._internal is None or self.gone:
            self.give_up(batch.lent, self.dead or "the device was released before its queries were read")
            return
        number, events = next(self._numbers), self.events
        try:
            pair = self._borrow(device, size)
        except Exception:
            self.give_up(batch.lent, "no buffer to read the queries into could be made")
            raise

        def arrived(data: bytes | None) -> None:
            events.append((self._arrived, (number, places, pair, data, seen_ns or time_ns())))

        self._flying[number] = batch
        try:
            if self.host.resolve(device._internal, self._queue, places.runs, pair, size, self._alive):
                self.host.read(pair.mapped, size, self._alive, arrived)
            else:
                del self._flying[number]
                self.give_up(batch.lent, self.dead or "")
        except Exception:
            del self._flying[number]
            self.give_up(batch.lent, "resolving the queries failed")
            raise

    def _arrived(self, number: int, places: Places, pair: Pair, data: bytes | None, seen_ns: int) -> None:
        batch = self._flying.pop(number, None)
        if batch is None:
            return
        if data is None:
            self.give_up(batch.lent, "the queries could not be mapped")
            return
        self._pool.append(pair)
        if batch.lent[0] is not None:
            self.give_back(batch.lent)  # a batch has the program's queries, or all of them are ours
        stamps = memoryview(data).cast("Q").tolist()
        found = Timed(batch, taken(stamps, places.begins), taken(stamps, places.ends), seen_ns)
        if 0 in found.begins or 0 in found.ends:
            found = self._without_zeros(found)
        if found.batch:
            self._undated.append(found)

    def _without_zeros(self, found: Timed) -> Timed:
        """Some drivers leave queries unwritten (empty passes on Metal, resolves that come too early)."""
        kept = [at for at, both in enumerate(zip(found.begins, found.ends, strict=True)) if all(both)]
        self._miss("the driver wrote no time stamp", len(found.batch) - len(kept))
        begins, ends = [found.begins[at] for at in kept], [found.ends[at] for at in kept]
        return Timed(found.batch.pick(kept), begins, ends, found.seen_ns)

    def _alive(self) -> bool:
        """False once a callback, finalizer or signal handler of the program has destroyed the device during a step."""
        return not self.gone

    def _borrow(self, device: Any, size: int) -> Pair:
        for index, pair in enumerate(self._pool):
            if pair.size >= size:
                return self._pool.pop(index)
        return self.host.pair(device._internal, max(4096, 1 << (size - 1).bit_length()), self._keep)

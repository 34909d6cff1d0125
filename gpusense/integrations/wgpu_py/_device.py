"""Timing of one wgpu device's passes: queries lent out, gated, resolved in a submission of our own, read back.

A pass borrows two neighbouring queries of the one query set (Metal allows few sets a process). After the program's
submit its passes wait until enough have come together or the oldest is old enough; then a work-done callback gates
them, because some drivers resolve zeros for work that has not finished (gfx-rs/wgpu#6406, #9414); then they are
resolved, mapped and decoded. Each step is taken when the program next submits, never by waiting; and not at each
submit, but when something has arrived, enough has come together, or nobody has looked for a few milliseconds.

Threads: the program's threads append to deques; whoever gets the lock without waiting moves the steps along.
``__del__`` and native callbacks only append.
"""

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from operator import attrgetter
from time import sleep, time_ns
from typing import Any

from ._clock import ClockSetup
from ._host import Host, Pair, Run
from ._pass import Pass, Passes, Timed

QUERIES = 4096  # the most a set may have; two a pass
BATCH = 512
AGE_NS = 100_000_000
LOOK_NS = 5_000_000
IN_FLIGHT = 4
OWN_IN_FLIGHT = 16
RESOLVE_ALIGNMENT = 256


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
        self.free: deque[int] = deque()
        self.events: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self.writes: dict[str, list[Any]] = {}
        self.look_ns = 0  # the next step is due
        self.queued = 0  # passes submitted since the last step, or fewer: threads may count over each other
        self.hurry = False  # queries of the program's own are to be read before it writes them again
        self.lock = threading.RLock()
        self.copies = False
        self._deliver, self._miss, self._pending_timers = deliver, miss, pending
        self._submitted: deque[Passes] = deque()
        self._ready: list[Pass] = []
        self._own: list[Pass] = []
        self._undated: list[Timed] = []
        self._oldest_ns = self._last_ns = 0
        self._stepping = False
        self._flying: dict[int, list[Pass]] = {}
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
        metal = (
            str(self.info.get("backend_type")) == "Metal"
        )  # submissions with such stamps never end (wgpu-native#624)
        self.copies = "timestamp-query-inside-encoders" in features and not metal
        try:
            self.query_set = host.query_set(device._internal, QUERIES, self._keep)
            names = host.write_kinds()
            made = {name: host.writes(name, self.query_set, QUERIES // 2) for name in set(names.values())}
            self._arrays = [array for array, _ in made.values()]
            self.writes = {kind: made[name][1] for kind, name in names.items()}
        except Exception as error:  # noqa: BLE001 - Metal allows few a process; once is enough to know
            self.dead = f"no query set could be made ({type(error).__name__})"
            return
        self.free.extend(range(0, QUERIES, 2))
        self.clock = ClockSetup(self.info, host.period_ns(self._queue))

    # --- the program's side ---------------------------------------------------------------------------------------

    def submitted(self, device: Any, passes: Passes, now_ns: int) -> None:
        """Passes that the program submitted at ``now_ns``."""
        passes.device = device
        passes.submitted_ns = self._last_ns = now_ns
        self.queued += len(passes)
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
        with self.lock:
            pass  # a step that another thread was taking is over
        self.pump()

    def give_up(self, passes: Iterable[Pass], reason: str) -> None:
        """Returns queries whose values will not be read."""
        number = 0
        for timed in passes:
            number += 1
            if timed.slot >= 0:
                self.free.append(timed.slot)
        if number:
            self._miss(reason, number)

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
        return f"{quality['clock']}, ±{quality['clock_uncertainty_ns']} ns" + (f" ({reason})" if reason else "")

    # --- under the lock -------------------------------------------------------------------------------------------

    def _step(self, force: bool) -> None:
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
        """Passes that were submitted since the last step."""
        self.queued, self.hurry = 0, False
        while self._submitted:
            passes = self._submitted.popleft()
            submitted = passes.submitted_ns
            self._device = passes.device
            for timed in passes:
                timed.submitted_ns = submitted
            if not self._ready:
                self._oldest_ns = submitted
            if passes.own:
                self._own += [timed for timed in passes if timed.own is not None]
                self._ready += [timed for timed in passes if timed.own is None]
            else:
                self._ready += passes

    def _advance(self, force: bool, now_ns: int) -> None:
        if self._own and len(self._flying) < OWN_IN_FLIGHT:
            self._resolve_own()
        due = force or len(self._ready) >= BATCH or now_ns - self._oldest_ns >= AGE_NS
        if due and self._ready and len(self._flying) < IN_FLIGHT:
            self._gate()

    def _abandon(self, reason: str) -> None:
        ready, self._ready, self._own = self._ready + self._own, [], []
        self.give_up(ready, reason)
        for passes in self._flying.values():
            self.give_up(passes, reason)
        self._flying.clear()  # what still arrives is not expected any more

    def _gate(self) -> None:
        batch, self._ready = self._ready[:BATCH], self._ready[BATCH:]
        self._oldest_ns = time_ns()
        if not batch or self.gone:
            self.give_up(batch, self.dead or "")
            return
        number, events = next(self._numbers), self.events

        def done(succeeded: bool) -> None:
            events.append((self._finished, (number, succeeded, time_ns())))

        self._flying[number] = batch
        try:
            self.host.when_done(self._queue, done)
        except Exception:
            del self._flying[number]
            self.give_up(batch, "the work-done callback could not be set")
            raise

    def _finished(self, number: int, succeeded: bool, seen_ns: int) -> None:
        batch = self._flying.pop(number, None)
        if batch is None:
            return
        if not succeeded:
            self.give_up(batch, "the device failed while the work was under way")
            return
        internal = self.query_set._internal
        slots = [timed.slot for timed in batch]
        first, number = slots[0], 2 * len(slots)
        if slots == list(range(first, first + number, 2)):  # lent out in a ring, so most batches are one stretch of it
            self._read(batch, [(internal, first, number, 0)], range(0, number, 2), range(1, number, 2), seen_ns)
            return
        batch.sort(key=_slot)
        stretches: list[list[int]] = []  # first query, count, offset
        places: list[int] = []  # of the begin, in stamps of eight bytes
        last, offset = [0, -1, 0], 0
        for timed in batch:
            if last[0] + last[1] == timed.slot:
                last[1] += 2
            else:
                offset = _aligned(offset)
                last = [timed.slot, 2, offset]
                stretches.append(last)
            places.append(offset >> 3)
            offset += 16
        runs = [(internal, first, count, at) for first, count, at in stretches]
        self._read(batch, runs, places, [at + 1 for at in places], seen_ns)

    def _resolve_own(self) -> None:
        """Passes with the program's own queries, right behind its submit: the next frame writes the same ones again."""
        own, self._own = self._own, []
        latest: dict[tuple[int, int], Pass] = {}
        for timed in own:
            assert timed.own is not None
            for index in timed.own[1:]:
                latest[id(timed.own[0]), index] = timed
        runs: list[Run] = []
        begins, ends, batch, overwritten, gone = [], [], [], [], []  # type: ignore[var-annotated]
        offset = 0
        for timed in own:
            assert timed.own is not None
            query_set, begin, end = timed.own
            if query_set._internal is None:
                gone.append(timed)
            elif any(latest[id(query_set), index] is not timed for index in (begin, end)):
                overwritten.append(timed)
            else:
                for index, places in ((begin, begins), (end, ends)):
                    runs.append((query_set._internal, index, 1, offset))
                    places.append(offset >> 3)
                    offset += RESOLVE_ALIGNMENT
                batch.append(timed)
        self.give_up(overwritten, "a later pass wrote the same queries")
        self.give_up(gone, "the program destroyed its query set")
        if batch:
            self._read(batch, runs, begins, ends, None)

    def _read(
        self,
        batch: list[Pass],
        runs: list[Run],
        begins: Sequence[int],
        ends: Sequence[int],
        seen_ns: int | None,
    ) -> None:
        """Resolves ``runs`` and, when the data has arrived, takes the stamps at ``begins`` and ``ends``."""
        _, _, stamps, offset = runs[-1]
        size = offset + 8 * stamps
        device = self._device
        if device is None or device._internal is None or self.gone:
            self.give_up(batch, self.dead or "the device was released before its queries were read")
            return
        number, events = next(self._numbers), self.events
        try:
            pair = self._borrow(device, size)
        except Exception:
            self.give_up(batch, "no buffer to read the queries into could be made")
            raise

        def arrived(data: bytes | None) -> None:
            events.append((self._arrived, (number, begins, ends, pair, data, seen_ns or time_ns())))

        self._flying[number] = batch
        try:
            if self.host.resolve(device._internal, self._queue, runs, pair, size, self._alive):
                self.host.read(pair.mapped, size, self._alive, arrived)
            else:
                del self._flying[number]
                self.give_up(batch, self.dead or "")
        except Exception:
            del self._flying[number]
            self.give_up(batch, "resolving the queries failed")
            raise

    def _arrived(
        self, number: int, begins: Sequence[int], ends: Sequence[int], pair: Pair, data: bytes | None, seen_ns: int
    ) -> None:
        batch = self._flying.pop(number, None)
        if batch is None:
            return
        if data is None:
            self.give_up(batch, "the queries could not be mapped")
            return
        self._pool.append(pair)
        self.free.extend([timed.slot for timed in batch if timed.slot >= 0])
        stamps = memoryview(data).cast("Q").tolist()
        found = Timed(batch, [stamps[at] for at in begins], [stamps[at] for at in ends], seen_ns)
        if 0 in found.begins or 0 in found.ends:
            found = self._without_zeros(found)
        if found.passes:
            self._undated.append(found)

    def _without_zeros(self, found: Timed) -> Timed:
        """Some drivers leave queries unwritten (empty passes on Metal, resolves that come too early)."""
        kept = [at for at, both in enumerate(zip(found.begins, found.ends, strict=True)) if all(both)]
        self._miss("the driver wrote no time stamp", len(found.passes) - len(kept))
        return Timed(
            [found.passes[at] for at in kept],
            [found.begins[at] for at in kept],
            [found.ends[at] for at in kept],
            found.seen_ns,
        )

    def _alive(self) -> bool:
        """False once a callback, finalizer or signal handler of the program has destroyed the device during a step."""
        return not self.gone

    def _borrow(self, device: Any, size: int) -> Pair:
        for index, pair in enumerate(self._pool):
            if pair.size >= size:
                return self._pool.pop(index)
        return self.host.pair(device._internal, max(4096, 1 << (size - 1).bit_length()), self._keep)


_slot = attrgetter("slot")


def _aligned(offset: int) -> int:
    return (offset + RESOLVE_ALIGNMENT - 1) & ~(RESOLVE_ALIGNMENT - 1)

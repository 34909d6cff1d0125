"""Timing of one wgpu device's passes: queries lent out, gated, resolved in a submission of our own, read back.

A pass borrows two neighbouring queries. After the program's submit its passes wait until enough have come together or
the oldest is old enough; then a work-done callback gates them, because some drivers resolve zeros for work that has not
finished (gfx-rs/wgpu#6406, #9414); then they are resolved, mapped and decoded. Each step is taken when the program
next submits, never by waiting; and not at each submit, but when something has arrived, enough has come together, or
nobody has looked for a few milliseconds. What a program that goes quiet has left :mod:`._poller` fetches.

Threads: whoever gets the lock without waiting moves the steps along; the others append to deques.
``__del__`` and native callbacks only append.
"""

import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from time import sleep, time_ns
from typing import Any, Protocol

from ...backends.wgpu.source import WgpuSource
from ._batch import OWN, Batch, Lent, Pass, Timed
from ._clock_setup import OPENGL, ClockSetup
from ._host import Host, Pair
from ._queries import Places, Queries, own_places, taken

TIME_STAMPS, STAMPS_BETWEEN_PASSES = "timestamp-query", "timestamp-query-inside-encoders"
BATCH = 512
AGE_NS = 100_000_000
LOOK_NS = 5_000_000
IN_FLIGHT = 4
OWN_IN_FLIGHT = 16


class Passes(list[Pass]):
    """The passes of one encoder, later of its command buffer; gives the queries back if it dies unsubmitted."""

    __slots__ = ("__weakref__", "device", "lend", "native", "own", "submitted_ns", "timer", "void")

    device: Any  # lives until they are read
    lend: Any  # of the timer
    native: Any  # the command buffer; None: not finished yet
    own: bool  # some have the program's own queries
    submitted_ns: int  # 0: not yet
    timer: "DeviceTimer"
    void: list[Lent]  # queries that its commands write and nobody reads

    def __del__(self) -> None:
        if not self.submitted_ns:
            self.timer.owner.never_ran(self)


class Owner(Protocol):
    """Of all timers: it gets what they find out."""

    pending: set["DeviceTimer"]  # those with something under way
    source: WgpuSource

    def deliver(self, timer: "DeviceTimer", timed: Timed) -> None:
        """Raw ticks."""

    def miss(self, reason: str, number: int = 1) -> None:
        """Passes that ran and have none."""

    def never_ran(self, passes: Passes) -> None:
        """They died unsubmitted. Called by finalizers, anywhere."""

    def wake(self) -> None:
        """Something is under way, which another submit of the program may not follow."""

    def hurry(self) -> None:
        """A device is let go. Called in the middle of anything."""


class DeviceTimer:
    """Of one device. ``free`` is empty until somebody asks for :meth:`more`."""

    def __init__(self, host: Host, device: Any, owner: Owner) -> None:
        # What is under way is finished soon once the program lets the device go.
        self.device_ref = weakref.ref(device, lambda _: owner.hurry())
        self.host, self.owner = host, owner
        self.dead: str | None = None  # why this device's passes are not timed
        self.gone = False  # destroyed or lost: not to be touched in any way
        self.free: deque[Lent] = deque()
        self.lending = True
        self.events: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self.look_ns = 0  # the next step is due
        self.queued = 0  # passes submitted since the last step, or fewer: threads may count over each other
        self.own_waits = False  # queries of the program's own are to be read before it submits again
        self.lock = threading.RLock()
        self._making = threading.RLock()  # not ``lock``: a step may call a sink of the program's
        self.copies = False
        self._submitted: deque[Passes] = deque()
        self._ready = Batch()
        self._own: list[tuple[Pass, int]] = []
        self._undated: list[Timed] = []
        self._seen: dict[int, tuple[int, int]] = {}  # what our queries held when they were last read
        self._own_seen: weakref.WeakKeyDictionary[Any, dict[tuple[int, int], tuple[int, int]]] = (
            weakref.WeakKeyDictionary()
        )
        self._oldest_ns = self._last_ns = 0
        self._stepping = False
        self._flying: dict[int, Batch] = {}
        self._numbers = count(1)
        self._pool: list[Pair] = []
        held = device.__dict__
        self._keep = (held.get("_uncaptured_error_callback"), held.get("_device_lost_callback"))
        adapter = device.adapter
        self.info = dict(getattr(adapter, "info", None) or getattr(adapter, "_adapter_info", None) or {})
        self.opengl = self.info.get("backend_type") in OPENGL
        self._native, self.queue = device._internal, device.queue._internal
        self.clock = ClockSetup(self.info, host.period_ns(self.queue))
        self._shared: tuple[Any, Any] = (None, None)
        self._held: Any = None  # the program's device while passes are pending, where the native ones cannot be shared
        if self.opengl:
            self.dead = "times of OpenGL cannot be read beside the program's threads"
            return
        # The native objects live until the timer has read what is under way, the program's do not.
        self._shared = host.share("Device", self._native, self._keep), host.share("Queue", self.queue, self._keep)
        if not host.has_feature(device, TIME_STAMPS):
            self.dead = "the device has no timestamp-query (made before instrument(), or its adapter lacks it)"
            return
        metal = str(self.info.get("backend_type")) == "Metal"
        # On Metal submissions with stamps between passes never end (wgpu-native#624).
        self.copies = host.has_feature(device, STAMPS_BETWEEN_PASSES) and not metal
        self.queries = Queries(host, self._native, self._keep, one_set=metal)

    # --- the program's side ---------------------------------------------------------------------------------------

    def submitted(self, device: Any, passes: Passes, now_ns: int) -> None:
        """Passes that the program submitted at ``now_ns``."""
        passes.submitted_ns = self._last_ns = now_ns
        if passes.void:
            self.give_back(passes.void)  # whoever has them next is submitted later
            if not passes:
                return
        self.queued += len(passes)
        if not passes.own and self.lock.acquire(False):
            try:
                if not self._stepping:
                    self._stepping = True
                    try:
                        ready = self._ready
                        if not self._shared[0] and not self.opengl:
                            self._held = device
                        if not ready.which:
                            self._oldest_ns = now_ns
                            self._under_way()
                        ready.add(passes, now_ns)
                    finally:
                        self._stepping = False
                    return
            finally:
                self.lock.release()
        passes.device = device
        if passes.own:
            self.own_waits = True
        first = not self._submitted
        self._submitted.append(passes)
        if first:
            self._under_way()

    def read_own(self) -> None:
        """Reads the program's own queries, which nothing but a submit can write again; it is about to submit. Later
        than behind the submit that wrote them: some drivers let a submit wait for the one before."""
        if self.lock.acquire(blocking=False):
            try:
                if not self._stepping:
                    self._stepping = True
                    try:
                        self.own_waits = False
                        self._take()
                        if self.dead is None:
                            self._resolve_own()
                    finally:
                        self._stepping = False
            finally:
                self.lock.release()

    def more(self) -> Lent | None:
        """Queries of another set; None where there can be none, or none are lent any more."""
        with self._making:
            if self.free or self.dead is not None or not self.lending:
                return self.free.popleft() if self.free else None
            try:
                made = self.queries.more()
            except Exception as error:  # noqa: BLE001 - Metal allows few a process; once is enough to know
                if not self.queries.all:
                    self.dead = f"no query set could be made ({type(error).__name__})"
                self.queries.no_more()
                return None
            self.free.extend(made[1:])
            return made[0] if made else None

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

    def over(self, timeout_s: float) -> bool:
        """Whether nothing is under way, nor in the hands of another thread, for which it waits."""
        if not self.lock.acquire(timeout=max(timeout_s, 0.0)):
            return False
        try:
            return self.idle
        finally:
            self.lock.release()

    def poll(self) -> None:
        """Lets native callbacks run; the program's own polls and submits do the same."""
        if self.dead is None and (self._shared[0] or self._held is not None):
            self.host.poll(self._native)

    @property
    def orphan(self) -> bool:
        """The program has let the device go."""
        return self.device_ref() is None

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
            self.owner.miss(reason, len(lent))

    def number(self) -> int | None:
        """The device's in :func:`gpusense.devices`; None while it is not known, and where it cannot be."""
        device = self.clock.place()
        if device is None:
            return None
        self.owner.source.used(device)
        return device.index

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
        self.queued = 0
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
                self.owner.deliver(self, found)
        if self.idle:
            self._held = None
            self.owner.pending.discard(self)
            if self._submitted:  # another thread submitted in between
                self._under_way()

    def _under_way(self) -> None:
        self.owner.pending.add(self)
        self.owner.wake()

    def _take(self) -> None:
        """Passes that were submitted while another step was taken, or that have the program's own queries."""
        while self._submitted:
            passes = self._submitted.popleft()
            if passes.own:
                self._own += [(timed, passes.submitted_ns) for timed in passes if timed[OWN] is not None]
                passes[:] = [timed for timed in passes if timed[OWN] is None]
            ready = self._ready
            if not self._shared[0] and not self.opengl:
                self._held = passes.device
            if not ready:
                self._oldest_ns = passes.submitted_ns
            ready.add(passes, passes.submitted_ns)

    def _advance(self, force: bool, now_ns: int) -> None:
        if force:
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
            self.host.when_done(self.queue, done)
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
        """Passes with the program's own queries: its next submit may write the same ones again."""
        if not self._own or len(self._flying) >= OWN_IN_FLIGHT:
            return
        own, self._own = self._own, []
        latest: dict[tuple[int, int], Pass] = {}
        for timed, _ in own:
            query_set, *indices = timed[OWN]
            for index in indices:
                latest[id(query_set), index] = timed
        overwritten = gone = 0
        batch, kept = Batch(), []
        for timed, submitted_ns in own:
            query_set, begin, end = timed[OWN]
            if query_set._internal is None:
                gone += 1
            elif any(latest[id(query_set), index] is not timed for index in (begin, end)):
                overwritten += 1
            else:
                kept.append(timed[OWN])
                batch.add([timed], submitted_ns)
        self.give_up([None] * overwritten, "a later pass wrote the same queries")
        self.give_up([None] * gone, "the program destroyed its query set")
        if batch:
            self._read(batch, own_places(kept), None, kept)

    def _read(
        self, batch: Batch, places: Places, seen_ns: int | None, own: list[tuple[Any, int, int]] | None = None
    ) -> None:
        """Resolves the queries and, when the data has arrived, takes the stamps of ``batch``; ``own``: the program's
        own that its passes have."""
        _, _, stamps, offset = places.runs[-1]
        size = offset + 8 * stamps
        if self.gone:
            self.give_up(batch.lent, self.dead or "")
            return
        number, events = next(self._numbers), self.events
        try:
            pair = self._borrow(size)
        except Exception:
            self.give_up(batch.lent, "no buffer to read the queries into could be made")
            raise

        def arrived(data: bytes | None) -> None:
            events.append((self._arrived, (number, places, pair, data, seen_ns or time_ns(), own)))

        self._flying[number] = batch
        try:
            if self.host.resolve(self._native, self.queue, places.runs, pair, size, self._alive):
                self.host.read(pair.mapped, size, self._alive, arrived)
            else:
                del self._flying[number]
                self.give_up(batch.lent, self.dead or "")
        except Exception:
            del self._flying[number]
            self.give_up(batch.lent, "resolving the queries failed")
            raise

    def _arrived(
        self,
        number: int,
        places: Places,
        pair: Pair,
        data: bytes | None,
        seen_ns: int,
        own: list[tuple[Any, int, int]] | None,
    ) -> None:
        batch = self._flying.pop(number, None)
        if batch is None:
            return
        if data is None:
            self.give_up(batch.lent, "the queries could not be mapped")
            return
        self._pool.append(pair)
        if own is None:
            self.give_back(batch.lent)  # a batch has the program's queries, or all of them are ours
        stamps = memoryview(data).cast("Q").tolist()
        found = Timed(batch, taken(stamps, places.begins), taken(stamps, places.ends), seen_ns)
        both = list(zip(found.begins, found.ends, strict=True))
        stale = self._stale(both, batch.lent) if own is None else self._stale_own(both, own)
        if stale:
            kept = [at for at in range(len(both)) if at not in stale]
            self.owner.miss("its queries were not written again: its commands did not run", len(stale))
            found, both = _some(found, kept), [both[at] for at in kept]
        if 0 in found.begins or 0 in found.ends:  # empty passes on Metal, resolves that come too early
            kept = [at for at, stamps_of in enumerate(both) if all(stamps_of)]
            self.owner.miss("the driver wrote no time stamp", len(both) - len(kept))
            found = _some(found, kept)
        if found.batch:
            self._undated.append(found)

    def _stale(self, both: list[tuple[int, int]], lent: list[Lent]) -> set[int]:
        """Which still have the stamps of an earlier pass: a submit can fail without a word, as on a lost device."""
        seen, numbers = self._seen, [queries[0] for queries in lent]
        stale = {at for at, (number, found) in enumerate(zip(numbers, both, strict=True)) if seen.get(number) == found}
        seen.update(zip(numbers, both, strict=True))
        return {at for at in stale if both[at] != (0, 0)}

    def _stale_own(self, both: list[tuple[int, int]], own: list[tuple[Any, int, int]]) -> set[int]:
        stale = set()
        for at, ((query_set, begin, end), found) in enumerate(zip(own, both, strict=True)):
            seen = self._own_seen.setdefault(query_set, {})
            if seen.get((begin, end)) == found != (0, 0):
                stale.add(at)
            seen[begin, end] = found
        return stale

    def _alive(self) -> bool:
        """False once a callback, finalizer or signal handler of the program has destroyed the device during a step."""
        return not self.gone

    def _borrow(self, size: int) -> Pair:
        for index, pair in enumerate(self._pool):
            if pair.size >= size:
                return self._pool.pop(index)
        return self.host.pair(self._native, max(4096, 1 << (size - 1).bit_length()), self._keep)


def _some(found: Timed, chosen: list[int]) -> Timed:
    begins, ends = [found.begins[at] for at in chosen], [found.ends[at] for at in chosen]
    return Timed(found.batch.pick(chosen), begins, ends, found.seen_ns)

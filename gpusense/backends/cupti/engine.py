"""CUPTI and the mailbox, as the broker drives them."""

import ctypes
from collections.abc import Callable, Iterable, Mapping
from ctypes import byref, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p
from typing import Any

from ..._capi import cupti as capi
from ..._decode import layouts
from ..._runtime.errors import BackendError
from . import other_profilers
from .clock import keep_wall_clock
from .counters import COUNTED, SAMPLED
from .hardware_events import HardwareEvents
from .mailbox import Mailbox, MailboxCounters
from .subscription import SUBSCRIPTION

SCRAP_BUFFERS = 32
LOST_SHARE = 4  # with more than one in so many buffers lost to other profilers, all are replaced
COUNTERS = (1, 2, 3, 4)  # bytes moved in both directions, page faults of both processors


class Engine:
    """The subscription of the process: callbacks, kinds, flush, buffers. Any thread; no lock is held around a call."""

    def __init__(
        self,
        api: Any,
        buffer_size: int,
        buffers: int,
        holder: Callable[[], str | None] | None = None,
        strides: Mapping[int, int] | None = None,
        hardware_events: bool = False,
    ) -> None:
        self._api = api
        self._holder = holder or other_profilers.holder
        number = self._version = version(api)
        self._events = HardwareEvents(hardware_events)
        scrap = 0 if number >= capi.VERSION_BEARS_REFUSAL else SCRAP_BUFFERS
        self.mailbox = Mailbox(buffers, buffer_size, scrap=scrap)
        self._begins_records = strides is not None and number >= capi.VERSION_BEGINS_RECORDS
        if strides is not None:
            self.mailbox.know(layouts.correlation_places(strides))
        self._before: Mailbox | None = None  # what the mailbox in use has taken the place of
        self._totals = MailboxCounters(0, 0, 0, 0)  # of all before
        self._lost = self._lost_before = 0  # buffers of the mailbox in use, and of all before
        self.per_thread = False
        self._dropped = 0
        self._registrations = 0
        self._finalized = 0  # times CUPTI was taken out
        self._clocks = 0  # times another tool's clock was replaced

    def register(self, after_another: bool = False) -> bool:
        """Makes our callbacks CUPTI's; true where all buffers are other ones from now on. Raises :class:`BackendError`
        where another profiler holds it. ``after_another``: one had CUPTI meanwhile, and maybe buffers of ours."""
        self._ask_whether_free()
        self._ask_for_buffers_per_thread()
        self._events.begin(self._api, self._version)
        self._hand_over(self.mailbox)
        renewed = after_another and self._registrations > 0 and self._renew()
        self._registrations += 1
        if keep_wall_clock(self._api, timestamp_ns(self._api)):
            self._clocks += 1
        # Who asks for buffers under hardware events, and when records begin in them, is not known.
        self.per_thread = self._has_buffers_per_thread() and not self._events.on
        return renewed

    def _hand_over(self, box: Mailbox) -> None:
        code = self._api.cuptiActivityRegisterCallbacks(box.requested, box.completed)
        capi.check("cuptiActivityRegisterCallbacks", code)

    def _renew(self) -> bool:
        """Whether a new mailbox took the place of one that has lost many of its buffers.

        CUPTI returns a buffer to whoever is registered at that time. One that another profiler was given in our place
        never comes back, and must not be lent again, since CUPTI may still write into it.
        """
        if not self.mailbox.lent()[0]:
            self._lost = 0
            return False
        self._api.cuptiActivityFlushAll(0)  # what still comes back to us does so now
        self._lost, usable = self.mailbox.lent()
        if self._lost * LOST_SHARE <= usable:
            return False
        old = self.mailbox
        try:
            box = Mailbox(old.count, old.buffer_size, scrap=old.scrap)
        except OSError:
            return False
        if box.mode != old.mode:  # what was decided by it holds for good
            return False
        box.follow(old)
        self._hand_over(box)
        self._totals = MailboxCounters(*map(sum, zip(self._totals, self._before_counters(), strict=True)))
        self._lost_before, self._lost = self._lost_before + self._lost, 0
        self._before, self.mailbox = old, box
        old.retire()
        return True

    def _before_counters(self) -> MailboxCounters:
        return self._before.counters() if self._before is not None else MailboxCounters(0, 0, 0, 0)

    def _ask_for_buffers_per_thread(self) -> None:
        """CUDA 12.3 and later can, 13.0 and later do so unasked. Must be said before anything is recorded."""
        if self._api.cuptiActivitySetAttribute and not self._has_buffers_per_thread():
            value, size = c_uint8(1), c_size_t(1)
            self._api.cuptiActivitySetAttribute(capi.ATTRIBUTE_PER_THREAD_BUFFER, byref(size), byref(value))

    def _has_buffers_per_thread(self) -> bool:
        """Whether a buffer holds the work of the thread that asked for it and of no other."""
        if not self._api.cuptiActivityGetAttribute:
            return False
        value, size = c_uint8(), c_size_t(1)
        code = self._api.cuptiActivityGetAttribute(capi.ATTRIBUTE_PER_THREAD_BUFFER, byref(size), byref(value))
        return bool(code == 0 and value.value)

    def newest(self) -> Callable[[], int] | None:
        """:attr:`Mailbox.newest` of the buffers in use, where CUPTI begins records as their work is launched."""
        return self.mailbox.newest if self._begins_records and self.per_thread else None

    def take(self) -> tuple[int, int, int] | None:
        """As :meth:`Mailbox.take`, with thread 0 where a buffer is filled by several threads."""
        full = (self._before.take() if self._before is not None else None) or self.mailbox.take()
        return full if full is None or self.per_thread else (full[0], full[1], 0)

    def give(self, address: int) -> None:
        for box in (self.mailbox, self._before):
            if box is not None and box.holds(address):
                box.give(address)

    def discard(self, address: int) -> bool:
        """As of the mailbox; False where the buffer is of one that is not in use any more."""
        if not self.mailbox.holds(address):
            return False
        self.mailbox.discard(address)
        return True

    def _ask_whether_free(self) -> None:
        """Callbacks are never taken from a profiler that holds CUPTI.

        torch keeps its subscription after its profiler has ended, so the refusal alone does not say that one runs.
        """
        code = SUBSCRIPTION.ask(self._api)
        if code == capi.MULTIPLE_SUBSCRIBERS:
            holder = self._holder()
            if holder is not None:
                raise BackendError(
                    "cuptiSubscribe", code, f"another profiler, {holder}, holds CUPTI; tracing goes on when it ends"
                )
        else:
            capi.check("cuptiSubscribe", code)

    def enable(self, kind: int) -> None:
        """Has CUPTI record a kind. Raises :class:`BackendError`."""
        if kind == layouts.UNIFIED_MEMORY_COUNTER:
            self._configure_unified_memory()
        capi.check("cuptiActivityEnable", self._api.cuptiActivityEnable(kind))

    def _configure_unified_memory(self) -> None:
        """The kind gives records only of counters that were chosen before."""
        # Each: scope, counter, device (ignored with this scope), on.
        rows = [number for counter in COUNTERS for number in (capi.ALL_DEVICES, counter, 0, 1)]
        table = (c_uint32 * len(rows))(*rows)
        code = self._api.cuptiActivityConfigureUnifiedMemoryCounter(table, len(COUNTERS))
        capi.check("cuptiActivityConfigureUnifiedMemoryCounter", code)

    def disable(self, kind: int) -> None:
        """Has it end with that, unless another profiler records. Raises :class:`BackendError`."""
        if other_profilers.running() is not None:
            return  # kinds belong to the process: the other profiler has them on, too
        capi.check("cuptiActivityDisable", self._api.cuptiActivityDisable(kind))

    def let_go(self, kinds: Iterable[int]) -> None:
        """Switches ``kinds`` off, whoever says that it profiles: the other has not come to CUPTI yet."""
        for kind in kinds:
            self._api.cuptiActivityDisable(kind)

    def lent(self) -> int:
        """Buffers that CUPTI has and will return: not those that another profiler was given."""
        return self.mailbox.lent()[0] - self._gone()

    def _gone(self) -> int:
        """Buffers that another profiler was given and that have not come back since."""
        self._lost = min(self._lost, self.mailbox.lent()[0])
        return self._lost

    def in_use(self) -> int:
        """Buffers that cannot be lent now, without those that another profiler was given."""
        return self.mailbox.in_use() - self._gone()

    def flush(self, forced: bool) -> None:
        """Has CUPTI return buffers: of finished work, or all of them. Raises :class:`BackendError`."""
        flag = capi.FLUSH_FORCED if forced else 0
        capi.check("cuptiActivityFlushAll", self._api.cuptiActivityFlushAll(flag))

    def finalize(self) -> None:
        """Takes CUPTI out of the process; it may be registered with anew. Raises :class:`BackendError` with the reason
        where that is not safe."""
        refused = "cuptiFinalize"
        holder = other_profilers.running()
        if holder is not None:
            raise BackendError(refused, 7, f"another profiler, {holder}, uses CUPTI")
        if SAMPLED or COUNTED:
            raise BackendError(refused, 7, "hardware counters were read, and CUPTI's profiler has no safe end")
        if SUBSCRIPTION.held:
            raise BackendError(refused, 7, "gpusense itself holds the subscription, for graph owners or lines of waits")
        if SUBSCRIPTION.ask(self._api) != 0:
            raise BackendError(refused, 7, "another tool in this process holds CUPTI's subscription")
        if self._events.on:
            raise BackendError(refused, 7, "CUPTI cannot come back to hardware events in a process that has a context")
        if self._version < capi.VERSION_BEARS_FINALIZE:
            raise BackendError(
                refused, 7, "before CUDA 12.6 this crashes a process with CUDA graphs, which cannot be ruled out"
            )
        capi.check(refused, self._api.cuptiFinalize())
        self.forget_newest()
        self._finalized += 1

    def forget_newest(self) -> None:
        """Ids begin anew; those that stand in buffers by now are passed over."""
        self._events.end("another profiler took CUPTI out of the process")
        if self.mailbox.newest is not None:
            self.mailbox.newest()
        self.mailbox.forget_newest()

    def status(self, ask: bool) -> dict[str, Any]:
        """Counters and facts, as builtins; what only CUPTI knows is asked anew where ``ask``."""
        three = zip(self._totals, self._before_counters(), self.mailbox.counters(), strict=True)
        counters = MailboxCounters(*map(sum, three))
        return {
            "callbacks": self.mailbox.mode,
            "callbacks_reason": self.mailbox.reason,
            "buffer_size": self.mailbox.buffer_size,
            "buffer_count": self.mailbox.count,
            "per_thread_buffers": self.per_thread,
            "wiped_on_fork": self.mailbox.wiped_on_fork,
            "requested": counters.requested,
            "completed": counters.completed,
            "missed": counters.missed,
            "foreign_buffers": counters.foreign,
            "buffers_lost": self._lost_before + self._gone(),
            "dropped": self._count_dropped(ask),
            "registrations": self._registrations,
            "detached": self._finalized,
            "clocks_replaced": self._clocks,
            **self._events.status(),
        }

    def _count_dropped(self, ask: bool) -> int | None:
        """Records the driver dropped so far, None where it does not say. Each answer counts from the one before."""
        dropped = c_size_t()
        if ask and self._api.cuptiActivityGetNumDroppedRecords(None, 0, byref(dropped)) != 0:
            return self._dropped or None
        self._dropped += dropped.value
        return self._dropped


def version(api: Any) -> int:
    """What cuptiGetVersion says; raises :class:`BackendError` where the library does not work at all."""
    value = c_uint32()
    capi.check("cuptiGetVersion", api.cuptiGetVersion(byref(value)))
    return value.value


def timestamp_ns(api: Any) -> int:
    """Now, by the clock of the records."""
    value = c_uint64()
    capi.check("cuptiGetTimestamp", api.cuptiGetTimestamp(byref(value)))
    return value.value


def measure_strides(api: Any, kinds: Iterable[int] = tuple(layouts.LAYOUTS)) -> dict[int, int]:
    """Record kind → size that the loaded library uses; kinds that it does not know are left out."""
    ask = _ask_size if api.cuptiActivityGetStructSize else _walk_size
    found = {}
    for kind in kinds:
        size = ask(api, kind)
        if size is not None and size % 8 == 0 and size >= layouts.minimum_stride(kind):
            found[kind] = size
    return found


def _ask_size(api: Any, kind: int) -> int | None:
    size = c_size_t()
    return size.value if api.cuptiActivityGetStructSize(kind, 0, byref(size)) == 0 else None


def _walk_size(api: Any, kind: int) -> int | None:
    """Distance of the first two records that CUPTI sees in a buffer whose every eight bytes begin one of ``kind``."""
    buffer = (c_uint64 * 512)(*(kind,) * 512)
    record = c_void_p()
    places = []
    for _ in range(2):
        if api.cuptiActivityGetNextRecord(ctypes.addressof(buffer), ctypes.sizeof(buffer), byref(record)) != 0:
            return None
        places.append(record.value or 0)
    return places[1] - places[0]

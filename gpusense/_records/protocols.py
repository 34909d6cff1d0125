"""The small seams between sources, tracer and sinks. Structural: a fake or a foreign source needs no import of ours."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from .metrics import GpuMetrics
from .records import DeviceInfo

#: ``on_buffer(address, valid_bytes, thread)``: valid during the call; ``thread`` is the pthread id that asked for the
#: buffer, or 0 where it is unknown.
OnBuffer = Callable[[int, int, int], None]

#: ``on_view(buffer, thread)``: the same as a view, for one receiver.
OnView = Callable[[memoryview, int], None]


class DeviceSource(Protocol):
    """Says which devices there are."""

    def devices(self) -> tuple[DeviceInfo, ...]:
        """Every device this source knows, in its own order."""


class MetricsSource(Protocol):
    """Samples devices, from several threads, one a device and lane. Never raises; a lost device is a state."""

    def devices(self) -> tuple[DeviceInfo, ...]:
        """The devices that can be sampled."""

    def sample(self, device: DeviceInfo, lanes: Sequence[str] = ("fast", "medium")) -> GpuMetrics:
        """What ``device`` answers now; ``lanes``: which of "fast", "medium", "slow" and "gpm" to read."""


class ActivitySource(Protocol):
    """Delivers buffers of raw activity records."""

    def start(self, kinds: Iterable[int], on_view: OnView, *, buffer_size: int = ..., buffers: int = ...) -> None:
        """Calls ``on_view(buffer, thread)`` with records of these kinds from now on; the view is valid in the call."""

    def flush(self, forced: bool = False) -> str:
        """Hands on what the device has finished; ``forced`` also what it has not. "" or why that was not done."""

    def stop(self) -> None:
        """Ends the delivery."""


#: ``on_records(records)`` takes finished records of :mod:`.records`, on any thread, and raises nothing for what is in
#: them. The list may be used again once it returns.
OnRecords = Callable[[list[Any]], Any]


class Wait(NamedTuple):
    """Work on a device that goes on only once another process has come, or this process's part in such a wait."""

    key: Any  # the same for as long as it is the same wait
    since_ns: int  # wall clock
    text: str  # who waits, in what, for how long, and for whom as far as that is known; without a full stop
    facts: dict[str, Any]  # the same for programs, as a JSON object


class RecordSource(Protocol):
    """Gives finished records of work that it times itself: passes of a graphics API, jobs of a queue, lines of a file.

    ``tracer.add_source(source)`` starts it, and ``tracer.remove_source(source)`` stops it. Its records have wall-clock
    nanoseconds (``time.time_ns()``) and may come late and in any order, from any thread. Everything here may be called
    on any thread, also on gpusense's own, and at any moment of the program's; nothing may hold a lock meanwhile that
    ``on_records`` is called under. One that can tell of unfinished work has ``end(timeout_s)``, too: the last flush,
    which hands on what is known of that. One whose work waits for other processes has ``waits(longer_ns)``: what has
    lasted so long, as ``Wait`` or like it, asked for about once a second on gpusense's thread. ``last()`` gives what
    is to be in a dump of the flight recorder however old it is: records that were handed on, and of unfinished work.
    """

    @property
    def name(self) -> str:
        """Under which :meth:`status` stands in a session (``meta["sources"]``); the records' ``backend``, as a rule."""

    def start(self, on_records: OnRecords) -> None:
        """Hands records to ``on_records`` from now on: in lists, since each call costs. One receiver at a time; a new
        one takes the place of the old one. An error is raised to whoever adds the source, and it is not added."""

    def stop(self) -> None:
        """Hands on nothing from the next moment. :meth:`start` may come again. Never raises."""

    def flush(self, timeout_s: float) -> bool:
        """Has handed on everything that was begun before this call; False where that took longer than ``timeout_s``
        seconds. Called before results are read, so it must not take longer. A source that raises is logged, removed
        and not asked again."""

    def status(self) -> dict[str, Any]:
        """What became of the work, above all what was lost and why, as a JSON object. Never waits."""


class Backend(NamedTuple):
    """What a backend module's ``open()`` returns when it is there: each part, or None."""

    name: str
    library: str | None = None  # path of the library in use
    version: str | None = None
    devices: DeviceSource | None = None
    metrics: MetricsSource | None = None
    activity: ActivitySource | None = None
    records: RecordSource | None = None

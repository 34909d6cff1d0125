"""The small seams between sources, tracer and sinks. Structural: a fake or a foreign source needs no import of ours."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

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

    def flush(self, forced: bool = False) -> None:
        """Hands on what the device has finished; ``forced`` also what it has not."""

    def stop(self) -> None:
        """Ends the delivery."""


class Backend(NamedTuple):
    """What a backend module's ``open()`` returns when it is there: each part, or None."""

    name: str
    library: str | None = None  # path of the library in use
    version: str | None = None
    devices: DeviceSource | None = None
    metrics: MetricsSource | None = None
    activity: ActivitySource | None = None

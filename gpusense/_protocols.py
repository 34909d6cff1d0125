"""The small seams between sources, tracer and sinks. Structural: a fake or a foreign source needs no import of ours."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from ._metrics import GpuMetrics
from ._records import DeviceInfo, Record

#: Any callable that takes a list of finished records. An exception removes it (logged once).
Sink = Callable[[list[Record]], Any]

#: ``on_buffer(address, valid_bytes, thread)``: valid during the call; ``thread`` is the pthread id that asked for the
#: buffer, or 0 where it is unknown.
OnBuffer = Callable[[int, int, int], None]

#: ``on_view(buffer, thread)``: the same as a view, for one receiver.
OnView = Callable[[memoryview, int], None]


class DeviceSource(Protocol):
    def devices(self) -> tuple[DeviceInfo, ...]: ...


class MetricsSource(Protocol):
    """``lanes``: which of "fast", "medium", "slow" to read now. Never raises; a lost device is a state."""

    def devices(self) -> tuple[DeviceInfo, ...]: ...

    def sample(self, device: DeviceInfo, lanes: Sequence[str] = ("fast", "medium")) -> GpuMetrics: ...


class ActivitySource(Protocol):
    def start(self, kinds: Iterable[int], on_view: OnView, *, buffer_size: int = ..., buffers: int = ...) -> None: ...

    def flush(self, forced: bool = False) -> None: ...

    def stop(self) -> None: ...


class Backend(NamedTuple):
    """What a backend module's ``open()`` returns when it is there: each part, or None."""

    name: str
    library: str | None = None  # path of the library in use
    version: str | None = None
    devices: DeviceSource | None = None
    metrics: MetricsSource | None = None
    activity: ActivitySource | None = None

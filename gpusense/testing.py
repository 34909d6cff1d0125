"""Devices for tests that have none: no GPU, no compiler, no driver.

>>> import gpusense.testing as fakes
>>> from gpusense import monitor
>>> source = fakes.ScriptedSource(count=2)
>>> source.set(0, {"utilization.gpu_percent": 93.0, "power.draw_watts": 310.0})
>>> source.trouble(1, "lost", "lost: GPU_IS_LOST (15)")
>>> with fakes.fake_gpus(source):
...     busy, lost = monitor.snapshot()
>>> busy.power.draw_watts, lost.power.draw_watts, lost.reason("power.draw_watts")
(310.0, None, 'lost: GPU_IS_LOST (15)')

:class:`ManualClock` drives a background monitor step by step, :class:`FakeSysfs` lays out PCI devices that sleep and
wake.
"""

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ._records.metrics import GpuMetrics, without_values
from ._records.protocols import MetricsSource
from ._records.records import DeviceInfo
from ._runtime import threads
from .monitor._sampler import SECOND, Clock
from .monitor._shared import shared

__all__ = ["FakeSysfs", "ManualClock", "ScriptedSource", "device", "fake_gpus", "metrics"]


def device(index: int = 0, **facts: Any) -> DeviceInfo:
    """A made-up NVIDIA device; ``facts`` replace fields of :class:`gpusense.DeviceInfo`."""
    plain: dict[str, Any] = {
        "name": "Fake GPU",
        "vendor": "nvidia",
        "backend": "testing",
        "uuid": f"GPU-{index:08x}-0000-0000-0000-000000000000",
        "pci_bus_id": f"0000:{index + 1:02x}:00.0",
        "memory_total_bytes": 16 << 30,
        "nvml_index": index,
        "kind": "discrete",
    }
    return DeviceInfo(index, **{**plain, **facts})


def metrics(of: DeviceInfo, fields: Mapping[str, Any], **rest: Any) -> GpuMetrics:
    """A sample with the values of ``fields`` ("power.draw_watts" → 300.0); ``rest`` replaces plain fields.

    Raises AttributeError for a field that does not exist.
    """
    sample = GpuMetrics(of, rest.pop("time_ns", 0), rest.pop("monotonic_ns", 0), source="testing")
    sample = sample._replace(**rest)
    for field, value in fields.items():
        group, _, name = field.partition(".")
        before = getattr(sample, group)
        if name:
            getattr(before, name)
            value = before._replace(**{name: value})
        sample = sample._replace(**{group: value})
    return sample


class ManualClock(Clock):
    """Time that moves only when a test says so, for monitors started with ``clock=``."""

    def __init__(self, wall_ns: int = 1_700_000_000 * SECOND) -> None:
        self._wall_ns = wall_ns
        self._now_ns = self._slept_ns = 0
        self._moved = threading.Condition()
        self._threads: set[Any] = set()
        self._waiting: dict[int, tuple[int, threads.Event]] = {}  # thread id → what it waits for

    def monotonic_ns(self) -> int:
        return self._now_ns

    def time_ns(self) -> int:
        return self._wall_ns + self._now_ns

    def suspended_ns(self) -> int:
        return self._slept_ns

    def enlist(self, thread: Any) -> None:
        with self._moved:
            self._threads.add(thread)

    def wait(self, event: threads.Event, seconds: float) -> None:
        me = threads.thread_id()()
        with self._moved:
            until = self._now_ns + int(seconds * SECOND)
            self._waiting[me] = until, event
            self._moved.notify_all()
            while self._now_ns < until and not event.is_set():
                self._moved.wait(0.01)  # an event cannot notify a condition
            del self._waiting[me]

    def advance(self, seconds: float) -> None:
        """Lets time pass: every thread that waits for a moment on the way runs at that moment, in order.

        Raises TimeoutError where a thread does not come back to waiting within ten seconds of real time.
        """
        with self._moved:
            target = self._now_ns + int(seconds * SECOND)
            self._settle()
            while (due := min((until for until, _ in self._waiting.values()), default=target + 1)) <= target:
                self._now_ns = max(self._now_ns, due)
                self._moved.notify_all()
                self._settle()
            self._now_ns = target

    def suspend(self, seconds: float) -> None:
        """As if the machine slept: the wall clock goes on, the monotonic clock does not."""
        with self._moved:
            self._wall_ns += int(seconds * SECOND)
            self._slept_ns += int(seconds * SECOND)

    def step(self, seconds: float) -> None:
        """The wall clock is set forward or back."""
        with self._moved:
            self._wall_ns += int(seconds * SECOND)

    def _settle(self) -> None:
        """Waits, in real time, until every thread of this clock waits for a later moment or has ended."""

        def waits(thread: Any) -> bool:
            until, event = self._waiting.get(thread.ident, (0, None))
            return until > self._now_ns and event is not None and not event.is_set()

        def settled() -> bool:
            self._threads = {thread for thread in self._threads if thread.is_alive()}
            return all(waits(thread) for thread in self._threads)

        deadline = 1000
        while not settled():
            deadline -= 1
            if not deadline:
                raise TimeoutError("a thread of this clock does not wait")
            self._moved.wait(0.01)


class ScriptedSource:
    """A metrics source whose answers a test sets; every call is noted in ``calls`` as (device index, lanes).

    Values are read in the fast lane; ``processes`` and ``instances`` in every lane.
    """

    def __init__(self, count: int = 1, devices: Sequence[DeviceInfo] | None = None, clock: Clock | None = None) -> None:
        self._devices = tuple(device(i) for i in range(count)) if devices is None else tuple(devices)
        self._clock = clock or Clock()
        self._fields: dict[int, dict[str, Any]] = {one.index: {} for one in self._devices}
        self._trouble: dict[int, tuple[str, str]] = {}
        self.calls: list[tuple[int, tuple[str, ...]]] = []

    def devices(self) -> tuple[DeviceInfo, ...]:
        return self._devices

    def set(self, index: int, fields: Mapping[str, Any]) -> None:
        """Values of a device from now on; None takes one away."""
        metrics(self._devices[0], fields)  # a misspelt field fails here, in the test
        self._fields[index].update(fields)
        self._trouble.pop(index, None)

    def trouble(self, index: int, state: str, why: str) -> None:
        """The device is "lost", "sleeping" or "degraded" until values are set again.

        Raises ValueError for another state and KeyError for a device that is not there: the test would test nothing.
        """
        if state not in ("lost", "sleeping", "degraded"):
            raise ValueError(f'state must be "lost", "sleeping" or "degraded", not {state!r}')
        if index not in self._fields:
            raise KeyError(index)
        self._trouble[index] = state, why

    def sample(self, device: DeviceInfo, lanes: Sequence[str] = ("fast", "medium")) -> GpuMetrics:
        self.calls.append((device.index, tuple(lanes)))
        now = self._clock.monotonic_ns()
        fields = self._fields[device.index]
        if "fast" not in lanes:
            fields = {name: value for name, value in fields.items() if "." not in name}
        found = metrics(device, fields, time_ns=self._clock.time_ns(), monotonic_ns=now)
        trouble = self._trouble.get(device.index)
        return found if trouble is None else without_values(found, *trouble)


class FakeSysfs:
    """A small /sys below a folder: PCI devices with the files that say whether they sleep."""

    def __init__(self, root: "str | os.PathLike[str]") -> None:
        self.root = os.fspath(root)

    def pci_device(
        self,
        address: str = "0000:01:00.0",
        *,
        vendor: int = 0x10DE,
        kind: int = 0x030200,
        control: str = "auto",
        runtime_status: str = "active",
        power_state: str = "D0",
    ) -> str:
        """Makes or changes a device; gives back its folder."""
        folder = f"bus/pci/devices/{address}"
        self.write(f"{folder}/vendor", f"0x{vendor:04x}")
        self.write(f"{folder}/class", f"0x{kind:06x}")
        self.write(f"{folder}/power/control", control)
        self.write(f"{folder}/power/runtime_status", runtime_status)
        self.write(f"{folder}/power_state", power_state)
        return os.path.join(self.root, folder)

    def write(self, path: str, text: str) -> None:
        """A file below the root, with a line end as the kernel writes it."""
        full = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "w", encoding="utf-8") as file:
            file.write(text + "\n")

    def remove(self, path: str) -> None:
        """Takes a file below the root away."""
        os.remove(os.path.join(self.root, path))


@contextmanager
def fake_gpus(source: MetricsSource) -> Iterator[None]:
    """Within, ``gpusense.monitor`` sees the devices of ``source`` and no others. For one thread at a time."""
    before, shared.replacement = shared.replacement, source
    try:
        yield
    finally:
        shared.replacement = before

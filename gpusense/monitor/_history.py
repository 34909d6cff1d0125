"""The last samples of every device, and what can be asked about them."""

import collections
import threading
from bisect import bisect_left

from .._records import device_identity
from .._records.metrics import GpuMetrics, without_values
from .._records.records import DeviceInfo
from ._sampler import SECOND, Clock
from ._window import Window, window

_LONGEST_S = 1e9  # asked for; longer ones are as long


class History:
    """Up to ``room`` samples a device, taken each ``interval_ns``. Every method may be called from any thread."""

    def __init__(self, room: int, interval_ns: int, clock: Clock) -> None:
        self.interval_ns = interval_ns
        self._clock = clock
        self._room = room
        self._lock = threading.RLock()
        self._samples: dict[tuple[int, str], collections.deque[GpuMetrics]] = {}
        self._taken = 0
        self._stopped = False  # no more samples will come

    def latest(self) -> tuple[GpuMetrics, ...]:
        """The newest sample of every device that has one.

        A device whose sample is old, because its driver does not return, is "degraded" and without values.
        """
        now = self._clock.monotonic_ns()
        with self._lock:
            newest = [samples[-1] for _, samples in sorted(self._samples.items()) if samples]
        patience = max(5 * self.interval_ns, 2 * SECOND)
        return tuple(
            sample
            if self._stopped or now - sample.monotonic_ns <= patience
            else without_values(sample, "degraded", f"stale: no sample for {(now - sample.monotonic_ns) / 1e9:.1f} s")
            for sample in newest
        )

    def history(self, seconds: float | None = None, device: int | DeviceInfo | None = None) -> tuple[GpuMetrics, ...]:
        """Samples of the last ``seconds`` (all kept ones by default), oldest first, of every device or of one."""
        start = None if seconds is None else self._clock.monotonic_ns() - _nanoseconds(seconds)
        with self._lock:
            every = [list(samples) for key, samples in self._samples.items() if _is_meant(key, device)]
        if start is not None:
            every = [samples[bisect_left(samples, start, key=_taken_ns) :] for samples in every]
        if len(every) == 1:
            return tuple(every[0])
        kept = [sample for samples in every for sample in samples]
        return tuple(sorted(kept, key=lambda sample: (sample.monotonic_ns, sample.device.index)))

    def window(
        self,
        start_ns: int | None = None,
        end_ns: int | None = None,
        *,
        seconds: float | None = None,
        device: int | DeviceInfo | None = None,
        own_busy_share: float | None = None,
    ) -> tuple[Window, ...]:
        """Statistics and energy of every device between two wall-clock times (``time.time_ns()``), or of the last
        ``seconds``; all history by default.

        ``own_busy_share`` (0…1): the share of the device's busy time that is this process's own kernels; the window
        then carries that share of the energy, labelled as an estimate.
        """
        now, recently = self._clock.time_ns(), None
        if seconds is not None:  # by the clock that nobody sets
            start_ns = end_ns = None
            recently = self._clock.monotonic_ns() - _nanoseconds(seconds)
        with self._lock:
            kept = {
                key: list(samples)
                for key, samples in sorted(self._samples.items())
                if samples and _is_meant(key, device)
            }
        longest = max(3 * self.interval_ns, SECOND // 2)
        found = []
        for samples in kept.values():
            first_ns = samples[0].time_ns if seconds is None else now - _nanoseconds(seconds)
            recent = [one for one in samples if recently is None or one.monotonic_ns >= recently]
            one = window(recent, samples[-1].device, start_ns, end_ns, longest, own_busy_share)
            found.append(
                one._replace(
                    start_ns=first_ns if start_ns is None else start_ns, end_ns=now if end_ns is None else end_ns
                )
            )
        return tuple(found)

    def idle_for(self, seconds: float, below: float = 5.0, device: int | DeviceInfo | None = None) -> bool:
        """True where every watched device (or one) was at or below ``below`` percent for all of the last ``seconds``.

        What is unknown is not idle: no samples, a history too short, a device that gives no utilization. A sleeping
        device is idle.
        """
        length = _nanoseconds(seconds)
        start = self._clock.monotonic_ns() - length
        with self._lock:
            watched = [list(samples) for key, samples in self._samples.items() if _is_meant(key, device)]
        if not watched:
            return False
        slack = 2 * self.interval_ns
        for samples in watched:
            recent = [sample for sample in samples if sample.monotonic_ns >= start]
            if not recent or (samples[0].monotonic_ns > start + slack):
                return False
            if recent[-1].monotonic_ns < start + length - max(slack, SECOND):
                return False
            if not all(_is_idle(sample, below) for sample in recent):
                return False
        return True

    def _remember(self, sample: GpuMetrics) -> None:
        """Takes one sample, under the lock."""
        key = device_identity.key(sample.device)
        samples = self._samples.get(key)
        if samples is None:
            samples = self._samples[key] = collections.deque(maxlen=self._room)
        samples.append(sample)
        self._taken += 1


def _is_meant(key: tuple[int, str], device: int | DeviceInfo | None) -> bool:
    """Whether what has ``key`` is the device that was asked for: by its index, by itself, or any."""
    if isinstance(device, DeviceInfo):
        return key == device_identity.key(device)
    return device is None or device == key[0]


def _taken_ns(sample: GpuMetrics) -> int:
    return sample.monotonic_ns


def _is_idle(sample: GpuMetrics, below: float) -> bool:
    busy = sample.utilization.gpu_percent
    return sample.state == "sleeping" or (busy is not None and busy <= below)


def _nanoseconds(seconds: float) -> int:
    """Raises TypeError for what is no number, ValueError for NaN."""
    if not isinstance(seconds, (int, float)):
        raise TypeError(f"seconds must be a number, not {seconds!r}")
    return int(max(-_LONGEST_S, min(seconds, _LONGEST_S)) * SECOND)

"""Getting a device's clock ready beside the program: tick length, counter width and calibrated readings from Vulkan.

Opening Vulkan takes tens of milliseconds, so a thread does it; the passes' ticks wait for it. The thread is not a
daemon: the interpreter joins it before exit, instead of ending in the middle of a driver's start.
"""

from typing import Any, NamedTuple

from ..._records.records import Unavailable
from ..._runtime import threads
from ._gpu_clock import GpuClock


class ClockSetup:
    """``clock`` is None where the length of a tick is unknown; then ``reason`` says why. Valid once ``ready``."""

    def __init__(self, info: dict[str, Any], period_ns: float | None) -> None:
        self.clock: GpuClock | None = None
        self.reason = ""
        self.calibration = ""  # why there are no calibrated readings
        self._info, self._period_ns = info, period_ns
        self._done = threads.Event()
        if self._card() in _known or threads.start(self._run, "gpusense-wgpu-clock", daemon=False) is None:
            self._run()

    @property
    def ready(self) -> bool:
        return self._done.is_set()

    def wait(self, timeout_s: float) -> bool:
        return self._done.wait(timeout_s)

    def _run(self) -> None:
        try:
            self._set_up()
        except Exception as error:  # noqa: BLE001 - passes must not wait for ever
            self.calibration = f"{type(error).__name__}: {error}"
            self._finish(self._period_ns, 64, None)
        finally:
            self._done.set()

    def _card(self) -> tuple[Any, ...]:
        return tuple(self._info.get(key, default) for key, default in IDENTITY)

    def _set_up(self) -> None:
        facts = _facts(self._card())
        self.calibration = facts.calibration
        self._finish(self._period_ns or facts.period_ns, facts.valid_bits, facts.read)

    def _finish(self, period_ns: float | None, bits: int, read: Any) -> None:
        if period_ns:
            self.clock = GpuClock(period_ns, bits, read)
        else:
            self.reason = "the length of a tick is unknown (wgpu-native before 27.0.4, and Vulkan does not tell)"


class _Facts(NamedTuple):
    """What Vulkan tells of one card; ``read`` gives calibrated readings, from any thread."""

    calibration: str  # why there are none
    period_ns: float | None = None
    valid_bits: int = 64
    read: Any = None


#: wgpu-py's adapter info: what tells one card from another.
IDENTITY = (("backend_type", ""), ("vendor_id", 0), ("device_id", 0), ("device", ""))

_known: dict[tuple[Any, ...], _Facts] = {}
_lock = threads.rlock()


def _facts(card: tuple[Any, ...]) -> _Facts:
    """Asked once a card and process: many devices share one Vulkan device of ours."""
    with _lock:
        if card not in _known:
            backend, *wanted = card
            if backend == "Vulkan":
                _known[card] = _ask_vulkan(*wanted)
            else:
                _known[card] = _Facts(f"no calibrated time stamps through {backend or 'this backend'}")
        return _known[card]


def _ask_vulkan(vendor_id: int, device_id: int, name: str) -> _Facts:
    from ...backends.wgpu import vulkan

    cards = vulkan.cards()
    same = () if isinstance(cards, Unavailable) else vulkan.matching(cards, vendor_id, device_id, name)
    periods = {card.timestamp_period_ns for card in same}
    period = periods.pop() if len(periods) == 1 else None
    bits = min((card.timestamp_valid_bits for card in same), default=0) or 64
    calibrator = vulkan.calibrator(vendor_id, device_id, name)
    if isinstance(calibrator, Unavailable):
        return _Facts(str(calibrator), period, bits)
    return _Facts("", period, bits, calibrator.sample)

"""Getting a device's clock ready beside the program: tick length, counter width and calibrated readings from Vulkan,
which also says which card it is.

Opening Vulkan takes tens of milliseconds, so a thread does it; the passes' ticks wait for it. The thread is not a
daemon: the interpreter joins it before exit, instead of ending in the middle of a driver's start.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from ..._records.records import DeviceInfo, Unavailable
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
        """Whether ``clock`` or ``reason`` is there."""
        return self._done.is_set()

    def place(self) -> DeviceInfo | None:
        """The card, numbered as in :func:`gpusense.devices`; None before :attr:`ready`, and where Vulkan does not tell
        which of its cards it is."""
        facts = _known.get(self._card())
        return None if facts is None else facts.place()

    def wait(self, timeout_s: float) -> bool:
        """Waits for :attr:`ready`, which it gives back."""
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
    """What Vulkan says of one card; ``read`` gives calibrated readings, from any thread."""

    calibration: str  # why there are none
    period_ns: float | None = None
    valid_bits: int = 64
    read: Any = None
    place: Callable[[], DeviceInfo | None] = lambda: None


#: What wgpu-py's adapters call that interface.
OPENGL = ("OpenGL", "OpenGLES")
#: wgpu-py's adapter info: what one card differs in from another.
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
                place = _Place(*wanted).get if backend in (*OPENGL, "D3D12") else _nowhere
                _known[card] = _Facts(f"no calibrated time stamps through {backend or 'this backend'}", place=place)
        return _known[card]


def _ask_vulkan(vendor_id: int, device_id: int, name: str) -> _Facts:
    from ...backends.wgpu import vulkan

    place = _Place(vendor_id, device_id, name)
    same = vulkan.matching(place.cards, vendor_id, device_id, name)
    periods = {card.timestamp_period_ns for card in same}
    period = periods.pop() if len(periods) == 1 else None
    bits = min((card.timestamp_valid_bits for card in same), default=0) or 64
    calibrator = vulkan.calibrator(vendor_id, device_id, name)
    if isinstance(calibrator, Unavailable):
        return _Facts(str(calibrator), period, bits, place=place.get)
    return _Facts("", period, bits, calibrator.sample, place.get)


def _nowhere() -> DeviceInfo | None:
    return None


class _Place:
    """Which of Vulkan's cards an adapter is. Two that are called the same cannot be told apart through wgpu."""

    def __init__(self, vendor_id: int, device_id: int, name: str) -> None:
        from ...backends.wgpu import vulkan

        found = vulkan.cards()
        self.cards = () if isinstance(found, Unavailable) else found
        same = vulkan.matching(self.cards, vendor_id, device_id, name)
        if not same and device_id == 0:  # OpenGL knows no more than the vendor, if that
            same = tuple(card for card in self.cards if name.startswith(card.name) or card.vendor_id == vendor_id)
        self._at = self.cards.index(same[0]) if len(same) == 1 else None
        self._made: dict[bool, DeviceInfo] = {}  # by whether CUDA was live: its numbers come first

    def get(self) -> DeviceInfo | None:
        if self._at is None:
            return None
        from ...backends.cuda import SOURCE
        from ...backends.wgpu.source import numbered

        live = SOURCE.is_live()
        if live not in self._made:
            self._made[live] = numbered(self.cards, SOURCE.devices() if live else ())[self._at]
        return self._made[live]

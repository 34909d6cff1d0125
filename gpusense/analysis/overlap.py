"""How much copying and communicating hid behind computing."""

from typing import NamedTuple

from ..session import Session
from .busy import DeviceKey, DeviceTime, device_times, sweeps
from .sweep import Sweep


class Overlap(NamedTuple):
    """Times of one device. ``exposed`` is what no computing kernel hid."""

    device: int | None
    backend: str
    compute_ns: int  # kernels that do not communicate
    copy_ns: int
    copy_hidden_ns: int  # while a kernel computed
    copy_exposed_ns: int
    collective_ns: int | None  # None where kernels were only counted: their names' times cannot be placed
    collective_hidden_ns: int | None
    collective_exposed_ns: int | None


def overlap(
    session: Session, walks: dict[DeviceKey, Sweep] | None = None, times: list[DeviceTime] | None = None
) -> list[Overlap]:
    """One :class:`Overlap` a device. From sums alone, hidden = kernels + copies − busy (inclusion and exclusion)."""
    walks = sweeps(session) if walks is None else walks
    rows = []
    for time in device_times(session, walks) if times is None else times:
        place = time.device, time.backend
        if time.source != "records":
            hidden = max(0, time.kernel_ns + time.transfer_ns - time.busy_ns) if time.source == "union" else 0
            row = Overlap(*place, time.kernel_ns, time.transfer_ns, hidden, time.transfer_ns - hidden, None, None, None)
        else:
            parts = walks[time.backend, time.device].parts()
            row = Overlap(
                *place,
                parts.compute,
                parts.copy,
                parts.copy_hidden,
                parts.copy - parts.copy_hidden,
                parts.collective,
                parts.collective_hidden,
                parts.collective - parts.collective_hidden,
            )
        rows.append(row)
    return rows

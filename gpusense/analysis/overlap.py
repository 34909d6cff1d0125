"""How much copying and communicating hid behind computing."""

from typing import NamedTuple

from ..session import Session
from .busy import DeviceKey, DeviceTime, Timeline, device_times, timelines
from .intervals import intersect, total


class Overlap(NamedTuple):
    """Times of one device. ``exposed`` is what no computing kernel hid."""

    device: int | None
    backend: str
    compute_ns: int
    copy_ns: int
    copy_hidden_ns: int
    copy_exposed_ns: int
    collective_ns: int | None  # None where kernels were only counted: their names' times cannot be placed
    collective_hidden_ns: int | None
    collective_exposed_ns: int | None


def overlap(
    session: Session, lines: dict[DeviceKey, Timeline] | None = None, times: list[DeviceTime] | None = None
) -> list[Overlap]:
    """One :class:`Overlap` a device. From counts, hidden = kernels + copies − busy (inclusion and exclusion)."""
    lines = timelines(session) if lines is None else lines
    rows = []
    times = device_times(session, lines) if times is None else times
    for time, line in zip(times, lines.values(), strict=True):
        if line.counted:
            hidden = max(0, time.kernel_ns + time.transfer_ns - time.busy_ns) if time.source == "union" else 0
            exposed = time.transfer_ns - hidden
            row = Overlap(
                time.device, time.backend, time.kernel_ns, time.transfer_ns, hidden, exposed, None, None, None
            )
        else:
            copy, collective = total(line.transfer), total(line.collective)
            hidden = total(intersect(line.transfer, line.compute))
            hidden_collective = total(intersect(line.collective, line.compute))
            row = Overlap(
                time.device,
                time.backend,
                total(line.compute),
                copy,
                hidden,
                copy - hidden,
                collective,
                hidden_collective,
                collective - hidden_collective,
            )
        rows.append(row)
    return rows

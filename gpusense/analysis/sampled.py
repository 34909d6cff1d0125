"""The monitor's samples card by card, and on which of the cards the session's work ran.

A monitor sees cards that the program cannot use, and numbers them in its own way: nothing here goes by a place in a
list, and figures of a card stand under a number of the session only where the two are known to be one card.
"""

from typing import NamedTuple

from .._records.device_identity import device_of, device_text, key, known_as, may_be, number_of
from .._records.metrics import GpuMetrics
from .._records.records import DeviceInfo, Path
from .._runtime.text import one_line
from ..session import Session
from .calls import timed_by_host
from .operation import DEVICE_KINDS


class SampledCard(NamedTuple):
    """One card that was sampled. The samples are of the whole card, whoever else uses it."""

    text: str  # "GPU 0"; of a card without a number "another card: NVIDIA L4 (0000:1b:00.0)"
    number: int | None  # what records call it; None where the session's work cannot be on it, as far as is known
    device: DeviceInfo  # the session's entry; of a card that it does not list the monitor's
    samples: list[GpuMetrics]  # in order of time
    worked: bool | None  # whether work of the session ran on it; None where no work is known at all
    processes: frozenset[str]  # roots of the processes of a merged session whose work ran on it


def sampled(session: Session) -> list[SampledCard]:
    """Each card once, those that the session's work can be on first, by number."""
    cards = _by_card(session)
    users = _users(session) if cards else {}
    numbers = [_number(session, device, users, alone=len(cards) == 1) for device, _ in cards]
    found = []
    for number, (device, samples) in zip(numbers, cards, strict=True):
        samples.sort(key=lambda sample: sample.time_ns)
        if number is not None and numbers.count(number) > 1:  # as of two hosts
            number = None
        worked = number in users if users else None
        processes = frozenset(users.get(number, ())) if number is not None else frozenset()
        text = _text(session, device, number, bool(session.devices or users))
        found.append(SampledCard(text, number, device, samples, worked, processes))
    return sorted(found, key=lambda one: (one.number is None, one.number or 0, one.text))


def concerned(session: Session) -> list[SampledCard]:
    """The sampled cards that say something of the session: those that it worked on; all where no work is known."""
    return [one for one in sampled(session) if one.worked is not False]


def devices_seen(session: Session) -> tuple[DeviceInfo, ...]:
    """The devices of the session; where it lists none, those that were sampled."""
    return session.devices or tuple(one.device for one in sampled(session))


def _by_card(session: Session) -> list[tuple[DeviceInfo, list[GpuMetrics]]]:
    by_key: dict[tuple[int, str], list[GpuMetrics]] = {}
    for sample in session.metrics:
        by_key.setdefault(key(sample.device), []).append(sample)
    cards: list[tuple[DeviceInfo, list[GpuMetrics]]] = []
    for samples in by_key.values():  # CUDA renumbers the cards when it becomes live: one card may have two keys
        own = samples[-1].device
        device = known_as(own, session.devices)
        if device is None and len(by_key) == len(session.devices) == 1 and may_be(own, session.devices[0]):
            device = session.devices[0]
        home = next((of for one, of in cards if (known_as(own, (one,)) if device is None else one is device)), None)
        if home is None:
            cards.append((device or own, samples))
        else:
            home += samples
    return cards


def _number(session: Session, device: DeviceInfo, users: dict[int, set[str]], alone: bool) -> int | None:
    """What records call a sampled card."""
    number = number_of(device)
    if any(one is device for one in session.devices):
        return number if device_of(session.devices, device.backend, number) is device else None
    if session.devices or (device.cuda_index is None and users):
        # One that the session does not list: only where there is no other card, on either side, it is the one in use.
        return next(iter(users)) if alone and not session.devices and len(users) == 1 else None
    return number


def _text(session: Session, device: DeviceInfo, number: int | None, told: bool) -> str:
    """``told``: the session says which cards its work was on."""
    if number is not None:
        return device_text(session.devices or (device,), device.backend, number)
    own = device.uuid if device.pci_bus_id is None or not told else device.pci_bus_id
    return ("another card: " if told else "") + one_line(device.name, 60) + (f" ({one_line(own, 60)})" if own else "")


def _users(session: Session) -> dict[int, set[str]]:
    """The number of each card that work ran on; of a merged session with the roots of the processes whose it was."""
    found: dict[int, set[str]] = {}

    def add(backend: str, number: int | None, root: Path) -> None:
        if number is None:
            only = device_of(session.devices, backend, None)
            number = None if only is None else number_of(only)
        if number is not None:
            found.setdefault(number, set()).update(root)

    work, merged = session.work, len(session.meta.get("processes") or ()) > 1
    for kind, path in work.pairs() if merged else ((kind, 0) for kind in set(work.kind)):
        one = work.kinds[kind]
        if one.kind in DEVICE_KINDS and one.timing == "device":
            add(one.backend, one.device, work.paths[path][:1])
    for row in session.aggregates:
        if row.kind in DEVICE_KINDS and row.count and not timed_by_host(row):
            add(row.backend, row.device, row.path[:1] if merged else ())
    for busy in session.busy:
        if busy.busy_ns:
            add(busy.backend, busy.device, ())
    return found

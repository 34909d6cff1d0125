"""Which device is which: one entry a physical GPU over all sources, what a number in a record means, what people read
for it, and what CUDA_VISIBLE_DEVICES shows. Pure.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from .._runtime.config import BACKEND_NAMES
from .._runtime.text import one_line
from .records import DeviceInfo


class Visible(NamedTuple):
    """One entry of CUDA_VISIBLE_DEVICES: the place of the device, and the MIG instance if it names one."""

    place: int | None  # None: a MIG instance whose parent nobody knows
    mig: str | None = None


_Group = list[tuple[str, DeviceInfo]]


def normal_pci(text: str | None) -> str | None:
    """A PCI address as "0000:1b:00.0": lower case, domain of at least four digits; None where it is none."""
    parts = (text or "").strip().lower().split(":")
    if len(parts) == 2:
        parts.insert(0, "0")
    try:
        domain, bus = int(parts[0], 16), int(parts[1], 16)
        slot, _, function = parts[2].partition(".")
        return f"{domain:04x}:{bus:02x}:{int(slot, 16):02x}.{int(function or '0', 16):x}"
    except (IndexError, ValueError):
        return None


def merge(devices_by_backend: Mapping[str, Iterable[DeviceInfo]]) -> tuple[DeviceInfo, ...]:
    """One entry a physical device: the sources' entries joined by PCI address or UUID.

    A source without either (an adapter list) joins the only device of that vendor and name, if there is exactly one.
    In CUDA's order where CUDA is live, then NVML's, then by PCI address; ``index`` is the place in the result.
    """
    return tuple(device for device, _ in merged(devices_by_backend))


def merged(devices_by_backend: Mapping[str, Iterable[DeviceInfo]]) -> list[tuple[DeviceInfo, _Group]]:
    """The same, each with the entries that it was joined of and the names of their sources."""
    groups: list[_Group] = []
    for backend in sorted(devices_by_backend, key=_rank):
        for device in devices_by_backend[backend]:
            _group_of(device, backend, groups).append((backend, device))
    joined = sorted(((_join(group), group) for group in groups), key=lambda one: _order(one[0]))
    return [(device._replace(index=place), group) for place, (device, group) in enumerate(joined)]


def same(one: DeviceInfo, other: DeviceInfo) -> bool:
    """Whether two entries are the same physical device, by PCI address or UUID."""
    mine, theirs = normal_pci(one.pci_bus_id), normal_pci(other.pci_bus_id)
    if mine is not None and theirs is not None:
        return mine == theirs
    return one.uuid is not None and one.uuid == other.uuid


def is_among(device: DeviceInfo, others: Iterable[DeviceInfo]) -> bool:
    """Whether one of ``others`` is the same device; of two without an address and a UUID the name decides."""
    nameless = _is_nameless(device)
    return any(same(device, one) or (nameless and device.name == one.name) for one in others)


def _is_nameless(device: DeviceInfo) -> bool:
    return device.pci_bus_id is None and device.uuid is None


def key(device: DeviceInfo) -> tuple[int, str]:
    """What distinguishes a device from others that were sampled: foreign sources may give two the same index."""
    return device.index, device.uuid or device.pci_bus_id or ""


def known_as(device: DeviceInfo, devices: Sequence[DeviceInfo]) -> DeviceInfo | None:
    """The entry of ``devices`` for the card that ``device`` is an entry of; None where it is not among them.

    By UUID, else by PCI address, which cards of two machines may have in common: places in two lists say nothing,
    because CUDA_VISIBLE_DEVICES hides cards and turns them round. An entry that has neither is the one of its name and
    place. A card is known as the MIG instance of it that is among them, which is what the program has of it.
    """
    fits = [one for one in devices if one.uuid is not None and one.uuid == device.uuid]
    if not _is_instance(device):
        fits = [one for one in devices if _is_instance(one) and same(one, device)] or fits
    fits = fits or [one for one in devices if same(one, device) and not _on_two_machines(one, device)]
    if not fits and _is_nameless(device):
        fits = [one for one in devices if _is_nameless(one) and one.name == device.name and one.index == device.index]
    return next((one for one in fits if one.index == device.index), fits[0] if fits else None)


def _is_instance(device: DeviceInfo) -> bool:
    return (device.uuid or "").startswith("MIG-")


def _on_two_machines(one: DeviceInfo, other: DeviceInfo) -> bool:
    """Whether two whole cards of one address are two: a MIG instance has a UUID beside its card's."""
    return one.uuid != other.uuid and all((it.uuid or "").startswith("GPU-") for it in (one, other))


def may_be(one: DeviceInfo, other: DeviceInfo) -> bool:
    """Whether nothing that is known of two entries says that they are two cards."""
    addresses = normal_pci(one.pci_bus_id), normal_pci(other.pci_bus_id)
    if None not in addresses:
        return addresses[0] == addresses[1]
    uuids, vendors = {one.uuid, other.uuid}, {one.vendor, other.vendor}
    if (one.kind == "cpu") != (other.kind == "cpu") or len(vendors - {"unknown"}) > 1:
        return False
    return len(uuids - {None}) < 2 or _is_instance(one) or _is_instance(other)  # whose card has another


def number_of(device: DeviceInfo) -> int:
    """What records call a device of their session: CUDA's ordinal, of a card without one its index."""
    return device.index if device.cuda_index is None else device.cuda_index


def device_of(devices: Sequence[DeviceInfo], backend: str, number: int | None) -> DeviceInfo | None:
    """The device that a record means, of those of its session; where it names none the only one there is.

    A number of CUDA's is an ordinal where any ordinal is known, and never a place in the list.
    """
    if number is None:
        only = devices[0] if len(devices) == 1 and backend != "host" else None
        # wgpu leaves the number out where it cannot tell its card from others, one of which CUDA may have.
        return None if only is not None and backend == "wgpu" != only.backend and only.cuda_index is not None else only
    found = next((device for device in devices if device.cuda_index == number), None)
    if found is not None or (backend == "cuda" and any(device.cuda_index is not None for device in devices)):
        return found
    return next((one for one in devices if one.cuda_index is None and one.index == number), None)


def device_text(devices: Sequence[DeviceInfo], backend: str, number: int | None) -> str:
    """ "GPU 0"; "CPU (llvmpipe)" for a processor that plays one; "GPU", or "GPU (wgpu)", where no number is known."""
    found = device_of(devices, backend, number)
    if found is not None and found.kind == "cpu":
        return f"CPU ({one_line(found.name.partition(' (')[0], 40)})"
    if number is not None:
        return f"GPU {number}"
    return "GPU" if backend == "cuda" else f"GPU ({backend})"


def card(backend: str, device: int | None) -> tuple[str, int | None]:
    """What the work of a record is summed up under: one card is one card, whether CUDA or wgpu reached it, because
    wgpu's records have CUDA's numbers. Devices without a number are those of their backend."""
    return ("", device) if device is not None and backend in ("cuda", "wgpu") else (backend, device)


def visible(
    value: str | None, devices: Sequence[DeviceInfo], instances: Mapping[str, int] | None = None
) -> tuple[Visible, ...]:
    """What CUDA_VISIBLE_DEVICES=``value`` leaves of ``devices`` (in CUDA's own order), as the driver reads it.

    None shows all, "" none. Entries are ordinals, UUIDs or unambiguous UUID prefixes, or one MIG instance; the first
    invalid entry ends the list ("1,-1,2" is 1); a device named twice leaves none. ``instances``: MIG UUID → place of
    its device.
    """
    if value is None:
        return tuple(Visible(place) for place in range(len(devices)))
    found: list[Visible] = []
    for entry in value.split(","):
        item = _resolve(entry.strip(), devices, instances or {})
        if item is None:
            break
        if item in found:
            return ()
        found.append(item)
        if item.mig is not None:
            return tuple(found[:1]) if found[0].mig is not None else tuple(found[:-1])
    return tuple(found)


def select(
    wanted: "int | str | DeviceInfo | Iterable[int | str | DeviceInfo]", devices: Sequence[DeviceInfo]
) -> tuple[DeviceInfo, ...]:
    """The devices named by index, UUID, UUID prefix, PCI address or their own entry, in the order of ``devices``.

    Raises ValueError for a name that fits none or several.
    """
    names: Iterable[Any] = (wanted,) if isinstance(wanted, (int, str, DeviceInfo)) else wanted
    places = {_select_one(name, devices) for name in names}
    return tuple(device for place, device in enumerate(devices) if place in places)


def _select_one(name: int | str | DeviceInfo, devices: Sequence[DeviceInfo]) -> int:
    text = str(name).strip()
    if isinstance(name, DeviceInfo):
        fits = [place for place, device in enumerate(devices) if device == name or same(device, name)]
        name = name.uuid or name.pci_bus_id or name.name
    elif text.isdigit():
        fits = [place for place, device in enumerate(devices) if device.index == int(text)]
    else:
        address = normal_pci(text)
        fits = [
            place
            for place, device in enumerate(devices)
            if (address is not None and normal_pci(device.pci_bus_id) == address) or _begins(device, text)
        ]
    if len(fits) != 1:
        known = ", ".join(f"{device.index}: {device.uuid or device.pci_bus_id or device.name}" for device in devices)
        what = f"{len(fits)} devices" if fits else "no device"
        raise ValueError(f"{name!r} names {what}; there are: {known or 'none'}")
    return fits[0]


def _begins(device: DeviceInfo, text: str) -> bool:
    return bool(text) and device.uuid is not None and device.uuid.lower().startswith(text.lower())


def _resolve(entry: str, devices: Sequence[DeviceInfo], instances: Mapping[str, int]) -> Visible | None:
    if entry.startswith("MIG-"):
        return _resolve_mig(entry, devices, instances)
    if entry.startswith("GPU-"):
        fits = [place for place, device in enumerate(devices) if _begins(device, entry)]
        return Visible(fits[0]) if len(fits) == 1 else None
    digits = _leading_number(entry)
    return Visible(digits) if digits is not None and digits < len(devices) else None


def _resolve_mig(entry: str, devices: Sequence[DeviceInfo], instances: Mapping[str, int]) -> Visible | None:
    known = [uuid for uuid in instances if uuid.lower().startswith(entry.lower())]
    if len(known) == 1:
        return Visible(instances[known[0]], known[0])
    if entry.startswith("MIG-GPU-"):  # the form of drivers before 470: MIG-<GPU uuid>/<instance>/<instance>
        parent = entry[len("MIG-") :].partition("/")[0]
        fits = [place for place, device in enumerate(devices) if _begins(device, parent)]
        return Visible(fits[0], entry) if len(fits) == 1 else None
    return None if len(known) > 1 else Visible(None, entry)


def _leading_number(entry: str) -> int | None:
    """The number an entry begins with, as strtoul reads it ("1gpu" is 1); None without one, or below zero."""
    sign = entry[:1] in ("+", "-")
    end = int(sign)
    while end < len(entry) and entry[end] in "0123456789":
        end += 1
    if end == int(sign) or end > 9:
        return None
    number = int(entry[:end])
    return number if number >= 0 and entry[:1] != "-" else None


def _rank(backend: str) -> tuple[int, str]:
    """Who is believed first where sources differ; a source that is no backend of ours comes last."""
    return (BACKEND_NAMES.index(backend) if backend in BACKEND_NAMES else len(BACKEND_NAMES), backend)


def _group_of(device: DeviceInfo, backend: str, groups: list[_Group]) -> _Group:
    for group in groups:
        if any(same(device, other) for _, other in group):
            return group
    if _is_nameless(device):
        key = _called(device)
        fits = [group for group in groups if any(name != backend and _called(other) == key for name, other in group)]
        if len(fits) == 1:
            return fits[0]
    groups.append([])
    return groups[-1]


def _called(device: DeviceInfo) -> tuple[str, str]:
    return device.vendor, device.name.casefold().removeprefix("nvidia ").strip()


def _join(group: _Group) -> DeviceInfo:
    """The first source's entry with what it lacks taken from the others."""
    joined = group[0][1]
    for _, other in group[1:]:
        missing: dict[str, Any] = {
            name: theirs
            for name, ours, theirs in zip(joined._fields, joined, other, strict=True)
            if ours is None and theirs is not None
        }
        extra = tuple(pair for pair in other.details if pair not in joined.details)
        joined = joined._replace(**missing, details=joined.details + extra)
    if joined.uuid is not None and joined.uuid.startswith("MIG-"):
        joined = _whole(joined, group)
    sources = tuple(dict.fromkeys(backend for backend, _ in group))
    return joined._replace(pci_bus_id=normal_pci(joined.pci_bus_id) or joined.pci_bus_id, sources=sources)


def _whole(joined: DeviceInfo, group: _Group) -> DeviceInfo:
    """CUDA describes a MIG instance; the entry is of the whole device, the instance a detail of it."""
    for _, other in group:
        if other.uuid is not None and not other.uuid.startswith("MIG-"):
            return joined._replace(
                uuid=other.uuid,
                name=other.name,
                memory_total_bytes=other.memory_total_bytes,
                details=(*joined.details, ("mig_uuid", str(joined.uuid))),
            )
    return joined


def _order(device: DeviceInfo) -> tuple[int, int, str, int]:
    if device.cuda_index is not None:
        return 0, device.cuda_index, "", 0
    if device.nvml_index is not None:
        return 1, device.nvml_index, "", 0
    return 2, 0, normal_pci(device.pci_bus_id) or "~", device.index


def chosen(
    wanted: "int | str | DeviceInfo | Iterable[int | str | DeviceInfo] | None",
    devices: tuple[DeviceInfo, ...],
    cuda_visible_devices: str | None,
    instances: Callable[[DeviceInfo], Iterable[str]] = lambda _: (),
) -> tuple[DeviceInfo, ...]:
    """Those of ``devices`` that are asked for as :func:`select` takes them, or as "visible"; all for None.

    ``instances`` gives the UUIDs of a device's MIG instances. It is asked where CUDA_VISIBLE_DEVICES names one; its
    whole device is then the one that is shown.
    """
    if wanted is None:
        return devices
    names = (wanted,) if isinstance(wanted, (int, str, DeviceInfo)) else tuple(wanted)
    shown: tuple[DeviceInfo, ...] = ()
    if "visible" in names:
        nvidia = tuple(device for device in devices if device.vendor == "nvidia")
        named = "MIG-" in (cuda_visible_devices or "")
        parents = {uuid: place for place, one in enumerate(nvidia) for uuid in instances(one)} if named else {}
        places = {item.place for item in visible(cuda_visible_devices, nvidia, parents)}
        shown = tuple(device for place, device in enumerate(nvidia) if place in places)
    others = select([name for name in names if name != "visible"], devices)
    return tuple(device for device in devices if device in shown or device in others)

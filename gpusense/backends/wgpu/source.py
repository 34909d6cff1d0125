"""wgpu in this process: adapters as devices, and the records of its passes. Never touches a driver in-process.

There is one device a physical card, whatever backends reach it. The adapters' facts come from a child process
(:mod:`.child`), asked once. Vulkan and Metal describe a card before DX12 and OpenGL do; memory, PCI address and the
timestamp period come from Vulkan where its loader is present.

The records are those of a binding of wgpu, whose passes an integration times: it hands them to :data:`SOURCE`.
"""

import threading
from collections.abc import Sequence
from typing import Any, Protocol

from ..._capi import libraries
from ..._capi.loading import load
from ..._capi.wgpu import VENDORS, open_api
from ..._records import device_identity as identity
from ..._records.protocols import Backend, OnRecords
from ..._records.records import DeviceInfo, Unavailable
from . import child
from .vulkan import Card

KINDS = {"discrete": "discrete", "integrated": "integrated", "cpu": "cpu"}


def open(timeout_s: float = child.TIMEOUT_S) -> Backend | Unavailable:
    """The backend, or why it is not there. Starts one child process, bounded by ``timeout_s``."""
    found = _library()
    if isinstance(found, Unavailable):
        return found
    path, version = found
    answer = child.ask(path, "adapters", timeout_s)
    if isinstance(answer, Unavailable):
        return answer
    devices = merge(answer["adapters"], answer["cards"])
    if not devices:
        return Unavailable("wgpu", f"wgpu-native {version} finds no adapter", "install a Vulkan driver")
    SOURCE.found(devices)
    return Backend("wgpu", library=path, version=version, devices=SOURCE, records=SOURCE)


def self_test(timeout_s: float = child.TIMEOUT_S) -> dict[str, Any] | Unavailable:
    """Whether this machine computes, times and reads back through wgpu, tried in a child process.

    ``adapter``, ``backend``, ``correct``, ``gpu_ticks``, ``timestamp_period_ns`` (None before wgpu-native 27.0.4),
    ``write_buffer_ns``, ``bytes``, ``validation_error_survived``.
    """
    found = _library()
    if isinstance(found, Unavailable):
        return found
    answer = child.ask(found[0], "selftest", timeout_s)
    return answer if isinstance(answer, Unavailable) else answer["selftest"]


class Timing(Protocol):
    """Who times the passes of a binding; see :class:`RecordSource` for what is asked of it."""

    def flush(self, timeout_s: float) -> bool:
        """Everything submitted so far has been timed and handed on; False when that took too long."""

    def status(self) -> dict[str, Any]:
        """What became of the passes."""


class _Local(threading.local):
    quiet = False  # inside a transfer that is recorded as a whole
    waited_ns = 0  # of it, for a buffer to be mapped


class WgpuSource:
    """wgpu in this process, as :class:`DeviceSource` and :class:`RecordSource`. Any thread.

    ``here.quiet`` is true on a thread while its transfers are recorded by somebody else.
    """

    name = "wgpu"

    def __init__(self) -> None:
        self.here = _Local()
        self._devices: tuple[DeviceInfo, ...] = ()
        self._used: dict[int, DeviceInfo] = {}
        self._on_records: OnRecords = _drop
        self._timing: Timing | None = None
        self._refusal = ""

    def devices(self) -> tuple[DeviceInfo, ...]:
        """What :func:`open` found last; nothing before."""
        return self._devices

    def found(self, devices: tuple[DeviceInfo, ...]) -> None:
        """These are there."""
        self._devices = devices

    def used_devices(self) -> tuple[DeviceInfo, ...]:
        """Those that records name by ``index``, so far."""
        return tuple(self._used.values())

    def used(self, device: DeviceInfo) -> None:
        """Records name it from now on."""
        self._used[device.index] = device

    # --- for a tracer -----------------------------------------------------------------------------------------------

    def start(self, on_records: OnRecords) -> None:
        """``on_records(records)`` gets what is handed on from now on. Passes that are like one another come as one
        :class:`SameKernels`, which a tracer takes as it takes records."""
        self._on_records = on_records

    def stop(self) -> None:
        """What is handed on is dropped from now on."""
        self._on_records = _drop

    def flush(self, timeout_s: float) -> bool:
        """As :meth:`Timing.flush`; true where nobody times anything."""
        timing = self._timing
        return timing is None or timing.flush(timeout_s)

    def status(self) -> dict[str, Any]:
        """As :meth:`Timing.status`; ``reason`` says why nobody times anything, where that was wanted."""
        timing = self._timing
        if timing is None:
            return {"reason": self._refusal} if self._refusal else {}
        return timing.status()

    def refused(self, reason: str) -> None:
        """Why passes of a program that uses wgpu are not timed."""
        self._refusal = reason

    # --- for an integration -----------------------------------------------------------------------------------------

    def timed_by(self, timing: Timing | None) -> None:
        """Who is asked to flush, and for its status; None: nobody any more."""
        self._timing = timing

    def hand_on(self, records: list[Any]) -> None:
        """Finished passes, copies and transfers. Raises what the receiver raises."""
        self._on_records(records)


def _drop(_: list[Any]) -> None: ...


#: The one of this process: wgpu-native keeps one set of devices a process, whatever tracers come and go.
SOURCE = WgpuSource()


def merge(adapters: list[dict[str, Any]], cards: list[dict[str, Any]]) -> tuple[DeviceInfo, ...]:
    """One :class:`DeviceInfo` a card, from every backend's adapters and Vulkan's own view of the cards."""
    from .native import rank

    groups: list[list[dict[str, Any]]] = []
    for adapter in sorted(adapters, key=lambda one: rank(one["backend"])):
        home = next((group for group in groups if _same_card(group, adapter)), None)
        if home is None:
            groups.append([adapter])
        else:
            home.append(adapter)
    left = list(cards)
    return tuple(_device(index, group, _take_card(group[0], left)) for index, group in enumerate(groups))


def numbered(cards: Sequence[Card], cuda: Sequence[DeviceInfo]) -> tuple[DeviceInfo, ...]:
    """Vulkan's cards as devices, in its order; ``index`` is that of :func:`gpusense.devices`, and of ``cuda``'s devices
    the ordinal. Without a live CUDA NVIDIA's come first, by their PCI addresses, as NVML has them."""
    found = [_of_card(card) for card in cards]
    by_address = sorted((one for one in found if one.vendor == "nvidia"), key=lambda one: one.pci_bus_id or "~")
    found = [one._replace(nvml_index=by_address.index(one) if one in by_address else None) for one in found]
    merged = identity.merge({"cuda": cuda, "wgpu": found})
    homes = [next(one for one in merged if identity.same(one, mine) or _alike(one, mine)) for mine in found]
    return tuple(home._replace(nvml_index=None) for home in homes)


def _alike(one: DeviceInfo, other: DeviceInfo) -> bool:
    """For cards that have neither an address nor an id, such as the processor."""
    return other.pci_bus_id is None and other.uuid is None and (one.vendor, one.name) == (other.vendor, other.name)


def _of_card(card: Card) -> DeviceInfo:
    vendor = vendor_of(card.vendor_id, card.name)
    return DeviceInfo(
        index=0,
        name=card.name,
        vendor=vendor,
        backend="wgpu",
        # On NVIDIA Vulkan's device UUID is the one NVML prints; elsewhere nothing else knows it.
        uuid=f"GPU-{card.uuid}" if card.uuid and vendor == "nvidia" else None,
        pci_bus_id=card.pci_bus_id,
        memory_total_bytes=sum(heap.size_bytes for heap in card.heaps if heap.device_local) or None,
        kind=card.kind,
        sources=("wgpu",),
    )


def _library() -> tuple[str, str] | Unavailable:
    """Path and version text of a wgpu-native whose ABI is known. Calls nothing but ``wgpuGetVersion``."""
    found = load(libraries.WGPU)
    if isinstance(found, Unavailable):
        return found
    api = open_api(found.library, found.path)
    return api if isinstance(api, Unavailable) else (found.path, str(api.version))


def _same_card(group: list[dict[str, Any]], adapter: dict[str, Any]) -> bool:
    """Another backend's view of a card already seen. Each backend lists a card once; OpenGL knows no device id."""
    if any(one["backend"] == adapter["backend"] for one in group):
        return False
    first = group[0]
    if first["vendor_id"] and first["vendor_id"] == adapter["vendor_id"]:
        return adapter["device_id"] in (0, first["device_id"])
    return bool(first["name"]) and first["name"] == adapter["name"]


def _take_card(adapter: dict[str, Any], cards: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Vulkan's view of ``adapter``, removed from ``cards`` so that an identical second card gets the next one."""
    ids = (adapter["vendor_id"], adapter["device_id"])
    same = [card for card in cards if (card["vendor_id"], card["device_id"]) == ids]
    named = [card for card in same if card["name"] == adapter["name"]]
    chosen = next(iter(named or same), None)
    if chosen is not None:
        cards.remove(chosen)
    return chosen


def vendor_of(vendor_id: int, name: str) -> str:
    """From the id; Metal reports 0, there from the name; else "unknown"."""
    known = VENDORS.get(vendor_id)
    if known:
        return known
    lowered = name.lower()
    return next((vendor for vendor in ("apple", "amd", "intel", "nvidia") if lowered.startswith(vendor)), "unknown")


def _device(index: int, group: list[dict[str, Any]], card: dict[str, Any] | None) -> DeviceInfo:
    first = group[0]
    vendor = vendor_of(first["vendor_id"], first["name"])
    driver = " ".join(part for part in (first["driver"], first["driver_info"]) if part)
    details = [
        ("adapter_backend", first["backend"]),
        ("vendor_id", f"0x{first['vendor_id']:04x}"),
        ("device_id", f"0x{first['device_id']:04x}"),
        ("timestamp_query", "yes" if first["timestamp_query"] else "no"),
    ]
    details += [("also", f"{other['backend']}: {other['name']} ({other['driver_info']})") for other in group[1:]]
    if card is not None:
        details += _card_details(card)
    local = [heap["size_bytes"] for heap in card["heaps"] if heap["device_local"]] if card else []
    return DeviceInfo(
        index=index,
        name=first["name"] or (card or {}).get("name") or "unnamed adapter",
        vendor=vendor,
        backend="wgpu",
        # On NVIDIA Vulkan's device UUID is the one NVML prints; elsewhere nothing else knows it.
        uuid=f"GPU-{card['uuid']}" if card and vendor == "nvidia" else None,
        pci_bus_id=card["pci_bus_id"] if card else None,
        memory_total_bytes=sum(local) if local else None,
        driver=driver or None,
        kind=KINDS.get(first["type"] or ""),
        sources=("wgpu",),
        details=tuple(details),
    )


def _card_details(card: dict[str, Any]) -> list[tuple[str, str]]:
    details = [
        ("timestamp_period_ns", f"{card['timestamp_period_ns']:g}"),
        ("timestamp_valid_bits", str(card["timestamp_valid_bits"])),
        ("calibrated_timestamps", "yes" if card["calibrated"] else "no"),
    ]
    for number, heap in enumerate(card["heaps"]):
        where = "device" if heap["device_local"] else "host"
        text = f"{where}, {heap['size_bytes']} bytes"
        if heap["budget_bytes"] is not None:
            text += f", budget {heap['budget_bytes']} bytes"
        details.append((f"heap_{number}", text))
    return details

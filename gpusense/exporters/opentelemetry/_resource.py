"""Resource and instrumentation scopes: what is constant for the process or for a device, said once a batch."""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry.sdk import resources as sdk
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from ... import __version__
from ..._records.records import DeviceInfo
from ..._runtime import log, package
from ...backends import names
from .._instruments import hardware_id
from ._attributes import Attributes, Redact, apply_redaction, clean

SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"
SCOPE = package.NAME  # the host's name for us where we are vendored

#: What a backend makes visible, for ``gpu.capabilities``.
_CAPABILITIES = {
    "cupti": ("kernels", "transfers"),
    "wgpu": ("passes", "transfers"),
    **dict.fromkeys(names("metrics"), ("metrics",)),
}


class _HashedResource(Resource):  # type: ignore[misc]
    """A resource that hashes itself once. The SDK's serialises all attributes to JSON for every span of a batch."""

    def __init__(self, base: Any) -> None:
        super().__init__(dict(base.attributes), base.schema_url)
        self._hash: int = super().__hash__()

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or bool(super().__eq__(other))


def detected() -> Any:
    """What the SDK's detectors say of this process, also while the interpreter ends.

    Then the thread pool they run in starts no thread any more (Python 3.12 refuses the thread, earlier ones the pool
    itself), and they run here, one after the other.
    """
    try:
        return Resource.create()
    except RuntimeError:
        return _detected_here()


def _detected_here() -> Any:
    """As ``Resource.create``, without threads. A release that does not name its detectors has the one of ``OTEL_*``."""
    detectors = getattr(sdk, "_build_resource_detectors", lambda: [sdk.OTELResourceDetector()])()
    found = getattr(sdk, "_DEFAULT_RESOURCE", None) or Resource.get_empty()
    for detector in detectors:
        try:
            found = found.merge(detector.detect())
        except Exception:  # noqa: PERF203 - there are two or three
            if detector.raise_on_error:
                raise
            log.exception(
                f"otel-detector-{type(detector).__name__}", "%s failed and is left out", type(detector).__name__
            )
    if not found.attributes.get("service.name"):
        program = os.path.basename(sys.executable or "")
        found = found.merge(Resource({"service.name": f"unknown_service:{program}" if program else "unknown_service"}))
    return found


def build(base: Any, meta: Mapping[str, Any], devices: tuple[DeviceInfo, ...], redact: Redact | None = None) -> Any:
    """The application's resource with ours added; the application's values win."""
    ours, _lost = apply_redaction(redact, attributes(meta, devices))
    return _HashedResource(Resource(ours).merge(base))


def attributes(meta: Mapping[str, Any], devices: tuple[DeviceInfo, ...]) -> Attributes:
    """Resource attributes of a process, empty ones left out."""
    backends = meta.get("backends") or {}
    libraries = meta.get("frameworks")
    found: Attributes = {
        "gpusense.version": __version__,
        "gpu.backends": sorted(backends),
        "gpu.capabilities": sorted({word for name in backends for word in _CAPABILITIES.get(name, ())}),
        "gpu.uuids": [device.uuid for device in devices if device.uuid],
        "gpu.names": sorted({device.name for device in devices}),
        "gpu.compute_capabilities": sorted({_dotted(device) for device in devices if device.compute_capability}),
        "compute.library": sorted(libraries) if isinstance(libraries, dict) else None,
        "process.pid": meta.get("pid"),
        "gpu.rank": meta.get("rank"),
        "gpu.world_size": meta.get("world_size"),
        "hw.driver_version": next((device.driver for device in devices if device.driver), None),
    }
    for name, version in backends.items():
        found[f"gpu.{name}.version"] = version
    cleaned = {key: clean(value) for key, value in found.items()}
    return {key: value for key, value in cleaned.items() if value is not None and value != []}


def program(meta: Mapping[str, Any], argv: Sequence[str] = ()) -> str | None:
    """The program's name without folder and arguments: of ``gpusense run``, else what ``argv`` begins with."""
    run = meta.get("run")
    command = run.get("command") if isinstance(run, dict) else None
    try:
        words = shlex.split(command) if isinstance(command, str) else list(argv)
    except ValueError:  # it was cut off within a quotation
        return None
    if words[:1] == ["-m"]:
        del words[0]
    return os.path.basename(words[0]) or None if words else None


def scope(
    backend: str,
    index: Any,
    context: Any,
    device: DeviceInfo | None,
    threshold_ns: int | None,
    redact: Redact | None = None,
) -> Any:
    """The instrumentation scope of one backend's spans in one context of one device."""
    values: Attributes = {
        "gpu.backend": backend,
        "gpu.device.index": clean(index),
        "gpu.context.id": clean(context),
        "gpu.threshold_ns": threshold_ns,
    }
    if device is not None:
        values |= {"hw.id": hardware_id(device), "hw.name": device.name, "gpu.sm_count": device.sm_count}
    kept, _lost = apply_redaction(redact, {key: value for key, value in values.items() if value is not None})
    return InstrumentationScope(SCOPE, __version__, SCHEMA_URL, kept)


def _dotted(device: DeviceInfo) -> str:
    major, minor = device.compute_capability or (0, 0)
    return f"{major}.{minor}"

"""Metrics as plain data: the shape of ``gpusense monitor --json``, of reports and of session files. Pure.

Schema ``gpusense.metrics/1``. A field without a value is absent and named in ``reasons``; readers ignore what they do
not know.
"""

from typing import Any

from ._metrics import GROUPS, GpuMetrics, Instance, OwnUsage, ProcessUsage
from ._records import DeviceInfo

SCHEMA = "gpusense.metrics/1"

_SCALARS = (
    "time_ns",
    "monotonic_ns",
    "sequence",
    "cost_ns",
    "source",
    "source_time_ns",
    "state",
    "out_of_range",
    "gap_ns",
)


def device_to_dict(device: DeviceInfo) -> dict[str, Any]:
    """Every known fact of a device; ``details`` as an object."""
    plain = _known(device)
    for name in ("sources", "details"):
        if not plain[name]:
            del plain[name]
    if device.details:
        plain["details"] = dict(device.details)
    return plain


def device_from_dict(plain: dict[str, Any]) -> DeviceInfo:
    known = _only(DeviceInfo, plain)
    for name in ("compute_capability", "sources"):
        if isinstance(known.get(name), list):
            known[name] = tuple(known[name])
    details = known.get("details")
    if isinstance(details, dict):
        known["details"] = tuple((str(key), str(value)) for key, value in details.items())
    return DeviceInfo(**{"index": 0, "name": "", "vendor": "unknown", "backend": "", **known})


def metrics_to_dict(metrics: GpuMetrics) -> dict[str, Any]:
    """One device and sample."""
    plain: dict[str, Any] = {"device": device_to_dict(metrics.device)}
    for name in _SCALARS:
        value = getattr(metrics, name)
        if value is not None:
            plain[name] = value
    for name in GROUPS:
        known = _known(getattr(metrics, name))
        if known:
            plain[name] = known
    for name in ("processes", "instances"):
        rows = getattr(metrics, name)
        if rows is not None:
            plain[name] = [_known(row) for row in rows]
    if metrics.reasons:
        plain["reasons"] = dict(reversed(metrics.reasons))  # the first reason given for a field is the one told
    return plain


def metrics_from_dict(plain: dict[str, Any]) -> GpuMetrics:
    """The inverse of :func:`metrics_to_dict`; unknown keys are ignored, missing ones keep their defaults."""
    values: dict[str, Any] = {name: plain[name] for name in _SCALARS if name in plain}
    for name, empty in GROUPS.items():
        known = _only(type(empty), plain.get(name) or {})
        if isinstance(known.get("throttle_reasons"), list):
            known["throttle_reasons"] = tuple(known["throttle_reasons"])
        values[name] = empty._replace(**known) if known else empty
    for name, kind in (("processes", ProcessUsage), ("instances", Instance)):
        if plain.get(name) is not None:
            values[name] = tuple(kind(**_only(kind, row)) for row in plain[name])
    reasons = tuple((str(field), str(why)) for field, why in (plain.get("reasons") or {}).items())
    device = device_from_dict(plain.get("device") or {})
    return GpuMetrics(**{"time_ns": 0, "monotonic_ns": 0, **values, "device": device, "reasons": reasons})


def line(samples: "tuple[GpuMetrics, ...]", **more: Any) -> dict[str, Any]:
    """What one line of ``--json`` holds: the schema, and every device sampled at that moment."""
    return {"schema": SCHEMA, **more, "devices": [metrics_to_dict(sample) for sample in samples]}


def own_usage_to_dict(usage: OwnUsage) -> dict[str, Any]:
    return {**_known(usage), "device": device_to_dict(usage.device)}


def _known(row: Any) -> dict[str, Any]:
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in zip(row._fields, row, strict=True)
        if value is not None
    }


def _only(kind: Any, plain: dict[str, Any]) -> dict[str, Any]:
    return {name: plain[name] for name in kind._fields if name in plain}

"""Metrics as plain data: what ``gpusense monitor --json`` prints and reports show. Pure.

Schema ``gpusense.metrics/1``: :mod:`._json`'s form, in which a field at its default is absent, with ``reasons`` as an
object from field to sentence.
"""

from typing import Any

from . import json_codec
from .metrics import GpuMetrics

SCHEMA = "gpusense.metrics/1"


def metrics_to_dict(metrics: GpuMetrics) -> dict[str, Any]:
    """One device and sample. The key "*" in ``reasons`` speaks for every field without a value."""
    row = json_codec.encode(metrics)
    if metrics.reasons:
        row["reasons"] = dict(reversed(metrics.reasons))  # the first reason given for a field is the one told
    return row


def metrics_from_dict(row: dict[str, Any]) -> GpuMetrics:
    """The inverse. Unknown keys are skipped, missing ones take their default; ValueError names what does not fit."""
    reasons = row.get("reasons")
    if isinstance(reasons, dict):
        row = {**row, "reasons": list(reasons.items())}
    return json_codec.decode(GpuMetrics, row)


def line(samples: tuple[GpuMetrics, ...], **more: Any) -> dict[str, Any]:
    """What one line of ``--json`` holds: the schema, and every device sampled at that moment."""
    return {"schema": SCHEMA, **more, "devices": [metrics_to_dict(sample) for sample in samples]}

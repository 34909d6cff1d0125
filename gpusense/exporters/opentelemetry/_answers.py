"""What an endpoint's answer says besides its status: how much of a request it took, and why not all of it.

A receiver may answer 200 and reject some spans (``partial_success``), and what answers 200 need not be a receiver at
all: a login page and a proxy's error do so too. Pure: a status, a content type and bytes in; an :class:`Answer` out.
"""

import json
from typing import Any, NamedTuple

from ..._runtime.text import one_line

_MAX_BODY = 1 << 20  # an answer of OTLP is a few hundred bytes
_MAX_MESSAGE = 300
_REJECTED = {"traces": "rejectedSpans", "metrics": "rejectedDataPoints", "logs": "rejectedLogRecords"}


class Answer(NamedTuple):
    """``rejected``: spans or data points of the request that were not taken, None for all; ``message``: the
    endpoint's own words, "" for none."""

    status: int
    rejected: int | None = 0
    message: str = ""

    @property
    def text(self) -> str:
        """For a person: why not all was taken, or what the endpoint warns of."""
        if 200 <= self.status < 300 and self.rejected is not None:
            return self.message or (f"{self.rejected:,} rejected without a reason" if self.rejected else "")
        return f"status {self.status}" + (f": {self.message}" if self.message else "")


def read(signal: str, status: int, content_type: str, body: bytes) -> Answer:
    """``signal`` is "traces" or "metrics". A body that says nothing we know leaves what the status says."""
    taken = 200 <= status < 300
    kind = content_type.partition(";")[0].strip().lower()
    if not body or len(body) > _MAX_BODY:
        return Answer(status, 0 if taken else None)
    if kind in ("text/html", "application/xhtml+xml"):
        return Answer(status, None, "the answer is a web page: this is not an OTLP endpoint" if taken else "")
    try:
        if kind == "application/json":
            rejected, message = _of_json(signal, body)
        elif kind.startswith("text/"):
            rejected, message = 0, "" if taken else body.decode("utf-8", "replace")
        else:
            rejected, message = _of_protobuf(signal, body)
    except Exception:  # noqa: BLE001 - foreign bytes under a foreign label
        rejected, message = 0, ""
    message = one_line(" ".join(message.split()), _MAX_MESSAGE) if message.strip() else ""
    return Answer(status, rejected if taken else None, message)


def _of_json(signal: str, body: bytes) -> tuple[int | None, str]:
    found = json.loads(body)
    if not isinstance(found, dict):
        return 0, ""
    part = found.get("partialSuccess")
    if isinstance(part, dict):
        return max(int(part.get(_REJECTED[signal]) or 0), 0), str(part.get("errorMessage") or "")
    error = found.get("error") or found.get("errors")
    if error or (found.get("code") and "message" in found):
        inner = error.get("message") if isinstance(error, dict) else error
        return None, str(inner if isinstance(inner, str) else found.get("message") or json.dumps(error or found))
    return 0, ""


def _of_protobuf(signal: str, body: bytes) -> tuple[int | None, str]:
    failed: Any = _status(body)
    if failed is not None:
        return None, failed.message or f"code {failed.code}"
    if signal == "traces":
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

        part = ExportTraceServiceResponse.FromString(body).partial_success
        return max(part.rejected_spans, 0), part.error_message
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse

    part = ExportMetricsServiceResponse.FromString(body).partial_success
    return max(part.rejected_data_points, 0), part.error_message


def _status(body: bytes) -> Any:
    """The ``google.rpc.Status`` by which receivers say what failed; None for another message."""
    try:
        from google.rpc.status_pb2 import Status  # type: ignore[import-untyped,unused-ignore]

        found = Status.FromString(body)
    except Exception:  # noqa: BLE001
        return None
    return found if found.code else None

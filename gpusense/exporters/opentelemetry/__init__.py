"""GPU work as spans of the application's traces, device health as its metrics, over the official SDK and exporter.

``instrument()`` in the application, ``opentelemetry-instrument``, or ``gpusense run --otlp URL``; until one of them
nothing is imported, started or sent. Needs ``gpusense[otel]``. Names stand in ``docs/reference/semconv.md``.
"""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..._runtime import log
from ..._runtime.errors import name_extra

if TYPE_CHECKING:
    from ...session import Session
    from ._attributes import Redact
    from ._parents import RootSpan
    from ._pipeline import Pipeline
    from ._replay import Replayed

__all__ = ["Instrumentor", "export_session", "flush", "instrument", "start_root_span", "status", "uninstrument"]

_active: "Pipeline | None" = None


def instrument(
    *,
    endpoint: str | None = None,
    exporter: Any = None,
    metric_exporter: Any = None,
    tracer_provider: Any = None,
    meter_provider: Any = None,
    private: bool = False,
    spans: bool = True,
    metrics: bool | None = None,
    span_scopes: bool = True,
    max_spans_per_s: float | None = None,
    summed_spans: bool = True,
    redact: "Redact | None" = None,
    exit_timeout_s: float = 2.0,
    tracer: Any = None,
) -> bool:
    """Whether GPU work is exported from now on: False where an off switch is set; again while active: True, unchanged.

    Spans go where the application's provider sends its own, and follow its sampling and resource. ``exporter`` (an SDK
    ``SpanExporter``) or ``endpoint`` (an OTLP/HTTP base URL) take them instead. ``private=True`` exports, to the
    endpoint or to where ``OTEL_EXPORTER_OTLP_*`` say, even where the application has no provider. A global is never
    set.

    ``metrics``: True starts a monitor where none runs, None uses a running one, False exports none. ``span_scopes``:
    the application's own spans get the kernels that were launched inside them. ``max_spans_per_s``: beyond it records
    are folded into aggregate spans (2000, ``GPUSENSE_OTEL_MAX_SPANS_PER_S``; 0: no limit). ``summed_spans``: a block
    has a span for what in it is below the threshold (``GPUSENSE_OTEL_SUMMED_SPANS=off``: none).
    ``redact(key, value)`` sees every attribute and, with the key ``"span.name"``, every name, and returns what is sent
    instead, or None; its answers are remembered.

    Raises ``ImportError`` without ``gpusense[otel]``, ``ValueError`` for a bad setting.
    """
    global _active
    if switched_off(os.environ):
        return False
    if _active is not None:
        log.debug("OpenTelemetry export is active already; settings unchanged")
        return True
    try:
        from . import _setup

        _active = _setup.start(
            _setup.Options(
                endpoint=endpoint,
                exporter=exporter,
                metric_exporter=metric_exporter,
                tracer_provider=tracer_provider,
                meter_provider=meter_provider,
                private=private,
                spans=spans,
                metrics=metrics,
                span_scopes=span_scopes,
                max_spans_per_s=max_spans_per_s,
                summed_spans=summed_spans,
                redact=redact,
                exit_timeout_s=exit_timeout_s,
                tracer=tracer,
            )
        )
    except ImportError as error:
        raise name_extra(error, "otel") from None
    return True


def uninstrument(timeout_s: float | None = None) -> bool:
    """Whether all was sent and taken, since the beginning: exports what there is, in ``timeout_s`` (default:
    ``exit_timeout_s``) at most, and ends.
    """
    global _active
    pipeline, _active = _active, None
    return pipeline.close(timeout_s) if pipeline is not None else True


def flush(timeout_s: float = 5.0) -> bool:
    """Whether everything recorded so far was handed to the exporter within ``timeout_s``."""
    return _active.flush(timeout_s) if _active is not None else True


def status() -> dict[str, Any] | None:
    """What became of the records: ``received``, ``exported``, ``folded``, ``scopes`` and ``dropped`` by reason."""
    if _active is None:
        return None
    return {
        "received": _active.inbox.received,
        "exported": _active.exported,
        "folded": _active.folded,
        "scopes": _active.scopes,
        "dropped": _active.dropped_now(),
    }


def start_root_span(name: str = "gpusense.process", attributes: Mapping[str, Any] | None = None) -> "RootSpan | None":
    """The span of the whole process, or None where nothing is instrumented. End it with ``end(exit_code)``.

    It is current in the calling thread, a child of what ``TRACEPARENT`` names, and the parent of device work that was
    launched under no other span.
    """
    return _active.start_root(name, dict(attributes or {})) if _active is not None else None


def export_session(
    session: "Session",
    endpoint: str | None = None,
    *,
    redact: "Redact | None" = None,
    timeout_s: float | None = None,
    summed_spans: bool = True,
) -> "Replayed":
    """How many spans of a recorded session an OTLP/HTTP endpoint took, with their original times.

    Ids are derived from the session, so that sending it twice gives the same spans. ``TRACEPARENT`` names a parent.
    What the session only counted has no time: where it was loaded with ``each_block``, blocks say what was launched in
    them, and with ``summed_spans`` have a span for what has none. Works on the calling thread, also while the
    interpreter ends, for ``timeout_s`` a request (default: ``OTEL_EXPORTER_OTLP_TIMEOUT``) at most.
    """
    try:
        from ._replay import replay

        return replay(session, endpoint, redact=redact, timeout_s=timeout_s, summed_spans=summed_spans)
    except ImportError as error:
        raise name_extra(error, "otel") from None


class Instrumentor:
    """What ``opentelemetry-instrument`` loads by the entry point ``opentelemetry_instrumentor``."""

    def instrument(self, **settings: Any) -> None:
        """Never raises anything but ``ImportError``: any other exception would stop all other instrumentations."""
        known = {key: settings[key] for key in ("tracer_provider", "meter_provider") if key in settings}
        try:
            instrument(**known)
        except ImportError:
            raise
        except Exception:  # noqa: BLE001
            log.exception("otel-instrument", "the OpenTelemetry export could not start; GPU work is not exported")

    def uninstrument(self, **_settings: Any) -> None:
        try:
            uninstrument()
        except Exception:  # noqa: BLE001
            log.exception("otel-uninstrument", "ending the OpenTelemetry export failed")


def switched_off(environ: Mapping[str, str]) -> str:
    """The variable that says so, or ""; read before OpenTelemetry is imported."""
    no = ("off", "0", "false", "no")
    for name, off in (("GPUSENSE", no), ("GPUSENSE_OTEL", no), ("OTEL_SDK_DISABLED", ("true",))):
        if environ.get(name, "").strip().lower() in off:
            return f"{name}={environ[name]}"
    return ""


def __getattr__(name: str) -> Any:
    """What :func:`start_root_span` and :func:`export_session` give: loaded with OpenTelemetry, when it is asked for."""
    module = {"RootSpan": "_parents", "Replayed": "_replay"}.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(__import__(f"{__name__}.{module}", fromlist=[name]), name)

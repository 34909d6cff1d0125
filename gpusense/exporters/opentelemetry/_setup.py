"""Puts the parts together from the settings of ``instrument()`` and the ``OTEL_*`` variables."""

import atexit
import functools
import os
import sys
import weakref
from collections.abc import Mapping
from math import isfinite
from typing import Any

from opentelemetry import trace

from ..._runtime import log, package
from ..._tracing import select
from ._attributes import text_limit
from ._counters import OwnCounters
from ._metrics import Metrics
from ._otlp import Otlp
from ._pipeline import Pipeline, Settings
from ._processor import ScopeProcessor
from ._target import Target, processors_of, put_first

_processors: "weakref.WeakKeyDictionary[Any, ScopeProcessor]" = weakref.WeakKeyDictionary()


def start(
    *,
    tracer: Any,
    endpoint: str | None,
    exporter: Any,
    metric_exporter: Any,
    tracer_provider: Any,
    meter_provider: Any,
    private: bool,
    spans: bool,
    metrics: bool | None,
    span_scopes: bool,
    max_spans_per_s: float | None,
    redact: Any,
    exit_timeout_s: float,
    environ: Mapping[str, str] = os.environ,
) -> Pipeline:
    """A running pipeline."""
    from ... import get_tracer

    tracer_of = get_tracer if tracer is None else lambda: tracer
    own = private or endpoint is not None
    settings = _settings(environ, max_spans_per_s, redact, exit_timeout_s, spans and _wanted(environ, own, "TRACES"))
    otlp = Otlp("traces", endpoint) if own and exporter is None else None
    target = Target(tracer_provider, exporter, otlp, private=own or exporter is not None)
    pipeline = Pipeline(tracer_of, target, settings, environ)
    if metrics is not False and _wanted(environ, own, "METRICS"):
        _add_metrics(pipeline, metrics, endpoint, own, metric_exporter, meter_provider)
    if otlp is not None:
        otlp.prepare()
    providers = _Providers(pipeline, span_scopes)
    pipeline.follow = providers.follow
    pipeline.forget_more = providers.forget
    pipeline.leave_more = providers.unwatch
    providers.follow()
    if tracer_provider is None and settings.spans:
        providers.watch()
    pipeline.start()
    if tracer is None:
        select.control.followers.append(pipeline.adopt)
    return pipeline


#: Of a monitor that is started for the export alone: metrics leave once a minute.
MONITOR_INTERVAL_S = 1.0


class _Providers:
    """Keeps one processor, and the instruments, on whatever providers the application has now. ``scopes``: its spans
    get their kernels.
    """

    def __init__(self, pipeline: Pipeline, scopes: bool) -> None:
        self._pipeline = pipeline
        self._scopes = scopes
        self._known: list[Any] = []
        self._replaced: Any = None
        self._watching: Any = None

    def follow(self) -> None:
        pipeline, metrics = self._pipeline, self._pipeline.metrics
        provider = pipeline.target.provider() if pipeline.settings.spans else None
        if provider is not None and hasattr(provider, "add_span_processor"):
            pipeline.yields_to = _first_copy(provider, self._on(provider))
        if metrics is not None:
            metrics.muted = pipeline.yields_to is not None
            metrics.attach()
        known = [provider, metrics.provider() if metrics is not None else None]
        if any(now is not before for now, before in zip(known, self._known or [None, None], strict=True)):
            self._known = known
            _end_before(pipeline)

    def watch(self) -> None:
        """Follows at once when the application sets its provider: its first request must not have to wait for a tick.
        Wraps ``trace.set_tracer_provider``; what was bound before is noticed with the next tick.
        """
        replaced = self._replaced = trace.set_tracer_provider

        @functools.wraps(replaced)
        def set_tracer_provider(*arguments: Any, **named: Any) -> Any:
            result = replaced(*arguments, **named)
            if self._pipeline.is_open:
                try:
                    self.follow()
                except Exception:  # noqa: BLE001 - nothing of ours may reach the application's start
                    log.exception("otel-follow", "the new provider is looked at later")
            return result

        trace.set_tracer_provider = self._watching = set_tracer_provider

    def unwatch(self) -> None:
        """Puts the function back, unless another tool has wrapped it meanwhile; ours only passes on then."""
        if self._watching is not None and trace.set_tracer_provider is self._watching:
            trace.set_tracer_provider = self._replaced

    def _on(self, provider: Any) -> ScopeProcessor:
        known = _processors.get(provider)
        if known is None:
            known = _processors[provider] = ScopeProcessor(self._pipeline, self._scopes)
            put_first(provider, known)
        known.serve(self._pipeline, self._scopes)
        return known

    def forget(self) -> None:
        for processor in list(_processors.values()):
            processor.forget()


def _first_copy(provider: Any, own: ScopeProcessor) -> str | None:
    """The other copy of gpusense that sends to the exporters of ``provider`` and came first; None where we did.

    All copies see every kernel, since they share one capture: two that send would double each span.
    """
    if not own.gpusense_sends:
        return None
    sending = [known for known in processors_of(provider) if getattr(known, "gpusense_sends", False) is True]
    first = sending[-1] if sending else own  # each went before those that were there
    if first is own:
        return None
    name = str(getattr(first, "gpusense_copy", "another copy of gpusense"))
    log.once("otel-copy", "%s sends GPU work to the same provider already; this copy sends nothing", name)
    return name


def _end_before(pipeline: Pipeline) -> None:
    """Ends ``pipeline`` at exit before the providers that there are by now: exit handlers run in reverse order, and
    gpusense's own may have been registered long before theirs. Nothing happens twice at the end.
    """
    kept = weakref.ref(pipeline)

    def end() -> None:
        found = kept()
        if found is not None:
            found.at_exit()

    atexit.register(end)


def _settings(
    environ: Mapping[str, str], max_spans_per_s: float | None, redact: Any, exit_timeout_s: float, spans: bool
) -> Settings:
    defaults = Settings()
    rate: float | None = max_spans_per_s
    if rate is None:
        rate = _number(environ, "GPUSENSE_OTEL_MAX_SPANS_PER_S", defaults.max_spans_per_s or 0.0)
    if not isinstance(rate, (int, float)) or not isfinite(rate) or rate < 0:
        raise ValueError(f"max_spans_per_s must be a number of spans, or 0 for no limit, not {rate!r}")
    if not isinstance(exit_timeout_s, (int, float)) or not isfinite(exit_timeout_s) or exit_timeout_s < 0:
        raise ValueError(f"exit_timeout_s must be a number of seconds, not {exit_timeout_s!r}")
    if redact is not None and not callable(redact):
        raise ValueError(f"redact must be a callable (key, value) -> value or None, not {redact!r}")
    return Settings(
        max_spans_per_s=rate or None,
        batch=max(int(_number(environ, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", defaults.batch)), 1),
        interval_s=max(_number(environ, "OTEL_BSP_SCHEDULE_DELAY", defaults.interval_s * 1e3) / 1e3, 0.05),
        metric_interval_s=max(_number(environ, "OTEL_METRIC_EXPORT_INTERVAL", 60_000) / 1e3, 0.1),
        exit_timeout_s=exit_timeout_s,
        max_text=text_limit(environ),
        redact=redact,
        spans=spans,
    )


def _number(environ: Mapping[str, str], name: str, default: float) -> float:
    value = environ.get(name)
    if not value:
        return default
    try:
        found = float(value)
    except ValueError:
        found = -1.0
    if isfinite(found) and found >= 0:
        return found
    log.once(f"otel-{name}", "%s=%r is not a number of at least 0; %s is used", name, value, default)
    return default


def _wanted(environ: Mapping[str, str], own: bool, signal: str) -> bool:
    """``OTEL_TRACES_EXPORTER=none`` counts where the exporter would be ours."""
    return not own or environ.get(f"OTEL_{signal}_EXPORTER", "").strip().lower() != "none"


def _add_metrics(
    pipeline: Pipeline, metrics: bool | None, endpoint: str | None, own: bool, exporter: Any, provider: Any
) -> None:
    otlp: Any = None
    if exporter is not None:
        otlp = _Given(exporter)
    elif own and provider is None:
        otlp = Otlp("metrics", endpoint)
        otlp.prepare()
    pipeline.metrics = Metrics(
        _Samples(pipeline, start=metrics is True),
        pipeline.work,
        OwnCounters(pipeline).rows(),
        pipeline.view.device_id,
        pipeline.view.resource,
        provider=provider,
        otlp=otlp,
        redact=pipeline.settings.redact,
    )


class _Given:
    """A metric exporter of the caller's in the place of :class:`Otlp`."""

    def __init__(self, exporter: Any) -> None:
        self._exporter = exporter
        self.preferred_temporality = getattr(exporter, "_preferred_temporality", None)

    def export_metrics(self, data: Any) -> bool:
        return getattr(self._exporter.export(data), "name", "") == "SUCCESS"

    def close(self) -> None:
        """The exporter is the caller's to end."""

    def forget(self) -> None:
        """Nothing is held."""


class _Samples:
    """What the running monitor saw last; never a second poller. ``start``: one is started where none runs, and ended
    with the export."""

    def __init__(self, pipeline: Pipeline, *, start: bool) -> None:
        self._pipeline = pipeline
        self._own: Any = None
        if start and self._running() is None:
            from ... import monitor

            self._own = monitor.start_background(interval=MONITOR_INTERVAL_S)

    def latest(self) -> Any:
        source = self._running()
        return source.latest() if source is not None else ()

    def close(self) -> None:
        if self._own is not None:
            self._own.stop()

    def _running(self) -> Any:
        if self._pipeline.tracer.metrics_source is not None:
            return self._pipeline.tracer.metrics_source
        module = sys.modules.get(f"{package.NAME}.monitor")  # not loaded: none runs
        return module.current() if module is not None else None

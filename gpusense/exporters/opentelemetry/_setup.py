"""Puts the parts together from the arguments of ``instrument()`` and the ``OTEL_*`` variables."""

import os
import sys
from collections.abc import Mapping
from math import isfinite
from typing import Any, NamedTuple

from ..._runtime import log, package
from ..._runtime.config import is_off
from ..._tracing import select
from .._counted import with_counters
from ._attributes import Redact, text_limit
from ._metrics import Metrics, OwnCounters
from ._otlp import Otlp
from ._pipeline import Pipeline, Settings
from ._providers import Providers
from ._target import Target

#: Of a monitor that is started for the export alone: metrics leave once a minute.
MONITOR_INTERVAL_S = 1.0


class Options(NamedTuple):
    """The arguments of ``instrument()``, which says what each means."""

    endpoint: str | None
    exporter: Any
    metric_exporter: Any
    tracer_provider: Any
    meter_provider: Any
    private: bool
    spans: bool
    metrics: bool | None
    span_scopes: bool
    max_spans_per_s: float | None
    summed_spans: bool
    redact: Redact | None
    exit_timeout_s: float
    tracer: Any

    @property
    def own_way(self) -> bool:
        """Whether what is sent has a way of its own, beside the application's providers."""
        return self.private or self.endpoint is not None


def start(options: Options, environ: Mapping[str, str] = os.environ) -> Pipeline:
    """A running pipeline. Raises ``ValueError`` for an option that makes no sense."""
    from ... import get_tracer

    own = options.own_way
    settings = _settings(options, environ)
    otlp = Otlp("traces", options.endpoint) if own and options.exporter is None else None
    target = Target(options.tracer_provider, options.exporter, otlp, private=own or options.exporter is not None)
    pipeline = Pipeline(get_tracer if options.tracer is None else lambda: options.tracer, target, settings, environ)
    if options.metrics is not False and _is_wanted("METRICS", options, environ):
        pipeline.metrics = _metrics(pipeline, options)
    if otlp is not None:
        otlp.prepare()
    providers = Providers(pipeline, options.span_scopes)
    providers.follow()
    if options.tracer_provider is None and settings.spans:
        providers.watch()
    pipeline.start(providers)
    if options.tracer is None:
        select.control.followers.append(pipeline.adopt)
    return pipeline


def _settings(options: Options, environ: Mapping[str, str]) -> Settings:
    defaults = Settings()
    rate, redact, exit_timeout_s = options.max_spans_per_s, options.redact, options.exit_timeout_s
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
        spans=options.spans and _is_wanted("TRACES", options, environ),
        summed_spans=options.summed_spans and not is_off(environ.get("GPUSENSE_OTEL_SUMMED_SPANS", "")),
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


def _is_wanted(signal: str, options: Options, environ: Mapping[str, str]) -> bool:
    """False where ``OTEL_TRACES_EXPORTER=none`` says so; it counts where the exporter would be ours."""
    return not options.own_way or environ.get(f"OTEL_{signal}_EXPORTER", "").strip().lower() != "none"


def _metrics(pipeline: Pipeline, options: Options) -> Metrics:
    otlp: Any = None
    if options.metric_exporter is not None:
        otlp = _CallersExporter(options.metric_exporter)
    elif options.own_way and options.meter_provider is None:
        otlp = Otlp("metrics", options.endpoint)
        otlp.prepare()
    return Metrics(
        _Samples(pipeline, start=options.metrics is True),
        pipeline.work,
        OwnCounters(pipeline).rows(),
        pipeline.view.device_id,
        pipeline.view.resource,
        provider=options.meter_provider,
        otlp=otlp,
        redact=options.redact,
    )


class _CallersExporter:
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

            self._own = monitor.start_background(interval=MONITOR_INTERVAL_S, gpm=True)

    def latest(self) -> Any:
        source = self._running()
        recorder = getattr(self._pipeline.tracer, "recorder", None)
        return with_counters(source.latest(), recorder) if source is not None else ()

    def collectives(self) -> Any:
        module = sys.modules.get(f"{package.NAME}.backends.nccl.source")  # not loaded: NCCL tells nothing
        return module.totals() if module is not None else ()

    def close(self) -> None:
        if self._own is not None:
            self._own.stop()

    def _running(self) -> Any:
        if self._pipeline.tracer.metrics_source is not None:
            return self._pipeline.tracer.metrics_source
        module = sys.modules.get(f"{package.NAME}.monitor")  # not loaded: none runs
        return module.current() if module is not None else None

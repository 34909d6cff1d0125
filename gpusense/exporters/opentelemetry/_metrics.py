"""Metrics through the SDK: device health from the running monitor, work done, and gpusense's own counters.

Numbers go through the meter API of the application's provider, or of a private one that only our worker reads.
Histograms are counted beforehand and handed to the same exporter as finished points, because one ``record()`` a kernel
costs more than the kernel's span is worth. Readers that are asked (Prometheus) get the numbers, not the histograms.
"""

import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from opentelemetry import metrics
from opentelemetry.metrics import Observation
from opentelemetry.sdk.metrics import Histogram as HistogramInstrument
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Histogram,
    HistogramDataPoint,
    InMemoryMetricReader,
    Metric,
    MetricsData,
    ResourceMetrics,
    ScopeMetrics,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

try:
    from opentelemetry.sdk.metrics import Exemplar
except ImportError:  # before 1.28
    Exemplar = None

from ... import __version__
from ..._records.metrics import CollectiveTotals, GpuMetrics
from ..._runtime import clock, log
from .._instruments import COLLECTIVES, INSTRUMENTS, Instrument
from ._attributes import Redact, apply_redaction
from ._histograms import Deltas, Series, Work
from ._otlp import Otlp, hand_over
from ._resource import SCHEMA_URL, SCOPE
from ._target import has_ended


class Samples(Protocol):
    """Where device samples come from."""

    def latest(self) -> Sequence[GpuMetrics]: ...

    def collectives(self) -> Sequence[CollectiveTotals]:
        """Sums of NCCL's collectives in this process."""

    def close(self) -> None: ...


#: Numbers with their attributes.
Values = Iterable[tuple[float, dict[str, Any]]]
#: ``(name, unit, description, read)`` of gpusense's own counters.
OwnCounter = tuple[str, str, str, Callable[[], Values]]


class _Slot:
    """What the instruments of one provider read from. Instruments cannot be taken away again, so this is swapped."""

    current: "Metrics | None" = None


_slots: "weakref.WeakKeyDictionary[Any, _Slot]" = weakref.WeakKeyDictionary()


class Metrics:
    """With ``otlp`` a private provider, read by :meth:`export`. Else the application's, looked up at every tick."""

    def __init__(
        self,
        samples: Samples,
        work: Work,
        own: Sequence[OwnCounter],
        device_ids: Callable[[Any], str | None],
        resource: Callable[[], Any],
        *,
        provider: Any = None,
        otlp: Otlp | None = None,
        redact: Redact | None = None,
    ) -> None:
        self._samples = samples
        self.work = work
        self.own = own
        self._device_ids = device_ids
        self._resource = resource
        self._fixed = provider
        self._otlp = otlp
        self._redact = redact
        self._deltas: dict[str, Deltas] = {}
        self._reader: Any = None
        self._own_provider: Any = None
        self._since_ns = 0  # when that was made
        self._last_ns = 0  # the export before this one
        self._with_examples = os.environ.get("OTEL_METRICS_EXEMPLAR_FILTER", "").strip().lower() != "always_off"
        self._slot: _Slot | None = None
        self.failed = 0  # exports of metrics that were not taken
        self.muted = False  # another copy of gpusense counts the same for the same provider

    def attach(self) -> bool:
        """Registers the instruments where there is a provider; safe to call again and again."""
        if self._muted():
            if self._slot is not None and self._slot.current is self:
                self._slot.current = None
            return False
        provider = self.provider()
        if provider is None:
            return False
        slot = _slots.get(provider)
        if slot is None:
            slot = _slots[provider] = _Slot()
            _register(provider, slot, self.own)
        slot.current = self
        self._slot = slot
        return True

    def close(self) -> None:
        if self._slot is not None and self._slot.current is self:
            self._slot.current = None
        if self._otlp is not None:
            self._otlp.close()
        self._samples.close()

    def forget(self, work: Work) -> None:
        """In a forked child: counts begin again."""
        self.work = work
        self._deltas = {}
        if self._otlp is not None:
            self._otlp.forget()

    def export(self, now_ns: int | None = None) -> None:
        """Sends histograms, and with a private provider everything; on the calling thread, never raises."""
        moment = clock.now_ns() if now_ns is None else now_ns
        if self._otlp is not None:
            if self.attach():
                temporality = _wanted(self._otlp.preferred_temporality)
                if not self._otlp.export_metrics(self._everything(moment, temporality)):
                    self.failed += 1
            self._last_ns = moment
            return
        for exporter, lock in () if self._muted() else _exporters(self.provider()):
            temporality = _wanted(getattr(exporter, "_preferred_temporality", None))
            data = self._wrap([], self._histograms(moment, temporality))
            if data is not None and not hand_over(exporter, data, lock):
                self.failed += 1
        self._last_ns = moment

    def observe(self, instrument: Instrument) -> Iterator[Observation]:
        """Values of one instrument for every device, or for all sums of collectives; a row that fails costs itself."""
        rows: Sequence[Any] = self._samples.collectives() if instrument in COLLECTIVES else self._samples.latest()
        for sample in rows:
            try:
                values = list(instrument.read(sample))
            except Exception:  # noqa: BLE001 - one device's odd value must not cost the others
                log.exception(f"otel-{instrument.name}", "the metric %s is left out", instrument.name)
                continue
            for value, attributes in values:
                yield Observation(value, apply_redaction(self._redact, attributes)[0])

    def observe_own(self, read: Callable[[], Values]) -> Iterator[Observation]:
        for value, attributes in read():
            yield Observation(value, attributes)

    def work_totals(self, kind: str, column: str) -> Values:
        for total in self.work.totals():
            if total.kind == kind:
                value = total.total_ns / 1e9 if column == "time" else getattr(total, column)
                yield value, self._device(total.device)

    @property
    def to_application(self) -> bool:
        """Whether a provider of the application's carries the numbers."""
        return self._otlp is None

    def _muted(self) -> bool:
        return self.muted and self.to_application

    def _device(self, device: Any) -> dict[str, Any]:
        found = self._device_ids(device)
        attributes = {"hw.id": found} if found is not None else {}
        return attributes if device is None else {**attributes, "gpu.device.index": device}

    def provider(self) -> Any:
        if self._otlp is not None:
            return self._private()
        provider = self._fixed or metrics.get_meter_provider()
        return provider if type(provider).__name__ not in ("_ProxyMeterProvider", "NoOpMeterProvider") else None

    def _private(self) -> Any:
        if self._reader is None:
            from opentelemetry.sdk.metrics import MeterProvider

            self._reader = InMemoryMetricReader()
            # Its resource is never looked at: what is sent gets the pipeline's.
            nothing = Resource.get_empty()
            self._since_ns = clock.now_ns()
            self._own_provider = MeterProvider([self._reader], resource=nothing, shutdown_on_exit=False)
        return self._own_provider

    def _everything(self, now_ns: int, temporality: Any) -> Any:
        data = self._reader.get_metrics_data()
        numbers: list[Any] = []
        if data is not None:
            for resource in data.resource_metrics:
                for scope in resource.scope_metrics:
                    numbers += [self._on_clock(metric, now_ns) for metric in scope.metrics]
        return self._wrap(numbers, self._histograms(now_ns, temporality)) or MetricsData([])

    def _on_clock(self, metric: Any, now_ns: int) -> Any:
        """The SDK stamps by the wall clock, which may have been set; all else that we send is by the session's."""
        points = [
            _changed(
                point,
                start_time_unix_nano=point.start_time_unix_nano and self._since_ns,
                time_unix_nano=now_ns,
            )
            for point in metric.data.data_points
        ]
        return _changed(metric, data=_changed(metric.data, data_points=points))

    def _wrap(self, numbers: list[Any], histograms: list[Any]) -> Any:
        if not numbers and not histograms:
            return None
        scope = InstrumentationScope(SCOPE, __version__, SCHEMA_URL)
        resource = self._resource()
        grouped = ScopeMetrics(scope, numbers + histograms, SCHEMA_URL)
        return MetricsData([ResourceMetrics(resource, [grouped], resource.schema_url)])

    def _histograms(self, now_ns: int, temporality: Any) -> list[Any]:
        made = []
        for name, unit, key, description, family in (
            ("gpu.kernel.duration", "s", "gpu.kernel.name", "Time of kernels on the device", self.work.kernel_duration),
            ("gpu.transfer.duration", "s", "gpu.transfer.name", "Time of copies", self.work.transfer_duration),
            ("gpu.transfer.size", "By", "gpu.transfer.name", "Size of copies", self.work.transfer_size),
        ):
            series: list[Series] = family.read(now_ns)
            if temporality == AggregationTemporality.DELTA:
                series = self._deltas.setdefault(name, Deltas()).of(series, now_ns)
            points = [self._point(row, key, now_ns) for row in series if row.histogram.count]
            if points:
                made.append(Metric(name, description, unit, Histogram(points, temporality)))
        return made

    def _point(self, row: Series, key: str, now_ns: int) -> Any:
        histogram = row.histogram
        attributes = {key: row.name, **self._device(row.device)}
        return HistogramDataPoint(
            attributes=apply_redaction(self._redact, attributes)[0],
            start_time_unix_nano=histogram.start_ns,
            time_unix_nano=now_ns,
            count=histogram.count,
            sum=histogram.sum,
            bucket_counts=list(histogram.counts),
            explicit_bounds=list(histogram.bounds),
            min=histogram.min,
            max=histogram.max,
            **self._examples(histogram),
        )

    def _examples(self, histogram: Any) -> dict[str, Any]:
        """Of the time since the last export, the last of each bucket."""
        if Exemplar is None or not self._with_examples:
            return {}
        fresh = [one for _, one in sorted(histogram.examples.items()) if one.noted_ns >= self._last_ns]
        return {"exemplars": [Exemplar({}, one.value, one.time_ns, one.span_id, one.trace_id) for one in fresh]}


class OwnCounters:
    """What became of the records, spans and attributes of one pipeline. Read by whatever thread reads metrics."""

    def __init__(self, pipeline: Any) -> None:
        self._pipeline = pipeline

    def rows(self) -> Sequence[OwnCounter]:
        return (
            ("gpusense.records", "{record}", "Records seen, by what became of them", self._records),
            ("gpusense.records.dropped", "{record}", "Records that never reached gpusense", self._lost),
            ("gpusense.overhead.time", "s", "Time gpusense spent on the process's processors", self._overhead),
            ("gpusense.spans", "{record}", "Kept records, by how they were exported", self._spans),
            ("gpusense.spans.dropped", "{record}", "Kept records that got no span, and why", self._dropped),
            ("gpusense.attributes.dropped", "{attribute}", "Attributes that could not be sent", self._attributes),
        )

    def _records(self) -> Values:
        counters = self._pipeline.view.session().counters
        for outcome in ("kept", "aggregated", "invalid", "pre_session"):
            yield getattr(counters, outcome), {"gpusense.outcome": outcome}

    def _lost(self) -> Values:
        counters = self._pipeline.view.session().counters
        yield counters.dropped, {"gpusense.drop.reason": "driver"}
        yield counters.missed, {"gpusense.drop.reason": "no_buffer"}

    def _overhead(self) -> Values:
        for part, value in (self._pipeline.view.session().meta.get("overhead") or {}).items():
            name, _, unit = part.rpartition("_")
            if unit in ("ns", "s") and part != "threshold_ns" and isinstance(value, (int, float)):
                yield value / 1e9 if unit == "ns" else value, {"gpusense.overhead.part": name}

    def _spans(self) -> Values:
        yield self._pipeline.exported, {"gpusense.outcome": "exported"}
        yield self._pipeline.folded, {"gpusense.outcome": "folded"}

    def _dropped(self) -> Values:
        for reason, count in self._pipeline.dropped_now().items():
            yield count, {"gpusense.drop.reason": reason}

    def _attributes(self) -> Values:
        yield self._pipeline.lost_attributes, {}


def _register(provider: Any, slot: _Slot, own: Sequence[OwnCounter]) -> None:
    meter = provider.get_meter(SCOPE, __version__, SCHEMA_URL)
    create = {
        "gauge": meter.create_observable_gauge,
        "counter": meter.create_observable_counter,
        "updowncounter": meter.create_observable_up_down_counter,
    }
    for row in (*INSTRUMENTS, *COLLECTIVES):
        create[row.kind](row.name, [_callback(slot, row)], unit=row.unit, description=row.description)
    for index, (name, unit, description, _read) in enumerate(own):
        meter.create_observable_counter(name, [_own_callback(slot, index)], unit=unit, description=description)
    for name, unit, description, kind, column in (
        ("gpu.kernel.launches", "{launch}", "Kernels that ran", "kernel", "count"),
        ("gpu.kernel.time", "s", "Time of all kernels together", "kernel", "time"),
        ("gpu.transfer.count", "{transfer}", "Copies that ran", "transfer", "count"),
        ("gpu.transfer.io", "By", "Bytes copied", "transfer", "bytes"),
    ):
        meter.create_observable_counter(name, [_work_callback(slot, kind, column)], unit=unit, description=description)


def _callback(slot: _Slot, row: Instrument) -> Callable[[Any], Any]:
    return lambda _options: list(slot.current.observe(row)) if slot.current is not None else []


def _own_callback(slot: _Slot, index: int) -> Callable[[Any], Any]:
    return lambda _options: list(slot.current.observe_own(slot.current.own[index][3])) if slot.current else []


def _work_callback(slot: _Slot, kind: str, column: str) -> Callable[[Any], Any]:
    def read(_options: Any) -> list[Observation]:
        current = slot.current
        return [Observation(*row) for row in current.work_totals(kind, column)] if current is not None else []

    return read


def _changed(frozen: Any, **values: Any) -> Any:
    """One of the SDK's objects with other values."""
    return type(frozen)(**{**vars(frozen), **values})


def _wanted(preferred: Any) -> Any:
    found = (preferred or {}).get(HistogramInstrument)
    return AggregationTemporality.DELTA if found == AggregationTemporality.DELTA else AggregationTemporality.CUMULATIVE


def _exporters(provider: Any) -> list[tuple[Any, Any]]:
    """Exporters behind the periodic readers of an SDK provider, each with the lock its reader exports under."""
    config = getattr(provider, "_sdk_config", None)
    readers: Any = getattr(provider, "_metric_readers", None) or getattr(config, "metric_readers", None) or ()
    going = [reader for reader in readers if not has_ended(reader)]
    found = [(getattr(reader, "_exporter", None), getattr(reader, "_export_lock", None)) for reader in going]
    return [(exporter, lock) for exporter, lock in found if exporter is not None]

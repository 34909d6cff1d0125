"""Device health, work and own counters as metrics: names, units, instruments, values, and the histograms' buckets."""

import itertools
import time

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    InMemoryMetricReader,
    MetricExporter,
    MetricExportResult,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.semconv._incubating.attributes import hw_attributes
from opentelemetry.semconv._incubating.metrics import hw_metrics
from opentelemetry.semconv.schemas import Schemas
from scripted import GPU
from support.machine import require

from gpusense._records.metrics import (
    Clocks,
    CollectiveTotals,
    GpuMetrics,
    Health,
    Memory,
    Pcie,
    Power,
    Thermal,
    Utilization,
)
from gpusense._records.records import Aggregate
from gpusense._runtime import clock
from gpusense.exporters import _instruments
from gpusense.exporters.opentelemetry import _resource

SAMPLE = GpuMetrics(
    GPU,
    time_ns=1,
    monotonic_ns=1,
    utilization=Utilization(gpu_percent=42.0, encoder_percent=10.0, memory_controller_percent=7.0),
    memory=Memory(total_bytes=80_000, used_bytes=20_000),
    thermal=Thermal(gpu_celsius=61.0, memory_celsius=70.0, slowdown_celsius=90.0, fan_percent=30.0, fan_rpm=1500.0),
    power=Power(draw_watts=300.0, limit_watts=700.0, energy_joules=12_345.6),
    clocks=Clocks(sm_mhz=1980.0),
    pcie=Pcie(rx_bytes_per_s=1e9, tx_bytes_per_s=2e9, replay_count=3),
    health=Health(ecc_corrected=4, ecc_uncorrected=0),
)


class Monitor:
    def __init__(self, *samples):
        self.samples = samples

    def latest(self):
        return self.samples


class Kept(MetricExporter):
    """An exporter in memory, behind the SDK's own periodic reader or alone."""

    def __init__(self, temporality=None):
        super().__init__(preferred_temporality=temporality)
        self.batches = []

    def export(self, metrics_data, timeout_millis=10_000, **_named):
        self.batches.append(metrics_data)
        return MetricExportResult.SUCCESS

    def shutdown(self, timeout_millis=30_000, **_named):
        pass

    def force_flush(self, timeout_millis=10_000):
        return True


def metrics_of(data):
    if data is None:
        return {}
    return {
        metric.name: metric
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def points(metric, *keys):
    return {tuple(point.attributes.get(key) for key in keys): point.value for point in metric.data.data_points}


@pytest.fixture
def reader(otel, tracer):
    tracer.metrics_source = Monitor(SAMPLE)
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], resource=Resource({"service.name": "shop"}), shutdown_on_exit=False)
    otel.instrument(tracer=tracer, meter_provider=provider, spans=False)
    yield reader
    otel.uninstrument()
    provider.shutdown()


def test_device_health(reader):
    found = metrics_of(reader.get_metrics_data())
    assert points(found["hw.gpu.utilization"], "hw.id", "hw.gpu.task") == {
        (GPU.uuid, "general"): 0.42,
        (GPU.uuid, "encoder"): 0.1,
    }
    assert points(found["hw.gpu.memory.utilization"], "hw.id") == {(GPU.uuid,): 0.25}
    assert points(found["hw.gpu.memory.usage"], "hw.id") == {(GPU.uuid,): 20_000}
    assert points(found["hw.temperature"], "hw.parent", "hw.sensor_location") == {
        (GPU.uuid, "gpu"): 61.0,
        (GPU.uuid, "memory"): 70.0,
    }
    assert points(found["hw.temperature.limit"], "hw.limit_type") == {("throttled",): 90.0}
    assert points(found["hw.power"], "hw.type") == {("gpu",): 300.0}
    assert points(found["hw.energy"], "hw.id") == {(GPU.uuid,): 12_345.6}
    assert points(found["hw.fan.speed_ratio"], "hw.parent") == {(GPU.uuid,): 0.3}
    assert points(found["hw.errors"], "error.type") == {("corrected",): 4, ("uncorrected",): 0, ("pcie_replay",): 3}
    assert points(found["hw.status"], "hw.state") == {
        ("ok",): 1,
        ("degraded",): 0,
        ("failed",): 0,
        ("predicted_failure",): 0,
    }
    assert points(found["gpu.clock.frequency"], "gpu.clock.domain") == {("sm",): 1.98e9}
    assert points(found["gpu.pcie.rate"], "network.io.direction") == {("receive",): 1e9, ("transmit",): 2e9}
    assert points(found["gpu.unit.activity"], "gpu.unit") == {("memory_controller",): 0.07}


def test_collectives_by_communicator(reader, monkeypatch):
    from gpusense.backends.nccl import source

    about = {"gpu.collective.name", "gpu.communicator.id", "gpu.communicator.rank", "gpu.communicator.size"}
    rows = (
        CollectiveTotals("AllReduce", "ab", None, 1, 8, 40, 1 << 30, 40, 2_500_000_000, 3e9, 31_000_000_000),
        CollectiveTotals("Send", "ab", None, 1, 8, 2),
    )
    monkeypatch.setattr(source, "totals", lambda: rows)
    found = metrics_of(reader.get_metrics_data())
    by_name = {("AllReduce",): 40, ("Send",): 2}
    assert points(found["gpu.collective.count"], "gpu.collective.name") == by_name
    assert points(found["gpu.collective.io"], "gpu.collective.name") == {("AllReduce",): 1 << 30}
    assert points(found["gpu.collective.time"], "gpu.communicator.id") == {("ab",): 2.5}
    assert points(found["gpu.collective.bus.bandwidth"], "gpu.communicator.rank") == {(1,): 3e9}
    assert points(found["gpu.collective.waiting.time"], "gpu.communicator.size") == {(8,): 31.0}
    assert set(found["gpu.collective.io"].data.data_points[0].attributes) == about
    assert found["gpu.collective.count"].data.is_monotonic


def test_the_running_monitor_is_found_and_none_is_started_beside_it(otel, tracer):
    from gpusense import monitor

    class Source:
        def devices(self):
            return (GPU,)

        def sample(self, device, lanes=("fast", "medium")):
            return SAMPLE._replace(monotonic_ns=time.monotonic_ns())

    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    running = monitor.start_background(interval=0.01, source=Source())
    try:
        otel.instrument(tracer=tracer, meter_provider=provider, spans=False, metrics=True)
        assert monitor.current() is running
        for _ in range(500):
            if running.latest():
                break
            time.sleep(0.01)
        assert points(metrics_of(reader.get_metrics_data())["hw.power"], "hw.id") == {(GPU.uuid,): 300.0}
        otel.uninstrument()
        assert running.running
    finally:
        running.stop()
        provider.shutdown()


def test_a_monitor_is_started_only_when_asked_for(otel, tracer):
    from gpusense import monitor

    provider = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)
    assert otel.instrument(tracer=tracer, meter_provider=provider, spans=False)
    assert monitor.current() is None
    otel.uninstrument()
    assert otel.instrument(tracer=tracer, meter_provider=provider, spans=False, metrics=True)
    started = monitor.current()
    assert started.running
    otel.uninstrument()
    assert not started.running
    provider.shutdown()


def test_absent_values_give_no_points(reader, tracer):
    tracer.metrics_source = Monitor(GpuMetrics(GPU, 1, 1, state="lost"))
    found = metrics_of(reader.get_metrics_data())
    assert {name for name in found if name.startswith(("hw.", "gpu."))} == {"hw.status"}
    assert points(found["hw.status"], "hw.state")[("failed",)] == 1


def test_one_odd_value_costs_its_row_only(reader, tracer):
    odd = SAMPLE._replace(power=Power(draw_watts=1.0), utilization=Utilization(gpu_percent="?"))
    tracer.metrics_source = Monitor(odd)
    found = metrics_of(reader.get_metrics_data())
    assert "hw.gpu.utilization" not in found
    assert points(found["hw.power"], "hw.id") == {(GPU.uuid,): 1.0}


def test_work_and_own_counters(reader, tracer, otel):
    budget = {"budget": 0.02, "share": 0.01, "left": 0.006, "observed": 0.5, "threshold_ns": 100_000}  # no times
    tracer.meta["overhead"] = {"drain_cpu_ns": 2_000_000, "thread_s": 0.5, **budget}
    for number in range(3):
        tracer.kernel(duration_ns=1_000_000, start_ns=1000 + number)
    tracer.transfer(size=4096)
    tracer.aggregates.append(Aggregate((), "kernel", "tiny", "cuda", 0, 7, 10, 50_000, 5_000, 5_000, 0))
    otel._active.view._taken_s = float("-inf")
    assert otel.flush(10)
    found = metrics_of(reader.get_metrics_data())
    assert points(found["gpu.kernel.launches"], "gpu.device.index", "hw.id") == {(0, GPU.uuid): 13}
    assert points(found["gpu.kernel.time"], "gpu.device.index") == {(0,): pytest.approx(0.00305)}
    assert points(found["gpu.transfer.io"], "gpu.device.index") == {(0,): 4096}
    assert points(found["gpusense.records"], "gpusense.outcome") == {
        ("kept",): 4,
        ("aggregated",): 10,
        ("invalid",): 0,
        ("pre_session",): 0,
    }
    assert points(found["gpusense.overhead.time"], "gpusense.overhead.part") == {
        ("drain_cpu",): 0.002,
        ("thread",): 0.5,
    }


def test_after_the_end_nothing_is_reported(reader, otel):
    otel.uninstrument()
    assert metrics_of(reader.get_metrics_data()) == {}


@pytest.mark.parametrize("temporality", [AggregationTemporality.CUMULATIVE, AggregationTemporality.DELTA])
def test_histograms_reach_the_exporter_of_the_application(otel, tracer, temporality):
    from opentelemetry.sdk.metrics import Histogram

    exporter = Kept({Histogram: temporality})
    provider = MeterProvider(
        [PeriodicExportingMetricReader(exporter, export_interval_millis=float("inf"))],
        resource=Resource({"service.name": "shop"}),
        shutdown_on_exit=False,
    )
    otel.instrument(tracer=tracer, meter_provider=provider, spans=False)
    tracer.kernel("sgemm", duration_ns=3_000_000)
    tracer.kernel("sgemm", duration_ns=30_000_000)
    tracer.transfer(size=5000)
    assert otel.flush(10)
    otel._active.metrics.export()
    tracer.kernel("sgemm", duration_ns=3_000_000)
    assert otel.flush(10)
    otel._active.metrics.export()
    first, second = (metrics_of(batch)["gpu.kernel.duration"] for batch in exporter.batches[:2])
    (point,) = first.data.data_points
    assert first.unit == "s"
    assert dict(point.attributes) == {"gpu.kernel.name": "sgemm", "hw.id": GPU.uuid, "gpu.device.index": 0}
    counts = dict(zip([*point.explicit_bounds, float("inf")], point.bucket_counts, strict=True))
    assert {bound: count for bound, count in counts.items() if count} == {0.005: 1, 0.05: 1}
    assert point.sum == pytest.approx(0.033)
    (later,) = second.data.data_points
    delta = temporality == AggregationTemporality.DELTA
    assert later.count == (1 if delta else 3)
    assert second.data.aggregation_temporality == temporality
    assert later.start_time_unix_nano == (point.time_unix_nano if delta else point.start_time_unix_nano)
    (size,) = metrics_of(exporter.batches[0])["gpu.transfer.size"].data.data_points
    assert (size.count, size.sum) == (1, 5000)
    provider.shutdown()


def test_a_private_exporter_gets_numbers_and_histograms_at_once(otel, tracer):
    tracer.metrics_source = Monitor(SAMPLE)
    exporter = Kept()
    otel.instrument(tracer=tracer, metric_exporter=exporter, spans=False)
    tracer.kernel()
    otel.uninstrument(5)
    found = metrics_of(exporter.batches[-1])
    assert {"hw.power", "gpu.kernel.duration", "gpusense.records", "gpusense.spans.dropped"} <= set(found)
    resource = exporter.batches[-1].resource_metrics[0].resource
    assert resource.attributes["gpu.uuids"] == (GPU.uuid,)


@pytest.mark.parametrize("step_s", [3600, -3600])
@pytest.mark.parametrize("temporality", [AggregationTemporality.CUMULATIVE, AggregationTemporality.DELTA])
def test_all_metrics_lie_on_the_sessions_clock_whatever_the_wall_clock_does(
    otel, tracer, monkeypatch, step_s, temporality
):
    from opentelemetry.sdk.metrics import Histogram

    tracer.metrics_source = Monitor(SAMPLE)
    exporter = Kept({Histogram: temporality})
    begin = clock.now_ns()
    otel.instrument(tracer=tracer, metric_exporter=exporter, spans=False)
    tracer.kernel()
    assert otel.flush(10)
    otel._active.metrics.export()
    wall = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: wall() + step_s * 10**9)
    tracer.kernel()
    assert otel.flush(10)
    otel._active.metrics.export()
    end = clock.now_ns()
    before, after = (
        {
            (name, tuple(point.attributes.items())): point
            for name, metric in metrics_of(batch).items()
            for point in metric.data.data_points
        }
        for batch in exporter.batches[:2]
    )
    assert before.keys() <= after.keys()
    assert {"gpu.kernel.duration", "gpu.kernel.launches", "hw.power", "hw.energy"} <= {name for name, _ in after}
    for key, point in before.items():
        later = after[key]
        starts = point.start_time_unix_nano or begin, later.start_time_unix_nano or begin
        assert begin <= starts[0] <= point.time_unix_nano < later.time_unix_nano <= end
        is_delta = key[0] == "gpu.kernel.duration" and temporality is AggregationTemporality.DELTA
        assert starts[1] == (point.time_unix_nano if is_delta else starts[0])


@pytest.mark.parametrize("named", ["trace_based", "always_off"])
def test_a_bucket_points_at_a_span_that_fell_into_it(otel, app, tracer, spans, monkeypatch, named):
    from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics

    monkeypatch.setenv("OTEL_METRICS_EXEMPLAR_FILTER", named)
    exporter = Kept()
    otel.instrument(tracer=tracer, tracer_provider=app, metric_exporter=exporter)
    with tracer.trace("step"):
        tracer.kernel("sgemm", duration_ns=3_000_000)
        tracer.kernel("sgemm", duration_ns=30_000_000)
        tracer.transfer("up", duration_ns=200_000, size=4096)
    tracer.kernel("sgemm", duration_ns=700_000)  # without a parent, and so without a span
    assert otel.flush(10)
    otel._active.metrics.export()
    made = {span.context.span_id: span for span in spans()}
    [kernel] = metrics_of(exporter.batches[-1])["gpu.kernel.duration"].data.data_points
    [size] = metrics_of(exporter.batches[-1])["gpu.transfer.size"].data.data_points
    assert kernel.count == 3
    if named == "always_off":
        assert not kernel.exemplars
        return
    assert [one.value for one in kernel.exemplars] == [0.003, 0.03]
    for one in kernel.exemplars:
        span = made[one.span_id]
        assert (span.name, span.context.trace_id) == ("gpu_kernel: sgemm", one.trace_id)
        assert (span.end_time - span.start_time) / 1e9 == one.value
        assert one.time_unix_nano == span.end_time
    assert [(one.value, made[one.span_id].name) for one in size.exemplars] == [(4096.0, "gpu_transfer: up")]
    sent = encode_metrics(exporter.batches[-1]).SerializeToString()
    assert sum(one.span_id.to_bytes(8, "big") in sent for one in kernel.exemplars) == 2
    otel._active.metrics.export()  # and once alone
    [again] = metrics_of(exporter.batches[-1])["gpu.kernel.duration"].data.data_points
    assert (again.count, list(again.exemplars)) == (3, [])


def test_names_units_and_instruments_are_the_conventions_own():
    require(hasattr(Schemas, "V1_44_0"), "semantic conventions 1.44")
    assert Schemas.V1_44_0.value == _resource.SCHEMA_URL
    kinds = {"gauge": "gauge", "counter": "counter", "updowncounter": "updowncounter"}
    for row in _instruments.INSTRUMENTS:
        if not row.name.startswith("hw."):
            assert row.name.startswith("gpu.")
            continue
        constant = row.name.upper().replace(".", "_")
        assert getattr(hw_metrics, constant) == row.name
        words = _documentation(hw_metrics, constant)
        assert words["Instrument"] == kinds[row.kind], row.name
        assert words["Unit"] == row.unit, row.name


def test_attribute_names_are_the_conventions_own():
    require(hasattr(Schemas, "V1_44_0"), "semantic conventions 1.44")
    known = {value for name, value in vars(hw_attributes).items() if name.startswith("HW_") and isinstance(value, str)}
    used = {
        key
        for row in _instruments.INSTRUMENTS
        for _value, attributes in row.read(SAMPLE)
        for key in attributes
        if key.startswith("hw.")
    }
    assert used <= known
    assert {"hw.id", "hw.parent", "hw.sensor_location", "hw.limit_type", "hw.state", "hw.gpu.task"} <= used
    states = {state.value for state in hw_attributes.HwStateValues}
    assert set(_instruments.STATES) <= states


def _documentation(module, constant):
    import ast
    import inspect

    body = ast.parse(inspect.getsource(module)).body
    for statement, following in itertools.pairwise(body):
        if isinstance(statement, ast.AnnAssign) and getattr(statement.target, "id", "") == constant:
            lines = following.value.value.strip().splitlines()
            return dict(line.split(": ", 1) for line in lines if ": " in line)
    raise AssertionError(f"{constant} is not in the conventions")


def test_bounds_cover_a_microsecond_to_ten_seconds():
    from gpusense.exporters.opentelemetry._histograms import DURATION_BOUNDS, SIZE_BOUNDS

    assert (DURATION_BOUNDS[0], DURATION_BOUNDS[-1]) == (1e-6, 10.0)
    assert list(DURATION_BOUNDS) == sorted(DURATION_BOUNDS)
    assert SIZE_BOUNDS[0] == 256

"""What a busy service does to its exporter: ends in any order, samplers, odd values, full queues, copies."""

import enum
import pathlib
import subprocess
import sys
import threading
import types

import pytest
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Decision, Sampler, SamplingResult
from opentelemetry.trace import Link, SpanContext, StatusCode, TraceFlags
from scripted import ScriptedTracer

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEADER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def on(otel, app, tracer):
    assert otel.instrument(tracer=tracer, tracer_provider=app, metrics=False)
    return app.test_tracer


def provider_of(*exporters, sampler=None, kind=SimpleSpanProcessor):
    provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
    for exporter in exporters:
        provider.add_span_processor(kind(exporter))
    return provider


def names(exporter):
    return sorted(span.name for span in exporter.get_finished_spans())


# --- the application's span goes on being used inside a block ---------------------------------------------------------


def test_what_is_said_to_the_current_span_inside_a_block_reaches_the_request(on, tracer, spans):
    with on.start_as_current_span("GET /"), tracer.trace("forward"), tracer.trace("inner"):
        span = trace.get_current_span()
        assert span.is_recording()
        span.set_attribute("user", 7)
        span.set_attributes({"tenant": "a"})
        span.add_event("cache miss")
        span.record_exception(ValueError("no"))
        span.set_status(StatusCode.ERROR)
        span.update_name("GET /item")
        inside = span.get_span_context()
    request = spans("GET /item")[0]
    assert (request.attributes["user"], request.attributes["tenant"]) == (7, "a")
    assert [event.name for event in request.events] == ["cache miss", "exception"]
    assert request.status.status_code is StatusCode.ERROR
    assert inside.span_id == spans("inner")[0].context.span_id


def test_a_block_without_a_request_is_not_recording(on, tracer):
    with tracer.trace("alone"):
        assert not trace.get_current_span().is_recording()
        trace.get_current_span().set_attribute("user", 7)


# --- sampling ---------------------------------------------------------------------------------------------------------


class Asked(Sampler):
    """Remembers what it was asked, samples what is not named "quiet"."""

    def __init__(self):
        self.seen = []

    def should_sample(self, parent_context, trace_id, name, kind=None, attributes=None, links=None, trace_state=None):
        parent = trace.get_current_span(parent_context).get_span_context()
        self.seen.append((name, parent.span_id))
        return SamplingResult(Decision.DROP if name == "quiet" else Decision.RECORD_AND_SAMPLE)

    def get_description(self):
        return "asked"


def test_a_remote_parent_leaves_the_decision_to_the_sampler(otel, tracer, monkeypatch):
    monkeypatch.setenv("TRACEPARENT", HEADER)
    exporter = InMemorySpanExporter()
    otel.instrument(tracer=tracer, tracer_provider=provider_of(exporter, sampler=ALWAYS_OFF), metrics=False)
    tracer.kernel("alone")
    otel.start_root_span()
    with tracer.trace("step"):
        tracer.kernel()
    assert otel.flush(10)
    assert names(exporter) == []
    assert otel.status()["dropped"] == {"unsampled": 3}


def test_a_remote_parent_that_is_not_sampled_may_be_overruled(otel, tracer, monkeypatch):
    monkeypatch.setenv("TRACEPARENT", HEADER[:-1] + "0")
    exporter = InMemorySpanExporter()
    otel.instrument(tracer=tracer, tracer_provider=provider_of(exporter, sampler=ALWAYS_ON), metrics=False)
    root = otel.start_root_span("serve")
    with tracer.trace("step"):
        tracer.kernel()
    root.end(0)
    assert otel.flush(10)
    assert names(exporter) == ["gpu_kernel: sgemm", "serve", "step"]


def test_the_sampler_is_told_the_remote_parent_and_asked_once(otel, tracer, monkeypatch):
    monkeypatch.setenv("TRACEPARENT", HEADER)
    exporter, sampler = InMemorySpanExporter(), Asked()
    otel.instrument(tracer=tracer, tracer_provider=provider_of(exporter, sampler=sampler), metrics=False)
    for name in ("loud", "quiet"):
        with tracer.trace(name):
            for _ in range(3):
                tracer.kernel(f"in {name}")
    assert otel.flush(10)
    assert sampler.seen == [("loud", 0xB7AD6B7169203331), ("quiet", 0xB7AD6B7169203331)]
    assert names(exporter) == ["gpu_kernel: in loud"] * 3 + ["loud"]


def test_a_span_that_is_recorded_and_not_sampled_takes_its_kernels_along(otel, tracer):
    class RecordOnly(Sampler):
        def should_sample(self, *_arguments, **_named):
            return SamplingResult(Decision.RECORD_ONLY)

        def get_description(self):
            return "record only"

    exporter = InMemorySpanExporter()
    provider = provider_of(exporter, sampler=RecordOnly())
    otel.instrument(tracer=tracer, tracer_provider=provider, metrics=False)
    otel.start_root_span("serve")
    with provider.get_tracer("app").start_as_current_span("GET /"):
        tracer.kernel()
    assert otel.flush(10)
    assert otel.status()["dropped"] == {"unsampled": 1}


def test_a_sampler_that_fails_costs_its_block_alone(otel, tracer, caplog):
    class Broken(Sampler):
        def should_sample(self, _context, _id, name, *_arguments, **_named):
            if name == "bad":
                raise RuntimeError("rules are gone")
            return SamplingResult(Decision.RECORD_AND_SAMPLE)

        def get_description(self):
            return "broken"

    exporter = InMemorySpanExporter()
    otel.instrument(tracer=tracer, tracer_provider=provider_of(exporter, sampler=Broken()), metrics=False)
    for name in ("bad", "bad", "good"):
        with tracer.trace(name):
            tracer.kernel()
    assert otel.flush(10)
    assert names(exporter) == ["good", "gpu_kernel: sgemm"]
    assert len(caplog.records) == 1


# --- links ------------------------------------------------------------------------------------------------------------


def context(number):
    return SpanContext(1, number, False, TraceFlags(1))


def test_one_target_may_stand_for_a_list_and_lists_are_bounded(on, tracer, spans):
    with on.start_as_current_span("GET /") as request:
        for name, links in (
            ("a span", request),
            ("a context", request.get_span_context()),
            ("a link", Link(request.get_span_context())),
            ("a number", 7),
            ("many", [Link(context(number)) for number in range(1, 1000)]),
            ("endless", (context(number) for number in iter(lambda: 5, None))),
        ):
            with tracer.trace(name, links=links):
                pass
    found = {span.name: [link.context.span_id for link in span.links] for span in spans()}
    wanted = [request.get_span_context().span_id]
    assert found["a span"] == found["a context"] == found["a link"] == wanted
    assert found["a number"] == []
    assert found["many"] == list(range(1, 33))
    assert found["endless"] == [5] * 32


# --- values -----------------------------------------------------------------------------------------------------------


class Colour(str, enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Loud(str):
    def __str__(self):
        raise RuntimeError("no text of me")


def test_subclasses_become_what_they_hold(on, tracer, spans):
    with tracer.trace("step", {"colour": Colour.RED, "level": Level.HIGH, "loud": Loud("text")}):
        pass
    attributes = spans("step")[0].attributes
    assert (attributes["colour"], attributes["level"], attributes["loud"]) == ("red", 3, "text")


def test_huge_values_are_cut_before_they_are_worked_on():
    from gpusense.exporters._otel_attributes import MAX_TEXT, clean

    class Counting(str):
        """Text that says how much of it was encoded."""

        encoded = 0

        def __getitem__(self, part):
            return Counting(super().__getitem__(part))

        def encode(self, *arguments):
            Counting.encoded = max(Counting.encoded, len(self))
            return super().encode(*arguments)

    from gpusense.exporters import _otel_attributes

    assert len(_otel_attributes.text(Counting("é" * 10**6), MAX_TEXT)) == MAX_TEXT
    assert 0 < Counting.encoded <= MAX_TEXT + 1
    assert len(clean(1 << 10**6)) == MAX_TEXT
    assert len(clean("é" * 10**6)) == MAX_TEXT


def test_a_mapping_of_a_million_attributes_is_not_cleaned_to_the_end(on, otel, tracer, spans):
    from gpusense.exporters._otel_attributes import MAX_ATTRIBUTES

    cleaned = []

    class Value:
        def item(self):
            cleaned.append(self)
            return 1

    with tracer.trace("step", {f"a{number}": Value() for number in range(1000)}):
        pass
    assert len(spans("step")[0].attributes) == MAX_ATTRIBUTES
    assert len(cleaned) < MAX_ATTRIBUTES
    assert otel._active._builder.lost_attributes == 1000 - len(cleaned)


def test_the_limit_of_the_environment_counts_where_it_is_shorter(otel, app, tracer, spans, monkeypatch):
    monkeypatch.setenv("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "16")
    otel.instrument(tracer=tracer, tracer_provider=app, metrics=False)
    with tracer.trace("step", {"text": "x" * 100, "list": ["y" * 100]}):
        tracer.kernel("k", full_name="void " + "k" * 100)
    found = {span.name: span.attributes for span in spans()}
    assert len(found["step"]["text"]) == len(found["step"]["list"][0]) == 16
    assert len(found["gpu_kernel: k"]["gpu.kernel.name"]) == 16


def test_odd_keys_of_a_record_cost_that_record(otel, app, tracer, spans):
    otel.instrument(tracer=tracer, tracer_provider=app, metrics=False, max_spans_per_s=4)
    with tracer.trace("step"):
        for number in range(6):
            tracer.kernel("good", duration_ns=200_000 + number)
            tracer.kernel(["list"], duration_ns=1000)
            tracer.kernel("device", device=[0], duration_ns=1000)
            tracer.kernel("stream", stream={}, duration_ns=1000)
    assert otel.flush(10)
    status = otel.status()
    assert status["received"] == 25
    assert status["received"] == status["exported"] + status["folded"] + sum(status["dropped"].values())
    assert sum(span.attributes.get("gpu.aggregate.count", 1) for span in spans("gpu_kernel: good")) == 6


# --- ends in any order ------------------------------------------------------------------------------------------------


class Ends(InMemorySpanExporter):
    """Counts what is handed over after its end."""

    late = 0

    def export(self, spans):
        if self._stopped:
            self.late += 1
        return super().export(spans)


@pytest.mark.parametrize("kind", [SimpleSpanProcessor, BatchSpanProcessor])
@pytest.mark.parametrize("how", ["shutdown", "force_flush"])
def test_the_provider_flushes_our_spans_with_its_own(otel, tracer, kind, how):
    exporter = Ends()
    provider = provider_of(exporter, kind=kind)
    otel.instrument(tracer=tracer, tracer_provider=provider, metrics=False)
    with provider.get_tracer("app").start_as_current_span("GET /"):
        tracer.kernel()
    getattr(provider, how)()
    assert names(exporter) == ["GET /", "gpu_kernel: sgemm"]
    provider.shutdown()


def test_nothing_is_handed_to_an_exporter_that_was_ended(otel, tracer):
    exporter = Ends()
    provider = provider_of(exporter, kind=BatchSpanProcessor)
    otel.instrument(tracer=tracer, tracer_provider=provider, metrics=False)
    provider.shutdown()
    with tracer.trace("late"):
        tracer.kernel()
    otel.flush(10)
    assert exporter.late == 0
    assert otel.status()["dropped"] == {"no_exporter": 2}


def test_the_end_says_so_where_the_endpoint_took_nothing(otel, tracer):
    class Refuses(SpanExporter):
        def export(self, spans):
            return SpanExportResult.FAILURE

    otel.instrument(tracer=tracer, exporter=Refuses(), metrics=False)
    with tracer.trace("step"):
        pass
    assert not otel.uninstrument()


CHILD = """
import atexit, sys
{first}
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
ended = []
class Spans(SpanExporter):
    def export(self, spans):
        print(*(span.name for span in spans), sep="\\n", flush=True) if not ended else print("late")
        return SpanExportResult.SUCCESS
    def shutdown(self):
        ended.append(1)
class Numbers(MetricExporter):
    stopped = False
    def export(self, data, timeout_millis=0, **_):
        for resource in data.resource_metrics:
            for scope in resource.scope_metrics:
                print(*(f"metric {{m.name}}" for m in scope.metrics), "late" if self.stopped else "", sep="\\n")
        return MetricExportResult.SUCCESS
    def force_flush(self, timeout_millis=0):
        return True
    def shutdown(self, timeout_millis=0, **_):
        self.stopped = True
provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(Spans()))
trace.set_tracer_provider(provider)
metrics.set_meter_provider(MeterProvider([PeriodicExportingMetricReader(Numbers())]))
import gpusense
from gpusense.exporters import opentelemetry as otel
assert otel.instrument()
root = otel.start_root_span("serve")
with gpusense.trace("step"):
    gpusense.record_kernel("sgemm", duration_ns=200_000)
"""


@pytest.mark.parametrize("first", ["", "import gpusense; gpusense.get_tracer()"])
def test_everything_leaves_before_the_applications_providers_end(first):
    """Also where gpusense was used before they were made, so that their exit handlers come before its own."""
    environ = {"PYTHONPATH": str(ROOT), "GPUSENSE": "on"}
    done = subprocess.run(
        [sys.executable, "-c", CHILD.format(first=first)], capture_output=True, text=True, timeout=60, env=environ
    )
    assert (done.returncode, done.stderr) == (0, "")
    said = done.stdout.split("\n")
    assert {"serve", "step", "gpu_kernel: sgemm", "metric gpu.kernel.duration"} <= set(said)
    assert "late" not in said


def test_the_first_request_after_the_provider_was_set_has_its_kernels(otel, tracer, monkeypatch):
    """The provider often comes after us: under ``gpusense run`` always."""
    from opentelemetry.util._once import Once

    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER_SET_ONCE", Once())
    original = trace.set_tracer_provider
    assert otel.instrument(tracer=tracer, metrics=False)
    exporter = InMemorySpanExporter()
    trace.set_tracer_provider(provider_of(exporter))
    with trace.get_tracer("app").start_as_current_span("GET /"):
        tracer.kernel()
    assert otel.flush(10)
    assert names(exporter) == ["GET /", "gpu_kernel: sgemm"]
    otel.uninstrument()
    assert trace.set_tracer_provider is original


# --- full queues ------------------------------------------------------------------------------------------------------


def test_a_processor_with_a_queue_of_its_own_is_not_flooded(otel, tracer, caplog):
    class Enriching(BatchSpanProcessor):
        """As vendors' processors are: a subclass, entered through on_end."""

    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(Enriching(exporter, max_queue_size=512, schedule_delay_millis=60_000))
    otel.instrument(tracer=tracer, tracer_provider=provider, metrics=False, max_spans_per_s=0)
    with provider.get_tracer("app").start_as_current_span("GET /"):
        for number in range(3000):
            tracer.kernel(f"k{number}")
    assert otel.flush(30)
    provider.force_flush()
    assert len(exporter.get_finished_spans()) == 3001
    assert not caplog.records
    provider.shutdown()


def test_the_applications_own_spans_leave_between_our_batches(otel, tracer):
    order = []

    class Remembers(SpanExporter):
        def export(self, spans):
            order.append({"own" if span.name == "GET /" else "gpu" for span in spans})
            if len(order) == 1:  # while we export, the application goes on
                for _ in range(5):
                    provider.get_tracer("app").start_span("GET /").end()
            return SpanExportResult.SUCCESS

    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(Remembers(), schedule_delay_millis=60_000))
    otel.instrument(tracer=tracer, tracer_provider=provider, metrics=False, max_spans_per_s=0)
    with tracer.trace("step"):
        for number in range(3000):
            tracer.kernel(f"k{number}")
    assert otel.flush(30)
    assert order[:3] == [{"gpu"}, {"own"}, {"gpu"}]
    provider.shutdown()


def test_spans_that_never_end_do_not_blind_us(otel, app, tracer, spans, monkeypatch):
    from gpusense.exporters import _otel_processor

    monkeypatch.setattr(_otel_processor, "MAX_OPEN", 10)
    otel.instrument(tracer=tracer, tracer_provider=app, metrics=False)
    leaked = []
    for number in range(30):
        thread = threading.Thread(target=lambda number=number: leaked.append(app.test_tracer.start_span(f"s{number}")))
        thread.start()
        thread.join()
    with app.test_tracer.start_as_current_span("GET /"):
        tracer.kernel()
    found = {span.name: span for span in spans()}
    assert found["gpu_kernel: sgemm"].parent.span_id == found["GET /"].context.span_id


# --- forks and threads ------------------------------------------------------------------------------------------------


def test_without_a_thread_the_last_step_is_made_by_who_ends(otel, tracer, monkeypatch):
    """As in a forked child that is ending: since Python 3.12 no thread can be started any more."""
    from gpusense import _process

    monkeypatch.setattr(_process, "start_thread", lambda *_: None)
    exporter = InMemorySpanExporter()
    otel.instrument(tracer=tracer, exporter=exporter, metrics=False)
    with tracer.trace("step"):
        tracer.kernel()
    assert otel.flush(10)
    assert names(exporter) == ["gpu_kernel: sgemm", "step"]
    with tracer.trace("last"):
        pass
    assert otel.uninstrument()
    assert names(exporter) == ["gpu_kernel: sgemm", "last", "step"]


def test_flushing_from_inside_an_export_does_not_wait_for_itself(otel, tracer):
    class Flushes(SpanExporter):
        answers = ()

        def export(self, spans):
            self.answers = (*self.answers, otel.flush(20))
            return SpanExportResult.SUCCESS

    exporter = Flushes()
    otel.instrument(tracer=tracer, exporter=exporter, metrics=False)
    with tracer.trace("step"):
        pass
    assert otel.flush(10)
    assert exporter.answers == (False,)


# --- our own requests -------------------------------------------------------------------------------------------------


def test_requests_of_an_export_make_no_spans_of_their_own(otel, monkeypatch):
    from gpusense import GpuKernel, Session
    from gpusense.exporters import _otel_otlp

    seen = []

    class Exporter:
        def export(self, spans):
            seen.append(otel_context.get_value("suppress_instrumentation"))
            return SpanExportResult.SUCCESS

        def shutdown(self):
            pass

    monkeypatch.setattr(_otel_otlp, "_make", lambda *_: Exporter())
    session = Session(meta={"pid": 1, "start_ns": 5}, records=[GpuKernel("k", 5, 9, 0)])
    otel.export_session(session, "http://localhost:1")
    assert seen == [True]
    assert otel_context.get_value("suppress_instrumentation") is None


# --- copies -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """A second copy of the package, as a library would carry it."""
    import shutil

    shutil.copytree(ROOT / "gpusense", tmp_path / "otherhost", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.syspath_prepend(str(tmp_path))
    import otherhost.exporters.opentelemetry as made

    scripted = types.ModuleType("scripted_of_the_copy")  # its records are of the copy's classes
    source = pathlib.Path(__file__).with_name("scripted.py").read_text()
    exec(source.replace("from gpusense", "from otherhost"), scripted.__dict__)
    made.ScriptedTracer = scripted.ScriptedTracer
    yield made
    made.uninstrument()
    for name in [name for name in sys.modules if name.split(".")[0] == "otherhost"]:
        del sys.modules[name]


def shared(first, second):
    """Both copies are given every kernel, as they are by the capture they share."""
    for target in (first, second):
        target.kernel("sgemm", start_ns=1_700_000_000_000_000_000, block_id=None)


def test_two_copies_on_one_provider_send_each_kernel_once(otel, copy, app, caplog):
    first, second = ScriptedTracer(), copy.ScriptedTracer()
    otel.instrument(tracer=first, tracer_provider=app, metrics=False)
    copy.instrument(tracer=second, tracer_provider=app, metrics=False)
    with app.test_tracer.start_as_current_span("GET /"):
        first.kernel()
        second.kernel()
        with second.trace("of the second"):
            inner = trace.get_current_span().name
    assert inner == "GET /"  # a block that is not sent is no parent
    assert otel.flush(10)
    assert copy.flush(10)
    found = app.test_exporter.get_finished_spans()
    assert sorted(span.name for span in found) == ["GET /", "gpu_kernel: sgemm"]
    assert found[-1].instrumentation_scope.name == "gpusense"
    assert set(copy.status()["dropped"]) == {"another_copy"}
    assert [record.name for record in caplog.records] == ["otherhost"]

    otel.uninstrument()  # the other one takes over
    assert copy.flush(10)
    with app.test_tracer.start_as_current_span("GET /"):
        second.kernel("later")
    assert copy.flush(10)
    assert app.test_exporter.get_finished_spans()[-1].name == "gpu_kernel: later"


def test_two_copies_count_once(otel, copy, app):
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    meters = MeterProvider([reader], shutdown_on_exit=False)
    first, second = ScriptedTracer(), copy.ScriptedTracer()
    otel.instrument(tracer=first, tracer_provider=app, meter_provider=meters)
    copy.instrument(tracer=second, tracer_provider=app, meter_provider=meters)
    shared(first, second)
    assert otel.flush(10)
    assert copy.flush(10)
    launches = [
        point.value
        for resource in reader.get_metrics_data().resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == "gpu.kernel.launches"
        for point in metric.data.data_points
    ]
    assert launches == [1]


def test_copies_with_places_of_their_own_both_send(otel, copy, app):
    first, second = ScriptedTracer(), copy.ScriptedTracer()
    own = InMemorySpanExporter()
    otel.instrument(tracer=first, tracer_provider=app, metrics=False)
    copy.instrument(tracer=second, tracer_provider=app, exporter=own, metrics=False)
    with app.test_tracer.start_as_current_span("GET /"):
        first.kernel()
        second.kernel()
    assert otel.flush(10)
    assert copy.flush(10)
    assert names(own) == ["gpu_kernel: sgemm"]
    assert names(app.test_exporter) == ["GET /", "gpu_kernel: sgemm"]


# --- under ``gpusense run`` with a file -------------------------------------------------------------------------------


def test_a_session_file_is_not_read_while_it_is_written(tmp_path):
    """A recorder that writes a file gives its session by reading the whole file back: never every ten seconds."""
    code = """
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from gpusense._filerecorder import FileRecorder
from gpusense._select import start_session
from gpusense.exporters import opentelemetry as otel
import gpusense
run = start_session("file", "s.gpusense")
whole = FileRecorder.session
FileRecorder.session = None
exporter = InMemorySpanExporter()
otel.instrument(exporter=exporter, metrics=False)
with gpusense.trace("step"):
    gpusense.record_kernel("sgemm", duration_ns=200_000)
assert otel.uninstrument()
FileRecorder.session = whole
print(*sorted(span.name for span in exporter.get_finished_spans()), *(k.name for k in run.finish().kernels), sep=", ")
"""
    environ = {"PYTHONPATH": str(ROOT), "GPUSENSE": "on"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environ, cwd=tmp_path
    )
    assert (done.returncode, done.stdout) == (0, "gpu_kernel: sgemm, step, sgemm\n"), done.stderr

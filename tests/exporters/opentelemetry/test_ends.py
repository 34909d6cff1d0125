"""Ends in any order, full queues, missing threads, and two copies on one provider."""

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
from providers import names, provider_of
from scripted import ScriptedTracer

ROOT = pathlib.Path(__file__).resolve().parents[3]


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
    from gpusense.exporters.opentelemetry import _providers

    monkeypatch.setattr(_providers, "MAX_OPEN", 10)
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
    from gpusense._runtime import threads

    monkeypatch.setattr(threads, "start", lambda *_: None)
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


def test_under_gevent_the_worker_is_a_thread_of_the_system(run_python):
    pytest.importorskip("gevent")
    code = """
from gevent import monkey; monkey.patch_all()
import time
from gpusense._runtime import threads
from gpusense.exporters.opentelemetry._worker import Worker
steps = []
worker = Worker(lambda final: steps.append((final, threads.thread_id()())), 0.01)
worker.start()
until = time.monotonic() + 20
while len(steps) < 3 and time.monotonic() < until: pass  # no greenlet gets to run
print(len(steps) >= 3, worker.flush(20), worker.stop(20), steps[-1][0])
print(len({thread for _, thread in steps}), (True, threads.thread_id()()) in steps)
"""
    done = run_python(code, PYTHONWARNINGS="ignore")
    assert done.stdout == "True True True True\n1 False\n", done.stderr


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
    from gpusense.exporters.opentelemetry import _otlp

    seen = []

    class Exporter:
        def export(self, spans):
            seen.append(otel_context.get_value("suppress_instrumentation"))
            return SpanExportResult.SUCCESS

        def shutdown(self):
            pass

    monkeypatch.setattr(_otlp, "_make", lambda *_: Exporter())
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
from gpusense._capture.file_store import FileStore
from gpusense._tracing.select import control
from gpusense.exporters import opentelemetry as otel
import gpusense
run = control.start_session("file", "s.gpusense")
whole = FileStore.session
FileStore.session = None
exporter = InMemorySpanExporter()
otel.instrument(exporter=exporter, metrics=False)
with gpusense.trace("step"):
    gpusense.record_kernel("sgemm", duration_ns=200_000)
assert otel.uninstrument()
FileStore.session = whole
print(*sorted(span.name for span in exporter.get_finished_spans()), *(k.name for k in run.finish().kernels), sep=", ")
"""
    environ = {"PYTHONPATH": str(ROOT), "GPUSENSE": "on"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environ, cwd=tmp_path
    )
    assert (done.returncode, done.stdout) == (0, "gpu_kernel: sgemm, step, sgemm\n"), done.stderr

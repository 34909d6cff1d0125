"""Without OpenTelemetry only the pure tests are collected here; with CI=true everything is."""

import importlib.util
import os
import pathlib
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))  # scripted.py, also for children

if importlib.util.find_spec("opentelemetry") is None and not os.environ.get("CI"):
    collect_ignore = [
        path.name for path in HERE.glob("test_*.py") if path.name not in ("test_pure.py", "test_available.py")
    ]

OFF = ("GPUSENSE", "OTEL_", "TRACEPARENT", "TRACESTATE", "RANK", "WORLD_SIZE", "SLURM", "OMPI", "PMI")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    for name in list(os.environ):
        if name.startswith(OFF):
            monkeypatch.delenv(name)


@pytest.fixture
def tracer():
    from scripted import ScriptedTracer

    return ScriptedTracer()


@pytest.fixture
def otel():
    """The module under test, uninstrumented afterwards."""
    from gpusense.exporters import opentelemetry

    yield opentelemetry
    opentelemetry.uninstrument()


@pytest.fixture
def app():
    """An application's provider with an in-memory exporter; used by name, so that no test sets the global one."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = TracerProvider(resource=Resource({"service.name": "shop"}), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    provider.test_exporter = exporter
    provider.test_tracer = provider.get_tracer("app")
    return provider


@pytest.fixture
def spans(otel, app):
    """Finished spans by name, after everything was handed over."""

    def get(only=None):
        assert otel.flush(10)
        found = app.test_exporter.get_finished_spans()
        return [span for span in found if span.name == only] if only else list(found)

    return get

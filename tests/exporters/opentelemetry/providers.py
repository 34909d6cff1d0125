"""Providers of an application, and what their exporters got."""

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor


def provider_of(*exporters, sampler=None, kind=SimpleSpanProcessor):
    provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
    for exporter in exporters:
        provider.add_span_processor(kind(exporter))
    return provider


def names(exporter):
    return sorted(span.name for span in exporter.get_finished_spans())

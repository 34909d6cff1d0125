"""A server with OpenTelemetry of its own: its requests' spans get blocks, kernels, and sums of what is too short for a
span. It asks itself two questions, prints the trace, and sends it where OTEL_EXPORTER_OTLP_ENDPOINT is set.

pip install 'gpusense[otel]'
OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4318 python examples/otlp_server.py
"""

import os
import sys
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer

try:
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
except ImportError as error:
    sys.exit(print(f"{error}; pip install 'gpusense[otel]'"))

import gpusense
from gpusense.exporters import opentelemetry

kept = InMemorySpanExporter()
provider = TracerProvider()
for exporter in [kept, OTLPSpanExporter()] if os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") else [kept]:
    provider.add_span_processor(BatchSpanProcessor(exporter))
trace.set_tracer_provider(provider)
gpusense.enable()
opentelemetry.instrument()


class Server(BaseHTTPRequestHandler):
    def do_GET(self):
        with trace.get_tracer("shop").start_as_current_span(f"GET {self.path}"), gpusense.trace("infer"):
            gpusense.record_kernel("attention", duration_ns=300_000)  # stand in for a model on a GPU
            for _ in range(9):
                gpusense.record_kernel("norm", duration_ns=5_000)
        self.send_response(204)
        self.end_headers()


server = HTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
for path in ("/a", "/b"):
    urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}{path}").close()
provider.force_flush()


def show(parent_id, depth=0):
    for span in kept.get_finished_spans():
        if (span.parent.span_id if span.parent else None) == parent_id:
            more = span.attributes.get("gpu.aggregate.text") or span.attributes.get("gpu.inside.kernels", "")
            print("  " * depth + span.name, more)
            show(span.context.span_id, depth + 1)


show(None)

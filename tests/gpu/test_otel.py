"""On a real NVIDIA GPU: a torch server whose request spans contain its kernels, by count against the session in memory
and against the session file. ``tests/exporters/opentelemetry/test_server.py`` does the latter with scripted libraries.
"""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import pytest
from support import request_counts

ROOT = pathlib.Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.gpu

SERVER = """
import http.server, json, sys, threading, urllib.request
from collections import Counter

import torch
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import gpusense
from gpusense.exporters import opentelemetry as otel

BLOCKS, THREADS, REQUESTS = sys.argv[1] == "blocks", int(sys.argv[2]), int(sys.argv[3])

exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(exporter))
trace.set_tracer_provider(provider)
gpusense.configure(trace_all=True, max_records_per_second=10**6)
otel.instrument(max_spans_per_s=0, metrics=False)
http_tracer = trace.get_tracer("http.server")

torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4))).cuda().eval()
with torch.inference_mode():
    model(torch.ones(8, 512, device="cuda"))
torch.cuda.synchronize()
gpusense.reset()

class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        with http_tracer.start_as_current_span("POST /infer", kind=trace.SpanKind.SERVER), torch.inference_mode():
            if BLOCKS:
                with gpusense.trace("forward"):
                    answer = model(torch.ones(8, 512, device="cuda")).sum().item()
            else:
                answer = model(torch.ones(8, 512, device="cuda")).sum().item()
        body = str(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()

def client():
    for _ in range(REQUESTS):
        urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}", data=b"").read()

clients = [threading.Thread(target=client) for _ in range(THREADS)]
for thread in clients:
    thread.start()
for thread in clients:
    thread.join()
torch.cuda.synchronize()
otel.flush(20)
session = gpusense.get_tracer().session()
otel.flush(20)
provider.force_flush()

spans = exporter.get_finished_spans()
ids = {span.context.span_id: span for span in spans}
kernels = [span for span in spans if span.attributes.get("gpu.operation") == "kernel"]

def request_of(span):
    while span is not None and span.name != "POST /infer":
        span = ids.get(span.parent.span_id) if span.parent else None
    return span

placed = [span for span in kernels if request_of(span) is not None]
linked = [span for span in kernels if span.links]
per_request = Counter(request_of(span).context.span_id for span in placed)
print(json.dumps({
    "requests": sum(span.name == "POST /infer" for span in spans),
    "kernels_in_session": len(session.kernels),
    "kernel_spans": len(kernels),
    "placed": len(placed),
    "linked": len(linked),
    "per_request": sorted(Counter(per_request.values()).items()),
    "same_trace": sum(span.context.trace_id == request_of(span).context.trace_id for span in placed),
    "names": sorted({span.name for span in kernels})[:6],
    "status": otel.status(),
    "ambiguous": session.counters.ambiguous,
    "dropped": session.counters.dropped,
}))
"""


def serve(style, threads, requests):
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL", "GPUSENSE"))}
    environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    done = subprocess.run(
        [sys.executable, "-c", SERVER, style, str(threads), str(requests)],
        capture_output=True, text=True, timeout=120, env=environ,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    print(json.dumps(found, indent=1))
    return found


@pytest.fixture(scope="module", autouse=True)
def needs():
    from gpusense import cuda

    for package in ("torch", "opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"):
        try:
            found = importlib.util.find_spec(package)
        except ModuleNotFoundError:
            found = None
        if found is None:
            pytest.skip(f"needs {package}")
    if not cuda.cuda_available():
        pytest.skip("needs an NVIDIA GPU")


@pytest.mark.parametrize("style", ["spans", "blocks"])
def test_each_request_contains_its_kernels(style):
    found = serve(style, 1, 50)
    assert found["requests"] == 50
    assert found["kernels_in_session"] > 50
    assert found["kernel_spans"] == found["kernels_in_session"] == found["placed"] == found["same_trace"]
    assert len(found["per_request"]) == 1, "every request runs the same kernels"
    assert found["per_request"][0][1] == 50
    assert found["dropped"] == 0


def test_overlapping_requests_keep_their_own_or_are_linked():
    found = serve("blocks", 4, 50)
    assert found["requests"] == 200
    assert found["kernel_spans"] == found["kernels_in_session"]
    assert found["placed"] + found["linked"] == found["kernel_spans"]
    assert found["linked"] <= found["ambiguous"]  # copies may be ambiguous as well
    if not found["linked"]:  # the launching thread was known: exact
        assert found["per_request"] == [[found["kernel_spans"] // 200, 200]]


@pytest.mark.parametrize(("style", "clients"), [("spans", 1), ("blocks", 4)])
def test_each_request_over_otlp_has_the_kernels_of_the_session_file(tmp_path, style, clients):
    """The way a user has both: live spans below the application's own, and the file when the server has ended."""
    _told, received, kept, _spans = request_counts.run_server(
        tmp_path, "torch", style, "--live", clients=clients, requests=50
    )
    print(received.counts(), len(received.linked), len(received.outside))
    assert len(received.requests) == 50
    assert received == kept  # to the nanosecond
    if clients == 1 or not received.linked:
        (one,) = {tuple(sorted(counts.items())) for counts in received.counts().values()}
        assert dict(one)["kernel"] > 1, "every request runs the same kernels"


def test_the_session_file_sent_at_the_end_has_the_same_requests(tmp_path):
    """Without ``--live`` the kernels are decoded after the server has ended, and requests are blocks of gpusense."""
    _told, received, kept, _spans = request_counts.run_server(tmp_path, "torch", "file", clients=1, requests=50)
    assert len(received.requests) == 50
    assert received == kept
    (one,) = {tuple(sorted(counts.items())) for counts in received.counts().values()}
    assert dict(one)["kernel"] > 1, "every request runs the same kernels"

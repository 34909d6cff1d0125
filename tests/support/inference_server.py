"""An inference server that is instrumented as applications are, and its clients; run by tests below ``gpusense run``.

    python inference_server.py torch|ptx spans|blocks|file CLIENTS REQUESTS OTLP-URL

Each request has a path of its own, ``/infer/7``. ``spans``: a request's span holds its kernels directly; ``blocks``: a
block of gpusense's in between; ``file``: the block is all there is, and no span of the application's. Prints what each
request launched, as far as the model knows it (``ptx``).
"""

import http.server
import json
import sys
import threading
import time
import urllib.request
from contextlib import nullcontext

import gpusense


def torch_model():
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4))).cuda().eval()

    def infer():
        with torch.inference_mode():
            model(torch.ones(8, 512, device="cuda")).sum().item()

    infer()
    torch.cuda.synchronize()
    return infer


def ptx_model():
    from gpusense.cuda import _workload

    def infer():
        launched = _workload.run(steps=1)
        return [launched.kernels, sum(launched.copies.values())]

    infer()
    return infer


def request_tracer(url):
    """The application's own OpenTelemetry, as it would be without gpusense."""
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{url}/v1/traces")))
    trace.set_tracer_provider(provider)
    return trace.get_tracer("http.server")


def wait_for_capture():
    """What is launched before capture has begun is in no session, and said to be unseen there."""
    for _ in range(500):
        if gpusense.get_tracer().recorder.capture.running:
            return
        with gpusense.trace("waiting"):
            time.sleep(0.01)
    raise SystemExit("capture did not begin")


def main(kind, style, clients, requests, url):
    infer = {"torch": torch_model, "ptx": ptx_model}[kind]()
    wait_for_capture()
    tracer = request_tracer(url) if style != "file" else None
    told = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            name = f"POST {self.path}"
            span = tracer.start_as_current_span(name) if tracer is not None else gpusense.trace(name)
            with span, gpusense.trace("forward") if style == "blocks" else nullcontext():
                told[name] = infer()
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def client(first):
        for number in range(first, requests, clients):
            urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/infer/{number}", data=b"", timeout=60).read()

    threads = [threading.Thread(target=client, args=(first,)) for first in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    server.shutdown()
    print(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])

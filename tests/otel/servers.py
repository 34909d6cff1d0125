"""OTLP receivers that misbehave on purpose, on free loopback ports."""

import socket
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Received:
    def __init__(self):
        self.spans = []
        self.metrics = []
        self.requests = 0
        self.paths = []
        self.sizes = []
        self.url = ""


@contextmanager
def receiver(status=200, limit=None, delay_s=0.0, headers=(), fail_first=None):
    """Answers ``status``; 413 above ``limit`` bytes; ``fail_first=(count, status)`` for the first requests."""
    got = Received()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.requests += 1
            answer = status
            if fail_first is not None and got.requests <= fail_first[0]:
                answer = fail_first[1]
            elif limit is not None and len(body) > limit:
                answer = 413
            if delay_s:
                time.sleep(delay_s)
            if answer == 200:
                got.paths.append(self.path)
                got.sizes.append(len(body))
                take(self.path, body)
            self.send_response(answer)
            for name, value in headers:
                self.send_header(name, value)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    def take(path, body):
        if path.endswith("/v1/traces"):
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                for scope in resource.scope_spans:
                    got.spans.extend(scope.spans)
        else:
            for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                for scope in resource.scope_metrics:
                    got.metrics.extend(scope.metrics)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    got.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield got
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def silent():
    """Accepts connections and never answers."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=16)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]

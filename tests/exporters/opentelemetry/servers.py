"""OTLP receivers that misbehave on purpose, on free loopback ports."""

import gzip
import socket
import threading
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

    def take(self, path, body):
        if path.endswith("/v1/traces"):
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                for scope in resource.scope_spans:
                    self.spans.extend(scope.spans)
        else:
            for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                for scope in resource.scope_metrics:
                    self.metrics.extend(scope.metrics)


def read_body(request):
    """With a length or in chunks, plain or compressed."""
    if request.headers.get("Transfer-Encoding") == "chunked":
        body = b""
        while size := int(request.rfile.readline(), 16):
            body += request.rfile.read(size)
            request.rfile.readline()
        request.rfile.readline()
    else:
        body = request.rfile.read(int(request.headers["Content-Length"]))
    return gzip.decompress(body) if request.headers.get("Content-Encoding") == "gzip" else body


@contextmanager
def receiver(status=200, limit=None, waits=None, headers=(), fail_first=None, unknown=None, body=b"", answers=None):
    """Answers ``status``; 413 above ``limit`` bytes; ``fail_first=(count, status)`` for the first requests; 404 for
    paths that end in ``unknown``. ``body``: of each answer. ``answers``: how many there are; then it goes away.
    ``waits``: an event, waited for before each answer.
    """
    got = Received()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            sent = read_body(self)
            got.requests += 1
            if answers is not None and got.requests > answers:
                self.close_connection = True
                return
            answer = status
            if fail_first is not None and got.requests <= fail_first[0]:
                answer = fail_first[1]
            elif limit is not None and len(sent) > limit:
                answer = 413
            if unknown is not None and self.path.endswith(unknown):
                answer = 404
            if waits is not None:
                waits.wait(60)
            if answer == 200:
                got.paths.append(self.path)
                got.sizes.append(len(sent))
                got.take(self.path, sent)
            self.send_response(answer)
            for name, value in headers:
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

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

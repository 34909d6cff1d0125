"""The HTTP server: ``/metrics`` and nothing else, each scrape on a thread of its own."""

import socket
import sys
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any

from ..._records.metrics import GpuMetrics
from ..._runtime import log, package, threads
from ...monitor import collectives
from .._counted import with_counters
from ._names import families
from ._text import accepted, written

PATH = "/metrics"
#: A client that stands still holds a thread for so long.
PATIENCE_S = 10.0


class Server:
    """Listens from the first moment; ``url`` says where. See :func:`serve` of this package."""

    def __init__(self, latest: Callable[[], Iterable[GpuMetrics]], host: str, port: int, names: str) -> None:
        families((), names)
        self._server = _Listener((host, port), latest, names)
        shown = f"[{host}]" if ":" in host else host
        self.port: int = self._server.server_address[1]
        self.url = f"http://{shown}:{self.port}{PATH}"
        self._thread = threads.start(self._server.serve_forever, "gpusense-prometheus")
        if self._thread is None:
            self._server.server_close()
            raise OSError("no thread can be started to listen with")

    def stop(self) -> None:
        """Closes the port; a scrape that is under way is not waited for. A second time does nothing."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    def __enter__(self) -> "Server":  # noqa: PYI034 - typing.Self is of 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], latest: Callable[[], Iterable[GpuMetrics]], names: str) -> None:
        self.latest = latest
        self.names = names
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Scrape)

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # without asking the network for this machine's name
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):  # who has gone away may do so
            log.exception("prometheus-scrape", "a scrape by Prometheus failed")


class _Scrape(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "gpusense", ""
    timeout = PATIENCE_S
    server: _Listener

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        if self.path.partition("?")[0] != PATH:
            self.send_error(404, explain=f"metrics are at {PATH}")
            return
        form = accepted(",".join(self.headers.get_all("Accept", ())))
        module = sys.modules.get(f"{package.NAME}._tracing.select")  # not loaded: nothing is counted
        recorder = getattr(module.control.live, "recorder", None) if module is not None else None
        found = families(with_counters(self.server.latest(), recorder), self.server.names, collectives())
        body = written(found, form).encode()
        self.send_response(200)
        self.send_header("Content-Type", form.content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """A line a scrape is no news."""

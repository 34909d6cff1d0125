"""What exporting costs: µs a span beside the SDK's own spans, the share of a core at a rate, memory over time.

    python benchmarks/bench_otel.py              # cost a span and 5,000 spans/s for 10 s
    python benchmarks/bench_otel.py --soak 600   # 5,000 spans/s for ten minutes: flat memory, exact counts

All CPU times are of this process; the receiver is another one. Needs gpusense[otel].
"""

import argparse
import json
import multiprocessing
import os
import pathlib
import sys
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

SPANS = 50_000
RATE = 5_000


def serve(pipe):
    """Counts spans and bytes of OTLP/HTTP requests; GET answers both."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    seen = {"spans": 0, "bytes": 0}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path.endswith("traces"):
                request = ExportTraceServiceRequest.FromString(body)
                seen["bytes"] += len(body)
                seen["spans"] += sum(len(s.spans) for r in request.resource_spans for s in r.scope_spans)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_GET(self):
            body = json.dumps(seen).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            seen.update(spans=0, bytes=0)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    pipe.send(server.server_port)
    server.serve_forever()


def taken(url):
    with urllib.request.urlopen(url) as answer:
        return json.load(answer)


def rss_mib():
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def kernels(count, block):
    from gpusense import GpuKernel

    now = time.time_ns()
    return [
        GpuKernel(
            f"sgemm_{i % 20}", now, now + 150_000 + i, 0, "cuda", 1, 7, (128, 1, 1), (256, 1, 1), 64, 1024, 0, 0, i,
            None, None, f"void sgemm_{i % 20}<float, 128>(float*, float*)", None, None, 4096, 0.5, True,
            block_id=block.block_id, path=block.path,
        )
        for i in range(count)
    ]  # fmt: skip


def sdk_spans(url, count):
    """The SDK's own way: start and end a span, batch processor, official exporter. CPU µs a span, all in."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(shutdown_on_exit=False)
    exporter = OTLPSpanExporter(endpoint=f"{url}/v1/traces")
    provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=10**6, max_export_batch_size=512))
    tracer = provider.get_tracer("bench")
    began = time.process_time()
    with tracer.start_as_current_span("step"):
        for i in range(count):
            now = time.time_ns()
            attributes = {
                "gpu.operation": "kernel", "gpu.kernel.name": f"void sgemm_{i % 20}<float, 128>(float*, float*)",
                "gpu.stream.id": 7, "gpu.kernel.grid": "128,1,1",
                "gpu.kernel.block": "256,1,1", "gpu.is_slow": True, "gpu.kernel.shared_memory": 1024,
                "gpu.kernel.registers": 64, "gpu.kernel.occupancy": 0.5, "gpu.elements": 4096,
            }  # fmt: skip
            span = tracer.start_span(f"gpu_kernel: sgemm_{i % 20}", attributes=attributes, start_time=now)
            span.end(now + 150_000)
    provider.shutdown()
    return (time.process_time() - began) / count * 1e6


def our_spans(url, count):
    """The same spans from records: sink, parents, budget off, official exporter. CPU µs a span, all in."""
    import gpusense
    from gpusense.exporters import opentelemetry as otel

    otel.instrument(endpoint=url, metrics=False, max_spans_per_s=0, exit_timeout_s=60)
    otel._active.inbox.limit = 10**6
    sink = otel._active.sink
    with gpusense.trace("step") as block:
        records = kernels(count, block)
    gpusense.get_tracer().flush()
    began = time.process_time()
    for start in range(0, count, 500):
        sink(records[start : start + 500])
    otel.flush(120)
    spent = time.process_time() - began
    status = otel.status()
    otel.uninstrument()
    assert status["dropped"] == {}, status
    return spent / count * 1e6


def paced(url, seconds, report=0):
    """``RATE`` spans a second in bursts of 50 ms; share of a core, spans lost, and memory as it goes."""
    import gpusense
    from gpusense.exporters import opentelemetry as otel

    otel.instrument(endpoint=url, metrics=False, max_spans_per_s=0, exit_timeout_s=10)
    sink = otel._active.sink
    with gpusense.trace("server") as block:
        burst = kernels(RATE // 20, block)
    gpusense.get_tracer().flush()
    otel.flush(10)
    taken(url)
    sent = 0
    began, cpu = time.monotonic(), time.process_time()
    memory = []
    while True:
        due = int((time.monotonic() - began) * 20)
        while sent < due * len(burst):
            sink(list(burst))
            sent += len(burst)
        elapsed = time.monotonic() - began
        if report and len(memory) <= elapsed // report:
            memory.append(rss_mib())
            print(f"  {elapsed:6.0f} s  {sent:>9,} spans  {memory[-1]:6.1f} MiB", flush=True)
        if elapsed >= seconds:
            break
        time.sleep(0.01)
    otel.flush(30)
    share = (time.process_time() - cpu) / (time.monotonic() - began)
    dropped = otel.status()["dropped"]
    otel.uninstrument()
    return share, sent, taken(url), dropped, memory


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--soak", type=float, metavar="SECONDS", help="only the long run, for so many seconds")
    settings = parser.parse_args()
    os.environ["GPUSENSE"] = "on"
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs,), daemon=True)
    server.start()
    url = f"http://127.0.0.1:{ours.recv()}"
    try:
        if settings.soak:
            share, sent, got, dropped, memory = paced(url, settings.soak, report=max(settings.soak / 20, 5))
            steady = memory[len(memory) // 4 :]
            print(f"{share:.1%} of a core, {sent:,} handed over, {got['spans']:,} arrived, dropped {dropped or 0}")
            print(f"memory after the first quarter: {min(steady):.1f} to {max(steady):.1f} MiB")
            return
        rows = []
        for _ in range(3):
            sdk = sdk_spans(url, SPANS // 5)
            taken(url)
            us = our_spans(url, SPANS)
            got = taken(url)
            rows.append((us, sdk))
            assert got["spans"] in (SPANS, SPANS + 1), got
        size = got["bytes"] / got["spans"]
        best = min(rows)
        print(
            f"a span, all in:   gpusense {best[0]:.1f} µs   SDK span {min(row[1] for row in rows):.1f} µs   (best of 3)"
        )
        print("every run:        " + "   ".join(f"{us:.1f} / {sdk:.1f}" for us, sdk in rows))
        print(f"bytes a span:     {size:.0f}")
        share, sent, got, dropped, _ = paced(url, 10)
        print(f"{RATE:,} spans/s:    {share:.1%} of a core, lost {sent - got['spans']}, dropped {dropped or 0}")
    finally:
        server.terminate()


if __name__ == "__main__":
    main()

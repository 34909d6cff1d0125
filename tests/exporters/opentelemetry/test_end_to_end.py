"""The real tracer through the official exporter into receivers that are not ours: oteltap, and rotel as a hop."""

import json
import os
import pathlib
import subprocess
import sys
import sysconfig
import threading
import time
import urllib.error
import urllib.request

import pytest
from servers import free_port, receiver
from support.machine import require
from support.sessions import session

from gpusense.session import save

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]

pytestmark = pytest.mark.network

APP = """
import os
import gpusense
from gpusense._records import metrics as _metrics, records
from gpusense.exporters import opentelemetry as otel

tracer = gpusense.get_tracer()

class Monitor:
    def latest(self):
        device = records.DeviceInfo(0, "Test GPU", "nvidia", "nvml", uuid="GPU-1234")
        return (_metrics.GpuMetrics(device, 1, 1, power=_metrics.Power(draw_watts=300.5)),)
    def history(self, seconds):
        return []

tracer.metrics_source = Monitor()
if PRIVATE:
    assert otel.instrument(private=True)
else:
    from opentelemetry import trace
assert type(tracer).__name__ == "Tracer"
root = otel.start_root_span("serve")
request = None
if not PRIVATE:
    request = trace.get_tracer("shop").start_as_current_span("GET /")
    request.__enter__()
with gpusense.trace("prefill") as prefill:
    pass
with gpusense.trace("decode", {"batch": 2}, links=[otel._active.blocks.context_of(prefill.block_id)]):
    gpusense.record_kernel("sgemm", 1_700_000_000_000_000_001, 1_700_000_000_000_300_002, grid=(8, 1, 1), stream=7)
    gpusense.record_transfer("mesh_upload", "cpu_to_gpu", bytes=10_485_760, duration_ns=25_000_000)
    gpusense.record_kernel("tiny", duration_ns=5_000)
if request is not None:
    request.__exit__(None, None, None)
root.end(0)
"""


def run_app(endpoint, private=True, command=None, path=str(ROOT)):
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("GPUSENSE", "OTEL"))}
    environ |= {
        "PYTHONPATH": path,
        "GPUSENSE": "on",
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_SERVICE_NAME": "shop",
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test",
        "OTEL_LOGS_EXPORTER": "none",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
    }
    done = subprocess.run(
        [*(command or []), sys.executable, "-c", APP.replace("PRIVATE", str(private))],
        capture_output=True, text=True, timeout=60, env=environ,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


class Tap:
    """oteltap with its lines of JSON."""

    def __init__(self):
        self.url = f"http://127.0.0.1:{free_port()}"
        port = self.url.rpartition(":")[2]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "oteltap", "--port", port],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.lines = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        wait_for(lambda: answers(self.url))

    def _read(self):
        for line in self.process.stdout:
            if line.startswith("{"):
                self.lines.append(json.loads(line))

    def close(self):
        self.process.terminate()
        self.process.wait(10)
        self._reader.join(10)
        self.process.stdout.close()


def answers(url):
    try:
        urllib.request.urlopen(url, timeout=1).close()
    except urllib.error.HTTPError as error:
        error.close()
        return True
    except OSError:
        return False
    return True


def wait_for(condition, limit_s=20):
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


@pytest.fixture
def tap():
    made = Tap()
    yield made
    made.close()


def attributes(item):
    return {entry["key"]: next(iter(entry["value"].values())) for entry in item["attributes"]}


def spans_in(lines):
    return {line["name"]: line for line in lines if "spanId" in line}


def metrics_in(lines):
    return {line["name"]: line for line in lines if "unit" in line}


def test_every_field_as_oteltap_decodes_it(tap):
    run_app(tap.url)
    wait_for(lambda: "gpusense.spans.dropped" in metrics_in(tap.lines) or "gpusense.spans" in metrics_in(tap.lines))
    spans = spans_in(tap.lines)
    listed = {"serve", "prefill", "decode", "gpu_kernel: sgemm", "gpu_transfer: mesh_upload"}
    assert set(spans) == {*listed, "short work, summed"}
    kernel, decode, serve = spans["gpu_kernel: sgemm"], spans["decode"], spans["serve"]
    assert (kernel["startTimeUnixNano"], kernel["endTimeUnixNano"]) == ("1700000000000000001", "1700000000000300002")
    assert kernel["parentSpanId"] == decode["spanId"]
    assert decode["parentSpanId"] == serve["spanId"]
    assert serve["parentSpanId"] == ""
    assert len({span["traceId"] for span in spans.values()}) == 1
    assert [link["spanId"] for link in decode["links"]] == [spans["prefill"]["spanId"]]
    assert attributes(decode)["batch"] == "2"
    assert attributes(decode)["gpu.inside.kernels"] == "2"
    assert attributes(decode)["gpu.inside.transfer_bytes"] == "10485760"
    assert attributes(spans["short work, summed"])["gpu.aggregate.text"] == "1 short kernel, 5.00 µs"
    assert spans["short work, summed"]["parentSpanId"] == decode["spanId"]
    assert attributes(kernel)["gpu.stream.id"] == "7"
    assert attributes(kernel)["gpu.kernel.grid"] == "8,1,1"
    assert attributes(serve)["process.exit.code"] == "0"
    assert attributes(spans["gpu_transfer: mesh_upload"])["gpu.transfer.bytes"] == "10485760"

    metrics = metrics_in(tap.lines)
    power = metrics["hw.power"]
    assert power["unit"] == "W"
    assert power["gauge"]["dataPoints"][0]["asDouble"] == 300.5
    assert attributes(power["gauge"]["dataPoints"][0])["hw.id"] == "GPU-1234"
    histogram = metrics["gpu.kernel.duration"]
    points = {attributes(point)["gpu.kernel.name"]: point for point in histogram["histogram"]["dataPoints"]}
    buckets = dict(
        zip([*points["sgemm"]["explicitBounds"], None], map(int, points["sgemm"]["bucketCounts"]), strict=True)
    )
    assert {bound: count for bound, count in buckets.items() if count} == {0.0005: 1}
    assert points["tiny"]["count"] == "1"  # below the threshold: counted, without a span
    assert points["tiny"]["sum"] == pytest.approx(5e-6)
    outcomes = {
        attributes(point)["gpusense.outcome"]: int(point["asInt"])
        for point in metrics["gpusense.records"]["sum"]["dataPoints"]
    }
    assert outcomes["aggregated"] == 1
    assert metrics["gpusense.records"]["sum"]["isMonotonic"]


def test_opentelemetry_instrument_needs_no_line_of_code(tap, tmp_path):
    info = tmp_path / "gpusense_entry-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: gpusense-entry\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[opentelemetry_instrumentor]\ngpusense = gpusense.exporters.opentelemetry:Instrumentor\n"
    )
    command = [str(pathlib.Path(sysconfig.get_path("scripts")) / "opentelemetry-instrument")]
    run_app(tap.url, private=False, command=command, path=f"{ROOT}{os.pathsep}{tmp_path}")
    wait_for(lambda: "GET /" in spans_in(tap.lines) and "gpu_kernel: sgemm" in spans_in(tap.lines))
    spans = spans_in(tap.lines)
    assert spans["gpu_kernel: sgemm"]["parentSpanId"] == spans["decode"]["spanId"]
    assert spans["decode"]["parentSpanId"] == spans["GET /"]["spanId"]
    assert spans["GET /"]["parentSpanId"] == spans["serve"]["spanId"]
    assert len(spans) == len([line for line in tap.lines if "spanId" in line]) == 7


@pytest.fixture
def rotel():
    """rotel in front of a receiver: ``(url of rotel, what the receiver got)``."""
    import rotel as package

    agent = pathlib.Path(package.__file__).parent / "rotel-agent"
    libraries = os.pathsep.join(filter(None, [sysconfig.get_config_var("LIBDIR"), os.environ.get("LD_LIBRARY_PATH")]))
    environ = {**os.environ, "LD_LIBRARY_PATH": libraries}
    starts = subprocess.run([agent, "--version"], capture_output=True, timeout=30, env=environ).returncode == 0
    require(starts, "a rotel that starts: it needs the shared libpython of this interpreter")
    port, grpc = free_port(), free_port()
    with receiver() as got:
        process = subprocess.Popen(
            [
                agent, "start",
                "--otlp-http-endpoint", f"127.0.0.1:{port}", "--otlp-grpc-endpoint", f"127.0.0.1:{grpc}",
                "--exporter", "otlp", "--otlp-exporter-protocol", "http", "--otlp-exporter-endpoint", got.url,
                "--batch-timeout", "100ms",
            ],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environ,
        )  # fmt: skip
        try:
            wait_for(lambda: answers(f"http://127.0.0.1:{port}"))
            yield f"http://127.0.0.1:{port}", got
        finally:
            process.terminate()
            process.wait(10)


def test_through_a_collector(rotel):
    url, got = rotel
    run_app(url)
    wait_for(lambda: len(got.spans) >= 6 and any(metric.name == "gpu.kernel.duration" for metric in got.metrics))
    spans = {span.name: span for span in got.spans}
    assert len(got.spans) == 6
    assert spans["gpu_kernel: sgemm"].parent_span_id == spans["decode"].span_id
    assert spans["gpu_kernel: sgemm"].start_time_unix_nano == 1_700_000_000_000_000_001


def test_a_recorded_session_keeps_its_times_and_ids(otel, rotel, capsys):
    from gpusense import BlockRecord, GpuKernel, Session

    start = 1_700_000_000_000_000_000
    session = Session(
        meta={"pid": 7, "start_ns": start, "end_ns": start + 10**9, "version": "1", "backends": {"cupti": "13.0"}},
        records=[
            BlockRecord("step", 5, None, ("step",), start + 1, start + 500, 1),
            BlockRecord("forward", 6, 5, ("step", "forward"), start + 2, start + 400, 1),
            GpuKernel("sgemm", start + 3, start + 300, 0, block_id=6),
            GpuKernel("outside", start + 3, start + 300, 0),
            GpuKernel("broken", 0, 1, 0),
        ],
    )
    url, got = rotel
    first = otel.export_session(session, url)
    assert (first.sent, first.refused, first.skipped) == (5, 0, {"invalid": 1})
    wait_for(lambda: len(got.spans) >= 5)
    spans = {span.name: span for span in got.spans}
    assert spans["gpu_kernel: sgemm"].parent_span_id == spans["forward"].span_id
    assert spans["forward"].parent_span_id == spans["step"].span_id
    assert spans["step"].parent_span_id == spans["gpusense.session"].span_id
    assert spans["gpu_kernel: outside"].parent_span_id == spans["gpusense.session"].span_id
    assert spans["gpusense.session"].start_time_unix_nano == start
    assert spans["gpusense.session"].trace_id.hex() == first.trace_id
    before = {(span.name, span.span_id) for span in got.spans}
    assert otel.export_session(session, url).trace_id == first.trace_id
    wait_for(lambda: len(got.spans) >= 10)
    assert {(span.name, span.span_id) for span in got.spans} == before
    got.spans.clear()
    session.meta |= {
        "program_start_ns": start + 1,
        "program_end_ns": start + 700,
        "exit_code": 3,
    }  # without gpusense's own
    session.meta["run"] = {"command": "'/a b/train.py' --secret 1"}
    otel.export_session(session, url)
    wait_for(lambda: len(got.spans) >= 5)
    root = next(span for span in got.spans if span.name == "gpusense.session")
    assert (root.start_time_unix_nano, root.end_time_unix_nano, root.status.code) == (start + 1, start + 700, 2)
    said = {one.key: one.value for one in root.attributes}
    assert said["process.command"].string_value == "train.py"
    assert (said["process.pid"].int_value, said["process.exit.code"].int_value) == (7, 3)


def test_the_export_verb(otel, rotel, tmp_path, capsys):
    from gpusense.cli import main
    from gpusense.exporters.opentelemetry import _replay

    assert _replay.BATCH <= 512
    url, got = rotel
    path = tmp_path / "run.gpusense"
    code = f"""
import gpusense
from gpusense._tracing.select import control
run = control.start_session("file", {str(path)!r}, trace_all=False)
with gpusense.trace("step"):
    gpusense.record_kernel("sgemm", duration_ns=300_000)
    gpusense.record_kernel("tiny", duration_ns=3_000)
run.finish()
"""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "GPUSENSE": "on"}
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, env=environ)
    assert main(["export", str(path), "--otlp", url]) == 0
    said = capsys.readouterr().err
    assert "4 spans sent, 0 refused" in said  # one for the short kernel
    assert "1 operation below the threshold was only summed" in said
    wait_for(lambda: len(got.spans) >= 3)
    assert main(["export", str(path), "--otlp", f"http://127.0.0.1:{free_port()}", "--timeout", "0.2"]) == 1
    assert "refused: no answer" in capsys.readouterr().err
    assert main(["export", str(tmp_path / "absent"), "--otlp", url]) == 2
    assert main(["export", str(path), "--otlp", "localhost:4318"]) == 2
    assert "'localhost:4318' is not a URL of OTLP over HTTP" in capsys.readouterr().err
    assert main(["export", str(path), "--otlp", url, "--no-summed-spans"]) == 0
    assert "3 spans sent, 0 refused" in capsys.readouterr().err


def test_the_export_verb_without_url_takes_the_environments(otel, rotel, tmp_path, capsys, monkeypatch):
    from gpusense.cli import main

    url, _ = rotel
    path = str(tmp_path / "run.gpusense")
    save(session(), path)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    for words in ([path, "--otlp"], ["--otlp", path], ["--otlp", "--trace-all", path]):
        assert main(["export", *words]) == 0
    assert main(["export", "--otlp"]) == main(["export", "--otlp", url]) == 2
    assert main(["export", "--otlp", "localhost:4317"]) == 2
    assert capsys.readouterr().err.count("name the session file") == 3

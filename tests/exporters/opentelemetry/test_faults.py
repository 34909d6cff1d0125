"""Endpoints that refuse, keep silent, are slow, answer 413, 429, 503; exits, forks and off switches around them."""

import contextvars
import importlib.util
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from opentelemetry.trace import SpanContext, TraceFlags
from servers import free_port, receiver, silent
from support import sessions
from support.machine import require

from gpusense.cli._ending import Spans
from gpusense.exporters.opentelemetry import _attributes, _histograms, _otlp, _parents, _replay, _target, _view

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]

pytestmark = pytest.mark.network


def run(otel, tracer, url, spans=20, **settings):
    """What became of ``spans`` kernels below one block."""
    otel.instrument(tracer=tracer, endpoint=url, metrics=False, max_spans_per_s=0, **settings)
    with tracer.trace("step"):
        for number in range(spans):
            tracer.kernel(f"k{number}")
    otel.flush(20)
    status = otel.status()
    assert status["received"] == status["exported"] + status["folded"] + sum(status["dropped"].values())
    return status


def test_too_large_is_halved_until_it_fits_and_stays_so(otel, tracer):
    with receiver(limit=20_000) as got:
        status = run(otel, tracer, got.url, spans=400)
        assert status["dropped"] == {}
        assert len(got.spans) == status["exported"] == 401
        refused = got.requests - len(got.paths)
        with tracer.trace("again"):
            for number in range(400):
                tracer.kernel(f"k{number}")
        assert otel.flush(20)
        assert len(got.spans) == 802
        assert got.requests - len(got.paths) == refused


def recorded(count, **fields):
    """A session of ``count`` blocks with a kernel each."""
    blocks = [sessions.block((f"b{at}",), 10 * at, 10 * at + 9, number=at + 1, **fields) for at in range(count)]
    candidates = tuple(range(1, count + 1))
    kernels = [sessions.kernel(f"k{at}", 10 * at + 1, 10 * at + 5, block_id=at + 1) for at in range(count)]
    return sessions.session(*blocks, *kernels, kernels[0]._replace(ambiguous=candidates), end=10 * count)


def test_a_session_of_ten_times_what_any_table_holds_takes_ten_times_as_long(otel, monkeypatch):
    """In requests (``BATCH``), kinds of spans, links, attributes and what these hold."""
    monkeypatch.setattr(_replay, "BATCH", 16)
    monkeypatch.setattr(_otlp, "MAX_KINDS", 16)
    assert max(_attributes.MAX_ATTRIBUTES, _attributes.MAX_ITEMS, _parents.MAX_LINKS) <= 32
    costs = []
    for times in (1, 10):
        many = {f"a{at}": [["x"] * 32 * times, "x" * 1024 * times][at % 2] for at in range(12 * times)}
        session = recorded(max(16 * times, 33), attributes=many)
        with receiver() as got:
            began = time.process_time()
            done = otel.export_session(session, got.url)
            costs.append(time.process_time() - began)
        assert (done.sent, done.refused, done.why) == (len(session.records) + 1, 0, "")
        assert max(len(span.links) for span in got.spans) <= 32
        assert max(len(span.attributes) for span in got.spans) < 40
        assert max(got.sizes) < 16 * 40_000
    assert costs[1] < 40 * max(costs[0], 0.01), costs


def test_tables_of_an_export_that_lasts_keep_to_their_bounds(tracer, monkeypatch):
    for module, name in (
        (_parents, "MAX_CLOSED"), (_parents, "MAX_OPEN"), (_view, "MAX_SCOPES"), (_histograms, "MAX_KEYS"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, 5)
    context = SpanContext(1, 2, False, TraceFlags(1))
    places = _parents.Blocks(lambda: _parents.Ids(lambda: 3, lambda: 1, lambda *_: (True, None)), lambda: context)
    opened = [SimpleNamespace(block_id=number, name="b", links=None) for number in range(100)]

    def blocks():
        for block in opened[:50]:
            places.block_opened(block)
            places.block_closed(block)
        assert len(places) <= 6
        for block in opened[50:]:
            places.block_opened(block)
        assert len(places) <= 6
        for block in reversed(opened[50:]):
            places.block_closed(block)

    contextvars.copy_context().run(blocks)  # those that were forgotten stay the current span
    view = _view.View(lambda: tracer, _target.Target(), None)
    for number in range(50):
        view.scope("cuda", number, number)
    assert len(view._scopes) <= 5
    work = _histograms.Work(3, 0)
    work.add([sessions.kernel(f"k{number}", number, number + 1) for number in range(50)])
    assert len(work._passed) <= 5


def test_who_answers_no_more_holds_nobody_for_long(otel, monkeypatch):
    """Each request without an answer may take all of its time."""
    monkeypatch.setattr(_replay, "BATCH", 4)
    with receiver(answers=5) as got:
        done = otel.export_session(recorded(100), got.url, timeout_s=0.2)
    assert (done.sent, done.refused) == (20, 4 * _replay.PATIENCE)
    assert got.requests < 30
    assert done.why.endswith("; no more was tried")


def test_unavailable_for_a_moment(otel, tracer):
    with receiver(fail_first=(1, 503), headers=[("Retry-After", "0")]) as got:
        assert run(otel, tracer, got.url)["dropped"] == {}
        assert len(got.spans) == 21


@pytest.mark.parametrize("answer", [200, 404, 500])
def test_the_span_of_a_process_without_gpu_work_may_be_refused_too(otel, tracer, answer):
    with receiver(status=answer) as got:
        otel.instrument(tracer=tracer, endpoint=got.url, metrics=False, private=True)
        otel.start_root_span().end(0)
        assert otel.uninstrument(20) is (answer == 200)


@pytest.mark.parametrize("answer", [400, 429, 503])
def test_refusals_are_counted(otel, tracer, answer, caplog):
    require(importlib.util.find_spec("opentelemetry.exporter.otlp.common"), "an exporter that heeds Retry-After")
    with receiver(status=answer, headers=[("Retry-After", "3600")]) as got:
        assert run(otel, tracer, got.url)["dropped"] == {"export_failed": 21}
    assert len(caplog.records) <= 1


@pytest.mark.parametrize("answer", [204, 302, 307])
def test_a_redirection_has_taken_nothing(otel, tracer, caplog, monkeypatch, answer):
    """It counted as success, and what was sent was nowhere."""
    from gpusense._runtime import log

    monkeypatch.setattr(log, "_said", set())
    with receiver() as other, receiver(status=answer, headers=[("Location", other.url + "/login")]) as got:
        status = run(otel, tracer, got.url)
        requests = got.requests
        assert otel.uninstrument() is (answer == 204)
        assert (requests, other.requests) == (1, 0)  # neither sent again nor followed
    if answer == 204:
        assert (status["dropped"], caplog.records) == ({}, [])
        return
    assert status["dropped"] == {"export_failed": 21}
    (said,) = caplog.records
    assert said.getMessage() == f"gpusense: traces are not accepted by {got.url}/v1/traces: status {answer}"


PROTOBUF = [("Content-Type", "application/x-protobuf")]


def partly(rejected, message):
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse as Response

    answer = Response()
    answer.partial_success.rejected_spans = rejected
    answer.partial_success.error_message = message
    return answer.SerializeToString()


def test_rejected_spans_of_a_request_that_was_taken_are_counted(otel, tracer, caplog, monkeypatch):
    from gpusense._runtime import log

    monkeypatch.setattr(log, "_said", set())
    with receiver(headers=PROTOBUF, body=partly(5, "no such tenant")) as got:
        status = run(otel, tracer, got.url)
        assert (status["exported"], status["dropped"]) == (16, {"export_failed": 5})
        assert not otel.uninstrument()
        (said,) = caplog.records
        assert said.getMessage() == f"gpusense: traces are not all accepted by {got.url}/v1/traces: no such tenant"


def test_the_export_verb_says_what_was_rejected(tmp_path, capsys):
    from support.sessions import kernel, session

    import gpusense.session
    from gpusense.cli import main

    path = tmp_path / "run.gpusense"
    gpusense.session.save(session(kernel("sgemm", 0, 1_000_000), kernel("copy", 0, 1_000_000)), path)
    with receiver(headers=PROTOBUF, body=partly(2, "no such \x1b[31mtenant")) as got:
        assert main(["export", str(path), "--otlp", got.url]) == 1
    first, second, *_ = capsys.readouterr().err.splitlines()
    assert first.startswith("1 span sent, 2 refused, trace ")
    assert first.endswith(f"; to {got.url}")
    assert second == "refused: no such \ufffd[31mtenant"
    with receiver(headers=PROTOBUF, body=partly(0, "slow down")) as got:
        assert main(["export", str(path), "--otlp", got.url]) == 0
    assert "\nthe endpoint says: slow down\n" in capsys.readouterr().err


def test_a_warning_costs_nothing_and_is_said(otel, tracer, caplog, monkeypatch):
    from gpusense._runtime import log

    monkeypatch.setattr(log, "_said", set())
    with receiver(headers=PROTOBUF, body=partly(0, "names are long")) as got:
        assert run(otel, tracer, got.url)["dropped"] == {}
        assert otel.uninstrument()
        (said,) = caplog.records
        assert said.getMessage() == f"gpusense: {got.url}/v1/traces says: names are long"


def test_more_rejected_than_sent_is_all(otel, tracer):
    with receiver(headers=PROTOBUF, body=partly(1 << 40, "")) as got:
        status = run(otel, tracer, got.url)
    assert (status["exported"], status["dropped"]) == (0, {"export_failed": 21})


def test_a_page_that_answers_200_has_taken_nothing(otel, tracer):
    page = [("Content-Type", "text/html; charset=utf-8")]
    with receiver(headers=page, body=b"<html>Please log in</html>") as got:
        assert run(otel, tracer, got.url)["dropped"] == {"export_failed": 21}


@pytest.mark.parametrize(("content", "body"), [("text/plain", b"ok"), ("application/json", b"{}"), ("", b"\xff\xff")])
def test_a_body_that_says_nothing_costs_nothing(otel, tracer, content, body):
    with receiver(headers=[("Content-Type", content)], body=body) as got:
        assert run(otel, tracer, got.url)["dropped"] == {}


def test_an_answer_that_cannot_be_unpacked_costs_nothing(otel, tracer):
    with receiver(headers=[*PROTOBUF, ("Content-Encoding", "gzip")], body=b"no gzip") as got:
        run(otel, tracer, got.url)
        assert got.spans


@pytest.mark.parametrize("status", [400, 415])
def test_a_refusal_of_compressed_requests_names_the_setting(status, monkeypatch):
    from opentelemetry.sdk.metrics.export import MetricsData

    from gpusense._runtime import log
    from gpusense.exporters.opentelemetry._otlp import Otlp

    monkeypatch.setattr(log, "_said", set())
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    with receiver(status=status, headers=[("Content-Type", "text/plain")], body=b"invalid byte 0x1f") as got:
        otlp = Otlp("metrics", got.url)
        assert not otlp.export_metrics(MetricsData(resource_metrics=[]))
        assert otlp.why == (
            f"status {status}: invalid byte 0x1f (OTEL_EXPORTER_OTLP_COMPRESSION=gzip: does it read that?)"
        )
        otlp.close()


def test_a_redirection_of_metrics_is_told(monkeypatch):
    from opentelemetry.sdk.metrics.export import MetricsData

    from gpusense._runtime import log
    from gpusense.exporters.opentelemetry._otlp import Otlp

    monkeypatch.setattr(log, "_said", set())
    with receiver(status=302) as got:
        otlp = Otlp("metrics", got.url)
        assert not otlp.export_metrics(MetricsData(resource_metrics=[]))
        assert otlp.why == "status 302"
        otlp.close()


def test_an_exporter_that_follows_redirections_sends_nothing_elsewhere():
    """Earlier ones ask ``requests`` to follow, which repeats a POST as a GET without its body."""
    from gpusense.exporters.opentelemetry import _otlp

    statuses = []
    session = _otlp._session(lambda status, *_: statuses.append(status))
    with receiver() as other, receiver(status=302, headers=[("Location", other.url)]) as got, session:
        assert session.post(got.url + "/v1/traces", data=b"").status_code == 302
        assert other.requests == 0
    assert statuses == [302]


def test_a_backend_that_takes_no_metrics_gets_its_spans(otel, tracer, caplog):
    """As Jaeger and Tempo, whose answer to ``/v1/metrics`` is 404."""
    with receiver(unknown="/v1/metrics") as got:
        otel.instrument(tracer=tracer, endpoint=got.url, exit_timeout_s=10)
        otel._active.settings = otel._active.settings._replace(metric_interval_s=0)
        for _ in range(3):
            with tracer.trace("step"):
                tracer.kernel()
            assert otel.flush(20)
        assert otel.uninstrument()
        assert len(got.spans) == 6
        assert got.requests - len(got.paths) >= 3
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_protocol_that_is_not_spoken_is_said(otel, tracer, monkeypatch, caplog):
    from gpusense._runtime import log

    monkeypatch.setattr(log, "_said", set())
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with receiver() as got:
        assert run(otel, tracer, got.url)["dropped"] == {}
    assert [record.getMessage() for record in caplog.records] == [
        "gpusense: OTEL_EXPORTER_OTLP_PROTOCOL=grpc: gpusense sends OTLP over HTTP, to port 4318 as a rule"
    ]
    otel.uninstrument()
    caplog.clear()
    monkeypatch.setattr(log, "_said", set())
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf")
    with receiver() as got:
        assert run(otel, tracer, got.url)["dropped"] == {}
    assert not caplog.records


@pytest.mark.parametrize("named", ["argument", "variable"])
def test_the_port_of_grpc_is_said_and_tried_all_the_same(named, monkeypatch, caplog, capsys):
    from gpusense._runtime import log

    monkeypatch.setattr(log, "_said", set())
    endpoint = "http://127.0.0.1:4317"
    if named == "variable":
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
    otlp = _otlp.Otlp("traces", endpoint if named == "argument" else None, 0.2)
    exporter = otlp.make()
    if named == "argument":  # and by the command, before the program starts
        Spans(endpoint, live=False)
        assert capsys.readouterr().err == f"gpusense: --otlp {endpoint}: {_otlp.GRPC}\n"
    [said] = caplog.records
    assert "port 4317 takes gRPC" in said.getMessage()
    assert "4318" in said.getMessage()
    monkeypatch.setattr(type(exporter), "export", lambda self, spans: None)
    otlp._encoding = False
    assert otlp.export_spans([object()]) == 1
    assert otlp.why == f"no answer ({_otlp.GRPC})"
    otlp.close()


def test_a_slow_endpoint_never_slows_the_application(otel, tracer):
    answering = threading.Event()
    with receiver(waits=answering) as got:
        otel.instrument(tracer=tracer, endpoint=got.url, metrics=False)
        began = time.monotonic()
        for _ in range(50):
            with tracer.trace("step"):
                tracer.kernel()
            tracer.flush()
        assert time.monotonic() - began < 9  # who waits for an answer gives up after 10 s
        answering.set()
        assert otel.flush(20)
        assert otel.status()["exported"] == 100
        assert len(got.spans) == 100


def test_queue_is_bounded_while_the_endpoint_hangs(otel, tracer, monkeypatch):
    with silent() as url:
        otel.instrument(tracer=tracer, endpoint=url, metrics=False, exit_timeout_s=0.2)
        otel._active.inbox.limit = 100
        for _ in range(30):
            for _ in range(10):
                tracer.kernel()
            tracer.flush()
        assert len(otel._active.inbox.take()) <= 100
        assert otel.status()["dropped"].get("queue_full", 0) >= 190
        began = time.monotonic()
        otel.uninstrument()
        assert time.monotonic() - began < 9  # and not the 10 s that a request may take


SCRIPT = """
import sys, time, os
sys.path.insert(0, {here!r})
import gpusense
from gpusense.exporters import opentelemetry as otel
assert otel.instrument(private=True)
tracer = gpusense.get_tracer()
{body}
"""
STEP = """
with tracer.trace("step"):
    for i in range(10):
        tracer.record_kernel(f"k{i}", duration_ns=200_000)
"""


def child(body, timeout=30, **env):
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("GPUSENSE", "OTEL"))}
    environ |= {"PYTHONPATH": str(ROOT), "GPUSENSE": "on", **env}
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", SCRIPT.format(here=str(HERE), body=body)],
        capture_output=True, text=True, timeout=timeout, env=environ,
    )  # fmt: skip
    return done, time.monotonic() - began


def test_normal_exit_sends_all(otel):
    with receiver() as got:
        done, _ = child(STEP + "sys.exit(5)", OTEL_EXPORTER_OTLP_ENDPOINT=got.url)
        assert (done.returncode, done.stdout, done.stderr) == (5, "", "")
        assert len(got.spans) == 11
        assert got.paths[0] == "/v1/traces"
        assert {metric.name for metric in got.metrics} >= {"gpusense.records", "gpu.kernel.duration"}


@pytest.mark.parametrize("fault", ["refused", "silent"])
def test_exit_is_not_held_up(fault):
    with silent() as url:
        endpoint = url if fault == "silent" else f"http://127.0.0.1:{free_port()}"
        held = {"OTEL_EXPORTER_OTLP_TIMEOUT": "100", "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}
        done, took = child(STEP + "sys.exit(5)", timeout=60, **held)
    assert (done.returncode, done.stdout, done.stderr) == (5, "", "")
    assert took < 25  # two seconds, imports, and not the 100 that a request may take


def test_both_sides_of_a_fork_send_exactly_once():
    body = """
with tracer.trace("before"):
    tracer.record_kernel("parent", duration_ns=200_000)
tracer.flush()
pid = os.fork()
if pid == 0:
    gpusense.enable()
    otel.flush(5)
    with gpusense.trace("child"):
        gpusense.record_kernel("child", duration_ns=200_000)
    sys.exit(0)
os.waitpid(pid, 0)
"""
    with receiver() as got:
        done, _ = child(body, OTEL_EXPORTER_OTLP_ENDPOINT=got.url)
        assert (done.returncode, done.stderr) == (0, "")
        assert sorted(span.name for span in got.spans) == ["before", "child", "gpu_kernel: child", "gpu_kernel: parent"]


def test_a_forked_web_worker_records_its_requests():
    body = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
provider = TracerProvider()
trace.set_tracer_provider(provider)
otel.flush(5)
pid = os.fork()
if pid == 0:
    with provider.get_tracer("app").start_as_current_span("GET /"):
        gpusense.record_kernel("child", duration_ns=200_000)
    sys.exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    with receiver() as got:
        done, _ = child(body, OTEL_EXPORTER_OTLP_ENDPOINT=got.url)
        assert (done.returncode, done.stderr) == (0, "")
        assert [span.name for span in got.spans] == ["gpu_kernel: child"]
        assert got.spans[0].parent_span_id


def test_a_forked_child_without_a_request_sends_its_blocks():
    """Nothing but a block tells that it works: no span of the application begins, nobody flushes."""
    body = """
otel.flush(5)
pid = os.fork()
if pid == 0:
    for number in range(3):
        with gpusense.trace(f"child {number}"):
            gpusense.record_kernel("child", duration_ns=200_000)
    sys.exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    with receiver() as got:
        done, _ = child(body, OTEL_EXPORTER_OTLP_ENDPOINT=got.url)
        assert (done.returncode, done.stderr) == (0, "")
        blocks = {span.span_id for span in got.spans if span.name.startswith("child")}
        kernels = [span for span in got.spans if span.name == "gpu_kernel: child"]
    assert len(blocks) == len(kernels) == 3
    assert {span.parent_span_id for span in kernels} == blocks


def test_a_worker_of_multiprocessing_that_instruments_itself():
    body = """
otel.uninstrument()
import multiprocessing
def work():
    otel.instrument(private=True)
    with gpusense.trace("worker"):
        gpusense.record_kernel("in_worker", duration_ns=200_000)
process = multiprocessing.get_context("fork").Process(target=work)
process.start()
process.join()
sys.exit(process.exitcode)
"""
    with receiver() as got:
        done, _ = child(body, OTEL_EXPORTER_OTLP_ENDPOINT=got.url)
        assert (done.returncode, done.stderr) == (0, "")
        assert sorted(span.name for span in got.spans) == ["gpu_kernel: in_worker", "worker"]


def test_a_worker_of_multiprocessing_sends_before_it_ends():
    body = """
import multiprocessing
def work():
    gpusense.enable()
    otel.flush(5)
    with gpusense.trace("worker"):
        gpusense.record_kernel("in_worker", duration_ns=200_000)
process = multiprocessing.get_context("fork").Process(target=work)
process.start()
process.join()
sys.exit(process.exitcode)
"""
    with receiver() as got:
        done, _ = child(body, OTEL_EXPORTER_OTLP_ENDPOINT=got.url)
        assert (done.returncode, done.stderr) == (0, "")
        assert sorted(span.name for span in got.spans) == ["gpu_kernel: in_worker", "worker"]


@pytest.mark.skipif(not hasattr(signal, "SIGTERM"), reason="needs signals")
def test_killed_by_a_signal_that_the_application_handles():
    body = STEP + "import signal; signal.signal(15, lambda *_: sys.exit(7)); os.kill(os.getpid(), 15); time.sleep(20)"
    with receiver() as got:
        done, _ = child(body, OTEL_EXPORTER_OTLP_ENDPOINT=got.url)
        assert done.returncode == 7
        assert len(got.spans) == 11


@pytest.mark.parametrize("switch", ["GPUSENSE=off", "GPUSENSE_OTEL=off", "OTEL_SDK_DISABLED=true"])
def test_off_is_read_before_anything_is_imported(switch):
    code = """
import sys
import gpusense
from gpusense.exporters import opentelemetry as otel
assert not any(name.split(".")[0] == "opentelemetry" for name in sys.modules)
otel.Instrumentor().instrument(skip_dep_check=True)
assert otel.instrument() is False
assert otel.start_root_span() is None
assert otel.flush() and otel.uninstrument() and otel.status() is None
assert not any(name.split(".")[0] == "opentelemetry" for name in sys.modules)
"""
    name, _, value = switch.partition("=")
    environ = {**os.environ, "PYTHONPATH": str(ROOT), name: value}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environ, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")


def test_importing_gpusense_imports_no_opentelemetry():
    code = """
import sys, json
import gpusense, gpusense.exporters, gpusense.exporters.opentelemetry
gpusense.get_tracer()
print(json.dumps([name for name in sys.modules if name.split(".")[0] in ("opentelemetry", "google", "requests")]))
"""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "GPUSENSE": "on"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environ, timeout=30)
    assert json.loads(done.stdout) == []


def test_exporters_named_none_send_nothing():
    with receiver() as got:
        done, _ = child(
            STEP,
            OTEL_EXPORTER_OTLP_ENDPOINT=got.url,
            OTEL_TRACES_EXPORTER="none",
            OTEL_METRICS_EXPORTER="none",
        )
        assert (done.returncode, done.stderr, got.requests) == (0, "", 0)


def test_the_instrumentor_lets_nothing_out_but_import_errors(otel, monkeypatch):
    def fail(**_settings):
        raise RuntimeError("anything")

    def absent(**_settings):
        raise ImportError("opentelemetry.sdk")

    monkeypatch.setattr(otel, "instrument", fail)
    otel.Instrumentor().instrument(skip_dep_check=True)
    monkeypatch.setattr(otel, "instrument", absent)
    with pytest.raises(ImportError):
        otel.Instrumentor().instrument()
    otel.Instrumentor().uninstrument()


def test_a_vendored_copy_exports_under_its_hosts_name(tmp_path):
    host = tmp_path / "host" / "_vendor"
    host.mkdir(parents=True)
    (tmp_path / "host" / "__init__.py").touch()
    (host / "__init__.py").touch()
    shutil.copytree(ROOT / "gpusense", host / "gpusense", ignore=shutil.ignore_patterns("__pycache__"))
    code = """
import sys
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from host._vendor import gpusense
from host._vendor.gpusense.exporters import opentelemetry as otel
class Exporter(SpanExporter):
    def export(self, spans):
        print(*sorted((span.name, span.instrumentation_scope.name) for span in spans))
        return SpanExportResult.SUCCESS
otel.instrument(exporter=Exporter(), metrics=False)
with gpusense.trace("step"):
    gpusense.record_kernel("sgemm", duration_ns=200_000)
otel.uninstrument()
assert "gpusense" not in sys.modules
"""
    environ = {**os.environ, "PYTHONPATH": str(tmp_path), "GPUSENSE": "on"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environ, timeout=60)
    name = "host._vendor.gpusense"
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == f"('gpu_kernel: sgemm', '{name}') ('step', '{name}')"


@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="a GPU is here")
def test_without_a_gpu_the_applications_spans_are_as_they_were():
    body = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
otel.flush(5)
assert not tracer.active
with provider.get_tracer("app").start_as_current_span("GET /"), gpusense.trace("forward"):
    gpusense.record_kernel("sgemm", duration_ns=200_000)
otel.flush(5)
assert [span.name for span in exporter.get_finished_spans()] == ["GET /"]
assert otel.status() == {"received": 0, "exported": 0, "folded": 0, "scopes": 0, "dropped": {}}
"""
    with receiver() as got:
        done, _ = child(body, OTEL_EXPORTER_OTLP_ENDPOINT=got.url, GPUSENSE="auto", OTEL_METRICS_EXPORTER="none")
        assert (done.returncode, done.stderr) == (0, "")
        assert got.spans == []


@pytest.mark.skipif(os.name == "nt", reason="POSIX only")
def test_ctrl_c_keeps_its_exit_status():
    body = STEP + "import signal; os.kill(os.getpid(), signal.SIGINT); time.sleep(20)"
    with receiver() as got:
        done, _ = child(body, OTEL_EXPORTER_OTLP_ENDPOINT=got.url)
        assert done.returncode == -signal.SIGINT, done.stderr
        assert len(got.spans) == 11

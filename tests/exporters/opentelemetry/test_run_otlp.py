"""``gpusense run --otlp``: the spans arrive however the program ends, and the program ends as it would have."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
from servers import free_port, receiver, silent

import gpusense

ROOT = pathlib.Path(gpusense.__file__).resolve().parent.parent
pytestmark = pytest.mark.network

WORK = """
import os, signal, sys, time
import gpusense
tracer = gpusense.get_tracer()
with tracer.trace("step"):
    for i in range(10):
        tracer.record_kernel(f"k{i}", duration_ns=200_000)
print("worked", flush=True)
"""
ENDINGS = {
    "normal": ("", 0),
    "exit": ("sys.exit(7)", 7),
    "exception": ("1 / 0", 1),
    "sigterm": ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(20)", -signal.SIGTERM),
    "ctrl_c": ("os.kill(os.getpid(), signal.SIGINT); time.sleep(20)", -signal.SIGINT),
}


def run(*words, code, cwd, **variables):
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("GPUSENSE", "OTEL"))}
    environ |= {"PYTHONPATH": str(ROOT), "GPUSENSE": "on", **variables}
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-m", "gpusense", "run", *words, "-c", code],
        cwd=cwd, env=environ, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    return done, time.monotonic() - began


@pytest.mark.parametrize("output", [(), ("-o", "s.gpusense")], ids=["live", "file"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_spans_arrive_however_it_ends(tmp_path, ending, output):
    end, code = ENDINGS[ending]
    with receiver() as got:
        done, _ = run("--otlp", got.url, *output, code=WORK + end, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (code, "worked\n"), done.stderr
        names = sorted(span.name for span in got.spans)
    assert [name for name in names if name.startswith("gpu_kernel")] == [f"gpu_kernel: k{i}" for i in range(10)]
    assert names.count("step") == 1
    assert f"{got.url}" in done.stderr
    (step,) = [span for span in got.spans if span.name == "step"]
    kernels = [span for span in got.spans if span.name.startswith("gpu_kernel")]
    assert {span.parent_span_id for span in kernels} == {step.span_id}
    inside = {one.key: one.value.int_value for one in step.attributes}
    assert (inside["gpu.inside.kernels"], inside["gpu.inside.gpu_ns"]) == (10, 2_000_000)
    assert {span.trace_id for span in kernels} == {step.trace_id}


@pytest.mark.parametrize("ending", ["exit", "sigterm"])
@pytest.mark.parametrize("output", [(), ("-o", "s.gpusense")], ids=["live", "file"])
@pytest.mark.parametrize("fault", ["refused", "silent"])
def test_a_dead_collector_changes_nothing_but_the_answer(tmp_path, ending, output, fault):
    end, code = ENDINGS[ending]
    with silent() as url:
        if fault == "refused":
            url = f"http://127.0.0.1:{free_port()}"
        done, took = run("--otlp", url, *output, code=WORK + end, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (code, "worked\n")
    assert "Traceback" not in done.stderr
    (told,) = [line for line in done.stderr.splitlines() if line.startswith("spans: ")]
    assert "did not take all" in told or "0 sent" in told, told
    assert took < 15


@pytest.mark.parametrize("output", [(), ("-o", "s.gpusense")], ids=["live", "file"])
def test_an_endpoint_that_refuses_everything_is_not_said_to_have_it(tmp_path, output):
    with receiver(status=400) as got:
        done, _ = run("--otlp", got.url, *output, code=WORK, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "worked\n")
    (told,) = [line for line in done.stderr.splitlines() if line.startswith("spans: ")]
    assert "did not take all" in told or "0 sent" in told, told


@pytest.mark.parametrize("output", [(), ("-o", "s.gpusense")], ids=["live", "file"])
@pytest.mark.parametrize("switch", ["OTEL_SDK_DISABLED=true", "GPUSENSE_OTEL=off"])
def test_an_off_switch_is_obeyed_and_said(tmp_path, output, switch):
    name, _, value = switch.partition("=")
    with receiver() as got:
        done, _ = run("--otlp", got.url, *output, code=WORK, cwd=tmp_path, **{name: value})
        assert (done.returncode, done.stdout, got.requests) == (0, "worked\n", 0)
    assert f"spans: not sent, because {switch}" in done.stderr.splitlines()

"""A recorded session is exported while the interpreter ends: no thread pool, no new thread."""

import os
import pathlib
import re
import subprocess
import sys

import pytest
from opentelemetry.sdk import resources
from servers import receiver

ROOT = pathlib.Path(__file__).resolve().parents[3]

UNKNOWN = re.compile("unknown_service(:[^']*)?")  # SDK 1.30 does not name the program in it

pytestmark = pytest.mark.network

APP = """
import atexit, sys, threading, traceback
from gpusense import GpuKernel, Session
from gpusense.exporters import opentelemetry as otel

start = 1_700_000_000_000_000_000
session = Session(
    meta={"pid": 7, "start_ns": start, "end_ns": start + 10**9}, records=[GpuKernel("sgemm", start + 3, start + 300, 0)]
)

def export():
    try:
        done = otel.export_session(session, sys.argv[1], timeout_s=5)
        print(done.sent, done.refused, flush=True)
    except BaseException:
        traceback.print_exc()
"""
WAYS = {
    "its own exit handler": "atexit.register(export)",
    "an exit handler after the pool was used": """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor() as pool:
    pool.submit(int).result()
atexit.register(export)
""",
    "the second time in an exit handler": "export()\natexit.register(export)",
    "a daemon thread": """
done = threading.Event()
def late():
    threading.main_thread().join()
    export()
    done.set()
threading.Thread(target=late, daemon=True).start()
atexit.register(done.wait, 30)
""",
}


def run(code, url, **variables):
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("GPUSENSE", "OTEL"))}
    environ |= {"PYTHONPATH": str(ROOT), **variables}
    return subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", APP + code, url],
        capture_output=True, text=True, timeout=60, env=environ,
    )  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_every_span_arrives(way):
    with receiver() as got:
        done = run(WAYS[way], got.url)
        assert (done.returncode, done.stderr) == (0, "")
        assert set(done.stdout.splitlines()) == {"2 0"}
        names = {span.name for span in got.spans}
    assert names == {"gpusense.session", "gpu_kernel: sgemm"}


def test_the_resource_is_that_of_any_other_time():
    code = """
from opentelemetry.sdk.resources import Resource
from gpusense.exporters.opentelemetry import _resource
def show():
    found = dict(_resource.detected().attributes)
    print(sorted(found.items()), flush=True)
show()
atexit.register(show)
"""
    chosen = [{}, {"OTEL_SERVICE_NAME": "shop", "OTEL_RESOURCE_ATTRIBUTES": "a=b"}]
    if hasattr(resources, "_build_resource_detectors"):  # SDK 1.30 keeps to itself which they are
        chosen.append({"OTEL_EXPERIMENTAL_RESOURCE_DETECTORS": "process"})
    for variables in chosen:
        done = run(code, "unused", **variables)
        assert (done.returncode, done.stderr) == (0, "")
        during, ending = done.stdout.splitlines()
        during, ending = (UNKNOWN.sub("unknown_service", said) for said in (during, ending))
        assert during == ending
        assert "telemetry.sdk.version" in during


def test_a_detector_that_must_succeed_is_heard():
    """``raise_on_error`` is the user's word, and a RuntimeError of theirs is not taken for the pool's."""
    code = """
from opentelemetry.sdk import resources
class Strict(resources.OTELResourceDetector):
    def detect(self):
        raise RuntimeError("no such cloud")
resources.OTELResourceDetector = Strict
original = Strict.__init__
Strict.__init__ = lambda self, raise_on_error=True: original(self, raise_on_error)
export()
"""
    done = run(code, "http://127.0.0.1:9")
    assert "RuntimeError: no such cloud" in done.stderr

"""``GPUSENSE=on`` in a program that imports gpusense before it uses CUDA: recorded from the first launch on."""

import os
import subprocess
import sys

import pytest

from gpusense.cli import vendor

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fakes are ELF libraries")

LAUNCHES = """
import ctypes, os
driver, fake = (ctypes.CDLL(os.environ["GPUSENSE_LIB" + name]) for name in ("CUDA", "CUPTI"))
assert driver.cuInit(0) == 0
zero = ctypes.c_uint64(0)
for _ in range(3):
    fake.fake_cupti_kernel(b"first", 0, 7, zero, zero, 0)
"""
#: What each copy in the process has seen, and what it has not.
SAY = """
def say(copy):
    tracer = copy.get_tracer()
    tracer.close()
    session = tracer.recorder.session()
    print(copy.__name__, sum(row.count for row in session.aggregates if row.kind == "kernel"), session.unseen)
"""


@pytest.fixture
def started(environ, tmp_path):
    environ = {**environ, "GPUSENSE": "on", "XDG_CACHE_HOME": str(tmp_path / "cache")}

    def run(code, **more):
        command = [sys.executable, "-c", SAY + code]
        done = subprocess.run(
            command, cwd=tmp_path, env=environ | more, capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.splitlines()

    return run


def test_no_launch_comes_before_any_copy_captures(started, tmp_path):
    (tmp_path / "host").mkdir()
    (tmp_path / "host" / "__init__.py").touch()
    vendor.copy(str(tmp_path / "host" / "sense"), core=True)
    said = started("import gpusense, host.sense\n" + LAUNCHES + "say(gpusense)\nsay(host.sense)")
    assert said == ["gpusense 3 []", "host.sense 3 []"]


def test_hardware_events_are_not_asked_for_as_cuda_starts(started):
    more = {"FAKE_CUDA_CAPABILITY": "10", "FAKE_CUPTI_VERSION": "130401", "GPUSENSE_KERNELS": "hardware"}
    told = started(
        "import gpusense, time\n"
        "from gpusense import cuda\n"
        "from gpusense.analysis.unwritten import notes_of\n"
        "buffer = cuda.Buffer(64, cuda.Device(0))\n"
        "tracer = gpusense.get_tracer()\n"
        "while tracer.recorder.marker is None and tracer.recorder.capture.newest is None:\n"
        "    time.sleep(0.005)\n"
        "with gpusense.trace('work'):\n    buffer.fill(1)\n"
        "session = tracer.session()\n"
        "paths = [row.path[0] for row in session.aggregates if row.path]\n"
        "notes = [note.partition(':')[0] for note in notes_of(session)]\n"
        "capture = session.meta['capture']\n"
        "print(capture['boundaries'], capture['hardware_events'], paths, notes)\n",
        **more,
    )
    assert told == ["read False ['work'] ['no hardware events']"]


def test_a_child_is_followed_if_it_imports_gpusense_and_else_left_alone(started, tmp_path):
    said = started(
        "import gpusense, os, subprocess, sys, warnings\n"
        "warnings.simplefilter('ignore')\n"
        f"LAUNCHES, SAY = {LAUNCHES!r}, {SAY!r}\n"
        "def child(code):\n    subprocess.run([sys.executable, '-c', code], check=True)\n"
        "child(LAUNCHES + 'import sys; print([name for name in sys.modules if \"gpusense\" in name])')\n"
        "child(SAY + 'import gpusense' + LAUNCHES + 'say(gpusense)')\n"
        "if os.fork() == 0:\n    exec(LAUNCHES)\n    say(gpusense)\n    sys.exit()\n"
        "os.wait()\n"
    )
    assert said == ["[]", "gpusense 3 []", "gpusense 3 []"]
    assert os.listdir(tmp_path) == ["cache"]

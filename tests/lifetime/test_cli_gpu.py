"""The command with a GPU: the driver and CUPTI are scripted libraries, everything between is the product."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys

import pytest
from support.programs import WORK, counts

import gpusense
from gpusense.session import load

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fakes are ELF libraries")
ROOT = pathlib.Path(gpusense.__file__).resolve().parent.parent


@pytest.fixture
def gpu(build_library, tmp_path):
    """Runs the command where a GPU seems to be."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("GPUSENSE", "FAKE"))}
    environ |= {
        "PYTHONPATH": str(ROOT),
        "GPUSENSE_LIBCUDA": str(build_library("libcuda.c", "libcuda.so.1")),
        "GPUSENSE_LIBCUPTI": str(build_library("libcupti.c", "libcupti.so.13")),
    }

    def run(*words, **more):
        return subprocess.run(
            [sys.executable, "-m", "gpusense", *words],
            cwd=tmp_path,
            env=environ | more,
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run


@pytest.mark.parametrize("mode", [(), ("--live",)])
def test_run_counts_exactly_what_was_launched(gpu, tmp_path, mode):
    (tmp_path / "work.py").write_text(WORK)
    done = gpu("run", "-o", "s.gpusense", "--trace-all", *mode, "work.py")
    assert done.returncode == 0, done.stderr
    session = load(tmp_path / "s.gpusense")
    assert counts(session) == json.loads(done.stdout)
    assert session.meta["damage"] == []
    assert {kernel.path for kernel in session.kernels if kernel.name == "spin"} == {("demo", "step", "backward")}
    assert "NVIDIA H100" in done.stderr.splitlines()[0]
    assert "matmul_naive" in done.stderr
    assert len(done.stderr.splitlines()) <= 24  # about twenty: where sentences wrap depends on the width of their times


def test_a_file_is_decoded_anew_with_another_threshold(gpu, tmp_path):
    (tmp_path / "work.py").write_text(WORK)
    done = gpu("run", "-o", "s.gpusense", "work.py")
    kernels, copies, memsets = json.loads(done.stdout)
    short = load(tmp_path / "s.gpusense")
    assert short.kernels == []
    total = sum(row.count for row in short.aggregates if row.kind == "kernel")
    assert total == sum(kernels.values())
    assert counts(load(tmp_path / "s.gpusense", threshold_us=0)) == [kernels, copies, memsets]
    assert counts(load(tmp_path / "s.gpusense", trace_all=True)) == [kernels, copies, memsets]


OUTER = "outer = gpusense.trace('outer')\nouter.__enter__()\n"
ASKING = f"""{WORK.replace("launched = ", OUTER + "launched = ")}
with gpusense.trace("inner") as inner:
    gpusense.record_kernel("by hand", duration_ns=5_000)
open_yet = outer.summary()
outer.__exit__(None, None, None)
with gpusense.trace("empty") as empty:
    pass
for found in (open_yet, outer.summary(), outer.summary(), inner.summary(), empty.summary()):
    operations = sorted([row.kind, row.name, row.count, row.total_ns, row.bytes] for row in found.operations)
    print(json.dumps([found.kernel_count, found.transfer_count, found.memset_count, found.complete, operations]))
gpusense.disable()
print(outer.summary().kernel_count)
"""


def test_a_block_tells_what_was_launched_inside_whether_or_not_a_file_is_written(gpu, tmp_path):
    (tmp_path / "work.py").write_text(ASKING)
    to_file, live = (gpu("run", *mode, "work.py") for mode in ((), ("--live",)))
    assert (to_file.returncode, live.returncode) == (0, 0), to_file.stderr + live.stderr
    assert to_file.stdout == live.stdout
    launched, *found, last = map(json.loads, to_file.stdout.splitlines())
    kernels, copies, memsets = launched
    for row in found[:3]:
        assert row[:4] == [sum(kernels.values()) + 1, sum(copies.values()), memsets, True]
    assert [row[:4] for row in found[3:]] == [[1, 0, 0, True], [0, 0, 0, True]]
    assert last == found[0][0]


@pytest.mark.parametrize("mode", [(), ("--live",)])
def test_other_devices_than_those_asked_for_are_not_recorded(gpu, tmp_path, mode):
    (tmp_path / "work.py").write_text(WORK)
    done = gpu("run", "-o", "s.gpusense", "--devices", "3,4", *mode, "work.py")
    assert done.returncode == 0, done.stderr
    session = load(tmp_path / "s.gpusense")
    assert (session.kernels, session.transfers, session.aggregates) == ([], [], [])
    assert session.meta["only_devices"] == [3, 4]
    assert "the setting devices=3,4 leaves out all others" in " ".join(done.stderr.split())
    done = gpu("run", "-o", "s.gpusense", "--devices", "0", "--trace-all", *mode, "work.py")
    assert counts(load(tmp_path / "s.gpusense")) == json.loads(done.stdout)


@pytest.mark.parametrize("mode", [(), ("--live",)])
def test_backends_without_cupti_are_the_reason_that_is_given(gpu, mode):
    done = gpu("run", "--backends", "nvml", *mode, "-c", "pass")
    assert "Nothing was recorded: the setting backends=nvml leaves out cupti." in done.stderr
    done = gpu("run", "--backends", "cupt", *mode, "-c", "pass")
    assert (done.returncode, "unknown backend 'cupt'; known: cuda, cupti, " in done.stderr) == (2, True)
    done = gpu("run", "--devices", "-1", *mode, "-c", "pass")
    assert (done.returncode, "devices must hold numbers from 0 on, not -1" in done.stderr) == (2, True)


@pytest.mark.parametrize(("ending", "code"), [("1/0", 1), ("raise SystemExit(7)", 7), ("raise KeyboardInterrupt", -2)])
def test_it_ends_as_the_program_does(gpu, tmp_path, ending, code):
    (tmp_path / "work.py").write_text(WORK + ending)
    done = gpu("run", "-o", "s.gpusense", "--trace-all", "work.py")
    assert done.returncode == code
    assert counts(load(tmp_path / "s.gpusense")) == json.loads(done.stdout)


def test_sigterm_keeps_what_was_recorded(gpu, tmp_path):
    (tmp_path / "work.py").write_text(WORK + "import os, signal; os.kill(os.getpid(), signal.SIGTERM)")
    done = gpu("run", "-o", "s.gpusense", "--trace-all", "work.py")
    assert done.returncode == -signal.SIGTERM
    session = load(tmp_path / "s.gpusense")
    assert session.meta["complete"]
    assert counts(session) == json.loads(done.stdout)


def test_demo_on_this_gpu(gpu, tmp_path):
    for words in ((), ("-o", "demo.gpusense")):
        done = gpu("demo", "--steps", "4", *words)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("This is this machine")
        assert "verdict: " in done.stdout
    session = load(tmp_path / "demo.gpusense")
    assert counts(session)[0] == {"matmul_naive": 4, "saxpy": 32, "spin": 4}


def test_selftest_passes_and_fails_for_a_reason(gpu):
    done = gpu("doctor", "--selftest", "--json")
    assert done.returncode == 0, done.stdout
    report = json.loads(done.stdout)
    assert report["selftest"] == {
        "passed": True,
        "kernels": 1,
        "transfers": 1,
        "reason": "one kernel and one copy were launched and recorded",
    }
    assert report["devices"][0]["name"] == "NVIDIA H100 80GB HBM3"
    assert [(row["name"], row["available"]) for row in report["levels"]][:1] == [("block times", True)]
    refused = gpu("doctor", "--selftest", FAKE_CUPTI_FAIL="cuptiSubscribe=39,cuptiSubscribe_v2=39")
    assert refused.returncode == 1
    assert re.search(
        r"self-test FAILED: one kernel and one copy were launched, 0 and 0 recorded; capture was .+", refused.stdout
    )


def test_nothing_seen_is_said(gpu, tmp_path):
    """CUDA was used and CUPTI refused: the answer names the reason, the program's exit code is its own."""
    (tmp_path / "work.py").write_text(
        "import gpusense; from gpusense.cuda import _workload; _workload.run(gpusense.trace, 2); raise SystemExit(5)"
    )
    done = gpu("run", "work.py", FAKE_CUPTI_FAIL="cuptiActivityRegisterCallbacks=35,cuptiSubscribe=35")
    assert done.returncode == 5
    assert "no GPU work was seen" in done.stderr or "No GPU work was seen" in done.stderr


WAITS = """
import ctypes, os, time
driver = ctypes.CDLL(os.environ["GPUSENSE_LIBCUDA"])
driver.cuInit(0)
driver.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), 0)
import gpusense
while gpusense.get_tracer().recorder.marker is None:
    with gpusense.trace("waiting"): time.sleep(0.005)
fake = ctypes.CDLL(os.environ["GPUSENSE_LIBCUPTI"])
def step():
    for _ in range(40):
        fake.fake_cupti_wait(2, 165, 4, ctypes.c_uint64(2_000_000), driver.fake_cuda_count_call())
step()
print("done")
"""


@pytest.mark.parametrize("mode", [(), ("--live",)])
def test_the_end_says_at_which_line_was_waited(gpu, tmp_path, mode):
    (tmp_path / "train.py").write_text(WAITS)
    done = gpu("run", "-o", "s.gpusense", *mode, "train.py", GPUSENSE_KINDS="sync_lines")
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    assert "waited 80.0 ms in 40 calls at train.py:12 step" in done.stderr.splitlines()

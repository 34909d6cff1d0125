"""Whole programs whose counters are sampled, with a scripted sampler: they end as they would, the session has it."""

import shutil

import pytest
from support.machine import FAKES
from support.programs import clean

from gpusense.session import load


@pytest.fixture
def scripted(scripted, build_library, tmp_path):
    """A libcupti with a profiler in it, and the library that evaluates beside it."""
    cupti = build_library("libcupti.c", "libcupti.so.13", str(FAKES / "libcupti_profiler.c"))
    path = shutil.copy(cupti, tmp_path / "libcupti.so.13")
    shutil.copy(build_library("libcupti_profiler.c", "libnvperf_host.so"), tmp_path / "libnvperf_host.so")
    return {**scripted, "GPUSENSE_LIBCUPTI": str(path), "XDG_CACHE_HOME": str(tmp_path / "cache")}


SAMPLED = """
import os, sys, time
import gpusense
from gpusense import cuda
buffer = cuda.Buffer(64, cuda.Device(0))
tracer = gpusense.get_tracer()
def counters():
    return tracer.status()["counters"]
for _ in range(400):
    with gpusense.trace("waiting"): time.sleep(0.02)
    if counters()["state"] not in ("waiting", "trying"): break
with gpusense.trace("work"): time.sleep(1.0)
"""


def test_a_run_keeps_its_samples_whatever_ends_it(gpu, tmp_path):
    for number, (end, code) in enumerate((("sys.exit(3)", 3), ("os.kill(os.getpid(), 15)", -15), ("os._exit(4)", 4))):
        path = tmp_path / f"{number}.gpusense"
        done = gpu("--counters=1kHz", "--quiet", "-o", str(path), "-c", SAMPLED + end)
        assert done.returncode == code, done.stderr
        found = load(path)
        assert len(found.counter_samples) > (100 if code != 4 else 0), found.meta["sources"]
        assert {sample.dram_read_bytes for sample in found.counter_samples} <= {3e6}
        if code != 4:
            told = found.meta["sources"]["counters"]
            assert (told["state"], told["devices"]["0"]["evaluated_by"]) == ("ended", "libnvperf_host")
            assert told["cost_percent_of_a_processor"] > 0
            assert found.meta["overhead"]["counters_cpu_ns"] > 1_000_000
            assert told["devices"]["0"]["samples"] == len(found.counter_samples)


def test_one_that_crashes_in_the_child_is_told_and_the_program_goes_on(gpu, tmp_path):
    path = tmp_path / "one.gpusense"
    crash = {"FAKE_PM_CRASH": "cuptiPmSamplingStart"}
    done = gpu("--counters", "--quiet", "-o", str(path), "-c", SAMPLED + "print(counters()['state'])", **crash)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "unavailable\n"
    found = load(path)
    assert "cuptiPmSamplingStart ended it (signal 11)" in found.meta["sources"]["counters"]["reason"]
    assert len(found.counter_samples) == 0
    assert [block.name for block in found.blocks][-1] == "work"


def test_forked_children_and_detaching(run):
    done = run(
        SAMPLED
        + """
pid = os.fork()
if pid == 0:
    assert gpusense.get_tracer().session() is not None
    os._exit(7)
assert os.waitpid(pid, 0)[1] == 7 << 8
before = len(tracer.session().counter_samples)
time.sleep(0.5)
assert len(tracer.session().counter_samples) > before + 300
gpusense.disable()
time.sleep(0.6)
paused = len(tracer.session().counter_samples)
time.sleep(0.3)
assert len(tracer.session().counter_samples) == paused
gpusense.enable()
for _ in range(200):
    time.sleep(0.02)
    if counters()["state"] == "sampling": break
left = gpusense.detach(without_graphs=True)
assert "no safe end" in left.reason, left
assert "counters" not in tracer.status()
gpusense.enable()
for _ in range(200):
    time.sleep(0.02)
    if counters()["state"] == "sampling" and len(tracer.session().counter_samples) > paused: break
else: raise SystemExit(str(counters()))
gpusense.configure(counters="100Hz")
assert counters()["state"] in ("waiting", "trying", "sampling")
gpusense.configure(counters=False)
assert tracer.session().meta["sources"]["counters"]["state"] == "ended"
print("fine")
""",
        GPUSENSE="on",
        FAKE_CUPTI_VERSION="130000",
        head="import warnings; warnings.simplefilter('ignore', DeprecationWarning)\n"
        "import gpusense; gpusense.configure(counters='1kHz')\n",
    )
    clean(done, "fine\n")


def test_nothing_is_loaded_and_no_thread_runs_unless_it_is_asked_for(run):
    done = run(
        """
running(gpusense.get_tracer())
assert not [name for name in sys.modules if "counters.s" in name or "cupti_profiler" in name or "nvperf" in name]
assert not [thread for thread in threading.enumerate() if thread.name == "gpusense-counters"]
""",
        GPUSENSE="on",
    )
    clean(done, "")

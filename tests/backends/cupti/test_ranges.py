"""The range profiler against a scripted CUPTI, and its sets of metrics with the real half that needs no device."""

import ctypes
import json
import shutil

import pytest
from support.cupti_releases import EVALUATES, fetch_cupti
from support.machine import FAKES

from gpusense._capi import loading
from gpusense._records.records import Unavailable
from gpusense._runtime.errors import BackendError
from gpusense.backends import cuda
from gpusense.backends.cupti import counters
from gpusense.backends.cupti.counters import finder, host, ranges, selftest

PRODUCT = 2 * 4096**3


@pytest.fixture
def library(build_library, monkeypatch, tmp_path):
    """A scripted libcupti with a profiler, beside a scripted CUDA that is live with one context."""
    built = build_library("libcupti.c", "libcupti.so.13", str(FAKES / "libcupti_profiler.c"))
    path = shutil.copy(built, tmp_path / "libcupti.so.13")  # its state is per file
    cuda_path = shutil.copy(
        build_library("libcuda.c", "libcuda.so.1"), tmp_path / "fake-libcuda.so"
    )  # not found by others
    monkeypatch.setenv("GPUSENSE_LIBCUPTI", str(path))
    monkeypatch.setattr(loading, "_handles", {})
    monkeypatch.setenv("GPUSENSE_LIBCUDA", str(cuda_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(host, "_initialized", False)
    monkeypatch.setattr(selftest, "_passed", set())
    monkeypatch.setattr(cuda, "SOURCE", cuda.CudaSource())
    monkeypatch.setattr(counters, "COUNTED", set())
    monkeypatch.setattr(counters, "SAMPLED", set())
    for module in (finder, ranges):
        for name in ("COUNTED", "SAMPLED"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, getattr(counters, name))
    found = ctypes.CDLL(str(path))
    found.fake_profiler_count.argtypes = (ctypes.c_char_p, ctypes.c_double)
    return found


@pytest.fixture
def driver(library):
    """The program's CUDA, with a context of this thread."""
    found = ctypes.CDLL(str(library._name).replace("libcupti.so.13", "fake-libcuda.so"))
    context = ctypes.c_void_p()
    assert found.cuInit(0) == found.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert found.cuCtxPushCurrent_v2(context) == 0
    yield found
    found.cuCtxPopCurrent_v2(ctypes.byref(context))


@pytest.fixture
def profiler(library, driver):
    api, of = host.open_api(), cuda.SOURCE.api()
    return ranges.RangeProfiler(api, of, finder.context_of(of), 0)


def scripted(library, **amounts):
    for part, amount in amounts.items():
        library.fake_profiler_count(part.encode(), float(amount))


# Counting


def test_what_a_range_counts_is_told_in_the_words_of_records(library, profiler):
    scripted(library, time_duration=180_000, src_bf16=PRODUCT, dram__bytes_read=1e8, dram__bytes_write=3e7, lts=5e8)
    scripted(library, sm__cycles_active=71, per_second=1.755e9, gr__cycles_active=40)
    assert profiler.begin("bf16")
    found = profiler.end()
    assert (found.device_ns, found.tensor_ops, found.flops) == (180_000, (("bf16", PRODUCT),), ())
    assert found.amounts == {
        "dram_read_bytes": 1e8, "dram_write_bytes": 3e7, "l2_bytes": 5e8, "sm_active_percent": 71,
        "sm_clock_mhz": 1755.0, "graphics_engine_percent": 40,
    }  # fmt: skip


def test_instructions_of_the_pipes_become_operations(library, profiler):
    scripted(library, time_duration=1000, pipe_fma_type_fp16=10, pipe_fma_pred=110, pipe_fp64=7)
    profiler.begin("pipes")
    assert profiler.end().flops == (("fp16", 40.0), ("fp32", 200.0))  # pairs; and what is not of the pairs
    profiler.begin("activity")
    assert profiler.end().flops == (("fp64", 14.0),)


def test_another_set_is_configured_anew_and_the_same_one_is_not(library, driver, profiler):
    scripted(library, time_duration=5, sm__cycles_active=50)
    for name in (*profiler.sets, *profiler.sets):
        for _ in range(2):
            before = driver.fake_cuda_calls(b"cuStreamSynchronize")
            assert profiler.begin(name), name
            assert driver.fake_cuda_calls(b"cuStreamSynchronize") == before + 2
            found = profiler.end()
            assert driver.fake_cuda_calls(b"cuStreamSynchronize") == before + 4
            assert (found.device_ns, found.amounts["sm_active_percent"]) == (5, 50), name
    changes = 2 * len(profiler.sets)
    assert library.fake_profiler_calls(b"cuptiRangeProfilerEnable") == changes
    assert library.fake_profiler_calls(b"cuptiRangeProfilerDisable") == changes - 1
    assert library.fake_profiler_calls(b"cuptiRangeProfilerSetConfig") == changes
    assert library.fake_profiler_calls(b"cuptiProfilerInitialize") == 1


def test_another_profiler_that_took_cupti_away_costs_one_range(library, driver, profiler, monkeypatch):
    assert profiler.begin("activity")
    profiler.end()
    monkeypatch.setenv("FAKE_PM_REFUSE", "cuptiRangeProfilerCounterDataImageInitialize:999")
    with pytest.raises(BackendError):
        profiler.begin("activity")
    assert library.fake_profiler_calls(b"cuptiRangeProfilerDisable") == 0, "nothing is done to what is gone"
    monkeypatch.delenv("FAKE_PM_REFUSE")
    library.fake_profiler_forget()
    assert profiler.begin("activity")
    assert profiler.end() is not None
    assert library.fake_profiler_calls(b"cuptiProfilerInitialize") == 2


def test_while_another_profiler_runs_nothing_is_counted(profiler, monkeypatch):
    monkeypatch.setattr(ranges.other_profilers, "running", lambda: "torch.profiler")
    assert not profiler.begin("activity")


def test_what_is_no_number_was_not_counted():
    fields = {"device_ns": "t", "dram_read_bytes": "r", "l2_bytes": "l", "bf16": "b"}
    found = ranges.read(fields, {"t": 5.0, "r": float("nan"), "l": float("inf"), "b": 0.0})
    assert found == (5, (("bf16", 0.0),), (), {})


def test_a_device_that_has_failed_counts_nothing(library, driver, profiler):
    driver.fake_cuda_fail(b"cuStreamSynchronize", 719)
    assert not profiler.begin("activity")
    driver.fake_cuda_fail(b"cuStreamSynchronize", 0)
    assert profiler.begin("activity")
    driver.fake_cuda_fail(b"cuStreamSynchronize", 719)
    assert profiler.end() is None
    driver.fake_cuda_fail(b"cuStreamSynchronize", 0)
    assert profiler.begin("activity"), "and the range was closed"
    assert profiler.end() is not None


def test_a_push_that_is_refused_leaves_no_profiler_running(library, driver, profiler, monkeypatch):
    monkeypatch.setenv("FAKE_PM_REFUSE", "cuptiRangeProfilerPushRange:26")
    with pytest.raises(BackendError, match="in use by another profiler"):
        profiler.begin("activity")
    monkeypatch.delenv("FAKE_PM_REFUSE")
    assert profiler.begin("activity")
    assert profiler.end() is not None


def test_while_a_stream_is_captured_nothing_is_waited_for(library, driver, profiler):
    before = driver.fake_cuda_calls(b"cuStreamSynchronize")
    driver.fake_cuda_set_capturing(None, 1)
    assert not profiler.begin("activity")
    assert driver.fake_cuda_calls(b"cuStreamSynchronize") == before
    driver.fake_cuda_set_capturing(None, 0)
    assert profiler.begin("activity")
    profiler.end()


def test_cupti_stays_in_the_process(profiler):
    profiler.begin("activity")
    profiler.end()
    assert list(counters.COUNTED) == [0]


# Finding


def now(action):
    action()
    return True


def test_the_profiler_is_tried_in_a_child_and_then_found_again(library, driver):
    find = finder.Finder(now)
    first = find(False)
    assert isinstance(first, ranges.RangeProfiler)
    assert find(True) is first
    assert (first.device, first.chip) == (0, "GH100")
    assert library.fake_profiler_calls(b"cuptiRangeProfilerStart") == 0, "the child counted, not this process"


def test_while_it_is_tried_nobody_waits_but_who_asked(library, driver):
    waiting = []
    find = finder.Finder(lambda action: waiting.append(action) or True)
    assert find(False) is None
    assert find(False) is None
    assert len(waiting) == 1
    assert isinstance(find(True), ranges.RangeProfiler)


def test_before_cuda_is_used_there_is_nothing_to_measure(library):
    assert finder.Finder(now)(True) is None


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("FAKE_PM_REFUSE", "cuptiRangeProfilerEnable:35", "only administrators profile"),
        ("FAKE_PM_CRASH", "cuptiRangeProfilerSetConfig", "cuptiRangeProfilerSetConfig ended it (signal 11)"),
        ("FAKE_PM_REFUSE", "cuptiRangeProfilerDecodeData:9", "cuptiRangeProfilerDecodeData"),
    ],
)
def test_what_fails_in_the_child_is_not_done_here(library, driver, monkeypatch, variable, value, said):
    monkeypatch.setenv(variable, value)
    find = finder.Finder(now)
    found = find(True)
    assert isinstance(found, Unavailable)
    assert said in found.reason
    assert find(True) is found
    assert library.fake_profiler_calls(b"cuptiRangeProfilerEnable") == 0


def test_a_device_is_not_for_samples_and_ranges_at_once(library, driver):
    counters.SAMPLED.add(0)
    assert "sampled over time" in finder.Finder(now)(True).reason
    counters.SAMPLED.clear()
    assert isinstance(finder.Finder(now)(True), ranges.RangeProfiler)


# Sets, for all chips


def test_each_set_of_every_chip_fits_one_pass(wheels, run_python):
    assert (wheels / EVALUATES / fetch_cupti.EVALUATOR).exists(), "fill the folder again: it lacks the evaluator"
    done = run_python(
        """
import ctypes, json, sys
from gpusense._capi import cupti_profiler as capi
from gpusense._capi.binding import bind
from gpusense.backends.cupti.counters.host import chips
from gpusense.backends.cupti.counters.ranges import SETS, chosen
api = bind(ctypes.CDLL(sys.argv[1]), capi.PROTOTYPES)
told = {}
for chip in chips(api):
    for name in SETS:
        found = chosen(api, chip, name)
        if found is not None:
            assert found.metrics.passes == 1, (chip, name)
            told.setdefault(chip, {})[name] = sorted(found.fields)
            found.metrics.close()
print(json.dumps(told))
""",
        str(fetch_cupti.library(wheels / EVALUATES)),
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert {"GV100", "TU102", "GA100", "AD102", "GH100", "GB100", "GB202"} <= told.keys()
    always = {"device_ns", "graphics_engine_percent", "sm_active_percent", "sm_clock_hz", "l2_bytes"}
    for chip, sets in told.items():
        assert {"tensor_percent", *always} <= {*sets["activity"]}, chip
        assert {"fma", *always} <= {*sets["pipes"]}, chip
        if chip not in ("GA10B", "GB10B", "GB20B"):  # whose memory is the host's
            assert all({"dram_read_bytes", "dram_write_bytes"} <= {*of} for name, of in sets.items() if name != "links")
    assert {"bf16", "fp16", "fp16 mma", "tf32", "fp8", "int8", "int8 mma", "fp64", "links"} <= told["GH100"].keys()
    assert {"bf16", "fp16", "tf32", "int8", "fp64"} <= told["GA100"].keys()

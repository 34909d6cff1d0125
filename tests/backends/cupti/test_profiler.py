"""The profiler's structures against NVIDIA's headers, its sets of metrics with the real half that needs no device."""

import ctypes
import json
import platform
import sys

import pytest
from support.cupti_releases import EVALUATES, RELEASES, at, fetch_cupti, printed_by

from gpusense._capi import cupti_profiler as capi
from gpusense._capi import nvperf
from gpusense.backends.cupti.counters.metrics import FIELDS

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="the wheels taken are for Linux on x86-64"
)
HEADERS = ("nvperf_host.h", "cupti_target.h", "cupti_profiler_target.h", "cupti_profiler_host.h", "cupti_pmsampling.h",
           "cupti_range_profiler.h")  # fmt: skip
CONSTANTS = {
    "CUPTI_PROFILER_TYPE_RANGE_PROFILER": capi.RANGE_PROFILER,
    "CUPTI_PROFILER_TYPE_PM_SAMPLING": capi.PM_SAMPLING,
    "CUPTI_PM_SAMPLING_TRIGGER_MODE_GPU_TIME_INTERVAL": capi.TIME_INTERVAL,
    "CUPTI_PM_SAMPLING_TRIGGER_MODE_GPU_SYSCLK_INTERVAL": capi.CLOCK_INTERVAL,
    "CUPTI_PM_SAMPLING_DECODE_STOP_REASON_COUNTER_DATA_FULL": capi.DATA_FULL,
    "CUPTI_PM_SAMPLING_DECODE_STOP_REASON_END_OF_RECORDS": capi.END_OF_RECORDS,
    "CUPTI_PM_SAMPLING_HARDWARE_BUFFER_APPEND_MODE_KEEP_OLDEST": capi.KEEP_OLDEST,
    "CUPTI_UserRange": capi.USER_RANGE,
    "CUPTI_UserReplay": capi.USER_REPLAY,
}


@pytest.mark.parametrize("release", [release for release in RELEASES if at(release) >= (12, 6)])
def test_structures_are_those_of_the_vendors_headers(release, wheels, compiler, tmp_path):
    lines, expected = [], []
    unpublished = (nvperf.SCRATCH, nvperf.INITIALIZE)  # tried with the library itself below
    published = [structure for name, structure in nvperf.FUNCTIONS.items() if name not in unpublished]
    for structure in (*capi.FUNCTIONS.values(), *published):
        name = structure.__name__
        lines.append(f'printf("%zu\\n", (size_t){name}_STRUCT_SIZE);')
        expected.append((capi.size(structure),))
        for member, kind in (*capi.Parameters._fields_, *(structure._fields_ or ())):
            lines.append(f'printf("%zu %zu\\n", offsetof({name}, {member}), sizeof((({name} *)0)->{member}));')
            expected.append((getattr(structure, member).offset, ctypes.sizeof(kind)))
    lines.append('printf("%zu %zu\\n", (size_t)NVPW_MetricEvalRequest_STRUCT_SIZE, sizeof(NVPW_MetricEvalRequest));')
    expected.append((nvperf.REQUEST_BYTES, ctypes.sizeof(nvperf.Request)))
    for name, value in CONSTANTS.items():
        lines.append(f'printf("%zu\\n", (size_t){name});')
        expected.append((value,))
    assert printed_by(HEADERS, lines, wheels / release / "include", compiler, tmp_path) == expected


SETS = """
import ctypes, sys
from gpusense._capi import cupti_profiler as capi
from gpusense._capi import nvperf
from gpusense.backends.cupti.counters.metrics import FIELDS
from gpusense._capi.binding import bind, missing
from gpusense._runtime.errors import BackendError
from gpusense.backends.cupti.counters.host import MetricSet, chips, in_one_pass
api = bind(ctypes.CDLL(sys.argv[1]), capi.PROTOTYPES)
assert not missing(api), missing(api)
"""


@pytest.fixture
def evaluating(wheels):
    """Path of the real libcupti that lies beside what evaluates metrics."""
    assert (wheels / EVALUATES / fetch_cupti.EVALUATOR).exists(), "fill the folder again: it lacks the evaluator"
    return str(fetch_cupti.library(wheels / EVALUATES))


def test_every_chip_has_a_set_of_one_pass_whose_names_the_evaluator_knows(evaluating, run_python):
    done = run_python(
        SETS
        + """
import json
from gpusense._runtime.errors import GpuSenseError
from gpusense.backends.cupti.counters.evaluator import Evaluator
from gpusense.backends.cupti.counters.metrics import FIELDS
image, told = capi.image(64), {}
for chip in chips(api):
    found, names = in_one_pass(api, capi.PM_SAMPLING, chip, [names for names, _ in FIELDS.values()])
    if found is not None:
        Evaluator(sys.argv[1], chip, found.metrics, image)
        assert found.passes == 1
        found.close()
    told[chip] = [field for field, name in zip(FIELDS, names) if name is None]
print(json.dumps(told))
""",
        evaluating,
    )
    assert done.returncode == 0, done.stderr
    lacking = json.loads(done.stdout)
    assert lacking.pop("GV100") == lacking.pop("GV11B") == lacking["GH100"] + list(FIELDS), "Volta has no sampler"
    assert lacking["GH100"] == []
    integrated = {"GA10B", "GB10B", "GB20B"}  # without memory and links of their own
    for chip, fields in lacking.items():
        links = {"nvlink_rx_bytes", "nvlink_tx_bytes"}
        memory = {"dram_read_bytes", "dram_write_bytes", "pcie_rx_bytes", "pcie_tx_bytes"}
        allowed = links | (memory if chip in integrated else set())
        allowed |= {"TU": {"tensor_percent"}, "GA": {"copy_engine_percent"}}.get(chip[:2], set())
        allowed |= {"pcie_rx_bytes", "pcie_tx_bytes"} if chip.startswith("GB1") else set()
        assert set(fields) <= allowed, chip


def test_a_set_says_its_passes_and_refuses_what_the_chip_does_not_count(evaluating, run_python):
    done = run_python(
        SETS
        + """
assert {"GH100", "GA100", "TU102", "GB100"} <= set(chips(api))
one = MetricSet(api, capi.PM_SAMPLING, "GH100", ["dram__bytes_read.sum", "sm__cycles_active.avg"])
assert one.passes == 1 and len(one.config) > 1000 and one.metrics == ("dram__bytes_read.sum", "sm__cycles_active.avg")
one.close()
one.close()
tensor = "sm__ops_path_tensor_src_%s.sum"
many = [tensor % kind for kind in ("bf16_dst_fp32", "tf32_dst_fp32", "int8", "fp64")]
assert MetricSet(api, capi.RANGE_PROFILER, "GH100", many).passes > 1
for chip, metric in (("GH100", "dram__bytes_reed.sum"), ("GX999", "dram__bytes_read.sum")):
    try:
        MetricSet(api, capi.PM_SAMPLING, chip, [metric])
    except BackendError as error:
        print(error)
    else:
        raise AssertionError(chip)
wanted = [["dram__bytes_read.sum"], ["nothing.sum", "sm__cycles_active.avg"], ["nothing.sum"]]
found, names = in_one_pass(api, capi.PM_SAMPLING, "GH100", wanted)
assert names == ("dram__bytes_read.sum", "sm__cycles_active.avg", None) and found.metrics == names[:2]
assert in_one_pass(api, capi.PM_SAMPLING, "GH100", [["nothing.sum"]]) == (None, (None,))
""",
        evaluating,
    )
    assert done.returncode == 0, done.stderr
    assert "cuptiProfilerHostConfigAddMetrics: INVALID_PARAMETER" in done.stdout
    assert "INVALID_CHIP_NAME" in done.stdout

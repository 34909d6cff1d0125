"""Kinds on request, end to end on scripted libraries: what is on, what it tells, and that nothing is on unasked."""

import json
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fake is an ELF library")

PROGRAM = """
import ctypes, io, json, os, struct, sys, time
driver = ctypes.CDLL(os.environ["GPUSENSE_LIBCUDA"])
driver.cuInit(0)
driver.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), 0)
import gpusense
from gpusense.analysis.memory import alive, out_of_memory
gpusense.configure(kinds=tuple(json.loads(sys.argv[1])))
gpusense.enable()
tracer = gpusense.get_tracer()
while tracer.recorder.marker is None:
    with gpusense.trace("waiting"):
        time.sleep(0.005)
cupti = ctypes.CDLL(os.environ["GPUSENSE_LIBCUPTI"])
def memory(operation, address, size):
    record = bytearray(128)
    number, now = driver.fake_cuda_count_call(), time.time_ns()
    struct.pack_into("<IIIIQQQ", record, 0, 49, operation, 3, number, address, size, now)
    struct.pack_into("<IIII", record, 48, os.getpid(), 0, 1, 7)
    cupti.fake_cupti_raw(bytes(record), len(record))
def counter(number, value):
    record = bytearray(104)
    now = time.time_ns()
    struct.pack_into("<IIQQQ", record, 0, 25, number, value, now, now + 500)
    cupti.fake_cupti_raw(bytes(record), len(record))
class OutOfMemoryError(Exception): pass
wanted = json.loads(sys.argv[1])
with gpusense.trace("model"):
    if "allocation" in wanted:
        for i in range(4):
            memory(1, 0x1000 * (i + 1), 1000)
        memory(2, 0x1000, 1000)
try:
    with gpusense.trace("step"):
        if "allocation" in wanted:
            memory(1, 0x9000, 5000)
        if "unified_memory" in wanted:
            counter(1, 4096)
            counter(4, 7)
        if "launch" in wanted:
            api = struct.pack("<IIQQIIII", 4, 307, time.time_ns(), time.time_ns() + 4000, 1, 0,
                              driver.fake_cuda_count_call(), 0)
            cupti.fake_cupti_raw(api, len(api))
        cupti.fake_cupti_sync(3, 1, 7, driver.fake_cuda_count_call())
        raise OutOfMemoryError
except OutOfMemoryError:
    pass
session = tracer.session()
summary = tracer.summary()
text = io.StringIO()
tracer.print_summary(text)
step, model = summary.operation("step"), summary.operation("model")
print(json.dumps({
    "enabled": [kind for kind in range(64) if cupti.fake_cupti_enabled(kind)],
    "rows": [[a.kind, a.name, list(a.path), a.count, a.bytes] for a in session.aggregates],
    "allocations": len(session.allocations),
    "model": [model.memory_allocated_bytes, model.memory_peak_bytes],
    "reasons": dict(step.reasons), "wait": step.wait_ns, "text": text.getvalue(),
    "alive": [
        [list(block.path), [list(map(str, row)) for row in alive(session, block.end_ns)]]
        for block in out_of_memory(session)
    ],
    "counters": session.counters._asdict(),
}))
"""


@pytest.fixture
def program(answer):
    def run(*kinds):
        facts = answer(PROGRAM, json.dumps(kinds))
        counted = facts["counters"]
        assert counted["seen"] == sum(counted[name] for name in ("kept", "aggregated", "invalid", "pre_session"))
        return facts

    return run


def test_nothing_is_on_unasked(program):
    facts = program()
    assert facts["enabled"] == [1, 2, 10, 22]
    assert facts["model"] == [None, None]
    assert facts["wait"] is None
    assert set(facts["reasons"]) == {"wait_ns", "cpu_ns", "device_ns", "memory_peak_bytes"}


def test_waits(program):
    facts = program("sync")
    assert facts["enabled"] == [1, 2, 10, 22, 38]
    assert facts["wait"] == 2000


def test_allocations_by_block_and_what_was_alive_when_memory_ran_out(program):
    facts = program("allocation")
    assert 49 in facts["enabled"]
    assert facts["allocations"] == 6
    assert facts["model"] == [4000, 4000]
    ((path, left),) = facts["alive"]
    assert path == ["step"]
    assert [row[1:] for row in left] == [["1", "5000"], ["3", "3000"]]
    assert "step ended for lack of memory" in facts["text"]


def test_unified_memory(program):
    facts = program("unified_memory")
    assert 25 in facts["enabled"]
    rows = [row for row in facts["rows"] if row[0] == "unified_memory"]
    assert sorted(rows) == [
        ["unified_memory", "bytes_cpu_to_gpu", [], 1, 4096],
        ["unified_memory", "gpu_page_faults", [], 7, 0],
    ]


def test_calls_that_launch(program):
    facts = program("launch")
    assert facts["enabled"] == [1, 2, 4, 10, 22]
    assert ["launch", "cuLaunchKernel", ["step"], 1, 0] in facts["rows"]

"""The real libcupti as an oracle: its walk over fabricated buffers, its headers, what it answers without a driver.

Set GPUSENSE_TEST_CUPTI to a folder filled by tests/tools/fetch_cupti.py; in CI it is filled here.
"""

import json
import platform
import random
import struct
import sys

import pytest
from support.cupti_releases import RELEASES, WITH_HEADERS, at, fetch_cupti, printed_by

from gpusense._capi import cupti as capi
from gpusense._capi import cupti_waits
from gpusense._decode import layouts
from gpusense._decode.columns import Piece
from gpusense._decode.walk import batches, walk
from gpusense.backends.cupti.sync_lines import code as lines_code

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="the wheels taken are for Linux on x86-64"
)


@pytest.fixture(params=RELEASES)
def release(request, wheels):
    assert fetch_cupti.library(wheels / request.param), f"no libcupti {request.param} in {wheels}"
    return request.param


@pytest.fixture(params=WITH_HEADERS)
def include(request, wheels):
    """A release and the folder of its headers."""
    folder = wheels / request.param / "include"
    assert folder.exists(), f"fill the folder again: it lacks {request.param}"
    return request.param, folder


def sizes_of(release):
    """Stride by kind, as our tables have it for a release."""
    return {
        kind: [size for since, size in layout.sizes if at(since) <= at(release)][-1]
        for kind, layout in layouts.LAYOUTS.items()
    }


ORACLE = """
import ctypes, json, sys
from gpusense._capi import cupti as capi
from gpusense._capi.binding import bind
from gpusense.backends.cupti import engine
api = bind(ctypes.CDLL(sys.argv[1]), capi.PROTOTYPES)
steps = []
data = open(sys.argv[2], "rb").read()
buffer = ctypes.create_string_buffer(data, len(data))
record = ctypes.c_void_p()
base = ctypes.addressof(buffer)
while True:
    code = api.cuptiActivityGetNextRecord(base, len(data), ctypes.byref(record))
    if code:
        break
    steps.append(record.value - base)
lacking = [name for name in capi.REQUIRED if not getattr(api, name)]
print(json.dumps({"strides": engine.measure_strides(api), "steps": steps, "end": code, "lacking": lacking,
                  "version": engine.version(api), "time": engine.timestamp_ns(api)}))
"""


@pytest.fixture
def ask(run_python, wheels, tmp_path):
    """What the real library of a release makes of a buffer."""

    def walk(release, data=b""):
        path = tmp_path / "buffer.bin"
        path.write_bytes(data)
        done = run_python(ORACLE, str(fetch_cupti.library(wheels / release)), str(path), timeout=60)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return walk


def test_measured_strides_are_those_of_our_tables(ask, release):
    answer = ask(release)
    assert {int(kind): size for kind, size in answer["strides"].items()} == sizes_of(release)
    assert answer["lacking"] == []
    assert answer["time"] > 1_700_000_000 * 10**9


def fabricate(strides, seed, tail=b""):
    source = random.Random(seed)
    parts = []
    for _ in range(300):
        kind = source.choice(list(strides))
        run = range(source.choice([1, 1, 2, 5, 60]))
        parts += [struct.pack("<I", kind) + source.randbytes(strides[kind] - 4) for _ in run]
    return b"".join(parts) + tail


@pytest.mark.parametrize(
    ("tail", "end"), [(b"", "whole"), (struct.pack("<I", 10) + bytes(60), "truncated"), (bytes(64), "unknown")]
)
def test_the_library_and_the_decoder_walk_alike(ask, release, tail, end):
    strides = sizes_of(release)
    data = fabricate(strides, seed=release + end, tail=tail)
    answer = ask(release, data)
    offsets = []
    at_byte = 0
    while at_byte < len(data):
        piece = Piece(memoryview(data)[at_byte:])
        for kind, place in walk(piece, strides, 700)[0].items():
            for first, last in zip(place.begins, place.ends, strict=True):
                offsets += range(at_byte + first * 4, at_byte + last * 4, strides[kind])
        piece.close()
        _, tally = batches(memoryview(data), strides, offset=at_byte, limit=700)
        at_byte = tally.offset
    assert sorted(offsets) == answer["steps"]
    assert (tally.unknown_kinds, tally.truncated) == {"whole": (0, 0), "truncated": (0, 1), "unknown": (1, 0)}[end]
    # 12: the end; 21: a kind it does not know, for which 11.7 says 999.
    assert answer["end"] in ({12} if end != "unknown" else {21, 999})


NAMES = """
import ctypes, json, sys
from gpusense._capi import cupti as capi
from gpusense._capi import cupti_waits
from gpusense._capi.binding import bind
api = bind(ctypes.CDLL(sys.argv[1]), capi.PROTOTYPES)
found = []
for domain, number in cupti_waits.CALLS:
    name = ctypes.c_char_p()
    code = api.cuptiGetCallbackName(domain, number, ctypes.byref(name))
    found.append([domain, number, name.value.decode() if code == 0 else None])
print(json.dumps(found))
"""


def test_ids_of_functions_that_wait_are_those_of_the_library(release, wheels, run_python):
    done = run_python(NAMES, str(fetch_cupti.library(wheels / release)))
    assert done.returncode == 0, done.stderr
    tables = {cupti_waits.DOMAIN_DRIVER: cupti_waits.DRIVER, cupti_waits.DOMAIN_RUNTIME: cupti_waits.RUNTIME}
    for domain, number, name in json.loads(done.stdout):
        known = at(release) >= at(cupti_waits.SINCE.get((domain, number), "11.7"))
        assert name == (tables[domain][number] if known else None)


# --- the vendor's headers -------------------------------------------------------------------------------------------

# Struct of each record by the release that introduced it, and the vendor's member for each of our fields.
VENDOR = {
    layouts.CONCURRENT_KERNEL: (
        {
            "11.7": "Kernel7",
            "11.8": "Kernel8",
            "12.0": "Kernel9",
            "13.0": "Kernel10",
            "13.1": "Kernel11",
            "13.3": "Kernel12",
            "13.4": "Kernel13",
        },
        """kind registersPerThread start end deviceId contextId streamId gridX gridY gridZ blockX blockY blockZ
        staticSharedMemory dynamicSharedMemory localMemoryPerThread correlationId name queued submitted graphNodeId
        graphId clusterX clusterY clusterZ priority sourceGraphId sourceGraphNodeId""",
    ),
    layouts.MEMCPY: (
        {"11.7": "Memcpy5", "12.8": "Memcpy6", "13.4": "Memcpy7"},
        """kind copyKind srcKind dstKind bytes start end deviceId contextId streamId correlationId graphNodeId graphId
        copyCount sourceGraphId sourceGraphNodeId""",
    ),
    layouts.MEMCPY2: (
        {"11.7": "MemcpyPtoP4"},
        """kind copyKind srcKind dstKind bytes start end deviceId contextId streamId srcDeviceId dstDeviceId
        correlationId graphNodeId graphId""",
    ),
    layouts.MEMSET: (
        {"11.7": "Memset4", "13.4": "Memset5"},
        """kind value bytes start end deviceId contextId streamId correlationId memoryKind graphNodeId graphId
        sourceGraphId sourceGraphNodeId""",
    ),
    layouts.SYNCHRONIZATION: (
        {"11.7": "Synchronization", "12.8": "Synchronization2"},
        "kind type start end correlationId contextId streamId cudaEventId cudaEventSyncId returnValue",
    ),
    layouts.MEMORY2: (
        {"11.7": "Memory3", "12.6": "Memory4"},
        """kind memoryOperationType memoryKind correlationId address bytes timestamp processId deviceId contextId
        streamId name isAsync memoryPoolConfig.memoryPoolType memoryPoolConfig.address memoryPoolConfig.utilizedSize
        source""",
    ),
    layouts.EXTERNAL_CORRELATION: ({"11.7": "ExternalCorrelation"}, "kind externalKind externalId correlationId"),
    layouts.RUNTIME: ({"11.7": "API"}, "kind cbid start end processId threadId correlationId returnValue"),
    layouts.OVERHEAD: (
        {"11.7": "Overhead", "12.3": "Overhead2", "12.4": "Overhead3"},
        "kind overheadKind objectKind objectId.pt.processId objectId.pt.threadId start end correlationId",
    ),
    layouts.UNIFIED_MEMORY_COUNTER: (
        {"11.7": "UnifiedMemoryCounter2", "12.8": "UnifiedMemoryCounter3"},
        "kind counterKind value start end address srcId dstId streamId processId flags",
    ),
    layouts.DEVICE: (
        {"11.7": "Device4", "12.2": "Device5", "13.2": "Device6"},
        """kind flags globalMemoryBandwidth globalMemorySize coreClockRate numMemcpyEngines numMultiprocessors
        maxWarpsPerMultiprocessor maxBlocksPerMultiprocessor maxSharedMemoryPerMultiprocessor
        maxRegistersPerMultiprocessor computeCapabilityMajor computeCapabilityMinor id uuid name isCudaVisible
        isMigEnabled gpuInstanceId computeInstanceId migUuid""",
    ),
    layouts.CONTEXT: (
        {"11.7": "Context", "12.4": "Context2", "12.5": "Context3", "13.1": "Context4"},
        "kind contextId deviceId nullStreamId parentContextId isGreenContext processId",
    ),
}


def test_offsets_and_sizes_are_those_of_the_vendors_headers(include, compiler, tmp_path):
    release, folder = include
    lines, expected = [], []
    for kind, (structs, members) in VENDOR.items():
        layout = layouts.LAYOUTS[kind]
        struct_name = "CUpti_Activity" + [name for since, name in structs.items() if at(since) <= at(release)][-1]
        lines.append(f'printf("%zu 0\\n", sizeof({struct_name}));')
        expected.append((sizes_of(release)[kind], 0))
        for field, member in zip(layout.fields, members.split(), strict=True):
            if not field.since or at(field.since) <= at(release):
                size = f"sizeof((({struct_name} *)0)->{member})"
                lines.append(f'printf("%zu %zu\\n", offsetof({struct_name}, {member}), {size});')
                expected.append((field.offset, field.end - field.offset))
    constants = {
        "CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL": layouts.CONCURRENT_KERNEL,
        "CUPTI_ACTIVITY_KIND_MEMCPY": layouts.MEMCPY,
        "CUPTI_ACTIVITY_KIND_MEMCPY2": layouts.MEMCPY2,
        "CUPTI_ACTIVITY_KIND_MEMSET": layouts.MEMSET,
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": layouts.SYNCHRONIZATION,
        "CUPTI_ACTIVITY_KIND_MEMORY2": layouts.MEMORY2,
        "CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION": layouts.EXTERNAL_CORRELATION,
        "CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY_COUNTER": layouts.UNIFIED_MEMORY_COUNTER,
        "CUPTI_ACTIVITY_MEMCPY_KIND_PTOP": layouts.COPY_PEER,
        "CUPTI_ACTIVITY_MEMORY_KIND_MANAGED_STATIC": max(layouts.MEMORY_KINDS),
        "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_CONTEXT_SYNCHRONIZE": layouts.CONTEXT_SYNCHRONIZE,
        "CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_RELEASE": layouts.RELEASE,
        "CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM2": layouts.EXTERNAL_CUSTOM2,
        "CUPTI_SYNCHRONIZATION_INVALID_VALUE": layouts.NOT_APPLICABLE,
    }
    for name, value in constants.items():
        lines.append(f'printf("%zu 0\\n", (size_t)(uint32_t){name});')
        expected.append((value, 0))
    printed = printed_by(["cupti_activity.h"], lines, folder, compiler, tmp_path)
    assert printed == expected


def test_hardware_events_are_asked_for_as_the_vendors_headers_have_it(wheels, compiler, tmp_path):
    (release,) = fetch_cupti.LATER
    words = (
        "__builtin_types_compatible_p(__typeof__(cuptiActivityEnableHWTrace), CUptiResult(uint8_t))",
        "CUPTI_API_VERSION",
        f"CUPTI_ERROR_{capi.RESULTS[47][0]}",
    )
    lines = [f'printf("%d\\n", (int){word});' for word in words]
    headers = ["cupti_activity.h", "cupti_version.h"]
    printed = printed_by(headers, lines, wheels / release / "include", compiler, tmp_path)
    assert printed == [(1,), (capi.VERSION_BEARS_EVENTS,), (47,)]


def test_what_a_callback_reads_is_where_the_vendors_header_has_it(include, compiler, tmp_path):
    members = {"callbackSite": (lines_code.CALL_SITE, 4), "correlationId": (lines_code.CALL_CORRELATION, 4)}
    constants = {
        "CUPTI_API_ENTER": lines_code.ENTER,
        "CUPTI_CB_DOMAIN_DRIVER_API": cupti_waits.DOMAIN_DRIVER,
        "CUPTI_CB_DOMAIN_RUNTIME_API": cupti_waits.DOMAIN_RUNTIME,
    }
    lines = [
        f'printf("%zu %zu\\n", offsetof(CUpti_CallbackData, {name}), sizeof(((CUpti_CallbackData *)0)->{name}));'
        for name in members
    ]
    lines += [f'printf("%zu 0\\n", (size_t){name});' for name in constants]
    printed = printed_by(["cupti_callbacks.h"], lines, include[1], compiler, tmp_path)
    expected = [*members.values(), *((value, 0) for value in constants.values())]
    assert printed == expected

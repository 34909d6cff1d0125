"""NVML's struct layouts and constants as this package has them, against C: our own text always, NVIDIA's headers where
an ``nvidia-nvml-dev`` wheel is installed."""

import glob
import os
import re
import struct
import subprocess
import sys
import sysconfig

import pytest

from gpusense._capi import nvml as c

#: struct name → (our format, versioned struct constant, members in the order of the format)
STRUCTS = {
    "nvmlMemory_t": (c.MEMORY, None, ("total", "free", "used")),
    "nvmlMemory_v2_t": (c.MEMORY_V2, c.VERSION_MEMORY_V2, ("version", "total", "reserved", "free", "used")),
    "nvmlUtilization_t": (c.UTILIZATION, None, ("gpu", "memory")),
    "nvmlProcessInfo_v2_t": (c.PROCESS, None, ("pid", "usedGpuMemory", "gpuInstanceId", "computeInstanceId")),
    "nvmlProcessInfo_v1_t": (c.PROCESS_V1, None, ("pid", "usedGpuMemory")),
    "nvmlFieldValue_t": (
        c.FIELD_VALUE,
        None,
        ("fieldId", "scopeId", "timestamp", "latencyUsec", "valueType", "nvmlReturn", "value"),
    ),
    "nvmlEventData_t": (
        c.EVENT,
        None,
        ("device", "eventType", "eventData", "gpuInstanceId", "computeInstanceId"),
    ),
    "nvmlProcessUtilizationSample_t": (
        c.PROCESS_SAMPLE,
        None,
        ("pid", "timeStamp", "smUtil", "memUtil", "encUtil", "decUtil"),
    ),
    "nvmlGpmMetric_t": (c.GPM_METRIC, None, ("metricId", "nvmlReturn", "value")),
}
#: Structs that older headers lack.
NEWER = {
    "nvmlTemperature_t": (c.TEMPERATURE_V, c.VERSION_TEMPERATURE, ("version", "sensorType", "temperature")),
    "nvmlMarginTemperature_t": (c.MARGIN, c.VERSION_MARGIN, ("version", "marginTemperature")),
    "nvmlFanSpeedInfo_t": (c.FAN_RPM, c.VERSION_FAN, ("version", "fan", "speed")),
}

#: The same layouts written down independently, for machines without NVIDIA's header.
OWN = """
#include <stdint.h>
typedef struct { unsigned long long total, free, used; } nvmlMemory_t;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } nvmlMemory_v2_t;
typedef struct { unsigned gpu, memory; } nvmlUtilization_t;
typedef struct { unsigned pid; unsigned long long usedGpuMemory; unsigned gpuInstanceId, computeInstanceId; }
    nvmlProcessInfo_v2_t;
typedef struct { unsigned pid; unsigned long long usedGpuMemory; } nvmlProcessInfo_v1_t;
typedef struct { unsigned fieldId, scopeId; long long timestamp, latencyUsec; unsigned valueType; int nvmlReturn;
    union { double d; unsigned long long u; } value; } nvmlFieldValue_t;
typedef struct { void *device; unsigned long long eventType, eventData; unsigned gpuInstanceId, computeInstanceId; }
    nvmlEventData_t;
typedef struct { unsigned pid; unsigned long long timeStamp; unsigned smUtil, memUtil, encUtil, decUtil; }
    nvmlProcessUtilizationSample_t;
typedef struct { unsigned metricId; int nvmlReturn; double value; struct { char *a, *b, *c; } metricInfo; }
    nvmlGpmMetric_t;
typedef struct { unsigned version; int sensorType; int temperature; } nvmlTemperature_t;
typedef struct { unsigned version; int marginTemperature; } nvmlMarginTemperature_t;
typedef struct { unsigned version, fan, speed; } nvmlFanSpeedInfo_t;
"""


def offsets(layout: str) -> list[tuple[int, int]]:
    """(offset, size) of every member of a ``struct`` format that begins with "<"."""
    places, at = [], 0
    for count, kind in re.findall(r"(\d*)([a-zA-Z])", layout):
        repeat, size = int(count or 1), struct.calcsize(f"<{kind}")
        if kind in "sx":  # one member, or padding, of so many bytes
            repeat, size = 1, repeat
        if kind != "x":
            places.extend((at + place * size, size) for place in range(repeat))
        at += repeat * size
    return places


def measure(compiler, tmp_path, text: str, structs, *flags: str) -> dict[str, list[int]]:
    """What the C compiler makes of each struct: its size, then the offset and size of every member."""
    lines = ["#include <stddef.h>", "#include <stdio.h>", text, "int main(void) {"]
    for name, (_, _, members) in structs.items():
        lines.append(f'printf("{name} %zu", sizeof({name}));')
        lines.extend(
            f'printf(" %zu %zu", offsetof({name}, {member}), sizeof((({name} *)0)->{member}));' for member in members
        )
        lines.append('printf("\\n");')
    source, program = tmp_path / "layout.c", tmp_path / "layout"
    source.write_text("\n".join([*lines, "return 0; }"]))
    subprocess.run([*compiler, "-o", str(program), str(source), *flags], check=True, capture_output=True, timeout=120)
    out = subprocess.run([str(program)], check=True, capture_output=True, text=True, timeout=20).stdout
    return {name: list(map(int, numbers)) for name, *numbers in map(str.split, out.splitlines())}


def compare(measured: dict[str, list[int]], structs) -> None:
    for name, (layout, version, _) in structs.items():
        size, *members = measured[name]
        pairs = list(zip(members[::2], members[1::2], strict=True))
        assert offsets(layout) == pairs, name
        assert struct.calcsize(layout) <= size <= struct.calcsize(layout) + 4, name  # C pads the end
        if version is not None:
            assert version & 0xFFFFFF == size, name


def test_offsets_against_our_own_c(compiler, tmp_path):
    every = {**STRUCTS, **NEWER}
    compare(measure(compiler, tmp_path, OWN, every), every)


def headers() -> list[str]:
    roots = {sysconfig.get_paths()["purelib"], *filter(None, os.environ.get("NVML_HEADERS", "").split(os.pathsep))}
    return sorted(path for root in roots for path in glob.glob(f"{root}/**/nvml.h", recursive=True))


@pytest.mark.skipif(not headers(), reason="no nvidia-nvml-dev wheel here (pip install nvidia-nvml-dev-cu12)")
@pytest.mark.parametrize("header", headers())
def test_offsets_and_constants_against_nvidias_header(compiler, tmp_path, header):
    with open(header, encoding="utf-8", errors="replace") as file:
        text = file.read()
    every = {**STRUCTS, **{name: row for name, row in NEWER.items() if re.search(rf"\b{name}\b", text)}}
    if "nvmlGpmMetric_t" not in text:
        del every["nvmlGpmMetric_t"]
    compare(measure(compiler, tmp_path, f'#include "{header}"', every), every)
    for name, ours in FIELD_IDS.items():
        found = re.search(rf"#define\s+{name}\s+(\d+)", text)
        assert found is None or int(found[1]) == ours, name
    for code, name in c.CODES.items():
        found = re.search(rf"NVML_(?:ERROR_)?{name}\s*=\s*(\d+)", text)
        assert found is None or int(found[1]) == code, name


FIELD_IDS = {
    "NVML_FI_DEV_MEMORY_TEMP": c.FIELD_MEMORY_TEMPERATURE,
    "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX": c.FIELD_NVLINK_TX_KIB,
    "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX": c.FIELD_NVLINK_RX_KIB,
    "NVML_FI_DEV_POWER_AVERAGE": c.FIELD_POWER_AVERAGE,
    "NVML_FI_DEV_POWER_INSTANT": c.FIELD_POWER_INSTANT,
    "NVML_FI_DEV_PCIE_COUNT_TX_BYTES": c.FIELD_PCIE_TX,
    "NVML_FI_DEV_PCIE_COUNT_RX_BYTES": c.FIELD_PCIE_RX,
}


def test_no_field_id_that_moved_between_releases_is_used():
    assert all(number <= 198 for number in FIELD_IDS.values())
    assert sys.byteorder == "little"

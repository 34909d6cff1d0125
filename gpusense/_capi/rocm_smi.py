"""Prototypes, codes and layouts of librocm_smi64, ROCm 5.0 to 7."""

import ctypes
from ctypes import POINTER, c_char_p, c_float, c_int, c_int64, c_size_t, c_uint16, c_uint32, c_uint64, c_void_p

from .binding import prototypes

ROCM_SMI = prototypes(
    rsmi_init=(c_int, c_uint64),
    rsmi_version_get=(c_int, c_void_p),
    rsmi_num_monitor_devices=(c_int, POINTER(c_uint32)),
    rsmi_dev_pci_id_get=(c_int, c_uint32, POINTER(c_uint64)),
    rsmi_dev_id_get=(c_int, c_uint32, POINTER(c_uint16)),
    rsmi_dev_name_get=(c_int, c_uint32, c_char_p, c_size_t),
    rsmi_dev_unique_id_get=(c_int, c_uint32, POINTER(c_uint64)),
    rsmi_dev_busy_percent_get=(c_int, c_uint32, POINTER(c_uint32)),
    rsmi_dev_memory_busy_percent_get=(c_int, c_uint32, POINTER(c_uint32)),
    rsmi_dev_memory_total_get=(c_int, c_uint32, c_int, POINTER(c_uint64)),
    rsmi_dev_memory_usage_get=(c_int, c_uint32, c_int, POINTER(c_uint64)),
    rsmi_dev_temp_metric_get=(c_int, c_uint32, c_uint32, c_int, POINTER(c_int64)),
    rsmi_dev_power_get=(c_int, c_uint32, POINTER(c_uint64), POINTER(c_int)),  # since 6.0
    rsmi_dev_power_ave_get=(c_int, c_uint32, c_uint32, POINTER(c_uint64)),
    rsmi_dev_power_cap_get=(c_int, c_uint32, c_uint32, POINTER(c_uint64)),
    rsmi_dev_energy_count_get=(c_int, c_uint32, POINTER(c_uint64), POINTER(c_float), POINTER(c_uint64)),
    rsmi_dev_gpu_clk_freq_get=(c_int, c_uint32, c_int, c_void_p),
    rsmi_dev_fan_rpms_get=(c_int, c_uint32, c_uint32, POINTER(c_int64)),
    rsmi_dev_fan_speed_get=(c_int, c_uint32, c_uint32, POINTER(c_int64)),
    rsmi_dev_fan_speed_max_get=(c_int, c_uint32, c_uint32, POINTER(c_uint64)),
    rsmi_dev_pci_bandwidth_get=(c_int, c_uint32, c_void_p),
    rsmi_dev_pci_throughput_get=(c_int, c_uint32, POINTER(c_uint64), POINTER(c_uint64), POINTER(c_uint64)),
    rsmi_dev_pci_replay_counter_get=(c_int, c_uint32, POINTER(c_uint64)),
)

#: ``rsmi_status_t``.
CODES = {
    0: "SUCCESS",
    1: "INVALID_ARGS",
    2: "NOT_SUPPORTED",
    3: "FILE_ERROR",
    4: "PERMISSION",
    5: "OUT_OF_RESOURCES",
    6: "INTERNAL_EXCEPTION",
    7: "INPUT_OUT_OF_BOUNDS",
    8: "INIT_ERROR",
    9: "NOT_YET_IMPLEMENTED",
    10: "NOT_FOUND",
    11: "INSUFFICIENT_SIZE",
    12: "INTERRUPT",
    13: "UNEXPECTED_SIZE",
    14: "NO_DATA",
    15: "UNEXPECTED_DATA",
    16: "BUSY",
    17: "REFCOUNT_OVERFLOW",
    18: "SETTING_UNAVAILABLE",
    19: "AMDGPU_RESTART_ERR",
    20: "DRM_ERROR",
}
#: Codes by which a device refuses: not asked again soon.
REFUSED = (2, 9, 20)
DENIED = 4

MEMORY_VRAM, MEMORY_GTT = 0, 2
SENSOR_EDGE, SENSOR_JUNCTION, SENSOR_MEMORY = 0, 1, 2
TEMPERATURE_CURRENT, TEMPERATURE_CRITICAL, TEMPERATURE_EMERGENCY = 0, 5, 7
CLOCK_SYSTEM, CLOCK_MEMORY = 0, 4
POWER_AVERAGE, POWER_CURRENT = 0, 1

#: Room for every struct of every release: none is larger than 4,544 bytes.
BUFFER_BYTES = 16384


def is_version_6(api: object) -> bool:
    """Whether structs have the layout of ROCm 6 and later.

    ``rsmi_version_get`` says 1.0.0 for most builds; ``rsmi_dev_power_get`` came with exactly the release that changed
    ``rsmi_frequencies_t`` from 264 to 280 bytes.
    """
    return bool(getattr(api, "rsmi_dev_power_get", None))


def frequencies(buffer: bytes, version_6: bool) -> tuple[list[int], int] | str:
    """(hertz of every level, active level) of an ``rsmi_frequencies_t``, or what is wrong with it."""
    count_at, current_at, values_at, most = (4, 8, 16, 33) if version_6 else (0, 4, 8, 32)
    count = int.from_bytes(buffer[count_at : count_at + 4], "little")
    current = int.from_bytes(buffer[current_at : current_at + 4], "little")
    if count > most:
        return f"{count} levels"
    if current >= count:
        return "no active level"
    values = [int.from_bytes(buffer[at : at + 8], "little") for at in range(values_at, values_at + 8 * count, 8)]
    return values, current


def lanes(buffer: bytes, version_6: bool, level: int) -> int:
    """PCIe lanes of ``level`` of an ``rsmi_pcie_bandwidth_t``."""
    start = (280 if version_6 else 264) + 4 * level
    return int.from_bytes(buffer[start : start + 4], "little")


def version_text(buffer: bytes) -> str:
    """ "1.0.0" from an ``rsmi_version_t``."""
    return ".".join(str(int.from_bytes(buffer[at : at + 4], "little")) for at in (0, 4, 8))


def pci_address(bdf: int) -> str:
    """ "0000:03:00.0" from a ``bdfid``. Bits 28–31 hold the partition of a divided MI300 and are left out."""
    return f"{bdf >> 32 & 0xFFFF:04x}:{bdf >> 8 & 0xFF:02x}:{bdf >> 3 & 0x1F:02x}.{bdf & 7}"


def new_buffer() -> "ctypes.Array[ctypes.c_char]":
    return ctypes.create_string_buffer(BUFFER_BYTES)

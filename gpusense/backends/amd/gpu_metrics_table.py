"""Decodes amdgpu's ``gpu_metrics`` bytes (v1.0–v1.9, v2.0–v2.4, v3.0) into one shape. Pure: bytes in, values out.

Layouts are those of the kernel's ``kgd_pp_interface.h``; only the members read here are listed, by offset. All bits set
means "not available" in every table and becomes None. A table is recognised by its revision and must be at least as
long as what is read from it; anything else is an error text, never a guess.
"""

import struct
from typing import NamedTuple

#: Bits of ``indep_throttle_status``, the throttle word that means the same on every card.
THROTTLE_BITS = {
    0: "power_limit",
    1: "power_limit_1",
    2: "power_limit_2",
    3: "power_limit_3",
    4: "sustained_power_limit",
    5: "fast_power_limit",
    6: "slow_power_limit",
    7: "apu_power_limit",
    16: "current_gfx",
    17: "current_soc",
    18: "current_memory",
    19: "current_vdd",
    20: "current_cvip",
    21: "peak_current_cpu",
    22: "peak_current_gfx",
    23: "peak_current_control",
    32: "temperature_gpu",
    33: "temperature_core",
    34: "temperature_memory",
    35: "temperature_edge",
    36: "temperature_hotspot",
    37: "temperature_soc",
    38: "temperature_vr_gfx",
    39: "temperature_vr_soc",
    40: "temperature_vr_memory_0",
    41: "temperature_vr_memory_1",
    42: "temperature_liquid_0",
    43: "temperature_liquid_1",
    44: "vr_hot_0",
    45: "vr_hot_1",
    46: "processor_hot_cpu",
    47: "processor_hot_gfx",
    56: "power_budget_manager",
    57: "reliability_limit",
}


class GpuMetricsTable(NamedTuple):
    """One table in common units; None is "this table has no such member" or "the firmware does not fill it"."""

    revision: str  # "1.3"
    integrated: bool | None = None
    edge_celsius: float | None = None
    hotspot_celsius: float | None = None
    memory_celsius: float | None = None
    gfx_percent: float | None = None
    memory_controller_percent: float | None = None
    media_percent: float | None = None  # video engines, encoding and decoding together
    average_watts: float | None = None
    current_watts: float | None = None
    energy_joules: float | None = None
    energy_counter: int | None = None  # the same as counted; its unit differs between cards with v1.0–v1.3
    clock_ns: int | None = None  # time stamp of the driver, nanoseconds since boot
    graphics_mhz: float | None = None
    memory_mhz: float | None = None
    video_mhz: float | None = None
    throttle_reasons: tuple[str, ...] | None = None


class _Units(NamedTuple):
    celsius: float
    percent: float
    watts: float
    joules: float | None  # None: the counter's unit differs between cards of this revision


_DISCRETE = _Units(1.0, 1.0, 1.0, None)
_INSTINCT = _Units(1.0, 1.0, 1.0, 2.0**-16)
_APU = _Units(0.01, 0.01, 0.001, None)
_APU_3 = _Units(0.01, 1.0, 0.001, None)

_Layout = dict[str, tuple[int, str]]

_V1_0: _Layout = {
    "clock": (8, "Q"), "edge": (16, "H"), "hotspot": (18, "H"), "memory": (20, "H"), "gfx": (28, "H"),
    "controller": (30, "H"), "media": (32, "H"), "average_power": (34, "H"), "energy": (36, "I"),
    "average_gfxclk": (40, "H"), "average_uclk": (44, "H"), "average_vclk": (46, "H"), "gfxclk": (54, "H"),
    "uclk": (58, "H"), "vclk": (60, "H"),
}  # fmt: skip
_V1_1: _Layout = {
    "edge": (4, "H"), "hotspot": (6, "H"), "memory": (8, "H"), "gfx": (16, "H"), "controller": (18, "H"),
    "media": (20, "H"), "average_power": (22, "H"), "energy": (24, "Q"), "clock": (32, "Q"),
    "average_gfxclk": (40, "H"), "average_uclk": (44, "H"), "average_vclk": (46, "H"), "gfxclk": (54, "H"),
    "uclk": (58, "H"), "vclk": (60, "H"),
}  # fmt: skip
_V1_3: _Layout = {**_V1_1, "throttle": (112, "Q")}
_V1_HEAD: _Layout = {
    "hotspot": (4, "H"), "memory": (6, "H"), "current_power": (10, "H"), "gfx": (12, "H"), "controller": (14, "H"),
}  # fmt: skip
_V1_4: _Layout = {
    **_V1_HEAD, "media": (16, "4H"), "energy": (24, "Q"), "clock": (32, "Q"),
    "gfxclk": (240, "8H"), "vclk": (264, "4H"), "uclk": (280, "H"),
}  # fmt: skip
_V1_5: _Layout = {
    **_V1_HEAD, "media": (16, "4H"), "energy": (88, "Q"), "clock": (96, "Q"),
    "gfxclk": (312, "8H"), "vclk": (336, "4H"), "uclk": (352, "H"),
}  # fmt: skip
_V1_6: _Layout = {
    **_V1_HEAD, "energy": (16, "Q"), "clock": (24, "Q"),
    "gfxclk": (264, "8H"), "vclk": (288, "4H"), "uclk": (304, "H"),
}  # fmt: skip
_V1_7: _Layout = {
    **_V1_HEAD, "energy": (24, "Q"), "clock": (32, "Q"),
    "gfxclk": (296, "8H"), "vclk": (320, "4H"), "uclk": (336, "H"),
}  # fmt: skip
_V2_0: _Layout = {
    "clock": (8, "Q"), "edge": (16, "H"), "gfx": (40, "H"), "media": (42, "H"), "average_power": (44, "H"),
    "average_gfxclk": (68, "H"), "average_uclk": (72, "H"), "average_vclk": (76, "H"), "gfxclk": (80, "H"),
    "uclk": (84, "H"), "vclk": (88, "H"),
}  # fmt: skip
_V2_1: _Layout = {
    "edge": (4, "H"), "gfx": (28, "H"), "media": (30, "H"), "clock": (32, "Q"), "average_power": (40, "H"),
    "average_gfxclk": (64, "H"), "average_uclk": (68, "H"), "average_vclk": (72, "H"), "gfxclk": (76, "H"),
    "uclk": (80, "H"), "vclk": (84, "H"),
}  # fmt: skip
_V2_2: _Layout = {**_V2_1, "throttle": (120, "Q")}
_V3_0: _Layout = {
    "edge": (4, "H"), "gfx": (42, "H"), "media": (44, "H"), "clock": (104, "Q"), "average_power": (112, "I"),
    "average_gfxclk": (174, "H"), "average_vclk": (184, "H"), "average_uclk": (186, "H"),
}  # fmt: skip

LAYOUTS: dict[tuple[int, int], tuple[_Layout, _Units]] = {
    (1, 0): (_V1_0, _DISCRETE), (1, 1): (_V1_1, _DISCRETE), (1, 2): (_V1_1, _DISCRETE), (1, 3): (_V1_3, _DISCRETE),
    (1, 4): (_V1_4, _INSTINCT), (1, 5): (_V1_5, _INSTINCT), (1, 6): (_V1_6, _INSTINCT), (1, 7): (_V1_7, _INSTINCT),
    (1, 8): (_V1_7, _INSTINCT),
    (2, 0): (_V2_0, _APU), (2, 1): (_V2_1, _APU), (2, 2): (_V2_2, _APU), (2, 3): (_V2_2, _APU), (2, 4): (_V2_2, _APU),
    (3, 0): (_V3_0, _APU_3),
}  # fmt: skip

#: v1.9 describes itself: each value follows a word holding unit, type, id and count. Ids we read, by our name.
ATTRIBUTES = {
    0: "hotspot", 1: "memory", 3: "current_power", 4: "gfx", 5: "controller", 7: "energy", 8: "clock", 33: "gfxclk",
    35: "vclk", 37: "uclk", 42: "media",
}  # fmt: skip
_TYPES = "BbHhIiQq"


def decode(data: bytes) -> GpuMetricsTable | str:
    """The table in ``data``, or a sentence saying why it cannot be read."""
    if len(data) < 4:
        return f"gpu_metrics holds {len(data)} bytes, too few for its header"
    size, major, minor = struct.unpack_from("<HBB", data)
    if size > len(data):
        return f"gpu_metrics v{major}.{minor} announces {size} bytes and holds {len(data)}"
    if (major, minor) == (1, 9):
        described = _described(data[:size])
        return described if isinstance(described, str) else _table("1.9", described, _INSTINCT, False)
    known = LAYOUTS.get((major, minor))
    if known is None:
        return f"gpu_metrics v{major}.{minor} is not known"
    layout, units = known
    values: dict[str, tuple[int, ...]] = {}
    for name, (offset, code) in layout.items():
        if offset + struct.calcsize("<" + code) > size:
            return f"gpu_metrics v{major}.{minor} has {size} bytes, too few for its revision"
        values[name] = _present(struct.unpack_from("<" + code, data, offset), code[-1])
    return _table(f"{major}.{minor}", values, units, major > 1)


def _described(data: bytes) -> dict[str, tuple[int, ...]] | str:
    """Values of a v1.9 table. The walk must end exactly at its end, or nothing is believed."""
    values: dict[str, tuple[int, ...]] = {}
    try:
        (count,) = struct.unpack_from("<i", data, 4)
        offset = 8
        for _ in range(count):
            (word,) = struct.unpack_from("<Q", data, offset)
            code, attribute, length = _TYPES[word >> 20 & 0xF], word >> 10 & 0x3FF, word & 0x3FF
            found = struct.unpack_from(f"<{length}{code}", data, offset + 8)
            offset += 8 + struct.calcsize(f"<{length}{code}")
            if attribute in ATTRIBUTES:
                values[ATTRIBUTES[attribute]] = _present(found, code)
    except (struct.error, IndexError):
        return "gpu_metrics v1.9 is cut short"
    return values if offset == len(data) else "gpu_metrics v1.9 does not end where its attributes end"


def _present(values: tuple[int, ...], code: str) -> tuple[int, ...]:
    """Without those whose bits are all set."""
    absent = (1 << 8 * struct.calcsize("<" + code)) - 1 if code.isupper() else -1
    return tuple(value for value in values if value != absent)


def _table(revision: str, values: dict[str, tuple[int, ...]], units: _Units, integrated: bool) -> GpuMetricsTable:
    def highest(*names: str, scale: float = 1.0) -> float | None:
        for name in names:
            found = values.get(name)
            if found:
                return max(found) * scale
        return None

    def whole(name: str) -> int | None:
        found = values.get(name)
        return found[0] if found else None

    media = values.get("media")
    energy = whole("energy")
    throttle = whole("throttle")
    return GpuMetricsTable(
        revision,
        integrated,
        edge_celsius=highest("edge", scale=units.celsius),
        hotspot_celsius=highest("hotspot", scale=units.celsius),
        memory_celsius=highest("memory", scale=units.celsius),
        gfx_percent=highest("gfx", scale=units.percent),
        memory_controller_percent=highest("controller", scale=units.percent),
        media_percent=sum(media) / len(media) * units.percent if media else None,
        average_watts=highest("average_power", scale=units.watts),
        current_watts=highest("current_power", scale=units.watts),
        energy_joules=energy * units.joules if energy is not None and units.joules else None,
        energy_counter=energy,
        clock_ns=whole("clock"),
        graphics_mhz=highest("gfxclk", "average_gfxclk"),
        memory_mhz=highest("uclk", "average_uclk"),
        video_mhz=highest("vclk", "average_vclk"),
        throttle_reasons=None if throttle is None else _reasons(throttle),
    )


def _reasons(word: int) -> tuple[str, ...]:
    """Names of the set bits; a bit without a name keeps its number."""
    return tuple(THROTTLE_BITS.get(bit, f"bit_{bit}") for bit in range(64) if word >> bit & 1)

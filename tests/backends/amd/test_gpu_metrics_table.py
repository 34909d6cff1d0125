"""gpu_metrics tables: built here member by member as C would lay them out, decoded by offset there."""

import ctypes
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpusense.backends.amd.gpu_metrics_table import LAYOUTS, GpuMetricsTable, decode

H, I, Q, B = ctypes.c_uint16, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_uint8  # noqa: E741


def half(names: str) -> list:
    return [(name, H) for name in names.split()]


DISCRETE_CLOCKS = half(
    "average_gfxclk average_socclk average_uclk average_vclk average_dclk average_vclk1 average_dclk1 "
    "gfxclk socclk uclk vclk dclk vclk1 dclk1"
)
V1_1 = [
    *half("edge hotspot memory vrgfx vrsoc vrmem gfx controller media average_power"),
    ("energy", Q),
    ("clock", Q),
    *DISCRETE_CLOCKS,
    ("dependent", I),
    *half("fan width speed pad"),
    ("gfx_acc", I),
    ("mem_acc", I),
    ("hbm", H * 4),
]
V1_3 = [*V1_1, ("firmware", Q), *half("vsoc vgfx vmem pad2"), ("throttle", Q)]
HEAD = half("hotspot memory vrsoc current_power gfx controller")
COUNTERS = [("energy", Q), ("clock", Q)]
LINK = [*half("width speed xwidth xspeed"), ("ga", I), ("ma", I), *[(f"link{i}", Q) for i in range(5)]]
NAK = [("nak_sent", I), ("nak_received", I)]
XGMI = [("xgmi_read", Q * 8), ("xgmi_write", Q * 8)]
CLOCKS = [("firmware", Q), ("gfxclk", H * 8), ("socclk", H * 4), ("vclk", H * 4), ("dclk", H * 4), ("uclk", H)]
RESIDENCY = [(f"residency{i}", I) for i in range(6)]
APU = [*half("edge soc"), ("core", H * 8), ("l3", H * 2), *half("gfx media")]
APU_REST = [
    *half("average_power cpu socp gfxp"),
    ("corep", H * 8),
    *half("average_gfxclk asoc average_uclk afclk average_vclk adclk gfxclk soclk uclk fclk vclk dclk"),
    ("coreclk", H * 8),
    ("l3clk", H * 2),
    ("dependent", I),
    ("fan", H),
]
V2_1 = [*APU, ("clock", Q), *APU_REST, ("pad", H * 3)]
V2_2 = [*V2_1, ("throttle", Q)]
V1_8 = [*HEAD, ("bandwidth", Q), *COUNTERS, *RESIDENCY, ("lock", I), *LINK, *NAK, *XGMI, ("status", H * 8), ("pad", H)]
MEMBERS = {
    (1, 0): [
        ("clock", Q),
        *half("edge hotspot memory vrgfx vrsoc vrmem gfx controller media average_power"),
        ("energy", I),
        *DISCRETE_CLOCKS,
        ("dependent", I),
        ("fan", H),
        ("width", B),
        ("speed", B),
    ],
    (1, 1): V1_1,
    (1, 2): [*V1_1, ("firmware", Q)],
    (1, 3): V1_3,
    (1, 4): [*HEAD, ("media", H * 4), *COUNTERS, ("dependent", I), ("lock", I), *LINK, *XGMI, *CLOCKS],
    (1, 5): [
        *HEAD,
        ("media", H * 4),
        ("jpeg", H * 32),
        *COUNTERS,
        ("dependent", I),
        ("lock", I),
        *LINK,
        *NAK,
        *XGMI,
        *CLOCKS,
    ],
    (1, 6): [*HEAD, *COUNTERS, *RESIDENCY, ("lock", I), *LINK, *NAK, *XGMI, *CLOCKS],
    (1, 7): [*V1_8, *CLOCKS],
    (1, 8): [*V1_8, *CLOCKS],
    (2, 0): [("clock", Q), *APU, *APU_REST, ("pad", H)],
    (2, 1): V2_1,
    (2, 2): V2_2,
    (2, 3): [*V2_2, ("average_temps", H * 12)],
    (2, 4): [*V2_2, ("average_temps", H * 12), ("rails", H * 6)],
    (3, 0): [
        *half("edge soc"),
        ("core", H * 16),
        *half("skin gfx media"),
        ("ipu", H * 8),
        ("c0", H * 16),
        *half("dram_reads dram_writes ipu_reads ipu_writes"),
        ("clock", Q),
        ("average_power", I),
        ("ipup", H),
        *[(name, I) for name in ("apup", "gfxp", "dgpup", "corep")],
        ("corepower", H * 16),
        *half("sysp stapm stapm_now average_gfxclk asoc avpe aipu afclk average_vclk average_uclk ampipu"),
        ("coreclk", H * 16),
        *half("core_max gfx_max"),
        *[(f"residency{i}", I) for i in range(7)],
        ("filter", I),
    ],
}


def table(revision: tuple[int, int], **values: "int | list[int]") -> bytes:
    """Bytes of a table whose members not named are "not available"."""
    shape = type(
        "Table", (ctypes.Structure,), {"_fields_": [("size", H), ("major", B), ("minor", B), *MEMBERS[revision]]}
    )
    made = shape.from_buffer_copy(b"\xff" * ctypes.sizeof(shape))
    made.size, (made.major, made.minor) = ctypes.sizeof(shape), revision
    for name, value in values.items():
        if isinstance(value, list):
            for place, item in enumerate(value):
                getattr(made, name)[place] = item
        else:
            setattr(made, name, value)
    return bytes(made)


@pytest.mark.parametrize("revision", sorted(MEMBERS))
def test_every_offset_is_where_c_puts_the_member(revision):
    shape = type(
        "Table", (ctypes.Structure,), {"_fields_": [("size", H), ("major", B), ("minor", B), *MEMBERS[revision]]}
    )
    layout, _ = LAYOUTS[revision]
    assert {name: offset for name, (offset, _) in layout.items()} == {
        name: getattr(shape, name).offset for name in layout
    }


@pytest.mark.parametrize("revision", sorted(MEMBERS))
def test_a_table_without_a_value_gives_none_everywhere(revision):
    found = decode(table(revision))
    assert isinstance(found, GpuMetricsTable)
    assert found._replace(revision="", integrated=None) == GpuMetricsTable("")


@settings(deadline=None)
@given(
    revision=st.sampled_from(sorted(MEMBERS)),
    gfx=st.integers(0, 100),
    edge=st.integers(0, 110),
    power=st.integers(0, 600),
    clock=st.integers(0, 2**63),
    mhz=st.integers(0, 3000),
)
def test_what_is_written_is_read_in_common_units(revision, gfx, edge, power, clock, mhz):
    celsius = {1: 1, 2: 100, 3: 100}[revision[0]]
    percent = {1: 1, 2: 100, 3: 1}[revision[0]]
    milli = 1 if revision[0] == 1 else 1000 if revision[0] == 3 else 100
    watts = "current_power" if ("current_power", H) in MEMBERS[revision] else "average_power"
    warm = "edge" if ("edge", H) in MEMBERS[revision] else "hotspot"
    several = ("gfxclk", H * 8) in MEMBERS[revision]
    clocks = "gfxclk" if several or ("gfxclk", H) in MEMBERS[revision] else "average_gfxclk"
    values = {
        "gfx": gfx * percent,
        warm: edge * celsius,
        watts: power * milli,
        "clock": clock,
        clocks: [mhz, 5] if several else mhz,
    }
    found = decode(table(revision, **values))
    assert isinstance(found, GpuMetricsTable)
    assert found.gfx_percent == pytest.approx(gfx)
    assert getattr(found, f"{warm}_celsius") == pytest.approx(edge)
    measured = found.current_watts if watts == "current_power" else found.average_watts
    assert measured == pytest.approx(power if revision[0] != 2 else power / 10)
    assert found.clock_ns == clock
    assert found.graphics_mhz == (max(mhz, 5) if several else mhz)


def test_a_saturated_activity_is_absent_and_not_655_percent():
    found = decode(table((1, 3), gfx=0xFFFF, edge=50))
    assert isinstance(found, GpuMetricsTable)
    assert (found.gfx_percent, found.edge_celsius) == (None, 50)


def test_energy_has_a_unit_only_on_instinct_tables():
    instinct = decode(table((1, 4), energy=1 << 20))
    radeon = decode(table((1, 3), energy=1 << 20))
    assert instinct.energy_joules == 16.0  # 2**20 units of 2**-16 J
    assert (radeon.energy_joules, radeon.energy_counter) == (None, 1 << 20)


def test_current_clocks_win_over_average_ones():
    assert decode(table((2, 1), gfxclk=900, average_gfxclk=700)).graphics_mhz == 900
    assert decode(table((2, 1), average_gfxclk=700)).graphics_mhz == 700


def test_throttle_bits_have_names_and_unknown_ones_numbers():
    assert decode(table((1, 3), throttle=0)).throttle_reasons == ()
    assert decode(table((2, 2), throttle=1 | 1 << 36 | 1 << 63)).throttle_reasons == (
        "power_limit",
        "temperature_hotspot",
        "bit_63",
    )


def attribute(number: int, kind: str, *values: int) -> bytes:
    word = "BbHhIiQq".index(kind) << 20 | number << 10 | len(values)
    return struct.pack("<Q", word) + struct.pack(f"<{len(values)}{kind}", *values)


def described(*attributes: bytes, count: "int | None" = None) -> bytes:
    body = b"".join(attributes)
    header = struct.pack("<HBBi", 8 + len(body), 1, 9, len(attributes) if count is None else count)
    return header + body


def test_the_self_describing_table_skips_what_it_does_not_know():
    data = described(
        attribute(0, "H", 61),
        attribute(999, "I", 1, 2, 3),
        attribute(33, "H", 2100, 0xFFFF, 2050),
        attribute(7, "Q", 1 << 17),
        attribute(42, "H", 10, 30),
        attribute(3, "H", 0xFFFF),
    )
    found = decode(data)
    assert isinstance(found, GpuMetricsTable)
    assert (found.revision, found.hotspot_celsius, found.graphics_mhz) == ("1.9", 61, 2100)
    assert (found.energy_joules, found.media_percent, found.current_watts) == (2.0, 20.0, None)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "0 bytes"),
        (b"\x78\x00\x01", "3 bytes"),
        (table((1, 3))[:60], "announces 120 bytes and holds 60"),
        (struct.pack("<HBB", 4, 1, 3), "too few for its revision"),
        (struct.pack("<HBB", 8, 7, 7) + bytes(4), "v7.7 is not known"),
        (struct.pack("<HBB", 4, 1, 9), "cut short"),
        (described(attribute(0, "H", 1), count=3), "cut short"),
        (described(attribute(0, "H", 1), attribute(1, "H", 1), count=1), "does not end"),
    ],
)
def test_what_cannot_be_read_says_why(data, says):
    found = decode(data)
    assert isinstance(found, str)
    assert says in found


@settings(deadline=None)
@given(st.binary(max_size=700))
def test_no_bytes_make_it_raise(data):
    assert isinstance(decode(data), (str, GpuMetricsTable))


@settings(deadline=None)
@given(st.binary(max_size=400), st.sampled_from([*sorted(MEMBERS), (1, 9)]))
def test_no_bytes_behind_a_good_header_make_it_raise(data, revision):
    assert isinstance(decode(struct.pack("<HBB", 4 + len(data), *revision) + data), (str, GpuMetricsTable))

"""The codec: every record and metric survives JSON; what does not fit is refused by name."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusense import testing
from gpusense._records import json_codec
from gpusense._records.metrics import GROUPS, GpuMetrics, Instance, Power, ProcessUsage, without_values
from gpusense._records.records import KINDS, Aggregate, BlockRecord, Counters, DeviceInfo, GpuKernel, GpuMemoryTransfer

names = st.one_of(
    st.text(max_size=40), st.binary(max_size=40).map(lambda raw: raw.decode("utf-8", "surrogateescape"))
).filter(lambda text: all(not 0xD800 <= ord(letter) < 0xDC80 for letter in text))


@st.composite
def records(draw):
    """Any record type, any subset of its optional fields."""
    cls = draw(st.sampled_from(sorted(KINDS, key=lambda one: one.__name__)))
    start = draw(st.integers(0, 1 << 62))
    values = {}
    for name in cls._fields:
        hint = cls.__annotations__[name]
        if name == "start_ns":
            values[name] = start
        elif name == "end_ns":
            values[name] = start + draw(st.integers(0, 1 << 40))
        elif name in cls._field_defaults and draw(st.booleans()):
            continue
        elif name in ("name", "full_name"):
            values[name] = draw(names)
        elif name == "occupancy":
            values[name] = draw(st.floats(0, 1))
        elif "float" in str(hint):  # what was measured is finite
            number = st.floats(allow_nan=False, allow_infinity=False)
            values[name] = draw(st.lists(st.tuples(names, number)).map(tuple) if "tuple" in str(hint) else number)
        else:
            values[name] = draw(st.from_type(hint) if "Any" not in str(hint) else st.none())
    return cls(**values)


@given(records())
def test_every_record_comes_back_equal(record):
    for full in (False, True):
        text = json_codec.dumps(json_codec.encode(record, full=full))
        assert json_codec.decode_record(json_codec.loads(text)) == record


values = st.one_of(names, st.none(), st.booleans(), st.integers(), st.floats(), st.lists(st.integers(), max_size=3))
attributes = st.one_of(
    st.none(), st.dictionaries(names, names, max_size=3), st.dictionaries(st.one_of(names, st.integers()), values)
)
numbers = st.integers(0, 1 << 63)


@given(
    st.lists(
        st.builds(
            BlockRecord,
            *(names, numbers, st.one_of(st.none(), numbers), st.lists(names, max_size=3).map(tuple)),
            *(numbers, numbers, numbers, attributes, st.one_of(st.none(), names)),
        )
    )
)
def test_the_text_of_a_block_is_that_of_its_row(blocks):
    for block in blocks:
        assert json_codec.block_text(block) == json_codec.dumps(json_codec.encode(block))


@pytest.mark.parametrize(
    "changes",
    [
        {"attributes": {"n": 1}}, {"attributes": {"n": True}}, {"attributes": {"n": 1.0}}, {"attributes": {1: "n"}},
        {"attributes": ["a"]}, {"path": ["a", ["b"]]}, {"name": ["x"]}, {"name": 5, "error": ("E",)},
    ],
)  # fmt: skip
def test_blocks_that_somebody_made_of_other_things(changes):
    block = BlockRecord("b", 1, None, ("b",), 1, 2, 3)._replace(**changes)
    for _ in range(2):
        assert json_codec.block_text(block) == json_codec.dumps(json_codec.encode(block))


def test_compact_and_full_rows():
    kernel = GpuKernel("k", 1, 2, stream=7)
    assert json_codec.encode(kernel) == {"kind": "kernel", "name": "k", "start_ns": 1, "end_ns": 2, "stream": 7}
    assert set(json_codec.encode(kernel, full=True)) == {"kind", *GpuKernel._fields}


def test_metrics_nest():
    device = DeviceInfo(0, "H100", "nvidia", "nvml", compute_capability=(9, 0), details=(("a", "b"),))
    sample = GpuMetrics(device, 5, 6, power=Power(draw_watts=90), processes=(ProcessUsage(3),), reasons=(("x", "y"),))
    assert json_codec.decode(GpuMetrics, json_codec.loads(json_codec.dumps(json_codec.encode(sample)))) == sample


def test_an_aggregate_keeps_its_own_kind():
    row = Aggregate(("a",), "kernel", "k", "cuda", 0, 7, 10, 10**12, 1, 10**11, 10**30)
    assert json_codec.decode(Aggregate, json_codec.encode(row)) == row


def test_a_newer_writers_fields_are_skipped_and_an_older_ones_take_the_default():
    row = {"kind": "kernel", "name": "k", "start_ns": 1, "end_ns": 2, "invented_later": {"deep": [1]}}
    assert json_codec.decode_record(row) == GpuKernel("k", 1, 2)
    assert json_codec.decode(Counters, {}) == Counters()


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (3, "no record is of kind None"),
        ({"kind": "quark"}, "quark"),
        ({"kind": ["kernel"]}, "no record"),
        ({"kind": "kernel", "name": "k", "start_ns": 1}, "without end_ns"),
        ({"kind": "kernel", "name": None, "start_ns": 1, "end_ns": 2}, "GpuKernel.name: NoneType"),
        ({"kind": "kernel", "name": "k", "start_ns": 1.5, "end_ns": 2}, "GpuKernel.start_ns: float"),
        ({"kind": "kernel", "name": "k", "start_ns": True, "end_ns": 2}, "GpuKernel.start_ns: bool"),
        ({"kind": "kernel", "name": "k", "start_ns": 1, "end_ns": 1 << 250}, "end_ns"),
        ({"kind": "kernel", "name": "k", "start_ns": 5, "end_ns": 2}, "3 ns before"),
        ({"kind": "kernel", "name": "k", "start_ns": 1, "end_ns": 2, "grid": [1, 2]}, "2 values instead of 3"),
        ({"kind": "kernel", "name": "k", "start_ns": 1, "end_ns": 2, "path": "ab"}, "str instead of a list"),
        ({"kind": "kernel", "name": "k", "start_ns": 1, "end_ns": 2, "attributes": []}, "list instead of an object"),
        ({"kind": "transfer", "name": "k", "start_ns": 1, "end_ns": 2, "bytes": 1, "direction": "up"}, "cpu_to_gpu"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(row, said):
    with pytest.raises(ValueError, match=said):
        json_codec.decode_record(row)


def test_names_that_are_not_utf8():
    raw = b"kern\xffel\x80".decode("utf-8", "surrogateescape")
    kernel = GpuKernel(raw, 1, 2)
    assert json_codec.decode_record(json_codec.loads(json_codec.dumps(json_codec.encode(kernel)))).name == raw
    portable = json_codec.dumps(json_codec.encode(kernel), portable=True)
    portable.encode("utf-8")
    assert json.loads(portable)["name"] == "kern\ufffdel\ufffd"
    assert json.loads(json_codec.dumps({"a": "\U0001f600 \\ud800"}, portable=True)) == {"a": "\U0001f600 \\ud800"}


def test_nesting_beyond_reason_is_a_value_error():
    with pytest.raises(ValueError, match="deep"):
        json_codec.loads("[" * 200_000)


class Foreign:
    def __str__(self):
        return "x" * 5000


class Hostile:
    def __str__(self):
        raise RuntimeError("no")


class Array:
    def __array__(self):
        raise AssertionError("an array must not be read")

    __str__ = __array__


def test_attributes_of_any_type_become_json():
    loop = []
    loop.append(loop)
    attributes = {
        "nan": math.nan,
        "deep": loop,
        3: {b"\xff": (1, {2})},
        "foreign": Foreign(),
        "hostile": Hostile(),
        "array": Array(),
        "flag": True,
        "pair": GpuMemoryTransfer("t", "cpu_to_gpu", 1, 2, 3),
    }
    value = json.loads(json_codec.dumps(json_codec.encode(GpuKernel("k", 1, 2, attributes=attributes))))["attributes"]
    assert value["nan"] == "nan"
    assert value["3"] == {"\udcff": [1, [2]]}
    assert value["foreign"] == "x" * 1000
    assert value["hostile"] == "<Hostile>"
    assert value["array"].endswith("Array>")
    assert value["flag"] is True
    assert value["pair"]["direction"] == "cpu_to_gpu"
    assert "…" in json.dumps(value["deep"], ensure_ascii=False)


def test_numbers_of_other_libraries_become_numbers():
    from fractions import Fraction

    assert json_codec.plain(Fraction(1, 2)) == 0.5


# --- metrics: whole, reversible, and readable by those who know less or more -------------------------------------

NUMBERS = st.floats(0, 1e12, allow_nan=False) | st.integers(0, 2**63).map(float)


def value_for(name: str) -> st.SearchStrategy:
    if name == "throttle_reasons":
        return st.lists(st.sampled_from(["idle", "hw_slowdown"]), max_size=3).map(tuple)
    if name in ("unified", "remap_pending", "remap_failed"):
        return st.booleans()
    if name == "scope":
        return st.sampled_from(["gpu", "module"])
    whole = name.endswith(
        ("_bytes", "_ns", "_count", "_state", "generation", "width", "_pages", "_rows", "_xid", "_total")
    )
    return st.integers(0, 2**62) if whole or "ecc" in name or "remapped" in name else NUMBERS


FIELDS = {f"{group}.{name}": value_for(name) for group, empty in GROUPS.items() for name in empty._fields}
SAMPLES = st.fixed_dictionaries({}, optional=FIELDS).map(lambda fields: testing.metrics(testing.device(), fields))


@given(SAMPLES, st.integers(0, 2**62), st.lists(st.tuples(st.text(max_size=8), st.text(max_size=20)), max_size=3))
def test_a_sample_comes_back_as_it_was(sample, now, reasons):
    unique = dict(reasons)
    sample = sample._replace(
        time_ns=now,
        processes=(ProcessUsage(1, 2, None, "a", True),),
        instances=(Instance("MIG-1", 1),),
        reasons=tuple(unique.items()),
    )
    text = json.dumps(json_codec.metrics_to_dict(sample))
    back = json_codec.metrics_from_dict(json.loads(text))
    assert back._replace(reasons=()) == sample._replace(reasons=())
    assert dict(back.reasons) == unique


def test_every_field_has_a_reader():
    full = testing.metrics(testing.device(), {})
    assert json_codec.metrics_from_dict(json_codec.metrics_to_dict(full)) == full


def test_reasons_are_an_object_and_the_first_one_counts():
    sample = testing.metrics(testing.device(), {}, reasons=(("a.b", "first"), ("a.b", "second")))
    assert json_codec.metrics_to_dict(sample)["reasons"] == {"a.b": "first"}
    lost = without_values(sample, "lost", "lost: x")
    assert json_codec.metrics_from_dict(json_codec.metrics_to_dict(lost)).reason("power.draw_watts") == "lost: x"


def test_keys_of_the_future_are_skipped_and_missing_ones_take_their_default():
    row = json_codec.metrics_to_dict(testing.metrics(testing.device(), {"pcie.width": 16}))
    row["flux_capacitor"] = 88
    row["pcie"]["lanes_of_the_future"] = 4
    del row["device"]["uuid"]
    assert json_codec.metrics_from_dict(row).pcie.width == 16
    assert json_codec.metrics_from_dict(row).device.uuid is None


@pytest.mark.parametrize("row", [{}, {"device": 3}, {"device": {}, "time_ns": "x", "monotonic_ns": 1}])
def test_what_is_no_sample_is_a_value_error(row):
    with pytest.raises(ValueError, match=r"GpuMetrics|DeviceInfo"):
        json_codec.metrics_from_dict(row)


def test_a_line_has_the_schema_and_the_devices():
    line = json_codec.metrics_line((testing.metrics(testing.device(), {}),), more=1)
    assert line["schema"] == "gpusense.metrics/1"
    assert (line["more"], len(line["devices"])) == (1, 1)
    assert isinstance(json_codec.metrics_from_dict(line["devices"][0]), GpuMetrics)

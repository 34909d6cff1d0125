"""The codec: every record and metric survives JSON; what does not fit is refused by name."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpusense._records import json_codec
from gpusense._records.metrics import GpuMetrics, Power, ProcessUsage
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

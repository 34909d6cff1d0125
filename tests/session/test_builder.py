"""Rows of records read together: the same records as one by one, the same refusals, equal values shared."""

import gc
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import sessions
from support.draws import examples

from gpusense._records import json_codec
from gpusense._records.records import (
    BlockRecord,
    ComputeBlock,
    GpuAllocation,
    GpuKernel,
    GpuMemoryTransfer,
    GpuMemset,
    GpuSync,
    Syscall,
)
from gpusense.session import Session, _builder, load, save

RECORDS = [
    GpuKernel("k", 1, 2),
    GpuKernel("k", 1, 2, 0, grid=(1, 2, 3), block=(4, 5, 6), occupancy=1, path=("a", "b"), ambiguous=(1, 2)),
    GpuKernel("k", 1, 2, owner=("a",)),
    GpuKernel("l", 3, 4, 1, is_slow=True, attributes={"rows": 3, "deep": [1, {"a": None}]}, full_name="l<1>"),
    GpuMemoryTransfer("up", "cpu_to_gpu", 10, 1, 5, source="pinned"),
    GpuMemset("memset", 10, 1, 5, value=0),
    GpuSync("stream_synchronize", 1, 5, source_line="a.py:1 f"),
    GpuAllocation("alloc", 64, 5, 0xA0),
    ComputeBlock("sum", 1, 9, path=("a",)),
    BlockRecord("b", 7, None, ("a", "b"), 1, 9, 5, error="ValueError"),
    Syscall("read", 1, 9),
]  # fmt: skip


def rows_of(records):
    return json.loads(json.dumps([json_codec.encode(record) for record in records]))


def read(rows):
    """The records of ``rows``, read together; None where they must be read one by one."""
    try:
        return _builder.records(rows, {})
    except ValueError:
        return None


def one_by_one(rows):
    try:
        return [json_codec.decode_record(row) for row in rows]
    except ValueError:
        return None


def exact(records):
    """Equal and of equal types, which ``True == 1`` is not."""
    return None if records is None else [repr(record) for record in records]


def test_all_kinds_together_come_back_in_order():
    rows = rows_of(RECORDS * 3)
    assert exact(read(rows)) == exact(one_by_one(rows))
    assert read(rows) == RECORDS * 3


values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from([1 << 201, 2.5, 7.0]) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)  # fmt: skip
FIELDS = sorted({name for record in RECORDS for name in record._fields} | {"kind", "of another version"})


@examples(400)
@given(
    st.lists(st.sampled_from(range(len(RECORDS))), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from(FIELDS), values, st.booleans()), max_size=2),
)
def test_whatever_is_in_the_rows_is_read_as_one_by_one_or_left_to_that(places, changes):
    rows = rows_of([RECORDS[place] for place in places])
    for place, field, value, gone in changes:
        row = rows[place % len(rows)]
        if gone:
            row.pop(field, None)
        else:
            row[field] = value
    found, expected = read(rows), one_by_one(rows)
    assert exact(found) in (None, exact(expected))
    if not changes:
        assert found is not None


@pytest.mark.parametrize("row", [None, 1, "text", [], {}, {"kind": None}, {"kind": ["kernel"]}, {"kind": "of later"}])
def test_what_is_no_record_is_left_to_the_other_reader(row):
    assert read([*rows_of(RECORDS[:1]), row]) is None


@pytest.mark.parametrize("members", [[True, 1, 1], [1, 1], [1, 1, 1, 1], [1.0, 1, 1], ["1", 1, 1], "111", {"a": 1}])
def test_one_wrong_tuple_among_right_ones_is_seen(members):
    rows = rows_of([GpuKernel("k", 0, 1, grid=(1, 1, 1)) for _ in range(3)])
    rows[1]["grid"] = members
    assert read(rows) is None
    assert one_by_one(rows) is None


def test_equal_names_paths_and_sizes_are_one_object():
    kernels = [GpuKernel(f"kernel {place % 2}", 0, 1, grid=(1, 2, 3), path=("a", "b")) for place in range(4)]
    shared = {}
    first, second = _builder.records(rows_of(kernels), shared), _builder.records(rows_of(kernels), shared)
    for one, other in ((first[0], first[2]), (first[1], second[3])):
        assert one.name is other.name
        assert one.path is other.path
        assert one.grid is other.grid
    assert first[0].name != first[1].name


def test_a_damaged_row_costs_itself_alone(tmp_path, monkeypatch):
    session = Session(
        meta={"start_ns": 0, "end_ns": 9}, records=[ComputeBlock(f"b{at}", at, at + 1) for at in range(9)]
    )
    path = tmp_path / "run.gpusense"
    encode = json_codec.encode
    broken = {**encode(session.records[4]), "end_ns": "late"}
    monkeypatch.setattr(
        "gpusense.session._writer.encode",
        lambda record, **more: broken if record == session.records[4] else encode(record, **more),
    )
    save(session, path)
    found = load(path)
    assert found.records == session.records[:4] + session.records[5:]
    (damage,) = found.meta["damage"]
    assert "1 row of" in damage
    assert "end_ns" in damage


@pytest.mark.parametrize("enabled", [True, False])
def test_the_search_for_cycles_is_as_it_was_after_reading(tmp_path, enabled):
    path = tmp_path / "run.gpusense"
    save(sessions.crowd(10), path)
    (gc.enable if enabled else gc.disable)()
    try:
        assert len(load(path).records) == 10
        assert gc.isenabled() is enabled
        (tmp_path / "none").write_bytes(b"no session")
        with pytest.raises(Exception, match="session"):
            load(tmp_path / "none")
        assert gc.isenabled() is enabled
    finally:
        gc.enable()

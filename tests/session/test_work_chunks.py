"""Rows of which a reader makes records: each comes back with its block, and what is damaged costs its chunk."""

import struct
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cupti import T0
from support.draws import examples

from gpusense._records.json_codec import dumps, loads
from gpusense._records.records import GpuKernel, GpuMemoryTransfer, GpuMemset, GpuSync
from gpusense._records.work import WorkKind, WorkTable, kind_of_record
from gpusense.session import _format as file
from gpusense.session import load
from gpusense.session._work_chunks import HEAD, packed_in_full, unpack
from gpusense.session._writer import Writer

KINDS = [
    WorkKind("kernel", "gemm<float>", "void gemm<float>(float*)", device=0, context=1, stream=7, grid=(1, 2, 3),
             block=(32, 1, 1), registers_per_thread=40, owner=("capture",)),
    WorkKind("transfer", "cpu_to_gpu", device=0, stream=7, direction="cpu_to_gpu", source="pinned",
             destination="device", timing="host", source_line="serve.py:31 answer"),
    WorkKind("memset", "memset", device=1, stream=8),
    WorkKind("sync", "stream_synchronize", device=0, stream=7, source_line="serve.py:33 answer"),
]  # fmt: skip
PATHS = [(), ("request",), ("request", "model")]

runs = st.lists(
    st.tuples(
        st.integers(0, 3),  # the block; 0: none
        st.lists(st.integers(1, 3), max_size=2).map(tuple),  # candidates
        st.lists(
            st.tuples(
                st.integers(0, 3), st.integers(0, 2), st.integers(0, 999), st.integers(0, 9), st.integers(0, 10**6)
            ),
            max_size=4,
        ),
    ),
    max_size=6,
)


def table_of_runs(drawn):
    table = WorkTable()
    kinds, paths = [table.kind_of(kind) for kind in KINDS], [table.path_of(path) for path in PATHS]
    for _, _, rows in drawn:
        for kind, path, at, order, size in rows:
            table.append([kinds[kind]], [(1, paths[path])], [T0 + at], [T0 + at + 50], [order], [size])
    counts = array("q", [len(rows) for _, _, rows in drawn])
    return table, counts, array("q", [block for block, _, _ in drawn])


def payload(drawn):
    table, counts, blocks = table_of_runs(drawn)
    doubts = {number: candidates for number, (_, candidates, _) in enumerate(drawn) if candidates}
    return b"".join(packed_in_full(table, counts, blocks, doubts))


@given(runs)
@examples(100)
def test_each_row_becomes_its_record(drawn):
    back = WorkTable()
    records = unpack(payload(drawn), back, slow_ns=51)
    wanted = [(block, candidates, row) for block, candidates, rows in drawn for row in rows]
    assert len(back) == len(records) == len(wanted)
    classes = {"kernel": GpuKernel, "transfer": GpuMemoryTransfer, "memset": GpuMemset, "sync": GpuSync}
    for record, (block, candidates, (kind, path, at, order, size)) in zip(records, wanted, strict=True):
        assert type(record) is classes[KINDS[kind].kind]
        assert kind_of_record(record) == KINDS[kind]
        assert (record.start_ns, record.end_ns, record.is_slow) == (T0 + at, T0 + at + 50, False)
        assert (record.path, record.block_id, record.ambiguous) == (PATHS[path], block or None, candidates)
        assert record.correlation_id == (order or None)
        assert getattr(record, "bytes", size) == size


def test_what_a_row_cannot_tell_is_said_to_be_unknown():
    table = WorkTable()
    table.append([table.kind_of(WorkKind("kernel", "k", shared_bytes=64))], [(1, 0)], [T0], [T0 + 50])
    (kernel,) = unpack(b"".join(packed_in_full(table, [1], [0], {})), WorkTable(), slow_ns=50)
    assert (kernel.static_shared_bytes, kernel.dynamic_shared_bytes) == (None, None)
    assert kernel.attributes == {"shared_bytes": 64}
    assert kernel.is_slow


SOUND = [(1, (), [(0, 1, 5, 1, 0)] * 3), (2, (1, 2), [(1, 2, 5, 2, 9)])]


@pytest.mark.parametrize(
    "change",
    [
        {"blocks": [1, 1]},
        {"blocks": [4, 1, 5]},
        {"blocks": [5, 1, -1, 1]},
        {"blocks": [4, "1"]},
        {"blocks": {"4": 1}},
        {"ambiguous": [[1, 7]]},
        {"ambiguous": [[[1], [7]]]},
        {"ambiguous": None},
        {"kinds": [[0, {"kind": "coffee", "name": "k"}], [1, {"kind": "sync", "name": "k"}]]},
        {"kinds": [[0, {"kind": "kernel", "name": "k"}], [1, {"kind": "transfer", "name": "k"}]]},
    ],
    ids=str,
)
def test_what_nobody_writes_costs_the_chunk_and_is_named(change, tmp_path):
    sound = payload(SOUND)
    length, count = HEAD.unpack_from(sound)
    head = loads(sound[HEAD.size : HEAD.size + length]) | change
    text = dumps(head).encode()
    rows = sound[HEAD.size + length + -(HEAD.size + length) % 8 :]
    forged = struct.pack("<II", len(text), count) + text + bytes(-(HEAD.size + len(text)) % 8) + rows
    table = WorkTable()
    with pytest.raises(ValueError, match=r"of work|of rows|blocks of|for a block|work of"):
        unpack(forged, table)
    assert len(table) == 0
    writer = Writer(tmp_path / "s", max_bytes=None)
    writer.json(file.META, {"decided": True, "mode": "live", "start_ns": T0})
    writer.append(file.WORK, forged)
    writer.append(file.WORK, sound)
    writer.close()
    session = load(tmp_path / "s")
    assert (len(session.records), len(session.work)) == (4, 4)
    (damage,) = session.meta["damage"]
    assert damage.startswith("the work in the chunk at offset")

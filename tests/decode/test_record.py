"""Kernels that are kept: the record made at once is the one that is decoded and gets its place step by step."""

import random
import struct

import pytest
from support.cupti import KERNEL, T0, memcpy

from gpusense._aggregation.pipeline import Limits, Pipeline
from gpusense._attribution.boundaries import CLOSE, OPEN, Boundary
from gpusense._decode import layouts
from gpusense._decode import record as rows
from gpusense._decode.walk import batches

NAMES = {0x1000 + i * 64: (f"k{i}", f"k{i}(int)", f"_Z2k{i}i") for i in range(9)}
LIMIT_NS = 5_000


def kernel(source, number, stride):
    start = T0 + number * 20_000
    end = start + source.choice((LIMIT_NS - 1, LIMIT_NS, 9_000, 100, 0))
    dims = [source.choice((1, 2, 64, 128)) for _ in range(6)]
    latency = source.choice((0, 0, 0, start - 50))
    raw = KERNEL.pack(
        10, 0, 0, source.choice((16, 32)), 0, 0, start, end, end, source.choice((0, 0, 1)), 1, 7, *dims,
        source.choice((0, 1024)), source.choice((0, 2048)), source.choice((0, 8)), 0, number + 1, number,
        source.choice(list(NAMES)), 0, latency, latency, 0, 0, 0, 0, 0, source.choice((0, 0, number)), 0,
        source.choice((0, 3)), 0, 0, 0,
    )  # fmt: skip
    raw = bytearray(raw.ljust(stride, b"\0"))
    if stride >= 200:
        struct.pack_into("<III", raw, 176, *[source.choice((1, 1, 2)) for _ in range(3)])
    if stride >= 224:
        struct.pack_into("<i", raw, 216, source.choice((0, 0, -3)))
    return bytes(raw)


def buffer_of(source, count, stride):
    rows = []
    for number in range(count):
        copy = source.random() < 0.05
        start = T0 + number * 20_000
        rows.append(memcpy(start, start + 900, number + 1) if copy else kernel(source, number, stride))
    return memoryview(b"".join(rows))


def share(item):
    """Stands for the occupancy: another for each launch."""
    return item.device + item.registers_per_thread + sum(item.block) + item.static_shared_bytes / 2**20


def pipeline(**limits):
    made = Pipeline(Limits(threshold_ns=LIMIT_NS, max_per_second=10**6, **limits), start_ns=T0, occupancy=share)
    made.attribution.boundary(Boundary(OPEN, 1, None, 5, T0, T0, "step"), 0)
    for block in range(20):
        made.attribution.boundary(Boundary(OPEN, 2 + block, 1, 5, T0, T0, f"part {block}"), block * 47 + 3)
        made.attribution.boundary(Boundary(CLOSE, 2 + block, None, 5, T0, T0), block * 47 + 40)
    return made


def place(correlation):
    """Path and block of a launch; see :func:`pipeline`."""
    block, within = divmod(correlation - 3, 47)
    return (("step", f"part {block}"), 2 + block) if 0 <= block < 20 and within < 37 else (("step",), 1)


@pytest.mark.parametrize("stride", sorted(size for _, size in layouts.KERNEL_LAYOUT.sizes))
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("everything", [False, True])
@pytest.mark.parametrize("count", [40, 900])
def test_what_is_kept_is_what_is_decoded_with_its_place(stride, seed, everything, count):
    buffer, strides = buffer_of(random.Random(seed), count, stride), {10: stride, 1: 88}
    made = pipeline(trace_all=everything)
    made.feed(buffer, 5, strides, NAMES.__getitem__, now_ns=T0)
    made.cycle(T0)
    expected, counted = [], []
    for batch in batches(buffer, strides)[0]:
        for i, (corr, duration) in enumerate(zip(batch.correlation, batch.duration, strict=True)):
            if not everything and duration < LIMIT_NS:
                counted.append(duration)
                continue
            path, block = place(corr)
            item = rows.record(buffer, batch, i, NAMES.__getitem__, path=path, block_id=block)
            if batch.kind == 10:
                item = item._replace(occupancy=share(item))
            expected.append(item._replace(is_slow=duration >= LIMIT_NS))
    order = lambda item: item.start_ns  # noqa: E731
    assert sorted(made.kept, key=order) == sorted(expected, key=order)
    assert sum(row.count for row in made.ledger.aggregates()) == len(counted) == made.counters().aggregated
    assert sum(row.total_ns for row in made.ledger.aggregates()) == sum(counted)


def test_the_occupancy_of_equal_launches_is_asked_for_once_and_anew_from_another_source():
    asked = []
    buffer, strides = buffer_of(random.Random(1), 300, 216), {10: 216, 1: 88}
    made = pipeline(trace_all=True)
    made.occupancy = lambda item: asked.append(item) or share(item)
    made.feed(buffer, 5, strides, NAMES.__getitem__)
    made.cycle(T0)
    launches = [
        (k.device, k.block, k.registers_per_thread, k.static_shared_bytes, k.dynamic_shared_bytes) for k in asked
    ]
    assert len(set(launches)) == len(launches) < 299
    made.occupancy = lambda item: 0.5
    made.feed(buffer, 5, strides, NAMES.__getitem__)
    made.cycle(T0)
    assert {item.occupancy for item in list(made.kept)[300:] if hasattr(item, "occupancy")} == {0.5}


def test_remembered_launches_are_bounded(monkeypatch):
    monkeypatch.setattr(rows, "MAX_LAUNCHES", 3)
    made = pipeline(trace_all=True)
    made.feed(buffer_of(random.Random(1), 300, 216), 5, {10: 216, 1: 88}, NAMES.__getitem__)
    made.cycle(T0)
    assert len(made._placer.kernels._known) <= 3
    assert all(item.occupancy == share(item) for item in made.kept if hasattr(item, "occupancy"))


def test_records_do_not_share_their_attributes():
    made = pipeline(trace_all=True)
    made.feed(buffer_of(random.Random(2), 200, 216), 5, {10: 216, 1: 88}, NAMES.__getitem__)
    made.cycle(T0)
    found = [item.attributes for item in made.kept if item.attributes]
    assert len(found) > 20
    assert len({id(attributes) for attributes in found}) == len(found)


def test_there_is_a_pause_after_some_kept_records():
    pauses = []
    made = pipeline(trace_all=True)
    buffer = buffer_of(random.Random(3), 1_200, 216)
    made.feed(buffer, 5, {10: 216, 1: 88}, NAMES.__getitem__, pause=lambda: pauses.append(1))
    feeding = len(pauses)
    made.cycle(T0, pause=lambda: pauses.append(1))
    assert feeding >= 1_000 // rows.AT_ONCE
    assert len(pauses) > feeding
    assert len(made.kept) == 1_200


@pytest.mark.parametrize("copies", [0.0, 0.3])
def test_offsets_of_some_records_are_those_of_all(copies):
    source = random.Random(4)
    rows = [memcpy(T0 + i, T0 + i, i + 1) if source.random() < copies else kernel(source, i, 216) for i in range(400)]
    buffer = memoryview(b"".join(rows))
    for offset, limit in ((0, None), (len(rows[0]), 50)):
        for batch in batches(buffer, {10: 216, 1: 88}, offset=offset, limit=limit)[0]:
            chosen = sorted(source.sample(range(batch.count), batch.count // 3))
            found = batch.offsets_at(chosen)
            assert found == [batch.offsets[i] for i in chosen] == batch.offsets_at(chosen)
            assert batch.pick(chosen).offsets_at(range(len(chosen))) == found

"""Columns and records against an independent slow decoder, on fabricated, random and truncated buffers."""

import itertools
import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.draws import examples

from gpusense._decode import layouts
from gpusense._decode.batch import LONGEST_NS
from gpusense._decode.record import record
from gpusense._decode.walk import Tally, batches, name_pointers

# Whole records of CUDA 11.7, member by member; longer strides are the same with bytes behind.
FORMATS = {
    layouts.CONCURRENT_KERNEL: struct.Struct("<IBBHIIQQQIIIiiiiiiiiIIIqQQQQBBBBIQIIQII"),
    layouts.MEMCPY: struct.Struct("<IBBBBQQQIIIIIIQQIIII"),
    layouts.MEMCPY2: struct.Struct("<IBBBBQQQIIIIIIIIQQIIII"),
    layouts.MEMSET: struct.Struct("<IIQQQIIIIHHIQQIIII"),
    layouts.SYNCHRONIZATION: struct.Struct("<IIQQIIII"),
    layouts.RUNTIME: struct.Struct("<IIQQIIII"),
    layouts.EXTERNAL_CORRELATION: struct.Struct("<IIQII"),
}
STRIDES = {kind: [size for _, size in layouts.LAYOUTS[kind].sizes] for kind in FORMATS}
T0 = 1_764_280_000_000_000_000
NEVER = 0xFFFFFFFF


def kernel(start=T0, end=T0 + 5000, device=0, context=1, stream=7, correlation=11, name=0x7F00, **more):
    grid, block = more.get("grid", (4, 2, 1)), more.get("block", (128, 1, 1))
    return FORMATS[10].pack(
        10, 0, 0, more.get("registers", 32), 0, 0, start, end, end, device, context, stream, *grid, *block,
        more.get("static", 16), more.get("dynamic", 1024), more.get("local", 8), 0, correlation, 99, name, 0,
        more.get("queued", 0), 0, 0, 0, 0, 0, 0, more.get("node", 0), 0, more.get("graph", 0), 0, 0, 0,
    )  # fmt: skip


def memcpy(start=T0, end=T0 + 900, device=0, context=1, stream=7, correlation=12, copy=1, size=4096, kinds=(1, 3)):
    return FORMATS[1].pack(
        1, copy, *kinds, 0, size, start, end, device, context, stream, correlation, 0, 0, 0, 0, 0, 0, 0, 0
    )


def memcpy2(source=0, destination=1, copy=10):
    return FORMATS[22].pack(
        22, copy, 3, 3, 0, 64, T0, T0 + 10, 0, 1, 7, source, 1, destination, 2, 13, 0, 0, 0, 0, 0, 0
    )


def memset(start=T0, end=T0 + 20, device=0, context=1, stream=7, correlation=14, value=171, size=1):
    return FORMATS[2].pack(2, value, size, start, end, device, context, stream, correlation, 0, 3, 0, 0, 0, 0, 0, 0, 0)


def sync(start=T0, end=T0 + 30, context=1, stream=NEVER, correlation=15, type_=4):
    return FORMATS[38].pack(38, type_, start, end, correlation, context, stream, NEVER)


def api(start=T0, end=T0 + 40, correlation=16, cbid=211, thread=4242):
    return FORMATS[5].pack(5, cbid, start, end, 77, thread, correlation, 0)


def external(identifier=2**40, correlation=17):
    return FORMATS[39].pack(39, 5, identifier, correlation, 0)


def buffer_of(records, strides):
    """Records laid back to back, each padded with a filler to its kind's stride."""
    return bytearray(b"".join(r.ljust(strides[kind], b"\xee") for r in records for kind in struct.unpack_from("<I", r)))


def slow(buffer, strides):
    """kind → rows, one record at a time, straight from the formats; and how the walk ended."""
    rows, at, end = [], 0, "done"
    while at < len(buffer):
        if at + 4 > len(buffer):
            end = "truncated"
            break
        (kind,) = struct.unpack_from("<I", buffer, at)
        if kind not in strides:
            end = "unknown"
            break
        if at + strides[kind] > len(buffer):
            end = "truncated"
            break
        rows.append((kind, at, FORMATS[kind].unpack_from(buffer, at)))
        at += strides[kind]
    return rows, end


PICK = {  # member numbers of start, end, correlation, device, context, stream, key, bytes, thread
    10: (6, 7, 22, 9, 10, 11, 24, None, None),
    1: (6, 7, 11, 8, 9, 10, 1, 5, None),
    22: (6, 7, 15, 8, 9, 10, 1, 5, None),
    2: (3, 4, 8, 5, 6, 7, 1, 2, None),
    38: (2, 3, 4, None, 5, 6, 1, None, None),
    5: (2, 3, 6, None, None, None, 1, None, 5),
    39: (None, None, 3, None, None, None, 2, None, None),
}
PLACES = ("device", "context", "stream")


def expected(rows):
    """The rows as (kind, offset, start, end, …), the invalid ones dropped, sorted."""
    good, invalid = [], 0
    for kind, at, members in rows:
        numbers = PICK[kind]
        values = [0 if n is None else members[n] for n in numbers]
        for column, (n, value) in enumerate(zip(numbers[3:6], values[3:6], strict=True), 3):
            values[column] = None if n is None or (kind == 38 and value == NEVER) else value
        start, end = values[:2]
        if numbers[0] is not None and not (0 < start < 2**63 and 0 <= end - start <= LONGEST_NS):
            invalid += 1
        else:
            good.append((kind, at, *values))
    return sorted(good, key=lambda row: row[1]), invalid


def flatten(found):
    rows = []
    for batch in found:
        columns = (batch.offsets, batch.start, batch.end, batch.correlation, batch.device, batch.context,
                   batch.stream, batch.key, batch.bytes, batch.thread)  # fmt: skip
        assert {len(column) for column in columns} == {len(batch.duration)}
        assert batch.duration == [e - s for s, e in zip(batch.start, batch.end, strict=True)]
        rows += [(batch.kind, *row) for row in zip(*columns, strict=True)]
    return sorted(rows, key=lambda row: row[1])


def whole(buffer, strides, limit=None):
    """All slices of a buffer put together."""
    rows, at, tallies = [], 0, []
    while True:
        found, tally = batches(memoryview(buffer), strides, offset=at, limit=limit)
        rows += flatten(found)
        tallies.append(tally)
        assert limit is None or sum(len(batch.offsets) for batch in found) <= limit
        at = tally.offset
        if at >= len(buffer):
            break
    totals = [sum(getattr(tally, name) for tally in tallies) for name in Tally._fields[:-1]]
    return sorted(rows, key=lambda row: row[1]), dict(zip(Tally._fields, totals, strict=False))


u32 = st.integers(0, 2**32 - 1)
times = st.one_of(st.integers(T0, T0 + 10**9), st.sampled_from([0, 1, 2**63, 2**64 - 1]))
anything = st.one_of(
    st.builds(kernel, times, times, u32, u32, u32, u32, st.integers(0, 2**64 - 1)),
    st.builds(memcpy, times, times, u32, u32, u32, u32, st.integers(0, 255), st.integers(0, 2**64 - 1)),
    st.builds(memset, times, times, u32, u32, u32, u32, u32, st.integers(0, 2**64 - 1)),
    st.builds(sync, times, times, u32, u32, u32, st.integers(0, 6)),
    st.builds(api, times, times, u32, u32, u32),
    st.builds(external, st.integers(0, 2**64 - 1), u32),
    st.just(memcpy2()),
)
runs = st.lists(st.tuples(anything, st.integers(1, 70)), max_size=12).map(
    lambda pairs: [record for record, count in pairs for _ in range(count)]
)
some_strides = st.fixed_dictionaries({kind: st.sampled_from(sizes) for kind, sizes in STRIDES.items()})


@examples(80)
@given(runs, some_strides, st.one_of(st.none(), st.integers(1, 100)))
def test_columns_equal_the_slow_decoder_in_one_go_and_in_slices(records, strides, limit):
    buffer = buffer_of(records, strides)
    rows, end = slow(buffer, strides)
    good, invalid = expected(rows)
    found, tally = whole(buffer, strides, limit)
    assert end == "done"
    assert found == good
    assert tally["seen"] == sum(row[0] in layouts.WORK_KINDS for row in rows)
    assert tally["other"] == sum(row[0] not in layouts.WORK_KINDS for row in good)
    assert tally["invalid"] == invalid
    assert tally["unknown_kinds"] == tally["truncated"] == 0


@examples(50)
@given(runs, some_strides, st.integers(1, 400))
def test_a_cut_loses_only_the_record_it_hits(records, strides, cut):
    buffer = buffer_of(records, strides)
    buffer = buffer[: max(len(buffer) - cut, 0)]
    rows, end = slow(buffer, strides)
    found, tally = whole(buffer, strides, 37)
    assert found == expected(rows)[0]
    assert tally["truncated"] == (end == "truncated")


@examples(50)
@given(runs, some_strides, st.sampled_from([0, 3, 51, 2**32 - 1]), runs)
def test_an_unknown_kind_ends_the_buffer_and_is_counted_once(records, strides, kind, after):
    buffer = buffer_of(records, strides) + struct.pack("<I", kind) + bytes(60) + buffer_of(after, strides)
    found, tally = whole(buffer, strides, 50)
    assert found == expected(slow(buffer, strides)[0])[0]
    assert tally["unknown_kinds"] == 1


def test_random_bytes_neither_raise_nor_loop():
    source = random.Random(20)
    strides = {kind: layout.sizes[-1][1] for kind, layout in layouts.LAYOUTS.items()}
    for size in [*range(40), *(source.randrange(8000) for _ in range(400))]:
        buffer = bytearray(source.randbytes(size))
        for at in range(0, size - 4, 8):
            if source.random() < 0.7:
                struct.pack_into("<I", buffer, at, source.choice([*strides, 3, 0]))
        whole(buffer, strides, source.choice([None, 1, 7, 64]))
        name_pointers(memoryview(buffer), strides)


@pytest.mark.parametrize("stride", [0, 4, 100, 168, -208, 2**70])
def test_a_stride_no_library_uses_counts_as_unknown(stride):
    buffer = memoryview(kernel())
    found, tally = batches(buffer, {10: stride})
    assert not found
    assert tally.unknown_kinds or tally.truncated
    assert tally.offset == len(buffer)
    assert name_pointers(buffer, {10: stride}) == set()


def test_kinds_without_a_table_are_stepped_over_where_their_size_is_known():
    stranger = struct.pack("<I", 37).ljust(24, b"\0")
    strides = {10: 208, 37: 24}
    buffer = stranger + kernel().ljust(208, b"\0") + stranger
    found, tally = batches(memoryview(buffer), strides)
    assert [batch.kind for batch in found] == [10]
    assert (tally.seen, tally.other, tally.unknown_kinds) == (1, 2, 0)


def test_a_slice_stops_at_the_limit_and_names_where_to_go_on():
    buffer = bytearray(kernel() * 500)
    found, tally = batches(memoryview(buffer), {10: 176}, limit=120)
    assert len(found[0].offsets) == tally.seen == 120
    assert tally.offset == 120 * 176


def test_columns_survive_the_buffer():
    buffer = bytearray(kernel() * 3 + memcpy() + kernel())
    found, _ = batches(memoryview(buffer), {10: 176, 1: 88})
    before = flatten(found)
    buffer[:] = bytes(len(buffer))
    assert flatten(found) == before


def test_columns_survive_what_is_decoded_after_them():
    """The memory that buffers are copied into is used again."""
    one = memoryview(b"".join(kernel(start=T0 + i, end=T0 + i + 5, stream=i, name=i) for i in range(100)))
    other = memoryview(b"".join(kernel(start=T0 + 9 * i, end=T0 + 9 * i, name=9) + memcpy() for i in range(100)))
    strides = {10: 176, 1: 88}
    first, _ = batches(one, strides)
    later, _ = batches(other, strides)
    assert flatten(first) == expected(slow(one, strides)[0])[0]
    assert flatten(later) == expected(slow(other, strides)[0])[0]


@pytest.mark.parametrize("run", [1, 15, 16, 17, 18, 31, 48, 100, 500, 1000])
@pytest.mark.parametrize("limit", [None, 7, 64, 1280])
def test_long_runs_end_where_they_do_even_where_other_records_look_like_them(run, limit):
    """Behind the run there are tens at all places where its next records would be."""
    same = external(identifier=10, correlation=10)
    records = [*[kernel(name=i) for i in range(run)], *[same] * 300, *[kernel(name=i) for i in range(run)]]
    strides = {10: 176, 39: 24}
    buffer = buffer_of(records, strides)
    found, tally = whole(buffer, strides, limit)
    assert found == expected(slow(buffer, strides)[0])[0]
    assert (tally["seen"], tally["other"]) == (2 * run, 300)


@given(
    st.lists(st.tuples(st.sampled_from([20, 20, 20, 21, 40, 90]), st.integers(1, 30)), min_size=1, max_size=12),
    st.sampled_from([None, 25, 64, 1280]),
)
@examples(60)
def test_runs_that_are_or_seem_as_long_as_the_one_before_end_where_they_do(runs, limit):
    """Between them there are tens at all places, so that a look ahead says little."""
    strides = {10: 176, 39: 24, 1: 88}
    between = [external(identifier=10, correlation=10), memcpy()]
    records = []
    for number, (run, others) in enumerate(runs):
        records += [kernel(name=number, stream=i, correlation=i) for i in range(run)]
        records += [between[number % 2]] * others
    buffer = buffer_of(records, strides)
    found, tally = whole(buffer, strides, limit)
    assert found == expected(slow(buffer, strides)[0])[0]
    assert tally["seen"] + tally["other"] == len(records)


STEPS = (-5, 2**51 - 1, 2**51, LONGEST_NS, LONGEST_NS + 1, 2**52, 2**62, 2**63, 2**64 - 1)


@given(
    st.sampled_from([0, 1, T0, 2**63 - 2**52, 2**63 - 9, 2**63 - 1, 2**63, 2**64 - 9, 2**64 - 2, 2**64 - 1]),
    st.lists(st.integers(0, 3), min_size=26, max_size=60),
    st.dictionaries(st.integers(0, 40), st.sampled_from(STEPS), max_size=2),
)
@examples(300)
def test_times_that_no_clock_has_are_left_out_wherever_they_wrap(start, steps, others):
    """Each time is a step from the one before, in 64 bits; all but a few are small."""
    steps = [others.get(i, step) for i, step in enumerate(steps)]
    times = [at % 2**64 for at in itertools.accumulate(steps, initial=start)]
    pairs = list(zip(times[::2], times[1::2], strict=False))
    buffer = memoryview(b"".join(kernel(start=begin, end=end) for begin, end in pairs))
    found, tally = batches(buffer, {10: 176})
    good = [(b, e) for b, e in pairs if 0 < b < 2**63 and 0 <= e - b <= LONGEST_NS and e < 2**63]
    assert tally.invalid == len(pairs) - len(good)
    assert [row[2:4] for row in flatten(found)] == good
    if found and found[0].sequential:
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(good))
        assert found[0].total == sum(end - begin for begin, end in good)


@pytest.mark.parametrize("count", [13, 2047, 2048, 2049])
def test_many_long_steps_do_not_come_round_to_a_time_that_can_be(count):
    """Lengths and gaps a little under those that are looked for bring the last of 2048 around, and no further."""
    step = 2**51 - 1
    times = [(2**63 - 1 + i * step) % 2**64 for i in range(2 * count)]
    pairs = list(zip(times[::2], times[1::2], strict=True))
    buffer = memoryview(b"".join(kernel(start=begin, end=end) for begin, end in pairs))
    found, tally = batches(buffer, {10: 176})
    good = [(b, e) for b, e in pairs if 0 < b <= e < 2**63]
    assert tally.invalid == count - len(good)
    assert [row[2:4] for row in flatten(found)] == good


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=40), st.integers(-1, 2**41))
def test_whether_a_duration_is_reached_needs_no_numbers(durations, limit):
    buffer = b"".join(kernel(start=T0, end=T0 + duration) for duration in durations)
    (batch,), _ = batches(memoryview(buffer), {10: 176})
    for duration in (limit, *durations):
        assert batch.reaches(duration) == any(d >= duration for d in durations)


@pytest.mark.parametrize("count", [1, 12, 13, 14, 64, 65, 1000, 1023, 1024, 1025, 2047, 2048, 2049])
@pytest.mark.parametrize("longest", [5, LONGEST_NS])
def test_the_sum_of_durations_needs_no_numbers(count, longest):
    rng = random.Random(count)
    durations = [longest, *(rng.randrange(longest // 2, longest + 1) for _ in range(count - 1))]
    records = [kernel(start=T0, end=T0 + duration) for duration in durations]
    (batch,), _ = batches(memoryview(b"".join(records)), {10: 176})
    assert batch.total == sum(durations)


def test_name_pointers_are_those_of_kernels_and_of_named_memory_without_null():
    strides = {10: 208, 1: 96, 49: 128}
    kernels = [kernel(name=0x1000 + i % 3) for i in range(100)] + [kernel(name=0)]
    memory = struct.pack("<64xQ48xQ", 0x2000, 0x3000)
    memory = struct.pack("<I", 49) + memory[4:]
    buffer = bytearray().join(
        [
            *(k.ljust(208, b"\0") for k in kernels),
            memcpy().ljust(96, b"\0"),
            memory,
            kernel(name=0x1005).ljust(208, b"\0"),
        ]
    )
    assert name_pointers(memoryview(buffer), strides) == {0x1000, 0x1001, 0x1002, 0x1005, 0x2000, 0x3000}


# --- whole records --------------------------------------------------------------------------------------------------

NAMES = {0x7F00: ("axpy", "axpy<float>(int)", "_Z4axpyIfEvi")}


def only_record(raw, strides, **fields):
    found, tally = batches(memoryview(raw), strides)
    assert tally.seen == 1
    return record(memoryview(raw), found[0], 0, NAMES.__getitem__, **fields)


def test_kernel_record():
    made = only_record(kernel(device=2, graph=5, node=6), {10: 176}, path=("step",), block_id=3, correlation_id=2**32)
    assert made.name == "axpy"
    assert made.full_name == "axpy<float>(int)"
    assert made.raw_name == "_Z4axpyIfEvi"
    assert (made.start_ns, made.end_ns, made.duration_ns) == (T0, T0 + 5000, 5000)
    assert (made.device, made.context, made.stream) == (2, 1, 7)
    assert (made.grid, made.block) == ((4, 2, 1), (128, 1, 1))
    assert made.registers_per_thread == 32
    assert (made.static_shared_bytes, made.dynamic_shared_bytes, made.local_bytes_per_thread) == (16, 1024, 8)
    assert (made.graph_id, made.graph_node_id) == (5, 6)
    assert (made.path, made.block_id, made.correlation_id) == (("step",), 3, 2**32)
    assert made.attributes is None


def test_late_kernel_fields_are_read_where_the_stride_has_them():
    late = struct.pack("<IIIIQIIB7xiIIIIIQ", 2, 1, 1, 0, 0, 0, 0, 0, -5, 0, 0, 0, 40, 0, 41)
    made = only_record(kernel(queued=9) + late, {10: 248})
    assert made.attributes == {
        "cluster": (2, 1, 1), "priority": -5, "queued_ns": 9, "source_graph": 40, "source_graph_node": 41
    }  # fmt: skip
    assert only_record(kernel() + late[:24], {10: 200}).attributes == {"cluster": (2, 1, 1)}


@pytest.mark.parametrize(
    ("copy", "kinds", "direction"),
    [
        (1, (1, 3), "cpu_to_gpu"),
        (2, (3, 2), "gpu_to_cpu"),
        (3, (1, 4), "cpu_to_gpu"),
        (4, (4, 1), "gpu_to_cpu"),
        (5, (4, 4), "on_device"),
        (8, (3, 3), "on_device"),
        (9, (1, 1), "cpu_to_cpu"),
        (10, (3, 3), "gpu_to_gpu"),
        (0, (2, 3), "cpu_to_gpu"),
        (0, (3, 1), "gpu_to_cpu"),
        (0, (1, 2), "cpu_to_cpu"),
        (77, (5, 5), "on_device"),
    ],
)
def test_transfer_directions(copy, kinds, direction):
    made = only_record(memcpy(copy=copy, kinds=kinds), {1: 88})
    assert made.direction == made.name == direction
    assert made.source == layouts.MEMORY_KINDS[kinds[0]]
    assert made.destination == layouts.MEMORY_KINDS[kinds[1]]
    assert made.bytes == 4096
    assert made.source_device is None


def test_peer_copies_name_both_devices_and_one_device_is_no_peer():
    made = only_record(memcpy2(0, 1), {22: 96})
    assert (made.direction, made.source_device, made.destination_device) == ("gpu_to_gpu", 0, 1)
    assert only_record(memcpy2(1, 1), {22: 96}).direction == "on_device"


def test_memset_sync_and_allocation_records():
    made = only_record(memset(), {2: 88})
    assert (made.name, made.value, made.bytes, made.memory) == ("memset", 171, 1, "device")
    made = only_record(sync(), {38: 40})
    assert (made.name, made.stream, made.event_id, made.device) == ("context_synchronize", None, None, None)
    assert only_record(sync(type_=3, stream=7), {38: 40}).stream == 7
    assert only_record(sync(type_=9), {38: 40}).name == "synchronize_9"
    raw = struct.pack("<IIIIQQQQIIIIQIIIIQQQQQ", 49, 1, 3, 18, 0xA000, 512, T0, 0, 1, 0, 1, NEVER, 0x7F00, 0, 0,
                      0, 0, 0, 0, 0, 0, 0)  # fmt: skip
    made = only_record(raw, {49: 128})
    assert (made.name, made.bytes, made.address, made.start_ns, made.memory) == ("alloc", 512, 0xA000, T0, "device")
    assert made.stream is None
    assert made.attributes == {"variable": "axpy"}


def test_helper_records_do_not_become_records():
    raw = api()
    found, tally = batches(memoryview(raw), {5: 40})
    assert (tally.seen, tally.other, found[0].thread, found[0].key) == (0, 1, [4242], [211])
    with pytest.raises(ValueError, match="helpers"):
        record(memoryview(raw), found[0], 0, NAMES.__getitem__)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(-2, 20)), min_size=1, max_size=12))
def test_bounds_are_those_of_what_is_valid_and_sequential_means_it(times):
    """Starts as steps from the end before, so that both orders are common; a negative length is no record."""
    records, at = [], 1_000_000
    for step, length in times:
        at += step - 5
        records.append((at, at + length))
        at += length
    buffer = b"".join(raw_kernel(start, end) for start, end in records)
    found, tally = batches(memoryview(buffer), {10: STRIDES[10][0]})
    good = [(start, end) for start, end in records if end >= start]
    assert tally.invalid == len(records) - len(good)
    if not good:
        assert found == []
        return
    (batch,) = found
    assert (batch.start, batch.end) == tuple(map(list, zip(*good, strict=True)))
    assert batch.earliest == min(batch.start)
    assert batch.latest == max(batch.end)
    assert batch.longest == max(batch.duration)
    in_order = all(end <= start for (_, end), (start, _) in itertools.pairwise(good))
    assert in_order or not batch.sequential
    if tally.invalid == 0:
        assert batch.sequential == in_order


def raw_kernel(start, end):
    raw = bytearray(STRIDES[10][0])
    struct.pack_into("<I", raw, 0, 10)
    struct.pack_into("<QQ", raw, 16, start, end)
    return bytes(raw)

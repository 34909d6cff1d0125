"""Decode: nanoseconds a record by how long the runs of one kind are. Budget: 2 M records/s with all that follows.

``python -m pytest benchmarks/bench_decode.py --benchmark-only``
"""

import struct

import pytest

from gpusense._decode import layouts
from gpusense._decode.record import record
from gpusense._decode.walk import batches, name_pointers

T0 = 1_764_280_000_000_000_000
STRIDES = {
    layouts.CONCURRENT_KERNEL: 216,
    layouts.MEMCPY: 96,
    layouts.MEMCPY2: 96,
    layouts.MEMSET: 88,
}
RECORDS = 1200  # what a buffer of 256 KiB holds


def kernel(number: int) -> bytes:
    raw = bytearray(STRIDES[layouts.CONCURRENT_KERNEL])
    start = T0 + number * 5000
    struct.pack_into("<I", raw, 0, layouts.CONCURRENT_KERNEL)
    struct.pack_into("<QQ8xIII", raw, 16, start, start + 3000 + number % 77, 0, 1, 7 + number % 3)
    struct.pack_into("<I8xQ", raw, 92, 100_000 + number, 0x7F0011223300 + number % 20 * 64)
    return bytes(raw)


def copy(number: int) -> bytes:
    raw = bytearray(STRIDES[layouts.MEMCPY])
    start = T0 + number * 5000
    struct.pack_into("<IB3xQQQIIII", raw, 0, layouts.MEMCPY, 1, 4096, start, start + 900, 0, 1, 7, 100_000 + number)
    return bytes(raw)


def buffer_with_runs_of(length: int) -> memoryview:
    return memoryview(b"".join(copy(i) if i % (length + 1) == length else kernel(i) for i in range(RECORDS)))


@pytest.mark.parametrize("length", [1, 10, 100, RECORDS])
def test_columns(benchmark, length):
    buffer = buffer_with_runs_of(length)
    _, tally = benchmark(batches, buffer, STRIDES)
    assert tally.seen == RECORDS
    benchmark.extra_info["records"] = RECORDS


@pytest.mark.parametrize("length", [10, RECORDS])
def test_name_pointers(benchmark, length):
    assert len(benchmark(name_pointers, buffer_with_runs_of(length), STRIDES)) == 20


def test_whole_records(benchmark):
    buffer = buffer_with_runs_of(RECORDS)
    (batch,), _ = batches(buffer, STRIDES)

    def keep_all():
        return [record(buffer, batch, i, lambda _: ("k", None, None), path=("a",)) for i in range(100)]

    assert len(benchmark(keep_all)) == 100

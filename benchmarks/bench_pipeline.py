"""Names, attribution and threshold together: records a second on one core (budget: ≥ 2 M for kernel runs ≥ 100 long,
≥ 0.8 M for runs of at most 10)."""

import ctypes
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests"))

from support.cupti import STRIDES, T0, kernel, memcpy

from gpusense._aggregation.pipeline import Limits, Pipeline
from gpusense._attribution.boundaries import CLOSE, OPEN, Boundary
from gpusense._capi import cstring, demangle
from gpusense._decode.names import NameCache, Names

RECORDS = 1200  # in a buffer of 256 KiB
BUFFERS = 40
BLOCK = 300  # launches between two boundaries: forward, backward, optimizer of a small training step
NAMES = [
    b"_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1EEEEviT0_T1_%d" % i
    for i in range(40)
]
TEXTS = [ctypes.create_string_buffer(name) for name in NAMES]  # as a driver has them, to be read and glanced at
ADDRESSES = [ctypes.addressof(text) for text in TEXTS]


def buffers(run):
    """Kernels in runs of ``run`` with copies between them: 40 names, one stream, times and ids ascending."""
    made = []
    for first in range(0, BUFFERS * RECORDS, RECORDS):
        parts = []
        for i in range(first, first + RECORDS):
            start = T0 + i * 10_000
            if i % (run + 1) == run:
                parts.append(memcpy(start, start + 3_000, i + 1))
            else:
                parts.append(kernel(start, start + 4_000 + i % 40 * 50, i + 1, name=ADDRESSES[i % 40]))
        made.append(memoryview(b"".join(parts)))
    return made


def pipeline():
    made = Pipeline(Limits(), start_ns=T0)
    made.attribution.boundary(Boundary(OPEN, 1, None, 5, T0, T0, "step"), 0)
    for i in range(BUFFERS * RECORDS // BLOCK):
        made.attribution.boundary(Boundary(OPEN, 2 + i, 1, 5, T0, T0, "part"), i * BLOCK + 1)
        made.attribution.boundary(Boundary(CLOSE, 2 + i, None, 5, T0, T0), (i + 1) * BLOCK)
    return made


@pytest.mark.parametrize("run", [500, 100, 10, 3])
def test_records_per_second(benchmark, run):
    data = buffers(run)
    cache = NameCache(demangle)
    names = Names(cache, cstring.read, cstring.Glance)

    def all_of_it(made):
        for number, buffer in enumerate(data):
            cache.new_buffer(1 + number * RECORDS / 30_000)  # names are read again once a second, as live
            made.feed(buffer, 5, STRIDES, names, now_ns=T0)
            made.cycle(T0)
        return made.counters()

    counters = benchmark.pedantic(all_of_it, setup=lambda: ((pipeline(),), {}), rounds=20, warmup_rounds=2)
    assert counters.aggregated == BUFFERS * RECORDS
    if benchmark.enabled:
        benchmark.extra_info["records_per_s"] = round(BUFFERS * RECORDS / benchmark.stats.stats.median)

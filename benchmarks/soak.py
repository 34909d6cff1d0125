"""Ten million records through the live pipeline: memory must stay flat. ``python benchmarks/soak.py [millions]``.

Prints resident memory after each million, and records a second. A block holds 40 launches, one block is watched
throughout, a tenth of the kernels is slow enough to be kept, and names move once in a while. Beside them threads come
and go, with a block each, as in a server that has one for each request.
"""

import pathlib
import resource
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from support.cupti import STRIDES, T0, kernel, memcpy
from support.sessions import watch

from gpusense._aggregation.pipeline import Limits, Pipeline
from gpusense._attribution.boundaries import CLOSE, OPEN, Boundary
from gpusense._capi import demangle
from gpusense._decode.names import NameCache

RECORDS = 1200
REQUESTS = 8  # threads that come and go with each buffer
REQUEST_IDS = 1 << 40  # of their blocks
WARM_MILLIONS = 4  # until the history of blocks is as long as it gets


def resident_mb():
    with open("/proc/self/statm", encoding="ascii") as pages:
        return int(pages.read().split()[1]) * resource.getpagesize() / 1e6


def buffer(number):
    parts = []
    for i in range(number * RECORDS, (number + 1) * RECORDS):
        start, corr = T0 + i * 10_000, (i + 2) & 0xFFFFFFFF
        if i % 20 == 0:
            parts.append(memcpy(start, start + 3_000, corr, stream=9))
        else:
            length = 150_000 if i % 10 == 1 else 4_000 + i % 40 * 50
            parts.append(kernel(start, start + length, corr, name=0x1000 + i % 40 * 64, device=i // 500 % 2))
    return memoryview(b"".join(parts))


def requests(made, first, corr):
    for number in range(first, first + REQUESTS):
        thread = 0x7F0000000640 + number * 0x1000
        made.attribution.boundary(Boundary(OPEN, REQUEST_IDS + number, None, thread, T0, T0, "request"), corr)
        made.attribution.boundary(Boundary(CLOSE, REQUEST_IDS + number, None, thread, T0, T0), corr)


def main(millions):
    made = Pipeline(Limits(max_records=20_000), start_ns=T0)
    made.attribution.boundary(Boundary(OPEN, 1, None, 5, T0, T0, "epoch"), 0)
    watch(made, 1)
    cache = NameCache(demangle)
    total, block, began, first = 0, 1, time.process_time(), None
    for million in range(1, millions + 1):
        while total < million * 1_000_000:
            number = total // RECORDS
            for part in range(30):
                block += 1
                corr = total + part * 40 + 1
                made.attribution.boundary(Boundary(OPEN, block, 1, 5, T0, T0, f"part {part % 3}"), corr)
                made.attribution.boundary(Boundary(CLOSE, block, None, 5, T0, T0), corr + 39)
            requests(made, number * REQUESTS, total + 1)
            cache.new_buffer()
            moved = number // 1000
            made.feed(
                buffer(number),
                5,
                STRIDES,
                lambda pointer, moved=moved: cache.resolve(pointer, lambda at: b"kernel_%d_%d" % (at % 977, moved % 3)),
                now_ns=T0 + total * 10_000,
            )
            made.cycle(T0 + total * 10_000)
            total += RECORDS
        memory = resident_mb()
        first = memory if million <= WARM_MILLIONS else first
        print(
            f"{million:3d} M records  {memory:7.1f} MB  {total / (time.process_time() - began) / 1e6:.2f} M/s",
            flush=True,
        )
    counters = made.counters()
    counted = counters.kept + counters.aggregated + counters.invalid + counters.pre_session
    print(f"seen {counters.seen} of {total}, accounted for {counted}")
    print(f"grown by {memory - first:.1f} MB since {WARM_MILLIONS} M")
    return 0 if counters.seen == total == counted and memory - first < 30 else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10))

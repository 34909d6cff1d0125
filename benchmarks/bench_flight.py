"""What the flight recorder adds to gpusense's own thread, and what writing a dump takes.

``python benchmarks/bench_flight.py [rounds]``. Records a second through the pipeline with the recorder on and off in
turn, as the median of the ratios of each pair, with its quartiles; the same for records of blocks, with the look at
their length; then a ring that is full: how long it takes to write, and the size of the file.
"""

import pathlib
import statistics
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests"))

from bench_pipeline import BUFFERS, RECORDS, buffers, pipeline
from support.cupti import STRIDES, T0

from gpusense._aggregation.pipeline import Pipeline
from gpusense._aggregation.recent import Recent
from gpusense._capi import cstring, demangle
from gpusense._capture import dump
from gpusense._capture.flight import Flight, Reason, Taken
from gpusense._decode.names import NameCache, Names
from gpusense._records.records import BlockRecord
from gpusense._records.work import WorkKind, WorkTable
from gpusense._runtime.config import Settings

S = 1_000_000_000


def kernels(data, on):
    """Seconds that the pipeline takes for them."""
    made = pipeline()
    made.keep_recent(10 * S if on else None)
    names = Names(NameCache(demangle), cstring.read, cstring.Glance)
    began = time.thread_time()
    for buffer in data:
        made.feed(buffer, 5, STRIDES, names, now_ns=T0)
        made.cycle(T0 + S)
    return time.thread_time() - began


def blocks(records, on):
    """Seconds for finished blocks, as the recorder hands them on."""
    made = Pipeline(start_ns=T0)
    made.keep_recent(10 * S if on else None)
    flight = Flight(Settings(flight_recorder=10.0), lambda: None) if on else None
    began = time.thread_time()
    for first in range(0, len(records), 500):
        some = records[first : first + 500]
        made.record(some, T0)
        if flight is not None:
            flight.look(some)
    return time.thread_time() - began


def compared(what, count, measure, data, rounds):
    measure(data, False), measure(data, True)
    pairs = []
    for number in range(rounds):
        found = {on: measure(data, on) for on in ((True, False) if number % 2 else (False, True))}
        pairs.append((found[True] / found[False], (found[True] - found[False]) / count * 1e9))
    low, middle, high = statistics.quantiles([ratio for ratio, _ in pairs], n=4)
    more = statistics.median([ns for _, ns in pairs])
    print(f"{what:26} ratio {middle:.3f} [{low:.3f}, {high:.3f}], {more:+.0f} ns each", flush=True)


class Known:
    def meta(self):
        return {"start_ns": T0, "mode": "live", "threshold_ns": 100_000}

    def devices(self):
        return ()

    samples = all_unseen = devices


def written():
    table = WorkTable()
    recent, numbers = Recent(1 << 62, table), [table.kind_of(WorkKind("kernel", f"k{i}")) for i in range(40)] * 30
    number = 0
    while not recent.gone_ns:
        starts = list(range(T0 + number * 36_000_000, T0 + (number + 1) * 36_000_000, 30_000))
        ends, orders = [start + 9_000 for start in starts], range(number * 1_200, (number + 1) * 1_200)
        columns = table.append(numbers, [(1_200, 0)], starts, ends, orders)
        recent.add_rows(columns, [(10, number * 120 + i, ()) for i in range(120)], ends[-1])
        number += 1
    first, last = recent.parts()[0].newest_ns, recent.parts()[-1].newest_ns
    rows = 1_200 * len(recent.parts())
    with tempfile.TemporaryDirectory() as folder:
        cpu, began = time.thread_time(), time.perf_counter()
        what = dump.held(recent, first, last, True, {})
        path = dump.write(f"{folder}/a.gpusense", what, Taken([Reason("asked", last)], 0, None), Known(), lambda: None)
        took, spent, size = time.perf_counter() - began, time.thread_time() - cpu, pathlib.Path(path).stat().st_size
    print(
        f"a full ring: {rows:,} kernels, {(last - first) / S:.1f} s at 33,000/s; written in {took:.2f} s, {spent:.2f} "
        f"s of a core, {size / 1e6:.1f} MB"
    )


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    for run in (100, 3):
        compared(f"kernels in runs of {run}", BUFFERS * RECORDS, kernels, buffers(run), rounds)
    records = [
        BlockRecord("model", i, i - 1, ("request", "model"), T0 + i, T0 + i + 3_000_000 + i % 999, 5)
        for i in range(20_000)
    ]
    compared("blocks", len(records), blocks, records, rounds)
    written()


if __name__ == "__main__":
    main()

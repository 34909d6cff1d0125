"""What a block costs on a real GPU while capture runs: enter and exit with their pair of markers, no work inside.

    python benchmarks/gpu/block_cost.py

Needs a GPU, no torch; ends within 30 seconds. Median and 95 % interval of 60 parts of 2,000 blocks each, in turn:
``off`` is the tracer that does nothing, ``no marker`` records blocks while capture is paused, ``live`` is the whole of
it. Then the marker call alone, and how many of all markers' records came back.
"""

import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

import gpusense
from gpusense import cuda
from gpusense._tracing import select
from gpusense._tracing.noop import NoopTracer
from gpusense.cuda import _workload

PARTS, BLOCKS = 60, 2_000


def cost(trace):
    began = time.perf_counter_ns()
    for _ in range(BLOCKS):
        with trace("x"):
            pass
    return (time.perf_counter_ns() - began) / BLOCKS / 1e3


def show(name, values):
    values = sorted(values)
    half = 0.98 * len(values) ** 0.5
    low, high = values[int(len(values) / 2 - half)], values[int(len(values) / 2 + half)]
    print(f"  {name:12} {values[len(values) // 2]:7.3f} µs  [{low:.3f}, {high:.3f}]", flush=True)


def main():
    card = cuda.Device(0)
    spin = cuda.Module.from_ptx(_workload.PTX, card).function("spin")
    run = select.control.start_session(mode="live")
    recorder = run.tracer.recorder
    while recorder.marker is None:
        with gpusense.trace("waiting"):
            time.sleep(0.01)
    spin.launch((1,), (32,), (1000,))
    noop, rows = NoopTracer("nothing"), {"off": [], "no marker": [], "live": [], "marker": []}
    for number in range(PARTS):
        rows["off"].append(cost(noop.trace))
        rows["live"].append(cost(run.tracer.trace))
        card.synchronize()
        recorder.flush(1.0)
        marker, recorder.marker = recorder.marker, None
        rows["no marker"].append(cost(run.tracer.trace))
        recorder.marker = marker
        began = time.perf_counter_ns()
        for token in range(BLOCKS):
            marker(0x7F000000 + number * BLOCKS + token)
        rows["marker"].append((time.perf_counter_ns() - began) / BLOCKS / 1e3)
        card.synchronize()
        recorder.flush(1.0)
    print(f"{card.name}, Python {sys.version.split()[0]}")
    for name, values in rows.items():
        show(name, values)
    counters = run.finish().counters
    print(f"  lost markers {counters.lost_markers}, dropped {counters.dropped}, missed {counters.missed}")


if __name__ == "__main__":
    main()

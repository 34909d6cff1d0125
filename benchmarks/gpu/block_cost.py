"""What a block costs on a real GPU: enter and exit, no work inside.

    python benchmarks/gpu/block_cost.py [--light [PAIRS]]

While capture runs, with its pair of markers. Needs a GPU, no torch; ends within 30 seconds. Median and 95 % interval of
60 parts of 2,000 blocks each, in turn: ``off`` is the tracer that does nothing, ``no marker`` records blocks while
capture is paused, ``live`` is the whole of it. Then the marker call alone, and how many of all markers' records came
back.

``--light``: where the device times blocks instead, and capture does not run. Needs torch; 150 pairs take four minutes.
The same parts for an idle and a busy stream, ``untimed`` without marks, and ``reading`` of each block by gpusense's
thread, processor time. Then launch-bound training with three blocks a step, in one process: halves of 0.3 s with the
blocks timed and with blocks that do nothing, in turn, the first of each pair by turns; before each its kind has run for
longer than gpusense waits between two readings. Of the slowest tenth of a half's steps nothing is said: the machine was
elsewhere. Of the ratios the median with its 95 % interval (bootstrap), beside pairs of halves without blocks; and what
ends and reading come to by themselves.
"""

import pathlib
import random
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

import gpusense
from gpusense import cuda
from gpusense._tracing import select
from gpusense._tracing.noop import NoopTracer
from gpusense.cuda import _workload

PARTS, BLOCKS = 60, 2_000
HALF_S, SETTLE_S = 0.3, 0.15


def cost(trace, blocks=BLOCKS):
    began = time.perf_counter_ns()
    for _ in range(blocks):
        with trace("x"):
            pass
    return (time.perf_counter_ns() - began) / blocks / 1e3


def show(name, values):
    values = sorted(values)
    half = 0.98 * len(values) ** 0.5
    low, high = values[int(len(values) / 2 - half)], values[int(len(values) / 2 + half)]
    print(f"  {name:12} {values[len(values) // 2]:7.3f} µs  [{low:.3f}, {high:.3f}]", flush=True)


def light(pairs):
    import torch
    import workloads

    model, optimizer, data = workloads.launches().parts
    gpusense.configure(mode="on", kernels="blocks")
    tracer, noop = gpusense.get_tracer(), NoopTracer("nothing")

    def step(trace):
        inputs = data.cuda()
        with trace("step"):
            with trace("forward"), torch.autocast("cuda", torch.bfloat16):
                loss = model(inputs).float().pow(2).mean()
            optimizer.zero_grad()
            with trace("backward"):
                loss.backward()
            optimizer.step()
        return loss.item()

    def half(trace):
        """Milliseconds a step."""
        settled = time.perf_counter() + SETTLE_S
        while time.perf_counter() < settled:
            step(trace)
        took, until = [], time.perf_counter() + HALF_S
        while (began := time.perf_counter()) < until:
            step(trace)
            took.append((time.perf_counter() - began) * 1e3)
        return statistics.mean(sorted(took)[: len(took) - len(took) // 10])

    for trace in (noop.trace, tracer.trace):
        half(trace)
    print(f"{torch.cuda.get_device_name()}, Python {sys.version.split()[0]}, torch {torch.__version__}")
    each = ends(tracer, noop, torch)
    ratios, plain = {"light": [], "nothing": []}, []
    for number in range(pairs):
        for name, other in (("light", tracer.trace), ("nothing", noop.trace)):
            first = number % 2
            found = [half(other if at == first else noop.trace) for at in (0, 1)]
            ratios[name].append(found[first] / found[1 - first])
            plain.append(found[1 - first])
            tracer.flush(1)
    step_ms = statistics.median(plain)
    print(f"a step takes {step_ms:.2f} ms; by themselves three blocks are {0.3 * each / step_ms:.2f} % of it")
    for name, values in ratios.items():
        medians = sorted(statistics.median(random.choices(values, k=pairs)) for _ in range(5_000))
        print(f"  {name:8} {statistics.median(values):.4f} [{medians[125]:.4f}, {medians[-126]:.4f}], {pairs} pairs")
    print(f"  {tracer.recorder.block_times.status()}")


def ends(tracer, noop, torch):
    """Microseconds a block: at its ends, and of reading it."""
    listeners, times = tracer._listeners, tracer.recorder.block_times
    rows = {name: [] for name in ("off", "untimed", "idle", "busy")}
    reading = []
    for _ in range(PARTS):
        for name, values in rows.items():
            tracer._listeners = () if name == "untimed" else listeners
            if name == "busy":
                torch.cuda._sleep(20_000_000)
            with times._reading:  # each by itself
                values.append(cost(noop.trace if name == "off" else tracer.trace, 200))
            torch.cuda.synchronize()
            began = time.thread_time_ns()
            times.poll()
            if name == "busy":
                reading.append((time.thread_time_ns() - began) / 200 / 1e3)
            tracer.flush(1)
    for name, values in {**rows, "reading": reading}.items():
        show(name, values)
    return statistics.median(rows["idle"]) - statistics.median(rows["off"]) + statistics.median(reading)


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
    if sys.argv[1:2] == ["--light"]:
        light(int(sys.argv[2]) if sys.argv[2:] else 150)
    else:
        main()

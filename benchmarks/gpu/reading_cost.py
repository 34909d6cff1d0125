"""What reading the records costs a program beyond what CUPTI does. Needs a GPU and torch.

    python benchmarks/gpu/reading_cost.py [--seconds 150] [--modes file,live] [--workload small] [--stretch 0.5]

One process a mode. CUPTI records all the time; in turn, for half a second each, gpusense's threads read as they always
do, or get nothing and ask CUPTI for nothing: what comes meanwhile is thrown away. The median of the ratios of a step's
time in neighbouring stretches with its 95 % interval, and the Hodges-Lehmann estimate with its own (see overhead.py).
*threads*: their CPU time a step beyond that in stretches where they get nothing.
"""

import argparse
import gc
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]


class Reading:
    """Switches what gpusense's threads get."""

    def __init__(self, run):
        self.recorder = run.tracer._recorder
        while not self.recorder.capture.running:
            time.sleep(0.01)
        self.hub = self.recorder.capture._activity.shared["flush"].__self__
        self.engine = self.hub._engine
        self.threads = [thread for thread in (run.tracer._worker._thread, self.hub._thread) if thread is not None]

    def end(self):
        self.engine.take, self.engine.flush = lambda: None, lambda forced: None

    def begin(self):
        with self.hub._reading:
            del self.engine.take, self.engine.flush
            self.engine.flush(False)
            while full := self.engine.take():
                self.engine.give(full[0])

    def cpu_s(self):
        total = 0.0
        for thread in self.threads:
            with open(f"/proc/self/task/{thread.native_id}/schedstat") as file:
                total += int(file.read().split()[0]) / 1e9
        return total


def cost(mode, workload, seconds, stretch_s):
    import torch
    import workloads
    from ratios import estimate, interval

    from gpusense import _select

    step = workloads.ALL[workload]()
    for _ in range(20):
        step()
    run = _select.start_session(mode=mode, path=os.path.join(tempfile.mkdtemp(), "run.gpusense"))
    reading = Reading(run)
    gc.collect()
    gc.freeze()

    def stretch():
        step()
        torch.cuda.synchronize()
        began, cpu, steps = time.perf_counter(), reading.cpu_s(), 0
        while time.perf_counter() - began < stretch_s:
            step()
            steps += 1
        torch.cuda.synchronize()
        return (time.perf_counter() - began) / steps, (reading.cpu_s() - cpu) / steps

    stretch()
    end, found = time.monotonic() + seconds, []
    reading.end()
    found.append(stretch())
    while time.monotonic() < end:
        reading.begin()
        found.append(stretch())
        reading.end()
        found.append(stretch())
    without, with_it = found[::2], found[1::2]
    ratios = [2 * on[0] / (off[0] + next_[0]) for off, on, next_ in zip(without, with_it, without[1:], strict=False)]
    threads = statistics.mean(cpu for _, cpu in with_it) - statistics.mean(cpu for _, cpu in without)
    step_s = statistics.median(took for took, _ in without)
    low, high = interval(sorted(ratios))
    middle, *edges = estimate(ratios)
    print(
        f"{mode}: x{statistics.median(ratios):.4f} [{low:.4f}, {high:.4f}], Hodges-Lehmann x{middle:.4f} "
        f"[{edges[0]:.4f}, {edges[1]:.4f}], {len(ratios)} pairs; a step {step_s * 1e3:.1f} ms, threads "
        f"{threads * 1e6:.0f} us of it",
        flush=True,
    )
    os._exit(0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=150)
    parser.add_argument("--modes", default="file,live")
    parser.add_argument("--workload", default="small")
    parser.add_argument("--stretch", type=float, default=0.5)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        cost(given.child, given.workload, given.seconds, given.stretch)
    for mode in given.modes.split(","):
        subprocess.run([sys.executable, __file__, *sys.argv[1:], "--child", mode], check=False)


if __name__ == "__main__":
    main()

"""What reading the records costs a program beyond what CUPTI does, and which part of it. Needs a GPU and torch.

    python benchmarks/gpu/reading_cost.py [--seconds 150] [--modes file,live] [--states away,floor,still,…]

One process a mode. Between short parts in which CUPTI records, gpusense's threads get nothing and ask CUPTI for
nothing lies, in random order, one of each state:

*away*, CUPTI is out of the process; *floor*, it records and gpusense has ended; *still*, gpusense's threads wake up and
do nothing at all; *asked*, CUPTI is asked for what is finished as often as ever and nobody looks at it; *copied*, it is
copied elsewhere with the GIL released and thrown away, so that another processor has read the memory which the next
launches write; *read*, everything as it always is.

The ratio of a step's time to that in the two parts around it: the median with its 95 % interval, and the
Hodges-Lehmann estimate with its own (see overhead.py). *CPU*: the same estimate of the program's threads' CPU time.
*threads*: CPU time of gpusense's threads a step beyond that in parts where they get nothing.
"""

import argparse
import ctypes
import gc
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

copy = ctypes.CDLL(None).memcpy  # gives the GIL up, which ctypes.memmove does not
copy.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)

SETTLE_S = 0.05
PERIOD_S = 0.5  # in which gpusense reads once, or more often
READING = ("asked", "copied", "read")
OUTSIDE = ("away", "floor")  # gpusense's capture has ended


class Reading:
    """Switches what gpusense's threads get, and whether they are there."""

    def __init__(self, run):
        from gpusense._decode import layouts

        self.kinds = layouts.DEFAULT_KINDS
        self.recorder = run.tracer.recorder
        self.wait()
        self.hub = self.recorder.capture._activity.shared["flush"].__self__
        self.engine = self.hub._engine
        self.take, self.flush = self.engine.take, self.engine.flush
        self.elsewhere = ctypes.create_string_buffer(self.engine.mailbox.buffer_size)
        self.worker = run.tracer._worker
        self.state = "read"

    def wait(self):
        while not self.recorder.capture.running:
            time.sleep(0.001)

    def switch(self, state):
        """Begins with nothing left over from the state before."""
        if self.state in OUTSIDE or state in OUTSIDE:
            self.take_out()
            self.bring_in(state)
        with self.hub._reading:
            self.flush(False)
            self.throw_away()
            self.engine.flush = self.flush if state in READING else lambda forced: None
            takes = {"asked": self.throw_away, "copied": self.copy_away, "read": self.take}
            self.engine.take = takes.get(state, lambda: None)
        self.recorder.__dict__.pop("tick", None)
        if state == "still":
            self.recorder.tick = lambda *_, **__: True
        self.state = state

    def take_out(self):
        """CUPTI, whoever has it in the process."""
        if self.state == "floor":
            for kind in self.kinds:
                self.engine.disable(kind)
            self.engine.finalize()
        elif self.state != "away":
            self.engine.take, self.engine.flush = self.take, self.flush
            self.recorder.pause_capture()
            reason = self.recorder.capture.detach()
            assert not reason, reason

    def bring_in(self, state):
        if state == "floor":
            self.engine.register()
            for kind in self.kinds:
                self.engine.enable(kind)
        elif state != "away":
            self.recorder.resume_capture()
            self.wait()

    def throw_away(self):
        while full := self.take():
            self.engine.give(full[0])

    def copy_away(self):
        while full := self.take():
            copy(self.elsewhere, full[0], full[1])
            self.engine.give(full[0])

    def own(self):
        """Threads of gpusense that run."""
        return {thread.native_id for thread in (self.worker._thread, self.hub._thread) if thread is not None}


def cpu_s(threads):
    total = 0
    for thread in threads:
        with open(f"/proc/self/task/{thread}/schedstat") as file:
            total += int(file.read().split()[0])
    return total / 1e9


def cost(mode, workload, seconds, part_s, states):
    import torch
    import workloads

    from gpusense._tracing import select

    step = workloads.ALL[workload]()
    for _ in range(20):
        step()
    program = os.listdir("/proc/self/task")
    run = select.control.start_session(mode=mode, path=os.path.join(tempfile.mkdtemp(), "run.gpusense"))
    reading = Reading(run)
    gc.collect()
    gc.freeze()

    def part(state):
        reading.switch(state)
        settled = time.perf_counter() + SETTLE_S
        if state in READING:  # then at any moment between two readings
            settled += PERIOD_S * (1 + random.random())
        step()
        while time.perf_counter() < settled:
            step()
        torch.cuda.synchronize()
        own, began, steps = reading.own(), time.perf_counter(), 0
        cpu = cpu_s(program), cpu_s(own)
        while time.perf_counter() - began < part_s:
            step()
            steps += 1
        torch.cuda.synchronize()
        took = time.perf_counter() - began, cpu_s(program) - cpu[0], cpu_s(own) - cpu[1]
        return [each / steps for each in took]

    part("read")
    end, found = time.monotonic() + seconds, {state: [] for state in states}
    before = part("nothing")
    usual = [before]
    while time.monotonic() < end:
        for state in random.sample(states, len(states)):
            with_it, after = part(state), part("nothing")
            ratio, cpu = (2 * with_it[i] / (before[i] + after[i]) for i in (0, 1))
            found[state].append((ratio, cpu, with_it[2]))
            usual.append(before := after)
    step_s, _, idle_s = (statistics.median(column) for column in zip(*usual, strict=True))
    print(f"{mode}, a step {step_s * 1e3:.1f} ms where gpusense gets nothing")
    for state, pairs in found.items():
        ratios, cpu, threads = zip(*pairs, strict=True)
        show(f"{state:7}", ratios, cpu, statistics.mean(threads) - idle_s)
    os._exit(0)


def show(what, ratios, cpu, threads_s):
    from ratios import estimate, interval

    low, high = interval(sorted(ratios))
    wall, of_cpu = ("{:.4f} [{:.4f}, {:.4f}]".format(*estimate(each)) for each in (ratios, cpu))
    print(
        f"{what} x{statistics.median(ratios):.4f} [{low:.4f}, {high:.4f}], Hodges-Lehmann x{wall}, CPU x{of_cpu}, "
        f"{len(ratios)} pairs, threads {threads_s * 1e6:.0f} us",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=150)
    parser.add_argument("--modes", default="file,live")
    parser.add_argument("--workload", default="small")
    parser.add_argument("--part", type=float, default=0.25)
    parser.add_argument("--states", default="away,floor,still,asked,copied,read")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        cost(given.child, given.workload, given.seconds, given.part, given.states.split(","))
    for mode in given.modes.split(","):
        subprocess.run([sys.executable, __file__, *sys.argv[1:], "--child", mode], check=False)


if __name__ == "__main__":
    main()

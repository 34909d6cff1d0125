"""What an overhead budget keeps on a real GPU: the launch-bound training job under it. Needs a GPU and torch.

    python benchmarks/gpu/budget.py [--seconds 60] [--budget 0.02] [--mode file|live]

Capture is on for a part of each cycle, and so compares with itself: of each cycle the mean step with capture on against
the mean step with it off. The ratio, less one, times the share of the steps with capture on is what the job was slowed.
"""

import argparse
import os
import pathlib
import statistics
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--budget", type=float, default=0.02)
    parser.add_argument("--mode", choices=("file", "live"), default="file")
    given = parser.parse_args()
    import torch
    import workloads
    from overhead import estimate, interval

    from gpusense import _select

    step = workloads.small()
    for _ in range(20):
        step()
    path = os.path.join(tempfile.mkdtemp(), "run.gpusense")
    run = _select.start_session(mode=given.mode, path=path, overhead_budget=given.budget)
    recorder = run.tracer._recorder
    settled = time.monotonic() + 8  # a cycle lasts a second
    end = settled + given.seconds
    cycles, current = [], ([], [])
    was = True
    while (began := time.monotonic()) < end:
        on = recorder._duty.lasting() is None
        step()
        took = time.monotonic() - began
        still = recorder._duty.lasting() is None
        if began < settled or on is not still:  # the switch lies in it
            continue
        if on and not was and all(current):
            cycles.append(current)
            current = ([], [])
        current[on].append(took)
        was = on
    facts = recorder._duty.facts(time.time_ns(), recorder.pipeline.threshold)
    state = run.tracer.status()
    session = run.finish()
    if not cycles:
        raise SystemExit(f"capture was not switched: {facts}, {state}, {session.counters}, {session.unseen[-3:]}")
    ratios = [statistics.mean(on) / statistics.mean(off) for off, on in cycles]
    steps_on = sum(len(on) for _, on in cycles)
    share = steps_on / (steps_on + sum(len(off) for off, _ in cycles))
    low, high = interval(sorted(ratios))
    middle, *edges = estimate(ratios)
    job = [1 + (value - 1) * share for value in (middle, *edges)]
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {given.mode} mode, budget {given.budget:.1%}")
    print(f"{len(cycles)} cycles, capture on for {share:.1%} of the steps, of the time {facts['observed']:.1%}")
    print(
        f"a step with capture on: x{statistics.median(ratios):.4f} [{low:.4f}, {high:.4f}], "
        f"Hodges-Lehmann x{middle:.4f} [{edges[0]:.4f}, {edges[1]:.4f}]"
    )
    print(
        f"the job: x{job[0]:.4f} [{job[1]:.4f}, {job[2]:.4f}]; gpusense reckons with {facts['share']:.2%}; "
        f"threshold {facts['threshold_ns'] / 1e3:.0f} us; {session.counters.seen} records"
    )


if __name__ == "__main__":
    main()

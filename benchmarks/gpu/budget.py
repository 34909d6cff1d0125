"""What an overhead budget keeps on a real GPU: the launch-bound training job under it. Needs a GPU and torch.

    python benchmarks/gpu/budget.py [--seconds 180] [--budget 0.02] [--mode file|live] [--detach]

In turn, some cycles of the session under its budget and a stretch without CUPTI in the process; the ratio of a step's
mean time in both is what the job is slowed, whether capture was on or rested. ``--detach``: rests take CUPTI out.
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
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--budget", type=float, default=0.02)
    parser.add_argument("--mode", choices=("file", "live"), default="file")
    parser.add_argument("--detach", action="store_true")
    given = parser.parse_args()
    import torch
    import workloads
    from ratios import estimate, interval

    from gpusense import _select

    step = workloads.small()
    for _ in range(20):
        step()
    path = os.path.join(tempfile.mkdtemp(), "run.gpusense")
    run = _select.start_session(mode=given.mode, path=path, overhead_budget=given.budget, detach_in_rests=given.detach)
    recorder = run.tracer._recorder
    cycle_s = 10 if given.detach else 1
    settled = time.monotonic() + 8 * cycle_s
    while time.monotonic() < settled:
        step()
    end = time.monotonic() + given.seconds
    aways, kept, steps_on, steps = [], [], 0, 0
    while time.monotonic() < end:
        recorder.pause_capture()
        torch.cuda.synchronize()
        reason = recorder.capture.detach()
        assert not reason, reason
        step()
        aways.append(statistics.mean(timed(step) for _ in range(30)))
        recorder.resume_capture()
        settled = time.monotonic() + 2 * cycle_s  # the stretch without CUPTI cost nothing, and the budget noticed
        while time.monotonic() < settled:
            step()
        took = []
        while time.monotonic() < settled + 5 * cycle_s:
            steps_on += recorder._duty.lasting() is None
            took.append(timed(step))
        kept.append(statistics.mean(took))
        steps += len(took)
    facts = recorder._duty.facts(time.time_ns(), recorder.pipeline.threshold)
    state = run.tracer.status()
    session = run.finish()
    # Each stretch under the budget against the two without CUPTI around it.
    ratios = [2 * mean / (before + after) for mean, before, after in zip(kept, aways, aways[1:], strict=False)]
    if len(ratios) < 3:
        raise SystemExit(f"too short: {facts}, {state}, {session.counters}, {session.unseen[-3:]}")
    low, high = interval(sorted(ratios))
    middle, *edges = estimate(ratios)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {given.mode} mode, budget {given.budget:.1%}")
    print(f"{len(ratios)} stretches, capture on for {steps_on / steps:.1%} of the steps")
    print(
        f"the job: x{statistics.median(ratios):.4f} [{low:.4f}, {high:.4f}], Hodges-Lehmann x{middle:.4f} "
        f"[{edges[0]:.4f}, {edges[1]:.4f}]; gpusense reckons with {facts['share']:.2%}; "
        f"threshold {facts['threshold_ns'] / 1e3:.0f} us; {session.counters.seen} records"
    )


def timed(step):
    began = time.monotonic()
    step()
    return time.monotonic() - began


if __name__ == "__main__":
    main()

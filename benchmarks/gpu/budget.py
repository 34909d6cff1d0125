"""What an overhead budget keeps on a real GPU: the launch-bound training job under it. Needs a GPU and torch.

    python benchmarks/gpu/budget.py [--seconds 180] [--budget 0.02] [--mode file|live] [--detach]

In turn, some cycles of the session under its budget and a part without CUPTI in the process; the ratio of a step's
mean time in both is what the job is slowed, whether capture was on or paused. ``--detach``: pauses take CUPTI out, and
are that part themselves: a cycle, from the moment in which CUPTI went out to the next, is compared with its own
pause. The pauses are compared with the time before the session too.
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

    from gpusense._tracing import select

    step = workloads.small()
    for _ in range(20):
        step()
    before = statistics.median(timed(step) for _ in range(100))
    path = os.path.join(tempfile.mkdtemp(), "run.gpusense")
    run = select.control.start_session(
        mode=given.mode, path=path, overhead_budget=given.budget, detach_in_pauses=given.detach
    )
    recorder = run.tracer.recorder
    settled = time.monotonic() + (40 if given.detach else 8)
    while time.monotonic() < settled:
        step()
    ratios, share_on, pauses = (detached if given.detach else against_away)(recorder, step, given.seconds)
    facts = recorder._budget.facts(time.time_ns(), recorder.store.threshold)
    state = run.tracer.status()
    session = run.finish()
    if len(ratios) < 3:
        raise SystemExit(f"too short: {facts}, {state}, {session.counters}, {session.unseen[-3:]}")
    low, high = interval(sorted(ratios))
    middle, *edges = estimate(ratios)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {given.mode} mode, budget {given.budget:.1%}")
    print(f"{len(ratios)} parts, capture on for {share_on:.1%} of the steps")
    if pauses:
        print(f"a step in pauses {pauses * 1e3:.2f} ms, before the session {before * 1e3:.2f} ms")
    print(
        f"the job: x{statistics.median(ratios):.4f} [{low:.4f}, {high:.4f}], Hodges-Lehmann x{middle:.4f} "
        f"[{edges[0]:.4f}, {edges[1]:.4f}]; gpusense reckons with {facts['share']:.2%}; "
        f"threshold {facts['threshold_ns'] / 1e3:.0f} us; {session.counters.seen} records"
    )


def against_away(recorder, step, seconds):
    """Each part under the budget against the two without CUPTI around it."""
    import torch

    end = time.monotonic() + seconds
    aways, kept, steps_on, steps = [], [], 0, 0
    while time.monotonic() < end:
        recorder.pause_capture()
        torch.cuda.synchronize()
        reason = recorder.capture.detach()
        assert not reason, reason
        step()
        aways.append(statistics.mean(timed(step) for _ in range(30)))
        recorder.resume_capture()
        settled = time.monotonic() + 2  # the part without CUPTI cost nothing, and the budget noticed
        while time.monotonic() < settled:
            step()
        took = []
        while time.monotonic() < settled + 5:
            steps_on += recorder._budget.lasting() is None
            took.append(timed(step))
        kept.append(statistics.mean(took))
        steps += len(took)
    ratios = [2 * mean / (before + after) for mean, before, after in zip(kept, aways, aways[1:], strict=False)]
    return ratios, steps_on / steps, None


def detached(recorder, step, seconds):
    """Each cycle against its own pause, without the half second in which CUPTI went out, and the last of its steps."""
    keeper, end = recorder._budget, time.monotonic() + seconds
    cycles, steps_on, was_out = [[]], 0, keeper.outside
    while time.monotonic() < end:
        out, on = keeper.outside, keeper.lasting() is None
        if out and not was_out:
            cycles.append([])
        was_out = out
        cycles[-1].append((timed(step), out and keeper.outside))
        steps_on += on
    ratios, pauses = [], []
    for cycle in cycles[1:-1]:  # the first and the last are not whole
        passed, pause = 0.0, []
        for took, out in cycle:
            passed += took
            if out and passed > 0.5:
                pause.append(took)
        del pause[-1:]
        if not pause:  # CUPTI stayed in
            continue
        ratios.append(statistics.mean(took for took, _ in cycle) / statistics.mean(pause))
        pauses.append(statistics.median(pause))
    return ratios, steps_on / sum(map(len, cycles)), statistics.median(pauses) if pauses else None


def timed(step):
    began = time.monotonic()
    step()
    return time.monotonic() - began


if __name__ == "__main__":
    main()

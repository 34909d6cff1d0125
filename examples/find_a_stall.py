"""What gpusense finds by itself: a training that stops for 20 ms after every tenth step, as saving or logging does.

The kernels are made up, so that this runs anywhere; where there is a GPU they come from CUPTI, and ``gpusense run
train.py`` gives the same answer without a change to the program.

    python examples/find_a_stall.py
"""

import os
import tempfile
import time

import gpusense
from gpusense import cli
from gpusense.session import save

MS = 1_000_000


def training(steps: int) -> int:
    """Records what a GPU would do from now on: three kernels a step. When it would be done, in nanoseconds."""
    now = time.time_ns()
    for step in range(steps):
        for place, name in enumerate(("forward", "backward", "optimizer")):
            gpusense.record_kernel(name, now, now + MS, device=0, correlation_id=3 * step + place + 1)
            now += MS
        if step % 10 == 9:
            now += 20 * MS  # the host did something else, and launched nothing
    return now


def main() -> None:
    gpusense.configure(trace_all=True)
    gpusense.enable()
    end = training(100)
    time.sleep(max(0, end - time.time_ns()) / 1e9)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "training.gpusense")
        save(gpusense.get_tracer().session(), path)
        cli.main(["report", path])


if __name__ == "__main__":
    main()

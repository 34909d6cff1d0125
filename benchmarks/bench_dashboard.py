"""What ``gpusense top`` costs: one frame of several sizes, and its share of a core at two pictures a second.

``pytest benchmarks/bench_dashboard.py`` times frames. ``python benchmarks/bench_dashboard.py [SECONDS]`` runs the real
loop (monitor, AMD backend over a made-up tree, drawing) and prints the processor time it took.
"""

import io
import pathlib
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import pytest  # noqa: E402
from scripted_devices import SECOND, sample  # noqa: E402
from sysfs_trees import Tree  # noqa: E402

from gpusense._draw import Theme  # noqa: E402
from gpusense._frame import State, frame  # noqa: E402


def state(devices: int) -> State:
    history = [sample(0, place * SECOND // 2, busy=place * 7 % 100) for place in range(121)]
    return State(tuple(sample(index) for index in range(devices)), history, 0, 60 * SECOND)


@pytest.mark.benchmark(group="dashboard")
@pytest.mark.parametrize("devices", [0, 1, 8])
@pytest.mark.parametrize("size", [(80, 24), (200, 60), (300, 100)])
def test_frame(benchmark, devices, size):
    picture = state(devices) if devices else State(notes=("nvml: no driver",))
    frame(picture, *size, Theme())
    benchmark(frame, picture, *size, Theme())


class Paper(io.StringIO):
    """A terminal of 200 × 60 that nobody looks at, for a limited time."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._end = time.monotonic() + seconds
        self.frames = 0

    def size(self) -> tuple[int, int]:
        return 200, 60

    def draw(self, lines: list[str]) -> None:
        self.frames += 1
        self.seek(0)
        self.write("\n".join(lines))

    def wait(self, seconds: float) -> list[str]:
        time.sleep(max(seconds, 0))
        return ["q"] if time.monotonic() > self._end else []


def main(seconds: float) -> None:
    from gpusense import dashboard, monitor
    from gpusense.backends import amd_sysfs

    print(f"{'GPUs':>4} {'frames':>7} {'CPU ms a frame':>15} {'share of a core':>16}")
    for devices in (1, 8):
        with tempfile.TemporaryDirectory() as folder:
            tree = Tree(pathlib.Path(folder) / "sys")
            for number in range(devices):
                tree.amd(number, f"0000:{number + 3:02x}:00.0")
            source = amd_sysfs.open(str(tree.root)).metrics
            paper = Paper(seconds)
            with monitor.start_background(None, 0.5, history=122, source=source) as running:
                time.sleep(1)
                began, spent = time.monotonic(), time.process_time()
                dashboard.run(dashboard.Live(running), paper, Theme(), 0.5)
                spent, took = time.process_time() - spent, time.monotonic() - began
        print(f"{devices:>4} {paper.frames:>7} {spent * 1e3 / paper.frames:>15.2f} {spent / took:>15.2%}")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 30)

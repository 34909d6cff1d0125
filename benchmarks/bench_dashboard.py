"""What ``gpusense top`` costs: one frame of several sizes, and its share of a core at two pictures a second.

``pytest benchmarks/bench_dashboard.py`` times frames. ``python benchmarks/bench_dashboard.py [SECONDS] [SOURCE]`` runs
the real loop (monitor, drawing, a terminal of 200 × 60 that something reads) and prints the processor time it took, by
kind of thread. SOURCE is "nvml" (the scripted NVIDIA driver of the tests, whose answers cost nothing, with values
that change), "amd" (that backend on a made-up tree) or "live" (the devices of this machine).

Budget: 0.5 % of a core for eight devices with their sampling, 10 ms a frame.
"""

import contextlib
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import pytest  # noqa: E402
from support.devices import (  # noqa: E402
    SECOND,
    Tree,
    sample,
)

from gpusense._records.device_identity import key  # noqa: E402
from gpusense.cli.dashboard import dashboard, screen  # noqa: E402
from gpusense.cli.dashboard.frame import State, frame  # noqa: E402
from gpusense.cli.dashboard.paint import Theme  # noqa: E402

COLUMNS, ROWS = 200, 60


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


class Timed(screen.Screen):
    """The real screen, quit after a while; counts frames and the longest time from one wait to the next."""

    def __init__(self, out, seconds: float) -> None:
        super().__init__(out, open(os.devnull))  # noqa: SIM115
        self._until = time.monotonic() + seconds
        self._woke = time.thread_time()
        self.frames, self.longest_s = 0, 0.0

    def draw(self, lines: list[str]) -> None:
        super().draw(lines)
        self.frames += 1

    def wait(self, seconds: float) -> list[str]:
        self.longest_s = max(self.longest_s, time.thread_time() - self._woke)
        pressed = super().wait(seconds)
        self._woke = time.thread_time()
        return ["q"] if time.monotonic() > self._until else pressed


@contextlib.contextmanager
def terminal():
    """A text file on a pseudo-terminal whose other end another process reads."""
    import fcntl
    import struct
    import termios

    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    reader = subprocess.Popen(["cat"], stdin=master, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.close(master)
    try:
        with open(slave, "w", encoding="utf-8") as out:
            yield out
    finally:
        reader.wait()


def spent_s() -> dict[str, float]:
    """Processor seconds so far of the thread that draws, the sampling threads and the others, as the kernel counts."""
    kinds = {"draw": 0.0, "sample": 0.0, "other": 0.0}
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    sampling = {number for number, name in names.items() if name.startswith("gpusense")}
    for task in pathlib.Path("/proc/self/task").iterdir():
        kind = "draw" if int(task.name) == os.getpid() else "sample" if int(task.name) in sampling else "other"
        kinds[kind] += int((task / "schedstat").read_text().split()[0]) / 1e9
    return kinds


def remember(running) -> None:
    """A minute of history, as after a minute: what was read just now with a load that moves."""
    for latest in running.latest():
        samples = running._samples[key(latest.device)]
        first = samples[0].monotonic_ns
        for place in range(1, 121):
            use = latest.utilization._replace(gpu_percent=random.randrange(100))
            samples.appendleft(latest._replace(monotonic_ns=first - place * SECOND // 2, utilization=use))


def measure(source, devices: int, seconds: float) -> None:
    """As ``gpusense top`` starts it, over ``source`` (None: this machine's)."""
    from gpusense.cli import top

    with top.watching(0.5, source=source) as running, top.Focus(0.5, source=source) as focus, terminal() as out:
        time.sleep(2)
        devices = devices or len(running.devices)
        remember(running)
        with Timed(out, seconds) as screen:
            before, began = spent_s(), time.monotonic()
            dashboard.run(dashboard.Live(running, focus=focus.on), screen, Theme(), 0.5)
            after, took = spent_s(), time.monotonic() - began
    shares = [(after[kind] - before[kind]) / took for kind in ("draw", "sample", "other")]
    each = (after["draw"] - before["draw"]) * 1e3 / screen.frames
    columns = [f"{share:>8.2%}" for share in (*shares, sum(shares))]
    print(f"{devices:>4} {screen.frames:>7} {each:>11.2f} {screen.longest_s * 1e3:>11.2f}", *columns, flush=True)


@contextlib.contextmanager
def nvml(devices: int):
    """The scripted driver with ``devices`` devices, two processes on each and load that changes as we look."""
    from support.devices import FakeNvml
    from support.machine import find_compiler

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        built = folder / "built.so"
        command = [*find_compiler(), "-shared", "-fPIC", "-O2", "-pthread", "-o", str(built)]
        subprocess.run([*command, str(ROOT / "tests" / "fakes" / "libnvidia_ml.c")], check=True, timeout=300)
        (folder / "driver").mkdir()
        fake = FakeNvml(built, folder / "driver")
        fake.devices(devices)
        fake.slow("nvmlEventSetWait_v2", 5000)  # waits in the driver until there is an event, as the real one does
        os.environ["GPUSENSE_LIBNVIDIA_ML"] = fake.path
        ended = threading.Event()

        def change() -> None:
            while not ended.wait(0.5):
                for device in range(devices):
                    fake.value("utilization/gpu", random.randrange(100), device)
                    fake.value("memory/used", random.randrange(80 << 30), device)

        changing = threading.Thread(target=change, daemon=True)
        changing.start()
        try:
            yield fake.source()
        finally:
            ended.set()
            changing.join()


@contextlib.contextmanager
def amd(devices: int):
    from gpusense.backends.amd import sysfs as amd_sysfs

    with tempfile.TemporaryDirectory() as folder:
        tree = Tree(pathlib.Path(folder) / "sys")
        for number in range(devices):
            tree.amd(number, f"0000:{number + 3:02x}:00.0")
        yield amd_sysfs.open(str(tree.root)).metrics


def main(seconds: float, kind: str) -> None:
    print(f"{'GPUs':>4} {'frames':>7} {'ms a frame':>11} {'longest ms':>11}", end="")
    print("".join(f" {kind:>8}" for kind in ("draw", "sample", "other", "all")))
    if kind == "live":
        measure(None, 0, seconds)
        return
    for devices in (1, 8):
        with (nvml if kind == "nvml" else amd)(devices) as source:
            measure(source, devices, seconds)


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if not word.replace(".", "").isdigit()]
    numbers = [float(word) for word in sys.argv[1:] if word not in words]
    main(numbers[0] if numbers else 30, words[0] if words else "nvml")

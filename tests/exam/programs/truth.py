"""What a program of the exam knows about its own speed, measured without gpusense and written to ``$EXAM_TRUTH``.

``EXAM_SCALE`` multiplies sizes, ``EXAM_STEPS`` limits the number of steps, and ``EXAM_FIXED=1`` runs the program
without its fault, so that what the fault costs can be measured as well.
"""

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

SCALE = float(os.environ.get("EXAM_SCALE", "1"))
FIXED = os.environ.get("EXAM_FIXED", "") not in ("", "0")


def scaled(size: int, multiple: int = 8) -> int:
    """A size under ``EXAM_SCALE``, rounded to a multiple, which is also the least."""
    return max(multiple, round(size * SCALE / multiple) * multiple)


def limited(steps: int) -> int:
    """A number of steps, or ``EXAM_STEPS`` where that is less."""
    return min(steps, int(os.environ.get("EXAM_STEPS") or steps))


def _process_start_ns() -> int:
    """When this process began, to a hundredth of a second."""
    with open("/proc/self/stat", encoding="utf-8") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time_ns() - int(age_s * 1e9)


def synchronise() -> None:
    """Waits for the current GPU of torch or CuPy, and touches no other."""
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()
    if cupy is not None:
        cupy.cuda.Device().synchronize()


class Steady:
    """The steady state of a program: its steps, timed on the host, and the facts that the program knows of them.

    The GPU is waited for once before the first steady step and once after the last. ``step_ms`` is the time between
    those two, divided by the steps; ``median_step_ms`` is the middle one of the steps as the host saw them, which is
    shorter where the host runs ahead of the GPU.
    """

    def __init__(self, wait: Callable[[], Any] = synchronise, **facts: Any) -> None:
        self.wait = wait
        self.facts = facts
        self.marks: list[int] = []
        self.start_ns = 0

    def steps(self, warm_up: int, steady: int) -> Iterator[int]:
        """Numbers of steps, from 0: first those that warm up, then those that count. Writes the truth at the end."""
        warm_up, steady = limited(warm_up), limited(steady)
        yield from range(warm_up)
        self.begin()
        for number in range(warm_up, warm_up + steady):
            yield number
            self.mark()
        self.end()

    def begin(self) -> None:
        self.wait()
        self.start_ns = time.time_ns()
        self.marks = [time.perf_counter_ns()]

    def mark(self) -> None:
        """A step has ended, on the host."""
        self.marks.append(time.perf_counter_ns())

    def end(self) -> None:
        self.wait()
        whole_ns = time.perf_counter_ns() - self.marks[0]
        end_ns = time.time_ns()
        path = os.environ.get("EXAM_TRUTH")
        if not path:
            return
        steps_ns = [after - before for before, after in zip(self.marks, self.marks[1:], strict=False)]
        truth = {
            "program": os.path.splitext(os.path.basename(sys.argv[0]))[0],
            "fixed": FIXED,
            "scale": SCALE,
            "pid": os.getpid(),
            "rank": os.environ.get("RANK"),
            "process_start_ns": _process_start_ns(),
            "steady_start_ns": self.start_ns,
            "steady_end_ns": end_ns,
            "start_up_s": (self.start_ns - _process_start_ns()) / 1e9,
            "steady_s": whole_ns / 1e9,
            "steps": len(steps_ns),
            "step_ms": whole_ns / len(steps_ns) / 1e6,
            "median_step_ms": statistics.median(steps_ns) / 1e6,
            "longest_step_ms": max(steps_ns) / 1e6,
            "step_ends_ns": [self.start_ns + mark - self.marks[0] for mark in self.marks[1:]],
            "facts": self.facts,
            "versions": _versions(),
        }
        with open(path, "w", encoding="utf-8") as file:
            json.dump(truth, file, indent=1)


def _versions() -> dict[str, str]:
    """Python, the GPU and the frameworks that the program has loaded."""
    found = {"python": platform.python_version()}
    for name in ("torch", "triton", "jax", "cupy", "numpy", "wgpu"):
        module = sys.modules.get(name)
        if module is not None:
            found[name] = str(getattr(module, "__version__", "?"))
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        found["card"] = torch.cuda.get_device_name()
    return found

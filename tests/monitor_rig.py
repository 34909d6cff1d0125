"""A scripted source and the monitors started on it."""

import threading

from gpusense import monitor, testing

BUSY = {"utilization.gpu_percent": 90.0, "power.draw_watts": 300.0, "power.draw_window_s": 0.0}


class Rig:
    """A scripted source, a manual clock and the monitors started on them, which end with the test."""

    def __init__(self, count: int = 1) -> None:
        self.clock = testing.ManualClock()
        self.source = testing.ScriptedSource(count, clock=self.clock)
        for index in range(count):
            self.source.set(index, BUSY)
        self.started: list[monitor.Monitor] = []

    def start(self, callback=None, **more) -> monitor.Monitor:
        self.started.append(monitor.start_background(callback, source=self.source, clock=self.clock, **more))
        return self.started[-1]

    def lanes(self, lane: str) -> int:
        return sum(lane in lanes for _, lanes in self.source.calls)


def wait_until(condition) -> None:
    waiting = threading.Event()
    for _ in range(2000):
        if condition():
            return
        waiting.wait(0.005)
    raise AssertionError("it did not happen")

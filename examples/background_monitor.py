"""Device health beside a running program: a callback for each sample, the newest values, a window of statistics.

python examples/background_monitor.py [seconds]
"""

import sys
import time

import gpusense

SECONDS = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0


def hot(metrics):
    if (metrics.thermal.gpu_celsius or 0) > 85:
        print(f"{metrics.device.name} is at {metrics.thermal.gpu_celsius} °C")


monitor = gpusense.monitor.start_background(hot, interval=0.1)
time.sleep(SECONDS)  # the program's work
for sample in monitor.latest():
    draw = sample.power.draw_watts
    power = f"{draw:.0f} W" if draw is not None else sample.reason("power.draw_watts")
    print(f"{sample.device.name}: {sample.utilization.gpu_percent} % busy, {power}")
for window in monitor.window(seconds=SECONDS):
    busy = window.statistics.get("utilization.gpu_percent")
    print(f"{window.device.name}: p95 {busy.p95 if busy else None} %, {window.samples} samples")
if not monitor.devices:
    print("no device to watch here; gpusense doctor says why")
monitor.stop()

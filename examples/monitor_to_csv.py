"""Samples of every device as CSV on standard output.

python examples/monitor_to_csv.py [samples] > gpu.csv
"""

import csv
import sys
import time

import gpusense

COUNT = int(sys.argv[1]) if len(sys.argv) > 1 else 3
COLUMNS = {
    "time": lambda m: f"{m.time_ns / 1e9:.3f}",
    "device": lambda m: m.device.name,
    "uuid": lambda m: m.device.uuid,
    "gpu_percent": lambda m: m.utilization.gpu_percent,
    "memory_used_bytes": lambda m: m.memory.used_bytes,
    "power_watts": lambda m: m.power.draw_watts,
    "temperature_celsius": lambda m: m.thermal.gpu_celsius,
}

table = csv.writer(sys.stdout)
table.writerow(COLUMNS)
for number in range(COUNT):
    for metrics in gpusense.monitor.snapshot():
        table.writerow(column(metrics) for column in COLUMNS.values())  # unknown values stay empty
    if number + 1 < COUNT:
        time.sleep(0.2)

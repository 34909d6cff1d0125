"""The energy that the devices took while a block ran, and this program's share of it.

python examples/block_energy.py
"""

import time

import gpusense

gpusense.enable()
monitor = gpusense.monitor.start_background(interval=0.05)
with gpusense.trace("work") as block:
    time.sleep(0.5)  # the program's work
time.sleep(0.1)  # one more sample after the end

summary = block.summary()
share = min(1.0, (summary.gpu_ns or 0) / summary.wall_ns)
for window in monitor.window(block.start_ns, block.end_ns, own_busy_share=share):
    if window.energy_joules is None:
        print(f"{window.device.name}: energy unknown: {window.energy_reason}")
    else:
        own = (
            f"{window.own_energy_joules:.1f} J of it ours" if window.own_energy_joules is not None else "share unknown"
        )
        print(f"{window.device.name}: {window.energy_joules:.1f} J ({window.energy_method}), {own}")
if not monitor.devices:
    print("no device to ask; gpusense doctor says why")
monitor.stop()

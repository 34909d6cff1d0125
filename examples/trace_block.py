"""What a piece of a program launched on the GPU, asked right there.

python examples/trace_block.py
"""

import gpusense

gpusense.enable()  # blocks are recorded on a machine without a GPU too

with gpusense.trace("step", {"batch": 64}) as block:
    with gpusense.trace("load"):
        data = list(range(100_000))
    with gpusense.compute_block("normalise", elements=len(data)):
        data = [value / 100_000 for value in data]
    gpusense.record_transfer("upload", "cpu_to_gpu", bytes=800_000, duration_ns=250_000)  # timed by somebody else

print(block.summary())
gpusense.get_tracer().print_summary()

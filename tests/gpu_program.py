"""A program that says what it gave to the GPU, and a session counted the same way; for real GPUs and scripted ones."""

#: Initialises CUDA, waits until capture has begun, then runs the workload and says what it launched.
WORK = """
import json, time
import gpusense
from gpusense.cuda import _workload
from gpusense import cuda
cuda.Device(0)
tracer = gpusense.get_tracer()
for _ in range(500):
    if tracer._recorder.capture.running:
        break
    with gpusense.trace("waiting"):
        time.sleep(0.01)
launched = _workload.run(gpusense.trace, 3)
print(json.dumps([launched.kernels, launched.copies, launched.memsets]), flush=True)
"""


def counts(session):
    kernels, copies = {}, {}
    for record in session.kernels:
        kernels[record.name] = kernels.get(record.name, 0) + 1
    for record in session.transfers:
        copies[record.direction] = copies.get(record.direction, 0) + 1
    return [kernels, copies, len(session.memsets)]

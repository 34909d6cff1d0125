"""What programs in processes of their own begin with, and what they are counted by."""

HEAD = """
import ctypes, os, sys, threading, time, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # os.fork in a process with threads, since Python 3.12
driver = ctypes.CDLL(os.environ["GPUSENSE_LIBCUDA"])
driver.cuInit(0)
import gpusense
from gpusense.cuda import _workload
from gpusense import cuda
buffer = cuda.Buffer(64, cuda.Device(0))  # blocks are marked once there is a context
def running(tracer):
    for _ in range(400):
        with gpusense.trace("waiting"): pass
        if tracer.recorder.marker: return
        time.sleep(0.005)
    raise SystemExit(f"capture did not begin: {tracer.status()}")
def begin():
    driver.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), 0)
    running(gpusense.get_tracer())
    while gpusense.get_tracer().recorder.marker is None: time.sleep(0.002)
    return gpusense.get_tracer(), ctypes.CDLL(os.environ["GPUSENSE_LIBCUPTI"])
def kernels(session):
    return sum(row.count for row in session.aggregates if row.kind == "kernel") + len(session.kernels)
"""


def clean(done, stdout=None):
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert done.stderr == ""
    if stdout is not None:
        assert done.stdout == stdout
    return done


#: Initialises CUDA, waits until capture has begun, then runs the workload and says what it launched.
WORK = """
import json, time
import gpusense
from gpusense.cuda import _workload
from gpusense import cuda
cuda.Device(0)
tracer = gpusense.get_tracer()
for _ in range(500):
    if tracer.recorder.capture.running:
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

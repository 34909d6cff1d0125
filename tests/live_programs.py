"""What a program in a process of its own begins with, where a GPU seems to be."""

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
        if tracer._recorder.marker: return
        time.sleep(0.005)
    raise SystemExit(f"capture did not begin: {tracer.status()}")
def begin():
    driver.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), 0)
    running(gpusense.get_tracer())
    while gpusense.get_tracer()._recorder.marker is None: time.sleep(0.002)
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

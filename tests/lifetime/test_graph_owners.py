"""Kernels of a replayed graph name the block that captured them, on scripted libraries."""

import functools
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the fake is an ELF library")

PROGRAM = """
import ctypes, json, os, sys, threading, time
driver = ctypes.CDLL(os.environ["GPUSENSE_LIBCUDA"])
driver.cuInit(0)
driver.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), 0)
import gpusense
from gpusense._capi.machine import executable
from gpusense._capture.graph_owners import GraphOwners
if "no memfd" in sys.argv:   # as in a Python built for every Linux
    del os.memfd_create
if "no code" in sys.argv:
    executable._PROT_EXEC = 0x1000   # the kernel answers EINVAL
from gpusense._tracing import select
path, everything = sys.argv[2], sys.argv[3] == "each"
if path != "live":
    run = select.control.start_session("file", path, trace_all=everything)
else:
    gpusense.configure(trace_all=everything)
    gpusense.enable()
tracer = gpusense.get_tracer()
def kernels(session): return [row for row in session.aggregates if row.kind == "kernel"]
while tracer.recorder.marker is None:
    with gpusense.trace("waiting"):
        time.sleep(0.005)
cupti = ctypes.CDLL(os.environ["GPUSENSE_LIBCUPTI"])
pointer = ctypes.c_void_p
def made(node, original=None):
    cupti.fake_cupti_graph_node(pointer(node), pointer(original))
owners = GraphOwners(tracer)
if sys.argv[1] == "held":
    cupti.fake_cupti_set_holder(1)
made(0x90)                                   # before: nobody hears
with gpusense.trace("build"):
    began = owners.capture_began()
    made(0x100)
    with gpusense.trace("forward"):
        made(0x200)
        with gpusense.trace("layer"):
            made(0x300)
            cupti.fake_cupti_fail(b"cuptiGetGraphNodeId", 1)
            made(0x310)                      # without an id: those behind it keep their places
            made(0x320)
            cupti.fake_cupti_fail(b"cuptiGetGraphNodeId", 0)
        made(0x210)
    helper = threading.Thread(target=made, args=(0x400,))   # a thread without blocks, as autograd's
    with gpusense.trace("backward"):
        helper.start()
        helper.join()
    for node in (0x100, 0x200, 0x300, 0x210, 0x400):        # instantiation clones them
        made(node + 0x1000, node)
    made(0x1090, 0x90)                       # of a node from before
    owners.capture_ended()
made(0x500)
subscribed = cupti.fake_cupti_subscribed()
with gpusense.trace("replay"):
    for node in (0x1100, 0x1200, 0x1300, 0x1210, 0x1400, 0x1090, 0x500):
        cupti.fake_cupti_graph_kernel(b"k%x" % node, ctypes.c_uint64(node + 1), ctypes.c_uint64(5000),
                                      driver.fake_cuda_count_call())
if path != "live":
    session = run.finish()
else:
    session = tracer.session()
print(json.dumps({
    "began": began, "reason": owners.reason, "subscribed": subscribed,
    "owners": {k.name: k.owner for k in (session.kernels if everything else kernels(session))},
    "paths": sorted({tuple(k.path) for k in (session.kernels if everything else kernels(session))}),
    "sums": len(kernels(session)), "meta": "graph_owners" in session.meta,
}))
"""

OWNERS = {
    "k1100": ["build"],
    "k1200": ["build", "forward"],
    "k1300": ["build", "forward", "layer"],
    "k1210": ["build", "forward"],
    "k1400": ["build", "backward"],
    "k1090": None,
    "k500": None,
}


@pytest.fixture
def program(answer):
    return functools.partial(answer, PROGRAM)


@pytest.mark.parametrize("kept", ["each", "summed"])
@pytest.mark.parametrize("mode", ["live", "file"])
def test_replayed_kernels_have_owner_and_replaying_block(program, mode, kept, tmp_path):
    facts = program("free", mode if mode == "live" else str(tmp_path / "run.gpusense"), kept)
    assert facts["began"] is True
    assert facts["owners"] == OWNERS
    assert facts["paths"] == [["replay"]]
    assert facts["subscribed"] == 0
    assert facts["sums"] == (0 if kept == "each" else len(OWNERS))
    assert facts["meta"] is False


def test_a_profiler_that_holds_cupti_keeps_it(program):
    facts = program("held", "live", "each")
    assert facts["began"] is False
    assert "another profiler" in facts["reason"]
    assert set(facts["owners"].values()) == {None}


def test_a_python_without_memfd_notes_nodes_too(program):
    """Builds for every Linux have no ``os.memfd_create``; there the capture itself raised AttributeError."""
    facts = program("free", "live", "no memfd")
    assert (facts["began"], facts["reason"]) == (True, "")
    assert facts["owners"] == OWNERS


def test_a_system_without_executable_memory_says_so_and_captures_on(program):
    facts = program("free", "live", "no memfd", "no code")
    assert facts["began"] is False
    assert "memfd" in facts["reason"]
    assert "mprotect: executable memory refused" in facts["reason"]
    assert set(facts["owners"].values()) == {None}

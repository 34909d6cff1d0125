"""Whether the newest correlation id in CUPTI's buffers tells where a block lies (ADR 7). Needs CUDA 13, torch, a GPU.

    python benchmarks/gpu/reading.py [--parts markers,work,kinds,detach]

Ends within a minute. *markers*: in hooks of a training, on autograd's thread and on three more, a memset between two
readings; its id must lie between them. *work*: every kind of work in a block of its own, queued behind a kernel that
runs, each followed by an empty block; the counts of each must be the same every time and those of empty blocks 0.
*kinds*: blocks that launch, wait, and allocate and release, while all of this and the driver's calls are recorded.
*detach*: blocks before and after CUPTI was taken out of the process.
"""

import argparse
import collections
import itertools
import pathlib
import struct
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import gpusense
from gpusense import cuda
from gpusense._decode import layouts
from gpusense._records.records import GpuKernel, GpuMemoryTransfer, GpuMemset
from gpusense.cuda import _workload


def markers(seconds=12.0):
    import torch
    import workloads

    from gpusense.backends.cupti import activity as cupti
    from gpusense.backends.cupti.markers import Memset

    step = workloads.small()
    for _ in range(5):
        step()
    activity, found, unordered = cupti.CuptiActivity(), {}, 0
    assert activity.load() is None
    places = {kind: {field.name: field.offset for field in layouts.LAYOUTS[kind].fields} for kind in layouts.LAYOUTS}
    stream = None

    def on_view(view, thread):
        nonlocal unordered
        at = last = 0
        while at < len(view):
            (kind,) = struct.unpack_from("<I", view, at)
            field = places[kind]
            (corr,) = struct.unpack_from("<I", view, at + field["correlation"])
            unordered += corr < last
            last = corr
            if kind == layouts.MEMSET and struct.unpack_from("<I", view, at + field["stream"])[0] == stream:
                found[struct.unpack_from("<I", view, at + field["value"])[0]] = corr
            at += activity.strides[kind]

    activity.start(layouts.DEFAULT_KINDS, on_view)
    plan = Memset(activity)
    call, shape = plan.prepare()
    stream, newest = shape.stream, plan.reading()
    assert newest is not None, "this CUPTI is not read"
    seen, tokens = [], itertools.count(1)

    def look(*_):
        token = next(tokens)
        before = newest()
        call(token)
        seen.append((token, before, newest(), threading.get_ident()))

    for module in step.parts[0].modules():
        module.register_forward_hook(look)
        module.register_full_backward_hook(look)
    ending = threading.Event()

    def beside():
        x = torch.randn(64, 64, device="cuda")
        while not ending.is_set():
            x = (x @ x).clamp(-1, 1)
            look()
            time.sleep(0.0003)

    threads = [threading.Thread(target=beside) for _ in range(3)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        step()
    ending.set()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    activity.flush()
    time.sleep(0.5)
    activity.stop()
    read = [row for row in seen if row[0] in found]
    outside = sum(not before < found[token] <= after for token, before, after, _ in read)
    began = time.perf_counter_ns()
    for _ in range(100_000):
        newest()
    each = (time.perf_counter_ns() - began) / 1e5
    print(f"markers: {len(seen)} on {len({row[3] for row in seen})} threads, {len(read)} read, {outside} outside")
    print(f"  ids that descend in a buffer: {unordered}; a reading {each:.0f} ns")


def capture():
    gpusense.configure(trace_all=True, max_records_per_second=10**9, max_records=10**6)
    gpusense.enable()
    tracer = gpusense.get_tracer()
    ready(tracer)
    return tracer


def ready(tracer):
    while tracer.recorder.marker is None:
        with gpusense.trace("waiting"):
            time.sleep(0.01)


def work(rounds=12):
    import torch

    x, y = torch.ones(1 << 16, device="cuda"), torch.empty(1 << 16, device="cuda")
    pinned, back = torch.ones(1 << 16).pin_memory(), torch.empty(1 << 16).pin_memory()
    w = torch.randn(64, 64, device="cuda", requires_grad=True)
    side, large, small = torch.cuda.Stream(), torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    for _ in range(3):
        x.add_(1)
        (w @ w).relu().sum().backward()
    torch.cuda.synchronize()
    with torch.cuda.graph(large):
        for _ in range(3000):
            x.add_(1.0)
    with torch.cuda.graph(small):
        y.copy_(x)
        y.zero_()
        y.add_(1.0)

    def aside():
        with torch.cuda.stream(side):
            x.mul_(1.0)

    kinds = {
        "kernel": lambda: x.add_(1),
        "memset": lambda: y.zero_(),
        "copy to the device": lambda: y.copy_(pinned, non_blocking=True),
        "copy from the device": lambda: back.copy_(x, non_blocking=True),
        "copy on the device": lambda: y.copy_(x),
        "another stream": aside,
        "graph of 3,000": large.replay,
        "graph of 3": small.replay,
        "forward and backward": lambda: (w @ w).relu().sum().backward(),
        "sort": lambda: torch.sort(x),
        "cumsum": lambda: torch.cumsum(x, 0),
        "random numbers": lambda: torch.randn(1000, device="cuda"),
    }
    tracer, blocks = capture(), collections.defaultdict(list)
    for _ in range(rounds):
        torch.cuda._sleep(50_000_000)
        for name, run in kinds.items():
            with gpusense.trace(name) as block:
                run()
            with gpusense.trace("empty") as empty:
                pass
            blocks[name].append(block.block_id)
            blocks["empty"].append(empty.block_id)
    torch.cuda.synchronize()
    tracer.flush(5)
    session = tracer.session()
    kept = (GpuKernel, GpuMemoryTransfer, GpuMemset)
    operations = [item for item in session.records if type(item) in kept]
    counts = collections.Counter(item.block_id for item in operations)
    print(f"work: boundaries {tracer.status()['boundaries']}, ambiguous {session.counters.ambiguous}")
    for name, ids in blocks.items():
        print(f"  {name:22} {sorted({counts[number] for number in ids})} in each of {len(ids)}")
    gpusense.disable()


def kinds(rounds=200):
    gpusense.configure(kinds=("sync", "allocation", "launch", "unified_memory"))
    card = cuda.Device(0)
    spin = cuda.Module.from_ptx(_workload.PTX, card).function("spin")
    tracer, expected = capture(), {}
    for i in range(rounds):
        with gpusense.trace("outer") as outer:
            with gpusense.trace("launch") as launch:
                for _ in range(1 + i % 4):
                    spin.launch((1,), (32,), (1000,))
            with gpusense.trace("wait") as wait:
                card.synchronize()
            with gpusense.trace("empty") as empty:
                pass
            with gpusense.trace("memory") as memory:
                cuda.Buffer(1 << 20, card).close()
            spin.launch((1,), (32,), (1000,))
        expected[launch.block_id] = {"GpuKernel": 1 + i % 4}
        expected[wait.block_id] = {"GpuSync": 1}
        expected[memory.block_id] = {"GpuAllocation": 2}
        expected[outer.block_id] = {"GpuKernel": 1}
        expected[empty.block_id] = {}
    boundaries = tracer.status()["boundaries"]
    card.synchronize()
    tracer.flush(5)
    session = tracer.session()
    found = collections.defaultdict(collections.Counter)
    for item in session.records:
        if item.block_id in expected and type(item).__name__ in ("GpuKernel", "GpuSync", "GpuAllocation"):
            found[item.block_id][type(item).__name__] += 1
    right = sum(dict(found[number]) == counts for number, counts in expected.items())
    print(f"kinds: boundaries {boundaries}, {right} of {len(expected)} blocks hold what was done in them")
    gpusense.disable()
    gpusense.configure(kinds=())


def detach():
    card = cuda.Device(0)
    spin = cuda.Module.from_ptx(_workload.PTX, card).function("spin")
    tracer, found = capture(), []
    for count in (10, 7, 5):
        ready(tracer)
        with gpusense.trace("block") as block:
            for _ in range(count):
                spin.launch((1,), (32,), (1000,))
        found.append((block.summary().kernel_count, count))
        card.synchronize()
        assert gpusense.detach() is None
        gpusense.enable()
    print("detach: kernels in the block, launched:", found)
    gpusense.disable()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--parts", default="markers,work,kinds,detach")
    for part in parser.parse_args().parts.split(","):
        {"markers": markers, "work": work, "kinds": kinds, "detach": detach}[part]()


if __name__ == "__main__":
    main()

"""Eager owner against graph owner on a small model, and whether torch.profiler still works afterwards. About 30 s.

``python benchmarks/gpu/graph_owners.py``. Each layer runs in a block of its own: eagerly every kernel is counted under
(block, name); then the same step is captured and replayed, and every kernel is counted under (owner, name).
"""

import collections
import json
import sys
import time

import torch

import gpusense
from gpusense.integrations import torch_graphs

LAYERS, WIDTH, REPLAYS = 6, 256, 20


def model():
    layers = [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU()).cuda() for _ in range(LAYERS)]
    data = torch.randn(64, WIDTH, device="cuda")

    def step():
        x = data
        for i, layer in enumerate(layers):
            with gpusense.trace(f"layer {i}"):
                x = layer(x)
        with gpusense.trace("norm"):
            return torch.nn.functional.layer_norm(x, (WIDTH,)).sum()

    return step


def kernels(tracer):
    torch.cuda.synchronize()
    tracer.flush(2)
    return tracer.session().kernels


def main():
    gpusense.configure(trace_all=True, max_records_per_second=10**7, max_records=10**6)
    gpusense.enable()
    tracer = gpusense.get_tracer()
    torch.zeros(1, device="cuda")
    end = time.monotonic() + 5
    while not tracer.recorder.capture.running and time.monotonic() < end:
        with gpusense.trace("waiting"):
            time.sleep(0.01)
    step = model()
    answer = torch_graphs.instrument()
    print("instrument:", answer)
    with torch.no_grad():
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.synchronize()
        tracer.flush(2)
        tracer.reset()
        with gpusense.trace("eager"):
            step()
        eager = collections.Counter((k.path[-1] if k.path else "", k.name) for k in kernels(tracer))
        graph = torch.cuda.CUDAGraph()
        with gpusense.trace("capture"), torch.cuda.graph(graph, stream=side):
            step()
        print("capture:", torch_graphs.status())
        tracer.flush(2)
        tracer.reset()
        with gpusense.trace("replay"):
            for _ in range(REPLAYS):
                graph.replay()
        found = kernels(tracer)
    owned = collections.Counter((k.owner[-1] if k.owner else "", k.name) for k in found)
    expected = collections.Counter({key: count * REPLAYS for key, count in eager.items()})
    replaying = collections.Counter(k.path for k in found)
    print(json.dumps({
        "eager kernels": sum(eager.values()),
        "replayed kernels": len(found),
        "without owner": sum(count for (owner, _), count in owned.items() if not owner),
        "equal": owned == expected,
        "replaying blocks": {"/".join(path): count for path, count in replaying.items()},
    }))  # fmt: skip
    if owned != expected:
        print("only eager:", dict(expected - owned))
        print("only graph:", dict(owned - expected))
    from torch.profiler import ProfilerActivity, profile

    tracer.disable()
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        step()
        torch.cuda.synchronize()
    seen = sum(1 for event in profiled.events() if "CUDA" in str(event.device_type))
    print("torch.profiler afterwards sees", seen, "device events")
    return 0 if owned == expected else 1


if __name__ == "__main__":
    sys.exit(main())

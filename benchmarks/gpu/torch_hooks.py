"""What blocks for torch's modules cost on top of capture, and whether they hold the right kernels. Needs a GPU, torch.

    python benchmarks/gpu/torch_hooks.py [--seconds 60] [--phases 0.5] [--depth 2] [--way flags|whole] [--workload …]

Cost, once recording to a file and once live, of a training job (*small*: about 870 short kernels a step). *program*:
steps without and with blocks, one after the other in random order: the median ratio and the Hodges-Lehmann estimate
with their 95 % intervals (see overhead.py). What gpusense's threads do comes later, and so falls on both. *all*, for
the share ``--phases`` of the time: the same of phases of a second, in which the threads are at work on what the steps
left: with what they keep the program from doing, and more noise. *threads*: their CPU time a step in these phases.
*flags*: torch is instrumented once, as in a program, and blocks are switched; what modules without blocks cost is in
both steps. *whole*: it is instrumented for each step and put back after it, which changes ``nn.Module`` at every turn,
so that the interpreter specialises its code anew. Kernels: for each layer the number in its block, forward and
backward, against the number of a direct call of that layer alone.
"""

import argparse
import collections
import gc
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]
PHASE_S = 1


def switches(integration, depth, way):
    """What switches blocks on, and off."""
    if way == "whole":
        return lambda: integration.instrument(depth=depth), integration.uninstrument
    integration.instrument(depth=depth)
    on = integration._installed.now.state.on
    wanted = dict(on)
    return lambda: on.update(wanted), lambda: on.update(dict.fromkeys(on, False))


def cost(mode, seconds, depth, way, workload, share):
    import torch
    import workloads
    from ratios import estimate, interval

    from gpusense._tracing import select
    from gpusense.integrations import torch as integration

    step = workloads.ALL[workload]()
    for _ in range(20):
        step()
    torch.cuda.synchronize()
    run = select.control.start_session(mode=mode, path=os.path.join(tempfile.mkdtemp(), "run.gpusense"))
    while not run.tracer.recorder.capture.running:
        time.sleep(0.01)

    gc.collect()
    gc.freeze()  # torch's own half a million objects: what is left to collect is what steps and blocks make

    def timed():
        began = time.perf_counter()
        step()
        torch.cuda.synchronize()
        return time.perf_counter() - began

    recorder = run.tracer.recorder

    def phase():
        """Seconds of a step, and CPU seconds of gpusense's threads in it, on average."""
        recorder.flush(5)
        before, steps = recorder._drain_cpu_ns + recorder._tick_cpu_ns, 0
        began = time.perf_counter()
        while time.perf_counter() - began < PHASE_S:
            timed()
            steps += 1
        took = time.perf_counter() - began
        recorder.flush(5)
        return took / steps, (recorder._drain_cpu_ns + recorder._tick_cpu_ns - before) / 1e9 / steps

    on, off = switches(integration, depth, way)
    for _ in range(12):  # modules are named, and judged by their first calls
        step()
    off()
    ratios, phases, plain, spent = [], [], [], {on: [], off: []}
    deadline = time.monotonic() + seconds * (1 - share)
    while time.monotonic() < deadline:
        times = {}
        for switch in random.sample((on, off), 2):
            switch()
            times[switch] = timed()
        plain.append(times[off])
        ratios.append(times[on] / times[off])
    deadline += seconds * share
    while time.monotonic() < deadline or not phases:
        times = {}
        for switch in random.sample((on, off), 2):
            switch()
            step()
            times[switch], cpu = phase()
            spent[switch].append(cpu)
        phases.append(times[on] / times[off])
    off()
    session = run.finish()
    steps = sum(block.name == "AdamW.step" for block in session.blocks)
    return {
        "mode": mode,
        "pairs": len(ratios),
        "step_ms": statistics.median(plain) * 1e3,
        "ratio": [statistics.median(ratios), *interval(sorted(ratios))],
        "estimate": estimate(ratios[:2000]),
        "all": [statistics.median(phases), *interval(sorted(phases))],
        "all_estimate": estimate(phases),
        "threads": [statistics.median(spent[off]), statistics.median(spent[on])],
        "blocks_a_step": len(session.blocks) / steps,
        "counters": session.counters._asdict(),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
    }


def kernels():
    """[layer, phase, kernels by its block, kernels of a direct call] for each layer of a small encoder."""
    import torch

    import gpusense
    from gpusense.integrations import torch as integration

    gpusense.configure(trace_all=True)
    layer = torch.nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True, dropout=0.0)
    model = torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).cuda()
    data = torch.randn(8, 64, 256, device="cuda", requires_grad=True)

    def once(call):
        model.zero_grad()
        data.grad = None
        out = call(data)
        torch.cuda.synchronize()
        return out

    for _ in range(3):  # libraries choose their kernels on first use
        once(model).sum().backward()
        for part in model.layers:
            once(part).sum().backward()
    tracer = gpusense.get_tracer()
    tracer.flush()
    tracer.reset()
    for i, part in enumerate(model.layers):
        model.zero_grad()
        data.grad = None
        with gpusense.trace(f"direct {i}"):
            with gpusense.trace("forward"):
                out = part(data)
            gradient = torch.ones_like(out)
            with gpusense.trace("backward"):
                out.backward(gradient)
    assert integration.instrument(min_us=0) is True
    model.zero_grad()
    data.grad = None
    with gpusense.trace("whole") as block:
        out = model(data)
        out.backward(torch.ones_like(out))
    assert block.wait(10), block.summary()
    integration.uninstrument()
    count = collections.Counter()
    for kernel in tracer.session().kernels:
        count[kernel.path] += 1
    whole, rows = ("whole", "TransformerEncoder"), []
    for i in range(4):
        rows.append([i, "forward", count[(*whole, f"layers.{i}")], count[f"direct {i}", "forward"]])
        back = count["whole", "backward", "TransformerEncoder", f"layers.{i}"]
        rows.append([i, "backward", back, count[f"direct {i}", "backward"]])
    counters = tracer.session().counters
    return {"rows": rows, "ambiguous": counters.ambiguous, "lost_markers": counters.lost_markers}


def child(*arguments):
    done = subprocess.run([sys.executable, __file__, *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--workload", choices=("small", "big"), default="small")
    parser.add_argument("--phases", type=float, default=0.5)
    parser.add_argument("--way", choices=("flags", "whole"), default="flags")
    parser.add_argument("--part", choices=("file", "live", "kernels"))
    given = parser.parse_args()
    if given.part == "kernels":
        print(json.dumps(kernels()))
        return
    if given.part:
        print(json.dumps(cost(given.part, given.seconds, given.depth, given.way, given.workload, given.phases)))
        return
    for mode in ("file", "live"):
        how = "--depth", given.depth, "--way", given.way, "--workload", given.workload, "--phases", given.phases
        facts = child("--part", mode, "--seconds", given.seconds, *how)
        if mode == "file":
            print(f"{facts['device']}, torch {facts['torch']}, step {facts['step_ms']:.1f} ms, depth {given.depth}")
        names = ("ratio", "estimate", "all", "all_estimate")
        shown = ["{:.4f} [{:.4f}, {:.4f}]".format(*facts[name]) for name in names]
        without, inside = (seconds * 1e6 for seconds in facts["threads"])
        print(
            f"{mode:<5} blocks on top of capture: program x{shown[0]}, Hodges-Lehmann x{shown[1]}, "
            f"{facts['pairs']} pairs; all x{shown[2]}, Hodges-Lehmann x{shown[3]}; "
            f"threads {without:.0f} -> {inside:.0f} us a step; {facts['blocks_a_step']:.0f} blocks a step"
        )
    found = child("--part", "kernels")
    wrong = [row for row in found["rows"] if row[2] != row[3] or not row[2]]
    print("layer phase     block direct")
    for number, phase, block, direct in found["rows"]:
        print(f"{number:<5} {phase:<9} {block:>5} {direct:>6}{'' if block == direct else '  differs'}")
    print(f"ambiguous {found['ambiguous']}, lost markers {found['lost_markers']}: {'WRONG' if wrong else 'all equal'}")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()

"""What each tool costs a program on the GPU: one process a tool, short parts without and with it in turn.

*Without* means that CUPTI is taken out of the process (``cuptiFinalize``). Once a kind of records was on, CUPTI keeps
slowing each launch with all kinds off, so that a comparison with those parts flatters every tool that stays in the
process; they are measured beside it (*left*: off against without). For each pair the ratio of the two times; of the
ratios the median with its 95 % interval (order statistics), and the Hodges-Lehmann estimate, the median of the means of
all pairs of ratios, with its interval (signed ranks), which needs a third fewer pairs for the same width. A tool is
measured until that interval is ±0.8 % or its seconds are over. *floor* is CUPTI itself: the same kinds on, its buffers
handed back by machine code, nothing read; *flushed* the same, and CUPTI asked for what is finished as often as gpusense
does (``flushed@1``, ``file@1``: every second). Proton is started for each part and ended after it, which takes CUPTI
out, because it goes on recording where it is only deactivated. *light* is three blocks a step that the device times,
without CUPTI, against none. *monitor* is the device watched ten times a second and nothing recorded. ``before``,
``away``, ``on``, ``off`` and ``after``: milliseconds a step before the tool was made, in its three kinds of parts, and
once it was stopped. ``stop``: how long ending the tool took with everything recorded since it was last away. A part
with the tool begins at any moment between two readings of gpusense's threads, so that reading is a part of the whole,
though not of each. Ratios of one run only: these machines are noisy.

    python benchmarks/gpu/overhead.py [--seconds 60] [--workloads small,big,graph,copies,storm] [--tools none,file,…]

The processes of one workload start together, since importing torch takes longest, and then measure in turn, ten seconds
each, until all have had theirs: the machine's speed drifts, and no tool gets a better minute than another. With
``--against FOLDER``, another checkout of gpusense, each tool is measured with that one, too, in turn with this one.
"""

import argparse
import ctypes
import gc
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from ratios import estimate, interval, precise

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SPAN_S = 0.12  # of a part: the machine is steadier for a shorter one
SETTLE_S = 0.25  # of steps before a part with the tool, and up to a period more by chance
PERIOD_S = 0.2  # in which gpusense reads once
CLOCK_S = {"big": 0.5}  # before every part, else one step: the device's clock follows its load, and rests too
TOOLS = (
    "none", "floor", "flushed", "file", "live", "live+blocks", "light", "exact", "monitor",
    "torch-cuda", "torch-all", "proton", "cupti-python",
)  # fmt: skip
TIMES = ("before", "away", "on", "off", "after")
TURN_S = 10  # of one tool, before the next has its turn
ENOUGH = 0.008  # half the interval's width at which a tool has been measured


def storm():
    """5,000 launches of an empty kernel through ctypes from one C loop: nothing but launches."""
    import torch

    torch.zeros(1, device="cuda")
    source = HERE / "storm.c"
    library = pathlib.Path(tempfile.mkdtemp()) / "storm.so"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source], check=True)
    loop = ctypes.CDLL(str(library)).storm
    cuda = ctypes.CDLL("libcuda.so.1")
    text = b".version 6.0\n.target sm_50\n.address_size 64\n.visible .entry nop(.param .u32 p){ ret; }\n"
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    assert cuda.cuModuleLoadData(ctypes.byref(module), text) == 0
    assert cuda.cuModuleGetFunction(ctypes.byref(function), module, b"nop") == 0
    launch = ctypes.cast(cuda.cuLaunchKernel, ctypes.c_void_p)

    def step():
        loop(launch, function, 5000)
        torch.cuda.synchronize()

    return step


def child(workload, tool, seconds):
    sys.path[:0] = [str(HERE), str(ROOT)]
    import torch
    import workloads
    from overhead_tools import MAKE

    tool_name, _, period = tool.partition("@")
    if period:
        from gpusense.backends.cupti import broker

        broker.PERIOD_S = float(period)
    step = storm() if workload == "storm" else workloads.ALL[workload]()
    steps, clock_s = 2, CLOCK_S.get(workload, 0)

    def part(step, settle_s=0.0):
        """Seconds a step: the wall's, and CPU of the launching thread."""
        settled = time.monotonic() + max(clock_s, settle_s)
        step()
        while time.monotonic() < settled:
            step()
        torch.cuda.synchronize()
        began, cpu = time.perf_counter(), time.thread_time()
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
        return (time.perf_counter() - began) / steps, (time.thread_time() - cpu) / steps

    usual, _ = min(part(step) for _ in range(6))
    steps = max(steps, round(SPAN_S / usual))
    gc.collect()
    gc.freeze()  # torch's own half a million objects: what is left to collect is what steps and tools make
    wait_for_turn("ready")
    before = [part(step)[0] for _ in range(6)]
    made = MAKE[tool_name](step)
    pairs, cpu, offs = [], [], []
    taken, turn = 0.0, time.monotonic()
    while len(pairs) < 5 or (taken < seconds and not precise([on / away for away, on in pairs], ENOUGH)):
        made.away()
        if time.monotonic() - turn > TURN_S:
            wait_for_turn("next")
            turn = time.monotonic()
            part(step)  # after a pause the device's clock is low
        began = time.monotonic()
        away = part(made.step)
        made.on()
        on = part(made.step, SETTLE_S + random.random() * float(period or PERIOD_S))
        pairs.append((away[0], on[0]))
        cpu.append(on[1] / away[1])
        # Not with graphs: replayed unrecorded, they fail once CUPTI is taken out (docs/adr/0015-staying-in.md).
        if made.leaves and workload != "graph":
            made.off()
            offs.append(part(made.step)[0])
        taken += time.monotonic() - began
    began = time.perf_counter()
    made.stop()
    stop_s = time.perf_counter() - began
    after = [part(step)[0] for _ in range(6)]
    ratios = sorted(on / away for away, on in pairs)
    aways = [away for away, _ in pairs]
    left = [off / away for off, away in zip(offs, aways, strict=False)]  # none where nothing is left
    result = {
        "workload": workload,
        "tool": tool,
        "pairs": len(ratios),
        "before": statistics.median(before) * 1e3,
        "away": statistics.median(aways) * 1e3,
        "on": statistics.median(on for _, on in pairs) * 1e3,
        "off": statistics.median(offs or aways) * 1e3,
        "after": statistics.median(after) * 1e3,
        "ratio": statistics.median(ratios),
        "interval": interval(ratios),
        "estimate": estimate(ratios),
        "left": estimate(left) if left else [1.0, 1.0, 1.0],
        "cpu": statistics.median(cpu),
        "stop_s": stop_s,
        **made.facts(),
    }
    print(json.dumps(result), flush=True)
    os._exit(0)


def wait_for_turn(said):
    print(said, flush=True)
    sys.stdin.readline()


def measure(workload, tools, seconds, against=None):
    """One row a tool; the processes wait until it is their turn."""
    waiting = []
    for tool in tools:
        waiting.append((tool, *start(workload, tool, seconds, __file__)))
        if against:
            script = pathlib.Path(against).resolve() / "benchmarks" / "gpu" / "overhead.py"
            waiting.append((f"{tool}, other", *start(workload, tool, seconds, script)))
    for _, process, _ in waiting:
        process.stdout.readline()
    while waiting:
        tool, process, errors = waiting.pop(0)
        said = take_turn(process)
        if said == "next\n":
            waiting.append((tool, process, errors))
        elif said.startswith("{"):
            show({**json.loads(said), "tool": tool})
        else:
            errors.seek(0)
            reason = (errors.read().strip().splitlines() or ["no output"])[-1][:100]
            print(f"{workload:9}{tool:14} failed: {reason}", flush=True)


def take_turn(process):
    """The line that ends a process's turn: "next", or its row; empty where it ended without one."""
    limit = threading.Timer(TURN_S * 3 + 60, process.kill)
    limit.start()
    try:
        process.stdin.write("go\n")
        process.stdin.flush()
        return next((line for line in process.stdout if line == "next\n" or line.startswith("{")), "")
    except BrokenPipeError:  # it has ended before
        return ""
    finally:
        limit.cancel()


def start(workload, tool, seconds, script):
    """A process, and the file that its errors go to."""
    command = [sys.executable, str(script), "--seconds", str(seconds), "--child", workload, tool]
    pipe, errors = subprocess.PIPE, tempfile.TemporaryFile("w+")  # noqa: SIM115 - read once the process has ended
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=errors, text=True), errors


def show(row):
    known = ("workload", "tool", "pairs", *TIMES, "ratio", "interval", "estimate", "left", "cpu", "stop_s")
    facts = " ".join(f"{key}={value}" for key, value in row.items() if key not in known)
    medians = "{:8.4f} [{:.4f}, {:.4f}]".format(row["ratio"], *row["interval"])
    estimates, left = ("{:8.4f} [{:.4f}, {:.4f}]".format(*row[name]) for name in ("estimate", "left"))
    ratio = f"{medians}{estimates}{left}{row['pairs']:6d}{row['cpu']:8.3f}"
    begin = f"{row['workload']:9}{row['tool']:14}" + "".join(f"{row[name]:8.2f}" for name in TIMES)
    print(f"{begin}{ratio}{row['stop_s']:8.3f}  {facts}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--workloads", default="small,big,graph,copies,storm")
    parser.add_argument("--tools", default=",".join(TOOLS))
    parser.add_argument("--against", metavar="FOLDER")
    parser.add_argument("--child", nargs=2)
    arguments = parser.parse_args()
    if arguments.child:
        child(*arguments.child, arguments.seconds)
    head = f"{'workload':9}{'tool':14}" + "".join(f"{name:>8}" for name in TIMES)
    ratios = "".join(f"{name:>25}" for name in ("median, 95 %", "Hodges-Lehmann, 95 %", "left, Hodges-Lehmann"))
    print(f"{head}{ratios} pairs{'CPU':>8}{'stop s':>8}  facts")
    for workload in arguments.workloads.split(","):
        measure(workload, arguments.tools.split(","), arguments.seconds, arguments.against)


if __name__ == "__main__":
    main()

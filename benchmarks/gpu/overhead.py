"""What each tool costs a program on the GPU: one process a tool, short stretches without and with it in turn.

For each pair the ratio of the two times; the median of the ratios with its 95 % interval (order statistics). ``stop``:
how long ending the tool took with everything recorded. ``after``: stretches after the tool was stopped against
stretches before it was first started. Ratios of one run only: these machines are noisy.

    python benchmarks/gpu/overhead.py [--seconds 25] [--workloads small,big,graph,copies,storm] [--tools none,file,…]
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
STEPS = {"small": 2, "big": 1, "graph": 3, "copies": 2, "storm": 1}
TOOLS = ("none", "file", "live", "live+blocks", "torch-cuda", "torch-all", "proton", "cupti-python")


class Tool:
    """Does nothing. ``on`` and ``off`` are called before each stretch, ``stop`` once at the end."""

    def __init__(self, step):
        self.step = step

    def on(self): ...

    def off(self): ...

    def stop(self): ...

    def facts(self):
        return {}


class Gpusense(Tool):
    mode = "live"

    def __init__(self, step):
        super().__init__(step)
        from gpusense import _select

        self.path = os.path.join(tempfile.mkdtemp(), "run.gpusense")
        self.run = _select.start_session(mode=self.mode, path=self.path)
        self.recorder = self.run.tracer._recorder
        self.off()

    def on(self):
        self.recorder.resume_capture()
        deadline = time.monotonic() + 2
        while not self.recorder.capture.running and time.monotonic() < deadline:
            time.sleep(0.002)
        assert self.recorder.capture.running, self.recorder.status()

    def off(self):
        self.recorder.pause_capture()

    def stop(self):
        self.run.tracer.close()

    def facts(self):
        counters = self.recorder.session().counters
        size = os.path.getsize(self.path) if os.path.exists(self.path) else 0
        return {"records": counters.seen, "lost": counters.dropped + counters.missed, "file_mb": round(size / 1e6, 1)}


class File(Gpusense):
    mode = "file"


class Blocks(Gpusense):
    """Live, with three nested blocks a step and a sink, as a tracing backend would use it."""

    def __init__(self, step):
        import gpusense

        plain = step

        def blocks():
            with gpusense.trace("request"), gpusense.trace("step"), gpusense.trace("model"):
                return plain()

        super().__init__(blocks)
        self.spans = []
        self.run.tracer.add_sink(self.spans.extend)

    def facts(self):
        return {**super().facts(), "spans": len(self.spans)}


class TorchProfiler(Tool):
    kinds = ("CUDA",)

    def on(self):
        from torch.profiler import ProfilerActivity, profile

        self.profile = profile(activities=[getattr(ProfilerActivity, kind) for kind in self.kinds], acc_events=False)
        self.profile.start()

    def off(self):
        if getattr(self, "profile", None) is not None:
            began = time.perf_counter()
            self.profile.stop()
            self.stop_s = time.perf_counter() - began
            self.profile = None

    def facts(self):
        return {"stop_of_one_stretch_s": round(getattr(self, "stop_s", 0), 3)}


class TorchAll(TorchProfiler):
    kinds = ("CPU", "CUDA")


class Proton(Tool):
    def __init__(self, step):
        super().__init__(step)
        import triton.profiler as proton

        self.proton = proton
        self.session = proton.start(os.path.join(tempfile.mkdtemp(), "proton"), backend="cupti", context="shadow")
        proton.deactivate(self.session)

    def on(self):
        self.proton.activate(self.session)

    def off(self):
        self.proton.deactivate(self.session)

    def stop(self):
        self.proton.finalize()


class CuptiPython(Tool):
    def __init__(self, step):
        super().__init__(step)
        from cupti import cupti

        self.cupti, self.count, self.slow = cupti, 0, []
        kinds = cupti.ActivityKind
        self.kinds = (kinds.CONCURRENT_KERNEL, kinds.MEMCPY, kinds.MEMSET)
        cupti.activity_register_callbacks(lambda: (8 << 20, 0), self.completed)

    def completed(self, activities):
        for activity in activities:
            self.count += 1
            if activity.end - activity.start >= 100_000:
                self.slow.append(activity.end)

    def on(self):
        for kind in self.kinds:
            self.cupti.activity_enable(kind)

    def off(self):
        for kind in self.kinds:
            self.cupti.activity_disable(kind)

    def stop(self):
        self.cupti.activity_flush_all(1)

    def facts(self):
        return {"records": self.count}


MAKE = {
    "none": Tool, "file": File, "live": Gpusense, "live+blocks": Blocks, "torch-cuda": TorchProfiler,
    "torch-all": TorchAll, "proton": Proton, "cupti-python": CuptiPython,
}  # fmt: skip


def storm():
    """5,000 launches of an empty kernel through ctypes from one C loop: nothing but launches."""
    import ctypes

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

    step = storm() if workload == "storm" else workloads.ALL[workload]()
    steps = STEPS[workload]

    def stretch(step):
        step()
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
        return (time.perf_counter() - began) / steps

    for _ in range(4):
        stretch(step)
    before = [stretch(step) for _ in range(8)]
    made = MAKE[tool](step)
    without, with_it = [], []
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(without) < 5:
        made.off()
        without.append(stretch(made.step))
        made.on()
        with_it.append(stretch(made.step))
    began = time.perf_counter()
    made.stop()
    stop_s = time.perf_counter() - began
    after = [stretch(step) for _ in range(8)]
    ratios = sorted(b / a for a, b in zip(without, with_it, strict=True))
    result = {
        "workload": workload,
        "tool": tool,
        "pairs": len(ratios),
        "off_ms": statistics.median(without) * 1e3,
        "ratio": statistics.median(ratios),
        "interval": interval(ratios),
        "stop_s": stop_s,
        "after": statistics.median(after) / statistics.median(before),
        **made.facts(),
    }
    print(json.dumps(result), flush=True)
    os._exit(0)


def interval(ratios):
    """95 % interval of the median by order statistics of the binomial distribution."""
    n = len(ratios)
    half = 0.98 * n**0.5
    return [ratios[max(0, int(n / 2 - half))], ratios[min(n - 1, int(n / 2 + half))]]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=25)
    parser.add_argument("--workloads", default="small,big,graph,copies,storm")
    parser.add_argument("--tools", default=",".join(TOOLS))
    parser.add_argument("--child", nargs=2)
    arguments = parser.parse_args()
    if arguments.child:
        child(*arguments.child, arguments.seconds)
    print(f"{'workload':9}{'tool':14}{'off ms':>8}{'ratio':>8}  95 % interval   pairs{'stop s':>8}{'after':>8}  facts")
    for workload in arguments.workloads.split(","):
        for tool in arguments.tools.split(","):
            command = [sys.executable, __file__, "--seconds", str(arguments.seconds), "--child", workload, tool]
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=arguments.seconds * 4 + 120, check=False
            )
            lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
            if not lines:
                print(
                    f"{workload:9}{tool:14} failed: {(done.stderr.strip().splitlines() or ['no output'])[-1][:100]}",
                    flush=True,
                )
                continue
            row = json.loads(lines[-1])
            known = ("workload", "tool", "pairs", "off_ms", "ratio", "interval", "stop_s", "after")
            facts = " ".join(f"{key}={value}" for key, value in row.items() if key not in known)
            low, high = row["interval"]
            ratio = f"{row['ratio']:8.4f}  [{low:.4f}, {high:.4f}]{row['pairs']:6d}"
            print(
                f"{workload:9}{tool:14}{row['off_ms']:8.2f}{ratio}{row['stop_s']:8.3f}{row['after']:8.3f}  {facts}",
                flush=True,
            )


if __name__ == "__main__":
    main()

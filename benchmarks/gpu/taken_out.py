"""What stays of CUPTI in a process, and what taking it out does to the program. Needs a GPU, cc and torch.

    python benchmarks/gpu/taken_out.py [--parts kinds,graphs,beside] [--seconds 20]

*kinds*: milliseconds for 5,000 launches with callbacks registered, with kinds on, with them off again, and with CUPTI
taken out (``cuptiFinalize``), for each choice of kinds in turn. *graphs*: a CUDA graph replayed in some order with
kinds on, off, and CUPTI out, each order in a process of its own, since some end with a launch failure. *beside*: CUPTI
taken out and registered again from a thread of its own while others launch, as often as fits in the time; with a graph
replayed by one of them it is expected to fail. ``GPUSENSE_LIBCUPTI`` chooses another libcupti. Nothing here is what
gpusense does: see docs/adr/0015-staying-in.md.
"""

import argparse
import collections
import ctypes
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

LAUNCHES, TURNS = 5_000, 4
#: "on" and "off" switch kinds, "out" takes CUPTI out, "new" makes the graph anew; other work is done after each.
ORDERS = (
    "on replay off out replay",
    "on replay out replay",
    "replay on off out replay",
    "on off replay out replay",
    "on replay off replay out replay",
    "on replay off replay wait out replay",
    "on replay off replay on out replay",
    "on replay off replay on replay out replay",
    "on replay off replay out new replay",
    "on replay off replay out on replay",
)


class Cupti:
    """CUPTI as an engine of gpusense drives it, without anything that keeps a program safe."""

    def __init__(self):
        from gpusense._decode import layouts
        from gpusense.backends.cupti.activity import CuptiActivity
        from gpusense.backends.cupti.engine import Engine

        activity = CuptiActivity()
        absent = activity.load()
        assert absent is None, absent
        self.version, self.api, self.work = activity.version, activity._api, layouts.DEFAULT_KINDS
        self.engine = Engine(activity._api, 256 << 10, 256)

    def on(self, kinds=None):
        self.engine.register()
        for kind in kinds or self.work:
            self.engine.enable(kind)

    def off(self, kinds=None):
        for kind in kinds or self.work:
            self.engine.disable(kind)
        self.read()

    def read(self):
        self.engine.flush(True)
        while full := self.engine.take():
            self.engine.give(full[0])

    def out(self):
        code = self.api.cuptiFinalize()
        assert code == 0, code
        self.engine.mailbox.forget_newest()


def storm():
    """The launches of an empty kernel, from one C loop."""
    from gpusense import cuda

    device = cuda.Device(0)
    text = ".version 6.0\n.target sm_50\n.address_size 64\n.visible .entry nop(.param .u32 p){ ret; }\n"
    function = cuda.Module.from_ptx(text, device).function("nop")
    library = pathlib.Path(tempfile.mkdtemp()) / "storm.so"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, HERE / "storm.c"], check=True)
    loop = ctypes.CDLL(str(library)).storm
    driver = ctypes.CDLL(os.environ.get("GPUSENSE_LIBCUDA") or "libcuda.so.1")
    launch = ctypes.cast(driver.cuLaunchKernel, ctypes.c_void_p)

    def step():
        with device.current():
            loop(launch, function._handle, LAUNCHES)
        device.synchronize()

    return step


def by_kind(seconds):
    from gpusense import BackendError

    step = storm()

    def timed(times=TURNS):
        step()
        found = []
        for _ in range(times):
            began = time.perf_counter()
            step()
            found.append((time.perf_counter() - began) * 1e3)
        return found

    timed(20)
    print(f"CUPTI never touched: {statistics.median(timed(30)):.2f} ms")
    cupti = Cupti()
    choices = {
        "kernels": (10,), "copies": (1,), "memsets": (2,), "all three": (10, 1, 2), "graphs as a whole": (51,),
        "synchronisation": (38,), "external correlation": (39,), "runtime calls": (5,), "allocations": (49,),
    }  # fmt: skip
    times = {name: collections.defaultdict(list) for name in choices}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for name in list(times):
            found, kinds = times[name], choices[name]
            cupti.engine.register()
            found["registered"] += timed()
            try:
                cupti.on(kinds)
            except BackendError as error:
                print(f"{name}: {error}")
                del times[name]
                continue
            found["on"] += timed()
            cupti.off(kinds)
            found["off"] += timed()
            cupti.out()
            found["out"] += timed()
    print(f"libcupti {cupti.version}; ms for {LAUNCHES} launches, medians, and ratios to registered")
    for name, found in times.items():
        medians = {state: statistics.median(values) for state, values in found.items()}
        ratios = (f"{state} {value:.2f} ({value / medians['registered']:.3f})" for state, value in medians.items())
        print(f"{name:22}{', '.join(ratios)}; {len(found['on'])} each")


def make_graph():
    import torch

    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(6)]).cuda().eval()
    data = torch.randn(16, 64, device="cuda")
    with torch.no_grad():
        model(data)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            model(data)
    graph.parts = (model, data)
    return graph


def one_order(order):
    import torch

    torch.zeros(1, device="cuda")
    cupti, graph = Cupti(), make_graph()

    def replay():
        for _ in range(300):
            graph.replay()
        torch.cuda.synchronize()

    def other_work():
        data = torch.randn(64, 64, device="cuda")
        for _ in range(300):
            data = torch.relu(data)
        torch.cuda.synchronize()

    try:
        for word in order.split():
            if word == "new":
                graph = make_graph()
            elif word == "replay":
                replay()
            else:
                {"on": cupti.on, "off": cupti.off, "out": cupti.out, "wait": lambda: time.sleep(1.5)}[word]()
                other_work()
        print(f"{cupti.version:16}{order:46}works", flush=True)
    except Exception as error:
        print(f"{cupti.version:16}{order:46}{type(error).__name__}: {str(error).splitlines()[0]}", flush=True)
    os._exit(0)


def graphs():
    command = [sys.executable, __file__, "--order"]
    for process in [subprocess.Popen([*command, order]) for order in ORDERS]:
        process.wait(120)


def beside(seconds, graph):
    """Prints how often it went well; a failure of the program ends the process."""
    import torch
    import workloads

    ended, turns = [], collections.Counter()

    def program(number):
        with torch.cuda.stream(torch.cuda.Stream()):
            step = workloads._train(2, 128, 4, 4, 32) if number == 0 else None
            data, host = torch.randn(64, 64, device="cuda"), torch.randn(256, 256)
            while not ended:
                if step is not None:
                    step()
                elif number == 1:
                    (torch.relu(data) @ data).sum().item()
                elif number == 2:
                    host.cuda(non_blocking=True).cpu()
                else:
                    for _ in range(50):
                        data = torch.relu(data)
                    torch.empty(1 << 22, device="cuda")
                    torch.cuda.empty_cache()
                turns[number] += 1

    def replay(captured):
        with torch.cuda.stream(torch.cuda.Stream()):
            while not ended:
                captured.replay()
                torch.cuda.current_stream().synchronize()

    threads = [threading.Thread(target=program, args=(number,), daemon=True) for number in range(4)]
    if graph:
        threads.append(threading.Thread(target=replay, args=(make_graph(),), daemon=True))
    for thread in threads:
        thread.start()
    time.sleep(3)
    cupti, out, back, end = Cupti(), [], [], time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.perf_counter()
        cupti.on()
        back.append(time.perf_counter() - began)
        time.sleep(0.01)
        if not graph:
            cupti.off()
        began = time.perf_counter()
        cupti.out()
        out.append(time.perf_counter() - began)
    times = (f"{name} {statistics.median(found) * 1e3:.1f} ms, at most {max(found) * 1e3:.0f}" for name, found in
             (("out", out), ("back", back)))  # fmt: skip
    print(f"{cupti.version}: {len(out)} times, {'; '.join(times)}; turns of the program {dict(turns)}", flush=True)
    os._exit(0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="kinds,graphs,beside")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--order", help=argparse.SUPPRESS)
    parser.add_argument("--beside", choices=("plain", "graph"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.order:
        one_order(given.order)
    if given.beside:
        beside(given.seconds, given.beside == "graph")
    if "kinds" in given.parts:
        by_kind(given.seconds)
    if "graphs" in given.parts:
        graphs()
    if "beside" in given.parts:
        for case in ("plain", "graph"):
            command = [sys.executable, __file__, "--seconds", str(given.seconds), "--beside", case]
            done = subprocess.run(command, capture_output=True, text=True, timeout=given.seconds + 90, check=False)
            errors = [line for line in done.stderr.splitlines() if "rror" in line]
            print(f"{case}: {done.stdout.strip() or '; '.join(dict.fromkeys(errors)) or '?'}", flush=True)


if __name__ == "__main__":
    main()

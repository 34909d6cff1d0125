"""Living with other profilers: every order of start and stop, whether each got all its data, what gpusense said.

    python benchmarks/gpu/coexistence.py [--tools torch,torch+schedule,proton,proton+shared,proton+detach,copy]

Needs a GPU and torch; Proton comes with Triton. Ends within three minutes. The work is counted: each phase launches 200
kernels. Orders: gpusense (G) and the other (O) start and stop as "G O o g" (capitals start, small letters stop), with
one phase of work after each step. ``other``: launches the other should have / has. ``ours``: the same for
gpusense, for the phases in which the other was not running, allowed a second to come back.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
ORDERS = ("O o", "G O o g", "G O g o", "O G o g", "O G g o")  # the first: the other alone
PHASE = 200

PROGRAM = r"""
import json, os, sys, tempfile, time
tool, order = sys.argv[1:]
sys.path.insert(0, os.environ["COPY"])
import torch
x = torch.ones(1024, device="cuda"); torch.cuda.synchronize()
import gpusense
PHASE = int(os.environ["PHASE"])

def work():
    for _ in range(PHASE): x.add_(1.0)
    torch.cuda.synchronize()

class Torch:
    def start(self):
        from torch.profiler import ProfilerActivity, profile, schedule
        plan = schedule(wait=0, warmup=1, active=1000, repeat=1) if tool == "torch+schedule" else None
        self.profile = profile(activities=[ProfilerActivity.CUDA], schedule=plan)
        self.profile.__enter__()
        if plan:  # has taken CUPTI by now, and records from its first step on
            time.sleep(1.5)
            self.profile.step()
    def stop(self): self.profile.__exit__(None, None, None)
    def count(self): return sum(e.count for e in self.profile.key_averages() if "elementwise" in e.key)

class Proton:
    def start(self):
        import triton.profiler as proton
        self.proton, self.path = proton, os.path.join(tempfile.mkdtemp(), "p")
        if tool == "proton+shared":  # the libcupti that is in the process already, in place of Proton's own
            mapped = [line.split()[-1] for line in open("/proc/self/maps") if "libcupti.so" in line]
            folder = tempfile.mkdtemp()
            if mapped:
                os.symlink(mapped[0], os.path.join(folder, "libcupti.so"))
                os.environ["TRITON_CUPTI_LIB_PATH"] = folder
        if tool == "proton+detach" and "G" in running:
            gpusense.disable()
            print("detached:", gpusense.detach(), file=sys.stderr)
        proton.start(self.path, hook=None)
    def stop(self):
        self.proton.finalize()
        if tool == "proton+detach" and "G" in running: ours.start()
    def count(self):
        def total(node):
            own = int(node["metrics"].get("count", 0)) if "elementwise" in node["frame"]["name"] else 0
            return own + sum(total(child) for child in node.get("children", ()))
        return sum(total(node) for node in json.load(open(self.path + ".hatchet")) if "frame" in node)

class Gpusense:
    def __init__(self, package): self.package = package
    def start(self):
        self.package.enable(); self.tracer = self.package.get_tracer()
        deadline = time.monotonic() + 1.2
        while time.monotonic() < deadline and not self.tracer.recorder.capture.running:
            with self.package.trace("waiting"): time.sleep(0.01)
    def stop(self): self.package.disable()
    def count(self):
        session = self.tracer.session()
        return sum(row.count for row in session.aggregates if "elementwise" in row.name) + sum(
            "elementwise" in kernel.name for kernel in session.kernels)

def other_one():
    if tool.startswith("torch"): return Torch()
    if tool.startswith("proton"): return Proton()
    from host import sense
    return Gpusense(sense)

ours, other = Gpusense(gpusense), other_one()
running, should = set(), {"G": 0, "O": 0}
said = []
for step in order.split():
    target = ours if step in "Gg" else other
    if step.isupper(): target.start(); running.add(step)
    else: target.stop(); running.discard(step.upper())
    if "G" in running:
        time.sleep(2)  # to notice, or to come back
        status = gpusense.get_tracer().status()
        said.append(f"{step}:{status.get('state')}")
    work()
    if "O" in running: should["O"] += PHASE
    if "G" in running and ("O" not in running or tool == "copy"): should["G"] += PHASE
if "G" not in order:
    print(json.dumps([f"{should['O']}/{other.count()}", "-", "", []]))
    sys.exit()
ours.tracer.flush()
session = ours.tracer.session()
reasons = sorted({interval.reason for interval in session.unseen})
print(json.dumps([f"{should['O']}/{other.count()}", f"{should['G']}/{ours.count()}", " ".join(said), reasons]))
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", default="torch,torch+schedule,proton,proton+shared,proton+detach,copy")
    tools = parser.parse_args().tools.split(",")
    import tempfile

    sys.path.insert(0, str(ROOT))
    from gpusense.cli import vendor

    host = pathlib.Path(tempfile.mkdtemp()) / "host"
    host.mkdir()
    (host / "__init__.py").touch()
    vendor.copy(str(host / "sense"))
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "COPY": str(host.parent), "PHASE": str(PHASE)}
    rows = [(tool, order) for tool in tools for order in ORDERS]
    print(f"{'other':14}{'order':10}{'other has':14}{'gpusense has':14}state after each step; reasons")
    running = []
    for tool, order in rows:  # six at a time: starting Python and torch takes longest
        command = [sys.executable, "-c", PROGRAM, tool, order]
        pipe = subprocess.PIPE
        running.append((tool, order, subprocess.Popen(command, env=environ, stdout=pipe, stderr=pipe, text=True)))
        if len(running) == 6:
            report(*running.pop(0))
    for row in running:
        report(*row)


def report(tool: str, order: str, process: "subprocess.Popen[str]") -> None:
    try:
        out, errors = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        print(f"{tool:14}{order:10}HUNG")
        return
    if process.returncode:
        print(f"{tool:14}{order:10}exit {process.returncode}: {errors.strip().splitlines()[-1:]}")
        return
    theirs, ours, said, reasons = json.loads(out.splitlines()[-1])
    print(f"{tool:14}{order:10}{theirs:14}{ours:14}{said}; {' | '.join(reasons)}", flush=True)


if __name__ == "__main__":
    main()

"""Two GPUs: NCCL's all-reduce in two processes under ``gpusense run``, both sessions merged, and peer copies in one.

    python benchmarks/gpu/two_gpus.py [--keep FOLDER]

Needs torch with NCCL and two GPUs. Ends within 90 seconds. Everything is counted: collectives a rank, copies and bytes
between the devices with their direction; devices are joined by UUID with what NVML says. ``--keep`` records small
sessions for tests: two ranks whose collectives overlap with work, one of them slower, and one process on both devices.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROUNDS, COPIES, ELEMENTS = 50, 20, 1 << 22

RANK = f"""
import os, torch, torch.distributed as dist
rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
x = torch.ones({ELEMENTS}, device="cuda")
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
import gpusense
dist.all_reduce(x); torch.cuda.synchronize()
for _ in range({ROUNDS}):
    with gpusense.trace("step"):
        x.mul_(0.5); dist.all_reduce(x)
torch.cuda.synchronize()
dist.destroy_process_group()
"""

PEER = f"""
import json, time, torch
import gpusense
from gpusense import cuda
a = torch.ones({ELEMENTS}, device="cuda:0"); b = torch.empty_like(a, device="cuda:1")
torch.cuda.synchronize(0); torch.cuda.synchronize(1)
gpusense.configure(trace_all=True, mode="on")
tracer = gpusense.get_tracer()
while not tracer.recorder.capture.running:
    with gpusense.trace("waiting"): time.sleep(0.01)
with gpusense.trace("there") as block:
    for _ in range({COPIES}): b.copy_(a)
with gpusense.trace("back"):
    for _ in range({COPIES}): a.copy_(b)
torch.cuda.synchronize(0); torch.cuda.synchronize(1)
block.wait()
rows = {{}}
for copy in tracer.session().transfers:
    if copy.direction == "gpu_to_gpu":
        key = f"{{copy.source_device}} to {{copy.destination_device}} in {{'/'.join(copy.path)}}"
        count, size = rows.get(key, (0, 0))
        rows[key] = count + 1, size + copy.bytes
print(json.dumps({{"copies": rows, "devices": [
    [d.cuda_index, d.nvml_index, d.uuid, d.pci_bus_id, list(d.sources)] for d in gpusense.devices()]}}))
"""


#: Gradients are reduced beside the matrix products of the next layer; rank 1 has half as much work again.
OVERLAP = """
import os, time, torch, torch.distributed as dist
rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
weights = [torch.randn(2048, 2048, device="cuda") for _ in range(4)]
gradients = [torch.randn(1 << 22, device="cuda") for _ in range(4)]
x = torch.randn(2048, 2048, device="cuda")
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
import gpusense
dist.all_reduce(gradients[0]); x @ weights[0]; torch.cuda.synchronize()
for _ in range(12):
    with gpusense.trace("step"):
        with gpusense.trace("backward"):
            waiting = []
            for weight, gradient in zip(weights, gradients):
                for _ in range(2 + rank): y = x @ weight
                waiting.append(dist.all_reduce(gradient, async_op=True))
            for work in waiting: work.wait()
        with gpusense.trace("loss"): y.sum().item()
torch.cuda.synchronize()
dist.destroy_process_group()
"""

BOTH = """
import torch
import gpusense
a = [torch.randn(2048, 2048, device=f"cuda:{i}") for i in range(2)]
b = [torch.empty_like(x) for x in a]
host = torch.empty(2048, 2048, pin_memory=True)
for i in range(2): a[i] @ a[i]; torch.cuda.synchronize(i)
b[1].copy_(a[0]); torch.cuda.synchronize(1)
for _ in range(15):
    with gpusense.trace("pipeline"):
        with gpusense.trace("stage 0"):
            for _ in range(3): y = a[0] @ a[0]
        with gpusense.trace("hand over"): b[1].copy_(y)
        with gpusense.trace("stage 1"):
            for _ in range(2): z = b[1] @ a[1]
        with gpusense.trace("back"): b[0].copy_(z)
        with gpusense.trace("result"): host.copy_(b[0])
for i in range(2): torch.cuda.synchronize(i)
"""


def keep(folder: pathlib.Path) -> None:
    """The sessions for tests, with what was launched known from the programs above."""
    folder.mkdir(parents=True, exist_ok=True)
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29543"}
    work = pathlib.Path(tempfile.mkdtemp())
    (work / "train.py").write_text(OVERLAP)
    (work / "pipeline.py").write_text(BOTH)
    ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"} for rank in range(2)]
    finish([record(work, folder, "train.py", f"rank{more['RANK']}", {**environ, **more}) for more in ranks])
    finish([record(work, folder, "pipeline.py", "both", environ)])


def record(work, folder, program, name, environ):
    command = [sys.executable, "-m", "gpusense", "run", "--trace-all", "-o", str(folder / f"{name}.gpusense"), program]
    pipe = subprocess.PIPE
    return name, subprocess.Popen(command, env=environ, cwd=work, stdout=pipe, stderr=pipe, text=True)


def finish(running):
    for name, process in running:
        _, errors = process.communicate(timeout=60)
        print(f"{name}: exit {process.returncode}\n{errors[-1500:]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--keep", type=pathlib.Path)
    given = parser.parse_args()
    if given.keep:
        keep(given.keep.resolve())
    folder = pathlib.Path(tempfile.mkdtemp())
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29541"}
    (folder / "rank.py").write_text(RANK)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "gpusense", "run", "--trace-all", "-o", str(folder / f"{rank}.gpusense"), "rank.py"],
            env={**environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"},
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    peer = run_peer(environ)
    for rank, process in enumerate(ranks):
        _, errors = process.communicate(timeout=55)
        print(f"rank {rank}: exit {process.returncode}{'' if process.returncode == 0 else ': ' + errors[-800:]}")
    sys.path.insert(0, str(ROOT))
    import gpusense
    from gpusense.analysis.busy import is_collective

    sessions = [gpusense.load(folder / f"{rank}.gpusense") for rank in range(2)]
    for rank, session in enumerate(sessions):
        collectives = [kernel for kernel in session.kernels if is_collective(kernel.name)]
        inside = sum(kernel.path == ("step",) for kernel in collectives)
        devices = sorted({kernel.device for kernel in session.kernels if kernel.device is not None})
        name = collectives[0].name if collectives else "none"
        print(
            f"rank {rank}: {len(collectives)} collectives ({inside} of {ROUNDS} in their block), {name}, "
            f"devices {devices}"
        )
    merge(folder)
    print(json.dumps(peer, indent=1))


def run_peer(environ: "dict[str, str]") -> object:
    done = subprocess.run([sys.executable, "-c", PEER], env=environ, capture_output=True, text=True, timeout=55)
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else done.stderr[-1500:]


def merge(folder: pathlib.Path) -> None:
    command = [sys.executable, "-m", "gpusense", "report", str(folder / "0.gpusense"), str(folder / "1.gpusense")]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=55
    )
    print("\n".join(done.stdout.splitlines()[:25]) or done.stderr[-800:])


if __name__ == "__main__":
    main()

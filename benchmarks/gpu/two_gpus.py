"""Two GPUs: NCCL's all-reduce in two processes under ``gpusense run``, both sessions merged, and peer copies in one.

    python benchmarks/gpu/two_gpus.py

Needs torch with NCCL and two GPUs. Ends within 60 seconds. Everything is counted: collectives a rank, copies and bytes
between the devices with their direction; devices are joined by UUID with what NVML says.
"""

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
while not tracer._recorder.capture.running:
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


def main() -> None:
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

"""On a real NVIDIA GPU: every launch from the first one on, of the program and of the processes it starts."""

import os
import pathlib
import subprocess
import sys

import pytest
from support.followed import nothing_lost

import gpusense
from gpusense import cuda

pytestmark = pytest.mark.gpu
ROOT = pathlib.Path(gpusense.__file__).resolve().parent.parent

#: Each launches 21 kernels at once after its first use of CUDA.
PROGRAMS = {
    "cupy": "import cupy as lib\na = lib.arange(999)\nwait = lib.cuda.Device().synchronize",
    "torch": "import torch as lib\na = lib.ones(999, device='cuda')\nwait = lib.cuda.synchronize",
    "jax": "import jax.numpy as lib\na = lib.arange(999.0)\nwait = lambda: a.block_until_ready()",
}
ADDS = "\nfor _ in range(20):\n    a = a + 1\nwait()\n"

RANK = """
import os, torch
import torch.distributed as dist
dist.init_process_group("gloo")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
a = torch.ones(999, device="cuda")
for _ in range(20):
    a = a + 1
torch.cuda.synchronize()
dist.destroy_process_group()
"""


@pytest.fixture
def command(tmp_path):
    if not cuda.cuda_available():
        pytest.skip("needs an NVIDIA GPU")
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("GPUSENSE", "CUDA_INJECTION"))}
    environ |= {"PYTHONPATH": str(ROOT), "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}

    def run(*words):
        return subprocess.run(
            [sys.executable, "-m", "gpusense", "run", "-o", "s.gpusense", *words],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=110,
        )

    return run


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_first_launches_are_recorded(command, tmp_path, name):
    pytest.importorskip(name)
    (tmp_path / "program.py").write_text(PROGRAMS[name] + ADDS)
    for _ in range(3):
        nothing_lost(command("program.py"), tmp_path / "s.gpusense", 21)


def test_ranks_of_torchrun_are_one_answer(command, tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "rank.py").write_text(RANK)
    done = command("-m", "torch.distributed.run", "--nproc-per-node", "2", "rank.py")
    session = nothing_lost(done, tmp_path / "s.gpusense", 42)
    assert [process["root"] for process in session.meta["processes"]] == ["rank 0", "rank 1"]
    assert "gpusense: rank.py · 2 processes · " in done.stderr, done.stderr  # below what torchrun warns of

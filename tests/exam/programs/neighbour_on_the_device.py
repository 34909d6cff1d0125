"""Inference beside another process that uses the same GPU for itself all the time."""

import os
import subprocess
import sys

import torch
import truth
from torch import nn

WIDTH, ROWS = truth.scaled(4096), truth.scaled(8192)


def neighbour() -> None:
    """Multiplies matrices until its parent has gone."""
    matrix = torch.randn(ROWS, ROWS, device="cuda", dtype=torch.bfloat16)
    torch.mm(matrix, matrix)
    torch.cuda.synchronize()
    print("ready", flush=True)
    while os.getppid() != 1:
        for _ in range(20):
            torch.mm(matrix, matrix)
        torch.cuda.synchronize()


def main() -> None:
    layers = (layer for _ in range(12) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU()))
    model = nn.Sequential(*layers).to("cuda", torch.bfloat16)
    inputs = torch.randn(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("GPUSENSE", "EXAM_TRUTH"))}
    other = None
    with torch.inference_mode():
        if not truth.FIXED:
            command = [sys.executable, __file__, "neighbour"]
            other = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
            other.stdout.readline()
        try:
            for _ in truth.Steady(neighbour_pid=other and other.pid).steps(5, 150):
                model(inputs).mean().item()
        finally:
            if other is not None:
                other.kill()
                other.wait()


if __name__ == "__main__":
    neighbour() if sys.argv[1:] == ["neighbour"] else main()

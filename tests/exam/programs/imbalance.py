"""Inference on two GPUs from one process, of which the first gets most of each batch."""

import torch
import truth
from torch import nn

WIDTH, ROWS = truth.scaled(4096), truth.scaled(16384)
SHARES = (0.5, 0.5) if truth.FIXED else (0.85, 0.15)


def model(device: str) -> nn.Module:
    layers = (layer for _ in range(12) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU()))
    return nn.Sequential(*layers).to(device, torch.bfloat16)


devices = [f"cuda:{number}" for number in range(2)]
models = [model(device) for device in devices]
parts = [
    torch.randn(int(ROWS * share), WIDTH, device=device, dtype=torch.bfloat16)
    for device, share in zip(devices, SHARES, strict=True)
]

with torch.inference_mode():
    for _ in truth.Steady(shares=SHARES).steps(5, 100):
        means = [part_model(part).mean() for part_model, part in zip(models, parts, strict=True)]
        total = sum(mean.item() for mean in means)

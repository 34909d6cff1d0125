"""Training with blocks of gpusense around a step and its parts; the part "load" prepares a batch on the host."""

import time

import torch
import truth
from torch import nn

from gpusense import trace

WIDTH, ROWS = truth.scaled(4096), truth.scaled(4096)

layers = (layer for _ in range(6) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU()))
model = nn.Sequential(*layers).to("cuda", torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
on_host = torch.randn(ROWS, WIDTH, dtype=torch.bfloat16).pin_memory()

for _ in truth.Steady(load_ms=0 if truth.FIXED else 20).steps(8, 100):
    with trace("step"):
        with trace("load"):
            if not truth.FIXED:
                time.sleep(0.020)  # a file server far away
            inputs = on_host.to("cuda", non_blocking=True)
        with trace("forward"):
            loss = model(inputs).square().mean()
        with trace("backward"):
            loss.backward()
        with trace("optimizer"):
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        with trace("log"):
            loss.item()

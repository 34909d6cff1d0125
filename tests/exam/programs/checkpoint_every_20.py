"""Training that writes a checkpoint every 20 steps and stands still meanwhile."""

import os
import tempfile

import torch
import truth
from torch import nn

WIDTH, ROWS, EVERY = truth.scaled(4096), truth.scaled(8192), 20

layers = (layer for _ in range(8) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU()))
model = nn.Sequential(*layers).to("cuda", torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
inputs = torch.randn(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)

with tempfile.TemporaryDirectory() as folder:
    for step in truth.Steady(stall_every=EVERY).steps(5, 115):
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()
        if step % EVERY == EVERY - 1 and not truth.FIXED:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, os.path.join(folder, "checkpoint.pt"))

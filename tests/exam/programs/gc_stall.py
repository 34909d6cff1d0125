"""Training that keeps a long history of small objects and lets Python collect garbage every 10 steps."""

import gc

import torch
import truth
from torch import nn

WIDTH, ROWS, EVERY = truth.scaled(4096), truth.scaled(8192), 10

history = [{"step": number, "tags": ["train", [number]]} for number in range(truth.scaled(1_000_000))]
layers = (layer for _ in range(8) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU()))
model = nn.Sequential(*layers).to("cuda", torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
inputs = torch.randn(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)
if truth.FIXED:
    gc.freeze()
gc.disable()

for step in truth.Steady(stall_every=EVERY).steps(10, 110):
    loss = model(inputs).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    history.append({"step": step, "loss": [loss.item()]})
    if step % EVERY == EVERY - 1:
        gc.collect()

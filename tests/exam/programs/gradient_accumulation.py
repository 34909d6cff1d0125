"""Training with one step of the optimizer after every eight micro-batches."""

import torch
import truth
from torch import nn

WIDTH, ROWS, MICRO_BATCHES = truth.scaled(4096), truth.scaled(8192), 8

layers = (layer for _ in range(5) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU()))
model = nn.Sequential(*layers).to("cuda", torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
batches = torch.randn(MICRO_BATCHES, ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)

for _ in truth.Steady(micro_batches_per_step=MICRO_BATCHES).steps(4, 40):
    for batch in batches:
        loss = model(batch).square().mean() / MICRO_BATCHES
        loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)

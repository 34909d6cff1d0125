"""Training that gives the allocator's memory back to the driver after every step."""

import torch
import truth
from torch import nn

WIDTH, ROWS = truth.scaled(4096), truth.scaled(4096)

layers = (layer for _ in range(10) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU()))
model = nn.Sequential(*layers).to("cuda", torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
inputs = torch.randn(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)

for _ in truth.Steady().steps(6, 60):
    loss = model(inputs).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    del loss
    if not truth.FIXED:
        torch.cuda.empty_cache()

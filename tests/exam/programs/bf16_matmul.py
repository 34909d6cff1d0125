"""Training in bfloat16 with large matrix products and nothing else of weight."""

import torch
import truth
from torch import nn

WIDTH, ROWS, LAYERS = truth.scaled(8192), truth.scaled(16384), 3

layers = (layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU()))
model = nn.Sequential(*layers).to("cuda", torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
inputs = torch.randn(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)

for _ in truth.Steady(flops_per_step=2 * 3 * LAYERS * ROWS * WIDTH * WIDTH).steps(5, 60):
    loss = model(inputs).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)

"""Training in single precision with TF32 left off, so that the tensor cores have nothing to do."""

import torch
import truth
from torch import nn

WIDTH, ROWS = truth.scaled(4096), truth.scaled(8192)

torch.set_float32_matmul_precision("high" if truth.FIXED else "highest")
layers = (layer for _ in range(3) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU()))
model = nn.Sequential(*layers).to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
inputs = torch.randn(ROWS, WIDTH, device="cuda")

for _ in truth.Steady(flops_per_step=2 * 3 * 3 * ROWS * WIDTH * WIDTH).steps(5, 50):
    loss = model(inputs).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)

"""Training of a small, deep network whose optimizer goes through the parameters one by one."""

import torch
import truth
from torch import nn

WIDTH, ROWS, LAYERS = truth.scaled(1024), truth.scaled(2048), 14

layers = (layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)))
model = nn.Sequential(*layers).to("cuda", torch.bfloat16)
how = {"fused": True} if truth.FIXED else {"foreach": False}
optimizer = torch.optim.Adam(model.parameters(), lr=1e-5, **how)
inputs = torch.randn(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)

for _ in truth.Steady(parameters=4 * LAYERS).steps(3, 30):
    loss = model(inputs).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)

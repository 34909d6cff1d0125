"""Training of a recommender whose features arrive as hundreds of little tensors, each copied by itself."""

import torch
import truth
from torch import nn

FEATURES, ROWS, WIDTH = 320, truth.scaled(2048), truth.scaled(2048)

together = [torch.rand(FEATURES, ROWS).pin_memory() for _ in range(4)]
batches = [{f"feature {number}": row for number, row in enumerate(batch)} for batch in together]
layers = (layer for _ in range(3) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU()))
model = nn.Sequential(nn.Linear(FEATURES, WIDTH), *layers, nn.Linear(WIDTH, 1)).to("cuda", torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

for step in truth.Steady(copies_per_step=FEATURES, bytes_to_device_per_step=FEATURES * ROWS * 4).steps(4, 36):
    if truth.FIXED:
        columns = together[step % 4].to("cuda", non_blocking=True)
    else:
        batch = {name: values.to("cuda", non_blocking=True) for name, values in batches[step % 4].items()}
        columns = torch.stack(list(batch.values()))
    loss = model(columns.T.to(torch.bfloat16)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)

"""Training with pinned batches that are copied on the stream that computes, so that each waits for the other."""

import torch
import truth
from torch import nn

ROWS, FEATURES, WIDTH = truth.scaled(8192), 8192, truth.scaled(4096)

data = [torch.rand(ROWS, FEATURES).pin_memory() for _ in range(3)]
layers = (layer for _ in range(5) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU()))
model = nn.Sequential(nn.Linear(FEATURES, WIDTH), *layers, nn.Linear(WIDTH, 8)).to("cuda", torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
beside = torch.cuda.Stream()
spaces = [torch.empty(ROWS, FEATURES, device="cuda") for _ in range(2)]
free = [torch.cuda.Event() for _ in spaces]


def fetch(number: int) -> torch.Tensor:
    """The batch, in one of two spaces on the GPU, once nobody uses what was there."""
    torch.cuda.current_stream().wait_event(free[number % 2])
    return spaces[number % 2].copy_(data[number % 3], non_blocking=True)


steady = truth.Steady(bytes_to_device_per_step=data[0].nbytes)
if truth.FIXED:
    with torch.cuda.stream(beside):
        fetch(0)
for number in steady.steps(6, 80):
    if truth.FIXED:
        torch.cuda.current_stream().wait_stream(beside)
        batch = spaces[number % 2]
        with torch.cuda.stream(beside):
            fetch(number + 1)
    else:
        batch = fetch(number)
    loss = model(batch.to(torch.bfloat16)).square().mean()
    free[number % 2].record()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)

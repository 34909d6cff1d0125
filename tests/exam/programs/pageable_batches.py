"""Training whose batches go to the GPU from ordinary, pageable memory, each waited for."""

import torch
import truth
from torch import nn

ROWS, FEATURES, WIDTH = truth.scaled(4096), 8192, truth.scaled(4096)

data = [torch.rand(ROWS, FEATURES) for _ in range(4)]
layers = (layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU()))
model = nn.Sequential(nn.Linear(FEATURES, WIDTH), *layers, nn.Linear(WIDTH, 8)).to("cuda", torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
beside = torch.cuda.Stream()
if truth.FIXED:
    data = [batch.pin_memory() for batch in data]


def batches(numbers):
    if not truth.FIXED:
        for number in numbers:
            yield data[number % 4].to("cuda")
        return
    after = None
    for number in numbers:
        batch = after
        with torch.cuda.stream(beside):  # the next batch travels while this one is worked on
            after = data[number % 4].to("cuda", non_blocking=True)
        if batch is not None:
            batch.record_stream(torch.cuda.current_stream())
            yield batch
        torch.cuda.current_stream().wait_stream(beside)


steady = truth.Steady(bytes_to_device_per_step=data[0].nbytes)
for batch in batches(steady.steps(6, 80)):
    loss = model(batch.to(torch.bfloat16)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)

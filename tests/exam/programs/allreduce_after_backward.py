"""Training on two GPUs that averages all gradients in one go, after the backward pass. One process a rank."""

import os

import torch
import torch.distributed
import truth
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH, ROWS = truth.scaled(8192), truth.scaled(1024)

rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
torch.distributed.init_process_group("nccl", device_id=torch.device("cuda", rank))
layers = (layer for _ in range(8) for layer in (nn.Linear(WIDTH, WIDTH, bias=False), nn.ReLU()))
model = nn.Sequential(*layers).to("cuda")
if truth.FIXED:
    model = DistributedDataParallel(model, device_ids=[rank], bucket_cap_mb=300, gradient_as_bucket_view=True)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-5, fused=True)
inputs = torch.randn(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)

size = sum(parameter.nbytes for parameter in model.parameters())
for _ in truth.Steady(world_size=2, bytes_reduced_per_step=size).steps(8, 60):
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(inputs).float().square().mean()
    loss.backward()
    if not truth.FIXED:
        for parameter in model.parameters():
            torch.distributed.all_reduce(parameter.grad, op=torch.distributed.ReduceOp.AVG)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
torch.distributed.destroy_process_group()

"""Training on two GPUs with DDP, in which rank 1 prepares each batch for longer than rank 0. One process a rank."""

import os
import time

import torch
import torch.distributed
import truth
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH, ROWS = truth.scaled(4096), truth.scaled(8192)

rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
torch.distributed.init_process_group("nccl", device_id=torch.device("cuda", rank))
layers = (layer for _ in range(6) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU()))
model = DistributedDataParallel(nn.Sequential(*layers).to("cuda", torch.bfloat16), device_ids=[rank])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
inputs = torch.randn(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)


def prepare() -> None:
    """Rank 1's part of the data has samples that need more work on the host."""
    time.sleep(0.001 if rank == 0 or truth.FIXED else 0.030)


for _ in truth.Steady(world_size=2, late_rank=1).steps(8, 80):
    prepare()
    loss = model(inputs).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    loss.item()
torch.distributed.destroy_process_group()

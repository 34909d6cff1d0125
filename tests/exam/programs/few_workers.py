"""Training from a DataLoader with one worker, where eight could prepare the samples side by side."""

import time

import torch
import truth
from torch import nn
from torch.utils.data import DataLoader, Dataset

WIDTH, BATCH = truth.scaled(4096), 32


class Scans(Dataset):
    """Samples that take some milliseconds to read and decode."""

    def __len__(self) -> int:
        return BATCH * truth.limited(80) + BATCH * truth.limited(10)

    def __getitem__(self, number: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(number)
        time.sleep(0.0015)  # the disk
        return torch.rand(128, 128, generator=generator).sort(dim=0).values


def main() -> None:
    layers = (layer for _ in range(5) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU()))
    model = nn.Sequential(nn.Linear(128, WIDTH), *layers, nn.Linear(WIDTH, 8)).to("cuda", torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    workers = 12 if truth.FIXED else 1
    loader = DataLoader(Scans(), batch_size=BATCH, num_workers=workers, pin_memory=True, prefetch_factor=4)
    steady = truth.Steady(workers=workers)
    numbers = steady.steps(10, 80)
    next(numbers)
    for batch in loader:
        inputs = batch.to("cuda", non_blocking=True).reshape(-1, 128).to(torch.bfloat16)
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if next(numbers, None) is None:
            break


if __name__ == "__main__":
    torch.set_num_threads(1)  # as each worker has
    main()

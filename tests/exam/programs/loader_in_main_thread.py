"""Training in which each batch is unpacked in the main thread, after the last one has been launched."""

import zlib
from concurrent.futures import ThreadPoolExecutor

import torch
import truth
from torch import nn

WIDTH, BATCH, PIECES = truth.scaled(4096), truth.scaled(4096), 16

generator = torch.Generator().manual_seed(0)
pixels = torch.randint(0, 40, (PIECES, truth.scaled(1 << 20)), dtype=torch.uint8, generator=generator)
archive = [zlib.compress(piece.numpy().tobytes(), 6) for piece in pixels]


def load(_: int) -> torch.Tensor:
    """One batch: every piece unpacked, cut to size and normalised."""
    pieces = [torch.frombuffer(bytearray(zlib.decompress(packed)), dtype=torch.uint8) for packed in archive]
    batch = torch.cat(pieces)[: BATCH * 64].reshape(-1, 64)
    return ((batch.float() - 20) / 12).repeat(1, 2).to(torch.bfloat16).pin_memory()


def batches(numbers):
    if not truth.FIXED:
        for number in numbers:
            yield load(number)
        return
    with ThreadPoolExecutor(12) as pool:  # unpacks ahead, beside the training
        waiting = []
        for number in numbers:
            waiting.append(pool.submit(load, number))
            if len(waiting) > 12:
                yield waiting.pop(0).result()
        for future in waiting:
            yield future.result()


layers = (layer for _ in range(6) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU()))
model = nn.Sequential(nn.Linear(128, WIDTH), *layers, nn.Linear(WIDTH, 8)).to("cuda", torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
steady = truth.Steady(pieces_per_batch=PIECES)
for batch in batches(steady.steps(8, 80)):
    inputs = batch.to("cuda", non_blocking=True)
    loss = model(inputs).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)

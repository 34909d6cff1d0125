"""Three epochs of training, each followed by an evaluation. Both keep the GPU busy."""

import time

import torch
import truth
from torch import nn

WIDTH, ROWS = truth.scaled(4096), truth.scaled(16384)
TRAINING, EVALUATION = truth.limited(50), truth.limited(40)

layers = (layer for _ in range(6) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU()))
model = nn.Sequential(*layers).to("cuda", torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
inputs = torch.randn(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)
unseen = torch.randn(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)


phases: list[tuple[str, float]] = []


def train() -> torch.Tensor:
    """One step; its loss."""
    loss = model(inputs).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss


def timed(name: str, work, count: int) -> None:
    """Works some times, waits for the last result, and notes the milliseconds of one time."""
    began = time.perf_counter()
    for _ in range(count):
        result = work()
        steady.mark()
    result.item()
    phases.append((name, (time.perf_counter() - began) / count * 1e3))


for _ in range(5):
    train()
steady = truth.Steady(training_steps=TRAINING, evaluation_batches=EVALUATION, phases=phases)
steady.begin()
for _ in range(3):
    model.train()
    timed("training", train, TRAINING)
    model.eval()
    with torch.inference_mode():
        timed("evaluation", lambda: model(unseen).mean(), EVALUATION)
steady.end()

"""Segmentation of a scene in tiles: each tile's mask is fetched with ``.cpu()`` before the next tile is begun."""

import numpy
import torch
import truth
from torch import nn

TILES, WIDTH = 8, truth.scaled(2048)

layers = (layer for _ in range(6) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU()))
model = nn.Sequential(*layers, nn.Linear(WIDTH, 32)).to("cuda", torch.bfloat16)
scene = torch.randn(TILES, truth.scaled(4096, 32), WIDTH, device="cuda", dtype=torch.bfloat16)
masks = torch.empty(TILES, scene.shape[1], dtype=torch.uint8, pin_memory=True)
waiting: list[tuple[torch.Tensor, torch.cuda.Event]] = []
found: list[int] = []


def count(mask: numpy.ndarray) -> None:
    """How many runs of one class there are in each of some lines of the mask."""
    found.extend(int(numpy.count_nonzero(numpy.diff(line))) for line in mask.reshape(32, -1))


def finish(fetched: torch.Tensor, copied: torch.cuda.Event) -> None:
    copied.synchronize()
    count(fetched.numpy())


with torch.inference_mode():
    for _ in truth.Steady(waits_per_step=TILES).steps(5, 60):
        found.clear()
        for number, tile in enumerate(scene):
            classes = model(tile).argmax(dim=1).to(torch.uint8)
            if not truth.FIXED:
                count(classes.cpu().numpy())
                continue
            copied = torch.cuda.Event()
            masks[number].copy_(classes, non_blocking=True)
            copied.record()
            waiting.append((masks[number], copied))
            if len(waiting) > 2:  # the GPU has two more tiles to do meanwhile
                finish(*waiting.pop(0))

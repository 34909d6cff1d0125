"""Feature extraction that fetches every batch's features into fresh, pageable memory."""

import torch
import truth
from torch import nn

ROWS, WIDTH = truth.scaled(8192), truth.scaled(4096)

layers = (layer for _ in range(10) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU()))
model = nn.Sequential(*layers).to("cuda", torch.bfloat16)
images = torch.randn(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)
kept = [torch.empty(ROWS, WIDTH, pin_memory=True) for _ in range(2)]
copied = [torch.cuda.Event() for _ in kept]

with torch.inference_mode():
    for step in truth.Steady(bytes_to_host_per_step=kept[0].nbytes).steps(5, 60):
        features = model(images).float()
        if truth.FIXED:
            kept[step % 2].copy_(features, non_blocking=True)
            copied[step % 2].record()
            copied[(step + 1) % 2].synchronize()  # the last step's features are here
        else:
            features = features.cpu()

"""A short job whose model is filled with random weights on one core of the host before it goes to the GPU."""

import torch
import truth
from torch import nn

WIDTH, LAYERS, ROWS = truth.scaled(8192), 20, truth.scaled(4096)

torch.set_num_threads(1)  # as a container with one core has
with torch.device("cuda" if truth.FIXED else "cpu"):
    layers = (layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU()))
    model = nn.Sequential(*layers)
model = model.to("cuda", torch.bfloat16)
inputs = torch.randn(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)

with torch.inference_mode():
    for _ in truth.Steady(parameters=LAYERS * WIDTH * WIDTH).steps(3, 40):
        model(inputs)

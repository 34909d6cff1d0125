"""Inference that notes the largest activation of each layer with ``.item()``."""

import torch
import truth
from torch import nn

WIDTH, ROWS, LAYERS = truth.scaled(2048), truth.scaled(3072), 48

layers = [nn.Linear(WIDTH, WIDTH, device="cuda", dtype=torch.bfloat16) for _ in range(LAYERS)]
inputs = torch.randn(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)
largest: list[float | torch.Tensor] = [0.0] * LAYERS

with torch.inference_mode():
    for _ in truth.Steady(waits_per_step=LAYERS).steps(5, 60):
        hidden = inputs
        for number, layer in enumerate(layers):
            hidden = nn.functional.gelu(layer(hidden))
            peak = hidden.amax()
            largest[number] = peak if truth.FIXED else peak.item()

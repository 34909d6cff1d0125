"""Segmentation with ``cudnn.benchmark``, on images that have a new size every time."""

import torch
import truth
from torch import nn

CHANNELS, BATCH, SIZE = 64, 8, truth.scaled(320)

torch.backends.cudnn.benchmark = not truth.FIXED
layers = (layer for _ in range(4) for layer in (nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1), nn.ReLU()))
model = nn.Sequential(nn.Conv2d(3, CHANNELS, 3, padding=1), *layers).to("cuda")
images = torch.rand(BATCH, 3, SIZE + 600, SIZE + 600, device="cuda")

with torch.inference_mode():
    for step in truth.Steady(new_shape_every=1).steps(3, 40):
        side = SIZE + 8 * step
        model(images[:, :, :side, : side + 4].contiguous()).mean().item()

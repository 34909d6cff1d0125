"""Training with ``torch.cuda.synchronize()`` after every operation, left over from a hunt for a bug."""

import torch
import truth
from torch import nn

WIDTH, ROWS, LAYERS = truth.scaled(2048), truth.scaled(2048), 24

layers = [nn.Linear(WIDTH, WIDTH, device="cuda", dtype=torch.bfloat16) for _ in range(LAYERS)]
weights = [layer.weight for layer in layers]
inputs = torch.randn(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)


def checked(value):
    if not truth.FIXED:
        torch.cuda.synchronize()
    return value


for _ in truth.Steady(layers=LAYERS).steps(5, 60):
    hidden = inputs
    activations = []
    for layer in layers:
        activations.append(hidden)
        with torch.no_grad():
            hidden = checked(layer(hidden))
            hidden = checked(torch.relu(hidden))
    gradient = checked(hidden / hidden.numel())
    with torch.no_grad():
        for weight, activation in zip(reversed(weights), reversed(activations), strict=True):
            update = checked(gradient.T @ activation)
            gradient = checked(gradient @ weight)
            checked(weight.sub_(update, alpha=1e-4))

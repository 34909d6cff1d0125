"""A short job of inference whose compilation by torch.compile takes far longer than its work."""

import os
import tempfile

import torch
import torch._inductor.config
import truth
from torch import nn
from torch.nn import functional

BATCH, LENGTH, WIDTH, HEADS, LAYERS = 16, truth.scaled(2048), truth.scaled(2048, 128), 16, 4


class Layer(nn.Module):
    def __init__(self, activation) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.activation = activation

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        query, key, value = self.qkv(self.before(hidden)).view(BATCH, LENGTH, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value)
        hidden = hidden + self.out(seen.transpose(1, 2).reshape(BATCH, LENGTH, WIDTH))
        return hidden + self.down(self.activation(self.up(self.after(hidden))))


activations = (functional.gelu, functional.silu, functional.relu, functional.mish)
model = nn.Sequential(*(Layer(activations[number % 4]) for number in range(LAYERS))).to("cuda", torch.bfloat16)
tokens = torch.randn(BATCH, LENGTH, WIDTH, device="cuda", dtype=torch.bfloat16)

torch._inductor.config.force_disable_caches = True  # as on a new machine
with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, torch.inference_mode():
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
    run = model if truth.FIXED else torch.compile(model)
    for _ in truth.Steady(layers=LAYERS).steps(3, 40):
        run(tokens)

"""Inference with attention written out: the scores of all pairs of tokens go to memory and back three times."""

import torch
import truth
from torch import nn
from torch.nn import functional

BATCH, HEADS, LENGTH, WIDTH = 8, 16, truth.scaled(4096), 1024


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        query, key, value = self.qkv(hidden).view(BATCH, LENGTH, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        if truth.FIXED:
            seen = functional.scaled_dot_product_attention(query, key, value)
        else:
            scores = query @ key.transpose(-1, -2) * (WIDTH // HEADS) ** -0.5
            seen = torch.softmax(scores, dim=-1) @ value
        return hidden + self.out(seen.transpose(1, 2).reshape(BATCH, LENGTH, WIDTH))


model = nn.Sequential(*(Attention() for _ in range(3))).to("cuda", torch.bfloat16)
tokens = torch.randn(BATCH, LENGTH, WIDTH, device="cuda", dtype=torch.bfloat16)

with torch.inference_mode():
    for _ in truth.Steady(bytes_of_scores=3 * BATCH * HEADS * LENGTH * LENGTH * 2).steps(4, 60):
        model(tokens)

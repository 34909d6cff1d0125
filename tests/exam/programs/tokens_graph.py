"""Text generation at batch 1 from a CUDA graph: each token reads all weights once, and nothing waits for the host."""

import torch
import truth
from torch import nn
from torch.nn import functional

WIDTH, LAYERS, CONTEXT, WORDS = truth.scaled(6144, 128), 24, 256, truth.scaled(32000)
HEADS = WIDTH // 128
TOKENS, WARM_UP = 40, 3


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.register_buffer("cache", torch.zeros(2, 1, HEADS, CONTEXT, WIDTH // HEADS))

    def forward(self, hidden: torch.Tensor, position: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        query, key, value = self.qkv(self.before(hidden)).view(1, 1, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        self.cache[0].index_copy_(2, position, key)
        self.cache[1].index_copy_(2, position, value)
        seen = functional.scaled_dot_product_attention(query, self.cache[0], self.cache[1], attn_mask=mask)
        hidden = hidden + self.out(seen.transpose(1, 2).reshape(1, 1, WIDTH))
        return hidden + self.down(functional.gelu(self.up(self.after(hidden))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, token: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        hidden = self.words(token).view(1, 1, WIDTH)
        mask = (torch.arange(CONTEXT, device=token.device) <= position).view(1, 1, 1, CONTEXT)
        for layer in self.layers:
            hidden = layer(hidden, position, mask)
        return self.head(hidden).view(-1).argmax().view(1)


with torch.device("cuda"):
    torch.set_default_dtype(torch.bfloat16)
    model = Model().eval()
    token, position = torch.tensor([1]), torch.tensor([0])


def advance() -> None:
    """One more token."""
    token.copy_(model(token, position))
    position.add_(1)


with torch.inference_mode():
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        advance()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        advance()
    weights = sum(parameter.nbytes for parameter in model.parameters())
    for _ in truth.Steady(bytes_read_per_step=weights).steps(WARM_UP, TOKENS):
        graph.replay()

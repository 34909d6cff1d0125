"""Root-mean-square normalisation by a Triton kernel that reads and writes each value once."""

import torch
import triton
import triton.language as tl
import truth

ROWS, WIDTH, TENSORS = truth.scaled(65536), 4096, 24


@triton.jit
def normalise(source, weight, target, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    values = tl.load(source + row * width + column, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values) / width + 1e-6)
    weights = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(target + row * width + column, (values * scale * weights).to(tl.bfloat16), mask=inside)


tensors = [torch.randn(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16) for _ in range(TENSORS)]
weight = torch.ones(WIDTH, device="cuda", dtype=torch.bfloat16)
result = torch.empty_like(tensors[0])

for _ in truth.Steady(bytes_moved_per_step=2 * TENSORS * result.nbytes).steps(5, 100):
    for tensor in tensors:
        normalise[(ROWS,)](tensor, weight, result, WIDTH, BLOCK=WIDTH, num_warps=8)

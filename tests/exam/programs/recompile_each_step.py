"""Inference with torch.compile for fixed shapes, on texts that have a new length every time."""

import os
import tempfile

import torch
import torch._dynamo
import torch._inductor.config
import truth

WIDTH = truth.scaled(4096)

torch._dynamo.config.recompile_limit = 1000
torch._dynamo.config.accumulated_recompile_limit = 1000
torch._inductor.config.force_disable_caches = True  # as on a new machine


def activate(gate: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.silu(gate) * hidden


texts = torch.randn(2, truth.scaled(65536), WIDTH, device="cuda", dtype=torch.bfloat16)

with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, torch.inference_mode():
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
    run = torch.compile(activate, dynamic=truth.FIXED)
    for step in truth.Steady(new_shape_every=1).steps(2, 24):
        gate, hidden = texts[:, : texts.shape[1] - 8 * step]
        for _ in range(8):
            hidden = run(gate, hidden)

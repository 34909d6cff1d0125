"""Latency of single requests to a model, and how much of it the GPU worked.

python examples/torch_inference.py
"""

import sys

import gpusense

try:
    import torch
except ImportError:
    print("this example needs torch: pip install torch")
    sys.exit(0)

gpusense.enable()
device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(8)]).to(device).eval()


@torch.inference_mode()
def answer(request):
    with gpusense.trace("request") as block:
        with gpusense.trace("upload"):
            data = request.to(device)
        with gpusense.trace("model"):
            result = model(data)
        with gpusense.trace("download"):
            return result.cpu(), block


answer(torch.randn(1, 256))  # the first call loads libraries
_, block = answer(torch.randn(1, 256))
print(block.summary())
row = gpusense.get_tracer().summary().operation("request")
print(f"{row.count} requests, longest {row.max_ns / 1e6:.2f} ms")

"""Where a training step's GPU time goes, by module, forward and backward, without a line changed in the model.

python examples/torch_training.py
"""

import sys

import gpusense
from gpusense.integrations import torch as gpusense_torch

try:
    import torch
except ImportError:
    print("this example needs torch: pip install torch")
    sys.exit(0)

gpusense.enable()
device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 512)).to(device)
optimizer = torch.optim.AdamW(model.parameters())
batches = torch.utils.data.DataLoader(torch.randn(320, 512), batch_size=64)

gpusense_torch.instrument(model, min_us=0)  # under `gpusense run` this is not even needed
for batch in batches:
    with gpusense.trace("step"):
        loss = (model(batch.to(device)) - 1).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
gpusense.get_tracer().print_summary()
gpusense_torch.uninstrument()

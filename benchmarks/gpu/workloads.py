"""The programs that overhead and correctness are measured on: each function here gives one that does one step.

*small*: launch-bound training, about 870 short kernels a step; *launches*: the same with a third of the layers. *big*:
compute-bound training. *graph*: replays of a CUDA graph. *copies*: inference with a copy to and from the device for
each of many small batches.
"""

import torch


def _train(layers, width, heads, batch, length):
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True, dropout=0.0)
    model = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    data = torch.randn(batch, length, width)

    def step():
        inputs = data.cuda()
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(inputs).float().pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    step.parts = (model, optimizer, data)
    return step


def small():
    return _train(12, 256, 8, 8, 64)


def launches():
    return _train(4, 256, 8, 8, 64)


def big():
    return _train(8, 2048, 16, 8, 1024)


def graph():
    model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(24)]).cuda().eval()
    inputs = torch.randn(64, 512, device="cuda")
    with torch.no_grad():
        for _ in range(3):
            model(inputs)
        torch.cuda.synchronize()
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            model(inputs)

    def step():
        for _ in range(20):
            captured.replay()
        torch.cuda.synchronize()

    step.parts = (model, inputs, captured)
    return step


def copies():
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 16)).cuda().eval()
    batches = [torch.randn(32, 256) for _ in range(40)]

    def step():
        with torch.no_grad():
            for batch in batches:
                model(batch.cuda()).argmax(1).cpu()

    return step


ALL = {"small": small, "big": big, "graph": graph, "copies": copies}

"""The run that `gpusense demo` shows where there is no GPU: ``python benchmarks/gpu/demo.py demo.gpusense 1kHz``.

A training whose batches come over a second stream and are prepared by the program's own thread, for longer than the
device works on one: so the device waits in *load*, and that is the right answer. A validation interrupts it once.
"""

import sys
import time

import torch

import gpusense
from gpusense._tracing.select import control

STEPS, BATCH, LENGTH, WIDTH = 24, 32, 512, 1024


def prepare(batch, seconds):
    """What a loader without workers does: it cuts, jitters and shuffles one after the other."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        batch.add_(0.01).clamp_(-3, 3)
    return batch


def sampling(tracer):
    """Waits until counters are sampled, or cannot be."""
    end = time.monotonic() + 5
    while tracer.status().get("counters", {}).get("state") in ("waiting", "trying") and time.monotonic() < end:
        time.sleep(0.01)


def main(path, counters=None):
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(WIDTH, 16, 4 * WIDTH, batch_first=True, dropout=0.0)
    model = torch.nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    copies, work = torch.cuda.Stream(), torch.cuda.current_stream()
    pinned = torch.randn(BATCH, LENGTH, WIDTH).pin_memory()

    def load(seconds):
        batch = prepare(pinned, seconds)
        with torch.cuda.stream(copies):
            inputs = batch.to("cuda", non_blocking=True)
        work.wait_stream(copies)
        inputs.record_stream(work)
        return inputs

    def loss_of(inputs):
        with torch.autocast("cuda", torch.bfloat16):
            return model(inputs).float().pow(2).mean()

    def step(seconds=0.014):
        with gpusense.trace("step"):
            with gpusense.trace("load"):
                inputs = load(seconds)
            with gpusense.trace("forward"):
                loss = loss_of(inputs)
            with gpusense.trace("backward"):
                optimizer.zero_grad()
                loss.backward()
            with gpusense.trace("optimizer"):
                optimizer.step()
        return loss

    def validate():
        with gpusense.trace("validate"), torch.no_grad():
            return sum(loss_of(load(0.004)).item() for _ in range(4))

    warm = control.start_session(mode="live", counters=counters)  # kernels are loaded once, and so is CUPTI
    sampling(warm.tracer)
    for _ in range(3):
        step(0).item()
    validate()
    warm.finish()
    run = control.start_session(mode="file", path=path, trace_all=True, counters=counters)
    sampling(run.tracer)
    for number in range(STEPS):
        loss = step()
        if number == STEPS // 2:
            print(number, validate())
    print(loss.item())
    run.finish()


if __name__ == "__main__":
    main(*sys.argv[1:])

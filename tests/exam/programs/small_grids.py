"""Filters of many signals over time: one launch a recording, each on four of the GPU's multiprocessors."""

import torch
import triton
import triton.language as tl
import truth

RECORDINGS, CHANNELS, SAMPLES, BLOCK = 24, 512, truth.scaled(1024), 128


@triton.jit
def smooth(signals, smoothed, samples, channels, BLOCK: tl.constexpr):
    """Exponential smoothing of some channels, sample by sample; the second axis of the grid is the recording."""
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    start = tl.program_id(1).to(tl.int64) * samples * channels
    level = tl.zeros((BLOCK,), tl.float32)
    for sample in range(samples):
        at = start + sample * channels + channel
        level += 0.1 * (tl.load(signals + at) - level)
        tl.store(smoothed + at, level)


signals = torch.randn(RECORDINGS, SAMPLES, CHANNELS, device="cuda")
smoothed = torch.empty_like(signals)

for _ in truth.Steady(launches_per_step=RECORDINGS, blocks_per_launch=CHANNELS // BLOCK).steps(5, 80):
    if truth.FIXED:
        smooth[(CHANNELS // BLOCK, RECORDINGS)](signals, smoothed, SAMPLES, CHANNELS, BLOCK)
    else:
        for source, target in zip(signals, smoothed, strict=True):
            smooth[(CHANNELS // BLOCK, 1)](source, target, SAMPLES, CHANNELS, BLOCK)

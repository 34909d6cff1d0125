"""Two cameras' frames on two streams, which wait for each other after every frame though they share nothing."""

import torch
import triton
import triton.language as tl
import truth

FRAMES, WIDTH, ROWS, BLOCK = 12, 7680, truth.scaled(768), 128


@triton.jit
def fade(frame, result, rows, width, BLOCK: tl.constexpr):
    """A running mean down each column of a frame."""
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    level = tl.zeros((BLOCK,), tl.float32)
    for row in range(rows):
        level += 0.05 * (tl.load(frame + row * width + column) - level)
        tl.store(result + row * width + column, level)


cameras = [torch.rand(FRAMES, ROWS, WIDTH, device="cuda") for _ in range(2)]
results = [torch.empty_like(camera) for camera in cameras]
left, right = torch.cuda.Stream(), torch.cuda.Stream()
torch.cuda.synchronize()

for _ in truth.Steady(launches_per_step=2 * FRAMES, blocks_per_launch=WIDTH // BLOCK).steps(5, 80):
    for frame in range(FRAMES):
        for stream, other, camera, result in zip((left, right), (right, left), cameras, results, strict=True):
            with torch.cuda.stream(stream):
                if not truth.FIXED:
                    stream.wait_stream(other)
                fade[(WIDTH // BLOCK,)](camera[frame], result[frame], ROWS, WIDTH, BLOCK)

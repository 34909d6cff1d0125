"""Two streams of CuPy between whose kernels a small one on the default stream stands, which waits for both."""

import cupy
import truth

ROUNDS, BLOCKS, ITERATIONS = 12, 48, truth.scaled(60_000)

iterate = cupy.RawKernel(
    r"""
    extern "C" __global__ void iterate(float* values, int iterations) {
        int at = blockIdx.x * blockDim.x + threadIdx.x;
        float x = values[at];
        for (int i = 0; i < iterations; ++i) x = 3.7f * x * (1.0f - x);
        values[at] = x;
    }
    """,
    "iterate",
)
populations = [cupy.random.rand(BLOCKS * 256, dtype=cupy.float32) for _ in range(2)]
progress = cupy.zeros(1, dtype=cupy.int32)
streams = [cupy.cuda.Stream(non_blocking=truth.FIXED) for _ in range(2)]
cupy.cuda.Device().synchronize()

for _ in truth.Steady(launches_per_step=2 * ROUNDS, blocks_per_launch=BLOCKS).steps(5, 80):
    for _ in range(ROUNDS):
        for stream, population in zip(streams, populations, strict=True):
            with stream:
                iterate((BLOCKS,), (256,), (population, cupy.int32(ITERATIONS)))
            progress += 1  # on the default stream
    if truth.FIXED:
        for stream in streams:
            stream.synchronize()

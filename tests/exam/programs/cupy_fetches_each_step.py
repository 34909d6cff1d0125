"""Denoising of pictures with CuPy, each of which is fetched with ``cupy.asnumpy`` for a statistic of a few numbers."""

import cupy
import numpy
import truth

SIDE = truth.scaled(8192)

picture = cupy.random.rand(SIDE, SIDE, dtype=cupy.float32)
brightest: list[float] = []

for step in truth.Steady(bytes_to_host_per_step=picture.nbytes).steps(5, 40):
    light = cupy.sqrt(picture * picture + 0.01 * step)
    light = cupy.clip(light - 0.1, 0.0, 1.0)
    light = light * 0.9 + picture * 0.1
    if truth.FIXED:
        brightest.append(float(light[:64].max()))
    else:
        brightest.append(float(numpy.max(cupy.asnumpy(light)[:64])))

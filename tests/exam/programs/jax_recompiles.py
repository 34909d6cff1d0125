"""Inference with JAX, jitted for the exact length of each text: every new length is compiled anew."""

import jax
import jax.numpy as jnp
import numpy
import truth

WIDTH, LONGEST, LAYERS = truth.scaled(1024), truth.scaled(4096), 4


@jax.jit
def score(weights: jax.Array, tokens: jax.Array) -> jax.Array:
    hidden = tokens
    for weight in weights:
        hidden = hidden + jax.nn.silu(hidden * weight)
    return jax.nn.log_softmax(hidden, axis=-1).mean(axis=0)


weights = jax.random.normal(jax.random.key(0), (LAYERS, WIDTH), jnp.float32)
texts = numpy.ones((LONGEST, WIDTH), numpy.float32)
steady = truth.Steady(lambda: jax.block_until_ready(weights), new_shape_every=1)
for step in steady.steps(2, 40):
    text = texts[: LONGEST - 3 * step]
    if truth.FIXED:  # one length for all
        text = numpy.pad(text, ((0, LONGEST - len(text)), (0, 0)))
    score(weights, jax.device_put(text)).block_until_ready()

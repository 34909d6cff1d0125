"""Training with JAX whose step asks a Python function for the learning rate, in the middle of it."""

import time

import jax
import jax.numpy as jnp
import numpy
import truth

WIDTH, ROWS, LAYERS = truth.scaled(4096), truth.scaled(8192), 5


def rate_for(loss: numpy.ndarray) -> numpy.ndarray:
    """The learning rate, from a schedule kept by somebody else."""
    time.sleep(0.015)
    return numpy.float32(1e-4) + 0 * numpy.asarray(loss)


def loss(weights: list[jax.Array], inputs: jax.Array) -> jax.Array:
    hidden = inputs
    for weight in weights:
        hidden = jax.nn.gelu(hidden @ weight)
    return jnp.mean(jnp.square(hidden.astype(jnp.float32)))


def train(weights: list[jax.Array], inputs: jax.Array) -> list[jax.Array]:
    value, gradients = jax.value_and_grad(loss)(weights, inputs)
    rate = 1e-4 if truth.FIXED else jax.pure_callback(rate_for, jax.ShapeDtypeStruct((), jnp.float32), value)
    return [
        (weight - rate * gradient).astype(weight.dtype) for weight, gradient in zip(weights, gradients, strict=True)
    ]


keys = jax.random.split(jax.random.key(0), LAYERS + 1)
weights = [jax.random.normal(key, (WIDTH, WIDTH), jnp.bfloat16) / WIDTH**0.5 for key in keys[1:]]
inputs = jax.random.normal(keys[0], (ROWS, WIDTH), jnp.bfloat16)
step = jax.jit(train, donate_argnums=0)
steady = truth.Steady(lambda: jax.block_until_ready(weights), callback_ms=15)
for _ in steady.steps(5, 80):
    weights = step(weights, inputs)

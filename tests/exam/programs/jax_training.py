"""Training with JAX: one jitted step in bfloat16, nothing but large matrix products."""

import jax
import jax.numpy as jnp
import truth

WIDTH, ROWS, LAYERS = truth.scaled(8192), truth.scaled(16384), 3


def loss(weights: list[jax.Array], inputs: jax.Array) -> jax.Array:
    hidden = inputs
    for weight in weights:
        hidden = jax.nn.gelu(hidden @ weight)
    return jnp.mean(jnp.square(hidden.astype(jnp.float32)))


def train(weights: list[jax.Array], inputs: jax.Array) -> list[jax.Array]:
    gradients = jax.grad(loss)(weights, inputs)
    return [weight - 1e-4 * gradient for weight, gradient in zip(weights, gradients, strict=True)]


keys = jax.random.split(jax.random.key(0), LAYERS + 1)
weights = [jax.random.normal(key, (WIDTH, WIDTH), jnp.bfloat16) / WIDTH**0.5 for key in keys[1:]]
inputs = jax.random.normal(keys[0], (ROWS, WIDTH), jnp.bfloat16)
step = jax.jit(train, donate_argnums=0)
steady = truth.Steady(lambda: jax.block_until_ready(weights), flops_per_step=2 * 3 * LAYERS * ROWS * WIDTH * WIDTH)
for _ in steady.steps(5, 60):
    weights = step(weights, inputs)

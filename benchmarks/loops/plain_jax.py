"""A training loop of a GPT as a user of JAX writes it: what benchmarks/jax_loop.py compares models/jax with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

Tensors = dict[str, Any]
State = tuple[Tensors, Tensors, Tensors]  # weights, means and squares

HEAD, RATE = 32, 1e-4
DTYPES = {"fp32": jnp.float32, "bf16": jnp.bfloat16}


def step_of(task: dict[str, Any], tokens: np.ndarray) -> Callable[[], None]:
    """A function that does one step on `tokens` [batch, sequence + 1] and returns nothing."""
    weights = initial(task)
    state = (weights, jax.tree.map(jnp.zeros_like, weights), jax.tree.map(jnp.zeros_like, weights))
    compiled = jax.jit(update, donate_argnums=0, static_argnums=3)

    def step() -> None:
        nonlocal state
        state, loss = compiled(state, tokens[:, :-1], tokens[:, 1:], task["dtype"], np.float32(1))
        float(loss)

    return step


def initial(task: dict[str, Any]) -> Tensors:
    random, hidden = np.random.default_rng(1), task["hidden"]

    def dense(rows: int, columns: int) -> Tensors:
        return {"w": jnp.asarray(random.normal(0, 0.02, (rows, columns)), jnp.float32), "b": jnp.zeros(columns)}

    def unit() -> Tensors:
        return {"scale": jnp.ones(hidden), "shift": jnp.zeros(hidden)}

    def layer() -> Tensors:
        wide = {"up": dense(hidden, 4 * hidden), "down": dense(4 * hidden, hidden)}
        return {"one": unit(), "qkv": dense(hidden, 3 * hidden), "out": dense(hidden, hidden), "two": unit(), **wide}

    ends = {"table": dense(task["vocabulary"], hidden)["w"], "place": dense(task["sequence"], hidden)["w"]}
    return {**ends, "layers": [layer() for _ in range(task["layers"])], "last": unit()}


def normal(x: jax.Array, weights: Tensors) -> jax.Array:
    exact = x.astype(jnp.float32)
    exact = (exact - exact.mean(-1, keepdims=True)) * jax.lax.rsqrt(exact.var(-1, keepdims=True) + 1e-5)
    return (exact * weights["scale"] + weights["shift"]).astype(x.dtype)


def apply(weights: Tensors, x: jax.Array) -> jax.Array:
    return x @ weights["w"].astype(x.dtype) + weights["b"].astype(x.dtype)


def loss_of(weights: Tensors, inputs: jax.Array, targets: jax.Array, dtype: str) -> jax.Array:
    x = (weights["table"][inputs] + weights["place"]).astype(DTYPES[dtype])
    for layer in weights["layers"]:
        split = apply(layer["qkv"], normal(x, layer["one"])).reshape(*x.shape[:2], 3, -1, HEAD)
        mixed = jax.nn.dot_product_attention(split[:, :, 0], split[:, :, 1], split[:, :, 2], is_causal=True)
        x = x + apply(layer["out"], mixed.reshape(x.shape))
        x = x + apply(layer["down"], jax.nn.gelu(apply(layer["up"], normal(x, layer["two"]))))
    logits = (normal(x, weights["last"]) @ weights["table"].T.astype(x.dtype)).astype(jnp.float32)
    picked = jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]
    return (jax.nn.logsumexp(logits, axis=-1) - picked).mean()


def update(
    state: State, inputs: jax.Array, targets: jax.Array, dtype: str, number: jax.Array
) -> tuple[State, jax.Array]:
    """AdamW after clipping to 1."""
    weights, means, squares = state
    loss, gradients = jax.value_and_grad(loss_of)(weights, inputs, targets, dtype)
    norm = jnp.sqrt(sum(jnp.square(x).sum() for x in jax.tree.leaves(gradients)))
    gradients = jax.tree.map(lambda g: g / jnp.maximum(norm, 1.0), gradients)
    means = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, means, gradients)
    squares = jax.tree.map(lambda v, g: 0.95 * v + 0.05 * g * g, squares, gradients)

    def moved(w: jax.Array, m: jax.Array, v: jax.Array) -> jax.Array:
        decayed = w * (1 - 0.1 * RATE) if w.ndim > 1 else w
        return decayed - RATE * (m / (1 - 0.9**number)) / (jnp.sqrt(v / (1 - 0.95**number)) + 1e-8)

    return (jax.tree.map(moved, weights, means, squares), means, squares), loss

"""Causal self-attention with grouped queries (Vaswani et al., 2017; Ainslie et al., 2023) and rotary positions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
from dropout import drop, local_numbers
from jax import numpy as jnp
from layers import named_linear

if TYPE_CHECKING:
    from collections.abc import Mapping

    from levelfield.worker.architecture import Model
    from samples import Samples


def attention(
    model: Model,
    x: jax.Array,
    weights: Mapping[str, jax.Array],
    rotary: tuple[jax.Array, jax.Array] | None,
    dropout_keys: jax.Array | None,
    samples: Samples | None = None,
) -> jax.Array:
    """Return the attention of this rank's heads, without the last bias.

    x: [batch, sequence, hidden]. dropout_keys: [batch], of the probabilities' dropout; None without.
    """
    size = model.hidden_size // model.heads
    # query [batch, sequence, heads, head_dim], key and value [batch, sequence, kv_heads, head_dim]
    query, key, value = (
        named_linear(f"attention.{name}", x, weights, samples).reshape(*x.shape[:2], -1, size)
        for name in ("query", "key", "value")
    )
    if rotary is not None:
        query, key = rotate(query, rotary), rotate(key, rotary)
    mixed = mix(query, key, value, model.attention_dropout, dropout_keys)  # [batch, sequence, heads, head_dim]
    if samples is not None and dropout_keys is None:
        samples.attention(query, key, value, mixed)
    mixed = mixed.reshape(*x.shape[:2], -1)
    return named_linear("attention.output", mixed, weights, samples, has_bias=False)  # [batch, sequence, hidden]


def rotary_tables(head_size: int, length: int, base: float, dtype: jnp.dtype) -> tuple[jax.Array, jax.Array]:
    """Return cosines and sines [length, 1, head_dim / 2] of RoPE (Su et al., 2021), computed in float32."""
    frequency = base ** -(jnp.arange(0, head_size, 2, dtype=jnp.float32) / head_size)
    angle = jnp.outer(jnp.arange(length, dtype=jnp.float32), frequency)[:, None, :]
    return jnp.cos(angle).astype(dtype), jnp.sin(angle).astype(dtype)


def rotate(x: jax.Array, tables: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Rotate the first half of each head against its second half, by its position.

    x: [batch, sequence, heads, head_dim].
    """
    cos, sin = tables
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate((first * cos - second * sin, second * cos + first * sin), axis=-1)


def mix(
    query: jax.Array, key: jax.Array, value: jax.Array, dropout: float, dropout_keys: jax.Array | None
) -> jax.Array:
    """Return the values, mixed by the causal softmax of the scores, which is computed in float32.

    query and the result: [batch, sequence, heads, head_dim]; key, value: [batch, sequence, kv_heads, head_dim].
    """
    if dropout_keys is None and has_cudnn_kernel(query):
        return jax.nn.dot_product_attention(query, key, value, is_causal=True, implementation="cudnn")
    batch, length, count, size = query.shape
    groups = key.shape[2]
    grouped = query.reshape(batch, length, groups, count // groups, size)
    # [batch, kv_heads, heads / kv_heads, sequence, sequence]
    scores = jnp.einsum("bqgnd,bkgd->bgnqk", grouped, key, preferred_element_type=jnp.float32) * size**-0.5
    causal = jnp.tril(jnp.ones((length, length), dtype=bool))
    probabilities = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf), axis=-1).astype(value.dtype)
    if dropout_keys is not None:
        head_probabilities = probabilities.reshape(batch, count, length, length)  # [batch, heads, sequence, sequence]
        probabilities = drop(head_probabilities, dropout_keys, dropout, local_numbers(count, is_split=True)).reshape(
            probabilities.shape
        )
    return jnp.einsum("bgnqk,bkgd->bqgnd", probabilities, value).reshape(query.shape)


def has_cudnn_kernel(query: jax.Array) -> bool:
    """Return whether cuDNN's fused attention takes these heads. Not yet run on the chip.

    On NVIDIA's devices from compute capability 8.0 on, in bf16, for the heads that jax 0.10 gives to cuDNN. AMD's
    backend is called "gpu", too.
    """
    if jax.default_backend() != "gpu" or query.dtype != jnp.bfloat16:
        return False
    device = jax.local_devices()[0]
    if "cuda" not in device.client.platform_version:
        return False
    capability = tuple(int(part) for part in device.compute_capability.split("."))
    largest_head = 256 if capability >= (9, 0) else 128
    return capability >= (8, 0) and query.shape[-1] % 8 == 0 and query.shape[-1] <= largest_head

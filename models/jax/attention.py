"""Causal self-attention with grouped queries (Vaswani et al., 2017; Ainslie et al., 2023) and rotary positions."""

import jax
from dropout import drop, own_numbers
from jax import numpy as jnp
from layers import linear


def attention(model, x, weights, rotary, keys):
    """The attention of this rank's heads, without the last bias; keys: of the scores' dropout, or None."""
    size = model.hidden_size // model.heads
    query, key, value = (
        heads(linear(x, weights[f"attention.{name}.weight"], weights.get(f"attention.{name}.bias")), size)
        for name in ("query", "key", "value")
    )
    if rotary is not None:
        query, key = rotate(query, rotary), rotate(key, rotary)
    mixed = mix(query, key, value, model.attention_dropout, keys)
    return linear(mixed.reshape(*x.shape[:2], -1), weights["attention.output.weight"])


def heads(x, size):
    """[batch, sequence, n D] -> [batch, sequence, n, D]."""
    return x.reshape(*x.shape[:2], -1, size)


def rotary_tables(head_size, length, base, dtype):
    """Cosines and sines [length, 1, D / 2] of RoPE (Su et al., 2021), computed in float32."""
    frequency = base ** -(jnp.arange(0, head_size, 2, dtype=jnp.float32) / head_size)
    angle = jnp.outer(jnp.arange(length, dtype=jnp.float32), frequency)[:, None, :]
    return jnp.cos(angle).astype(dtype), jnp.sin(angle).astype(dtype)


def rotate(x, tables):
    """Rotate the first half of each head against its second half, by its position. x: [batch, sequence, n, D]."""
    cos, sin = tables
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate((first * cos - second * sin, second * cos + first * sin), axis=-1)


def mix(query, key, value, dropout, keys):
    """Values [batch, sequence, n, D] mixed by the causal softmax of the scores, which is computed in float32."""
    if keys is None and fused(query):
        return jax.nn.dot_product_attention(query, key, value, is_causal=True, implementation="cudnn")
    batch, length, count, size = query.shape
    groups = key.shape[2]
    grouped = query.reshape(batch, length, groups, count // groups, size)
    scores = jnp.einsum("bqgnd,bkgd->bgnqk", grouped, key, preferred_element_type=jnp.float32) * size**-0.5
    causal = jnp.tril(jnp.ones((length, length), dtype=bool))
    shares = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf), axis=-1).astype(value.dtype)
    if keys is not None:
        by_head = shares.reshape(batch, count, length, length)
        shares = drop(by_head, keys, dropout, own_numbers(count, True)).reshape(shares.shape)
    return jnp.einsum("bgnqk,bkgd->bqgnd", shares, value).reshape(query.shape)


def fused(query):
    """Whether cuDNN's fused attention applies: on NVIDIA's devices, in 16 bits. Not yet run on the chip."""
    return jax.default_backend() == "gpu" and query.dtype == jnp.bfloat16

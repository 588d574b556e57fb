"""Dropout (Srivastava et al., 2014) by keys: what is dropped depends on its place in the global batch only.

The place is (seed, step, row of the global batch, layer, use) and the token's position, or the head. So every layout
drops the same, and a block that is computed again drops it again.
"""

from __future__ import annotations

import jax
from grid import REPLICA, SHARD, TENSOR
from jax import lax
from jax import numpy as jnp

EMBEDDING, PROBABILITIES, ATTENTION, MLP = range(4)  # the uses: probabilities are attention's, by head


def row_keys(seed: int, step: jax.Array, micro: jax.Array | int, rows: int, shards: int, data: int) -> jax.Array:
    """Return a key for each of this rank's `rows` rows of micro-batch `micro`, by its number in the global batch."""
    rank = lax.axis_index(REPLICA) * shards + lax.axis_index(SHARD)
    numbers = (micro * data + rank) * rows + jnp.arange(rows)
    key = jax.random.fold_in(jax.random.key(seed), step)
    return jax.vmap(jax.random.fold_in, (None, 0))(key, numbers)


def keys_for_use(keys: jax.Array, layer: jax.Array | int, use: int) -> jax.Array:
    """Return the rows' keys for one use in one layer."""
    return jax.vmap(jax.random.fold_in, (0, None))(keys, layer * 4 + use)


def drop(x: jax.Array, keys: jax.Array, probability: float, numbers: jax.Array) -> jax.Array:
    """Return x with dropout over its last axes.

    x: [rows, n, ...]. numbers: [n], which of all positions or heads they are.
    """

    def draw_mask(key: jax.Array, number: jax.Array) -> jax.Array:
        return jax.random.bernoulli(jax.random.fold_in(key, number), 1 - probability, x.shape[2:])

    mask = jax.vmap(jax.vmap(draw_mask, (None, 0)), (0, None))(keys, numbers)  # as x: true where x stays
    return jnp.where(mask, x / (1 - probability), 0).astype(x.dtype)


def local_numbers(count: int, is_split: bool) -> jax.Array:
    """Return the numbers of this tensor-parallel rank's `count` positions or heads among all."""
    start = lax.axis_index(TENSOR) * count if is_split else 0
    return start + jnp.arange(count)

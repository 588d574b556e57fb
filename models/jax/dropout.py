"""Dropout (Srivastava et al., 2014) by keys: what is dropped depends on its place in the global batch only.

The place is (seed, step, row of the global batch, layer, use) and the token's position, or the head. So every layout
drops the same, and a block that is computed again drops it again.
"""

import jax
from grid import REPLICA, SHARD, TENSOR
from jax import lax
from jax import numpy as jnp

EMBEDDING, SCORES, ATTENTION, MLP = range(4)


def row_keys(seed, step, micro, rows, shards, data):
    """A key for each of this rank's `rows` rows of micro-batch `micro`, by its number in the global batch."""
    rank = lax.axis_index(REPLICA) * shards + lax.axis_index(SHARD)
    numbers = (micro * data + rank) * rows + jnp.arange(rows)
    key = jax.random.fold_in(jax.random.key(seed), step)
    return jax.vmap(jax.random.fold_in, (None, 0))(key, numbers)


def use_keys(keys, layer, use):
    """The rows' keys for one use in one layer."""
    return jax.vmap(jax.random.fold_in, (0, None))(keys, layer * 4 + use)


def drop(x, keys, probability, numbers):
    """x with dropout over its last axes; x: [rows, n, ...], numbers [n]: which of all positions or heads they are."""

    def one(key, number):
        return jax.random.bernoulli(jax.random.fold_in(key, number), 1 - probability, x.shape[2:])

    kept = jax.vmap(jax.vmap(one, (None, 0)), (0, None))(keys, numbers)
    return jnp.where(kept, x / (1 - probability), 0).astype(x.dtype)


def own_numbers(count, is_split):
    """The numbers of this tensor-parallel rank's `count` positions or heads among all."""
    start = lax.axis_index(TENSOR) * count if is_split else 0
    return start + jnp.arange(count)

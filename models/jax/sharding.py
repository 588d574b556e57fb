"""Data parallelism: what ZeRO (Rajbhandari et al., 2020) gathers and scatters, and when.

Stage 0 has whole parameters on every rank. Stages 1 to 3 hold a shard of each, with its moments. Stages 1 and 2 gather
the parameters once a step; stage 1 scatters gradients once, after the last micro-batch, stage 2 after every one. Stage
3 gathers each layer's parameters when it runs, and again in the backward pass, whose derivative scatters the gradients.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import jax
from grid import DATA, REPLICA, SHARD, vary
from jax import lax
from jax import numpy as jnp
from jax.ad_checkpoint import checkpoint_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from parameters import Kind

    Arrays = Mapping[str, jax.Array]

GATHERED = "gathered"


def gather(x: jax.Array, axis: int, dtype: jnp.dtype) -> jax.Array:
    """Return the whole of the shard x along `axis`, in `dtype`; its gradient is summed over the ranks in float32."""
    return checkpoint_name(_gather(x, axis, dtype), GATHERED)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _gather(x: jax.Array, axis: int, dtype: jnp.dtype) -> jax.Array:
    return lax.all_gather(x.astype(dtype), SHARD, axis=axis, tiled=True)


def _forward(x: jax.Array, axis: int, dtype: jnp.dtype) -> tuple[jax.Array, None]:
    return _gather(x, axis, dtype), None


def _backward(axis: int, _dtype: jnp.dtype, _residuals: None, gradient: jax.Array) -> tuple[jax.Array]:
    return (scatter(gradient.astype(jnp.float32), axis),)


_gather.defvjp(_forward, _backward)


def scatter(gradient: jax.Array, axis: int) -> jax.Array:
    """Return this rank's shard, along `axis`, of the sum of all shards' gradients."""
    return lax.psum_scatter(gradient, SHARD, scatter_dimension=axis, tiled=True)


class Sharding:
    """How the parameters of `kinds`, by name, are sharded by `stage`, computed in `dtype`."""

    def __init__(self, kinds: Mapping[str, Kind], stage: int, dtype: jnp.dtype) -> None:
        self.kinds, self.stage, self.dtype = kinds, stage, dtype

    def axis(self, name: str) -> int | None:
        """Return the axis of the array `name` that is sharded; None where it is not."""
        kind = self.kinds[name]
        return None if kind.shard_axis is None else kind.shard_axis + (kind.layers is not None)

    def step_weights(self, parameters: Arrays) -> dict[str, jax.Array]:
        """Return the weights that the micro-batches of a step use, from this rank's parameters. Their gradients stay
        local to this rank."""
        local = {name: vary(x, DATA) for name, x in parameters.items()}
        if self.stage == 3:
            return local
        return {name: self._gather_whole(x, self.axis(name)) for name, x in local.items()}

    def layer_weights(self, weights: Arrays) -> dict[str, jax.Array]:
        """Return the weights of one layer, by names without `layers.`, from its row of the step's weights."""
        if self.stage != 3:
            return dict(weights)
        return {name: self._gather_whole(x, self.kinds[f"layers.{name}"].shard_axis) for name, x in weights.items()}

    def outer_weights(self, weights: Arrays) -> dict[str, jax.Array]:
        """Return the weights outside of the layers."""
        outer = {name: x for name, x in weights.items() if self.kinds[name].layers is None}
        if self.stage != 3:
            return outer
        return {name: self._gather_whole(x, self.kinds[name].shard_axis) for name, x in outer.items()}

    def _gather_whole(self, x: jax.Array, axis: int | None) -> jax.Array:
        return x.astype(self.dtype) if axis is None else gather(x, axis, self.dtype)

    def micro_gradients(self, gradients: Arrays) -> dict[str, jax.Array]:
        """Return what is kept of one micro-batch's gradients, in float32."""
        return {name: self._scatter_in_stage(name, x, 2) for name, x in gradients.items()}

    def step_gradients(self, gradients: Arrays) -> dict[str, jax.Array]:
        """Return the gradients of the parameters that this rank holds, summed over the data-parallel ranks."""
        scattered = {name: self._scatter_in_stage(name, x, 1) for name, x in gradients.items()}
        sum_axes = {name: DATA if self.axis(name) is None else (REPLICA,) for name in scattered}
        return {name: lax.psum(x, sum_axes[name]) for name, x in scattered.items()}

    def _scatter_in_stage(self, name: str, gradient: jax.Array, stage: int) -> jax.Array:
        gradient, axis = gradient.astype(jnp.float32), self.axis(name)
        return gradient if axis is None or self.stage != stage else scatter(gradient, axis)

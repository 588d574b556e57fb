"""Data parallelism: what ZeRO (Rajbhandari et al., 2020) gathers and scatters, and when.

Stage 0 has whole parameters on every rank. Stages 1 to 3 hold a shard of each, with its moments. Stages 1 and 2 gather
the parameters once a step; stage 1 scatters gradients once, after the last micro-batch, stage 2 after every one. Stage
3 gathers each layer's parameters when it runs, and again in the backward pass, whose derivative scatters the gradients.
"""

from functools import partial

import jax
from grid import DATA, REPLICA, SHARD, vary
from jax import lax
from jax import numpy as jnp
from jax.ad_checkpoint import checkpoint_name

GATHERED = "gathered"


def gather(x, axis, dtype):
    """The whole of the shard x along `axis`, in `dtype`; its gradient is summed over the ranks in float32."""
    return checkpoint_name(_gather(x, axis, dtype), GATHERED)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _gather(x, axis, dtype):
    return lax.all_gather(x.astype(dtype), SHARD, axis=axis, tiled=True)


def _forward(x, axis, dtype):
    return _gather(x, axis, dtype), None


def _backward(axis, _dtype, _kept, gradient):
    return (scatter(gradient.astype(jnp.float32), axis),)


_gather.defvjp(_forward, _backward)


def scatter(gradient, axis):
    """This rank's shard, along `axis`, of the sum of all shards' gradients."""
    return lax.psum_scatter(gradient, SHARD, scatter_dimension=axis, tiled=True)


class Sharding:
    """How the parameters of `kinds` (parameters.Kind by name) are sharded by `stage`, computed in `dtype`."""

    def __init__(self, kinds, stage, dtype):
        self.kinds, self.stage, self.dtype = kinds, stage, dtype

    def axis(self, name):
        """The axis of the array `name` that is sharded; None where it is not."""
        kind = self.kinds[name]
        return None if kind.sharded is None else kind.sharded + (kind.layers is not None)

    def step_weights(self, held):
        """What the micro-batches of a step use of the held parameters. Their gradients stay local to this rank."""
        local = {name: vary(x, DATA) for name, x in held.items()}
        if self.stage == 3:
            return local
        return {name: self._whole(x, self.axis(name)) for name, x in local.items()}

    def layer_weights(self, weights):
        """Of one layer, by names without `layers.`, from its row of the step's weights."""
        return {
            name: self.use(f"layers.{name}", x, self.kinds[f"layers.{name}"].sharded) for name, x in weights.items()
        }

    def end_weights(self, weights):
        """Of what is outside of the layers."""
        outside = {name: x for name, x in weights.items() if self.kinds[name].layers is None}
        return {name: self.use(name, x, self.kinds[name].sharded) for name, x in outside.items()}

    def use(self, name, x, axis):
        return self._whole(x, axis) if self.stage == 3 else x

    def _whole(self, x, axis):
        return x.astype(self.dtype) if axis is None else gather(x, axis, self.dtype)

    def micro_gradients(self, gradients):
        """What is kept of one micro-batch's gradients, in float32."""
        return {name: self._scattered(name, x, 2) for name, x in gradients.items()}

    def step_gradients(self, gradients):
        """The gradients of the parameters that this rank holds, summed over the data-parallel ranks."""
        found = {name: self._scattered(name, x, 1) for name, x in gradients.items()}
        over = {name: DATA if self.axis(name) is None else (REPLICA,) for name in found}
        return {name: lax.psum(x, over[name]) for name, x in found.items()}

    def _scattered(self, name, gradient, stage):
        gradient, axis = gradient.astype(jnp.float32), self.axis(name)
        return gradient if axis is None or self.stage != stage else scatter(gradient, axis)

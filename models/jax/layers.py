"""The layers of a decoder. Weights are given in the precision that is computed in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
from grid import TENSOR, vary
from jax import lax
from jax import numpy as jnp

if TYPE_CHECKING:
    from collections.abc import Mapping

    from levelfield.worker.architecture import Model
    from levelfield.worker.job import Layout
    from samples import Samples


def linear(x: jax.Array, weight: jax.Array, bias: jax.Array | None = None) -> jax.Array:
    """Return x W^T + b. x: [..., in]; weight: [out, in]."""
    y = lax.dot_general(x, weight, (((x.ndim - 1,), (1,)), ((), ())))
    return y if bias is None else add_bias(y, bias)


def add_bias(y: jax.Array, bias: jax.Array) -> jax.Array:
    """Return y + bias, added in float32: so the gradient of the bias is summed over the tokens in float32 too."""
    return (y.astype(jnp.float32) + bias.astype(jnp.float32)).astype(y.dtype)


def layer_norm(x: jax.Array, weight: jax.Array, bias: jax.Array, epsilon: float) -> jax.Array:
    """Apply layer normalisation (Ba et al., 2016) over the last dimension, computed in float32."""
    x_float32 = x.astype(jnp.float32)
    centred = x_float32 - x_float32.mean(-1, keepdims=True)
    normalised = centred * lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + epsilon)
    return (normalised * weight.astype(jnp.float32) + bias.astype(jnp.float32)).astype(x.dtype)


def rms_norm(x: jax.Array, weight: jax.Array, epsilon: float) -> jax.Array:
    """Apply root mean square normalisation (Zhang and Sennrich, 2019) over the last dimension, computed in float32."""
    x_float32 = x.astype(jnp.float32)
    normalised = x_float32 * lax.rsqrt(jnp.square(x_float32).mean(-1, keepdims=True) + epsilon)
    return (normalised * weight.astype(jnp.float32)).astype(x.dtype)


def norm(
    model: Model, x: jax.Array, weights: Mapping[str, jax.Array], name: str, samples: Samples | None = None
) -> jax.Array:
    """Apply the model's normalisation with the weights of layer `name`."""
    weight, bias = weights[f"{name}.weight"], weights.get(f"{name}.bias")
    y = rms_norm(x, weight, model.norm_eps) if bias is None else layer_norm(x, weight, bias, model.norm_eps)
    if samples is not None:
        samples.norm(name, x, weight, bias, y)
    return y


class TensorParallel:
    """The collectives between the parts of a layer that are split over the tensor-parallel ranks and the others.

    The derivative of `enter_split_layer` sums over the ranks, and that of `leave_split_layer` does nothing (f and g of
    Shoeybi et al., 2019).
    With sequence parallelism a rank has its part of the sequence between them (Korthikanti et al., 2022).
    """

    def __init__(self, layout: Layout) -> None:
        self.sequence_parallel, self.ranks = layout.sequence_parallel, layout.tensor

    def enter_split_layer(self, x: jax.Array) -> jax.Array:
        """Return x [batch, sequence, hidden], whole, as the input of this rank's part: an all-gather under sequence
        parallelism, else no collective."""
        if self.sequence_parallel:
            return lax.all_gather(x, TENSOR, axis=1, tiled=True)
        return vary(x, (TENSOR,))

    def leave_split_layer(self, x: jax.Array) -> jax.Array:
        """Return the sum over the ranks of x [batch, sequence, hidden], by an all-reduce.

        Under sequence parallelism it is that of this rank's part of the sequence, by a reduce-scatter.
        """
        if self.sequence_parallel:
            return lax.psum_scatter(x, TENSOR, scatter_dimension=1, tiled=True)
        return lax.psum(x, TENSOR)

    def sequence_part(self, x: jax.Array, axis: int) -> jax.Array:
        """Return this rank's part of the sequence, which is an axis of x that is equal on all ranks."""
        if not self.sequence_parallel:
            return x
        size = x.shape[axis] // self.ranks
        return lax.dynamic_slice_in_dim(x, lax.axis_index(TENSOR) * size, size, axis)


ACTIVATIONS = {
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "swiglu": jax.nn.silu,
}


def mlp(model: Model, x: jax.Array, weights: Mapping[str, jax.Array], samples: Samples | None = None) -> jax.Array:
    """Apply the MLP of this rank's hidden units, without the last bias. Gated by silu it is SwiGLU (Shazeer, 2020)."""
    activate = ACTIVATIONS[model.activation]
    up = named_linear("mlp.up", x, weights, samples)
    is_gated = "mlp.gate.weight" in weights
    hidden = activate(named_linear("mlp.gate", x, weights, samples)) * up if is_gated else activate(up)
    return named_linear("mlp.down", hidden, weights, samples, has_bias=False)


def named_linear(
    name: str, x: jax.Array, weights: Mapping[str, jax.Array], samples: Samples | None, has_bias: bool = True
) -> jax.Array:
    """Apply the linear layer `name`. has_bias: whether the bias, where there is one, is added here."""
    weight, bias = weights[f"{name}.weight"], weights.get(f"{name}.bias") if has_bias else None
    y = linear(x, weight, bias)
    if samples is not None:
        samples.product(name, x, weight, bias, y)
    return y

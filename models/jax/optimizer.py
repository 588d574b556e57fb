"""AdamW on the parts that a rank holds. It is elementwise, so sharding does not concern it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jax import lax
from jax import numpy as jnp

if TYPE_CHECKING:
    import jax
    from levelfield.worker.job import Optimizer


def bias_corrections(settings: Optimizer, step: int) -> tuple[float, float]:
    """Return the factors 1 / (1 - beta ** step) of both moments, the second one's as a root."""
    return 1 / (1 - settings.beta1**step), (1 - settings.beta2**step) ** -0.5


def adamw(
    settings: Optimizer,
    state: tuple[jax.Array, jax.Array, jax.Array, bool],
    gradient: jax.Array,
    rate: jax.Array,
    mean_correction: jax.Array,
    square_correction: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return (parameter, both moments) after one step of AdamW (Loshchilov and Hutter, 2019).

    state: (parameter, first moment, second moment, whether the parameter decays). The corrections are those of
    `bias_corrections`.
    """
    parameter, mean, square, decays = state
    mean = mean + (1 - settings.beta1) * (gradient - mean)
    square = settings.beta2 * square + (1 - settings.beta2) * gradient * gradient
    parameter = parameter * (1 - rate * settings.weight_decay) if decays else parameter
    update = (rate * mean_correction) * mean / (jnp.sqrt(square) * square_correction + settings.eps)
    return parameter - update, mean, square


def clip_gradients(gradients: dict[str, jax.Array], norm: jax.Array, limit: float) -> dict[str, jax.Array]:
    """Scale the gradients so that their norm ends within `limit`."""
    factor = 1 / jnp.maximum(norm / limit, 1)
    return {name: gradient * factor for name, gradient in gradients.items()}


def square_sums(gradient: jax.Array, layers: int | None) -> jax.Array:
    """Return the squared norm of each layer's gradient, [layers or 1]: rows first, so that long sums stay exact."""
    rows = jnp.square(gradient).reshape(layers or 1, -1, gradient.shape[-1]).sum(-1)
    return lax.optimization_barrier(rows).sum(-1)

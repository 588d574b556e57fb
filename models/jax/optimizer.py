"""AdamW on the parts that a rank holds. It is elementwise, so sharding does not concern it."""

from jax import lax
from jax import numpy as jnp


def corrections(settings, step):
    """The factors 1 / (1 - beta ** step) of both moments, the second one's as a root."""
    return 1 / (1 - settings.beta1**step), (1 - settings.beta2**step) ** -0.5


def adamw(settings, held, gradient, rate, first, second):
    """(parameter, both moments) after one step of AdamW (Loshchilov and Hutter, 2019).

    held: (parameter, first moment, second moment, whether the parameter decays). first, second: `corrections`.
    """
    parameter, mean, square, decays = held
    mean = mean + (1 - settings.beta1) * (gradient - mean)
    square = settings.beta2 * square + (1 - settings.beta2) * gradient * gradient
    parameter = parameter * (1 - rate * settings.weight_decay) if decays else parameter
    update = (rate * first) * mean / (jnp.sqrt(square) * second + settings.eps)
    return parameter - update, mean, square


def clipped(gradients, norm, limit):
    """The gradients, scaled so that their norm ends within `limit`."""
    factor = 1 / jnp.maximum(norm / limit, 1)
    return {name: gradient * factor for name, gradient in gradients.items()}


def square_sums(gradient, layers):
    """The squared norm of each layer's gradient, [layers or 1]: rows first, so that long sums stay exact."""
    rows = jnp.square(gradient).reshape(layers or 1, -1, gradient.shape[-1]).sum(-1)
    return lax.optimization_barrier(rows).sum(-1)

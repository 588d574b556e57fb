"""The backward pass of a sampled step between its products: of norms and residual sums, activations and attention."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from levelfield.measure.sampled_operations import (
    Numbers,
    SampledOperation,
    SampledStep,
    SampleError,
    output_error,
    relative_error,
)
from levelfield.measure.spot_check import hidden_positions, layer_number, rotated
from levelfield.specs.architecture import Model

Arrays = Mapping[str, Numbers]

# Honest gradients are within 2e-7 and 5e-3; those by factors in E4M3 have 2.5e-2.
LIMIT, LIMIT_16_BITS = 3e-5, 1e-2


def gradient_errors(step: SampledStep, model: Model, precision: str) -> Iterator[SampleError]:
    """Yield how far each sampled gradient is off what the gradients after it give."""
    operations = {operation.name: operation for operation in step.operations}
    for name, value in _gradient_errors(operations, model):
        # one key's gradient is small, and fp16's smallest numbers have few bits
        if precision != "fp16" or not name.endswith("last key"):
            yield SampleError(f"{name} gradient", "gradient", value, LIMIT if precision == "fp32" else LIMIT_16_BITS)


def _gradient_errors(operations: Mapping[str, SampledOperation], model: Model) -> Iterator[tuple[str, float]]:
    for name, operation in operations.items():
        forward = operations.get(name.removesuffix(" backward"))
        if operation.kind == "weight gradient" and "bias_gradient" in operation.arrays:
            outputs, bias = operation.arrays["inputs"], operation.arrays["bias_gradient"]
            terms = float(np.square(outputs).sum(1).mean())
            yield f"{name.removesuffix(' weights')} bias", output_error(bias, outputs.sum(1), terms)
        elif operation.kind == "activation gradient":
            yield name, activation_error(operation.arrays, model.activation)
        elif operation.kind == "attention gradient" and forward is not None and forward.kind == "attention":
            for part, value in attention_errors(forward, operation.arrays, model):
                yield f"{forward.name}'s {part}", value
        elif operation.kind == "norm gradient" and forward is not None and forward.kind == "norm":
            yield from _residual_errors(operations, forward, operation.arrays, model)


def _residual_errors(
    operations: Mapping[str, SampledOperation], norm: SampledOperation, gradients: Arrays, model: Model
) -> Iterator[tuple[str, float]]:
    """Yield the errors of the gradients of a norm's input and of what its branch adds to the hidden state.

    The hidden state's gradient is that of the sum that it becomes a part of, and what the norm's branch gives.
    """
    if model.hidden_dropout or model.norm_place == "after" or norm.arrays["inputs"].shape != gradients["output"].shape:
        return
    branch = norm_gradient(norm.arrays, gradients["output"], model)
    if norm.name == "final_norm":
        yield norm.name, relative_error(gradients["inputs"], branch)
        return
    block, _, part = norm.name.rpartition(".")
    if part not in NORMS:
        return
    products, layer = NORMS[part], layer_number(norm.name)
    following = f"layers.{layer + 1}.attention_norm" if layer + 1 < model.layers else "final_norm"
    if model.parallel_residual is not None:
        # both branches begin and end at the same sums; a norm of its own gives the MLP's
        products = NORMS["attention_norm"] + NORMS["mlp_norm"]
        if part == "mlp_norm":
            return
        if model.norms_per_layer > 1:
            other = _branch_gradient(operations, f"{block}.mlp_norm", model)
            if other is None or other.shape != branch.shape:
                return
            branch = branch + other
    elif part == "attention_norm":
        following = f"{block}.mlp_norm"
    after = operations.get(f"{following} backward")
    if after is None or after.kind != "norm gradient" or after.arrays["inputs"].shape != branch.shape:
        return
    yield norm.name, relative_error(gradients["inputs"], after.arrays["inputs"] + branch)
    for product in products:
        added = operations.get(f"{block}.{product} backward")
        if added is not None and added.kind == "input gradient" and added.arrays["inputs"].shape == branch.shape:
            expected = after.arrays["inputs"] * (model.residual_scale or 1)
            yield f"{block}.{product}", relative_error(added.arrays["inputs"], expected)


def _branch_gradient(operations: Mapping[str, SampledOperation], norm: str, model: Model) -> Numbers | None:
    """Return the gradient of a norm's input by its own branch; None where it is not sampled whole."""
    forward, backward = operations.get(norm), operations.get(f"{norm} backward")
    if forward is None or backward is None or forward.arrays["inputs"].shape != backward.arrays["output"].shape:
        return None
    return norm_gradient(forward.arrays, backward.arrays["output"], model)


# By norm: the last products of its branch.
NORMS: Mapping[str, tuple[str, ...]] = {"attention_norm": ("attention.output",), "mlp_norm": ("mlp.down",)}


def norm_gradient(arrays: Arrays, gradient: Numbers, model: Model) -> Numbers:
    """Return the gradient of a LayerNorm's or RMSNorm's input by that of its output, [rows, hidden]."""
    x, scaled = arrays["inputs"], gradient * arrays["weight"]
    if model.norm == "layernorm":
        x, scaled = (numbers - numbers.mean(-1, keepdims=True) for numbers in (x, scaled))
    deviation = np.sqrt(np.square(x).mean(-1, keepdims=True) + model.norm_eps)
    normal = x / deviation
    inputs: Numbers = (scaled - normal * (scaled * normal).mean(-1, keepdims=True)) / deviation
    return inputs


def activation_error(arrays: Arrays, activation: str) -> float:
    """Return how far the gradients of up's and gate's outputs are off those by the activation's derivative."""
    gate = arrays.get("gate")
    value, slope = SLOPES[activation](arrays["up"] if gate is None else gate)
    if gate is None:
        return relative_error(arrays["up_gradient"], arrays["output"] * slope)
    expected = np.stack([arrays["output"] * value, arrays["output"] * slope * arrays["up"]])
    gradients = np.stack([arrays["up_gradient"], arrays.get("gate_gradient", np.zeros_like(gate))])
    return max(relative_error(*pair) for pair in zip(gradients, expected, strict=True))


def _gelu(x: Numbers) -> tuple[Numbers, Numbers]:
    below = (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2
    return x * below, below + x * np.exp(-np.square(x) / 2) / math.sqrt(2 * math.pi)


def _gelu_tanh(x: Numbers) -> tuple[Numbers, Numbers]:
    factor = math.sqrt(2 / math.pi)
    bend = np.tanh(factor * (x + 0.044715 * x**3))
    slope = (1 + bend) / 2 + x / 2 * (1 - np.square(bend)) * factor * (1 + 3 * 0.044715 * np.square(x))
    return x * (1 + bend) / 2, slope


def _silu(x: Numbers) -> tuple[Numbers, Numbers]:
    sigmoid = 1 / (1 + np.exp(-x))
    return x * sigmoid, sigmoid * (1 + x * (1 - sigmoid))


# (value, derivative) of the activation, which a gated MLP has of its gate.
SLOPES: Mapping[str, Callable[[Numbers], tuple[Numbers, Numbers]]] = {
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "swiglu": _silu,
    "geglu_tanh": _gelu_tanh,
}


def attention_errors(operation: SampledOperation, gradients: Arrays, model: Model) -> Iterator[tuple[str, float]]:
    """Yield the errors of one head's queries' gradients, and of the last key's and value's of its group.

    With weights P = softmax(Q K^T / sqrt(D)): dV = P^T dO, dS = P (dO V^T - the row's mean of it by P), dQ = dS K /
    sqrt(D), dK = dS^T Q / sqrt(D). Only queries at the last position attend to its key.
    """
    arrays, root = operation.arrays, math.sqrt(operation.arrays["query"].shape[1])
    key, value = arrays["key"], arrays["value"]
    if (
        gradients["output"].shape != arrays["output"].shape
        or gradients["query_gradient"].shape != arrays["query"].shape
    ):
        yield "queries", math.inf
        return
    layer = layer_number(operation.name)
    window = model.layer_window(layer)
    weights = _weights(arrays["query"], key, operation.places, window)
    scores, squares = _score_gradients(weights, gradients["output"], value)
    terms = float((squares @ np.square(key)).mean()) / root**2
    yield "queries", output_error(gradients["query_gradient"], scores @ key / root, terms)
    if "unrotated_gradient" in gradients and model.rope_base is not None:
        turned = rotated(gradients["query_gradient"], [-place for place in operation.places], model, layer)
        turned = turned * model.query_factor
        yield "unrotated queries", relative_error(gradients["unrotated_gradient"], turned)
    query, output = gradients["last_query"], gradients["last_output"]
    if query.shape[1] != key.shape[1] or output.shape[1] != value.shape[1]:
        yield "last key", math.inf
        return
    weights = _weights(query, key, [len(key) - 1] * len(query), window)
    scores, squares = _score_gradients(weights, output, value)
    terms = float((squares[:, -1] @ np.square(query)).mean()) / root**2
    yield "last key", output_error(gradients["key_gradient"], scores[:, -1] @ query / root, terms)
    terms = float((np.square(weights[:, -1]) @ np.square(output)).mean())
    yield "last value", output_error(gradients["value_gradient"], weights[:, -1] @ output, terms)


def _score_gradients(weights: Numbers, output: Numbers, value: Numbers) -> tuple[Numbers, Numbers]:
    """Return the scores' gradients by that of the output, and the sum of the squares of each one's terms.

    A score's gradient is a small difference of such sums: what rounding changes in them has their size.
    """
    products, mixed = output @ value.T, weights @ value
    scores = weights * (products - (output * mixed).sum(-1, keepdims=True))
    squares = np.square(output) @ np.square(value).T + (np.square(output) * np.square(mixed)).sum(-1, keepdims=True)
    return scores, np.square(weights) * squares


def _weights(query: Numbers, key: Numbers, query_positions: object, window: int | None) -> Numbers:
    scores = query @ key.T / math.sqrt(query.shape[1])
    scores = np.where(hidden_positions(len(key), np.array(query_positions), window), -np.inf, scores)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    normal: Numbers = weights / weights.sum(-1, keepdims=True)
    return normal

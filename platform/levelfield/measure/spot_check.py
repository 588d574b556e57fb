"""What one sampled step computed, computed again in float64: products, norms, attention and their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from levelfield.measure.sampled_operations import (
    EXACT_SUM_LIMIT,
    FEWEST_TOGETHER,
    FP8_LIMITS,
    LIMITS,
    Numbers,
    SampledOperation,
    SampledStep,
    SampleError,
    factor_error,
    mean_square,
    output_error,
    relative_error,
    rounded,
    rounded_to_e4m3,
    rounding_error,
)
from levelfield.measure.sampled_tokens import embedding, table_gradient
from levelfield.specs.architecture import Model
from levelfield.worker.architecture import RopeScaling
from levelfield.worker.rotary import rotary_magnitude, scaled_frequencies

# Of the factor that a row's numbers have in common: in 16 bits each number is rounded alone, and the factor is not.
NORM_SCALE_LIMIT = 6e-4  # of long rows; a number's rounding adds its share to the factor of a short one


def output_errors(step: SampledStep, model: Model, precision: str) -> list[SampleError]:
    """Return the error of each sampled output and gradient. precision: that of the plan."""
    compute: dict[str, Callable[[SampledOperation], tuple[Numbers, Numbers, float]]] = {
        "product": lambda operation: product(operation, precision),
        "input gradient": lambda operation: product(operation, precision),
        "weight gradient": lambda operation: product(operation, precision),
        "norm": lambda operation: norm(operation, model),
        "attention": lambda operation: attention(operation, model.layer_window(layer_number(operation.name))),
        "heads": lambda operation: heads(operation, model.layer_window(layer_number(operation.name))),
        "embedding": lambda operation: embedding(operation, model),
        "table gradient": lambda operation: table_gradient(operation, model),
    }
    errors = []
    in_fp8: dict[str, list[float]] = {kind: [] for kind in FP8_LIMITS}
    for operation in step.operations:
        if operation.kind not in compute:
            continue
        output, expected, terms = compute[operation.kind](operation)
        if precision == "fp8" and operation.kind in FP8_LIMITS and not operation.name.startswith("head"):
            value, ((least, limit), _) = factor_error(output, expected, terms), FP8_LIMITS[operation.kind]
            in_fp8[operation.kind].append(value)
        else:
            value = output_error(output, expected, terms)
            least, limit = 0.0, LIMITS[precision.replace("fp8", "bf16")]
        errors.append(SampleError(operation.name, operation.kind, value, limit, least))
        if "unrotated_query" in operation.arrays:
            error = rotation_error(operation, model)
            errors.append(SampleError(f"{operation.name} rotation", "rotation", error, limit))
    for kind, values in in_fp8.items():
        if len(values) >= FEWEST_TOGETHER:
            _, (least, limit) = FP8_LIMITS[kind]
            mean = math.sqrt(mean_square(np.array(values)))
            errors.append(SampleError(f"{len(values)} {kind}s together", kind, mean, limit, least))
    return errors


def layer_number(name: str) -> int:
    """Return the layer of an operation inside one, such as 3 of layers.3.attention."""
    return int(name.split(".")[1])


def product(operation: SampledOperation, precision: str) -> tuple[Numbers, Numbers, float]:
    """Return (output, x W^T + b, the mean square of the root of its terms' squares).

    The parameters are rounded to the activations' precision.
    """
    arrays = operation.arrays
    weight = rounded(arrays["weight"], precision)
    expected = arrays["inputs"] @ weight.T
    if "bias" in arrays:
        expected = expected + rounded(arrays["bias"], precision)
    terms = float((np.square(arrays["inputs"]) @ np.square(weight).T).mean())
    return arrays["output"], expected, terms


def exact_sum_errors(step: SampledStep, _model: Model, precision: str) -> Iterator[SampleError]:
    """Yield how far an output is from the sum of the E4M3 numbers that the layer's whole input and weight have.

    Only of products whose numbers and sums the framework promises: models/torch/step/fp8_rounded.py.
    """
    for operation in step.operations:
        arrays = operation.arrays
        if operation.kind != "product" or "largest" not in arrays or precision != "fp8":
            continue
        largest_input, largest_weight = arrays["largest"]
        inputs, weight = (
            rounded_to_e4m3(arrays["inputs"], largest_input),
            rounded_to_e4m3(arrays["weight"], largest_weight),
        )
        expected, terms = inputs @ weight.T, float((np.square(inputs) @ np.square(weight).T).mean())
        if "bias" in arrays:
            expected = expected + rounded(arrays["bias"], precision)
        error = rounding_error(arrays["output"], expected, terms)
        yield SampleError(operation.name, "exact sum", error, EXACT_SUM_LIMIT)


def norm(operation: SampledOperation, model: Model) -> tuple[Numbers, Numbers, float]:
    """Return (output, LayerNorm or RMSNorm of the inputs, 0). Norms of queries and keys are always RMSNorm."""
    x, arrays = operation.arrays["inputs"], operation.arrays
    if model.norm == "layernorm" and not operation.name.endswith(("query_norm", "key_norm")):
        x = x - x.mean(-1, keepdims=True)
    normal = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + model.norm_eps)
    return arrays["output"], normal * arrays["weight"] + arrays.get("bias", 0.0), 0.0


def attention(operation: SampledOperation, window: int | None) -> tuple[Numbers, Numbers, float]:
    """Return (output, causal attention of the head, 0) at the sampled positions."""
    query, key, value = (operation.arrays[name] for name in ("query", "key", "value"))
    scores = query @ key.T / math.sqrt(query.shape[1])
    scores = np.where(hidden_positions(len(key), np.array(operation.places), window), -np.inf, scores)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return operation.arrays["output"], weights @ value / weights.sum(-1, keepdims=True), 0.0


def hidden_positions(length: int, query_positions: NDArray[np.int64], window: int | None) -> NDArray[np.bool_]:
    """Return which positions of a sequence queries at these positions do not attend to, [queries, length]."""
    positions, queries = np.arange(length)[None, :], query_positions[:, None]
    is_hidden: NDArray[np.bool_] = (positions > queries) | (positions <= queries - (window or length))
    return is_hidden


def heads(operation: SampledOperation, window: int | None) -> tuple[Numbers, Numbers, float]:
    """Return (output, attention of every head, 0) at the last of the keys' positions."""
    query, key, value = (operation.arrays[name] for name in ("query", "key", "value"))
    group, first = len(query) // len(key), max(0, key.shape[1] - (window or key.shape[1]))
    key, value = (np.repeat(array[:, first:], group, 0) for array in (key, value))  # [heads, positions, D]
    scores = np.einsum("hd,hpd->hp", query, key) / math.sqrt(query.shape[1])
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = np.einsum("hp,hpd->hd", weights, value) / weights.sum(-1, keepdims=True)
    return operation.arrays["output"], mixed, 0.0


def rotation_error(operation: SampledOperation, model: Model) -> float:
    """Return how far queries and keys are off their rotation by the angles of their positions."""
    arrays, places = operation.arrays, list(operation.places)
    if model.rope_base is None:
        return math.inf
    before = np.stack([model.query_factor * arrays["unrotated_query"], arrays["unrotated_key"]])  # [2, places, D]
    expected = rotated(before, places, model, layer_number(operation.name))
    return relative_error(np.stack([arrays["query"], arrays["key"][places]]), expected)


def rotated(rows: Numbers, positions: Sequence[int], model: Model, layer: int) -> Numbers:
    """Return heads' rows [..., positions, D] after their rotation (Su et al., 2021).

    The first half of a head, or of its first numbers, turns against the second; gradients turn back, by negative
    positions. Some layers have no rotation.
    """
    if not model.is_rotated(layer):
        return rows
    rows, unrotated = np.split(rows, [model.rotary_dim or rows.shape[-1]], -1)
    size, scaling = rows.shape[-1], model.rope_scaling
    assert model.rope_base is not None
    if scaling is None:
        frequencies, magnitude = model.rope_base ** -(np.arange(0, size, 2) / size), 1.0
    else:
        settings = RopeScaling(**scaling.model_dump())
        frequencies = scaled_frequencies(settings, model.rope_base, size).astype(np.float64)
        magnitude = rotary_magnitude(settings)
    angles = np.outer(positions, frequencies)  # [positions, D / 2]
    cos, sin = np.cos(angles) * magnitude, np.sin(angles) * magnitude
    first, second = np.split(rows, 2, -1)
    return np.concatenate((first * cos - second * sin, second * cos + first * sin, unrotated), -1)


def norm_scale_errors(step: SampledStep, model: Model, precision: str) -> Iterator[SampleError]:
    """Yield the root mean square of each sampled norm's error in the factor that a whole row has.

    Its weights may be rounded to the activations' precision, or not.
    """
    for operation in step.operations:
        if operation.kind == "norm":
            names = operation.arrays.keys() & {"weight", "bias"}
            in_precision = {name: rounded(operation.arrays[name], precision) for name in names}
            others = replace(operation, arrays={**operation.arrays, **in_precision})
            error = min(_norm_scale_error(operation, model), _norm_scale_error(others, model))
            share = LIMITS[precision.replace("fp8", "bf16")] / math.sqrt(operation.arrays["output"].shape[-1])
            yield SampleError(f"{operation.name} scale", "norm scale", error, max(NORM_SCALE_LIMIT, share))


def _norm_scale_error(operation: SampledOperation, model: Model) -> float:
    output, expected, _ = norm(operation, model)
    square = np.square(expected).sum(-1)
    rows = square > 0
    factors = (output * expected).sum(-1)[rows] / square[rows]
    return relative_error(factors, np.ones(len(factors))) if len(factors) else 0.0


def chain_errors(step: SampledStep, model: Model, precision: str) -> list[SampleError]:
    """Return the errors of what lies between the sampled operations of a block x + f(norm(x)), at the same rows.

    A product's input is what its norm gave; the hidden state grows by what attention and MLP gave; the last product's
    input is the activation of the first one's output. What is not known of a rank's part, or of dropout, is left out,
    as is the sum of attention and MLP side by side, of whose outputs other columns are sampled.
    """
    operations = {o.name: o for o in step.operations if o.kind in ("product", "norm")}
    if model.hidden_dropout or model.norm_place == "after" or model.experts is not None:
        return []
    errors, factor = [], model.residual_scale or 1.0
    for layer in range(model.layers):
        block, following = f"layers.{layer}", f"layers.{layer + 1}.attention_norm"
        following = following if layer + 1 < model.layers else "final_norm"
        mlp_norm = f"{block}.{'mlp_norm' if model.norms_per_layer > 1 else 'attention_norm'}"
        sums: list[Chain] = [None, None]
        if model.parallel_residual is None:
            sums = [
                _residual_sum(operations, f"{block}.attention_norm", f"{block}.attention.output", mlp_norm, factor),
                _residual_sum(operations, mlp_norm, f"{block}.mlp.down", following, factor),
            ]
        pairs = [
            _norm_to_product(operations, f"{block}.attention_norm", f"{block}.attention.query"),
            _norm_to_product(operations, mlp_norm, f"{block}.mlp.up"),
            *sums,
            _activation(operations, f"{block}.mlp.up", f"{block}.mlp.down", model.activation),
        ]
        for name, pair in zip(CHAIN, pairs, strict=True):
            if pair is not None:
                limit = CHAIN_LIMITS[precision]
                errors.append(SampleError(f"{block}.{name}", "chain", relative_error(*pair), limit))
    return errors


# Where in a block the errors of `chain_errors` are.
CHAIN = ("attention's input", "mlp's input", "attention's sum", "mlp's sum", "mlp.activation")
CHAIN_LIMITS = {"fp32": 3e-6, "fp16": 5e-4, "bf16": 4e-3, "fp8": 4e-3}  # two roundings of a number
Chain = tuple[Numbers, Numbers] | None  # (what was sampled, what it has to be)


def _norm_to_product(operations: Mapping[str, SampledOperation], norm: str, product: str) -> Chain:
    if not {norm, product} <= operations.keys() or not operations[product].places:
        return None
    pair = operations[product].arrays["inputs"], operations[norm].arrays["output"]
    return pair if pair[0].shape == pair[1].shape else None


def _residual_sum(
    operations: Mapping[str, SampledOperation], before: str, product: str, after: str, factor: float
) -> Chain:
    if not {before, product, after} <= operations.keys() or not operations[product].places:
        return None
    columns, first, last = list(operations[product].places), operations[before].arrays, operations[after].arrays
    output = operations[product].arrays["output"]
    if first["inputs"].shape != last["inputs"].shape or len(output) != len(first["inputs"]):
        return None
    return last["inputs"][:, columns], first["inputs"][:, columns] + factor * output


def _activation(operations: Mapping[str, SampledOperation], up: str, down: str, activation: str) -> Chain:
    if activation not in GELUS or not {up, down} <= operations.keys() or not operations[up].places:
        return None
    output, hidden = operations[up].arrays["output"], operations[down].arrays["inputs"]
    if len(output) != len(hidden):
        return None
    return hidden[:, list(operations[up].places)], GELUS[activation](output)


GELUS: Mapping[str, Callable[[Numbers], Numbers]] = {
    "gelu": lambda x: x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
}

"""What one sampled step computed, computed again in float64: products, norms, attention and the optimizer's update.

The size of an output's error tells precisions apart. A number of m fraction bits is rounded by about 0.2 x 2^-m of
itself: the mean square over a binade of uniform errors of half a unit in the last place. Where the factors of a product
are rounded, the terms' errors add up at random, to sqrt(2) times as much of the root of the terms' squares. The sum may
be much larger than this root, or smaller. So errors are held to both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from levelfield.specs.architecture import Model
from levelfield.specs.case import Training
from levelfield.worker.job import Schedule
from levelfield.worker.schedule import learning_rate

Numbers = NDArray[np.float64]

# The largest error of an output, between that of honest ones and of the next coarser precision: fp32 5e-7, TF32 3e-4,
# fp16 2e-4, bf16 1.7e-3, E4M3 3.5e-2, E5M2 7e-2.
LIMITS = {"fp32": 3e-5, "fp16": 8e-4, "bf16": 6e-3, "fp8": 5.5e-2}
# The least and the largest error of products in fp8; below the least one was computed in more than 8 bits. Gradients of
# the backward pass are in E5M2: 5.5e-2 beside weights in E4M3.
FP8_LIMITS = {"product": (1.8e-2, LIMITS["fp8"]), "input gradient": (3.2e-2, 8.5e-2)}
OUTPUT_ROUNDING = 1.66e-3  # of a product in fp8, whose result is in bf16
PRECISION_WORDS = {"fp32": "float32", "fp16": "TF32 or fp16", "bf16": "bf16", "fp8": "E4M3"}  # of errors up to LIMITS
UPDATE_LIMIT = 1e-3  # of a parameter's change
MOMENT_LIMIT = 3e-4  # of AdamW's moments: 16 bits of them are off by 1.1e-3


# The arrays of each kind of operation: those that all have, and those that some lack.
KINDS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "product": (("inputs", "weight", "output"), ("bias",)),
    "input gradient": (("inputs", "weight", "output"), ()),
    "norm": (("inputs", "weight", "output"), ("bias",)),
    "attention": (("query", "key", "value", "output"), ()),
    "update": (("value", "gradient", "mean", "square", "new_value", "new_mean", "new_square"), ()),
}


@dataclass(frozen=True)
class SampledOperation:
    """A sampled product, norm, attention or update. The shapes of its arrays: worker/spot_check.py."""

    kind: str  # one of KINDS
    name: str  # of the module or parameter
    arrays: Mapping[str, Numbers]
    # Of attention: the queries' positions. Of a product: its columns, where they are known.
    places: tuple[int, ...] = ()
    dimensions: int = 0  # of an updated parameter

    def check_shapes(self) -> None:
        """Raise ValueError where the arrays do not fit together."""
        shapes = {name: array.shape for name, array in self.arrays.items()}
        match self.kind, shapes:
            case "product" | "input gradient", {"inputs": (int(rows), int(size)), **others}:
                width = others.pop("weight")
                is_fitting = width[1:] == (size,) and others.pop("output") == (rows, width[0])
                is_fitting = is_fitting and len(self.places) in (0, width[0]) and all(p >= 0 for p in self.places)
                is_fitting = is_fitting and set(others.values()) <= {width[:1]}
            case "norm", {"inputs": (int(rows), int(size)), **others}:
                is_fitting = others.pop("output") == (rows, size) and set(others.values()) == {(size,)}
            case "attention", {"query": (int(rows), int(size)), "key": (int(length), int(width)), **others}:
                value, output = others["value"], others["output"]
                is_fitting = size == width and len(value) == 2 and value[0] == length and output == (rows, value[1])
                is_fitting = is_fitting and len(self.places) == rows and all(0 <= p < length for p in self.places)
            case "update", _:
                is_fitting = len(set(shapes.values())) == 1 and len(shapes["value"]) == 1
            case _:
                is_fitting = False
        is_fitting = is_fitting and (not self.name.startswith("layers.") or self.name.count(".") >= 2)
        if not is_fitting or not all(math.prod(shape) for shape in shapes.values()):
            raise ValueError(f"{self.kind} of {self.name[:100]}: found shapes {shapes}")


@dataclass(frozen=True)
class SampledStep:
    """What one rank sampled."""

    rank: int
    step: int
    told: bool  # the platform drew the step; else it is the window's last one
    operations: tuple[SampledOperation, ...]


@dataclass(frozen=True)
class SampleError:
    """The error of one sampled operation beside its limits. value: infinite where it is not finite."""

    name: str
    kind: str
    value: float
    limit: float
    least: float = 0.0

    @property
    def is_within(self) -> bool:
        return self.least <= self.value <= self.limit


def output_errors(step: SampledStep, model: Model, precision: str) -> list[SampleError]:
    """Return the error of each sampled product, norm and attention. precision: that of the plan."""
    compute: dict[str, Callable[[SampledOperation], tuple[Numbers, Numbers, float]]] = {
        "product": lambda operation: product(operation, precision),
        "input gradient": lambda operation: product(operation, precision),
        "norm": lambda operation: norm(operation, model),
        "attention": lambda operation: attention(operation, model.sliding_window),
    }
    errors = []
    for operation in step.operations:
        if operation.kind not in compute:
            continue
        output, expected, terms = compute[operation.kind](operation)
        if precision == "fp8" and operation.kind in FP8_LIMITS:
            value, (least, limit) = factor_error(output, expected, terms), FP8_LIMITS[operation.kind]
        else:
            value = output_error(output, expected, terms)
            least, limit = 0.0, LIMITS[precision.replace("fp8", "bf16")]
        errors.append(SampleError(operation.name, operation.kind, value, limit, least))
    return errors


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
    positions, places = np.arange(len(key))[None, :], np.array(operation.places)[:, None]
    is_hidden = (positions > places) | (positions <= places - (window or len(key)))
    scores = np.where(is_hidden, -np.inf, scores)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return operation.arrays["output"], weights @ value / weights.sum(-1, keepdims=True), 0.0


def chain_errors(step: SampledStep, model: Model, precision: str) -> list[SampleError]:
    """Return the errors of what lies between the sampled operations of a block x + f(norm(x)), at the same rows.

    A product's input is what its norm gave; the hidden state grows by what attention and MLP gave; the last product's
    input is the activation of the first one's output. What is not known of a rank's part, or of dropout, is left out.
    """
    operations = {o.name: o for o in step.operations if o.kind in ("product", "norm")}
    if model.hidden_dropout or model.norm_place == "after" or model.experts is not None:
        return []
    errors = []
    for layer in range(model.layers):
        block, following = f"layers.{layer}", f"layers.{layer + 1}.attention_norm"
        following = following if layer + 1 < model.layers else "final_norm"
        pairs = [
            _norm_to_product(operations, f"{block}.attention_norm", f"{block}.attention.query"),
            _norm_to_product(operations, f"{block}.mlp_norm", f"{block}.mlp.up"),
            _residual_sum(operations, f"{block}.attention_norm", f"{block}.attention.output", f"{block}.mlp_norm"),
            _residual_sum(operations, f"{block}.mlp_norm", f"{block}.mlp.down", following),
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


def _residual_sum(operations: Mapping[str, SampledOperation], before: str, product: str, after: str) -> Chain:
    if not {before, product, after} <= operations.keys() or not operations[product].places:
        return None
    columns, first, last = list(operations[product].places), operations[before].arrays, operations[after].arrays
    output = operations[product].arrays["output"]
    if first["inputs"].shape != last["inputs"].shape or len(output) != len(first["inputs"]):
        return None
    return last["inputs"][:, columns], first["inputs"][:, columns] + output


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


def update_errors(step: SampledStep, training: Training, grad_norm: float, updates: int) -> list[SampleError]:
    """Return the errors of each sampled parameter's change and moments.

    grad_norm: of the step, before clipping. updates: the optimizer's steps, with this one. AdamW with decoupled decay
    (Loshchilov and Hutter, 2019), on gradients clipped to the norm `gradient_clip`.
    """
    settings = training.optimizer
    rate = learning_rate(Schedule(**training.schedule.model_dump()), step.step)
    clip = min(1.0, training.gradient_clip / grad_norm) if grad_norm > 0 else 1.0
    corrections = 1 - settings.beta1**updates, 1 - settings.beta2**updates
    errors = []
    for operation in step.operations:
        if operation.kind != "update":
            continue
        arrays = operation.arrays
        gradient, value = arrays["gradient"] * clip, arrays["value"]
        mean = settings.beta1 * arrays["mean"] + (1 - settings.beta1) * gradient
        square = settings.beta2 * arrays["square"] + (1 - settings.beta2) * np.square(gradient)
        decay = settings.weight_decay if operation.dimensions >= 2 else 0.0
        direction = mean / corrections[0] / (np.sqrt(square / corrections[1]) + settings.eps)
        change = -rate * (direction + decay * value)
        # a parameter has 24 bits: of a small change the last ones are lost
        lost = np.abs(value) * 2.0**-23
        excess = np.maximum(np.abs(arrays["new_value"] - value - change) - lost, 0.0)
        errors.append(SampleError(operation.name, "update", relative_error(change + excess, change), UPDATE_LIMIT))
        for moment, expected in (("mean", mean), ("square", square)):
            difference = relative_error(arrays[f"new_{moment}"], expected)
            errors.append(SampleError(f"{moment} of {operation.name}", "update", difference, MOMENT_LIMIT))
    return errors


def output_error(output: Numbers, expected: Numbers, terms: float) -> float:
    """Return the root mean square of the difference over that of `expected` and of its terms together."""
    return _root_ratio(mean_square(output - expected), mean_square(expected) + terms)


def factor_error(output: Numbers, expected: Numbers, terms: float) -> float:
    """Return the root mean square of the difference without the output's own rounding, over that of the terms."""
    rounding = OUTPUT_ROUNDING**2 * mean_square(expected)
    difference = mean_square(output - expected)
    return _root_ratio(max(0.0, difference - rounding) if math.isfinite(difference) else difference, terms)


def relative_error(output: Numbers, expected: Numbers) -> float:
    return output_error(output, expected, 0.0)


def mean_square(numbers: Numbers) -> float:
    with np.errstate(all="ignore"):
        return float(np.square(numbers).mean())


def _root_ratio(square: float, whole: float) -> float:
    """Return the root of square / whole: 0 for 0 / 0, infinite where it is no number."""
    if square == 0.0:
        return 0.0
    ratio = square / whole if whole else math.inf
    return math.sqrt(ratio) if math.isfinite(ratio) else math.inf


def rounded(numbers: Numbers, precision: str) -> Numbers:
    """Return float32 numbers in the precision of activations: bf16, also in fp8, or fp16; to nearest, ties to even."""
    if precision == "fp16":
        return numbers.astype(np.float16).astype(np.float64)
    if precision not in ("bf16", "fp8"):
        return numbers
    bits = numbers.astype(np.float32).view(np.uint32)
    even = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return even.view(np.float32).astype(np.float64)


def has_bf16_gradients(step: SampledStep) -> bool:
    """Return whether every gradient of a matrix is a number of bf16, as sums of several in float32 are not."""
    gradients = [o.arrays["gradient"] for o in step.operations if o.kind == "update" and o.dimensions >= 2]
    numbers: Iterable[float] = np.concatenate(gradients) if gradients else ()
    nonzero = np.array([number for number in numbers if number])
    return len(nonzero) > 0 and bool((rounded(nonzero, "bf16") == nonzero).all())


def precision_word(error: SampleError) -> str:
    """Return which precision an output's error is that of."""
    if error.value < error.least:
        return "more than 8 bits"
    word = next((PRECISION_WORDS[name] for name, limit in LIMITS.items() if error.value <= limit), None)
    return word or "fewer bits than E4M3, or of other values"

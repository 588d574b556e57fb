"""The two ends of a sampled step: the tokens that it reads, their embedding, and the loss with its gradient."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from levelfield.measure.sampled_operations import (
    LIMITS,
    Numbers,
    SampledOperation,
    SampledStep,
    SampleError,
    mean_square,
    relative_error,
)
from levelfield.specs.architecture import Model

# Of a gradient by a target's logit, which lies between -1 and 0: half a unit in its last place.
TARGET_LIMITS = {"fp32": 1e-5, "fp16": 5e-4, "bf16": 4e-3, "fp8": 4e-3}
SMALLEST_FP16 = 2.0**-24
FACTOR_LIMIT = 1e-6
# Of the factor that the gradients of a token's other logits have in common: each is rounded alone.
ROW_LIMIT = 6e-4
LOSS_LIMIT = 1e-4  # of a step's loss beside the mean of its tokens'


def embedding(operation: SampledOperation, model: Model) -> tuple[Numbers, Numbers, float]:
    """Return (output, the table's rows with their scale and positions, 0)."""
    arrays = operation.arrays
    return arrays["output"], arrays["table"] * _scale(model) + arrays.get("positions", 0.0), 0.0


def table_gradient(operation: SampledOperation, model: Model) -> tuple[Numbers, Numbers, float]:
    """Return (gradient, the sum of what lookups and head add to it, the mean square of the root of its terms' squares).

    A token's row has the gradient of each hidden state that was looked up there, and that of its logits.
    """
    arrays, expected, terms = operation.arrays, np.zeros(operation.arrays["output"].shape), 0.0
    if "hidden" in arrays:
        is_read = (arrays["read"][None, :] == np.array(operation.places)[:, None]).astype(float)
        hidden = arrays["hidden"] * _scale(model)
        expected, terms = expected + is_read @ hidden, terms + float((is_read @ np.square(hidden)).mean())
    if "head_gradient" in arrays:
        gradient, inputs = arrays["head_gradient"].T, arrays["head_inputs"]
        expected = expected + gradient @ inputs
        terms += float((np.square(gradient) @ np.square(inputs)).mean())
    return arrays["output"], expected, terms


def _scale(model: Model) -> float:
    return 1.0 if model.embedding_scale is None else model.embedding_scale


def loss_errors(step: SampledStep, precision: str, accumulation: int) -> Iterator[SampleError]:
    """Yield the errors of the tokens that were read, and of the loss and its gradient by the sampled logits.

    The gradient of the summed cross-entropy by a token's logits is their softmax, less 1 at its target.
    """
    for tokens in step.tokens:
        pairs = zip(tokens.read, tokens.expected, strict=False)
        others = sum(read != expected for read, expected in pairs) + abs(len(tokens.expected) - len(tokens.read))
        yield SampleError(tokens.kind, "tokens", float(others), 0.5)
    if step.loss_factors:  # of the mean over micro-batches; in fp16 times a loss scale
        factors = np.array(step.loss_factors) * (accumulation if precision != "fp16" else 1 / step.loss_factors[0])
        furthest = float(np.abs(factors - 1).max())
        yield SampleError("factor of the micro-batches' losses", "loss", _finite(furthest), FACTOR_LIMIT)
    for operation in step.operations:
        if operation.kind == "loss":
            yield from _loss_errors(operation, precision)


def _loss_errors(operation: SampledOperation, precision: str) -> Iterator[SampleError]:
    arrays = operation.arrays
    expected = np.expm1(arrays["target_logit"] - arrays["normaliser"])
    furthest = float(np.abs(arrays["target_gradient"] - expected).max())
    yield SampleError("gradient of the targets", "loss", _finite(furthest), TARGET_LIMITS[precision])
    logits, gradient = arrays["logits"], arrays["gradient"]
    share = np.exp(logits - logits.max(1, keepdims=True))
    share /= share.sum(1, keepdims=True)
    others = np.ones(logits.shape, bool)
    others[np.arange(len(logits)), arrays["targets"].astype(int)] = False
    limit = LIMITS[precision.replace("fp8", "bf16")]
    if precision == "fp16":  # shares of a large vocabulary are among its smallest numbers
        limit += SMALLEST_FP16 / math.sqrt(mean_square(share[others]))
    error = relative_error(gradient[others], share[others])
    yield SampleError("gradient of the other logits", "loss", error, limit)
    rows = [(slope[other], part[other]) for slope, part, other in zip(gradient, share, others, strict=True)]
    factors = [float((slope * part).sum() / np.square(part).sum()) - 1 for slope, part in rows]
    common = math.sqrt(mean_square(np.array(factors)))
    # what is left of each number's rounding in a row's factor
    rounding = limit * max(math.sqrt((part**4).sum()) / np.square(part).sum() for _, part in rows)
    yield SampleError("scale of the logits' gradients", "loss", _finite(common), max(ROW_LIMIT, rounding))


def mean_loss_error(step: SampledStep, loss: float) -> SampleError:
    """Return how far a step's loss is off the mean of its micro-batches'."""
    mean = float(np.mean(step.micro_batch_losses))
    return SampleError("loss", "loss", _finite(abs(loss - mean) / abs(mean) if mean else abs(loss)), LOSS_LIMIT)


def _finite(value: float) -> float:
    return value if math.isfinite(value) else math.inf

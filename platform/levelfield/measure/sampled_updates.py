"""What the optimizer made of one sampled step, by AdamW's formula, and what the steps between two samples kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from levelfield.measure.sampled_operations import (
    LIMITS,
    SampledStep,
    SampleError,
    relative_error,
    rounded,
)
from levelfield.specs.case import Training
from levelfield.worker.job import Schedule
from levelfield.worker.schedule import learning_rate

UPDATE_LIMIT = 1e-3  # of a parameter's change
MOMENT_LIMIT = 3e-4  # of AdamW's moments: 16 bits of them are off by 1.1e-3

SAME_LIMIT = 1e-6  # of numbers that nothing may change from one step to the next


def update_errors(step: SampledStep, training: Training, grad_norm: float, optimizer_steps: int) -> list[SampleError]:
    """Return the errors of each sampled parameter's change and moments.

    grad_norm: of the step, before clipping. optimizer_steps: with this one. AdamW with decoupled decay
    (Loshchilov and Hutter, 2019), on gradients clipped to the norm `gradient_clip`.
    """
    settings = training.optimizer
    rate = learning_rate(Schedule(**training.schedule.model_dump()), step.step)
    clip = min(1.0, training.gradient_clip / grad_norm) if grad_norm > 0 else 1.0
    corrections = 1 - settings.beta1**optimizer_steps, 1 - settings.beta2**optimizer_steps
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


def has_bf16_gradients(step: SampledStep) -> bool:
    """Return whether every gradient of a matrix is a number of bf16, as sums of several in float32 are not."""
    gradients = [o.arrays["gradient"] for o in step.operations if o.kind == "update" and o.dimensions >= 2]
    numbers: Iterable[float] = np.concatenate(gradients) if gradients else ()
    nonzero = np.array([number for number in numbers if number])
    return len(nonzero) > 0 and bool((rounded(nonzero, "bf16") == nonzero).all())


def sum_errors(step: SampledStep, accumulation: int) -> Iterator[SampleError]:
    """Yield the errors of each sampled gradient that is the sum of what its micro-batches add."""
    for operation in step.operations:
        if operation.kind == "update" and "micro_batches" in operation.arrays:
            parts = operation.arrays["micro_batches"]
            missing = 0.0 if len(parts) == accumulation else np.inf
            difference = relative_error(operation.arrays["gradient"], parts.sum(0)) + missing
            yield SampleError(f"gradient of {operation.name}", "sum", difference, LIMITS["fp32"])


def idle_change_errors(steps: Sequence[SampledStep]) -> Iterator[tuple[SampledStep, SampleError]]:
    """Yield (the later step, how far its numbers are off those that the step before left), by parameter and moment."""
    for before in steps:
        for after in steps:
            if (after.rank, after.step) == (before.rank, before.step + 1):
                yield from ((after, error) for error in _changes_between(before, after))


def _changes_between(before: SampledStep, after: SampledStep) -> Iterator[SampleError]:
    left = {operation.name: operation.arrays for operation in before.operations if operation.kind == "update"}
    for operation in after.operations:
        if operation.kind == "update" and operation.name in left:
            for name in ("value", "mean", "square"):
                numbers, expected = operation.arrays[name], left[operation.name][f"new_{name}"]
                if numbers.shape == expected.shape:
                    yield SampleError(
                        f"{name} of {operation.name}", "between", relative_error(numbers, expected), SAME_LIMIT
                    )

"""Gradient norms by parameter over the whole layout, from the shares that the ranks report."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from levelfield.measure.parameters import parameter_shapes
from levelfield.measure.records import GradientShare, StepRecord
from levelfield.specs.case import Work

# The whole gradient's norm is computed by the framework, in its own order and precision.
AGREEMENT = 1e-3

Norms = dict[int, dict[str, float]]


def gradient_norms(shares: Iterable[GradientShare]) -> Norms:
    """Step to canonical name to norm: the root of the sum of all ranks' squares."""
    squares: dict[int, dict[str, list[float]]] = {}
    for share in shares:
        squares.setdefault(share.step, {}).setdefault(share.name, []).append(share.square)
    return {step: {name: _root(parts) for name, parts in sorted(squares[step].items())} for step in sorted(squares)}


def gradient_reasons(shares: Sequence[GradientShare], records: Iterable[StepRecord], work: Work) -> list[str]:
    """In each recorded step every parameter has a norm, and together they are the gradient's norm of that step.

    A run that records none has nothing to check: a framework that cannot say them says nothing.
    """
    norms = gradient_norms(shares)
    expected = set(parameter_shapes(work.model, work.training.sequence_length))
    whole = {r.step: r.grad_norm for r in records if r.grad_norm is not None}
    return [reason for step, found in norms.items() for reason in _step_reasons(step, found, expected, whole)]


def _step_reasons(step: int, found: Mapping[str, float], expected: set[str], whole: Mapping[int, float]) -> list[str]:
    if odd := sorted(set(found) ^ expected):
        kind = "no norm of" if odd[0] in expected else "a norm of the unknown parameter"
        return [f"step {step}: {kind} {odd[0]}"]
    total, said = _root([norm * norm for norm in found.values()]), whole.get(step)
    if said is not None and not abs(total - said) <= AGREEMENT * said:
        return [f"step {step}: the parameters' norms make up {total:.6g}, the gradient's norm is {said:.6g}"]
    return []


def _root(squares: Sequence[float]) -> float:
    """NaN for what is no number, so that nothing accepts it."""
    total = math.fsum(squares) if all(map(math.isfinite, squares)) else math.nan
    return math.sqrt(total) if total >= 0 else math.nan

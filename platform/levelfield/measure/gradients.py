"""Gradient norms by parameter over the whole layout, from the shares of the ranks."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from levelfield.measure.parameter_counts import parameter_shapes
from levelfield.measure.raw_facts import GradientShare, StepRecord
from levelfield.specs.case import Work

# The framework computes the whole gradient's norm in its own order and precision.
AGREEMENT = 1e-3

Norms = dict[int, dict[str, float]]


def gradient_norms(shares: Iterable[GradientShare]) -> Norms:
    """Return norms by step and canonical name: the root of the sum of all ranks' squares."""
    squares: dict[int, dict[str, list[float]]] = {}
    for share in shares:
        squares.setdefault(share.step, {}).setdefault(share.name, []).append(share.square)
    return {step: {name: _root(parts) for name, parts in sorted(squares[step].items())} for step in sorted(squares)}


def gradient_reasons(shares: Sequence[GradientShare], records: Sequence[StepRecord], work: Work) -> list[str]:
    """Check that each of the case's gradient steps has a norm for every parameter, and that the norms of a step add up
    to the gradient's norm.

    A run without any norms passes, because some frameworks cannot give them. A step that the loss scale skipped has
    none.
    """
    norms = gradient_norms(shares)
    expected = set(gradient_names(work))
    whole = {r.step: r.grad_norm for r in records if r.grad_norm is not None}
    absent = _absent_steps(norms, {r.step for r in records if r.skipped}, work.evidence.gradient_steps)
    return [
        *absent,
        *(reason for step, found in norms.items() for reason in _step_reasons(step, found, expected, whole)),
    ]


def _absent_steps(norms: Norms, skipped: Collection[int], expected: Sequence[int]) -> list[str]:
    """Return a reason for each of the case's steps that has no norms, of a run that has norms of another step."""
    absent = [step for step in expected if step not in norms and step not in skipped]
    if not norms or not absent:
        return []
    has, wants = (", ".join(map(str, steps)) for steps in (norms, expected))
    return [f"step {step}: no norms by parameter; found those of steps {has}, expected {wants}" for step in absent]


def gradient_names(work: Work) -> Iterator[str]:
    """Return the name of each norm. Each routed expert has its own, such as `layers.1.mlp.experts.up.weight[3]`.

    The norm of all experts together does not show gradients that two of them exchanged, nor the loss of an expert that
    few tokens chose.
    """
    experts = work.model.experts
    for name in parameter_shapes(work.model, work.training.sequence_length):
        if experts is not None and ".mlp.experts." in name:
            yield from (f"{name}[{expert}]" for expert in range(experts.count))
        else:
            yield name


def _step_reasons(step: int, found: Mapping[str, float], expected: set[str], whole: Mapping[int, float]) -> list[str]:
    if odd := sorted(set(found) ^ expected):
        kind = "no norm of" if odd[0] in expected else "a norm of the unknown parameter"
        return [f"step {step}: {kind} {odd[0]}"]
    total, said = _root([norm * norm for norm in found.values()]), whole.get(step)
    if said is not None and not abs(total - said) <= AGREEMENT * said:
        return [f"step {step}: the parameters' norms make up {total:.6g}, the gradient's norm is {said:.6g}"]
    return []


def _root(squares: Sequence[float]) -> float:
    """Return the root of the sum; NaN for values that are not finite, so that no limit accepts it."""
    total = math.fsum(squares) if all(map(math.isfinite, squares)) else math.nan
    return math.sqrt(total) if total >= 0 else math.nan

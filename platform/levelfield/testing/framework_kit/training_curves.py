"""The curve of a small training, read from its events, and the difference of two curves."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

from levelfield.measure.raw_facts import FinalSlice
from levelfield.measure.weights import final_weights
from levelfield.specs.recorded_runs import Difference

GRADIENT_NOISE = 1e-6


@dataclass(frozen=True)
class Curve:
    """What one run recorded: a value for each step, and what has parameters' names."""

    losses: tuple[float, ...]
    grad_norms: tuple[float, ...]
    tokens: tuple[int, ...]
    token_checksums: tuple[int, ...]
    weights: dict[str, int]  # checksums of the initial ones
    gradients: dict[int, dict[str, float]]  # by step, the squared norm of each parameter's, over all ranks
    # the norm and the projections of each parameter after the last step; a shorter run has others
    final: dict[str, tuple[float, ...]] = field(default_factory=dict, compare=False)
    auxiliary: tuple[float, ...] = ()  # of a mixture: the routers' losses
    experts: dict[int, dict[int, tuple[int, ...]]] = field(default_factory=dict)  # tokens by step, layer and expert


def read_curve(ranks: list[list[dict[str, Any]]]) -> Curve:
    """One curve from all ranks' events: the ranks that own tokens own the tokens' checksum."""
    steps = [[event for event in rank if event["event"] == "step"] for rank in ranks]
    owners = [rank for rank in steps if rank[0]["tokens"]]
    by_step = list(zip(*owners, strict=True))
    gradients: dict[int, dict[str, float]] = {}
    experts: dict[int, dict[int, tuple[int, ...]]] = {}
    slices: list[FinalSlice] = []
    for number, event in ((number, event) for number, rank in enumerate(ranks) for event in rank):
        if event["event"] == "gradients":
            squares = gradients.setdefault(event["step"], {})
            for name, square in event["squares"].items():
                squares[name] = squares.get(name, 0.0) + float(square)
        elif event["event"] == "experts":
            layers = experts.setdefault(event["step"], {})
            for layer, counts in event["tokens"].items():
                before = layers.get(int(layer), (0,) * len(counts))
                layers[int(layer)] = tuple(a + b for a, b in zip(before, counts, strict=True))
        elif event["event"] == "final_weights":
            for name, shape, bounds, sums in event["parameters"]:
                place = tuple(map(tuple, bounds))
                slices.append(FinalSlice(number, name, tuple(shape), place, tuple(map(float, sums))))
    return Curve(
        losses=tuple(event["loss"] for event in steps[0]),
        grad_norms=tuple(event["grad_norm"] for event in steps[0]),
        tokens=tuple(sum(event["tokens"] for event in group) for group in by_step),
        token_checksums=tuple(sum(event["tokens_checksum"] for event in group) % 2**64 for group in by_step),
        weights=_weight_checksums(ranks),
        gradients=gradients,
        final=final_weights(slices),
        auxiliary=tuple(event["auxiliary_loss"] for event in steps[0] if "auxiliary_loss" in event),
        experts=experts,
    )


def first_steps(curve: Curve, steps: int) -> Curve:
    """`curve` as a run of so few steps would have left it."""
    by_step = ("losses", "grad_norms", "tokens", "token_checksums", "auxiliary")
    gradients = {step: squares for step, squares in curve.gradients.items() if step <= steps}
    experts = {step: counts for step, counts in curve.experts.items() if step <= steps}
    sliced = {name: getattr(curve, name)[:steps] for name in by_step}
    return dataclasses.replace(curve, gradients=gradients, experts=experts, final={}, **sliced)


def compare(curve: Curve, reference: Curve) -> Difference:
    losses = [_relative_difference(a, b) for a, b in zip(curve.losses, reference.losses, strict=True)]
    norms = [_relative_difference(a, b) for a, b in zip(curve.grad_norms, reference.grad_norms, strict=True)]
    total_differences = (
        _relative_difference(_norm(math.fsum(squares.values())), curve.grad_norms[step - 1])
        for step, squares in curve.gradients.items()
    )
    same_tokens = curve.token_checksums == reference.token_checksums and curve.tokens == reference.tokens
    figures = (
        losses[0],
        max(losses),
        max(norms),
        _parameter_difference(curve, reference),
        max(total_differences, default=math.inf),
    )
    first_loss, loss, grad_norm, parameter_norm, total_norm = (x if math.isfinite(x) else None for x in figures)
    return Difference(
        first_loss=first_loss,
        loss=loss,
        grad_norm=grad_norm,
        parameter_norm=parameter_norm,
        total_norm=total_norm,
        same_weights=curve.weights == reference.weights,
        same_tokens=same_tokens,
    )


def compare_routing(curve: Curve, reference: Curve) -> tuple[float, int]:
    """The largest relative difference of the routers' losses, and how many choices of an expert differ, as counts show.

    Infinite for a curve without routing, and for other layers or steps than the reference's.
    """
    steps = {step: set(layers) for step, layers in curve.experts.items()}
    is_whole = len(curve.auxiliary) == len(reference.auxiliary) > 0 and bool(steps)
    if not is_whole or steps != {step: set(layers) for step, layers in reference.experts.items()}:
        return math.inf, 0
    moved = 0
    for step, layers in reference.experts.items():
        for layer, counts in layers.items():
            moved += sum(abs(a - b) for a, b in zip(curve.experts[step][layer], counts, strict=True)) // 2
    return max(_relative_difference(a, b) for a, b in zip(curve.auxiliary, reference.auxiliary, strict=True)), moved


def _parameter_difference(curve: Curve, reference: Curve) -> float:
    """Infinite unless both have the same parameters in the same steps.

    A gradient that is nothing but rounding (a key's bias: attention does not change with it) has no relative error;
    so differences are relative to no less than GRADIENT_NOISE of the whole gradient's norm.
    """
    names = {step: set(squares) for step, squares in curve.gradients.items()}
    if not names or names != {step: set(squares) for step, squares in reference.gradients.items()}:
        return math.inf
    differences = []
    for step, squares in reference.gradients.items():
        least = GRADIENT_NOISE * reference.grad_norms[step - 1]
        for name, square in squares.items():
            difference = abs(_norm(curve.gradients[step][name]) - _norm(square)) / max(_norm(square), least)
            differences.append(difference if math.isfinite(difference) else math.inf)
    return max(differences)


def _norm(square: float) -> float:
    return math.sqrt(square) if square >= 0 else math.nan


def _relative_difference(value: float, reference: float) -> float:
    """Infinite for anything that is not a finite number, so that no comparison with a limit accepts it.

    Infinite too for a number where the reference is 0, such as the loss of a router that has none.
    """
    if not isinstance(value, float) or not math.isfinite(value):
        return math.inf
    if not reference:
        return math.inf if value else 0.0
    difference = abs(value - reference) / abs(reference)
    return difference if math.isfinite(difference) else math.inf


def _weight_checksums(ranks: list[list[dict[str, Any]]]) -> dict[str, int]:
    """Name to checksum: the sum over different slices; ranks that hold the same slice must say the same of it."""
    slices: dict[tuple[str, str], str] = {}
    for rank in ranks:
        for name, _shape, bounds, checksum in next(e for e in rank if e["event"] == "weights")["parameters"]:
            if slices.setdefault((name, str(bounds)), checksum) != checksum:
                raise RuntimeError(f"{name} {bounds}: replicas have different values")
    totals: dict[str, int] = {}
    for (name, _), checksum in slices.items():
        totals[name] = (totals.get(name, 0) + int(checksum, 16)) % 2**64
    return totals

"""The comparison of a run's training with the reference: layers from the raw facts up, and one verdict.

    integrity   every step once, finite                          -> diverged at the step, or not comparable
    identity    same work, corpus, initial weights and tokens    -> not comparable, naming what differs
    first step  one forward pass                                 -> different
    gradients   norms by parameter at a few steps                -> different
    curve       every step against the recorded noise            -> diverged at the first step beyond it
    spikes      a single step far from its neighbours            -> different

The loss alone is not enough: under Adam a gradient twice too large moves it by 6e-7. Each layer gives its number,
its limit and the source of the limit. Comparisons are written so that NaN fails them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Verdict = Literal["aligned", "diverged", "different", "inconclusive", "not comparable", "unchecked"]

# A norm below this part of the whole gradient's norm is only rounding. Example: a key's bias, which does not change
# the softmax. Its difference is divided by this floor.
NORM_FLOOR = 1e-3
FLAGPERF_FIRST_STEP, FLAGPERF_LIMIT = 21, 0.02
_SPIKE_WIDTH = 5


@dataclass(frozen=True)
class TrainingCurve:
    """The training facts of a run or a reference.

    losses, grad_norms: by step. gradients: norms by step and canonical parameter. identity: digests by name.
    """

    steps: int
    losses: Mapping[int, float]
    grad_norms: Mapping[int, float] = field(default_factory=dict)
    gradients: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    identity: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True)
class AlignmentLimits:
    """The largest accepted relative differences, and their source. None: no limit is known."""

    first_step: float | None
    gradient: float | None
    curve: float | None
    source: str


@dataclass(frozen=True)
class Layer:
    """The finding of one layer. `value` and `limit` are relative differences, or None."""

    name: str
    passed: bool | None
    value: float | None
    limit: float | None
    detail: str


@dataclass(frozen=True)
class AlignmentFinding:
    verdict: Verdict
    reason: str
    layers: tuple[Layer, ...]


def align(run: TrainingCurve, reference: TrainingCurve, limits: AlignmentLimits) -> AlignmentFinding:
    """Return the verdict on `run`. A layer needs its facts; the first layer that fails decides."""
    gate = integrity(run, reference) or identity(run, reference)
    if gate is not None:
        return gate
    layers = (
        first_step(run, reference, limits),
        gradients(run, reference, limits),
        curve(run, reference, limits),
        spikes(run, reference),
    )
    return AlignmentFinding(*_verdict(layers, run, reference, limits), layers)


def _verdict(
    layers: Sequence[Layer], run: TrainingCurve, reference: TrainingCurve, limits: AlignmentLimits
) -> tuple[Verdict, str]:
    failed = next((layer for layer in layers if layer.passed is False), None)
    if failed is None:
        open_ = [layer.name for layer in layers if layer.passed is None]
        if open_:
            return "inconclusive", f"{', '.join(open_)}: {next(x.detail for x in layers if x.passed is None)}"
        return "aligned", f"every layer within its limit ({limits.source})"
    if failed.name == "curve":
        return "diverged", f"first at step {first_beyond(run, reference, limits.curve)}: {failed.detail}"
    return "different", f"{failed.name}: {failed.detail}"


def integrity(run: TrainingCurve, reference: TrainingCurve) -> AlignmentFinding | None:
    """Return None when both have every step once with finite values, else the finding."""
    for who, training in (("the reference", reference), ("the run", run)):
        missing = [step for step in range(1, training.steps + 1) if step not in training.losses]
        strange = sorted(set(training.losses) - set(range(1, training.steps + 1)))
        if missing or strange:
            what = f"no loss for step {missing[0]}" if missing else f"a loss for step {strange[0]} of {training.steps}"
            return _stop("integrity", "not comparable", f"{who} has {what}")
        wild = [s for s, v in sorted(training.losses.items()) if not math.isfinite(v)]
        wild += [s for s, v in sorted(training.grad_norms.items()) if not math.isfinite(v)]
        if wild:
            word: Verdict = "diverged" if training is run else "not comparable"
            return _stop("integrity", word, f"first at step {min(wild)}: {who} has a value that is not finite")
    if run.steps != reference.steps:
        return _stop("integrity", "not comparable", f"{run.steps} steps, the reference has {reference.steps}")
    return None


def identity(run: TrainingCurve, reference: TrainingCurve) -> AlignmentFinding | None:
    """Return None when the digests of work, corpus, weights and tokens are known and equal, else the finding."""
    names = sorted({*run.identity, *reference.identity})
    differ = [n for n in names if run.identity.get(n) != reference.identity.get(n) or run.identity.get(n) is None]
    return _stop("identity", "not comparable", f"these differ: {', '.join(differ)}") if differ else None


def first_step(run: TrainingCurve, reference: TrainingCurve, limits: AlignmentLimits) -> Layer:
    """Compare the loss of one forward pass with equal weights and tokens."""
    value = relative(run.losses[1], reference.losses[1])
    return _layer("first step", value, limits.first_step, "loss of step 1")


def gradients(run: TrainingCurve, reference: TrainingCurve, limits: AlignmentLimits) -> Layer:
    """Compare the gradient norm of each parameter at the recorded steps. Both must have every parameter."""
    common = sorted(set(run.gradients) & set(reference.gradients))
    if not common:
        return Layer("gradients", None, None, limits.gradient, "no gradient norms by parameter were recorded")
    absent = sorted(set(run.gradients[common[0]]) ^ set(reference.gradients[common[0]]))
    if absent:
        return Layer("gradients", False, None, limits.gradient, f"only one of the two has {absent[0]}")
    value, step, name = max(
        (norm_difference(run.gradients[s][n], reference.gradients[s], n), s, n)
        for s in common
        for n in reference.gradients[s]
    )
    return _layer("gradients", value, limits.gradient, f"{name} at step {step}")


def norm_difference(found: float, norms: Mapping[str, float], name: str) -> float:
    """Return |found - expected| / max(expected, NORM_FLOOR x the whole gradient's norm)."""
    whole = math.sqrt(math.fsum(norm * norm for norm in norms.values()))
    difference = abs(found - norms[name]) / max(norms[name], NORM_FLOOR * whole, 1e-300)
    return difference if math.isfinite(difference) else math.inf


def curve(run: TrainingCurve, reference: TrainingCurve, limits: AlignmentLimits) -> Layer:
    """Compare the loss at all steps; the largest difference counts."""
    step = max(reference.losses, key=lambda s: relative(run.losses[s], reference.losses[s]))
    return _layer("curve", relative(run.losses[step], reference.losses[step]), limits.curve, f"loss of step {step}")


def spikes(run: TrainingCurve, reference: TrainingCurve) -> Layer:
    """Find steps whose loss jumps away from the median of its neighbours, where the reference has no jump.

    A jump is more than ten times the median jump of the reference, and more than 1 % of the loss.
    """
    ours, theirs = _jumps(run.losses), _jumps(reference.losses)
    usual = sorted(theirs.values())[len(theirs) // 2] if theirs else 0.0
    found = [s for s, jump in ours.items() if jump > max(10 * usual, 0.01) and not theirs[s] > jump / 2]
    detail = f"step {found[0]} jumps by {ours[found[0]]:.1%}" if found else "none"
    return Layer("spikes", not found, ours[found[0]] if found else None, max(10 * usual, 0.01), detail)


def first_beyond(run: TrainingCurve, reference: TrainingCurve, limit: float | None) -> int | None:
    """Return the first step whose loss differs by more than `limit`, or None."""
    if limit is None:
        return None
    steps = sorted(reference.losses)
    return next((s for s in steps if not relative(run.losses[s], reference.losses[s]) <= limit), None)


def flagperf_rule(run: TrainingCurve, reference: TrainingCurve) -> float | None:
    """Return FlagPerf's figure: the mean relative difference from step 21 on (limit 2 %), or None with fewer steps."""
    steps = [s for s in sorted(reference.losses) if s >= FLAGPERF_FIRST_STEP and s in run.losses]
    if not steps:
        return None
    return math.fsum(relative(run.losses[s], reference.losses[s]) for s in steps) / len(steps)


def relative(value: float, reference: float) -> float:
    """Return |value - reference| / |reference|. It is infinite for values that are not finite: no limit accepts it."""
    difference = abs(value - reference) / max(abs(reference), 1e-300)
    return difference if math.isfinite(difference) else math.inf


def _jumps(losses: Mapping[int, float]) -> dict[int, float]:
    steps = sorted(losses)
    found = {}
    for place, step in enumerate(steps):
        near = [losses[s] for s in steps[max(0, place - _SPIKE_WIDTH) : place + _SPIKE_WIDTH + 1] if s != step]
        middle = sorted(near)[len(near) // 2] if near else losses[step]
        slope = max((abs(losses[b] - losses[a]) for a, b in _neighbours(steps, place)), default=0.0)
        found[step] = min(abs(losses[step] - middle), slope) / abs(middle) if middle else 0.0
    return found


def _neighbours(steps: Sequence[int], place: int) -> list[tuple[int, int]]:
    pairs = [(steps[place - 1], steps[place])] if place else []
    return pairs + ([(steps[place], steps[place + 1])] if place + 1 < len(steps) else [])


def _layer(name: str, value: float, limit: float | None, detail: str) -> Layer:
    if limit is None:
        return Layer(name, None, value, None, f"{value:.1e}, no noise recorded to hold it to ({detail})")
    return Layer(name, value <= limit, value, limit, f"{value:.1e}, limit {limit:.1e} ({detail})")


def _stop(layer: str, verdict: Verdict, reason: str) -> AlignmentFinding:
    return AlignmentFinding(verdict, reason, (Layer(layer, False, None, None, reason),))

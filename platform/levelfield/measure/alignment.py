"""The comparison of a run's training with the reference: layers from the raw facts up, and one verdict.

    integrity   every step once, finite                          -> diverged at the step, or not comparable
    identity    same work and corpus                             -> not comparable, naming what differs
                of the same work, same initial weights and tokens -> different, naming both digests
    first step  one forward pass                                 -> different
    gradients   norms by parameter at a few steps                -> different
    curve       every step against the recorded noise            -> diverged at the first step beyond it
    norms       the whole gradient's norm at every step          -> different
    window      in 16 bits: gradients' norms in the window       -> different
    routing     of a mixture: own choices of experts that differ -> different
    spikes      a single step far from its neighbours            -> different
    final       each parameter's norm and projections at the end -> different

The loss alone is not enough: under Adam a gradient twice too large moves it by 6e-7. Each layer gives its number,
its limit and the source of the limit. Comparisons are written so that NaN fails them.

A limit is a number, or numbers by place: by step for the curve, by step and group for gradients, by group and figure
for final weights, by third and group for the window. A group is all parameters of one name in all layers. A mixture
follows the reference's choices of experts (measure/routing.py); one that does not is compared up to its first changed
choice.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal, NamedTuple

from levelfield.measure.curves import least_jump, spike_steps
from levelfield.measure.routing import (
    ChoiceLimits,
    OwnChoices,
    Rerouting,
    Routing,
    choice_finding,
    most_changed,
    rerouting,
)
from levelfield.measure.weights import WHOLE_GRADIENT, Norms, group_of

Verdict = Literal["aligned", "diverged", "different", "inconclusive", "not comparable", "unchecked"]

# A norm below this part of the whole gradient's norm is only rounding. Example: a key's bias, which does not change
# the softmax. Its difference is divided by this floor.
NORM_FLOOR = 1e-3
FLAGPERF_FIRST_STEP, FLAGPERF_LIMIT = 21, 0.02
# Digests that follow from work and corpus, in every layout and precision. Each with what a run of another one did, and
# what an implementation has to do.
_FOLLOWING = {
    "initial_weights": (
        "the training began with other weights than its work fixes",
        "it has to take the values that the worker makes by the case's seed",
    ),
    "tokens": (
        "the training read other tokens than its work fixes",
        "it has to take the worker's batches, each in its step, from the corpus that was planned",
    ),
}
_DIGEST_LENGTH = 19  # characters: `sha256:` and twelve


@dataclass(frozen=True)
class TrainingCurve:
    """The training facts of a run or a reference."""

    steps: int
    losses: Mapping[int, float]  # by step
    grad_norms: Mapping[int, float] = field(default_factory=dict)  # by step
    gradients: Mapping[int, Mapping[str, float]] = field(default_factory=dict)  # norms by step and canonical parameter
    identity: Mapping[str, str | None] = field(default_factory=dict)  # digests by name
    weights: Mapping[str, Sequence[float]] = field(default_factory=dict)  # after the last step: [norm, projections...]
    routing: Routing = field(default_factory=dict)  # of a mixture: the tokens of each expert by step and layer
    follows: str | None = None  # the digest of the choices of experts that a run followed, or that a reference has
    own_choices: Mapping[int, OwnChoices] = field(default_factory=dict)  # what the run would have chosen, by step
    skipped: Collection[int] = frozenset()  # the steps that the loss scale skipped, which have no gradients
    window: Norms = field(default_factory=dict)  # in 16 bits: norms by step of the window and group, measure/weights.py


# A step; a step or a third of the window, and a group; a group and a figure. None: every place that is not named.
Place = int | tuple[int | str, str] | None
Limit = float | Mapping[Place, float]


@dataclass(frozen=True)
class AlignmentLimits:
    """The largest accepted relative differences, and their source. None: no limit is known."""

    first_step: Limit | None
    gradient: Limit | None
    curve: Limit | None
    source: str
    weights: Limit | None = None
    routing: ChoiceLimits | None = None  # None where rounding changes choices from the start, as in 16 bits
    norms: Limit | None = None  # of the whole gradient; None: not judged
    window: Limit | None = None  # by third and group


class PlacedDifference(NamedTuple):
    """One relative difference."""

    value: float
    place: Place  # whose limit it has
    detail: str  # what differs


@dataclass(frozen=True)
class Layer:
    """The finding of one layer."""

    name: str
    passed: bool | None  # None: open
    value: float | None  # a relative difference, as the limit
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
    moved, choices = rerouting(run.routing, reference.routing), []
    if reference.routing:
        choices = [routing(run, reference, moved, limits)]
        if choices[0].passed is None:
            run, reference = before(run, moved.first), before(reference, moved.first)
    is_known = 1 in reference.losses  # no step is, where choices differ from the first one on
    rules = [first_step, gradients, curve] if is_known else []
    if reference.window:  # in 16 bits honest trainings part by up to 17 % in single steps
        rules.append(window)
    elif limits.norms is not None and reference.grad_norms:
        rules.append(norms)
    layers = [
        *(rule(run, reference, limits) for rule in rules),
        *choices,
        *([spikes(run, reference)] if is_known else []),
        *([final_weights(run, reference, limits)] if reference.weights else []),
    ]
    failed = next((layer for layer in layers if layer.passed is False), None)
    open_layers = [layer for layer in layers if layer.passed is None]
    absent = "" if reference.weights else "; final weights: not in the reference"
    verdict: Verdict = "aligned"
    reason = f"every layer within its limit ({limits.source}){absent}"
    if failed is not None and failed.name == "curve":
        step = first_beyond(run.losses, reference.losses, limits.curve)
        verdict, reason = "diverged", f"first at step {step}: {failed.detail}"
    elif failed is not None:
        verdict, reason = "different", f"{failed.name}: {failed.detail}"
    elif open_layers:
        verdict, reason = "inconclusive", f"{', '.join(x.name for x in open_layers)}: {open_layers[0].detail}"
    return AlignmentFinding(verdict, reason, tuple(layers))


def before(training: TrainingCurve, step: int | None) -> TrainingCurve:
    """Return what is known before `step`, without final weights; None: no step."""
    steps = range(1, step or 1)
    return replace(
        training,
        losses={s: value for s, value in training.losses.items() if s in steps},
        grad_norms={s: value for s, value in training.grad_norms.items() if s in steps},
        gradients={s: norms for s, norms in training.gradients.items() if s in steps},
        window={s: norms for s, norms in training.window.items() if s in steps},
        weights={},
    )


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
    """Return None when the digests of work, corpus, weights and tokens are known and equal, else the finding.

    The same work on the same corpus fixes weights and tokens: a run with other ones did not do it.
    """
    names = sorted({*run.identity, *reference.identity})
    differ = [n for n in names if run.identity.get(n) != reference.identity.get(n) or run.identity.get(n) is None]
    if not differ:
        return None
    ours, theirs = ([side.identity.get(name) for name in differ] for side in (run, reference))
    if None in (*ours, *theirs) or not set(differ) <= set(_FOLLOWING):
        return _stop("identity", "not comparable", f"these differ: {', '.join(differ)}")
    reasons = []
    for name, digest, expected in zip(differ, ours, theirs, strict=True):
        fault, remedy = _FOLLOWING[name]
        digests = f"found {str(digest)[:_DIGEST_LENGTH]}, expected {str(expected)[:_DIGEST_LENGTH]}"
        reasons.append(f"{fault} ({name}: {digests}); {remedy}")
    reason = "; ".join(reasons)
    return AlignmentFinding("different", f"identity: {reason}", (Layer("identity", False, None, None, reason),))


def first_step(run: TrainingCurve, reference: TrainingCurve, limits: AlignmentLimits) -> Layer:
    """Compare the loss of one forward pass with equal weights and tokens."""
    difference = PlacedDifference(relative(run.losses[1], reference.losses[1]), 1, "loss of step 1")
    return _layer("first step", [difference], limits.first_step)


def gradients(run: TrainingCurve, reference: TrainingCurve, limits: AlignmentLimits) -> Layer:
    """Compare the gradient norm of each parameter at the recorded steps. Both must have every parameter.

    The layer stays open where the run lacks a step of the reference's that it did not skip.
    """
    common = sorted(set(run.gradients) & set(reference.gradients))
    if not common:
        return Layer("gradients", None, None, None, "no gradient norms by parameter were recorded")
    for step in common:
        if unlike := _unlike("gradients", run.gradients[step], reference.gradients[step]):
            return unlike
    layer = _layer("gradients", gradient_differences(run, reference), limits.gradient)
    absent = sorted(set(reference.gradients) - set(run.gradients) - set(run.skipped))
    if layer.passed and absent:
        return replace(layer, passed=None, detail=f"the run has no gradient norms of step {absent[0]}; {layer.detail}")
    return layer


def gradient_differences(run: TrainingCurve, reference: TrainingCurve) -> list[PlacedDifference]:
    """Return the differences at the common steps. Both have the same parameters there. Place: (step, group)."""
    return [
        PlacedDifference(
            norm_difference(run.gradients[s].get(n, math.inf), norms, n), (s, group_of(n)), f"{n} at step {s}"
        )
        for s, norms in sorted(reference.gradients.items())
        if s in run.gradients
        for n in norms
    ]


def final_weights(run: TrainingCurve, reference: TrainingCurve, limits: AlignmentLimits) -> Layer:
    """Compare each parameter's norm and projections after the last step. Both must have every parameter."""
    if not run.weights:
        return Layer("final weights", None, None, None, "the run did not record its final weights")
    return _unlike("final weights", run.weights, reference.weights) or _layer(
        "final weights", weight_differences(run, reference), limits.weights
    )


def weight_differences(run: TrainingCurve, reference: TrainingCurve) -> list[PlacedDifference]:
    """Return the differences of norm and projections over the norm. Place: (group, "norm" or "projection")."""
    differences = []
    for name, expected in reference.weights.items():
        ours, group = run.weights.get(name, ()), group_of(name)
        apart = [abs(a - b) / max(expected[0], 1e-300) for a, b in zip(ours, expected, strict=False)]
        apart = [x if math.isfinite(x) else math.inf for x in apart] if len(ours) == len(expected) else [math.inf] * 2
        differences.append(PlacedDifference(apart[0], (group, "norm"), f"norm of {name}"))
        differences += [PlacedDifference(x, (group, "projection"), f"a projection of {name}") for x in apart[1:]]
    return differences


def norm_difference(value: float, norms: Mapping[str, float], name: str) -> float:
    """Return |value - expected| / max(expected, NORM_FLOOR x the whole gradient's norm)."""
    whole = math.sqrt(math.fsum(norm * norm for norm in norms.values()))
    difference = abs(value - norms[name]) / max(norms[name], NORM_FLOOR * whole, 1e-300)
    return difference if math.isfinite(difference) else math.inf


def curve(run: TrainingCurve, reference: TrainingCurve, limits: AlignmentLimits) -> Layer:
    """Compare the loss at all steps but spikes, which the next layer fails. The worst step counts."""
    jumping = spike_steps(run.losses, reference.losses)
    differences = [d for d in curve_differences(run, reference) if d.place not in jumping]
    if not differences:
        return Layer("curve", None, None, None, "every step is a spike")
    return _layer("curve", differences, limits.curve)


def curve_differences(run: TrainingCurve, reference: TrainingCurve) -> list[PlacedDifference]:
    """Return the difference of each step. Place: the step."""
    return [
        PlacedDifference(relative(run.losses[s], loss), s, f"loss of step {s}")
        for s, loss in sorted(reference.losses.items())
    ]


def norms(run: TrainingCurve, reference: TrainingCurve, limits: AlignmentLimits) -> Layer:
    """Compare the whole gradient's norm at every step of the reference that has one."""
    absent = sorted(set(reference.grad_norms) - set(run.grad_norms) - set(run.skipped))
    if absent:
        return Layer("norms", None, None, None, f"the run has no gradient norm at step {absent[0]}")
    return _layer("norms", norm_differences(run, reference), limits.norms)


def norm_differences(run: TrainingCurve, reference: TrainingCurve) -> list[PlacedDifference]:
    """Return the difference of each step's norm. Place: the step."""
    return [
        PlacedDifference(relative(run.grad_norms.get(s, math.inf), norm), s, f"gradient norm of step {s}")
        for s, norm in sorted(reference.grad_norms.items())
        if s not in run.skipped
    ]


def window(run: TrainingCurve, reference: TrainingCurve, limits: AlignmentLimits) -> Layer:
    """Compare each group's gradient norm over the window: what is computed in fewer bits there moves all its steps.

    The layer stays open where the run lacks a step or a group of the reference's that it did not skip.
    """
    if (gap := window_gap(run, reference)) is not None:
        return Layer("window", None, None, None, f"the run has no gradient norm of {gap}")
    differences = window_differences(run, reference)
    if not differences:
        return Layer("window", None, None, None, "the run skipped every step of the window")
    return _layer("window", differences, limits.window)


def window_gap(run: TrainingCurve, reference: TrainingCurve) -> str | None:
    """Return the first group and step of the reference's window that the run lacks and did not skip; None without."""
    for step, groups in sorted(reference.window.items()):
        missing = sorted(groups.keys() - run.window.get(step, {}).keys())
        if missing and step not in run.skipped:
            return f"{missing[0]} at step {step}"
    return None


def window_differences(run: TrainingCurve, reference: TrainingCurve) -> list[PlacedDifference]:
    """Return for each third of the window and each group the size of the interquartile mean of its norm's signed
    differences, over the norm or NORM_FLOOR x the whole gradient's. Place: (third, group); a third is `11-20`.

    Trainings part with the number of steps, to either side. The mean keeps what stays on one side, and leaves out the
    steps in which the loss is steep. The noise of the thirds differs. Both have the same steps and groups: `window_gap`
    says whether they do.
    """
    steps, differences = sorted(reference.window), list[PlacedDifference]()
    ends = [round(len(steps) * part / 3) for part in range(4)]
    for third in (steps[start:stop] for start, stop in pairwise(ends) if start < stop):
        signed: dict[str, list[float]] = {}
        for step in third:
            if step not in run.skipped:
                expected = reference.window[step]
                floor = NORM_FLOOR * expected[WHOLE_GRADIENT]
                for group, norm in expected.items():
                    signed.setdefault(group, []).append((run.window[step][group] - norm) / max(norm, floor, 1e-300))
        name = f"{third[0]}-{third[-1]}"
        for group, values in signed.items():
            # the mean without the lowest and the highest quarter; infinite where a value is not finite
            middle = sorted(values)[len(values) // 4 : len(values) - len(values) // 4]
            is_finite = all(map(math.isfinite, values))
            size = abs(math.fsum(middle) / len(middle)) if is_finite else math.inf
            differences.append(PlacedDifference(size, (name, group), f"{group} in steps {name}"))
    return differences


def part_of_the_way(norms: Mapping[str, float], start: Mapping[str, float], end: Mapping[str, float]) -> float:
    """Return where gradient norms by parameter lie between `start` (0) and `end` (1); NaN without common parameters.

    It is the projection of ln(norms / start) on ln(end / start). Parameters whose norm is only rounding are left out.
    """
    floor = NORM_FLOOR * math.sqrt(math.fsum(norm * norm for norm in end.values()))
    names = [name for name in end if end[name] > floor and norms.get(name, 0) > 0 and start.get(name, 0) > 0]
    way = {name: math.log(end[name] / start[name]) for name in names}
    covered = math.fsum(math.log(norms[name] / start[name]) * way[name] for name in names)
    length = math.fsum(part * part for part in way.values())
    return covered / length if length else math.nan


def routing(run: TrainingCurve, reference: TrainingCurve, moved: Rerouting, limits: AlignmentLimits) -> Layer:
    """Compare the choices of experts. Open where they differ and the run did not follow the reference's."""
    if not moved.changed:
        return Layer("routing", None, None, None, "the run did not record its routing")
    if run.follows is not None and run.follows == reference.follows:
        if moved.first is not None:
            return Layer("routing", False, None, None, f"it says that it follows the reference; {moved.sentence}")
        return Layer("routing", *choice_finding(run.own_choices, limits.routing))
    if moved.first is None:
        return Layer("routing", True, 0.0, None, moved.sentence)
    if limits.routing is None:
        detail = f"{moved.sentence}; not judged in this precision, where rounding decides many choices"
        return Layer("routing", True, None, None, detail)
    if (number := moved.changed[moved.first]) > most_changed(limits.routing, moved.choices):
        return Layer("routing", False, None, None, f"{moved.sentence}: {number:,} at once, more than rounding changes")
    detail = f"{moved.sentence}, and the run did not follow the reference's: nothing is compared from there on"
    return Layer("routing", None, None, None, detail)


def spikes(run: TrainingCurve, reference: TrainingCurve) -> Layer:
    """Find steps whose loss jumps away from its neighbours, where the reference has no jump (measure/curves.py)."""
    jumps, least = spike_steps(run.losses, reference.losses), least_jump(reference.losses)
    if not jumps:
        return Layer("spikes", True, None, least, "none")
    step = min(jumps)
    return Layer("spikes", False, jumps[step], least, f"step {step} jumps by {jumps[step]:.1%}, limit {least:.1%}")


def first_beyond(losses: Mapping[int, float], reference: Mapping[int, float], limit: Limit | None) -> int | None:
    """Return the first common step whose loss differs by more than its limit, or None. Without a limit any does."""
    steps = sorted(losses.keys() & reference.keys())
    beyond = (s for s in steps if limit is None or not relative(losses[s], reference[s]) <= limit_at(limit, s))
    return next(beyond, None)


def flagperf_rule(run: TrainingCurve, reference: TrainingCurve) -> float | None:
    """Return FlagPerf's figure: the mean relative difference from step 21 on (limit 2 %).

    None with fewer steps, or where the run lacks one: the others alone would hide where it diverged.
    """
    steps = [s for s in sorted(reference.losses) if s >= FLAGPERF_FIRST_STEP]
    if not steps or any(s not in run.losses for s in steps):
        return None
    return math.fsum(relative(run.losses[s], reference.losses[s]) for s in steps) / len(steps)


def relative(value: float, reference: float) -> float:
    """Return |value - reference| / |reference|. It is infinite for values that are not finite: no limit accepts it."""
    difference = abs(value - reference) / max(abs(reference), 1e-300)
    return difference if math.isfinite(difference) else math.inf


def limit_at(limit: Limit, place: Place) -> float:
    """Return the limit of a place. A place that the noise does not know has the limit 0."""
    return limit if isinstance(limit, float | int) else limit.get(place, limit.get(None, 0.0))


def _layer(name: str, differences: Sequence[PlacedDifference], limit: Limit | None) -> Layer:
    """Judge a layer by the difference that is the largest part of its limit."""
    if limit is None:
        worst = max(differences, key=lambda d: d.value)
        return Layer(
            name, None, worst.value, None, f"{worst.value:.1e}, no noise recorded to hold it to ({worst.detail})"
        )
    worst = max(differences, key=lambda d: _part(d.value, limit_at(limit, d.place)))
    allowed = limit_at(limit, worst.place)
    text = f"{worst.value:.1e}, limit {allowed:.1e} ({worst.detail})"
    return Layer(name, worst.value <= allowed, worst.value, allowed, text)


def _part(value: float, limit: float) -> float:
    """Return value / limit; infinite for any difference where the limit is 0.

    0 for what holds where the noise is as large as the value itself, as for a key's bias: it says nothing.
    """
    if value <= limit and limit >= 1:
        return 0.0
    return value / limit if limit else (math.inf if value else 0.0)


def _unlike(layer: str, ours: Collection[str], theirs: Collection[str]) -> Layer | None:
    """Return the failed layer when only one of the two has a parameter."""
    absent = sorted(set(ours) ^ set(theirs))
    return Layer(layer, False, None, None, f"only one of the two has {absent[0]}") if absent else None


def _stop(layer: str, verdict: Verdict, reason: str) -> AlignmentFinding:
    return AlignmentFinding(verdict, reason, (Layer(layer, False, None, None, reason),))

"""The comparison of a run's training with a reference: layers of checks, from the raw facts up, and one verdict.

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

from levelfield.measure.curves import spike_steps, spike_threshold
from levelfield.measure.routing import (
    ChoiceLimits,
    OwnChoices,
    Routing,
    RoutingDifference,
    judge_own_choices,
    most_changed_choices,
    routing_difference,
)
from levelfield.measure.weights import WHOLE_GRADIENT, Norms, parameter_group

Verdict = Literal["aligned", "diverged", "different", "inconclusive", "not comparable", "unchecked"]

# A norm below this part of the whole gradient's norm is only rounding. Example: a key's bias, which does not change
# the softmax. Its difference is divided by this floor.
NORM_FLOOR = 1e-3
FLAGPERF_FIRST_STEP, FLAGPERF_LIMIT = 21, 0.02
# Digests that follow from work and corpus, in every layout and precision. For each: what a run with another digest did,
# and what its implementation has to do.
_DERIVED_DIGESTS = {
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
    choices_digest: str | None = None  # of the choices of experts that a run followed, or that a reference has
    own_choices: Mapping[int, OwnChoices] = field(default_factory=dict)  # what the run would have chosen, by step
    skipped: Collection[int] = frozenset()  # the steps that the loss scale skipped, which have no gradients
    window_norms: Norms = field(default_factory=dict)  # in 16 bits, by step and group: measure/weights.py


# Where a difference is: at a step; at a step or a third of the window, and a group; at a group and a figure.
# None: every place that is not named.
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
    """One relative difference, and the place whose limit it is held to."""

    value: float
    place: Place
    detail: str  # what differs


@dataclass(frozen=True)
class Layer:
    """The finding of one layer of checks."""

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
    early_finding = integrity_finding(run, reference) or identity_finding(run, reference)
    if early_finding is not None:
        return early_finding
    routing_change, choices = routing_difference(run.routing, reference.routing), []
    if reference.routing:
        choices = [routing_layer(run, reference, routing_change, limits)]
        if choices[0].passed is None:
            run, reference = (
                truncate_before(run, routing_change.first),
                truncate_before(reference, routing_change.first),
            )
    has_first_step = 1 in reference.losses  # no step is, where choices differ from the first one on
    rules = [first_step_layer, gradient_layer, curve_layer] if has_first_step else []
    if reference.window_norms:  # in 16 bits honest trainings part by up to 17 % in single steps
        rules.append(window_layer)
    elif limits.norms is not None and reference.grad_norms:
        rules.append(norm_layer)
    layers = [
        *(rule(run, reference, limits) for rule in rules),
        *choices,
        *([spike_layer(run, reference)] if has_first_step else []),
        *([final_weight_layer(run, reference, limits)] if reference.weights else []),
    ]
    failed = next((layer for layer in layers if layer.passed is False), None)
    open_layers = [layer for layer in layers if layer.passed is None]
    absence_note = "" if reference.weights else "; final weights: not in the reference"
    verdict: Verdict = "aligned"
    reason = f"every layer within its limit ({limits.source}){absence_note}"
    if failed is not None and failed.name == "curve":
        step = first_step_beyond(run.losses, reference.losses, limits.curve)
        verdict, reason = "diverged", f"first at step {step}: {failed.detail}"
    elif failed is not None:
        verdict, reason = "different", f"{failed.name}: {failed.detail}"
    elif open_layers:
        verdict, reason = "inconclusive", f"{', '.join(x.name for x in open_layers)}: {open_layers[0].detail}"
    return AlignmentFinding(verdict, reason, tuple(layers))


def truncate_before(training: TrainingCurve, step: int | None) -> TrainingCurve:
    """Return the training as far as before `step`, without final weights; None: without any step."""
    steps = range(1, step or 1)
    return replace(
        training,
        losses={s: value for s, value in training.losses.items() if s in steps},
        grad_norms={s: value for s, value in training.grad_norms.items() if s in steps},
        gradients={s: norms for s, norms in training.gradients.items() if s in steps},
        window_norms={s: norms for s, norms in training.window_norms.items() if s in steps},
        weights={},
    )


def integrity_finding(run: TrainingCurve, reference: TrainingCurve) -> AlignmentFinding | None:
    """Return None when both have every step once with finite values, else the finding."""
    for owner, training in (("the reference", reference), ("the run", run)):
        missing = [step for step in range(1, training.steps + 1) if step not in training.losses]
        unexpected = sorted(set(training.losses) - set(range(1, training.steps + 1)))
        if missing or unexpected:
            fault = (
                f"no loss for step {missing[0]}" if missing else f"a loss for step {unexpected[0]} of {training.steps}"
            )
            return _single_layer_finding("integrity", "not comparable", f"{owner} has {fault}")
        non_finite_steps = [s for s, v in sorted(training.losses.items()) if not math.isfinite(v)]
        non_finite_steps += [s for s, v in sorted(training.grad_norms.items()) if not math.isfinite(v)]
        if non_finite_steps:
            verdict: Verdict = "diverged" if training is run else "not comparable"
            return _single_layer_finding(
                "integrity", verdict, f"first at step {min(non_finite_steps)}: {owner} has a value that is not finite"
            )
    if run.steps != reference.steps:
        return _single_layer_finding(
            "integrity", "not comparable", f"{run.steps} steps, the reference has {reference.steps}"
        )
    return None


def identity_finding(run: TrainingCurve, reference: TrainingCurve) -> AlignmentFinding | None:
    """Return None when the digests of work, corpus, weights and tokens are known and equal, else the finding.

    The same work on the same corpus fixes weights and tokens: a run with other ones did not do it.
    """
    names = sorted({*run.identity, *reference.identity})
    differing = [n for n in names if run.identity.get(n) != reference.identity.get(n) or run.identity.get(n) is None]
    if not differing:
        return None
    ours, theirs = ([side.identity.get(name) for name in differing] for side in (run, reference))
    if None in (*ours, *theirs) or not set(differing) <= set(_DERIVED_DIGESTS):
        return _single_layer_finding("identity", "not comparable", f"these differ: {', '.join(differing)}")
    reasons = []
    for name, digest, expected in zip(differing, ours, theirs, strict=True):
        fault, remedy = _DERIVED_DIGESTS[name]
        digests = f"found {str(digest)[:_DIGEST_LENGTH]}, expected {str(expected)[:_DIGEST_LENGTH]}"
        reasons.append(f"{fault} ({name}: {digests}); {remedy}")
    reason = "; ".join(reasons)
    return AlignmentFinding("different", f"identity: {reason}", (Layer("identity", False, None, None, reason),))


def first_step_layer(run: TrainingCurve, reference: TrainingCurve, limits: AlignmentLimits) -> Layer:
    """Compare the loss of one forward pass with equal weights and tokens."""
    difference = PlacedDifference(relative_difference(run.losses[1], reference.losses[1]), 1, "loss of step 1")
    return _judged_layer("first step", [difference], limits.first_step)


def gradient_layer(run: TrainingCurve, reference: TrainingCurve, limits: AlignmentLimits) -> Layer:
    """Compare the gradient norm of each parameter at the recorded steps. Both must have every parameter.

    The layer stays open where the run lacks a step of the reference's that it did not skip.
    """
    common = sorted(set(run.gradients) & set(reference.gradients))
    if not common:
        return Layer("gradients", None, None, None, "no gradient norms by parameter were recorded")
    for step in common:
        if mismatch := _parameter_mismatch("gradients", run.gradients[step], reference.gradients[step]):
            return mismatch
    layer = _judged_layer("gradients", gradient_differences(run, reference), limits.gradient)
    absent = sorted(set(reference.gradients) - set(run.gradients) - set(run.skipped))
    if layer.passed and absent:
        return replace(layer, passed=None, detail=f"the run has no gradient norms of step {absent[0]}; {layer.detail}")
    return layer


def gradient_differences(run: TrainingCurve, reference: TrainingCurve) -> list[PlacedDifference]:
    """Return the differences at the common steps. Both have the same parameters there. Place: (step, group)."""
    return [
        PlacedDifference(
            norm_difference(run.gradients[s].get(n, math.inf), norms, n), (s, parameter_group(n)), f"{n} at step {s}"
        )
        for s, norms in sorted(reference.gradients.items())
        if s in run.gradients
        for n in norms
    ]


def final_weight_layer(run: TrainingCurve, reference: TrainingCurve, limits: AlignmentLimits) -> Layer:
    """Compare each parameter's norm and projections after the last step. Both must have every parameter."""
    if not run.weights:
        return Layer("final weights", None, None, None, "the run did not record its final weights")
    return _parameter_mismatch("final weights", run.weights, reference.weights) or _judged_layer(
        "final weights", weight_differences(run, reference), limits.weights
    )


def weight_differences(run: TrainingCurve, reference: TrainingCurve) -> list[PlacedDifference]:
    """Return the differences of norm and projections over the norm. Place: (group, "norm" or "projection")."""
    differences = []
    for name, expected in reference.weights.items():
        ours, group = run.weights.get(name, ()), parameter_group(name)
        distances = [abs(a - b) / max(expected[0], 1e-300) for a, b in zip(ours, expected, strict=False)]
        distances = (
            [x if math.isfinite(x) else math.inf for x in distances] if len(ours) == len(expected) else [math.inf] * 2
        )
        differences.append(PlacedDifference(distances[0], (group, "norm"), f"norm of {name}"))
        differences += [PlacedDifference(x, (group, "projection"), f"a projection of {name}") for x in distances[1:]]
    return differences


def norm_difference(value: float, norms: Mapping[str, float], name: str) -> float:
    """Return |value - expected| / max(expected, NORM_FLOOR x the whole gradient's norm)."""
    whole_norm = math.sqrt(math.fsum(norm * norm for norm in norms.values()))
    difference = abs(value - norms[name]) / max(norms[name], NORM_FLOOR * whole_norm, 1e-300)
    return difference if math.isfinite(difference) else math.inf


def curve_layer(run: TrainingCurve, reference: TrainingCurve, limits: AlignmentLimits) -> Layer:
    """Compare the loss at all steps but spikes, which the next layer fails. The worst step counts."""
    spikes = spike_steps(run.losses, reference.losses)
    differences = [d for d in curve_differences(run, reference) if d.place not in spikes]
    if not differences:
        return Layer("curve", None, None, None, "every step is a spike")
    return _judged_layer("curve", differences, limits.curve)


def curve_differences(run: TrainingCurve, reference: TrainingCurve) -> list[PlacedDifference]:
    """Return the difference of each step. Place: the step."""
    return [
        PlacedDifference(relative_difference(run.losses[s], loss), s, f"loss of step {s}")
        for s, loss in sorted(reference.losses.items())
    ]


def norm_layer(run: TrainingCurve, reference: TrainingCurve, limits: AlignmentLimits) -> Layer:
    """Compare the whole gradient's norm at every step of the reference that has one."""
    absent = sorted(set(reference.grad_norms) - set(run.grad_norms) - set(run.skipped))
    if absent:
        return Layer("norms", None, None, None, f"the run has no gradient norm at step {absent[0]}")
    return _judged_layer("norms", norm_differences(run, reference), limits.norms)


def norm_differences(run: TrainingCurve, reference: TrainingCurve) -> list[PlacedDifference]:
    """Return the difference of each step's norm. Place: the step."""
    return [
        PlacedDifference(relative_difference(run.grad_norms.get(s, math.inf), norm), s, f"gradient norm of step {s}")
        for s, norm in sorted(reference.grad_norms.items())
        if s not in run.skipped
    ]


def window_layer(run: TrainingCurve, reference: TrainingCurve, limits: AlignmentLimits) -> Layer:
    """Compare each group's gradient norm over the window: what is computed in fewer bits there moves all its steps.

    The layer stays open where the run lacks a step or a group of the reference's that it did not skip.
    """
    if (missing := window_gap(run, reference)) is not None:
        return Layer("window", None, None, None, f"the run has no gradient norm of {missing}")
    differences = window_differences(run, reference)
    if not differences:
        return Layer("window", None, None, None, "the run skipped every step of the window")
    return _judged_layer("window", differences, limits.window)


def window_gap(run: TrainingCurve, reference: TrainingCurve) -> str | None:
    """Return the first group and step of the reference's window that the run lacks and did not skip; None without."""
    for step, groups in sorted(reference.window_norms.items()):
        missing = sorted(groups.keys() - run.window_norms.get(step, {}).keys())
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
    steps, differences = sorted(reference.window_norms), list[PlacedDifference]()
    ends = [round(len(steps) * part / 3) for part in range(4)]
    for third in (steps[start:stop] for start, stop in pairwise(ends) if start < stop):
        signed: dict[str, list[float]] = {}
        for step in third:
            if step not in run.skipped:
                expected = reference.window_norms[step]
                floor = NORM_FLOOR * expected[WHOLE_GRADIENT]
                for group, norm in expected.items():
                    signed.setdefault(group, []).append(
                        (run.window_norms[step][group] - norm) / max(norm, floor, 1e-300)
                    )
        name = f"{third[0]}-{third[-1]}"
        for group, values in signed.items():
            # the mean without the lowest and the highest quarter; infinite where a value is not finite
            middle = sorted(values)[len(values) // 4 : len(values) - len(values) // 4]
            is_finite = all(map(math.isfinite, values))
            size = abs(math.fsum(middle) / len(middle)) if is_finite else math.inf
            differences.append(PlacedDifference(size, (name, group), f"{group} in steps {name}"))
    return differences


def interpolation_position(norms: Mapping[str, float], start: Mapping[str, float], end: Mapping[str, float]) -> float:
    """Return where gradient norms by parameter lie between `start` (0) and `end` (1); NaN without common parameters.

    The position is the projection of ln(norms / start) on ln(end / start). Parameters whose norm is only rounding are
    left out.
    """
    floor = NORM_FLOOR * math.sqrt(math.fsum(norm * norm for norm in end.values()))
    names = [name for name in end if end[name] > floor and norms.get(name, 0) > 0 and start.get(name, 0) > 0]
    log_changes = {name: math.log(end[name] / start[name]) for name in names}
    covered = math.fsum(math.log(norms[name] / start[name]) * log_changes[name] for name in names)
    length = math.fsum(part * part for part in log_changes.values())
    return covered / length if length else math.nan


def routing_layer(
    run: TrainingCurve, reference: TrainingCurve, routing_change: RoutingDifference, limits: AlignmentLimits
) -> Layer:
    """Compare the choices of experts. Open where they differ and the run did not follow the reference's."""
    if not routing_change.changed:
        return Layer("routing", None, None, None, "the run did not record its routing")
    if run.choices_digest is not None and run.choices_digest == reference.choices_digest:
        if routing_change.first is not None:
            return Layer(
                "routing", False, None, None, f"it says that it follows the reference; {routing_change.sentence}"
            )
        return Layer("routing", *judge_own_choices(run.own_choices, limits.routing))
    if routing_change.first is None:
        return Layer("routing", True, 0.0, None, routing_change.sentence)
    if limits.routing is None:
        detail = f"{routing_change.sentence}; not judged in this precision, where rounding decides many choices"
        return Layer("routing", True, None, None, detail)
    if (number := routing_change.changed[routing_change.first]) > most_changed_choices(
        limits.routing, routing_change.choices
    ):
        return Layer(
            "routing", False, None, None, f"{routing_change.sentence}: {number:,} at once, more than rounding changes"
        )
    detail = f"{routing_change.sentence}, and the run did not follow the reference's: nothing is compared from there on"
    return Layer("routing", None, None, None, detail)


def spike_layer(run: TrainingCurve, reference: TrainingCurve) -> Layer:
    """Find steps whose loss jumps away from its neighbours, where the reference has no jump (measure/curves.py)."""
    jumps, threshold = spike_steps(run.losses, reference.losses), spike_threshold(reference.losses)
    if not jumps:
        return Layer("spikes", True, None, threshold, "none")
    step = min(jumps)
    return Layer(
        "spikes", False, jumps[step], threshold, f"step {step} jumps by {jumps[step]:.1%}, limit {threshold:.1%}"
    )


def first_step_beyond(losses: Mapping[int, float], reference: Mapping[int, float], limit: Limit | None) -> int | None:
    """Return the first common step whose loss differs by more than its limit, or None. Without a limit any does."""
    steps = sorted(losses.keys() & reference.keys())
    beyond = (
        s
        for s in steps
        if limit is None or not relative_difference(losses[s], reference[s]) <= limit_of_place(limit, s)
    )
    return next(beyond, None)


def flagperf_difference(run: TrainingCurve, reference: TrainingCurve) -> float | None:
    """Return FlagPerf's figure: the mean relative difference from step 21 on (limit 2 %).

    None with fewer steps, or where the run lacks one: the others alone would hide where it diverged.
    """
    steps = [s for s in sorted(reference.losses) if s >= FLAGPERF_FIRST_STEP]
    if not steps or any(s not in run.losses for s in steps):
        return None
    return math.fsum(relative_difference(run.losses[s], reference.losses[s]) for s in steps) / len(steps)


def relative_difference(value: float, reference: float) -> float:
    """Return |value - reference| / |reference|. It is infinite for values that are not finite: no limit accepts it."""
    difference = abs(value - reference) / max(abs(reference), 1e-300)
    return difference if math.isfinite(difference) else math.inf


def limit_of_place(limit: Limit, place: Place) -> float:
    """Return the limit of a place. A place without recorded noise has the limit 0."""
    return limit if isinstance(limit, float | int) else limit.get(place, limit.get(None, 0.0))


def _judged_layer(name: str, differences: Sequence[PlacedDifference], limit: Limit | None) -> Layer:
    """Judge a layer by the difference that is the largest part of its limit."""
    if limit is None:
        worst = max(differences, key=lambda d: d.value)
        return Layer(
            name, None, worst.value, None, f"{worst.value:.1e}, no noise recorded to hold it to ({worst.detail})"
        )
    worst = max(differences, key=lambda d: _share_of_limit(d.value, limit_of_place(limit, d.place)))
    allowed = limit_of_place(limit, worst.place)
    text = f"{worst.value:.1e}, limit {allowed:.1e} ({worst.detail})"
    return Layer(name, worst.value <= allowed, worst.value, allowed, text)


def _share_of_limit(value: float, limit: float) -> float:
    """Return value / limit; infinite for any difference where the limit is 0.

    It is 0 for a value within a limit of 1 or more. There noise is as large as the value, as for a key's bias.
    """
    if value <= limit and limit >= 1:
        return 0.0
    return value / limit if limit else (math.inf if value else 0.0)


def _parameter_mismatch(layer: str, ours: Collection[str], theirs: Collection[str]) -> Layer | None:
    """Return the failed layer when only one of the two has some parameter, else None."""
    absent = sorted(set(ours) ^ set(theirs))
    return Layer(layer, False, None, None, f"only one of the two has {absent[0]}") if absent else None


def _single_layer_finding(layer: str, verdict: Verdict, reason: str) -> AlignmentFinding:
    return AlignmentFinding(verdict, reason, (Layer(layer, False, None, None, reason),))

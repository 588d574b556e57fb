"""The routing of a mixture of experts: how many tokens chose each expert, and in which choices two trainings differ.

Counts are by step and layer, over the whole layout. A router takes the best experts. Where two are nearly equal,
rounding decides, and a token takes another expert. From there on two right trainings part, as far as a wrong one does:
nothing after it shows which of them is right. So a run that is compared with a reference follows the reference's
choices (worker/choices.py), and all else is compared as in a dense model. What its routers would have chosen themselves
is compared as choices: rounding changes few of them, and only where the scores are nearly equal.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from levelfield.measure.raw_facts import ComparedChoices, ExpertShare, StepRecord
from levelfield.measure.validity import shorten_reasons
from levelfield.specs.architecture import Experts, Model
from levelfield.specs.case import Window, Work
from levelfield.specs.result import ExpertLoad, LayerLoad
from levelfield.worker.architecture import Model as WorkerModel
from levelfield.worker.job import parse
from levelfield.worker.loop import counted_steps

Counts = tuple[int, ...]
Routing = Mapping[int, Mapping[int, Counts]]  # step, layer, and the tokens of each expert
# A sum over the whole layout is the same number on every rank, except for the last bits of float32.
_AGREEMENT = 1e-6


def sum_expert_shares(shares: Iterable[ExpertShare]) -> dict[int, dict[int, Counts]]:
    """Return the counts by step and layer, summed over the ranks; valid only without `routing_reasons`."""
    counts: dict[int, dict[int, Counts]] = {}
    for share in shares:
        layers = counts.setdefault(share.step, {})
        before = layers.get(share.layer, (0,) * len(share.tokens))
        layers[share.layer] = tuple(a + b for a, b in zip(before, share.tokens, strict=False))
    return {step: dict(sorted(counts[step].items())) for step in sorted(counts)}


def routing_steps(work: Work) -> tuple[int, ...]:
    """Return the steps whose routing a run has to record; none without experts."""
    steps = work.evidence.gradient_steps
    model = parse(WorkerModel, work.model.model_dump(), "model")
    return tuple(sorted(counted_steps(model, work.training.steps, steps)))


def mixture_layers(model: Model) -> list[int]:
    """Return the numbers of the layers that are mixtures."""
    return [layer for layer in range(model.layers) if model.is_mixture(layer)]


def routing_reasons(shares: Sequence[ExpertShare], work: Work) -> list[str]:
    """Check that each mixture's choices are known in each recorded step: tokens of the batch x chosen experts."""
    experts = work.model.experts
    if experts is None:
        return ["a routing was recorded, and the model has no experts"] if shares else []
    reasons = []
    for share in shares:
        where = f"step {share.step}, layer {share.layer}, rank {share.rank}"
        negative = next((tokens for tokens in share.tokens if tokens < 0), None)
        if not (0 <= share.layer < work.model.layers and work.model.is_mixture(share.layer)):
            reasons.append(f"{where}: the layer is no mixture of experts")
        elif len(share.tokens) != experts.count:
            reasons.append(f"{where}: {len(share.tokens)} counts, expected {experts.count}, one for each expert")
        elif negative is not None:
            reasons.append(f"{where}: a count of {negative}, expected 0 or more")
    times = Counter((share.step, share.layer, share.rank) for share in shares)
    reasons += [f"step {s}, layer {y}, rank {r}: recorded {n} times" for (s, y, r), n in times.items() if n > 1]
    if reasons:
        return shorten_reasons(reasons)
    expected, routing = routing_steps(work), sum_expert_shares(shares)
    reasons = [f"step {step}: its routing was not to be recorded" for step in routing if step not in expected]
    choices = work.training.tokens_per_step * experts.chosen
    for step in expected:
        layers = routing.get(step, {})
        for layer in mixture_layers(work.model):
            if (total := sum(layers.get(layer, ()))) != choices:
                reasons.append(f"step {step}, layer {layer}: {total} choices, expected {choices}")
    return shorten_reasons(reasons)


def auxiliary_reasons(records: Sequence[StepRecord], model: Model) -> list[str]:
    """Check that the routers' loss is there, finite and the same on all ranks, where the case has one."""
    router = model.experts.router if model.experts else None
    if router is None or not (router.auxiliary_loss or router.z_loss):
        unexpected = next((r for r in records if r.auxiliary_loss), None)
        return [f"step {unexpected.step}: {unexpected.auxiliary_loss}, and the case has none"] if unexpected else []
    losses_by_step: dict[int, list[float]] = {record.step: [] for record in records}
    for record in records:
        if record.auxiliary_loss is not None:
            losses_by_step[record.step].append(record.auxiliary_loss)
    reasons = []
    for step, values in sorted(losses_by_step.items()):
        invalid = [value for value in values if not (math.isfinite(value) and value >= 0)]
        if not values:
            reasons.append(f"step {step}: no rank reports it")
        elif invalid:
            reasons.append(f"step {step}: it is {invalid[0]}")
        elif not max(values) - min(values) <= _AGREEMENT * max(values):
            reasons.append(f"step {step}: ranks disagree: {min(values)!r} and {max(values)!r}")
    return shorten_reasons(reasons)


def fewest_changed_choices(counts: Counts, others: Counts) -> int:
    """Return how many choices differ at least: half the sum of absolute differences; all where the lengths differ."""
    if len(counts) != len(others):
        return max(sum(counts), sum(others))
    return math.ceil(sum(abs(a - b) for a, b in zip(counts, others, strict=True)) / 2)


@dataclass(frozen=True)
class ChoiceLimits:
    """How many of a run's own choices may differ from the followed ones, and how far."""

    share: float  # the largest part of a step's choices that may differ
    least: int  # as many may differ in any step, however small
    margin: float  # the widest of any token, as a part of its scores' sum
    gates: float  # how far the mean sum of a token's gates may be from a normalised router's, relatively


# In float32; docs/alignment.md has what was measured.
FP32_CHOICE_LIMITS = ChoiceLimits(share=1e-3, least=8, margin=3e-5, gates=3e-7)


class OwnChoices(NamedTuple):
    """What the routers would have chosen themselves in one step."""

    choices: int
    changed: int  # how many of them differ from the followed ones
    margin: float  # the widest of any token
    layer: int  # where that token is
    gates: float = 0.0  # the relative error of the gates' sum, where it is normalised


class RoutingDifference(NamedTuple):
    """The least number of choices in which two runs differ, by their counts."""

    changed: Mapping[int, int]  # by compared step
    choices: int  # in one step
    layer: int | None  # the first layer that differs

    @property
    def first(self) -> int | None:
        """The first step with a changed choice."""
        return next((step for step, number in self.changed.items() if number), None)

    @property
    def sentence(self) -> str:
        """The difference in words, such as `3 of 40,960 choices differ, first at step 17 layer 2`."""
        total = self.choices * len(self.changed)
        where = f", first at step {self.first} layer {self.layer}" if self.first is not None else ""
        return f"{sum(self.changed.values()):,} of {total:,} choices differ{where}"


def routing_difference(run: Routing, reference: Routing) -> RoutingDifference:
    """Return what differs at the steps of both. A layer that only one of the two has differs in all its choices."""
    pairs = {
        (step, layer): fewest_changed_choices(tuple(run[step].get(layer, ())), tuple(reference[step].get(layer, ())))
        for step in sorted(set(run) & set(reference))
        for layer in sorted({*run[step], *reference[step]})
    }
    changed: dict[int, int] = {}
    for (step, _), number in pairs.items():
        changed[step] = changed.get(step, 0) + number
    choices = max((sum(map(sum, reference[step].values())) for step in changed), default=0)
    return RoutingDifference(changed, choices, next((layer for (_, layer), number in pairs.items() if number), None))


def summarise_own_choices(shares: Iterable[ComparedChoices], experts: Experts | None) -> dict[int, OwnChoices]:
    """Return what the ranks recorded of own choices, by step. experts: the model's; its router fixes the gates' sum."""
    gate_sum = experts.router.scale if experts is not None and experts.router.normalised else None
    steps: dict[int, OwnChoices] = {}
    for share in sorted(shares, key=lambda share: (share.step, share.layer, share.rank)):
        before = steps.get(share.step, OwnChoices(0, 0, 0.0, share.layer))
        is_wider = not share.margin <= before.margin  # NaN is wider than all
        gate_error = 0.0 if gate_sum is None else abs(share.followed_gate_sum / gate_sum - 1)
        steps[share.step] = OwnChoices(
            before.choices + share.choices,
            before.changed + share.changed,
            share.margin if is_wider else before.margin,
            share.layer if is_wider else before.layer,
            before.gates if gate_error <= before.gates else gate_error,
        )
    return steps


class ChoiceFinding(NamedTuple):
    """The judgement of own choices."""

    passed: bool
    value: float  # the figure that decides
    limit: float
    detail: str


def judge_own_choices(choices: Mapping[int, OwnChoices], limits: ChoiceLimits | None) -> ChoiceFinding:
    """Judge what the run's routers would have chosen themselves. limits: None where rounding decides many choices."""
    changed, total = sum(step.changed for step in choices.values()), sum(step.choices for step in choices.values())
    text = f"the reference's choices were followed; {changed:,} of {total:,} own ones differ"
    if limits is None:
        return ChoiceFinding(True, 0.0, math.inf, f"{text}; not judged in this precision")
    gate_step = max(choices, key=lambda step: _infinite_unless_finite(choices[step].gates), default=1)
    if choices and not choices[gate_step].gates <= limits.gates:
        text += f"; gates are off by {choices[gate_step].gates:.1e} at step {gate_step}, limit {limits.gates:.0e}"
        return ChoiceFinding(False, choices[gate_step].gates, limits.gates, text)
    if not changed:
        return ChoiceFinding(True, 0.0, limits.margin, text)
    margin_step = max(choices, key=lambda step: _infinite_unless_finite(choices[step].margin))
    changed_step = max(
        choices, key=lambda step: choices[step].changed / most_changed_choices(limits, choices[step].choices)
    )
    margin, number, most_allowed = (
        choices[margin_step].margin,
        choices[changed_step].changed,
        most_changed_choices(limits, choices[changed_step].choices),
    )
    place = f"step {margin_step} layer {choices[margin_step].layer}"
    text += f", the widest margin {margin:.1e} at {place}, limit {limits.margin:.0e}"
    if number > most_allowed:
        text += f"; most at step {changed_step}: {number:,}, limit {most_allowed:,.0f}"
    return ChoiceFinding(margin <= limits.margin and number <= most_allowed, margin, limits.margin, text)


def choice_reasons(
    shares: Sequence[ComparedChoices],
    choices_digests: Mapping[int, str | None],
    layers: Sequence[int],
    steps: int,
    choices: int,
) -> list[str]:
    """Check what the ranks recorded of own choices: each of `layers` in each step, with all `choices` once."""
    if len(set(choices_digests.values())) > 1:
        return ["ranks follow different choices"]
    if not any(choices_digests.values()):
        return [f"own choices were compared, and rank {shares[0].rank} follows none"] if shares else []
    totals: dict[tuple[int, int], int] = {}
    seen = set()
    for share in shares:
        if (share.step, share.layer, share.rank) in seen:
            return [f"step {share.step}, layer {share.layer}, rank {share.rank}: recorded twice"]
        if share.changed < 0 or not share.margin >= 0 or not math.isfinite(share.followed_gate_sum):
            figures = f"{share.changed} changed, margin {share.margin}, gates {share.followed_gate_sum}"
            return [f"step {share.step}, layer {share.layer}: {figures}"]
        seen.add((share.step, share.layer, share.rank))
        totals[share.step, share.layer] = totals.get((share.step, share.layer), 0) + share.choices
    expected = {(step, layer): choices for step in range(1, steps + 1) for layer in layers}
    return [
        f"step {step}, layer {layer}: {totals.get((step, layer), 0)} own choices, "
        f"expected {expected.get((step, layer), 0)}"
        for step, layer in sorted({*totals, *expected})
        if totals.get((step, layer), 0) != expected.get((step, layer), 0)
    ][:5]


def most_changed_choices(limits: ChoiceLimits, choices: int) -> float:
    """Return how many of `choices` choices rounding changes at most."""
    return max(limits.least, limits.share * choices)


def _infinite_unless_finite(value: float) -> float:
    return value if math.isfinite(value) else math.inf


def expert_load(routing: Routing, auxiliary: Mapping[int, float], window: Window) -> ExpertLoad | None:
    """Return the load over the recorded steps of the window, or over all where none lies in it. None without any."""
    if not routing:
        return None
    window_steps = [step for step in routing if window.first_step <= step <= window.last_step]
    measured_steps, last_step = window_steps or sorted(routing), max(routing)
    layers = []
    for layer in sorted(routing[last_step]):
        counts = _summed_counts(routing[step][layer] for step in measured_steps)
        total = sum(counts)
        layers.append(
            LayerLoad(
                layer=layer,
                least=min(counts) / total,
                mean=1 / len(counts),
                largest=max(counts) / total,
                imbalance=_imbalance(counts),
                imbalance_last=_imbalance(routing[last_step][layer]),
                never_chosen=_summed_counts(routing[step][layer] for step in routing).count(0),
            )
        )
    return ExpertLoad(
        over="window" if window_steps else "warm-up",
        steps=len(measured_steps),
        imbalance=max(layer.imbalance for layer in layers),
        imbalance_last=max(layer.imbalance_last for layer in layers),
        never_chosen=sum(layer.never_chosen for layer in layers),
        layers=tuple(layers),
        auxiliary_first=auxiliary[min(auxiliary)] if auxiliary else None,
        auxiliary_last=auxiliary[max(auxiliary)] if auxiliary else None,
    )


def _imbalance(counts: Counts) -> float:
    """Return the largest load over the mean load."""
    return max(counts) * len(counts) / sum(counts)


def _summed_counts(parts: Iterable[Counts]) -> Counts:
    return tuple(map(sum, zip(*parts, strict=True)))

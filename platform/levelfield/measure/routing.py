"""The routing of a mixture of experts: how many tokens chose each expert, and the choices that differ of two trainings.

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
from levelfield.measure.validity import shortened
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


def routing_of(shares: Iterable[ExpertShare]) -> dict[int, dict[int, Counts]]:
    """Return the counts by step and layer: the sums over the ranks. They need shares without `routing_reasons`."""
    counts: dict[int, dict[int, Counts]] = {}
    for share in shares:
        layers = counts.setdefault(share.step, {})
        before = layers.get(share.layer, (0,) * len(share.tokens))
        layers[share.layer] = tuple(a + b for a, b in zip(before, share.tokens, strict=False))
    return {step: dict(sorted(counts[step].items())) for step in sorted(counts)}


def recorded_steps(work: Work) -> tuple[int, ...]:
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
        return shortened(reasons)
    expected, routing = recorded_steps(work), routing_of(shares)
    reasons = [f"step {step}: its routing was not to be recorded" for step in routing if step not in expected]
    choices = work.training.tokens_per_step * experts.chosen
    for step in expected:
        layers = routing.get(step, {})
        for layer in mixture_layers(work.model):
            if (total := sum(layers.get(layer, ()))) != choices:
                reasons.append(f"step {step}, layer {layer}: {total} choices, expected {choices}")
    return shortened(reasons)


def auxiliary_reasons(records: Sequence[StepRecord], model: Model) -> list[str]:
    """Check that the routers' loss is there, finite and the same on all ranks, where the case has one."""
    router = model.experts.router if model.experts else None
    if router is None or not (router.auxiliary_loss or router.z_loss):
        strange = next((r for r in records if r.auxiliary_loss), None)
        return [f"step {strange.step}: {strange.auxiliary_loss}, and the case has none"] if strange else []
    by_step: dict[int, list[float]] = {record.step: [] for record in records}
    for record in records:
        if record.auxiliary_loss is not None:
            by_step[record.step].append(record.auxiliary_loss)
    reasons = []
    for step, values in sorted(by_step.items()):
        bad = [value for value in values if not (math.isfinite(value) and value >= 0)]
        if not values:
            reasons.append(f"step {step}: no rank reports it")
        elif bad:
            reasons.append(f"step {step}: it is {bad[0]}")
        elif not max(values) - min(values) <= _AGREEMENT * max(values):
            reasons.append(f"step {step}: ranks disagree: {min(values)!r} and {max(values)!r}")
    return shortened(reasons)


def changed_choices(counts: Counts, others: Counts) -> int:
    """Return how many choices differ at least: half the sum of the absolute differences; all for other lengths."""
    if len(counts) != len(others):
        return max(sum(counts), sum(others))
    return math.ceil(sum(abs(a - b) for a, b in zip(counts, others, strict=True)) / 2)


@dataclass(frozen=True)
class ChoiceLimits:
    """How many own choices may differ from the followed ones, and how far."""

    share: float  # of a step's choices
    least: int  # so many may differ in any step
    margin: float  # the widest of a token, as a part of its scores' sum
    gates: float  # how far the mean sum of a token's gates may be from a normalised router's, relatively


# In float32; docs/alignment.md has what was measured.
IN_FLOAT32 = ChoiceLimits(share=1e-3, least=8, margin=3e-5, gates=3e-7)


class OwnChoices(NamedTuple):
    """What the routers would have chosen themselves in one step."""

    choices: int
    changed: int  # of them, those that differ from the followed ones
    margin: float  # the widest of a token
    layer: int  # of that token
    gates: float = 0.0  # how far they are off, relatively, where they are normalised


class Rerouting(NamedTuple):
    """The least number of choices in which two runs differ, by their counts."""

    changed: Mapping[int, int]  # by compared step
    choices: int  # of one step
    layer: int | None  # the first that differs

    @property
    def first(self) -> int | None:
        """The first step with a changed choice."""
        return next((step for step, number in self.changed.items() if number), None)

    @property
    def sentence(self) -> str:
        """`3 of 40,960 choices differ, first at step 17 layer 2`."""
        whole = self.choices * len(self.changed)
        where = f", first at step {self.first} layer {self.layer}" if self.first is not None else ""
        return f"{sum(self.changed.values()):,} of {whole:,} choices differ{where}"


def rerouting(run: Routing, reference: Routing) -> Rerouting:
    """Return what differs at the steps of both. A layer that only one of the two has differs in all its choices."""
    pairs = {
        (step, layer): changed_choices(tuple(run[step].get(layer, ())), tuple(reference[step].get(layer, ())))
        for step in sorted(set(run) & set(reference))
        for layer in sorted({*run[step], *reference[step]})
    }
    changed: dict[int, int] = {}
    for (step, _), number in pairs.items():
        changed[step] = changed.get(step, 0) + number
    choices = max((sum(map(sum, reference[step].values())) for step in changed), default=0)
    return Rerouting(changed, choices, next((layer for (_, layer), number in pairs.items() if number), None))


def own_choices(shares: Iterable[ComparedChoices], experts: Experts | None) -> dict[int, OwnChoices]:
    """Return what the ranks recorded, by step. experts: the model's, whose router says what gates add up to."""
    total = experts.router.scale if experts is not None and experts.router.normalised else None
    steps: dict[int, OwnChoices] = {}
    for share in sorted(shares, key=lambda share: (share.step, share.layer, share.rank)):
        before = steps.get(share.step, OwnChoices(0, 0, 0.0, share.layer))
        wider = not share.margin <= before.margin  # NaN is wider than all
        off = 0.0 if total is None else abs(share.gates / total - 1)
        steps[share.step] = OwnChoices(
            before.choices + share.choices,
            before.changed + share.changed,
            share.margin if wider else before.margin,
            share.layer if wider else before.layer,
            before.gates if off <= before.gates else off,
        )
    return steps


class ChoiceFinding(NamedTuple):
    """The judgement of own choices."""

    passed: bool
    value: float  # what is the largest part of its limit
    limit: float
    detail: str


def choice_finding(choices: Mapping[int, OwnChoices], limits: ChoiceLimits | None) -> ChoiceFinding:
    """Judge what the run's routers would have chosen themselves. limits: None where rounding decides many choices."""
    changed, whole = sum(step.changed for step in choices.values()), sum(step.choices for step in choices.values())
    text = f"the reference's choices were followed; {changed:,} of {whole:,} own ones differ"
    if limits is None:
        return ChoiceFinding(True, 0.0, math.inf, f"{text}; not judged in this precision")
    off = max(choices, key=lambda step: _infinite(choices[step].gates), default=1)
    if choices and not choices[off].gates <= limits.gates:
        text += f"; gates are off by {choices[off].gates:.1e} at step {off}, limit {limits.gates:.0e}"
        return ChoiceFinding(False, choices[off].gates, limits.gates, text)
    if not changed:
        return ChoiceFinding(True, 0.0, limits.margin, text)
    wide = max(choices, key=lambda step: _infinite(choices[step].margin))
    many = max(choices, key=lambda step: choices[step].changed / most_changed(limits, choices[step].choices))
    margin, number, most = choices[wide].margin, choices[many].changed, most_changed(limits, choices[many].choices)
    text += f", the widest margin {margin:.1e} at step {wide} layer {choices[wide].layer}, limit {limits.margin:.0e}"
    if number > most:
        text += f"; most at step {many}: {number:,}, limit {most:,.0f}"
    return ChoiceFinding(margin <= limits.margin and number <= most, margin, limits.margin, text)


def choice_reasons(
    shares: Sequence[ComparedChoices],
    follows: Mapping[int, str | None],
    layers: Sequence[int],
    steps: int,
    choices: int,
) -> list[str]:
    """Check what the ranks recorded of own choices: each of `layers` in each step, with all `choices` once."""
    if len(set(follows.values())) > 1:
        return ["ranks follow different choices"]
    if not any(follows.values()):
        return [f"own choices were compared, and rank {shares[0].rank} follows none"] if shares else []
    totals: dict[tuple[int, int], int] = {}
    seen = set()
    for share in shares:
        if (share.step, share.layer, share.rank) in seen:
            return [f"step {share.step}, layer {share.layer}, rank {share.rank}: recorded twice"]
        if share.changed < 0 or not share.margin >= 0 or not math.isfinite(share.gates):
            figures = f"{share.changed} changed, margin {share.margin}, gates {share.gates}"
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


def most_changed(limits: ChoiceLimits, choices: int) -> float:
    """Return how many of so many choices rounding changes at most."""
    return max(limits.least, limits.share * choices)


def _infinite(value: float) -> float:
    return value if math.isfinite(value) else math.inf


def expert_load(routing: Routing, auxiliary: Mapping[int, float], window: Window) -> ExpertLoad | None:
    """Return the load over the recorded steps of the window, or over all where none lies in it. None without any."""
    if not routing:
        return None
    inside = [step for step in routing if window.first_step <= step <= window.last_step]
    over, last = inside or sorted(routing), max(routing)
    layers = []
    for layer in sorted(routing[last]):
        counts = _added(routing[step][layer] for step in over)
        total = sum(counts)
        layers.append(
            LayerLoad(
                layer=layer,
                least=min(counts) / total,
                mean=1 / len(counts),
                largest=max(counts) / total,
                imbalance=_imbalance(counts),
                imbalance_last=_imbalance(routing[last][layer]),
                never_chosen=_added(routing[step][layer] for step in routing).count(0),
            )
        )
    return ExpertLoad(
        over="window" if inside else "warm-up",
        steps=len(over),
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


def _added(parts: Iterable[Counts]) -> Counts:
    return tuple(map(sum, zip(*parts, strict=True)))

"""The choices of experts that differ between two trainings of a mixture.

A router takes the best experts. Where two are nearly equal, rounding decides, and a token takes another expert. From
there on two right trainings part, as far as a wrong one does: nothing after it shows which of them is right. So a run
that is compared with a reference follows the reference's choices (worker/choices.py), and all else is compared as in a
dense model. What its routers would have chosen themselves is compared as choices: rounding changes few of them, and
only where the scores are nearly equal.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from levelfield.measure.raw_facts import ComparedChoices
from levelfield.measure.routing import Routing, changed_choices
from levelfield.specs.architecture import Experts


@dataclass(frozen=True)
class ChoiceLimits:
    """What is accepted of own choices that differ. share, least: of a step's choices, and the number that always may.
    margin: the widest margin of a token, as a part of its scores' sum. gates: how far the mean sum of a token's gates
    may be from what a normalised router gives, relatively."""

    share: float
    least: int
    margin: float
    gates: float


# In float32; docs/alignment.md has what was measured.
IN_FLOAT32 = ChoiceLimits(share=1e-3, least=8, margin=3e-5, gates=3e-7)


class OwnChoices(NamedTuple):
    """Of one step: how many choices there are, how many own ones differ from the followed ones, the widest margin of a
    token and the layer of it; how far the gates are off, relatively, where they are normalised."""

    choices: int
    changed: int
    margin: float
    layer: int
    gates: float = 0.0


class Rerouting(NamedTuple):
    """Of the counts of two runs. changed: choices that differ at least, by compared step. choices: of one step.
    layer: the first that differs."""

    changed: Mapping[int, int]
    choices: int
    layer: int | None

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

    def beyond(self, limits: ChoiceLimits) -> bool:
        """Return whether more choices differ in the first such step than rounding changes."""
        return self.first is not None and self.changed[self.first] > _most(limits, self.choices)


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
    found: dict[int, OwnChoices] = {}
    for share in sorted(shares, key=lambda each: (each.step, each.layer, each.rank)):
        before = found.get(share.step, OwnChoices(0, 0, 0.0, share.layer))
        wider = not share.margin <= before.margin  # NaN is wider than all
        off = 0.0 if total is None else abs(share.gates / total - 1)
        found[share.step] = OwnChoices(
            before.choices + share.choices,
            before.changed + share.changed,
            share.margin if wider else before.margin,
            share.layer if wider else before.layer,
            before.gates if off <= before.gates else off,
        )
    return found


class ChoiceFinding(NamedTuple):
    """The judgement of own choices. value, limit: of what is the largest part of its limit."""

    passed: bool
    value: float
    limit: float
    detail: str


def judged_choices(own: Mapping[int, OwnChoices], limits: ChoiceLimits | None) -> ChoiceFinding:
    """Judge what the run's routers would have chosen themselves. limits: None where rounding decides many choices."""
    changed, whole = sum(each.changed for each in own.values()), sum(each.choices for each in own.values())
    text = f"the reference's choices were followed; {changed:,} of {whole:,} own ones differ"
    if limits is None:
        return ChoiceFinding(True, 0.0, math.inf, f"{text}; not judged in this precision")
    off = max(own, key=lambda step: _infinite(own[step].gates), default=1)
    if own and not own[off].gates <= limits.gates:
        text += f"; gates are off by {own[off].gates:.1e} at step {off}, limit {limits.gates:.0e}"
        return ChoiceFinding(False, own[off].gates, limits.gates, text)
    if not changed:
        return ChoiceFinding(True, 0.0, limits.margin, text)
    wide = max(own, key=lambda step: _infinite(own[step].margin))
    many = max(own, key=lambda step: own[step].changed / _most(limits, own[step].choices))
    margin, number, most = own[wide].margin, own[many].changed, _most(limits, own[many].choices)
    text += f", the widest margin {margin:.1e} at step {wide} layer {own[wide].layer}, limit {limits.margin:.0e}"
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
    found: dict[tuple[int, int], int] = {}
    seen = set()
    for share in shares:
        if (share.step, share.layer, share.rank) in seen:
            return [f"step {share.step}, layer {share.layer}, rank {share.rank}: recorded twice"]
        if share.changed < 0 or not share.margin >= 0 or not math.isfinite(share.gates):
            figures = f"{share.changed} changed, margin {share.margin}, gates {share.gates}"
            return [f"step {share.step}, layer {share.layer}: {figures}"]
        seen.add((share.step, share.layer, share.rank))
        found[share.step, share.layer] = found.get((share.step, share.layer), 0) + share.choices
    expected = {(step, layer): choices for step in range(1, steps + 1) for layer in layers}
    return [
        f"step {step}, layer {layer}: {found.get((step, layer), 0)} own choices, "
        f"expected {expected.get((step, layer), 0)}"
        for step, layer in sorted({*found, *expected})
        if found.get((step, layer), 0) != expected.get((step, layer), 0)
    ][:5]


def _most(limits: ChoiceLimits, choices: int) -> float:
    return max(limits.least, limits.share * choices)


def _infinite(value: float) -> float:
    return value if math.isfinite(value) else math.inf

"""The choices of experts that differ between two runs of a mixture, and what they explain of other differences.

A router takes the best experts. Where two are nearly equal, rounding decides, and a token jumps to another expert. Its
loss jumps, and so do the gradients of both experts. In the warm-up Adam makes whole steps of small gradients, so the
two runs part for good: many choices differ from then on. How far they part depends on when, and little on the cause
(docs/alignment.md). So a run is held to the noise up to the first changed choice, and to wider limits from there.
Rounding changes single choices at first; a fault changes many at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from levelfield.measure.routing import Routing, changed_choices


@dataclass(frozen=True)
class RoutingLimits:
    """What is accepted of a run whose choices of experts differ.

    first, least: the share of a step's choices that may differ in the first such step, and the number that always may.
    later: the share in each later step. curve, gradient, weights: relative differences from the first such step on.
    """

    first: float
    least: int
    later: float
    curve: float
    gradient: float
    weights: float


# In float32. Measured on two small mixtures: docs/alignment.md has the numbers; these are about five times as large.
IN_FLOAT32 = RoutingLimits(first=1e-3, least=8, later=0.1, curve=1e-3, gradient=0.2, weights=0.2)


class Rerouting(NamedTuple):
    """changed: choices that differ at least, by compared step. choices: of one step. layer: the first that differs."""

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


def worst_step(found: Rerouting, limits: RoutingLimits) -> tuple[int, int, float]:
    """Return the step with the largest part of its limit, its changed choices, and the limit."""
    first = found.first
    allowed = {
        step: max(limits.least, (limits.later if first is not None and step > first else limits.first) * found.choices)
        for step in found.changed
    }
    step = max(found.changed, key=lambda each: found.changed[each] / allowed[each])
    return step, found.changed[step], allowed[step]

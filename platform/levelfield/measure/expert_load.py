"""The load of each expert of a mixture, from the counts of its routing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from levelfield.measure.routing import Counts, Routing
from levelfield.specs.case import Window
from levelfield.specs.result import ExpertLoad, LayerLoad


def expert_load(routing: Routing, auxiliary: Mapping[int, float], window: Window) -> ExpertLoad | None:
    """Return the load over the recorded steps of the window, or over all where none lies in it. None without any."""
    if not routing:
        return None
    inside = [step for step in routing if window.first_step <= step <= window.last_step]
    over, last = inside or sorted(routing), max(routing)
    layers = tuple(_layer_load(layer, routing, over, last) for layer in sorted(routing[last]))
    return ExpertLoad(
        over="window" if inside else "warm-up",
        steps=len(over),
        imbalance=max(each.imbalance for each in layers),
        imbalance_last=max(each.imbalance_last for each in layers),
        never_chosen=sum(each.never_chosen for each in layers),
        layers=layers,
        auxiliary_first=auxiliary[min(auxiliary)] if auxiliary else None,
        auxiliary_last=auxiliary[max(auxiliary)] if auxiliary else None,
    )


def _layer_load(layer: int, routing: Routing, over: Sequence[int], last: int) -> LayerLoad:
    counts = _added(routing[step][layer] for step in over)
    ever = _added(routing[step][layer] for step in routing)
    total = sum(counts)
    return LayerLoad(
        layer=layer,
        least=min(counts) / total,
        mean=1 / len(counts),
        largest=max(counts) / total,
        imbalance=_imbalance(counts),
        imbalance_last=_imbalance(routing[last][layer]),
        never_chosen=ever.count(0),
    )


def _imbalance(counts: Counts) -> float:
    """Return the largest load over the mean load."""
    return max(counts) * len(counts) / sum(counts)


def _added(parts: Iterable[Counts]) -> Counts:
    return tuple(map(sum, zip(*parts, strict=True)))

"""The final weights of a run by parameter: their norms and their projections, from the slices of all ranks.

A parameter's figures are [norm, projections...]. The ranks report sums over slices (worker/sketch.py). They add up over
disjoint slices, so the figures are the same in every layout.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from levelfield.measure.raw_facts import FinalSlice, WeightSlice
from levelfield.measure.weights import weight_reasons
from levelfield.specs.case import Work
from levelfield.specs.layout import Layout

# Replicas make the same steps. A part that was left out of an all-reduce moves them apart by about one update.
REPLICAS_AGREE = 1e-3

Figures = tuple[float, ...]


def final_weights(slices: Iterable[FinalSlice]) -> dict[str, Figures]:
    """Return [norm, projections...] of each parameter. It has a meaning only for slices without reasons."""
    boxes = {(s.name, s.slices): s for s in slices}
    found: dict[str, list[Figures]] = {}
    for piece in boxes.values():
        found.setdefault(piece.name, []).append(piece.sums)
    return {name: _figures(list(zip(*found[name], strict=False))) for name in sorted(found)}


def final_weight_reasons(slices: Sequence[FinalSlice], work: Work, layout: Layout) -> list[str]:
    """Check that the slices tile every parameter, and that ranks with the same slice agree.

    A run without final weights passes, because older ones did not record them.
    """
    if not slices:
        return []
    boxes = (WeightSlice(s.rank, s.name, s.shape, s.slices, checksum=0) for s in slices)
    return weight_reasons(boxes, work, layout) + _replica_reasons(slices)


def _replica_reasons(slices: Sequence[FinalSlice]) -> list[str]:
    first: dict[tuple[str, tuple[tuple[int, int], ...]], FinalSlice] = {}
    for piece in slices:
        other = first.setdefault((piece.name, piece.slices), piece)
        if not _distance(piece.sums, other.sums) <= REPLICAS_AGREE:
            return [f"{piece.name}: ranks {other.rank} and {piece.rank} hold different values of {piece.slices}"]
    return []


def _distance(sums: Figures, other: Figures) -> float:
    """Return the largest difference of two slices' figures, relative to the norm; infinite if not comparable."""
    if len(sums) != len(other) or not sums:
        return math.inf
    ours, theirs = _figures([(x,) for x in sums]), _figures([(x,) for x in other])
    worst = max(abs(a - b) for a, b in zip(ours, theirs, strict=True)) if _finite((*ours, *theirs)) else math.inf
    return worst / max(theirs[0], 1e-300) if worst else 0.0


def _figures(columns: Sequence[Sequence[float]]) -> Figures:
    """Return the root of the first column's sum, and the other columns' sums; NaN for sums that are not finite."""
    totals = [sum(column) if _finite(column) else math.nan for column in columns]
    norm = math.sqrt(totals[0]) if totals[0] >= 0 else math.nan
    return (norm, *totals[1:])


def _finite(values: Iterable[float]) -> bool:
    return all(map(math.isfinite, values))

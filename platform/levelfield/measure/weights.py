"""Checks of weights: the slices of all ranks form the whole model exactly once, up to equal replicas."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from levelfield.measure.parameter_counts import parameter_shapes
from levelfield.measure.raw_facts import CHECKSUM_MODULUS, WeightSlice
from levelfield.specs.case import Work
from levelfield.specs.layout import Layout

_MOST_RANKS = 1_000  # that reasons name
Box = tuple[tuple[int, int], ...]


def weight_reasons(slices: Iterable[WeightSlice], work: Work, layout: Layout) -> list[str]:
    """Check that the slices tile every parameter of the model exactly once, up to equal replicas, and no other.

    A rank may hold no slice of a parameter, or an empty one. Every rank of the layout must report.
    """
    kept = tuple(slices)
    expected = parameter_shapes(work.model, work.training.sequence_length)
    found = _by_name(kept)
    silent = sorted(set(range(layout.world_size)) - {s.rank for s in kept})
    reasons = [f"rank {rank} reports no weights" for rank in silent[:_MOST_RANKS]]
    reasons += [f"and {len(silent) - _MOST_RANKS} more ranks"] if len(silent) > _MOST_RANKS else []
    reasons += [f"{name}: not reported by any rank" for name in expected if name not in found]
    for name, own in found.items():
        reasons += [f"{name}: {reason}" for reason in _parameter_reasons(own, expected.get(name))]
    return reasons


def weight_checksums(slices: Iterable[WeightSlice]) -> dict[str, int]:
    """Return the checksum of each whole parameter: the sum of its distinct boxes modulo 2**64.

    It is the same in every layout. It has a meaning only for slices without `weight_reasons`.
    """
    return {name: sum(_distinct(own).values()) % CHECKSUM_MODULUS for name, own in _by_name(slices).items()}


def _by_name(slices: Iterable[WeightSlice]) -> dict[str, list[WeightSlice]]:
    found: dict[str, list[WeightSlice]] = {}
    for piece in slices:
        found.setdefault(piece.name, []).append(piece)
    return {name: found[name] for name in sorted(found)}


def _parameter_reasons(own: Sequence[WeightSlice], shape: tuple[int, ...] | None) -> list[str]:
    if shape is None:
        return ["the model has no such parameter"]
    wrong = [s for s in own if s.shape != shape or not _inside(s.slices, shape)]
    if wrong:
        first = wrong[0]
        return [f"rank {first.rank} holds {first.slices} of {first.shape}, the parameter is {shape}"]
    return _replica_reasons(own) + _tiling_reasons(list(_distinct(own)), shape)


def _inside(box: Box, shape: tuple[int, ...]) -> bool:
    return len(box) == len(shape) and all(
        0 <= start <= stop <= size for (start, stop), size in zip(box, shape, strict=True)
    )


def _replica_reasons(own: Sequence[WeightSlice]) -> list[str]:
    first = {s.slices: s for s in reversed(own)}
    unlike = [(first[s.slices], s) for s in own if s.checksum != first[s.slices].checksum]
    return [f"ranks {a.rank} and {b.rank} hold different values of {b.slices}" for a, b in unlike[:1]]


def _tiling_reasons(boxes: Sequence[Box], shape: tuple[int, ...]) -> list[str]:
    if pair := _overlap(boxes):
        return [f"slices {pair[0]} and {pair[1]} overlap"]
    held, whole = sum(map(_volume, boxes)), math.prod(shape)
    return [] if held == whole else [f"{held} of {whole} values are held by some rank"]


def _overlap(boxes: Sequence[Box]) -> tuple[Box, Box] | None:
    """Return two different boxes with a common value, if any. Each box is compared with all later boxes at once."""
    bounds = np.array(boxes, dtype=np.int64).reshape(len(boxes), -1, 2)
    starts, stops = bounds[..., 0], bounds[..., 1]
    for i in range(len(boxes) - 1):
        common = (starts[i + 1 :] < stops[i]) & (starts[i] < stops[i + 1 :])
        hits = np.flatnonzero(common.all(axis=1))
        if len(hits):
            return boxes[i], boxes[i + 1 + int(hits[0])]
    return None


def _distinct(own: Sequence[WeightSlice]) -> dict[Box, int]:
    """Return each distinct box that is not empty, with its checksum."""
    return {s.slices: s.checksum for s in own if _volume(s.slices)}


def _volume(box: Box) -> int:
    return math.prod(stop - start for start, stop in box)

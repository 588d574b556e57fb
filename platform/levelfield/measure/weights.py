"""The parameters of a run over the whole layout: initial weights, gradient norms and final weights, and their checks.

The slices of all ranks form the whole model exactly once, up to equal replicas. The figures of a parameter's final
weights are [norm, projections...]. The ranks report sums over slices (worker/sketch.py), which add up over disjoint
slices, so the figures are the same in every layout.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from levelfield.measure.parameter_counts import parameter_shapes
from levelfield.measure.raw_facts import (
    CHECKSUM_MODULUS,
    FinalSlice,
    GradientShare,
    StepRecord,
    WeightSlice,
    group_sorted,
)
from levelfield.specs.case import Window, Work
from levelfield.specs.layout import Layout

_MAX_LISTED_RANKS = 1_000  # in reasons
Box = tuple[tuple[int, int], ...]
# Relative. Replicas make the same steps; one that was left out of an all-reduce is off by about one update.
REPLICA_TOLERANCE = 1e-3
WeightFigures = tuple[float, ...]
# Relative. The framework computes the whole gradient's norm in its own order and precision.
NORM_TOLERANCE = 1e-3
# A key's bias shifts all scores of a query alike, so its gradient is rounding alone. Adam makes steps of full size from
# rounding above its eps, as on an H100, and hardly any from less, as on a processor. So rows of one device say nothing
# of another: a right run's final norm was 12 times the reference's. With rotary positions its gradient is a real one.
KEY_BIAS = "attention.key.bias"
WHOLE_GRADIENT = "the whole gradient"  # beside the groups of parameters, in norms of the window
Norms = dict[int, dict[str, float]]


def weight_reasons(slices: Iterable[WeightSlice], work: Work, layout: Layout) -> list[str]:
    """Check that the slices tile every parameter of the model exactly once, up to equal replicas, and no other.

    A rank may hold no slice of a parameter, or an empty one. Every rank of the layout must report.
    """
    pieces = tuple(slices)
    expected = parameter_shapes(work.model, work.training.sequence_length)
    parameters = group_sorted(pieces, lambda piece: piece.name)
    missing_ranks = sorted(set(range(layout.world_size)) - {piece.rank for piece in pieces})
    reasons = [f"rank {rank} reports no weights" for rank in missing_ranks[:_MAX_LISTED_RANKS]]
    if len(missing_ranks) > _MAX_LISTED_RANKS:
        reasons.append(f"and {len(missing_ranks) - _MAX_LISTED_RANKS} more ranks")
    reasons += [f"{name}: not reported by any rank" for name in expected if name not in parameters]
    for name, parts in parameters.items():
        reasons += [f"{name}: {reason}" for reason in _parameter_reasons(parts, expected.get(name))]
    return reasons


def weight_checksums(slices: Iterable[WeightSlice]) -> dict[str, int]:
    """Return the checksum of each whole parameter: the sum of its distinct boxes modulo 2**64.

    It is the same in every layout. It has a meaning only for slices without `weight_reasons`.
    """
    parameters = group_sorted(slices, lambda piece: piece.name)
    return {name: sum(_box_checksums(parts).values()) % CHECKSUM_MODULUS for name, parts in parameters.items()}


def _parameter_reasons(slices: Sequence[WeightSlice], shape: tuple[int, ...] | None) -> list[str]:
    """Return how the slices of one parameter fail to tile it; shape: None for a parameter that the model lacks."""
    if shape is None:
        return ["the model has no such parameter"]
    for piece in slices:
        is_within = len(piece.slices) == len(shape) and all(
            0 <= start <= stop <= size for (start, stop), size in zip(piece.slices, shape, strict=True)
        )
        if piece.shape != shape or not is_within:
            return [f"rank {piece.rank} holds {piece.slices} of {piece.shape}, the parameter is {shape}"]
    first_pieces = {piece.slices: piece for piece in reversed(slices)}
    conflicting = [piece for piece in slices if piece.checksum != first_pieces[piece.slices].checksum][:1]
    reasons = [
        f"ranks {first_pieces[p.slices].rank} and {p.rank} hold different values of {p.slices}" for p in conflicting
    ]
    boxes, size = list(_box_checksums(slices)), math.prod(shape)
    if pair := _overlap(boxes):
        return [*reasons, f"slices {pair[0]} and {pair[1]} overlap"]
    count = sum(map(_volume, boxes))
    return [*reasons, *([f"{count} of {size} values are held by some rank"] if count != size else [])]


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


def _box_checksums(slices: Sequence[WeightSlice]) -> dict[Box, int]:
    """Return each distinct box that is not empty, with its checksum."""
    return {piece.slices: piece.checksum for piece in slices if _volume(piece.slices)}


def _volume(box: Box) -> int:
    return math.prod(stop - start for start, stop in box)


def final_weights(slices: Iterable[FinalSlice]) -> dict[str, WeightFigures]:
    """Return [norm, projections...] of each parameter. It has a meaning only for slices without reasons."""
    boxes = {(piece.name, piece.slices): piece for piece in slices}
    parameters = group_sorted(boxes.values(), lambda piece: piece.name)
    return {
        name: _norm_and_projections(list(zip(*(part.sums for part in parts), strict=False)))
        for name, parts in parameters.items()
    }


def final_weight_reasons(slices: Sequence[FinalSlice], work: Work, layout: Layout) -> list[str]:
    """Check that the slices tile every parameter, and that ranks with the same slice agree.

    A run without final weights passes, because older ones did not record them.
    """
    if not slices:
        return []
    reasons = weight_reasons((WeightSlice(s.rank, s.name, s.shape, s.slices, checksum=0) for s in slices), work, layout)
    first_pieces: dict[tuple[str, Box], FinalSlice] = {}
    for piece in slices:
        other = first_pieces.setdefault((piece.name, piece.slices), piece)
        difference = math.inf  # the largest difference of the figures, relative to the norm
        if piece.sums and len(piece.sums) == len(other.sums):
            ours, theirs = (_norm_and_projections([(x,) for x in sums]) for sums in (piece.sums, other.sums))
            if all(map(math.isfinite, (*ours, *theirs))):
                largest = max(abs(a - b) for a, b in zip(ours, theirs, strict=True))
                difference = largest / max(theirs[0], 1e-300)
        if not difference <= REPLICA_TOLERANCE:
            ranks = f"ranks {other.rank} and {piece.rank}"
            return [*reasons, f"{piece.name}: {ranks} hold different values of {piece.slices}"]
    return reasons


def _norm_and_projections(columns: Sequence[Sequence[float]]) -> WeightFigures:
    """Return the square root of the first column's sum, and the other sums; NaN for a column that is not finite."""
    totals = [sum(column) if all(map(math.isfinite, column)) else math.nan for column in columns]
    norm = math.sqrt(totals[0]) if totals[0] >= 0 else math.nan
    return (norm, *totals[1:])


def gradient_norms(shares: Iterable[GradientShare]) -> Norms:
    """Return norms by step and canonical name: the root of the sum of all ranks' squares."""
    squares: dict[int, dict[str, list[float]]] = {}
    for share in shares:
        squares.setdefault(share.step, {}).setdefault(share.name, []).append(share.square)
    return {
        step: {name: _root_of_sum(parts) for name, parts in sorted(squares[step].items())} for step in sorted(squares)
    }


def window_norms(norms: Norms, whole_norms: Mapping[int, float], window: Window) -> Norms:
    """Return the gradient norms of the window by step and group, with WHOLE_GRADIENT for the norm of all parameters.

    norms: by step and parameter, where they were recorded. whole_norms: norms of all parameters together, by step.
    """
    groups: dict[int, dict[str, float]] = {}
    for step in range(window.first_step, window.last_step + 1):
        if step in whole_norms:
            squares: dict[str, list[float]] = {}
            for name, norm in norms.get(step, {}).items():
                squares.setdefault(parameter_group(name), []).append(norm * norm)
            groups[step] = {group: _root_of_sum(values) for group, values in sorted(squares.items())}
            groups[step][WHOLE_GRADIENT] = whole_norms[step]
    return groups


def parameter_group(name: str) -> str:
    """Return a parameter's name without numbers: `layers.3.mlp.experts.up.weight[2]` is of `mlp.experts.up.weight`."""
    return (name.split(".", 2)[2] if name.startswith("layers.") else name).partition("[")[0]


def gradient_reasons(
    shares: Sequence[GradientShare], records: Sequence[StepRecord], work: Work, window_steps: Sequence[int] = ()
) -> list[str]:
    """Check that each of the case's gradient steps, and of `window_steps`, has a norm for every parameter, and that the
    norms of a step add up to the gradient's norm.

    A run without any norms passes, because some frameworks cannot give them. A step that the loss scale skipped has
    none.
    """
    norms = gradient_norms(shares)
    if not norms:
        return []
    steps, skipped = (*work.evidence.gradient_steps, *window_steps), {r.step for r in records if r.skipped}
    present, expected = (", ".join(map(str, numbers)) for numbers in (norms, steps))
    reasons = [
        f"step {step}: no norms by parameter; found those of steps {present}, expected {expected}"
        for step in steps
        if step not in norms and step not in skipped
    ]
    names, whole_norms = set(gradient_names(work)), {r.step: r.grad_norm for r in records if r.grad_norm is not None}
    for step, values in norms.items():
        total, expected_total = _root_of_sum([norm * norm for norm in values.values()]), whole_norms.get(step)
        # An expert that no token chose has none, nor has a router that chooses it, nor a key's bias, which softmax
        # cancels.
        exempt = (".mlp.experts.", ".mlp.router.", KEY_BIAS)
        zero_names = [name for name, norm in values.items() if norm == 0 and not any(text in name for text in exempt)]
        if unexpected := sorted(set(values) ^ names):
            kind = "no norm of" if unexpected[0] in names else "a norm of the unknown parameter"
            reasons.append(f"step {step}: {kind} {unexpected[0]}")
        elif expected_total is not None and not abs(total - expected_total) <= NORM_TOLERANCE * expected_total:
            sums = f"the parameters' norms make up {total:.6g}, the gradient's norm is {expected_total:.6g}"
            reasons.append(f"step {step}: {sums}")
        elif zero_names:
            reasons.append(
                f"step {step}: the gradients of {len(zero_names)} of {len(values)} parameters are exactly 0, as that "
                f"of {zero_names[0]}: they were lost, or are too small for a format between, such as fp8's"
            )
    return reasons


def gradient_names(work: Work) -> Iterator[str]:
    """Return the name of each norm. Each routed expert has its own, such as `layers.1.mlp.experts.up.weight[3]`.

    The norm of all experts together does not show gradients that two of them exchanged, nor the loss of an expert that
    few tokens chose.
    """
    experts = work.model.experts
    for name in parameter_shapes(work.model, work.training.sequence_length):
        if experts is not None and ".mlp.experts." in name:
            yield from (f"{name}[{expert}]" for expert in range(experts.count))
        else:
            yield name


def _root_of_sum(squares: Sequence[float]) -> float:
    """Return the square root of the sum; NaN for values that are not finite, so that no limit accepts it."""
    total = math.fsum(squares) if all(map(math.isfinite, squares)) else math.nan
    return math.sqrt(total) if total >= 0 else math.nan

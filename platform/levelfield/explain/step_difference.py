"""Why one run's step takes longer than another's: the changes of its parts, which add up to the step's change.

And which parts of one run's step take another time than the planner predicts.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from levelfield.specs.step_parts import (
    BUBBLE,
    COMMUNICATION,
    PARTS,
    WAITING,
    Milliseconds,
    PlannedPart,
    PredictedStep,
    StepPart,
    StepParts,
    mask_layer_number,
)

RECOMPUTATION = "recomputation"  # a part of its own here: any part may be recomputed
_ENOUGH_EXPLAINED = 0.9  # of the whole change: then no further sentence follows
_MAX_SENTENCES, _MAX_PLACES = 3, 2  # of a difference, and of a sentence
_NAMED_PLACE_SHARE = 0.2  # of a part's change: smaller places are not named


@dataclass(frozen=True)
class PlaceChange:
    """The change of one place within a part."""

    where: str
    ms: float


@dataclass(frozen=True)
class PartChange:
    """The change of one part, or of the whole step."""

    part: str
    before_ms: float
    after_ms: float
    half_interval_ms: float | None  # half of the change's 95 % interval; None from one step
    places: tuple[PlaceChange, ...] = ()  # those with most of the change, the largest first

    @property
    def ms(self) -> float:
        """The change."""
        return self.after_ms - self.before_ms

    @property
    def row(self) -> tuple[str, float, float, float | None]:
        """What the tables show: the part, before, after, and half of the interval."""
        return self.part, self.before_ms, self.after_ms, self.half_interval_ms


@dataclass(frozen=True)
class StepDifference:
    """From one run's step to another's."""

    whole: PartChange
    changes: tuple[PartChange, ...]  # of all parts, the largest first
    sentences: tuple[str, ...]
    explained_share: float  # of the whole change, by `sentences`; at least 0


def step_difference(before: StepParts, after: StepParts) -> StepDifference:
    """Return the difference of two runs of equal work."""
    whole = PartChange("step", before.step.mean, after.step.mean, _half_interval(before.step, after.step))
    times_before, times_after = _parts_without_recomputation(before), _parts_without_recomputation(after)
    # a program compiled once for all layers has no place of a single layer: then those of the other run are merged too
    merge_layers = any(
        "layers.*" in place.where for run in (before, after) for rank in run.ranks for place in rank.places
    )
    places_before, places_after = _places(before, merge_layers), _places(after, merge_layers)
    zero, changes = Milliseconds(mean=0.0), list[PartChange]()
    for part in dict.fromkeys([*times_before, *times_after]):
        time_before, time_after = times_before.get(part, zero), times_after.get(part, zero)
        places = {key[1] for key in (*places_before, *places_after) if key[0] == part}
        place_changes = [
            PlaceChange(name, places_after[part, name] - places_before[part, name]) for name in sorted(places)
        ]
        place_changes.sort(key=lambda place: -abs(place.ms))
        changes.append(
            PartChange(
                part,
                time_before.mean,
                time_after.mean,
                _half_interval(time_before, time_after),
                tuple(place_changes[:_MAX_PLACES]),
            )
        )
    changes.sort(key=lambda change: -abs(change.ms))
    largest: list[PartChange] = []  # that together are within a tenth of the whole change
    for change in changes[:_MAX_SENTENCES]:
        if largest and abs(whole.ms - sum(change.ms for change in largest)) <= (1 - _ENOUGH_EXPLAINED) * abs(whole.ms):
            break
        largest.append(change)
    sentences = tuple(_sentence(change, whole, after) for change in largest)
    explained_share = 1 - abs(whole.ms - sum(change.ms for change in largest)) / abs(whole.ms) if whole.ms else 0.0
    return StepDifference(whole, tuple(changes), sentences, max(0.0, explained_share))


def _parts_without_recomputation(parts: StepParts) -> dict[str, Milliseconds]:
    """Return the parts without their recomputation, and all recomputation as a further part. They add up to the
    step."""
    times: dict[str, Milliseconds] = {}
    for row in parts.parts:
        low, high = (None if end is None else end - row.recompute_ms for end in (row.time.low, row.time.high))
        times[row.part] = Milliseconds(mean=max(0.0, row.time.mean - row.recompute_ms), low=low, high=high)
    recomputed_ms = sum(row.recompute_ms for row in parts.parts)
    return {**times, **({RECOMPUTATION: Milliseconds(mean=recomputed_ms)} if recomputed_ms else {})}


def _places(parts: StepParts, merge_layers: bool) -> defaultdict[tuple[str, str], float]:
    """Return the mean over the ranks of each place's time, by part and place. merge_layers: one place for the same
    module of all layers."""
    times: defaultdict[tuple[str, str], float] = defaultdict(float)
    for rank in parts.ranks:
        for place in rank.places:
            part = RECOMPUTATION if place.phase == "recompute" else place.part
            where = f"{place.part} of the blocks" if part == RECOMPUTATION else place.where
            where = mask_layer_number(where) if merge_layers else where
            times[part, where] += place.ms / len(parts.ranks)
    return times


def _half_interval(before: Milliseconds, after: Milliseconds) -> float | None:
    """Return half of the interval of a difference of two means, whose errors are independent, or None."""
    if before.high is None or after.high is None:
        return None
    return math.hypot(before.high - before.mean, after.high - after.mean)


def _sentence(change: PartChange, whole: PartChange, after: StepParts) -> str:
    """Return how a part changes, with its places; for one that is waiting which rank is late, and where."""
    amount = f"{abs(change.ms):.1f} ms {'more' if change.ms > 0 else 'less'}"
    share = f"{change.ms / whole.ms:.0%} of the change" if whole.ms else ""
    if change.ms * whole.ms <= 0:
        share = "against the change"
    elif abs(change.ms) > abs(whole.ms):
        share = "more than the whole change"
    text = f"{change.part} takes {amount} ({share})"
    places = [place for place in change.places if abs(place.ms) >= _NAMED_PLACE_SHARE * abs(change.ms)]
    if places and change.part not in (WAITING, BUBBLE, places[0].where):
        text += ": " + ", ".join(f"{place.where} {place.ms:+.1f} ms" for place in places)
    if change.part != WAITING or change.ms <= 0 or not after.late:
        return text
    late = after.late[0]
    if late.longer_ms is None:
        return f"{text}: for rank {late.rank}"
    longer = f"whose {late.part} in {late.where} takes {late.longer_ms:.1f} ms more than its peers'"
    return f"{text}: for rank {late.rank}, {longer}"


# What the planner predicts, by its own parts, and the parts of a step that measure it. What it does not predict (the
# host, waiting) is in the whole step's row alone.
_PLANNER_PARTS: tuple[tuple[str, tuple[str, ...], tuple[StepPart, ...]], ...] = (
    (
        "computation",
        ("compute",),
        (
            "embedding",
            "attention projections",
            "attention core",
            "mlp",
            "router",
            "experts",
            "elementwise",
            "head and loss",
        ),
    ),
    ("messages", ("tensor", "context", "pipeline", "data", "expert"), tuple(p for p in PARTS if p in COMMUNICATION)),
    ("pipeline bubble", ("imbalance", "bubble"), ("pipeline bubble",)),
    ("optimizer", ("optimizer",), ("optimizer", "gradient clipping")),
)
_NOTICEABLE_SHARE = 0.02  # of the step


def compare_with_prediction(
    parts: StepParts, seconds: Mapping[str, float], interval: tuple[float, float] | None
) -> PredictedStep:
    """Return the planner's parts of a step beside the measured ones. seconds: of its own parts, by name. interval: of
    measured speeds over planned ones; None where unknown: then no part is marked as off."""
    rows = [
        _planned_part(
            name,
            measured,
            [row.time for row in parts.parts if row.part in measured],
            1e3 * sum(seconds[term] for term in terms),
            parts,
            interval,
        )
        for name, terms, measured in _PLANNER_PARTS
    ]
    rows = [row for row in rows if row.measured_ms or row.planned_ms]
    rows.append(_planned_part("step", (), [parts.step], 1e3 * sum(seconds.values()), parts, interval))
    findings = (
        f"{row.name}: planned {row.planned_ms:.2f} ms, {row.low_ms:.2f} to {row.high_ms:.2f}; measured "
        f"{row.measured_ms:.2f} ms"
        for row in rows
        if row.is_off
    )
    return PredictedStep(parts=tuple(rows), findings=tuple(findings))


def _planned_part(
    name: str,
    of: tuple[StepPart, ...],
    times: Sequence[Milliseconds],
    planned: float,
    parts: StepParts,
    interval: tuple[float, float] | None,
) -> PlannedPart:
    """Return one row. The speed's interval is of the whole step; a part is held to the same shares."""
    measured = sum(time.mean for time in times)
    if interval is None:
        unknown = {"low_ms": None, "high_ms": None, "is_off": False}
        return PlannedPart(name=name, of=of, measured_ms=measured, planned_ms=planned, **unknown)
    least_ms, most_ms = planned / interval[1], planned / interval[0]
    half_ms = sum((time.high - time.mean) ** 2 for time in times if time.high is not None) ** 0.5
    excess_ms = max(measured - half_ms - most_ms, least_ms - measured - half_ms)
    is_off = not (excess_ms <= 0 or abs(measured - planned) < _NOTICEABLE_SHARE * parts.step.mean)
    return PlannedPart(
        name=name, of=of, measured_ms=measured, planned_ms=planned, low_ms=least_ms, high_ms=most_ms, is_off=is_off
    )


def difference_json(difference: StepDifference) -> Mapping[str, object]:
    """Return the difference for JSON."""
    whole, *changes = (
        {"part": change.part, "before_ms": change.before_ms, "after_ms": change.after_ms, "change_ms": change.ms,
         "half_ms": change.half_interval_ms, "places": [asdict(place) for place in change.places]}
        for change in (difference.whole, *difference.changes)
    )  # fmt: skip
    return {
        "whole": whole,
        "changes": changes,
        "sentences": list(difference.sentences),
        "explained": difference.explained_share,
    }

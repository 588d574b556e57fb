"""The order of a night's entries, and which of them its budget holds: the most informative per second first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from levelfield.specs.record import Point, Subject

UNKNOWN_SECONDS = 120.0  # expected of an entry when no entry has run before
CONFIRMATION_PART = 0.3  # of the budget, kept for the pairs that confirm a suspicion
MOST_NIGHTS_UNSEEN = 7  # an entry that was unseen for longer counts as this


@dataclass(frozen=True)
class Candidate:
    """An entry that may run tonight.

    is_new_build: its code, environment or commit differs from the last night's. detectable: the smallest relative
    change that its series can show; None for a young series. nights_unseen: None when it never ran.
    """

    name: str
    expected_seconds: float
    is_new_build: bool
    detectable: float | None
    nights_unseen: int | None

    @property
    def information(self) -> float:
        """Return how much a run tells: a new build, a long absence and wide limits count for more."""
        unseen = MOST_NIGHTS_UNSEEN if self.nights_unseen is None else min(self.nights_unseen, MOST_NIGHTS_UNSEEN)
        width = 5.0 if self.detectable is None else min(100 * self.detectable, 5.0)
        return 1.0 + 3.0 * self.is_new_build + unseen + width


def ordered(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates by information per expected second, the highest first; equal ones keep their order."""
    return sorted(candidates, key=lambda c: -c.information / max(c.expected_seconds, 1.0))


def within(candidates: Sequence[Candidate], budget_seconds: float | None) -> tuple[list[Candidate], list[Candidate]]:
    """Return those that the budget holds and those that it does not, both in order. The first one always runs."""
    if budget_seconds is None:
        return list(candidates), []
    left = budget_seconds * (1 - CONFIRMATION_PART)
    kept: list[Candidate] = []
    out: list[Candidate] = []
    for each in candidates:
        if not kept or each.expected_seconds <= left:
            kept.append(each)
            left -= each.expected_seconds
        else:
            out.append(each)
    return kept, out


def expected_seconds(lasted: Mapping[str, Sequence[float]], name: str) -> float:
    """Return the median duration of an entry's earlier runs, else of all entries' runs."""
    every = [seconds for found in lasted.values() for seconds in found]
    return median(lasted.get(name) or every or [UNKNOWN_SECONDS])


def nights_unseen(points: Sequence[Point], nights: Sequence[str]) -> int | None:
    """Return how many of the nights, in order, lie after the entry's last one; None when it has none."""
    seen = {point.night for point in points if point.night in nights}
    return None if not seen else len(nights) - 1 - max(nights.index(night) for night in seen if night)


def is_other_build(before: Subject | None, now: Subject) -> bool:
    """Return whether tonight's build differs from the last one in code, software or commit. Unknown counts as other."""
    if before is None or now.is_dirty or before.is_dirty:
        return True
    kinds = ("environment", "image", "implementation", "commit", "platform_version")
    return any(getattr(before, kind) != getattr(now, kind) for kind in kinds)

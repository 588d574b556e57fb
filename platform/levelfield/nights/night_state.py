"""The order of a night's entries, and the state of a nightly, which is written before and after each run.

A nightly that was killed continues from it: a run that has ended is not made again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import ClassVar, Literal

from pydantic import Field

from levelfield.errors import DocumentError, UsageError
from levelfield.rundir.directory import write_atomically
from levelfield.specs.base import Document, Value, dump, load
from levelfield.specs.record import Point, Subject

NIGHTS_REMEMBERED = 10
Progress = Literal["waiting", "started", "done", "left out"]

UNKNOWN_SECONDS = 120.0  # expected of an entry when no entry has run before
CONFIRMATION_PART = 0.3  # of the budget, kept for the pairs that confirm a suspicion
MOST_NIGHTS_UNSEEN = 7  # an entry that was unseen for longer counts as this


class NightEntry(Value):
    """One entry of the suite. seconds: expected or, once done, measured. reason: why it was left out, or not valid."""

    name: str
    series: str | None = None
    state: Progress = "waiting"
    run_id: str | None = None
    seconds: float | None = None
    reason: str | None = None


class PairRun(Value):
    """One run of a confirmation. arm: `a` is the accepted build, `b` tonight's."""

    series: str
    arm: Literal["a", "b"]
    run_id: str


class NightState(Document):
    """A nightly of one suite. began: UTC, ISO 8601. used_seconds: of the budget, by earlier starts."""

    KIND: ClassVar[str] = "night"

    night: str
    suite: str
    began: str
    used_seconds: float = 0.0
    entries: tuple[NightEntry, ...]
    confirmations: tuple[PairRun, ...] = Field(default=())

    def with_entry(self, name: str, **change: object) -> NightState:
        """Return the state with changed fields of one entry."""
        entries = tuple(e.model_copy(update=change) if e.name == name else e for e in self.entries)
        return self.model_copy(update={"entries": entries})

    def with_confirmation(self, run: PairRun) -> NightState:
        """Return the state with one more run of a confirmation."""
        return self.model_copy(update={"confirmations": (*self.confirmations, run)})


def state_path(runs: Path, night: str, suite: str) -> Path:
    """Return the file of a nightly's state, beside its runs."""
    return runs / f"nightly_{suite}_{night}.json"


def read_state(path: Path) -> NightState | None:
    """Return the state; None without a file. Raises UsageError for a damaged one, which names what to do."""
    if not path.exists():
        return None
    try:
        return load(NightState, path)
    except DocumentError as error:
        raise UsageError(f"{error}\nremove {path} to begin this night again; its finished runs are kept") from None


def write_state(path: Path, state: NightState) -> None:
    """Replace the state in one step. Raises OSError with the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, dump(state))


def durations(runs: Path, suite: str) -> dict[str, list[float]]:
    """Return the seconds of each entry's runs in the newest nights of the suite. A damaged state counts for nothing."""
    found: dict[str, list[float]] = {}
    for path in sorted(runs.glob(f"nightly_{suite}_*.json"))[-NIGHTS_REMEMBERED:]:
        with suppress(DocumentError):
            for entry in load(NightState, path).entries:
                if entry.state == "done" and entry.seconds:
                    found.setdefault(entry.name, []).append(entry.seconds)
    return found


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

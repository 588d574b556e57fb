"""Acceptance: criteria that machines have to meet, and the dossier that says whether runs show it.

Both end by themselves: the criteria on a day, a dossier so many days after the oldest run that it rests on.
"""

from __future__ import annotations

import re
from datetime import date, timedelta
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from levelfield.specs.base import MOST_DEVICES, MOST_NODES, Document, Value
from levelfield.specs.case import Scale

AcceptanceWord = Literal["accepted", "refused", "not decided"]
MOST_RUNS = 1_000  # of a dossier, its baseline included
MOST_DAYS = 3_650
_DAY = re.compile(r"\d{4}-\d\d-\d\d")


def _day(text: str) -> str:
    try:
        if not _DAY.fullmatch(text):
            raise ValueError
        date.fromisoformat(text)
    except ValueError:
        raise ValueError(f"found '{text}', expected a day such as 2027-03-31") from None
    return text


def _part(value: float) -> float:
    if not 0 < value <= 1:
        raise ValueError(f"found {value:g}, expected a part above 0 and at most 1, such as 0.95 for 95 %")
    return value


Day = Annotated[str, AfterValidator(_day)]
Part = Annotated[float, AfterValidator(_part)]
Text = Annotated[str, Field(min_length=1, max_length=300)]
RunName = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9_.:+ -]+$", max_length=300)
]  # no pattern or path, which name any number
Names = Annotated[tuple[RunName, ...], Field(min_length=1, max_length=MOST_RUNS)]


class AcceptanceSubject(Value):
    """What the runs are of. chip: None takes any. nodes, devices: as in a case string, the devices of each node."""

    case: Text
    framework: Text
    chip: Text | None = None
    scale: Scale = "full"
    nodes: int = Field(ge=1, le=MOST_NODES)
    devices: int = Field(ge=1, le=MOST_DEVICES)


class PublishedName(Value):
    """A row of a published set. `set` is the set's name in configs/published."""

    set: Text
    row: Text


class SpeedCriterion(Value):
    """Tokens/s per device over those of the baseline: runs, as `compare` names a side, or a published row."""

    at_least: Part
    baseline: Names | None = None
    published: PublishedName | None = None

    @model_validator(mode="after")
    def _has_one_baseline(self) -> SpeedCriterion:
        if (self.baseline is None) == (self.published is None):
            raise ValueError("baseline and published: expected exactly one of them")
        return self


class AtLeast(Value):
    """scaling: the efficiency of the most devices against the fewest. success: the valid part of all given runs."""

    at_least: Part


class NodeSpread(Value):
    """The part by which a node may be slower than the others. nodes: how many different ones have to be measured."""

    at_most: Part
    nodes: int = Field(ge=2, le=MOST_NODES)


class EnergyCriterion(Value):
    """at_most: in J/token, of all devices."""

    at_most: float = Field(gt=0, le=1e6)


class Criteria(Value):
    """The criteria; None: not asked for. aligned, preflight: of every run that counts."""

    speed: SpeedCriterion | None = None
    node_spread: NodeSpread | None = None
    scaling: AtLeast | None = None
    aligned: Literal[True] | None = None
    joules_per_token: EnergyCriterion | None = None
    success: AtLeast | None = None
    preflight: Literal[True] | None = None

    @model_validator(mode="after")
    def _has_any(self) -> Criteria:
        if not any(value for _, value in self):
            raise ValueError(f"found no criterion, expected at least one of {', '.join(type(self).model_fields)}")
        return self


class AcceptanceCriteria(Document):
    """valid_until: the last day on which the criteria judge. accepted_days: how long a dossier holds.

    runs_since: runs that began before this day, such as that of a repair, do not count.
    """

    KIND: ClassVar[str] = "acceptance"

    title: Text
    valid_until: Day
    accepted_days: int = Field(ge=1, le=MOST_DAYS)
    runs_since: Day | None = None
    of: AcceptanceSubject
    criteria: Criteria


class CriterionFinding(Value):
    """One criterion with its evidence. value, low, high: the figure with its 95 % interval, in `unit`.

    nodes: that are too slow. more_runs: how many more of each kind would decide, if they came out as those so far.
    """

    criterion: str
    word: AcceptanceWord
    limit: str
    sentence: str
    unit: str = "1"
    value: float | None = None
    low: float | None = None
    high: float | None = None
    nodes: tuple[str, ...] = ()
    more_runs: int | None = None
    runs: tuple[str, ...] = ()
    baseline: tuple[str, ...] = ()


class LeftOutRun(Value):
    run: RunName
    reason: str


class Dossier(Document):
    """runs: that count, by id, with the digest of their sealed files. made, expires: days in UTC.

    expires: the last day on which the word holds; None without a run that counts.
    """

    KIND: ClassVar[str] = "dossier"

    criteria: AcceptanceCriteria
    word: AcceptanceWord
    made: Day
    expires: Day | None
    findings: tuple[CriterionFinding, ...]
    runs: Annotated[dict[RunName, str], Field(max_length=MOST_RUNS)]
    baseline: Annotated[dict[RunName, str], Field(max_length=MOST_RUNS)]
    left_out: Annotated[tuple[LeftOutRun, ...], Field(max_length=MOST_RUNS)] = ()
    cautions: tuple[str, ...] = ()


def day_after(day: str, days: int) -> str:
    return (date.fromisoformat(day) + timedelta(days=days)).isoformat()

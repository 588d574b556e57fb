"""One run as the store keeps it: what was measured, of which series, build, conditions and node.

A series is what stays the same from night to night. The subject is the build that a night tests: it changes within a
series. The conditions surround it: a change of them starts a new segment of the series. Traces are what a run's page
draws beside the loss; they are bounded, and no figure rests on them: the raw files have all of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    JsonValue,
    PlainSerializer,
    PlainValidator,
    ValidationError,
    create_model,
    model_validator,
)

from levelfield.specs.base import LATER, Document, Value, parse
from levelfield.specs.case import Precision, Scale
from levelfield.specs.result import DISTURBED, Result, StatusWord
from levelfield.specs.run_figures import FORMER_COLUMNS, GATED_FIGURES, STORED_FIGURES, value_at
from levelfield.specs.selector import versioned_framework
from levelfield.specs.short_names import clipped, short_value
from levelfield.specs.step_parts import (
    Kernel,
    LateRank,
    Milliseconds,
    Overhead,
    PartTime,
    StepAlone,
    StepPart,
    StepTimeline,
    WaitedFor,
)
from levelfield.specs.tuning import FreeFields
from levelfield.specs.vendor import HOST_SHARE


def _check_gated_figure(name: str) -> str:
    if name not in GATED_FIGURES:
        raise ValueError(f"found figure '{name}', expected one of: {', '.join(GATED_FIGURES)}")
    return name


# A figure that the gate holds to a level, by its column in the store.
GatedFigure = Annotated[str, AfterValidator(_check_gated_figure)]
Purpose = Literal["manual", "nightly", "branch", "confirm-a", "confirm-b", "null-a", "null-b"]
BRANCH_MARK = "@"  # between a night's name and its branch
TREND_PURPOSES: tuple[Purpose, ...] = ("manual", "nightly")
NULL_PURPOSES: tuple[Purpose, ...] = ("null-a", "null-b")
EvidenceWord = Literal["sealed", "unsealed", "tampered", "reported"]
TracedQuantity = Literal["power_watts", "utilisation", "memory_used_mebibytes", "temperature_celsius"]
# What the traces of one run hold at most: parts of its time, devices and ranks with a line, and ranks with their peaks.
MAX_TRACE_POINTS, MAX_TRACED_DEVICES, MAX_TRACED_RANKS, MAX_RANK_PEAKS = 32, 4, 4, 64
MAX_PLACES, MAX_KERNELS = 150, 12  # of a step
MAX_READINGS = 64  # points of all devices together, of one quantity
_MAX_CLOCK_DIFFERENCE = timedelta(days=1)


class DeviceTrace(Value):
    """Readings of one device."""

    device: str = Field(max_length=40)  # its index, with its node's before it where there are several nodes
    # By quantity the mean of each part of the time; null where nothing was read in it.
    values: dict[TracedQuantity, tuple[float | None, ...]]


class RankTrace(Value):
    """The step times of one rank."""

    rank: int = Field(ge=0)
    step_microseconds: tuple[int, ...]  # from step 1


class RankPeaks(Value):
    """The most memory of one rank over all steps, in MiB. Null: the framework gave no figure."""

    rank: int = Field(ge=0)
    process: int | None = None
    allocated: int | None = None
    reserved: int | None = None


class StepPlace(Value):
    """The mean over all ranks of a place's time."""

    part: StepPart
    where: str = Field(max_length=200)
    ms: float = Field(ge=0)
    is_repeated: bool = False  # of a forward pass that is repeated


class StepRank(Value):
    """A rank of the timeline: its step, and whom it waited for, the longest first."""

    rank: int = Field(ge=0)
    ms: float = Field(ge=0)
    waited_ms: float = Field(default=0.0, ge=0)
    waited_for: tuple[WaitedFor, ...] = ()


class StepTrace(Value):
    """The parts of a step (specs/step_parts.py), as far as pages show them; milliseconds."""

    device: str
    recorded_steps: int
    step: Milliseconds
    overhead: Overhead
    parts: tuple[PartTime, ...]
    places: tuple[StepPlace, ...] = Field(default=(), max_length=MAX_PLACES)  # those with the most time
    ranks: tuple[StepRank, ...] = ()  # those of the timeline
    late: tuple[LateRank, ...] = ()
    kernels: tuple[Kernel, ...] = Field(default=(), max_length=MAX_KERNELS)  # those with the most time
    warnings: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    timeline: StepTimeline | None = None
    alone: StepAlone | None = None


class RunTraces(Value):
    """What a run's page draws beside the loss."""

    seconds: float = Field(default=0.0, ge=0)  # from the begin of step 1 to the end of the last step
    # How many equal parts of that time the trace of a device has.
    parts: int = Field(default=0, ge=0, le=MAX_TRACE_POINTS)
    devices: int = 0  # how many the run had
    ranks: int = 0  # likewise
    # Of the devices that differ most from each other.
    device_traces: tuple[DeviceTrace, ...] = Field(default=(), max_length=MAX_TRACED_DEVICES)
    rank_traces: tuple[RankTrace, ...] = Field(
        default=(), max_length=MAX_TRACED_RANKS
    )  # the slowest, and the fastest one
    rank_peaks: tuple[RankPeaks, ...] = Field(default=(), max_length=MAX_RANK_PEAKS)  # those with the most memory
    step: StepTrace | None = None  # of a run whose steps were recorded


class Series(FreeFields):
    """What stays the same from night to night. Its fingerprint is the series' digest."""

    version: int = 1  # of this list of fields; another list gives every series a new digest
    case: str
    work: str  # the digest of what the case fixes
    corpus: str  # the digest of the tokens
    scale: Scale
    framework: str
    vendor: str
    chip: str
    device_is: str  # `card`, `die` or `host share`
    nodes: int
    devices: int  # of all nodes together
    precision: Precision
    accumulation: int
    runtime: str  # what the ranks ran in
    # A pinned version of the framework beside the default; None: the default, which may be another one tomorrow.
    further_version: str | None = Field(default=None, json_schema_extra=LATER)

    @property
    def framework_label(self) -> str:
        """The framework as a case string names it: `jax`, or `jax_0.10.1` for a further version."""
        return versioned_framework(self.framework, self.further_version)

    @property
    def target(self) -> str:
        """The case string that runs it, such as `gpt3_6.7B:torch:cpu:1:2`."""
        return f"{self.case}:{self.framework_label}:{self.chip}:{self.nodes}:{self.devices // self.nodes}"

    @property
    def label(self) -> str:
        """Return the series in a line, such as `gpt3_6.7B:torch:cpu:1:2 smoke fp32 DP1TP2PP1 mb8`."""
        return f"{self.target} {self.scale} {self.precision} {self.layout} mb{self.micro_batch}"

    def field_word(self, name: str) -> str:
        """Return a field as a word that names series, such as `threads=2`; a digest by its first digits."""
        return f"{name}={short_value(str(getattr(self, name)))}"

    def has_field(self, word: str) -> bool:
        """Return whether the word is a field of the series with its value, such as `threads=2`. Digests may be cut."""
        name, _, value = word.partition("=")
        if name not in type(self).model_fields or not value:
            return False
        actual, prefix = str(getattr(self, name)), "sha256:"
        if actual.startswith(prefix):
            return actual.removeprefix(prefix).startswith(value.removeprefix(prefix))
        return actual == value


class Conditions(Value):
    """What surrounds the build: a change starts a new segment of the series."""

    software: dict[str, str]  # driver, firmware and libraries of the vendor, as its tool names them
    kernel: str | None
    os: str | None
    processor: str | None
    cores: int | None
    memory_gib: int | None  # of the host, rounded
    engine: str | None
    variables: dict[str, str]  # those that can change a training, with the plan's own; secrets are masked


class Subject(Value):
    """The build that is tested. Null: not known, or there is none."""

    framework_version: str
    environment: str | None  # the digest of the Python environment
    packages: str | None
    image: str | None  # the digest of the container image
    implementation: str  # the digest of all code that the result rests on
    commit: str | None  # of the checkout
    is_dirty: bool | None  # whether files differ from it
    platform_version: str
    formulas: tuple[str, ...]  # their versions

    @property
    def has_commit(self) -> bool:
        """Whether a commit holds all of its files, so that it can run again."""
        return self.commit is not None and self.is_dirty is False


if TYPE_CHECKING:

    class StoredFigures(Value):
        """The figures that the platform names itself; a record has those of the whole list."""

        tokens_per_second_per_device: float | None = None
        memory_bytes: float | None = None
        joules_per_token: float | None = None
        mfu_megatron: float | None = None
        loss_tail: float | None = None

else:
    StoredFigures = create_model(
        "StoredFigures", __base__=Value, **{column: (float | None, None) for column in STORED_FIGURES}
    )


@dataclass(frozen=True)
class StoredResult:
    """The document result.json of a stored run, as JSON and as a Result.

    It is validated when the Result is first used. That takes as long as reading the rest of the run, and what reads
    thousands of runs, such as an export, uses the JSON alone.
    """

    content: dict[str, Any]

    @cached_property
    def document(self) -> Result:
        """Raises DocumentError, with the run's id, where the JSON is no result."""
        body = {key: value for key, value in self.content.items() if key != "schema"}
        if self.content.get("schema") == Result.schema_name():
            with suppress(ValidationError):
                return Result.model_validate(body)  # `parse` takes twice as long
        return parse(Result, self.content, f"run {self.content.get('run_id')}: its result")


def _validate_stored_result(value: Any) -> StoredResult:
    if isinstance(value, StoredResult):
        return value
    if isinstance(value, dict):
        return StoredResult(value)
    raise ValueError(f"found {clipped(repr(value), 60)}, expected a mapping of keys to values")


class RunRecord(StoredFigures, Document):
    """One run with its figures, which are those of its result.

    Its memory is the device-used peak, and on a processor the peak of the processes. None of its fields names a path,
    a user or a host.
    """

    model_config = ConfigDict(serialize_by_alias=True)
    KIND: ClassVar[str] = "record"

    run_id: str = Field(max_length=200)
    content: str  # the digest of the sealed files, by which two imports of one run are one
    began: str  # in UTC, ISO 8601
    purpose: Purpose = "manual"
    # the name of the nightly that it belongs to, such as `2026-11-22`; with its branch where that is no default one,
    # such as `2026-11-22.7@feature`
    night: str | None = None
    entry: str | None = None  # suite and entry
    evidence: EvidenceWord  # `reported` where the figures did not come with their raw files
    evidence_reason: str | None = None
    series: Series
    conditions: Conditions
    subject: Subject
    node: str  # the digest of the machine, with any number of its devices
    word: StatusWord
    failure: str | None
    reason: str | None
    verdict: str  # of the alignment
    window: tuple[int, int]
    step_seconds: tuple[float, ...]  # of every finished step, from step 1, as the losses
    losses: tuple[float | None, ...]
    telemetry: dict[str, float]  # means and maxima over the window by name and unit, such as `power_watts`
    stored_result: Annotated[
        StoredResult, PlainValidator(_validate_stored_result), PlainSerializer(attrgetter("content"), return_type=Any)
    ] = Field(alias="result")
    traces: RunTraces | None = None  # null for a run that recorded none of it
    # How many repeats its command has left in the folder that the run was read from.
    command_repeats: int | None = Field(default=None, exclude=True)

    @model_validator(mode="before")
    @classmethod
    def _take_figures_from_result(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Take the figures from the result, also those that were no figures yet when the record was stored.

        A figure that stood in an older record and is none today is left out.
        """
        values = {name: value for name, value in values.items() if name not in FORMER_COLUMNS}
        result, is_host = values.get("result"), value_at(values.get("series"), "device_is") == HOST_SHARE
        content = result.content if isinstance(result, StoredResult) else result
        return {
            **values,
            **{column: figure.value_and_reason(content, is_host)[0] for column, figure in STORED_FIGURES.items()},
        }

    @property
    def result(self) -> Result:
        """The document result.json. Raises DocumentError where what is stored is no result."""
        return self.stored_result.document

    def mark_reported(self, reason: str) -> RunRecord:
        """Return the record as `reported` in place of `sealed`: its figures do not follow from raw files at hand."""
        if self.evidence != "sealed":
            return self
        return self.model_copy(update={"evidence": "reported", "evidence_reason": reason})

    @property
    def is_comparable(self) -> bool:
        """Whether the run may stand in a comparison: valid, sealed, and with no training that differs."""
        return _is_comparable(self.word, self.evidence, self.verdict)


class Point(StoredFigures):
    """One run of a series, as a gate and a chart need it: its time, digests of its surroundings, and its figures."""

    run_id: str
    began: str
    purpose: Purpose
    night: str | None
    entry: str | None = None
    node: str
    conditions: str
    subject: str
    word: StatusWord
    evidence: EvidenceWord
    verdict: str
    # What others used of the machine beyond the limits; null for no more, and for rows from before the store had it.
    disturbance: str | None = None

    @property
    def displayed_status(self) -> str:
        """Return the status as it is shown: `valid (disturbed)` for a valid run beside a load above the limits."""
        return DISTURBED if self.word == "valid" and self.disturbance else self.word

    @property
    def is_comparable(self) -> bool:
        """Whether the run may stand in a comparison, as its record says."""
        return _is_comparable(self.word, self.evidence, self.verdict)

    @property
    def is_trend_point(self) -> bool:
        """Whether the run is a point of its series' trend and may be its latest.

        A run of a pair is neither: it was made for one difference, half of the pairs' runs are of an older build, and
        after an even number of pairs such a run is the newest. Nor is one of a null pair, whose arms have one build,
        nor one of a night of a branch.
        """
        return self.purpose in TREND_PURPOSES


def _is_comparable(word: StatusWord, evidence: EvidenceWord, verdict: str) -> bool:
    """Return whether a run may stand in a comparison. verdict: of its alignment."""
    return word == "valid" and evidence == "sealed" and verdict not in ("different", "diverged")


DuelWord = Literal["faster", "slower", "no difference", "inconclusive"]  # B beside A


class DuelConclusion(Value):
    """What a duel showed: the speed of B over that of A by pairs of runs in turns, with its 95 % interval."""

    other: str  # the digest of B's series; the event's own is A's
    pairs: tuple[tuple[str, str], ...] = Field(min_length=2)  # ids of the runs of A and of B
    ratio: float = Field(gt=0)
    low: float = Field(gt=0)
    high: float = Field(gt=0)
    word: DuelWord
    least: float  # the least relative difference that mattered
    reason: str  # how the interval was made, and what disturbed the runs


EventKind = Literal["baseline", "note", "environment-step", "duel"]


class StoreEvent(Document):
    """Something that a person or a command stated about a series. Events are only added, never changed."""

    KIND: ClassVar[str] = "event"

    id: str
    kind: EventKind  # `baseline` accepts a level; `environment-step` accepts the step at a change of conditions
    series: str
    at: str  # in UTC, ISO 8601, as `until`
    who: str
    why: str
    until: str | None = None
    level: dict[GatedFigure, float] = Field(default_factory=dict)  # the accepted median by figure
    runs: tuple[str, ...] = ()  # the evidence
    # What else the kind needs, such as the conditions before and after; of a duel its `DuelConclusion`.
    data: dict[str, JsonValue] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _duel_has_a_conclusion(self) -> StoreEvent:
        if self.kind == "duel":
            DuelConclusion.model_validate(self.data)
        return self


def branch_of(night: str | None) -> str | None:
    """Return the branch that a night names; None for a night of the default branch, and without a night."""
    return (night or "").partition(BRANCH_MARK)[2] or None


def purpose_of(night: str) -> Purpose:
    """Return the purpose of a night's runs that are none of a pair."""
    return "branch" if branch_of(night) else "nightly"


def night_options(night: str, suffix: str = "") -> str:
    """Return the options that name a night. suffix: behind its own name, for another night."""
    name, _, branch = night.partition(BRANCH_MARK)
    return f"--night {name}{suffix}" + (f" --branch {branch}" if branch else "")


def nights_in_order(nights: Iterable[str]) -> list[str]:
    """Return nights by their names, which begin with their dates; those of the future first, so that the night of a
    clock that was wrong is the newest only where there is no other."""
    future = first_future_date().date().isoformat()
    return sorted(nights, key=lambda night: (night[:10] <= future or not night[:4].isdigit(), night))


def first_future_date() -> datetime:
    """Return the date in UTC from which a date is wrong: a day from now, as clocks of good machines differ by less."""
    return datetime.now(timezone.utc) + _MAX_CLOCK_DIFFERENCE

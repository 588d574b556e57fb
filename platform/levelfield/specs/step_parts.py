"""Where the time of a step goes (step-parts.json): parts of one vocabulary that add up, by rank, place and kernel."""

from __future__ import annotations

import re
from typing import ClassVar, Literal, get_args

from pydantic import Field

from levelfield.specs.base import MAX_RANKS, Document, Value

COMMUNICATION = ("reduce-scatter", "all-gather", "all-reduce", "all-to-all", "send/receive", "other messages")
WAITING, BUBBLE = "waiting for another rank", "pipeline bubble"
StepPart = Literal[
    "unexplained", "embedding", "attention projections", "attention core", "mlp", "router", "experts", "elementwise",
    "head and loss", "optimizer", "gradient clipping",
    "reduce-scatter", "all-gather", "all-reduce", "all-to-all", "send/receive", "other messages",
    "waiting for another rank", "pipeline bubble", "input", "host",
]  # fmt: skip
PARTS: tuple[StepPart, ...] = get_args(StepPart)
Phase = Literal["forward", "backward", "recompute"]
# Of attention: flash, cudnn, efficient, and `math`, which has no fused kernel. product: of two matrices.
KernelKind = Literal["flash", "cudnn", "efficient", "math", "product", "other"]

MAX_LINES, MAX_CELLS = 16, 480  # of a timeline
LAYER_PATTERN = re.compile(r"\b(layers\.)\d+")


def mask_layer_number(where: str) -> str:
    """Return the place without the number of its layer, as one program for all layers names it."""
    return LAYER_PATTERN.sub(r"\1*", where)


class Milliseconds(Value):
    """The mean over the recorded steps, and its 95 % interval (Student's t); None from one step."""

    mean: float = Field(ge=0)
    low: float | None = None
    high: float | None = None


class PartTime(Value):
    """One part of the step."""

    part: StepPart
    time: Milliseconds  # without what runs beside other work, so the parts add up to the step
    recompute_ms: float = Field(default=0.0, ge=0)  # how much of `time` repeats a forward pass
    overlapped_ms: float = Field(default=0.0, ge=0)  # of communication, what ran beside other work


class Place(Value):
    """What one place of the model takes of a part."""

    part: StepPart
    where: str  # a module such as `layers.3.attention`, a method, or `others`
    phase: Phase
    ms: float = Field(ge=0)  # in one step
    count: float = Field(ge=0)  # how many operations, kernels or messages it is in one step


class WaitedFor(Value):
    """How long a rank waited for another one that came last to a message."""

    rank: int = Field(ge=0, lt=MAX_RANKS)
    ms: float = Field(ge=0)


class RankParts(Value):
    """One rank's step."""

    rank: int = Field(ge=0, lt=MAX_RANKS)
    stage: int = Field(ge=0)  # of the pipeline
    step: Milliseconds  # of its recorded steps
    parts: tuple[PartTime, ...]
    places: tuple[Place, ...]  # those with the most time; the place `others` has the rest
    waited_for: tuple[WaitedFor, ...] = ()


class Kernel(Value):
    """An operation or a kernel that really ran."""

    part: StepPart
    name: str
    kind: KernelKind
    dtype: str | None  # None where unknown
    ms: float = Field(ge=0)  # in one step, the mean over the ranks
    count: float = Field(ge=0)  # likewise


class Overhead(Value):
    """What recording costs: steps with and without it took turns."""

    plain_ms: Milliseconds
    recorded_ms: Milliseconds
    ratio: float  # the mean of recorded / plain, minus 1
    low: float | None  # the ends of its 95 % interval
    high: float | None


class LateRank(Value):
    """A rank that others waited for, and the place where it took longer than the median of its peers."""

    rank: int = Field(ge=0, lt=MAX_RANKS)
    waited_ms: float = Field(ge=0)  # how long each of the others waited for it in one step, less what it waited itself
    part: StepPart | None  # of that place; None where no place took longer, as the next two
    where: str | None
    longer_ms: float | None  # than the median of its peers


class RankLine(Value):
    """One rank's line of a `StepTimeline`."""

    rank: int = Field(ge=0, lt=MAX_RANKS)
    # A letter for each cell, ` ` where the rank's step does not run.
    cells: str = Field(max_length=MAX_CELLS, pattern="^[a-zA-Z ]*$")


class StepTimeline(Value):
    """One recorded step by rank, on a common clock, from the first begin to the last end.

    The time is divided into equal cells. A cell names the part that takes most of it: `a` is the first of `parts`, `b`
    the second; `A` and `B` are the same where a forward pass is repeated.
    """

    ms: float = Field(gt=0)
    parts: tuple[StepPart, ...] = Field(max_length=len(PARTS))
    # Of late ranks, and of others at equal distances.
    lines: tuple[RankLine, ...] = Field(max_length=MAX_LINES)


class AlonePart(Value):
    """One part's operations that were repeated alone, in one step, the mean over the ranks."""

    part: StepPart
    in_place_ms: float = Field(ge=0)  # what they take in the step, of messages with what is overlapped
    alone_ms: float = Field(ge=0)  # what they take alone
    # The least that the chip's peak, memory or links allow them; where one was faster alone, as its values stay in a
    # cache, what it took. None: the rate is not known.
    allowed_ms: float | None = Field(default=None, ge=0)
    share: float = Field(default=1.0, ge=0)  # of the part's time that is theirs


class StepAlone(Value):
    """What operations take alone on the device, after the step was recorded (models/torch/repeats.py)."""

    parts: tuple[AlonePart, ...] = Field(max_length=len(PARTS))
    copy_bytes_per_second: float | None = Field(default=None, gt=0)  # measured by a copy, read and written together
    # The rates that `allowed_ms` follows from, as texts with their sources.
    peak: str | None = None
    memory: str | None = None
    # Sentences about the part with most time above alone, and the one that is most above what the chip allows.
    findings: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()  # what was not repeated or cannot be right, as sentences


class PlannedPart(Value):
    """Parts of a step as they were measured, and as the planner predicts them."""

    name: str
    of: tuple[StepPart, ...]  # the parts; empty for the whole step
    measured_ms: float = Field(ge=0)
    planned_ms: float = Field(ge=0)
    # Where published runs near to it expect it, by the whole step's interval; None where none is near.
    low_ms: float | None = Field(ge=0)
    high_ms: float | None = Field(ge=0)
    is_off: bool  # the measured time is outside, with its own interval, by more than explain/step_difference.py allows


class PredictedStep(Value):
    """The planner's prediction of a step."""

    parts: tuple[PlannedPart, ...] = ()
    findings: tuple[str, ...] = ()  # a sentence for each part that is off
    reason: str | None = None  # why there is no prediction


class StepParts(Document):
    """step-parts.json: the parts of a run's step, from the steps that were recorded after its window."""

    KIND: ClassVar[str] = "step-parts"

    run_id: str
    framework: str
    profiler: str
    device: Literal["processor", "accelerator"]  # what computes the operations
    recorded_steps: int = Field(ge=1)
    step: Milliseconds
    overhead: Overhead
    parts: tuple[PartTime, ...]  # the mean over the ranks
    ranks: tuple[RankParts, ...]
    late: tuple[LateRank, ...] = ()
    kernels: tuple[Kernel, ...] = ()
    warnings: tuple[str, ...] = ()  # what a reader should see first
    missing: tuple[str, ...] = ()  # what could not be read, as sentences
    timeline: StepTimeline | None = None
    alone: StepAlone | None = None
    planned: PredictedStep | None = None  # by the planner of the version that reads the file; the file itself has none

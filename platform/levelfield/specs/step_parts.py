"""Where the time of a step goes (step-parts.json): parts of one vocabulary that add up, by rank, place and kernel."""

from __future__ import annotations

import re
from typing import ClassVar, Literal, get_args

from pydantic import Field

from levelfield.specs.base import MAX_RANKS, Document, Value

COMMUNICATION = ("reduce-scatter", "all-gather", "all-reduce", "all-to-all", "send/receive", "other messages")
WAITING, BUBBLE = "waiting for another rank", "pipeline bubble"
Part = Literal[
    "unexplained", "embedding", "attention projections", "attention core", "mlp", "router", "experts", "elementwise",
    "head and loss", "optimizer", "gradient clipping",
    "reduce-scatter", "all-gather", "all-reduce", "all-to-all", "send/receive", "other messages",
    "waiting for another rank", "pipeline bubble", "input", "host",
]  # fmt: skip
PARTS: tuple[Part, ...] = get_args(Part)
Phase = Literal["forward", "backward", "recompute"]
# Of attention: flash, cudnn, efficient, and `math`, which has no fused kernel. product: of two matrices.
KernelKind = Literal["flash", "cudnn", "efficient", "math", "product", "other"]

MAX_LINES, MAX_CELLS = 16, 480  # of a timeline
LAYER = re.compile(r"\b(layers\.)\d+")


def without_layer_number(where: str) -> str:
    """Return the place without the number of its layer, as one program for all layers names it."""
    return LAYER.sub(r"\1*", where)


class Milliseconds(Value):
    """The mean over the recorded steps, and its 95 % interval (Student's t); None from one step."""

    mean: float = Field(ge=0)
    low: float | None = None
    high: float | None = None


class PartTime(Value):
    """One part of the step. time: without what runs beside other work, so the parts add up to the step.

    recompute_ms: how much of it repeats a forward pass. overlapped_ms: of communication, what ran beside other work.
    """

    part: Part
    time: Milliseconds
    recompute_ms: float = Field(default=0.0, ge=0)
    overlapped_ms: float = Field(default=0.0, ge=0)


class Place(Value):
    """The share of one place in a part: a module such as `layers.3.attention`, a method, or `others`.

    count: how many operations, kernels or messages it is in one step.
    """

    part: Part
    where: str
    phase: Phase
    ms: float = Field(ge=0)
    count: float = Field(ge=0)


class WaitedFor(Value):
    """How long a rank waited for another one that came last to a message."""

    rank: int = Field(ge=0, lt=MAX_RANKS)
    ms: float = Field(ge=0)


class RankParts(Value):
    """One rank. stage: of the pipeline. step: its recorded steps. It has more places than are listed: `others`."""

    rank: int = Field(ge=0, lt=MAX_RANKS)
    stage: int = Field(ge=0)
    step: Milliseconds
    parts: tuple[PartTime, ...]
    places: tuple[Place, ...]
    waited_for: tuple[WaitedFor, ...] = ()


class Kernel(Value):
    """An operation or a kernel that really ran. ms: in one step, the mean over the ranks. dtype: None where unknown."""

    part: Part
    name: str
    kind: KernelKind
    dtype: str | None
    ms: float = Field(ge=0)
    count: float = Field(ge=0)


class Overhead(Value):
    """What recording costs: steps with and without it took turns. ratio: the mean of recorded / plain, minus 1."""

    plain_ms: Milliseconds
    recorded_ms: Milliseconds
    ratio: float
    low: float | None
    high: float | None


class LateRank(Value):
    """A rank that others waited for, and the place where it took longer than the median of its peers.

    waited_ms: how long each of the others waited for it in one step, less what it waited itself.
    """

    rank: int = Field(ge=0, lt=MAX_RANKS)
    waited_ms: float = Field(ge=0)
    part: Part | None
    where: str | None
    longer_ms: float | None


class RankLine(Value):
    """One rank's line of a `StepTimeline`. cells: a letter for each, ` ` where the rank's step does not run."""

    rank: int = Field(ge=0, lt=MAX_RANKS)
    cells: str = Field(max_length=MAX_CELLS, pattern="^[a-zA-Z ]*$")


class StepTimeline(Value):
    """One recorded step by rank, on a common clock, from the first begin to the last end.

    The time is divided into equal cells. A cell names the part that takes most of it: `a` is the first of `parts`, `b`
    the second; `A` and `B` are the same where a forward pass is repeated. lines: late ranks, and others at equal
    distances.
    """

    ms: float = Field(gt=0)
    parts: tuple[Part, ...] = Field(max_length=len(PARTS))
    lines: tuple[RankLine, ...] = Field(max_length=MAX_LINES)


class AlonePart(Value):
    """One part's operations that were repeated alone, in one step, the mean over the ranks.

    in_place_ms: what they take in the step, of messages with what is overlapped. alone_ms: what they take alone.
    allowed_ms: the least that the chip's peak, memory or links allow them; where one was faster alone, as its values
    stay in a cache, what it took. None: the rate is not known. share: of the part's time that is theirs.
    """

    part: Part
    in_place_ms: float = Field(ge=0)
    alone_ms: float = Field(ge=0)
    allowed_ms: float | None = Field(default=None, ge=0)
    share: float = Field(default=1.0, ge=0)


class StepAlone(Value):
    """What operations take alone on the device, after the step was recorded (models/torch/repeats.py).

    copy_bytes_per_second: measured by a copy, read and written together. peak, memory: the rates that are allowed, as
    sentences with their sources. findings: sentences about the part with most time above alone, and the one that is
    most above what the chip allows. missing: what was not repeated or cannot be right, as sentences.
    """

    parts: tuple[AlonePart, ...] = Field(max_length=len(PARTS))
    copy_bytes_per_second: float | None = Field(default=None, gt=0)
    peak: str | None = None
    memory: str | None = None
    findings: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


class PlannedPart(Value):
    """Parts of a step as they were measured, and as the planner predicts them. of: the parts; empty for the whole step.

    low_ms, high_ms: where 90 of 100 published runs lie, by the whole step's interval; None where no published run says
    it. is_off: the measured time is outside with its own interval, by a noticeable part of the step.
    """

    name: str
    of: tuple[Part, ...]
    measured_ms: float = Field(ge=0)
    planned_ms: float = Field(ge=0)
    low_ms: float | None = Field(ge=0)
    high_ms: float | None = Field(ge=0)
    is_off: bool


class StepPlanned(Value):
    """The planner's prediction of a step. findings: a sentence for each part that is off. reason: why there is none."""

    parts: tuple[PlannedPart, ...] = ()
    findings: tuple[str, ...] = ()
    reason: str | None = None


class StepParts(Document):
    """The parts of a run's step, from the steps that were recorded after its window.

    device: `processor` where the thread of a processor computes. parts: the mean over the ranks. missing: what could
    not be read, as sentences. warnings: what a reader should see first. planned: by the planner that reads it, so that
    no file has it.
    """

    KIND: ClassVar[str] = "step-parts"

    run_id: str
    framework: str
    profiler: str
    device: Literal["processor", "accelerator"]
    recorded_steps: int = Field(ge=1)
    step: Milliseconds
    overhead: Overhead
    parts: tuple[PartTime, ...]
    ranks: tuple[RankParts, ...]
    late: tuple[LateRank, ...] = ()
    kernels: tuple[Kernel, ...] = ()
    warnings: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    timeline: StepTimeline | None = None
    alone: StepAlone | None = None
    planned: StepPlanned | None = None

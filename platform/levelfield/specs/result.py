"""A result: the figures and the status of a run, computed from its raw files alone."""

from __future__ import annotations

from typing import ClassVar, Literal

from levelfield.specs.base import Document, Value
from levelfield.specs.case import Precision, Scale
from levelfield.specs.layout import Layout
from levelfield.specs.suite import EntryUsed

Word = Literal["valid", "invalid", "oom", "failed", "timeout", "unsupported", "withheld", "not-run", "reference-only"]


class Status(Value):
    """`reasons` are sentences; `failure` names the class of a failed run, `evidence` the line that shows it."""

    word: Word
    reasons: tuple[str, ...] = ()
    failure: str | None = None
    evidence: str | None = None


class Figure(Value):
    """A number, or the reason why there is none."""

    value: float | None
    unit: str
    reason: str | None = None


class StepTimes(Value):
    """Seconds per step within the window; `spread` is the interquartile range over the median.

    flags: a trend or a change point in the window, as sentences. unchecked: the reason why neither was checked.
    """

    steps: int
    median: float
    mean: float
    p90: float
    minimum: float
    maximum: float
    spread: float
    flags: tuple[str, ...]
    unchecked: str | None


class Throughput(Value):
    """Tokens / wall time of the window; per device: divided by the number of devices."""

    tokens_per_second: float
    tokens_per_second_per_device: float
    wall_seconds: float
    step_seconds: StepTimes


class Utilisation(Value):
    """The utilisation by one formula, with all its inputs. `low` and `high`: the range that mixed fp8 gives."""

    formula: str
    kind: Literal["MFU", "HFU"]
    value: float | None
    low: float | None
    high: float | None
    flops_per_token: float | None
    achieved_tflops: float | None
    peak_tflops: float | None
    peak_source: str | None
    reason: str | None


class MemoryExpectation(Value):
    """The plan's estimate beside `measured`, the figure that it estimates. ratio: measured / expected, or null.

    remark: a sentence when they differ by more than 20 %. It makes no run invalid.
    """

    figure: str
    measured: Figure
    ratio: float | None
    remark: str | None


class Memory(Value):
    """Bytes of the worst rank or device; each null has its reason. `expected_bytes` is the plan's estimate.

    expectation: the estimate beside the measurement; None in results of older versions, and where memory is withheld.
    """

    device_used_peak: Figure
    allocated_peak: Figure
    reserved_peak: Figure
    process_peak: Figure
    capacity_bytes: int | None
    expected_bytes: int
    expectation: MemoryExpectation | None = None


class Energy(Value):
    joules: Figure
    joules_per_token: Figure
    mean_watts: Figure
    boundary: str


class Loss(Value):
    """Nats per token. `floor`: the entropy of a synthetic corpus, null for a real one."""

    first: float | None
    last: float | None
    tail_mean: float | None
    floor: float | None


class Identity(Value):
    """The evidence that two runs did the same work: digests of the case, the initial weights and the tokens."""

    work: str
    corpus: str
    initial_weights: str | None
    tokens: str | None


class AlignmentLayer(Value):
    """The result of one check: the number, its limit, and whether it passed; null when the check was not possible."""

    name: str
    passed: bool | None
    value: float | None
    limit: float | None
    detail: str


class Alignment(Value):
    """The verdict on the training against a reference, and the layers that give the verdict.

    flagperf_mean_error: FlagPerf's figure, the mean relative difference from step 21 on. It does not decide.
    """

    verdict: Literal["aligned", "diverged", "different", "inconclusive", "not comparable", "unchecked"]
    reason: str
    reference: str | None = None
    limits: str | None = None
    layers: tuple[AlignmentLayer, ...] = ()
    flagperf_mean_error: float | None = None


class Result(Document):
    """The result of one run.

    entry: the suite's entry that this run is. runtime: what the processes ran in. warnings: what the machine refused
    without stopping the run.
    """

    KIND: ClassVar[str] = "result"

    run_id: str
    case: str
    scale: Scale
    framework: str
    framework_version: str
    vendor: str
    chip: str
    device_is: str
    nodes: int
    devices: int
    precision: Precision
    layout: Layout
    micro_batch: int
    virtual_pipeline: int = 1
    accumulation: int
    recompute: str
    compile: bool
    parameters: int
    repeat: int
    status: Status
    steps_done: int
    steps_planned: int
    window: tuple[int, int]
    loss: Loss
    throughput: Throughput | None
    utilisation: tuple[Utilisation, ...]
    memory: Memory
    energy: Energy
    identity: Identity
    alignment: Alignment
    deviations: tuple[str, ...]
    entry: EntryUsed | None = None
    runtime: str = "process"
    warnings: tuple[str, ...] = ()

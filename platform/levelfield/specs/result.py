"""A result: what a run came to, computed from its raw files alone.

Every field has a description, and every number its unit: docs/result.md is made from both.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, TypeVar, get_args

from pydantic import Field

from levelfield.specs.base import LATER, Document, Value
from levelfield.specs.bundle import SealFinding
from levelfield.specs.case import Precision, Scale
from levelfield.specs.layout import Layout
from levelfield.specs.reference import Identity
from levelfield.specs.suite import EntryUsed
from levelfield.specs.tuning import recomputation

StatusWord = Literal[
    "valid", "invalid", "oom", "failed", "timeout", "unsupported", "withheld", "not-run", "reference-only", "unsealed",
    "tampered",
]  # fmt: skip
DISTURBED = "valid (disturbed)"  # in place of `valid` where a status is shown: others used more than the limits

# What computes attention: torch's own kernels by its names, the package flash-attn, transformer-engine's choice of its
# kernels, and separate products with the scores between them in memory.
AttentionKernelName = Literal["flash", "cudnn", "efficient", "math", "flash_attn", "transformer_engine", "unfused"]
ATTENTION_KERNELS: tuple[AttentionKernelName, ...] = get_args(AttentionKernelName)
FusedKernel = Literal["cross_entropy", "rotary", "swiglu", "add_norm"]
FUSED_KERNELS: tuple[FusedKernel, ...] = get_args(FusedKernel)
Fp8LibraryName = Literal["transformer_engine", "torchao", "rounded"]
FP8_LIBRARIES: tuple[Fp8LibraryName, ...] = get_args(Fp8LibraryName)

INTERRUPTED = "interrupted by the user"  # a reason
ABOVE_PEAK = "above the peak"  # in the reason of a utilisation that would be above 1
IMPLAUSIBLE = "implausible"  # a class of failure: the run has less memory, time or energy than its training needs
PRETENDED = "pretended devices"  # a class of failure: a stand-in for a device, whose figures mean nothing

# A number with its unit, as a type: `Seconds[float]`.
N = TypeVar("N")
Bytes = Annotated[N, Field(json_schema_extra={"unit": "B"})]
Count = Annotated[N, Field(json_schema_extra={"unit": "count"})]
DeviceRate = Annotated[N, Field(json_schema_extra={"unit": "tokens/s per device"})]
FlopsPerToken = Annotated[N, Field(json_schema_extra={"unit": "FLOP/token"})]
LayerNumber = Annotated[N, Field(json_schema_extra={"unit": "layer number"})]
Nats = Annotated[N, Field(json_schema_extra={"unit": "nats per token"})]
NodeNumber = Annotated[N, Field(json_schema_extra={"unit": "node number"})]
RankNumber = Annotated[N, Field(json_schema_extra={"unit": "rank number"})]
Ratio = Annotated[N, Field(json_schema_extra={"unit": "1"})]
Seconds = Annotated[N, Field(json_schema_extra={"unit": "s"})]
Sequences = Annotated[N, Field(json_schema_extra={"unit": "sequences"})]
Stated = Annotated[N, Field(json_schema_extra={"unit": "as `unit` says"})]
StepNumber = Annotated[N, Field(json_schema_extra={"unit": "step number"})]
Tflops = Annotated[N, Field(json_schema_extra={"unit": "TFLOP/s"})]
TokensPerSecond = Annotated[N, Field(json_schema_extra={"unit": "tokens/s"})]


class Status(Value):
    """How the run ended, and why."""

    word: StatusWord = Field(
        description="How the run ended. Only `valid` and `unsealed` have a speed. `unsealed` and `tampered` "
        "replace `valid`; see evidence.md."
    )
    reasons: tuple[str, ...] = Field(default=(), description="Why the word is not `valid`.")
    failure: str | None = Field(
        default=None,
        description="Class of the failure, such as `oom`, `killed`, `hang`, `node`, `cancelled` or `environment`.",
    )
    evidence: str | None = Field(
        default=None, description="The line that shows the failure, and the steps done by then."
    )

    @property
    def has_figures(self) -> bool:
        """Whether the run has a speed: every rule of validity holds, and no file was changed later."""
        return self.word in ("valid", "unsealed")

    @property
    def is_unproven(self) -> bool:
        """Whether the raw files are not known to be those that the run left: it stands in no comparison."""
        return self.word in ("unsealed", "tampered")

    @property
    def is_interrupted(self) -> bool:
        """Whether the user ended the run, also where a rank of it could not be ended."""
        return self.failure == "interrupted" or (self.failure == "unkillable" and INTERRUPTED in self.reasons)


class Figure(Value):
    """A number, or the reason why there is none."""

    value: Stated[float | None] = Field(description="The number; null if unknown.")
    unit: str = Field(description="The unit of `value`: `B`, `J`, `J/token`, `W`, `cores` or `1`.")
    reason: str | None = Field(default=None, description="Why `value` is null.")


class StepTimes(Value):
    """Times of the single steps of the window, on the clock of one rank."""

    steps: Count[int] = Field(description="Steps in the window.")
    median: Seconds[float] = Field(description="Median time of a step.")
    mean: Seconds[float] = Field(description="Mean time of a step.")
    p90: Seconds[float] = Field(description="90th percentile of the step times.")
    minimum: Seconds[float] = Field(description="Time of the fastest step.")
    maximum: Seconds[float] = Field(description="Time of the slowest step.")
    spread: Ratio[float] = Field(description="Interquartile range over the median.")
    flags: tuple[str, ...] = Field(description="Trend or change point, each as a sentence.")
    unchecked: str | None = Field(description="Why neither was looked for.")


class Throughput(Value):
    """Target tokens of the window over its wall time."""

    tokens_per_second: TokensPerSecond[float] = Field(
        description="Tokens of the window, of all devices, over its wall time."
    )
    tokens_per_second_per_device: DeviceRate[float] = Field(description="The same, divided by `devices`.")
    wall_seconds: Seconds[float] = Field(description="From the end of the step before the window to its end.")
    step_seconds: StepTimes = Field(description="Times of the single steps.")


class Utilisation(Value):
    """One formula's utilisation, with every number that it was computed from."""

    formula: str = Field(description="The formula and its version, for example `palm/1`.")
    kind: Literal["MFU", "HFU"] = Field(description="`HFU` also counts recomputed FLOPs.")
    value: Ratio[float | None] = Field(description="Achieved over peak; null for a range, or without a peak.")
    low: Ratio[float | None] = Field(description="Lower end of the range in mixed fp8, else `value`.")
    high: Ratio[float | None] = Field(description="Upper end of the range in mixed fp8, else `value`.")
    flops_per_token: FlopsPerToken[float | None] = Field(
        description="Counted FLOPs of a token; null when the formula does not apply."
    )
    achieved_tflops: Tflops[float | None] = Field(description="FLOPs per token times tokens/s per device.")
    peak_tflops: Tflops[float | None] = Field(description="Peak of one device.")
    peak_source: str | None = Field(description="Origin of the peak: a publication, a private file or a probe.")
    reason: str | None = Field(description="Why `value` is null, or what to know about it.")
    parameters: Count[int | None] = Field(
        default=None,
        description="N of the formula, for MoE the active parameters; null for a formula without.",
    )

    @property
    def is_above_peak(self) -> bool:
        """Whether there is no value because it would be above 1."""
        return self.value is None and ABOVE_PEAK in (self.reason or "")


class MemoryExpectation(Value):
    """The estimate before the run against the figure that it estimates. A remark makes no run invalid."""

    figure: str = Field(description="`device-used peak`, or `process peak` on a CPU.")
    measured: Figure = Field(description="That figure as measured; null unless the run is valid.")
    ratio: Ratio[float | None] = Field(description="Measured over expected; null when nothing was measured.")
    remark: str | None = Field(description="Set when the two are over 20 % apart.")


class Memory(Value):
    """Memory of the worst rank or device."""

    device_used_peak: Figure = Field(
        description="Largest reading of the vendor's tool, fullest device: the headline, except on a CPU."
    )
    allocated_peak: Figure = Field(description="Largest amount that the framework's allocator gave out, worst rank.")
    reserved_peak: Figure = Field(description="Largest amount that the allocator held, worst rank.")
    process_peak: Figure = Field(description="Resident memory of the largest process: the headline on a CPU.")
    capacity_bytes: Bytes[int | None] = Field(description="Memory of one device.")
    expected_bytes: Bytes[int] = Field(description="The plan's estimate for the fullest rank, before the run.")
    expectation: MemoryExpectation | None = Field(default=None, description="The estimate against the measurement.")
    stage_peaks: Bytes[tuple[int, ...] | None] = Field(
        default=None,
        description="The headline of each pipeline stage, first stage first; null without stages or where unknown.",
    )


class NodeEnergy(Value):
    """Energy of whole nodes over the window, as the site's command read it."""

    joules: Figure = Field(description="Energy of all nodes over the window.")
    joules_per_token: Figure = Field(description="That energy over the tokens of the window.")
    mean_watts: Figure = Field(description="Mean power of all nodes together.")
    other_joules_per_token: Figure = Field(
        description="Energy per token beyond the devices'; null where that is unknown."
    )
    sources: tuple[str, ...] = Field(description="What was read, as the site's file names it.")
    readings: Count[int | None] = Field(description="Different readings in the window, of the node with the fewest.")
    resolution_seconds: Seconds[float | None] = Field(
        description="Time between readings, or over what the source averages; of the coarsest node."
    )


class Energy(Value):
    """Energy of all devices over the window."""

    joules: Figure = Field(description="Energy of all devices over the window.")
    joules_per_token: Figure = Field(description="That energy over the tokens of the window.")
    mean_watts: Figure = Field(description="Mean power of all devices together.")
    boundary: str = Field(description="What the readings cover. `chip`: what the vendor's tool measures.")
    nodes: NodeEnergy | None = Field(
        default=None,
        description="Energy of whole nodes; null without `node_power` in the site's file. See node-power.md.",
    )


class DeviceUse(Value):
    """What was used of one device before the training started."""

    device: str = Field(description="The device, by its index.")
    memory_used: Figure = Field(description="Used memory, by the vendor's tool.")
    load: Ratio[float | None] = Field(description="Utilisation, by the vendor's tool; null when it cannot be read.")
    in_use: bool | None = Field(
        description="Whether others use over 10 % of memory or load; null when neither is known."
    )


class OtherUse(Value):
    """What others used of the devices, and of the host's processors."""

    devices: tuple[DeviceUse, ...] = Field(description="Each device before the training; empty on a CPU.")
    host_before: Figure = Field(description="Cores that other programs used shortly before the training.")
    host_in_window: Figure = Field(description="Cores that other programs used in the window, on average.")
    host_cores: Count[int | None] = Field(description="Cores that the platform may use.")


class ReadingAround(Value):
    """What telemetry read during the slowest step, beside the whole window."""

    what: str = Field(description="`other programs`, `this run` (cores), `power`, `load` or `temperature` (devices).")
    unit: str = Field(description="Unit of both values: `cores`, `W`, `1` or `degrees Celsius`.")
    in_step: Stated[float | None] = Field(
        description="Mean over devices and readings during the step; highest temperature."
    )
    in_window: Stated[float | None] = Field(description="The same over the whole window.")
    reason: str | None = Field(default=None, description="Why `in_step` is null.")


class SlowestStep(Value):
    """The slowest step of the window."""

    step: StepNumber[int] = Field(description="Number of the step.")
    seconds: Seconds[float] = Field(description="How long it lasted.")
    over_median: Ratio[float] = Field(description="That over the median step.")
    after_seconds: Seconds[float] = Field(description="When it began, counted from the beginning of the window.")
    began: str | None = Field(description="When it began, in UTC; null where the time of day is unknown.")
    telemetry: tuple[ReadingAround, ...] = Field(description="What telemetry read during the step.")


class Disturbance(Value):
    """What single steps cost the window. An outlier lasts more than twice the median step."""

    slowest: SlowestStep = Field(description="The slowest step of the window, outlier or not.")
    outliers: Count[int] = Field(description="Steps above twice the median.")
    lost: Ratio[float] = Field(description="Part of the window that outliers lasted beyond the median.")
    unexplained: Ratio[float] = Field(description="The part of `lost` that other programs on the cores do not explain.")
    limit: Ratio[float] = Field(description="The largest `unexplained` of a valid run, by the case.")
    mean_over_median: Ratio[float] = Field(description="Mean step over median step.")
    platform_seconds: Seconds[tuple[float, float] | None] = Field(
        description="Least and most that the window lasted on the platform's clock; null where not seen."
    )
    flags: tuple[str, ...] = Field(description="Remarks, each as a sentence.")


class Loss(Value):
    """Cross-entropy of the training."""

    first: Nats[float | None] = Field(description="Loss of the first step with a finite one.")
    last: Nats[float | None] = Field(description="Loss of the last step with a finite one.")
    tail_mean: Nats[float | None] = Field(description="Mean loss of the case's `acceptance.tail_steps` last steps.")
    floor: Nats[float | None] = Field(
        description="Entropy of the synthetic corpus, below which no right run falls; null for files."
    )


class TimeToLoss(Value):
    """Time and tokens to a level of the loss, of an aligned run, on the wall clock of the measured steps."""

    level: Nats[float | None] = Field(description="The level, by the reference; null without a reference.")
    source: str | None = Field(description="How the level follows from the reference.")
    averaged_steps: Count[int] = Field(description="Steps back that the loss is averaged over.")
    step: StepNumber[float | None] = Field(description="Where the level is reached, interpolated between two steps.")
    tokens: Count[float | None] = Field(description="Tokens from step 1 to there.")
    seconds: Seconds[float | None] = Field(
        description="Time from the begin of the window to there; warm-up is not counted."
    )
    uncounted_steps: Count[int] = Field(description="Steps before the window, whose time is not counted.")
    reason: str | None = Field(default=None, description="Why there is no `seconds`.")


class TuningFound(Value):
    """Base or peak, as SPEC CPU calls them."""

    word: Literal["base", "peak"] = Field(
        description="`base`: defaults and rules equal for all cases. `peak`: somebody chose a free field."
    )
    chosen: dict[str, str] = Field(
        description="Each chosen field with `vendor`, `case string`, `suite NAME`, `file NAME` or `command line`."
    )


class LayerLoad(Value):
    """The load of the experts of one layer. A share is an expert's part of all choices of the layer."""

    layer: LayerNumber[int] = Field(description="The layer, counted from 0.")
    least: Ratio[float] = Field(description="Share of the expert that the fewest tokens chose.")
    mean: Ratio[float] = Field(description="Mean share: one over the number of experts.")
    largest: Ratio[float] = Field(description="Share of the expert that the most tokens chose.")
    imbalance: Ratio[float] = Field(description="`largest` over `mean`.")
    imbalance_last: Ratio[float] = Field(description="The same in the last recorded step alone.")
    never_chosen: Count[int] = Field(description="Experts that no token chose in any recorded step.")


class ExpertLoad(Value):
    """How many tokens chose each expert of a mixture."""

    over: Literal["window", "warm-up"] = Field(
        description="Steps of the shares. `warm-up`: gradient steps before the window, for many experts."
    )
    steps: Count[int] = Field(description="How many steps that are.")
    imbalance: Ratio[float] = Field(description="Largest over mean load, of the layer where it is largest.")
    imbalance_last: Ratio[float] = Field(description="The same in the last recorded step alone.")
    never_chosen: Count[int] = Field(description="Experts of all layers that no token chose in any recorded step.")
    layers: tuple[LayerLoad, ...] = Field(description="Each layer that is a mixture.")
    auxiliary_first: Nats[float | None] = Field(
        description="What the routers added to the loss of the first step; null without."
    )
    auxiliary_last: Nats[float | None] = Field(description="The same of the last step that has it.")


class AlignmentLayer(Value):
    """The finding of one layer of the comparison with the reference."""

    name: str = Field(
        description="`integrity`, `identity`, `first step`, `gradients`, `curve`, `norms`, `window`, `routing`, "
        "`spikes` or `final weights`; see alignment.md."
    )
    passed: bool | None = Field(description="Whether the layer holds; null where it cannot be told.")
    value: Ratio[float | None] = Field(description="Largest relative difference; of `spikes` the jump over the loss.")
    limit: Ratio[float | None] = Field(description="The largest value that passes.")
    detail: str = Field(description="The finding as a sentence, with step and parameter.")


class Alignment(Value):
    """Whether the training agrees with a reference."""

    verdict: Literal[
        "aligned", "consistent", "diverged", "different", "inconclusive", "not comparable", "unchecked"
    ] = Field(description="See alignment.md. Only a valid run is `aligned` or `consistent`.")
    reason: str = Field(description="Why, as a sentence.")
    reference: str | None = Field(
        default=None, description="The reference, with the run that it was made from; null without one."
    )
    limits: str | None = Field(default=None, description="Where the limits come from.")
    layers: tuple[AlignmentLayer, ...] = Field(default=(), description="The layers that were compared, in order.")
    flagperf_mean_error: Ratio[float | None] = Field(
        default=None,
        description="FlagPerf's mean relative difference of losses from step 21 on. It decides nothing.",
    )


class CertificateFinding(Value):
    """Whether the same training is aligned in fp32 at smoke scale."""

    holds: bool = Field(description="Whether there is a certificate of this code, software, chip and kind of layout.")
    reason: str | None = Field(default=None, description="Why none counts, as a sentence.")
    run_id: str | None = Field(default=None, description="The run in fp32 at smoke scale that it rests on.")
    made: str | None = Field(default=None, description="When it was made.")
    digest: str | None = Field(default=None, description="Digest of the certificate.")


class System(Value):
    """What the run stood on, as the reports of others list it. Null or empty: it could not be read."""

    os: str | None = Field(description="Operating system with its version.")
    kernel: str | None = Field(description="Version of its kernel.")
    processor: str | None = Field(description="Processor of the host.")
    model: str | None = Field(default=None, description="Maker and name of the machine, by its firmware.")
    network: tuple[str, ...] = Field(
        description="Active InfiniBand ports and interfaces of the first node, with rates."
    )
    software: dict[str, str] = Field(description="Driver and libraries, as the vendor's tool names them.")
    engine: str | None = Field(description="Container engine with its version; null outside of a container.")


class Origin(Value):
    """What the run was made with, as digests: equal digests mean the same thing. Null: not recorded."""

    implementation: str | None = Field(
        description="Digest of the training's code: its folder, those it shares, the worker."
    )
    packages: str | None = Field(description="Digest of the packages of the training's Python.")
    image: str | None = Field(description="Digest of the container image; null outside of a container.")
    machine: str | None = Field(description="Digest of the machine's own identifier and name.")


class Straggler(Value):
    """A node or a rank that the others wait for."""

    name: str = Field(description="The node, or `rank` with its number.")
    ranks: RankNumber[tuple[int, ...]] = Field(description="Its ranks.")
    excess: Ratio[float] = Field(
        description="Its work before the exchange over the others' median, minus 1, in the median step."
    )
    waited_seconds: Seconds[float] = Field(description="What the others waited for it, in the median step.")
    slowest_in: Count[int] = Field(description="Steps in which it was the slowest.")
    chance: Ratio[float] = Field(description="Probability that any rank or node is the slowest so often by chance.")


class RankPace(Value):
    """Who waited for whom, by how long each rank worked before a step's first exchange."""

    steps: Count[int] = Field(description="Steps of the window with a time of every rank.")
    stragglers: tuple[Straggler, ...] = Field(description="Nodes, then ranks; empty when none was found.")
    unchecked: str | None = Field(default=None, description="Why none was looked for.")


class NodeResult(Value):
    """One node of a run over several machines."""

    node: NodeNumber[int] = Field(description="Number of the node, from 0.")
    name: str | None = Field(description="Its host's name; null when it never told it.")
    word: str | None = Field(
        description="`ended`, `failed`, `stopped`, `lost`, `differs`, `unreachable`, `device-taken`, `cancelled`, "
        "`preempted` or `time-limit`."
    )
    detail: str | None = Field(description="The evidence for that.")
    missing: tuple[str, ...] = Field(description="Evidence of the node that did not arrive.")
    kernel: str | None = Field(description="Its operating system's kernel.")
    software: dict[str, str] = Field(description="Driver and libraries of the vendor there.")
    cores: Count[int | None] = Field(description="Cores that the run may use there.")
    memory_bytes: Bytes[int | None] = Field(description="Memory of the host.")


class AttentionKernelFound(Value):
    """The kernel of attention's core, or the reason why it is not known."""

    name: AttentionKernelName | None = Field(
        description="`flash`, `cudnn`, `efficient`, `math`: torch's names. `transformer_engine` chooses among its "
        "own. `unfused`: separate matmuls. Null: not known."
    )
    reason: str | None = Field(default=None, description="Why `name` is null.")


class Fp8LibraryFound(Value):
    """What computed the products of a training in fp8, or the reason why it is not known."""

    name: Fp8LibraryName | None = Field(
        description="`rounded`: a CPU, in float32 with operands rounded to 8 bits. Null: not known."
    )
    reason: str | None = Field(default=None, description="Why `name` is null.")


class Result(Document):
    """What a run came to: result.json."""

    KIND: ClassVar[str] = "result"

    @property
    def recomputation(self) -> str:
        """What was computed again, such as `full`, or `full 12` for the first 12 layers of each chunk."""
        return recomputation(self.recompute, self.recompute_layers)

    run_id: str = Field(description="Name of the run and its directory.")
    case: str = Field(description="Name of the case.")
    scale: Scale = Field(description="`smoke` is other work than `full`.")
    framework: str = Field(description="Name of the implementation.")
    framework_version: str = Field(description="Version that the training reported, else the pinned one.")
    vendor: str = Field(description="Name of the vendor.")
    chip: str = Field(description="Name of the chip.")
    device_is: str = Field(description="`card`, `die` or `host share`.")
    nodes: Count[int] = Field(description="Nodes of the run.")
    devices: Count[int] = Field(description="Devices of all nodes together; one process each.")
    precision: Precision = Field(description="Precision that the case trains in.")
    layout: Layout = Field(description="How the training was spread over the devices.")
    micro_batch: Sequences[int] = Field(description="Sequences of one forward pass of one data-parallel rank.")
    virtual_pipeline: Count[int] = Field(
        default=1, description="Virtual stages of each pipeline stage; 1: not interleaved."
    )
    accumulation: Count[int] = Field(description="Micro-batches of one data-parallel rank in one step.")
    recompute: str = Field(description="Activation checkpointing: `none`, `selective` or `full`.")
    recompute_layers: Count[int | None] = Field(
        default=None, description="Of `full`: the first layers of each virtual stage. Null: all."
    )
    repeated: str | None = Field(
        default=None,
        description="What that repeats, for HFU: `none`, `selective`, `selective-attention`, `full` or "
        "`full-except-down` (no last matmul).",
    )
    compile: bool = Field(description="Whether the framework compiled the model.")
    compile_seconds: Seconds[float | None] = Field(
        default=None,
        description="Time of the framework's compiler, slowest rank, before the window. Null where not reported.",
    )
    graph: bool = Field(default=False, description="Whether steps were replayed as a CUDA graph.")
    tuning: TuningFound | None = Field(
        default=None,
        description="Whether the free fields are the defaults.",
        json_schema_extra=LATER,
    )
    attention_kernel: AttentionKernelFound | None = Field(
        default=None, description="What computed attention's core; null where not reported."
    )
    kernels: tuple[FusedKernel, ...] | None = Field(
        default=None,
        description="The implementation's fused kernels: `cross_entropy`, `rotary`, `swiglu`, "
        "`add_norm`. Null without a "
        "common list.",
    )
    fp8_library: Fp8LibraryFound | None = Field(
        default=None, description="What computed the fp8 matmuls; null where not reported."
    )
    parameters: Count[int] = Field(description="Parameters of the model at this scale, embeddings included.")
    active_parameters: Count[int | None] = Field(default=None, description="Of MoE: parameters that one token uses.")
    repeat: Count[int] = Field(description="Which repeat of the case this is, from 1.")
    status: Status = Field(description="How the run ended, and why.")
    steps_done: Count[int] = Field(description="Steps that every rank finished.")
    steps_planned: Count[int] = Field(description="Steps of the case at this scale.")
    window: StepNumber[tuple[int, int]] = Field(description="First and last measured step, both included.")
    loss: Loss = Field(description="Losses of the training.")
    experts: ExpertLoad | None = Field(
        default=None,
        description="Load of the experts; null for other models, and where not recorded whole.",
    )
    to_loss: TimeToLoss | None = Field(
        default=None,
        description="Time and tokens to a level of the loss.",
        json_schema_extra=LATER,
    )
    throughput: Throughput | None = Field(description="Speed over the window; null unless the run is valid.")
    utilisation: tuple[Utilisation, ...] = Field(
        description="MFU and HFU by each formula; empty unless the run is valid. The headline is `megatron`."
    )
    memory: Memory = Field(description="Memory of the worst rank or device.")
    energy: Energy = Field(description="Energy over the window.")
    system: System | None = Field(default=None, description="Operating system, driver, network and engine.")
    load: Figure | None = Field(
        default=None,
        description="Mean share of the window in which the devices did anything, by the vendor's tool.",
    )
    other_use: OtherUse | None = Field(
        default=None, description="What others used of the machine; null where not recorded."
    )
    disturbance: Disturbance | None = Field(
        default=None, description="What single steps cost the window; null where the window is not complete."
    )
    identity: Identity = Field(description="What makes two runs comparable.")
    work_but_precision: str | None = Field(
        default=None,
        description="Digest of the work without precision and loss scale, for `compare --across precision`.",
    )
    alignment: Alignment = Field(description="Whether the training agrees with a reference.")
    certificate: CertificateFinding | None = Field(
        default=None, description="Needed by an aligned run in 16 bits or at full scale; else null."
    )
    deviations: tuple[str, ...] = Field(description="What differs from the request, each as a sentence.")
    entry: EntryUsed | None = Field(default=None, description="The suite's entry; null outside one.")
    runtime: str = Field(default="process", description="`process`, `docker` or `inside`.")
    warnings: tuple[str, ...] = Field(
        default=(),
        description="Remarks about machine or container engine. A warning makes no run invalid.",
    )
    allowed: tuple[str, ...] = Field(
        default=(), description="What the user allowed the container beyond the closed list; see security.md."
    )
    inherited: dict[str, str] = Field(
        default={},
        description="Variables inherited from the user's shell, without those that cannot change a training. "
        "Secrets are digests.",
    )
    preflight: str | None = Field(
        default=None,
        description="Preflight in a sentence; null where not measured. See preflight.md.",
    )
    origin: Origin | None = Field(default=None, description="What the run was made with.")
    predicted_rate: DeviceRate[float | None] = Field(
        default=None,
        description="The planner's prediction before the run; null where it did not choose the layout.",
    )
    pace: RankPace | None = Field(default=None, description="Who waited for whom; null where not recorded.")
    machines: tuple[NodeResult, ...] = Field(
        default=(), description="Each node, and how its part ended; empty on the platform's machine alone."
    )
    seal: SealFinding | None = Field(default=None, description="Whether the raw files are as sealed.")

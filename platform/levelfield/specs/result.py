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

Word = Literal[
    "valid", "invalid", "oom", "failed", "timeout", "unsupported", "withheld", "not-run", "reference-only", "unsealed",
    "tampered",
]  # fmt: skip

# What computes attention: torch's own kernels by its names, the package flash-attn, transformer-engine's choice of its
# kernels, and separate products with the scores between them in memory.
AttentionKernelName = Literal["flash", "cudnn", "efficient", "math", "flash_attn", "transformer_engine", "unfused"]
KERNELS: tuple[AttentionKernelName, ...] = get_args(AttentionKernelName)
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

    word: Word = Field(
        description="How the run ended, in one word. Only a `valid` or `unsealed` run has a speed. `unsealed` and "
        "`tampered` stand in place of `valid`; see evidence.md."
    )
    reasons: tuple[str, ...] = Field(default=(), description="Why the word is not `valid`; empty for a valid run.")
    failure: str | None = Field(
        default=None,
        description="Class of the failure, for example `oom`, `killed`, `hang`, `node`, `cancelled` or `environment`.",
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

    value: Stated[float | None] = Field(description="The number; null when it is not known.")
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
    flags: tuple[str, ...] = Field(
        description="A trend or a change point in the window, each as a sentence; empty when none was found."
    )
    unchecked: str | None = Field(description="Why trends and change points were not looked for.")


class Throughput(Value):
    """Target tokens of the window over its wall time."""

    tokens_per_second: TokensPerSecond[float] = Field(
        description="Tokens of the window, of all devices, over its wall time."
    )
    tokens_per_second_per_device: DeviceRate[float] = Field(description="The same, divided by `devices`.")
    wall_seconds: Seconds[float] = Field(
        description="From the end of the step before the window to the end of its last step."
    )
    step_seconds: StepTimes = Field(description="Times of the single steps.")


class Utilisation(Value):
    """One formula's utilisation, with every number that it was computed from."""

    formula: str = Field(description="The formula and its version, for example `palm/1`.")
    kind: Literal["MFU", "HFU"] = Field(
        description="`MFU` counts the FLOPs that the model needs; `HFU` also counts recomputed ones."
    )
    value: Ratio[float | None] = Field(
        description="Achieved over peak: 0.5 is 50 %. Null for a range, or without a peak."
    )
    low: Ratio[float | None] = Field(description="Lower end of the range in mixed fp8; equal to `value` otherwise.")
    high: Ratio[float | None] = Field(description="Upper end of the range in mixed fp8; equal to `value` otherwise.")
    flops_per_token: FlopsPerToken[float | None] = Field(
        description="What the formula counts for one token; null when the formula does not apply."
    )
    achieved_tflops: Tflops[float | None] = Field(description="FLOPs per token times tokens/s per device.")
    peak_tflops: Tflops[float | None] = Field(description="The peak of one device that it is divided by.")
    peak_source: str | None = Field(description="Where the peak comes from: a publication, a private file or a probe.")
    reason: str | None = Field(description="Why `value` is null, or what to know about it.")
    parameters: Count[int | None] = Field(
        default=None,
        description="The N of the formula: of a mixture of experts the active parameters. Null for a formula without.",
    )

    @property
    def is_above_peak(self) -> bool:
        """Whether there is no value because it would be above 1."""
        return self.value is None and ABOVE_PEAK in (self.reason or "")


class MemoryExpectation(Value):
    """The estimate before the run against the figure that it estimates. A remark makes no run invalid."""

    figure: str = Field(description="Which figure is compared: `device-used peak`, or `process peak` on a processor.")
    measured: Figure = Field(description="That figure as measured; null unless the run is valid.")
    ratio: Ratio[float | None] = Field(description="Measured over expected; null when nothing was measured.")
    remark: str | None = Field(description="What to know when the two are more than 20 % apart.")


class Memory(Value):
    """Memory of the worst rank or device."""

    device_used_peak: Figure = Field(
        description="Largest reading of the vendor's tool, of the fullest device. The headline, except on a processor."
    )
    allocated_peak: Figure = Field(description="Largest amount that the framework's allocator gave out, worst rank.")
    reserved_peak: Figure = Field(description="Largest amount that the framework's allocator held, worst rank.")
    process_peak: Figure = Field(
        description="Resident memory of the largest process, by the operating system. The headline on a processor."
    )
    capacity_bytes: Bytes[int | None] = Field(description="Memory of one device.")
    expected_bytes: Bytes[int] = Field(description="The plan's estimate for the fullest rank, before the run.")
    expectation: MemoryExpectation | None = Field(default=None, description="The estimate against the measurement.")
    stage_peaks: Bytes[tuple[int, ...] | None] = Field(
        default=None,
        description="The headline of each pipeline stage, first stage first; null without stages, and where that of a "
        "rank is unknown.",
    )


class NodeEnergy(Value):
    """Energy of whole nodes over the window, as the site's command read it."""

    joules: Figure = Field(description="Energy of all nodes over the window.")
    joules_per_token: Figure = Field(description="That energy over the tokens of the window.")
    mean_watts: Figure = Field(description="That energy over the wall time: mean power of all nodes together.")
    other_joules_per_token: Figure = Field(
        description="Energy per token that is not of the devices. It is of processors, memory, network, fans, power "
        "supplies and idle devices. Null where the devices' own energy is."
    )
    sources: tuple[str, ...] = Field(description="What was read, as the site's file names it.")
    readings: Count[int | None] = Field(description="Different readings in the window, of the node with the fewest.")
    resolution_seconds: Seconds[float | None] = Field(
        description="Time from one reading to the next, or over what the source averages; of the coarsest node. The "
        "window's ends are known no better."
    )


class Energy(Value):
    """Energy of all devices over the window."""

    joules: Figure = Field(description="Energy of all devices over the window.")
    joules_per_token: Figure = Field(description="That energy over the tokens of the window.")
    mean_watts: Figure = Field(description="That energy over the wall time: mean power of all devices together.")
    boundary: str = Field(
        description="What the readings cover. `chip`: what the vendor's tool measures; never host, network or cooling."
    )
    nodes: NodeEnergy | None = Field(
        default=None,
        description="Energy of the whole nodes; null where the site's file has no `node_power`. See node-power.md.",
    )


class DeviceUse(Value):
    """What was used of one device before the training started."""

    device: str = Field(description="The device, by its index.")
    memory_used: Figure = Field(description="Used memory, by the vendor's tool.")
    load: Ratio[float | None] = Field(description="Utilisation, by the vendor's tool; null when it cannot be read.")
    in_use: bool | None = Field(
        description="Whether others use the device: over 10 % of its memory or load; null when neither is known."
    )


class OtherUse(Value):
    """What others used of the devices, and of the host's processors."""

    devices: tuple[DeviceUse, ...] = Field(
        description="Each device before the training; empty on a processor, whose use the next figures show."
    )
    host_before: Figure = Field(description="Cores that other programs kept busy shortly before the training.")
    host_in_window: Figure = Field(description="Cores that other programs kept busy in the window, on average.")
    host_cores: Count[int | None] = Field(description="Cores that the platform may use.")


class ReadingAround(Value):
    """What telemetry read during the slowest step, beside the whole window."""

    what: str = Field(
        description="`other programs`, `this run` (cores kept busy), `power`, `load` or `temperature` (of the devices)."
    )
    unit: str = Field(description="Unit of both values: `cores`, `W`, `1` or `degrees Celsius`.")
    in_step: Stated[float | None] = Field(
        description="During the step: the mean over devices and readings; of a temperature the highest."
    )
    in_window: Stated[float | None] = Field(description="The same over the whole window.")
    reason: str | None = Field(default=None, description="Why `in_step` is null.")


class SlowestStep(Value):
    """The slowest step of the window."""

    step: StepNumber[int] = Field(description="Number of the step.")
    seconds: Seconds[float] = Field(description="How long it lasted.")
    over_median: Ratio[float] = Field(description="That over the median step.")
    after_seconds: Seconds[float] = Field(description="When it began, counted from the beginning of the window.")
    began: str | None = Field(description="When it began, in UTC; null where telemetry did not record the time of day.")
    telemetry: tuple[ReadingAround, ...] = Field(description="What telemetry read during the step.")


class Disturbance(Value):
    """What single steps cost the window. An outlier lasts more than twice the median step."""

    slowest: SlowestStep = Field(description="The slowest step of the window, outlier or not.")
    outliers: Count[int] = Field(description="Steps above twice the median.")
    lost: Ratio[float] = Field(description="Part of the window that outliers lasted beyond the median.")
    unexplained: Ratio[float] = Field(
        description="The part of `lost` that the use of the cores by other programs does not explain."
    )
    limit: Ratio[float] = Field(description="The largest `unexplained` of a valid run, by the case.")
    mean_over_median: Ratio[float] = Field(description="Mean step over median step.")
    platform_seconds: Seconds[tuple[float, float] | None] = Field(
        description="How long the window lasted at least and at most on the platform's clock; null where not seen."
    )
    flags: tuple[str, ...] = Field(description="What to know about the above, each as a sentence; empty for nothing.")


class Loss(Value):
    """Cross-entropy of the training."""

    first: Nats[float | None] = Field(description="Loss of the first step that has a finite one.")
    last: Nats[float | None] = Field(description="Loss of the last step that has a finite one.")
    tail_mean: Nats[float | None] = Field(
        description="Mean loss of the last steps; the case's `acceptance.tail_steps` says how many."
    )
    floor: Nats[float | None] = Field(
        description="Entropy of the synthetic corpus, which no right run falls below; null for a corpus of files."
    )


class TimeToLoss(Value):
    """Time and tokens to a level of the loss, of an aligned run, on the wall clock of the measured steps."""

    level: Nats[float | None] = Field(description="The level, by the reference; null without a reference.")
    source: str | None = Field(description="How the level follows from the reference.")
    averaged_steps: Count[int] = Field(description="Steps back that the loss is averaged over.")
    step: StepNumber[float | None] = Field(description="Where the level is reached, interpolated between two steps.")
    tokens: Count[float | None] = Field(description="Tokens from step 1 to there.")
    seconds: Seconds[float | None] = Field(
        description="Time from the begin of the window to there. Start, compilation and warm-up are not counted."
    )
    uncounted_steps: Count[int] = Field(description="Steps before the window, whose time is not counted.")
    reason: str | None = Field(default=None, description="Why there is no `seconds`.")


class TuningFound(Value):
    """Base or peak, as SPEC CPU calls them."""

    word: Literal["base", "peak"] = Field(
        description="`base`: the case's defaults hold, and rules that are the same for all cases. `peak`: somebody "
        "chose a free field for this run."
    )
    chosen: dict[str, str] = Field(
        description="Each chosen free field, with who chose it: `vendor`, `case string`, `suite NAME`, `file NAME` or "
        "`command line`."
    )


class LayerLoad(Value):
    """The load of the experts of one layer. A share is an expert's part of all choices of the layer."""

    layer: LayerNumber[int] = Field(description="The layer, counted from 0.")
    least: Ratio[float] = Field(description="Share of the expert that the fewest tokens chose.")
    mean: Ratio[float] = Field(description="Mean share: one over the number of experts.")
    largest: Ratio[float] = Field(description="Share of the expert that the most tokens chose.")
    imbalance: Ratio[float] = Field(description="`largest` over `mean`.")
    imbalance_last: Ratio[float] = Field(description="The same in the last recorded step alone.")
    never_chosen: Count[int] = Field(
        description="Experts that no token chose in any recorded step, before the window or in it."
    )


class ExpertLoad(Value):
    """How many tokens chose each expert of a mixture."""

    over: Literal["window", "warm-up"] = Field(
        description="The steps that the shares are over. `warm-up`: steps before the window, which record gradients. "
        "A mixture of many experts records no others."
    )
    steps: Count[int] = Field(description="How many steps that are.")
    imbalance: Ratio[float] = Field(
        description="The largest load over the mean load, of the layer where it is largest."
    )
    imbalance_last: Ratio[float] = Field(description="The same in the last recorded step alone.")
    never_chosen: Count[int] = Field(description="Experts of all layers that no token chose in any recorded step.")
    layers: tuple[LayerLoad, ...] = Field(description="Each layer that is a mixture.")
    auxiliary_first: Nats[float | None] = Field(
        description="What the routers added to the loss of the first step, with its coefficients; null without one."
    )
    auxiliary_last: Nats[float | None] = Field(description="The same of the last step that has it.")


class AlignmentLayer(Value):
    """The finding of one layer of the comparison with the reference."""

    name: str = Field(
        description="`integrity`, `identity`, `first step`, `gradients`, `curve`, `norms`, `window`, `routing`, "
        "`spikes` or `final weights`; see alignment.md."
    )
    passed: bool | None = Field(description="Whether the layer holds; null where it cannot be told.")
    value: Ratio[float | None] = Field(
        description="The largest relative difference of the layer; of `spikes` the jump, relative to the loss."
    )
    limit: Ratio[float | None] = Field(description="The largest value that passes.")
    detail: str = Field(description="The finding as a sentence, with step and parameter.")


class Alignment(Value):
    """Whether the training agrees with a reference."""

    verdict: Literal[
        "aligned", "consistent", "diverged", "different", "inconclusive", "not comparable", "unchecked"
    ] = Field(
        description="The verdict on the training; see alignment.md. `consistent`: no layer differs, which in 16 bits "
        "or at full scale shows little without a certificate. Only a valid run is `aligned` or "
        "`consistent`."
    )
    reason: str = Field(description="Why, as a sentence.")
    reference: str | None = Field(
        default=None, description="Name of the reference, with the run that it was made from; null without one."
    )
    limits: str | None = Field(default=None, description="Where the limits come from.")
    layers: tuple[AlignmentLayer, ...] = Field(default=(), description="The layers that were compared, in order.")
    flagperf_mean_error: Ratio[float | None] = Field(
        default=None,
        description="FlagPerf's figure: mean relative difference of the losses from step 21 on. It decides nothing.",
    )


class CertificateFinding(Value):
    """Whether the same training is aligned in fp32 at smoke scale."""

    holds: bool = Field(description="Whether there is a certificate of this code, software, chip and kind of layout.")
    reason: str | None = Field(default=None, description="Why none holds, as a sentence; null where it holds.")
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
        description="Active InfiniBand ports and physical interfaces of the first node, with their rates."
    )
    software: dict[str, str] = Field(description="Driver and libraries of the vendor, as its own tool names them.")
    engine: str | None = Field(description="Container engine with its version; null outside of a container.")


class Origin(Value):
    """What the run was made with, as digests: equal digests mean the same thing. Null: not recorded."""

    implementation: str | None = Field(
        description="Digest of all code of the training but its framework's: its folder, those it shares, the worker."
    )
    packages: str | None = Field(description="Digest of the packages of the training's Python, with their versions.")
    image: str | None = Field(description="Digest of the container image; null outside of a container.")
    machine: str | None = Field(description="Digest of the machine's own identifier and name.")


class Straggler(Value):
    """A node or a rank that the others wait for."""

    name: str = Field(description="The node, or `rank` with its number.")
    ranks: RankNumber[tuple[int, ...]] = Field(description="Its ranks.")
    excess: Ratio[float] = Field(
        description="Its own work before the exchange over the others' median, minus 1, in the median step."
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
        description="How its part ended: `ended`, `failed`, `stopped`, `lost`, `differs`, `unreachable`, "
        "`device-taken`, `cancelled`, `preempted` or `time-limit`. Null when nothing is known."
    )
    detail: str | None = Field(description="The evidence for that, as a sentence.")
    missing: tuple[str, ...] = Field(description="Which evidence of the node did not arrive; empty when all did.")
    kernel: str | None = Field(description="Its operating system's kernel.")
    software: dict[str, str] = Field(description="Driver and libraries of the vendor, as its tools name them there.")
    cores: Count[int | None] = Field(description="Cores that the run may use there.")
    memory_bytes: Bytes[int | None] = Field(description="Memory of the host.")


class AttentionKernelFound(Value):
    """The kernel of attention's core, or the reason why it is not known."""

    name: AttentionKernelName | None = Field(
        description="As the training named it. `flash`, `cudnn`, `efficient` and `math` are torch's own names. On a "
        "processor `flash` is torch's kernel for processors. `flash_attn` is the package of that name. "
        "`transformer_engine` chooses among its own kernels. `unfused` has separate products. Null: not known."
    )
    reason: str | None = Field(default=None, description="Why `name` is null.")


class Fp8LibraryFound(Value):
    """What computed the products of a training in fp8, or the reason why it is not known."""

    name: Fp8LibraryName | None = Field(
        description="As the training named it. `rounded`: a processor, in float32 with operands rounded to 8 bits. "
        "Null: not known."
    )
    reason: str | None = Field(default=None, description="Why `name` is null.")


class Result(Document):
    """What a run came to: result.json."""

    KIND: ClassVar[str] = "result"

    @property
    def recomputation(self) -> str:
        """What was computed again, such as `full`, or `full 12` for the first 12 layers of each chunk."""
        return recomputation(self.recompute, self.recompute_layers)

    run_id: str = Field(description="Name of the run and of its directory: time, case, framework, vendor, random part.")
    case: str = Field(description="Name of the case.")
    scale: Scale = Field(description="Whether the case ran whole or at its `smoke` size. The two are different work.")
    framework: str = Field(description="Name of the implementation.")
    framework_version: str = Field(
        description="Version that the training process reported; the pinned version when it reported none."
    )
    vendor: str = Field(description="Name of the vendor.")
    chip: str = Field(description="Name of the chip.")
    device_is: str = Field(description="What one device is: `card`, `die` or `host share`.")
    nodes: Count[int] = Field(description="Nodes of the run.")
    devices: Count[int] = Field(description="Devices of all nodes together; one process each.")
    precision: Precision = Field(description="Precision that the case trains in.")
    layout: Layout = Field(description="How the training was spread over the devices.")
    micro_batch: Sequences[int] = Field(description="Sequences of one forward pass of one data-parallel rank.")
    virtual_pipeline: Count[int] = Field(
        default=1, description="Model chunks of each pipeline stage; 1: not interleaved."
    )
    accumulation: Count[int] = Field(description="Micro-batches of one data-parallel rank in one step.")
    recompute: str = Field(description="Which activations were computed again: `none`, `selective` or `full`.")
    recompute_layers: Count[int | None] = Field(
        default=None, description="Of `full`: how many layers of each stage's chunk, the first ones. Null: all of them."
    )
    repeated: str | None = Field(
        default=None,
        description="What that repeats: `none`, `selective`, `selective-attention`, `full` or `full-except-down` "
        "(all products of a layer but the last). HFU counts it.",
    )
    compile: bool = Field(description="Whether the framework compiled the model.")
    compile_seconds: Seconds[float | None] = Field(
        default=None,
        description="What the framework's compiler took, on the rank where it took longest. No rate counts it: it is "
        "done before the window. Null where the training does not report it.",
    )
    graph: bool = Field(default=False, description="Whether each step was captured as a CUDA graph and replayed.")
    tuning: TuningFound | None = Field(
        default=None,
        description="Whether the free fields are the defaults; null for results of an earlier version.",
        json_schema_extra=LATER,
    )
    attention_kernel: AttentionKernelFound | None = Field(
        default=None, description="What computed attention's core. Null where the training does not report it."
    )
    kernels: tuple[FusedKernel, ...] | None = Field(
        default=None,
        description="The implementation's own fused kernels that computed. `cross_entropy`: the loss with the gradient "
        "of its logits. `rotary`: rotary positions. `swiglu`: the product of a gated MLP. `add_norm`: a residual sum "
        "with the norm behind it. Empty: none, all was the framework's. Null where the ranks report no common list.",
    )
    fp8_library: Fp8LibraryFound | None = Field(
        default=None, description="What computed the products in fp8. Null where the training does not report it."
    )
    parameters: Count[int] = Field(description="Parameters of the model at this scale, embeddings included.")
    active_parameters: Count[int | None] = Field(
        default=None, description="Of a mixture of experts: the parameters that one token uses. Null for other models."
    )
    repeat: Count[int] = Field(description="Which repeat of the case this is, from 1.")
    status: Status = Field(description="How the run ended, and why.")
    steps_done: Count[int] = Field(description="Steps that every rank finished.")
    steps_planned: Count[int] = Field(description="Steps of the case at this scale.")
    window: StepNumber[tuple[int, int]] = Field(description="First and last measured step, both included.")
    loss: Loss = Field(description="Losses of the training.")
    experts: ExpertLoad | None = Field(
        default=None,
        description="The load of the experts; null for a model without, and where the routing was not recorded whole.",
    )
    to_loss: TimeToLoss | None = Field(
        default=None,
        description="Time and tokens to a level of the loss; null for results of an earlier version.",
        json_schema_extra=LATER,
    )
    throughput: Throughput | None = Field(description="Speed over the window; null unless the run is valid.")
    utilisation: tuple[Utilisation, ...] = Field(
        description="MFU and HFU by each formula; empty unless the run is valid. The headline is `megatron`."
    )
    memory: Memory = Field(description="Memory of the worst rank or device.")
    energy: Energy = Field(description="Energy over the window.")
    system: System | None = Field(
        default=None, description="Operating system, driver, network and engine; null for runs of an earlier version."
    )
    load: Figure | None = Field(
        default=None,
        description="Mean utilisation of the devices over the window, by the vendor's tool. It is the share of time in "
        "which they did anything, not how much they did. Null for runs of an earlier version.",
    )
    other_use: OtherUse | None = Field(
        default=None, description="What others used of the machine; null for runs that did not record it."
    )
    disturbance: Disturbance | None = Field(
        default=None, description="What single steps cost the window; null where the window is not complete."
    )
    identity: Identity = Field(description="What makes two runs comparable.")
    work_but_precision: str | None = Field(
        default=None,
        description="Digest of the work with precision and loss scale left out: `compare --across precision` needs it. "
        "Null for results of an earlier version.",
    )
    alignment: Alignment = Field(description="Whether the training agrees with a reference.")
    certificate: CertificateFinding | None = Field(
        default=None, description="The certificate that an aligned run in 16 bits or at full scale needs; else null."
    )
    deviations: tuple[str, ...] = Field(description="What differs from what was asked for, each as a sentence.")
    entry: EntryUsed | None = Field(default=None, description="Which entry of which suite this is; null outside one.")
    runtime: str = Field(default="process", description="What the ranks ran in: `process`, `docker` or `inside`.")
    warnings: tuple[str, ...] = Field(
        default=(),
        description="What is known about the machine, or what the container engine refused, each as a sentence. "
        "A warning makes no run invalid.",
    )
    allowed: tuple[str, ...] = Field(
        default=(), description="What the user allowed the container beyond the closed list; see security.md."
    )
    inherited: dict[str, str] = Field(
        default={},
        description="Variables by name that the training inherited from the user's shell. Names that cannot change it, "
        "such as TERM, are left out. Of a value that looks like a secret there is a digest.",
    )
    preflight: str | None = Field(
        default=None,
        description="What the nodes reached before the training, in a sentence; null where that was not measured. See "
        "preflight.md.",
    )
    origin: Origin | None = Field(
        default=None, description="What the run was made with; null for results of an earlier version."
    )
    predicted_rate: DeviceRate[float | None] = Field(
        default=None,
        description="The planner's prediction of the speed, before the run. Null where the planner did not choose the "
        "layout.",
    )
    pace: RankPace | None = Field(
        default=None, description="Who waited for whom; null where the training does not record it."
    )
    machines: tuple[NodeResult, ...] = Field(
        default=(), description="Each node, and how its part ended; empty for a run on the platform's machine alone."
    )
    seal: SealFinding | None = Field(
        default=None, description="Whether the raw files are as sealed; null for results of an earlier version."
    )

"""configs/planner/<framework>.yaml: the planner's constants for a framework, beside the published analyses."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, ValidationError, model_validator

from levelfield.specs.base import Document, Value


class MemoryModel(Value):
    """The memory that a framework keeps, where the analyses do not define it. Defaults are those of models/torch."""

    gradient_bytes: int = Field(default=4, ge=2, le=4)  # of each gradient in 16-bit training
    # Of each logit of a whole micro-batch at the peak of the loss; None: the head computes in chunks.
    logit_bytes: float | None = Field(default=None, gt=0, le=24)
    # In chunks, a kernel puts the gradients of logits in their place, without logits in float32.
    fused_loss: bool = False
    # As logit_bytes, of the logits of the whole vocabulary once every tensor rank gathered and joined them; 0: the loss
    # is computed on each rank's part.
    gathered_logit_bytes: float = Field(default=0, ge=0, le=24)
    gated_mlp_tensors: int = Field(default=4, ge=3, le=4)  # how many tensors of the MLP's width a gated MLP keeps
    selective_keeps: Literal["products", "all but scores"] = "products"  # of selective recomputation
    # Extra tensors of the hidden size that each layer keeps under tensor parallelism without sequence parallelism.
    tensor_parallel_copies: int = Field(default=0, ge=0)
    # Under sequence parallelism a rank keeps the whole input of a layer's first products, and does not gather it again;
    # selective recomputation keeps outputs of products before they are scattered.
    keeps_gathered_inputs: bool = False
    # Queries, keys and values are parts of one product, so that what keeps the values keeps all of it beside the
    # rotated queries and keys.
    keeps_projections: bool = False
    # A mixture keeps its experts' outputs, which it multiplies by the gates; else the gates multiply inside of them.
    expert_outputs: bool = True
    # Bytes for each value of these outputs that exist only while the backward pass weighs them by the gates.
    gated_bytes: float = Field(default=0, ge=0, le=24)
    score_bytes: float = Field(default=0, ge=0)  # kept of each attention score; 0: the kernel keeps none
    # Bytes that each norm keeps of a value beyond its 16-bit or 32-bit input. A norm of several calls keeps
    # 32-bit copies as well.
    norm_bytes: float = Field(default=0, ge=0, le=12)
    # The share of the products whose outputs selective recomputation does not keep, and computes again.
    selective_recomputes: float = Field(default=0, ge=0, le=1)
    # Bytes of a master weight, and of both moments of a parameter: less than 12 in all where the optimizer works in 16
    # bits.
    master_bytes: int = Field(default=4, ge=0, le=4)
    state_bytes: int = Field(default=8, ge=4, le=8)
    # In fp8 the weights of layers exist in fp8 beside their masters, without a 16-bit copy, and are gathered in fp8. No
    # program has this for NVFP4.
    fp8_primary_weights: bool = False
    sharded_copy: bool = False  # ZeRO stage 3 keeps a sharded 16-bit copy beside the masters
    # Context ranks gather all keys and values of a layer before its attention, and reduce their gradients after it.
    # Otherwise they pass them round a ring while attention computes.
    gathers_keys_values: bool = False
    # What was gathered stays for the backward pass and, where attention needs a mask, its output of each piece.
    keeps_contexts: bool = False
    inputs_by_product: bool = False  # in fp8 each product keeps its own input, also where several have the same one
    pipeline_working_sets: int = Field(default=1, ge=1)  # recomputed layers that exist at once in a pipeline
    # A stage has buffers for the tensors that it receives in every micro-batch of a step, and not only in those in
    # flight. Interleaved stages have these alone, and keep what each passed on until its backward pass.
    receives_all: bool = False
    # Tensors that the exchange of sharded states leaves in a process on the host, each as large as all of a rank's
    # gathered parameters.
    host_sharding_copies: int = Field(default=0, ge=0)
    gathered_ends: int = Field(default=1, ge=1, le=2)  # embedding and head: how many stay gathered in ZeRO stage 3
    exchange_bytes: int = Field(default=0, ge=0, le=16_000_000_000)  # buffers of a fixed size for sharded states
    # Context, kernels and communication buffers of a process on an accelerator, and what its driver keeps.
    reserve_bytes: int = Field(default=1_500_000_000, ge=0, le=8_000_000_000)
    # What its allocator holds beyond activations, logits and buffers, over their sum.
    fragmentation: float = Field(default=0, ge=0, le=0.3)
    # The allocator has memory of their own for the streams that exchange gradients and weights, where FSDP or ZeRO has
    # such streams.
    stream_pools: bool = False
    # How far the memory of a run may be from the estimate. Defaults leave this share of a device free.
    uncertainty: float = Field(default=0.1, ge=0.01, le=0.5)
    host_process_bytes: int = Field(default=400_000_000, ge=0)  # interpreter, framework and allocator on the host


Dispatch = Literal["experts", "nodes"]
AttentionKernel = Literal["flash1", "triton", "flash2", "flash3", "cudnn", "efficient", "materialised"]
AttentionChoice = Literal["sdpa"] | AttentionKernel  # sdpa: what torch chooses on the chip


# What a program computes in several calls where others have one fused kernel.
# Casts: the operands of products in fp8, which have a scale of a tensor, or of each row.
Unfused = Literal["norms", "activation", "rotation", "gates", "casts", "row casts"]


class Pace(Value):
    """The rates that programs reach, which are one set for all, and what a program does, which is described.

    `benchmarks/planner_unseen.py --fit` writes the defaults of FITTED_FIELDS, from half of the published runs.
    """

    matmul_efficiency: float = Field(default=0.952, gt=0, le=1.2)  # of the achievable rate of matrix products
    memory_efficiency: float = Field(default=0.661, gt=0, le=1)  # of the memory's rate
    network_efficiency: float = Field(default=0.741, gt=0, le=1.2)  # of the rate of the links between nodes
    launch_seconds: float = Field(default=2.39e-05, ge=0, le=1e-4)  # that a call of the framework costs beside its work
    # It is stated: NCCL's ring reaches 0.8 of NVLink's rate on A100 and H100.
    communication_efficiency: float = Field(default=0.8, gt=0, le=1.2)
    unfused: tuple[Unfused, ...] = ()
    # ZeRO stages 1 and 2 reduce whole gradients on every rank, where others send each rank its part only.
    reduces_whole: bool = False
    # The exchange of sharded states copies between tensors and buffers, while nothing else computes.
    exchange_copies: bool = False
    # The share of the gradients' exchange, of gathered weights and of transfers between stages that overlaps with
    # computation.
    overlap: float = Field(ge=0, le=1)
    tensor_overlap: float = Field(default=0, ge=0, le=1)  # the same share of tensor parallelism's messages
    attention: AttentionChoice = "flash2"  # the kernel of attention's core; sdpa: torch's choice on the chip
    # Speed of the products of experts, over that of one product of the same tokens and widths.
    grouped_efficiency: float = Field(default=1, gt=0, le=1.2)
    # Tokens of the busiest rank of experts, over the mean; 1: the router fills all experts alike.
    expert_imbalance: float = Field(default=1, ge=1, le=8)
    expert_overlap: float = Field(default=0, ge=0, le=1)  # of the all-to-alls between expert ranks, with computation
    # What a token is sent to over the network: every expert that it chose, or once to every node that has one.
    dispatch: Dispatch = "experts"


# The vendors of the chips whose runs set the rates. For chips of others nobody knows how far a ratio of two may be off
# (tests/core/predict/test_planner_unseen.py).
SPEED_VENDORS = ("nvidia",)
# How far the planned ratio of two chips of these vendors was from the published one, of dense models by one program:
# the median and the largest error, and the number of pairs of chips (docs/planner-accuracy.md).
CHIP_RATIO_ERRORS, CHIP_PAIRS = (0.14, 0.35), 9


# The fields of Pace that are fitted, for all programs and chips together.
FITTED_FIELDS = ("matmul_efficiency", "memory_efficiency", "network_efficiency", "launch_seconds")


class Program(Value):
    """Other people's training code on the framework: only the constants that differ from those of models/*.

    source: where the code's settings are stated.
    """

    title: str = Field(min_length=3)
    source: str = Field(min_length=3)
    keeping: dict[str, Any] = Field(default_factory=dict)
    pace: dict[str, Any] = Field(default_factory=dict)


class Constants(Document):
    """The planner's constants of one framework, for all chips and all cases."""

    KIND: ClassVar[str] = "constants"

    framework: str
    keeping: MemoryModel = MemoryModel()
    # Fields of `keeping` that differ on a kind of device (vendor.yaml: device_kind), where models/* have kernels of
    # their own; programs have none of these.
    keeping_on: dict[str, dict[str, Any]] = Field(default_factory=dict)
    pace: Pace
    host_pace: Pace | None = None  # on the host's processors, where it differs
    # By field: the source where it was read, or the data of the fit.
    sources: dict[str, str] = Field(default_factory=dict)
    fitted: dict[str, str] = Field(default_factory=dict)
    programs: dict[str, Program] = Field(default_factory=dict)  # others' code on the framework

    @model_validator(mode="after")
    def _differences_are_within_their_ranges(self) -> Constants:
        kinds = [(f"keeping_on.{kind}", keeping, dict[str, Any]()) for kind, keeping in self.keeping_on.items()]
        programs = [(f"programs.{name}", program.keeping, program.pace) for name, program in self.programs.items()]
        for key, keeping, pace in (*kinds, *programs):
            try:
                self._replace_fields(keeping, pace)
            except ValidationError as error:
                wrong = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
                raise ValueError(f"{key}: {wrong}") from None
        return self

    def for_device_kind(self, device_kind: str) -> Constants:
        """Return the constants on a kind of device. Programs keep what they had."""
        differing = self.keeping_on.get(device_kind, {})
        common = {name: getattr(self.keeping, name) for name in differing}
        programs = {
            name: program.model_copy(update={"keeping": {**common, **program.keeping}})
            for name, program in self.programs.items()
        }
        return self._replace_fields(differing, {}).model_copy(update={"programs": programs})

    def for_program(self, name: str) -> Constants:
        """Return the constants of a program. Raises KeyError."""
        program = self.programs[name]
        return self._replace_fields(program.keeping, program.pace)

    def _replace_fields(self, keeping: dict[str, Any], pace: dict[str, Any]) -> Constants:
        """Return the constants with other values of these fields. Raises ValidationError."""
        changes = {
            "keeping": MemoryModel.model_validate({**self.keeping.model_dump(), **keeping}),
            "pace": Pace.model_validate({**self.pace.model_dump(), **pace}),
        }
        return self.model_copy(update=changes)

    def for_products(self, dtype: str) -> Constants:
        """Return the constants for products in this precision."""
        return self._replace_fields({"fp8_primary_weights": False}, {}) if dtype == "nvfp4" else self

    def pace_on(self, on_host: bool) -> Pace:
        """Return the pace on the host's processors, or on accelerators."""
        return (self.host_pace or self.pace) if on_host else self.pace

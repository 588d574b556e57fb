"""configs/planner/<framework>.yaml: the planner's constants for a framework, beside the published analyses."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from levelfield.specs.base import Document, Value


class MemoryModel(Value):
    """The memory that a framework keeps, where the analyses do not define it. The defaults are those of models/torch.

    gradient_bytes: bytes of each gradient in 16-bit training. logit_bytes: bytes of each logit of a whole micro-batch
    at the peak of the loss; None: the head computes in chunks. gated_mlp_tensors: tensors of the MLP's width that a
    gated MLP keeps. tensor_parallel_copies: extra tensors of the hidden size that each layer keeps under tensor
    parallelism without sequence parallelism. score_bytes: bytes kept of each attention score; 0: the kernel keeps none.
    gradients_whole_in_backward: with ZeRO stage 2 every rank holds all its gradients until the backward pass ends.
    pipeline_working_sets: recomputed layers that exist at once under pipeline parallelism.
    host_sharding_copies: tensors that the exchange of sharded states leaves in a process on the host, each as large as
    all of a rank's gathered parameters.
    reserve_bytes: context, kernels, communication buffers and fragmentation of a process on an accelerator.
    host_process_bytes: interpreter, framework and allocator of a process on the host.
    """

    gradient_bytes: int = Field(default=4, ge=2, le=4)
    logit_bytes: float | None = Field(default=None, gt=0)
    gated_mlp_tensors: int = Field(default=4, ge=3, le=4)
    selective_keeps: Literal["products", "all but scores"] = "products"
    tensor_parallel_copies: int = Field(default=0, ge=0)
    score_bytes: float = Field(default=0, ge=0)
    gradients_whole_in_backward: bool = False
    pipeline_working_sets: int = Field(default=1, ge=1)
    host_sharding_copies: int = Field(default=0, ge=0)
    reserve_bytes: int = Field(default=1_500_000_000, ge=0)
    host_process_bytes: int = Field(default=400_000_000, ge=0)


class Pace(Value):
    """The fractions of a chip's and a link's rate that a framework reaches, and the overlap of its communication.

    matmul_efficiency: fraction of the achievable (else the peak) rate of matrix products. communication_efficiency:
    fraction of a link's rate. memory_efficiency: fraction of the memory's rate in elementwise work; it is below 1
    where computing takes longer than reading and writing, as on the host. overlap: the share of the gradients'
    exchange that overlaps with computation; it is stated, not fitted, and 0 where nothing overlaps.
    """

    matmul_efficiency: float = Field(gt=0, le=1.2)
    communication_efficiency: float = Field(gt=0, le=1.2)
    memory_efficiency: float = Field(default=1, gt=0, le=1)
    overlap: float = Field(ge=0, le=1)


class Constants(Document):
    """The planner's constants of one framework, for all chips and all cases.

    host_pace: the pace on the host's processors, where it differs. fitted: for each fitted field, the data of the fit.
    All other fields were read in the sources, which `sources` gives by field.
    """

    KIND: ClassVar[str] = "constants"

    framework: str
    keeping: MemoryModel = MemoryModel()
    pace: Pace
    host_pace: Pace | None = None
    sources: dict[str, str] = Field(default_factory=dict)
    fitted: dict[str, str] = Field(default_factory=dict)

    def pace_on(self, on_host: bool) -> Pace:
        """Return the pace on the host's processors, or on accelerators."""
        return (self.host_pace or self.pace) if on_host else self.pace

"""configs/planner/<framework>.yaml: what the planner knows of a framework beside the published analyses."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from levelfield.specs.base import Document, Value


class Keeping(Value):
    """What a framework keeps in memory where the analyses leave it open. The defaults are models/torch's.

    gradient_bytes: of each gradient in 16-bit training. logit_bytes: of each logit of a whole micro-batch, at the
    fullest moment of the loss; None: the head works in chunks. gated_mlp_tensors: tensors of the MLP's width that a
    gated MLP keeps. tensor_parallel_copies: tensors of the hidden size beyond the analysis that each layer keeps under
    tensor parallelism without sequence parallelism. score_bytes: of each attention score; 0: the kernel keeps none.
    gradients_whole_in_backward: with ZeRO stage 2 every rank holds all its gradients until the backward pass ends.
    pipeline_working_sets: recomputed layers that are there at once under pipeline parallelism.
    host_sharding_copies: on the host, tensors as large as all of a rank's gathered parameters that exchanging sharded
    states leaves in the process.
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
    """How much of a chip's and a link's rate a framework gets, and what share of the gradients' exchange it hides.

    matmul_efficiency: of the achievable (else the peak) rate of matrix products. communication_efficiency: of a link's
    rate. memory_efficiency: of the memory's rate, in elementwise work; below 1 where that computes longer than it
    reads and writes, as on the host. overlap: stated, not fitted: 0 where nothing is overlapped.
    """

    matmul_efficiency: float = Field(gt=0, le=1.2)
    communication_efficiency: float = Field(gt=0, le=1.2)
    memory_efficiency: float = Field(default=1, gt=0, le=1)
    overlap: float = Field(ge=0, le=1)


class Constants(Document):
    """One set for a framework, on all chips and for all cases.

    host_pace: on the host's processors, where it is another. fitted: by field, what a fit set it with; whatever is not
    named there was read in the sources, which `sources` gives by field.
    """

    KIND: ClassVar[str] = "constants"

    framework: str
    keeping: Keeping = Keeping()
    pace: Pace
    host_pace: Pace | None = None
    sources: dict[str, str] = Field(default_factory=dict)
    fitted: dict[str, str] = Field(default_factory=dict)

    def pace_on(self, device_kind: str) -> Pace:
        return (self.host_pace or self.pace) if device_kind == "cpu" else self.pace

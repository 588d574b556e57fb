"""A certificate: the proof that an implementation trained a case aligned in fp32 at smoke scale.

Rounding in 16 bits is larger than many faults, and a full-scale run is compared with few others. So such a run is
aligned only together with a certificate of the same code, software, chip and kind of layout.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, JsonValue, model_validator

from levelfield.specs.base import LATER, Document, Value
from levelfield.specs.free_fields import CODE_FIELDS
from levelfield.specs.layout import Layout
from levelfield.specs.result import AlignmentLayer
from levelfield.specs.tuning import Attention, Recompute, Tuning

# A certificate rests on these layers. Each needs a number and a limit; a layer that is open proves nothing.
DECISIVE_LAYERS = ("first step", "gradients", "curve")


class CodeBranches(Value):
    """The parts of a training's code that a run uses: which kinds of parallelism, without their sizes."""

    data: bool
    tensor: bool
    pipeline: bool
    interleaved: bool
    sequence_parallel: bool
    sharding_stage: int = Field(ge=0, le=3)  # of ZeRO; 0: nothing is sharded
    replicated_shards: bool  # there are fewer shards than data-parallel ranks
    recompute: Recompute
    compile: bool
    graph: bool = Field(default=False, json_schema_extra=LATER)
    attention: Attention
    context: bool = Field(default=False, json_schema_extra=LATER)
    expert: bool = Field(default=False, json_schema_extra=LATER)
    replicated_experts: bool = Field(default=False, json_schema_extra=LATER)  # more ranks than parts of the experts
    # Other free fields that change the code, where they are not at their defaults.
    further: dict[str, JsonValue] = Field(default_factory=dict, json_schema_extra=LATER)


def code_branches(tuning: Tuning) -> CodeBranches:
    """Return the parts of the code that a run with this tuning uses."""
    layout = tuning.layout
    sharded = layout.sharding_degree > 1
    return CodeBranches(
        data=layout.data > 1,
        tensor=layout.tensor > 1,
        pipeline=layout.pipeline > 1,
        interleaved=tuning.virtual_pipeline > 1,
        sequence_parallel=layout.sequence_parallel,
        sharding_stage=layout.sharding_stage if sharded else 0,
        replicated_shards=sharded and layout.gradient_ranks > layout.sharding_degree,
        context=layout.context > 1,
        expert=layout.expert > 1,
        replicated_experts=_has_replicated_experts(layout),
        **{name: getattr(tuning, name) for name in CODE_FIELDS if name in CodeBranches.model_fields},
        further={
            name: getattr(tuning, name)
            for name in tuning.non_default_fields
            if name in CODE_FIELDS and name not in CodeBranches.model_fields
        },
    )


def smallest_layout(layout: Layout) -> Layout:
    """Return the layout with the fewest devices that uses the same kinds of parallelism."""
    sharded = layout.sharding_degree > 1
    has_replicated_shards = sharded and layout.gradient_ranks > layout.sharding_degree
    data, context = min(layout.data, 2), min(layout.context, 2)
    if (has_replicated_shards or _has_replicated_experts(layout)) and data * context < 4:
        data, context = (4, context) if layout.data > 2 else (data, 4)
    return Layout(
        data=data,
        context=context,
        expert=min(layout.expert, 2),
        tensor=min(layout.tensor, 2),
        pipeline=min(layout.pipeline, 2),
        sequence_parallel=layout.sequence_parallel,
        sharding_stage=layout.sharding_stage if sharded else 0,
        sharding_degree=(2 if has_replicated_shards else data * context) if sharded else 1,
    )


def _has_replicated_experts(layout: Layout) -> bool:
    return 1 < layout.expert < layout.gradient_ranks


class CertificateSubject(Value):
    """What a certificate is about. Runs with equal subjects share a certificate."""

    work: str  # digest of the case's smoke work in fp32
    reference: str  # digest of the reference with its noise
    framework: str
    implementation: str  # digest of the implementation's folder
    code: str  # digest of the code that implementations share
    vendor: str
    chip: str
    runtime: str
    environment: str  # digest of the Python and its pinned packages; or the path of a Python that the user named
    variables: str  # digest of the environment variables
    path: CodeBranches  # the code branches that the tuning takes


class Certificate(Document):
    """The run that certifies a subject, with its software and its layers of alignment."""

    KIND: ClassVar[str] = "certificate"

    subject: CertificateSubject
    case: str
    scale: Literal["smoke"] = "smoke"
    precision: Literal["fp32"] = "fp32"
    reference: str  # its name and its run; `subject.reference` is its digest
    run_id: str
    layout: str
    framework_version: str
    software: str  # digest of the installed packages and of the vendor's software
    verdict: Literal["aligned"]
    reason: str
    layers: tuple[AlignmentLayer, ...]
    made: str  # date and time
    digest: str  # of all other keys; a changed file is not a certificate

    @classmethod
    def from_content(cls, **content: Any) -> Certificate:
        """Return the certificate with the digest of its content. Raises ValidationError for a layer that is open."""
        draft = cls.model_construct(digest="", **content)
        return cls.model_validate({**content, "digest": draft.fingerprint()})

    @model_validator(mode="after")
    def _rests_on_its_layers(self) -> Certificate:
        layers_by_name = {layer.name: layer for layer in self.layers}
        for name in DECISIVE_LAYERS:
            layer = layers_by_name.get(name)
            if layer is None or not _is_within_limit(layer):
                raise ValueError(f"layers: found no '{name}' that holds with a number within a limit")
        if failed := [layer.name for layer in self.layers if layer.passed is not True]:
            raise ValueError(f"layers: found {', '.join(failed)} that does not hold, expected every layer to hold")
        return self

    @model_validator(mode="after")
    def _is_unchanged(self) -> Certificate:
        expected = self.model_copy(update={"digest": ""}).fingerprint()
        if self.digest != expected:
            raise ValueError(f"digest: found {self.digest}, expected {expected}: the content was changed")
        return self


def _is_within_limit(layer: AlignmentLayer) -> bool:
    return layer.value is not None and layer.limit is not None and layer.value <= layer.limit


class CertificateNeed(Value):
    """The certificate that a plan needs, and the one that was found or made for it."""

    subject: CertificateSubject | None = None  # what has to be certified; None where nothing can be
    digest: str | None = None  # of the certificate; None without one, as the next
    run_id: str | None = None  # of the run that it rests on
    failed_run: str | None = None  # the run that should have made a certificate
    reason: str | None = None  # why there is no certificate

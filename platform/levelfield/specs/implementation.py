"""implementation.yaml: a framework's requirements and its launch. The host never imports a framework."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from string import Formatter
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from levelfield.specs.architecture import FAMILIES, ModelPart
from levelfield.specs.base import Document, Value
from levelfield.specs.case import Precision, Work
from levelfield.specs.free_fields import FREE_FIELDS
from levelfield.specs.requirements import FurtherVersion, Requirements, require_pin
from levelfield.specs.selector import versioned_framework
from levelfield.specs.short_names import clipped
from levelfield.specs.tuning import Tuning
from levelfield.specs.variables import VARIABLE_NAME
from levelfield.specs.vendor import HOST_KIND, NAME_PATTERN, FrameworkAccess

# uneven: the stages of a pipeline may differ by a layer; context: ranks share each sequence; expert: ranks of data
# parallelism divide the experts of a mixture
Parallelism = Literal[
    "data", "tensor", "pipeline", "uneven", "interleaved", "sequence", "context", "expert", "zero1", "zero2", "zero3"
]

SIMULATED = "a simulated training; no figure and no verdict is of a device"
ANY_ACCELERATOR = "accelerator"  # a key for every kind of device that is not named, except the cpu
ANY_KIND = "any"  # a key for every kind of device
# The form of a further version, which is a part of folder names, of images' names and of case strings.
_FURTHER_VERSION = re.compile(r"[0-9]+(\.[0-9a-z]+)+(\+[0-9a-z.]+)?")
PROBE_PLACEHOLDERS = frozenset({"python", "folder"})
PLACEHOLDERS = PROBE_PLACEHOLDERS | {"rank", "local_rank", "node_rank", "world_size"}
_MAX_CHARACTERS = 200  # of a text in a message
# Choices that an implementation may refuse by name, each with a reason.
Refusable = Literal[
    "compile",
    "flash_attn",
    "compile under zero3",
    "graph",
    "graph with several ranks",
    "graph with fp16",
    "graph with dropout",
    "graph with captured tensors",
    "recomputation of some layers",
    "partial sharding",
    "zero2 or zero3 in a pipeline",
    "zero2 or zero3 with interleaved stages",
    "fewer micro-batches than stages",
    "fp8 with tensor parallel",
    "fp8 with graph",
    "loss scale between powers of two",
    "experts with tensor but not sequence parallel",
    "experts with biases",
    "experts with compile",
    "experts with graph",
    "experts with fp8",
    "experts with interleaved stages",
    "experts of a part of the ranks with zero",
    "experts of a part of the ranks with partial sharding",
    "experts of a part of the ranks with an uneven hidden size",
    "expert capacity with context parallel",
    "joint query and key norms with tensor parallel",
    "shared expert gate with tensor parallel",
    "latent attention with tensor parallel",
    "latent attention with rope scaling",
]

RECOMPUTE_FIRST_LAYERS: Refusable = "recomputation of some layers"  # of the first ones of each stage's chunk


class Launch(Value):
    """The argv of one process.

    The platform starts one process for each device. Placeholders in braces: python, folder, rank, local_rank,
    node_rank, world_size; of the probe, which is no rank, the first two. {{ and }} stand for braces.
    """

    argv: tuple[str, ...] = Field(min_length=1)
    environment: dict[str, str] = Field(default_factory=dict)
    peak_probe: tuple[str, ...] = ()  # the argv of the program that measures a device's peak; empty: there is none
    # The argv of one process of a preflight, which measures the collectives; empty where none is written.
    preflight: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _has_valid_templates(self) -> Launch:
        _check_templates((*self.argv, *self.preflight), PLACEHOLDERS)
        _check_templates(self.peak_probe, PROBE_PLACEHOLDERS)
        _check_variables(self.environment)
        return self


def _check_variables(variables: dict[str, str]) -> None:
    """Raises ValueError for names that no variable can have, and for values as `_check_templates` does."""
    if unusable := [name for name in variables if not VARIABLE_NAME.fullmatch(name)]:
        name = clipped(repr(unusable[0]), _MAX_CHARACTERS)
        raise ValueError(f"environment: found the name {name}, expected letters, digits and underscores")
    _check_templates(variables.values(), PLACEHOLDERS)


def _check_templates(texts: Iterable[str], placeholders: frozenset[str]) -> None:
    """Raises ValueError for a text that has other placeholders or single braces, and for one that no process takes."""
    for text in texts:
        quoted = clipped(repr(text), _MAX_CHARACTERS)
        if "\0" in text:
            raise ValueError(f"found a NUL character in {quoted}, expected none")
        try:
            fields = [field for field in Formatter().parse(text) if field[1] is not None]
        except ValueError as error:
            raise ValueError(f"found {quoted}: {error}; write {{{{ or }}}} for a brace") from None
        unknown = {str(name) for _, name, _, _ in fields} - placeholders
        if unknown:
            raise ValueError(f"unknown placeholder {sorted(unknown)} in {quoted}; known: {sorted(placeholders)}")
        if any(format_spec or conversion for _, _, format_spec, conversion in fields):
            raise ValueError(f"found {quoted}, expected placeholders without ':' and '!', such as {{rank}}")


class DeviceReach(FrameworkAccess):
    """How the framework reaches the devices of one kind, and the variables that its processes need there.

    The variables are added to those of `launch`, with the same placeholders.
    """

    environment: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _variables_can_be_set(self) -> DeviceReach:
        _check_variables(self.environment)
        return self

    @property
    def access(self) -> FrameworkAccess:
        """The same without the variables, as a vendor's file says it."""
        return FrameworkAccess(device=self.device, backend=self.backend, preload=self.preload)


class ImplementationFile(Document):
    """models/<framework>/implementation.yaml. Most of its fields are by device kind, as vendor.yaml names it.

    `accelerator` in precisions and parallelism means every kind that is not named, except the cpu. Such a kind has no
    requirements, because the framework comes with the vendor's image or the user's own Python.
    """

    KIND: ClassVar[str] = "implementation"

    framework: str = Field(pattern=NAME_PATTERN)
    title: str
    simulated: bool = Field(False)  # the program computes no training, only its files; every result says so
    version: str  # the default one
    # The parts of a model that it has (specs/architecture.py). A case with another part is refused by name.
    architecture: tuple[ModelPart, ...]
    precisions: dict[str, tuple[Precision, ...]]
    # Precisions that only some devices of a kind have, each with what such a device needs. The host offers them; the
    # training checks its own device, and ends as unsupported without it.
    conditions: dict[str, dict[Precision, str]] = Field(default_factory=dict)
    parallelism: dict[str, tuple[Parallelism, ...]]
    recompute: tuple[Literal["none", "selective", "full"], ...]
    # Those that this training reads, of the fields that only some frameworks have (specs/free_fields.py).
    free_fields: tuple[str, ...] = ()
    # The training samples one step of the window, for the platform to compute it again (docs/alignment.md).
    spot_check: bool = False
    # The framework's name of such a device and its collective backend. A vendor's file names a framework only where the
    # vendor has a build or a plugin of its own; then the vendor's words are used.
    reaches: dict[str, DeviceReach] = Field(default_factory=dict)
    # Choices of a case or a tuning that the implementation does not have, each with the reason; `any` means every kind.
    # A plan with such a choice is refused before anything is made.
    refuses: dict[str, dict[Refusable, str]] = Field(default_factory=dict)
    requirements: dict[str, Requirements]  # of the default version
    launch: Launch
    # What further versions have in the place of `requirements`; each has an environment or an image of its own.
    # `Registry.implementation` chooses one.
    versions: dict[str, FurtherVersion] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _free_fields_are_framework_specific(self) -> ImplementationFile:
        choices = [name for name, field in FREE_FIELDS.items() if field.is_framework_specific]
        if unknown := [name for name in self.free_fields if name not in choices]:
            raise ValueError(f"free_fields: found '{unknown[0]}', expected some of: {', '.join(choices)}")
        return self

    @model_validator(mode="after")
    def _conditions_are_not_unconditional(self) -> ImplementationFile:
        for kind, conditions in self.conditions.items():
            unconditional = sorted(set(conditions) & set(self.precisions.get(kind, ())))
            if unconditional:
                raise ValueError(
                    f"conditions.{kind}: found {', '.join(unconditional)}, which precisions.{kind} has as well"
                )
        return self

    @model_validator(mode="after")
    def _reaches_offered_kinds(self) -> ImplementationFile:
        kinds_without_precision = [kind for kind in self.reaches if not self.offered_precisions(kind)]
        if kinds_without_precision:
            raise ValueError(
                f"reaches: found {', '.join(kinds_without_precision)}, for which precisions has nothing; add it there"
            )
        return self

    @model_validator(mode="after")
    def _versions_are_further_ones(self) -> ImplementationFile:
        for version, further in self.versions.items():
            if not _FURTHER_VERSION.fullmatch(version):
                raise ValueError(f"versions: found '{version}', expected a version such as 2.11.0 in quotes")
            if version == self.version:
                raise ValueError(f"versions: found {version}, which is the default version; remove it there")
            for kind, requirements in further.requirements.items():
                require_pin(requirements.packages, version, f"versions.{version}.requirements.{kind}")
        return self

    @property
    def is_further(self) -> bool:
        """Whether this is another version than the default one, with its requirements in the place of the default's."""
        return self.version in self.versions

    @property
    def label(self) -> str:
        """The framework as a case string names it: `jax`, or `jax_0.10.1` for a further version."""
        return versioned_framework(self.framework, self.version if self.is_further else None)

    @property
    def stem(self) -> str:
        """The begin of the names of environments and images: `jax`, or `jax-0.10.1` for a further version."""
        return f"{self.framework}-{self.version}" if self.is_further else self.framework

    def environment(self, kind: str) -> dict[str, str]:
        """Return the variables of a training process on this device kind."""
        variables = self.reaches[kind].environment if kind in self.reaches else {}
        return {**self.launch.environment, **variables}

    def offered_precisions(self, kind: str) -> tuple[Precision, ...]:
        """Return the precisions that are supported on this device kind, with or without a condition."""
        always = self.precisions.get(kind) or self.precisions.get(_fallback_kind(kind), ())
        return (*always, *self.conditions.get(kind, {}))

    def offered_parallelism(self, kind: str) -> tuple[Parallelism, ...]:
        """Return the kinds of parallelism that are supported on this device kind."""
        return self.parallelism.get(kind) or self.parallelism.get(_fallback_kind(kind), ())

    @property
    def families(self) -> list[str]:
        """The families of models all of whose parts the framework has."""
        return [name for name, parts in FAMILIES.items() if parts <= set(self.architecture)]

    def refusals(self, kind: str) -> dict[Refusable, str]:
        """Return the refused choices on this device kind, each with the reason."""
        kind_refusals = self.refuses.get(kind, self.refuses.get(_fallback_kind(kind), {}))
        return {**self.refuses.get(ANY_KIND, {}), **kind_refusals}


def _fallback_kind(kind: str) -> str:
    """Return the key that stands for a device kind without a key of its own; none for the cpu."""
    return "" if kind == HOST_KIND else ANY_ACCELERATOR


def refused_choices(
    names: Iterable[Refusable], work: Work, tuning: Tuning, captures_tensors: bool = False
) -> list[Refusable]:
    """Return those of the refused choices that this work and tuning make. captures_tensors: of one step, into files."""
    model, loss_scale = work.model, work.training.loss_scale
    has_experts, has_latent_attention = model.experts is not None, model.latent_attention is not None
    layout, is_fp8 = tuning.layout, work.training.precision == "fp8"
    micro_batches = work.training.global_batch // (tuning.micro_batch * layout.data)
    splits_experts = has_experts and layout.sharding_stage > 0 and layout.expert not in (1, layout.gradient_ranks)
    is_fp16 = work.training.precision == "fp16"
    is_between_powers = is_fp16 and loss_scale is not None and math.frexp(loss_scale.initial)[0] != 0.5
    is_made: dict[Refusable, bool] = {
        "compile": tuning.compile,
        "flash_attn": tuning.attention == "flash_attn",
        "compile under zero3": tuning.compile and layout.sharding_stage == 3,
        "graph": tuning.graph,
        "graph with several ranks": tuning.graph and layout.world_size > 1,
        "graph with fp16": tuning.graph and is_fp16,
        "graph with dropout": tuning.graph and max(model.hidden_dropout, model.attention_dropout) > 0,
        "graph with captured tensors": tuning.graph and captures_tensors,
        RECOMPUTE_FIRST_LAYERS: tuning.recompute_layers is not None,
        "partial sharding": layout.is_hybrid_sharded,
        "zero2 or zero3 in a pipeline": layout.sharding_stage > 1 < layout.pipeline,
        "zero2 or zero3 with interleaved stages": layout.sharding_stage > 1 < tuning.virtual_pipeline,
        "fewer micro-batches than stages": layout.pipeline > 1 and micro_batches < layout.pipeline,
        "fp8 with tensor parallel": is_fp8 and layout.tensor > 1,
        "fp8 with graph": is_fp8 and tuning.graph,
        "loss scale between powers of two": is_between_powers,
        "experts with tensor but not sequence parallel": has_experts
        and layout.tensor > 1
        and not layout.sequence_parallel,
        "experts with biases": has_experts and model.bias,
        "experts with compile": has_experts and tuning.compile,
        "experts with graph": has_experts and tuning.graph,
        "experts with fp8": has_experts and is_fp8,
        "experts with interleaved stages": has_experts and tuning.virtual_pipeline > 1,
        "experts of a part of the ranks with zero": splits_experts,
        "experts of a part of the ranks with partial sharding": splits_experts and layout.is_hybrid_sharded,
        "experts of a part of the ranks with an uneven hidden size": splits_experts
        and model.hidden_size % (layout.gradient_ranks // layout.expert) > 0,
        "expert capacity with context parallel": layout.context > 1
        and model.experts is not None
        and model.experts.capacity_factor is not None,
        "joint query and key norms with tensor parallel": model.joint_query_key_norm and layout.tensor > 1,
        "shared expert gate with tensor parallel": (
            model.experts is not None and model.experts.shared_gate and layout.tensor > 1
        ),
        "latent attention with tensor parallel": has_latent_attention and layout.tensor > 1,
        "latent attention with rope scaling": has_latent_attention and model.rope_scaling is not None,
    }
    return [name for name in names if is_made[name]]

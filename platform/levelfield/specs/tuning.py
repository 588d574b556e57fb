"""Tuning: the closed list of fields that a vendor or a user may choose. The case fixes all others."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import Field, field_serializer, model_validator

from levelfield.specs.base import LATER, MAX_LAYERS, MAX_THREADS, Document, Value
from levelfield.specs.free_fields import FREE_FIELDS, RECOMPUTE_LAYERS, option_name
from levelfield.specs.layout import Layout
from levelfield.specs.variables import TuningVariables, mask_secrets

Recompute = Literal["none", "selective", "full"]
Attention = Literal["sdpa", "flash_attn"]


class FreeFields(Value):
    """The values of the fields of specs/free_fields.py for one run.

    A field with the mark LATER was added to the table after the first ones: at its default it is in no job, no digest
    and no command.
    """

    layout: Layout = Layout()
    micro_batch: int = Field(default=1, ge=1)  # sequences per forward pass of one data-parallel rank
    # Model chunks of each pipeline stage; above 1 it is the interleaved schedule of Narayanan et al., 2021
    # (section 2.2).
    virtual_pipeline: int = Field(default=1, ge=1)
    threads: int | None = Field(default=None, ge=1, le=MAX_THREADS)  # per process; None: a rank's share of its cores
    recompute: Recompute = "none"
    # Only with `recompute: full`: of each stage's chunk the first so many layers are computed again, and the
    # others keep everything (None: all layers are; Megatron's recompute_method `block`).
    recompute_layers: int | None = Field(default=None, ge=1, le=MAX_LAYERS, json_schema_extra=LATER)
    compile: bool = False
    # Each training step is captured as a CUDA graph and replayed.
    graph: bool = Field(default=False, json_schema_extra=LATER)
    attention: Attention = "sdpa"

    @property
    def recomputation(self) -> str:
        """What is computed again, such as `full`, or `full 12` for the first 12 layers of each chunk."""
        return recomputation(self.recompute, self.recompute_layers)

    @property
    def values(self) -> dict[str, Any]:
        """The values as people read them, by field: the layers of a recomputation stand beside its kind."""
        values = {name: getattr(self, name) for name in FREE_FIELDS if name != RECOMPUTE_LAYERS}
        return {**values, "recompute": self.recomputation}

    @property
    def non_default_fields(self) -> tuple[str, ...]:
        """The fields whose values are not the defaults."""
        fields = type(self).model_fields
        return tuple(name for name in FREE_FIELDS if getattr(self, name) != fields[name].default)

    @property
    def options(self) -> tuple[str, ...]:
        """The options that choose these values, also for the command line of a commit that lacks the later ones."""
        changed = self.non_default_fields
        return self.options_of(name for name in FREE_FIELDS if name not in LATER_FIELDS or name in changed)

    def options_of(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the options that choose the values of these fields. None is chosen by no option."""
        words = []
        for name in names:
            value = getattr(self, name)
            if value is None:
                continue
            flag = option_name(name) if value is not False else f"--no-{option_name(name)[2:]}"
            words += [flag] if FREE_FIELDS[name].value_type is bool else [flag, str(value)]
        return tuple(words)


LATER_FIELDS = frozenset(name for name, field in FreeFields.model_fields.items() if field.json_schema_extra == LATER)


class Tuning(FreeFields):
    """The values of all free fields for one run."""

    # Variables for the training process; they are recorded, and --dry-run shows them.
    environment: dict[str, str] = Field(default_factory=dict)

    @property
    def parallelism(self) -> tuple[str, ...]:
        """The kinds of parallelism that these fields need, by their names in implementation.yaml."""
        layout = self.layout
        needed = {
            "tensor": layout.tensor > 1,
            "pipeline": layout.pipeline > 1,
            "interleaved": self.virtual_pipeline > 1,
            "sequence": layout.sequence_parallel,
            f"zero{layout.sharding_stage}": layout.sharding_stage > 0,
            "data": layout.data > 1,
            "context": layout.context > 1,
            "expert": layout.expert > 1,
        }
        return tuple(name for name, used in needed.items() if used)

    @model_validator(mode="after")
    def _recompute_layers_need_full(self) -> Tuning:
        _require_full(self.recompute, self.recompute_layers)
        return self

    @field_serializer("environment")
    def _mask_secrets(self, variables: dict[str, str]) -> dict[str, str]:
        """The value in memory is whole; no dump of it, and so no file, holds what looks like a secret."""
        return mask_secrets(variables)


class TuningChoice(Value):
    """The values of some free fields. None keeps the value of the previous choice."""

    layout: str | None = None
    micro_batch: int | None = Field(default=None, ge=1)
    virtual_pipeline: int | None = Field(default=None, ge=1)
    recompute: Recompute | None = None
    # Of the `recompute: full` beside it; without it, that is of all layers.
    recompute_layers: int | None = Field(default=None, ge=1, le=MAX_LAYERS, json_schema_extra=LATER)
    compile: bool | None = None
    graph: bool | None = Field(default=None, json_schema_extra=LATER)
    attention: Attention | None = None
    threads: int | None = Field(default=None, ge=1, le=MAX_THREADS)
    environment: TuningVariables | None = None

    @model_validator(mode="before")
    @classmethod
    def _only_free_fields(cls, content: Any) -> Any:
        if isinstance(content, dict):
            refuse_locked(map(str, content), cls.model_fields)
        return content

    @model_validator(mode="after")
    def _recompute_layers_need_full(self) -> TuningChoice:
        _require_full(self.recompute, self.recompute_layers)
        return self


class TuningRow(Value):
    """A vendor's choice and the reason, with the criteria of the runs that it is for; None: any."""

    chip: str | None = None
    framework: str | None = None
    devices: int | None = Field(default=None, ge=1)  # of a node
    nodes: int | None = Field(default=None, ge=1)
    scale: Literal["full", "smoke"] = "full"
    set: TuningChoice
    why: str = Field(min_length=3)

    def applies(
        self, scale: str, chip: str | None, framework: str | None, devices: int | None, nodes: int | None
    ) -> bool:
        """Return whether every criterion of the row holds. A criterion of an unknown value (None) does not hold."""
        target = {"chip": chip, "framework": framework, "devices": devices, "nodes": nodes}
        return self.scale == scale and all(target[name] == value for name, value in self.criteria.items())

    @property
    def criteria(self) -> dict[str, str | int]:
        """The criteria beside the scale, by name; empty for a row that always applies."""
        values = {"chip": self.chip, "framework": self.framework, "devices": self.devices, "nodes": self.nodes}
        return {name: value for name, value in values.items() if value is not None}

    @model_validator(mode="before")
    @classmethod
    def _conditions_are_not_locked_fields(cls, content: Any) -> Any:
        for name in content if isinstance(content, dict) else ():
            if name not in cls.model_fields and (locked := lock_reason(str(name))):
                raise ValueError(f"'{name}' is locked, the case fixes it: {locked}")
        return content


class TuningFile(Document):
    """vendors/<vendor>/tuning/<case>.yaml"""

    KIND: ClassVar[str] = "tuning"

    case: str
    rows: tuple[TuningRow, ...]


@dataclass(frozen=True)
class LockedFields:
    """Fields of one kind that the case fixes."""

    fields: tuple[str, ...]
    aliases: tuple[str, ...]  # other common names of these fields
    reason: str  # why the case fixes them


# All fields that the case fixes, by kind.
LOCKED_FIELDS = (
    LockedFields(
        (
            "model", "family", "layers", "hidden_size", "ffn_hidden_size", "heads", "kv_heads", "vocab_size",
            "positions", "rope_base", "norm", "norm_eps", "activation", "bias", "tied_embeddings", "hidden_dropout",
            "attention_dropout", "init_std", "scaled_residual_init", "head_dim", "qkv_bias", "attention_bias",
            "norm_bias", "query_key_norm", "joint_query_key_norm", "sliding_window", "full_attention_interval",
            "rope_scaling", "rotary_dim", "no_rope_interval", "latent_attention", "norm_place", "parallel_residual",
            "embedding_scale", "residual_scale", "logit_scale", "attention_scale", "experts",
            "kind", "factor", "original_length", "low_factor", "high_factor", "beta_fast", "beta_slow", "magnitude",
            "query_rank", "key_value_rank", "plain_size", "rotary_size", "value_size", "count", "chosen", "shared",
            "shared_gate", "first_layer", "every", "router", "capacity_factor", "scores", "normalised", "scale",
            "groups", "auxiliary_loss", "z_loss", "bias_rate",
        ),
        ("num_layers", "num_heads", "vocabulary_size", "dropout", "parameters"),
        "another model has other FLOPs and another loss, so its figures would stand beside those of another work",
    ),
    LockedFields(
        ("global_batch", "sequence_length"),
        ("batch_size", "global_batch_size", "seq_length", "seq_len", "accumulation", "gradient_accumulation"),
        "the tokens of a step decide how fast the loss falls; micro_batch is free and accumulation makes up the rest",
    ),
    LockedFields(
        (
            "training", "optimizer", "name", "beta1", "beta2", "eps", "weight_decay", "schedule", "style", "peak_lr",
            "min_lr", "warmup_steps", "decay_steps", "gradient_clip",
        ),
        ("learning_rate", "lr", "betas", "clip_grad", "warmup"),
        "the same steps from the same weights are what makes two losses comparable",
    ),
    LockedFields(
        ("precision", "loss_scale", "initial", "growth_interval"),
        ("dtype", "amp", "fp8", "bf16", "fp16", "fp32", "tf32"),
        "a peak, an MFU and a loss belong to one precision; another precision is another case",
    ),
    LockedFields(
        ("data", "seed", "shuffle", "split", "alphabet", "branching", "tokenizer"),
        ("data_seed", "random_seed", "dataset", "corpus"),
        "initial weights and the order of samples follow from the seed and the data; with others no loss can be held "
        "against a reference",
    ),
    LockedFields(
        (
            "steps", "window", "first_step", "last_step", "disturbance_limit", "acceptance",
            "final_loss_below_fraction", "tail_steps", "limits", "heartbeat_seconds", "step_seconds", "start_seconds",
            "evidence", "gradient_steps",
        ),
        ("train_iters", "max_steps", "warmup_iterations"),
        "who is measured does not choose what is measured, nor when a run counts as right or as hung",
    ),
)  # fmt: skip


def recomputation(recompute: str, layers: int | None) -> str:
    """Return in words what is computed again. layers: the first of each chunk; None: all."""
    return recompute if layers is None else f"{recompute} {layers}"


def _require_full(recompute: Recompute | None, layers: int | None) -> None:
    if layers is not None and recompute != "full":
        raise ValueError(
            f"recompute_layers: found {layers} beside recompute {recompute or '(not given)'}, expected full beside it: "
            "it says of how many layers; give both"
        )


def chosen_by(origin: str) -> str | None:
    """Return who chose a field for this run, by its origin in a plan: `vendor`, `suite x`, `command line`, and so on.

    None: a default of the case, or a rule that is the same for all cases (`default: ...`, `planner: ...`).
    """
    chooser = origin.partition(":")[0]
    if chooser in ("default", "planner") or (chooser.startswith("case ") and chooser != "case string"):
        return None
    return "vendor" if chooser.startswith("vendor ") else chooser


def lock_reason(field: str) -> str | None:
    """Return the reason why the field is locked, or None when it is free."""
    return next((group.reason for group in LOCKED_FIELDS if field in (*group.fields, *group.aliases)), None)


def refuse_locked(names: Iterable[str], free: Iterable[str]) -> None:
    """Raises ValueError for the first name that is locked, with the reason, or unknown, with the nearest names."""
    fields = list(free)
    for name in names:
        if name in fields:
            continue
        if locked := lock_reason(name):
            raise ValueError(f"'{name}' is locked, the case fixes it: {locked}. Free fields: {', '.join(fields)}")
        nearest = difflib.get_close_matches(name, fields, n=3)
        hint = f"; nearest: {', '.join(nearest)}" if nearest else ""
        raise ValueError(f"unknown field '{name}'{hint}. Free fields: {', '.join(fields)}")

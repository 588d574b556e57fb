"""A case: the work that is identical for every framework and every vendor.

Units: lengths are in tokens, batches in sequences, seeds are integers below 2**63.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from levelfield.specs.architecture import Model, ModelPart
from levelfield.specs.base import (
    LATER,
    MAX_GRADIENT_STEPS,
    MAX_SIZE,
    MAX_STEPS,
    Document,
    Value,
    type_changes,
    unknown_key_texts,
)
from levelfield.specs.tuning import TuningChoice

Precision = Literal["fp32", "bf16", "fp16", "fp8"]
Scale = Literal["full", "smoke"]
SCALES: tuple[Scale, ...] = ("full", "smoke")


class Optimizer(Value):
    """AdamW with decoupled decay (Loshchilov and Hutter, 2019), on tensors of two or more dimensions only."""

    name: Literal["adamw"]
    beta1: float = Field(ge=0, lt=1)
    beta2: float = Field(ge=0, lt=1)
    eps: float = Field(gt=0)
    weight_decay: float = Field(ge=0)


class Schedule(Value):
    """Linear warm-up to peak_lr at step warmup_steps, then cosine to min_lr at step decay_steps."""

    style: Literal["cosine"]
    peak_lr: float = Field(gt=0)
    min_lr: float = Field(ge=0)
    warmup_steps: int = Field(ge=0)
    decay_steps: int = Field(ge=1)

    @model_validator(mode="after")
    def _numbers_are_ordered(self) -> Schedule:
        if self.min_lr > self.peak_lr:
            raise ValueError(f"min_lr: found {self.min_lr}, expected at most peak_lr {self.peak_lr}")
        if self.warmup_steps >= self.decay_steps:
            raise ValueError(f"warmup_steps: found {self.warmup_steps}, expected below decay_steps {self.decay_steps}")
        return self


class LossScale(Value):
    """Dynamic loss scaling for fp16 (Micikevicius et al., 2018)."""

    initial: float = Field(gt=0)
    growth_interval: int = Field(ge=1)


class Training(Value):
    """The training itself: its steps, batch, precision, optimizer and seed."""

    steps: int = Field(ge=2, le=MAX_STEPS)
    sequence_length: int = Field(ge=2, le=MAX_SIZE)
    global_batch: int = Field(ge=1, le=MAX_SIZE)
    precision: Precision
    optimizer: Optimizer
    schedule: Schedule
    loss_scale: LossScale | None = None
    gradient_clip: float = Field(gt=0)
    seed: int = Field(ge=0, lt=2**63)

    @property
    def tokens_per_step(self) -> int:
        return self.global_batch * self.sequence_length

    @model_validator(mode="after")
    def _fp16_has_a_loss_scale(self) -> Training:
        if self.precision == "fp16" and self.loss_scale is None:
            raise ValueError("precision fp16 needs loss_scale")
        return self


class Data(Value):
    """The order of samples: sample i of the run is the i-th of a seeded permutation, the same for every layout."""

    seed: int = Field(ge=0, lt=2**63)
    shuffle: bool
    # The parts of the corpus for training, validation and test, as in Megatron; training uses the first.
    split: tuple[float, float, float]
    # Of the synthetic corpus, used without a real one (docs/decisions/synthetic-corpus.md); likewise the next.
    alphabet: int = Field(ge=2, le=MAX_SIZE)
    branching: int = Field(ge=2, le=16)


class Window(Value):
    """The measured steps, counted from 1, with both ends. The steps before them are the warm-up."""

    first_step: int = Field(ge=2)
    last_step: int = Field(ge=2)
    # The largest part of the window that outlying steps may cost without a known cause
    # (docs/decisions/disturbed-window.md).
    disturbance_limit: float = Field(default=0.1, gt=0, le=1, json_schema_extra=LATER)


class Acceptance(Value):
    """A limit for a valid run: the mean loss of its last `tail_steps` is below this fraction of the first loss."""

    final_loss_below_fraction: float = Field(gt=0, le=1)
    tail_steps: int = Field(ge=1)


class Evidence(Value):
    """What a run records beside its losses. The loss alone cannot show a wrong gradient scale."""

    # At the end of these steps the norm of each parameter's gradient is recorded. They are warm-up steps, so that
    # recording costs the window nothing.
    gradient_steps: tuple[int, ...] = Field(default=(), max_length=MAX_GRADIENT_STEPS)


class TimeLimits(Value):
    """The seconds after which a run counts as hung: without a heartbeat of a rank, or without a finished step."""

    heartbeat_seconds: float = Field(gt=0)
    step_seconds: float = Field(gt=0)
    start_seconds: float = Field(gt=0)


class Work(Value):
    """Everything that a case fixes, at one scale."""

    model: Model
    training: Training
    data: Data
    window: Window
    acceptance: Acceptance
    limits: TimeLimits
    evidence: Evidence = Evidence()

    @property
    def digest_without_precision(self) -> str:
        """The digest of the same work in fp32: equal for two works that differ in their precision only."""
        training = self.training.model_copy(update={"precision": "fp32", "loss_scale": None})
        return self.model_copy(update={"training": training}).fingerprint()

    @model_validator(mode="after")
    def _steps_and_alphabet_are_consistent(self) -> Work:
        last, first, steps = self.window.last_step, self.window.first_step, self.training.steps
        if not first <= last <= steps:
            raise ValueError(f"window {first}..{last} does not lie within the {steps} steps")
        if self.data.alphabet > self.model.vocab_size:
            raise ValueError(f"data.alphabet {self.data.alphabet} is above vocab_size {self.model.vocab_size}")
        if self.data.alphabet < 2 * self.data.branching:
            minimum = f"twice data.branching {self.data.branching}"
            raise ValueError(f"data.alphabet: found {self.data.alphabet}, expected at least {minimum}")
        late_steps = [step for step in self.evidence.gradient_steps if not 1 <= step < first]
        if late_steps:
            raise ValueError(
                f"evidence.gradient_steps {late_steps} do not lie before the window, which starts at {first}"
            )
        if self.acceptance.tail_steps >= steps:
            raise ValueError(f"acceptance.tail_steps: found {self.acceptance.tail_steps}, expected below steps {steps}")
        return self


class Case(Document):
    """configs/cases/<name>.yaml: the work at full scale, and what differs from it at smoke scale."""

    KIND: ClassVar[str] = "case"

    name: str
    title: str
    source: str
    tokenizer: str
    model: Model
    training: Training
    data: Data
    window: Window
    acceptance: Acceptance
    limits: TimeLimits
    evidence: Evidence = Evidence()
    smoke: dict[str, dict[str, Any]]  # the keys of the work that differ at smoke scale, with the same closed schema
    tuning: dict[Scale, TuningChoice] = Field(default_factory=dict)
    # The exact number at full scale, as published. The catalog checks the case by it: a model with a part that the
    # document leaves out, or cannot describe, has another number.
    parameters: int | None = Field(default=None, ge=1, json_schema_extra=LATER)

    def work(self, scale: Scale) -> Work:
        """Return the work at `scale`, without the values that change nothing at either scale.

        So equal work has equal digests, and a framework without a part is not refused for a part that does nothing. A
        value that does something at one scale stays at both: the case has this part.
        """
        work = self.written_work(scale)
        return work.model_copy(update={"model": _without_fields(work.model, self._idle_fields)})

    @property
    def _idle_fields(self) -> tuple[str, ...]:
        """The fields of the model whose values change nothing at either scale."""
        works = [self.written_work(scale) for scale in SCALES]
        idle_by_work = [(work, _idle_fields_of(work)) for work in works]
        fields = sorted({name for _, names in idle_by_work for name in names})
        return tuple(n for n in fields if all(n in names or _value_at(work, n) is None for work, names in idle_by_work))

    def fingerprint(self) -> str:
        """Return the digest of the document without the values that change nothing."""
        idle = self._idle_fields
        if not idle:
            return super().fingerprint()
        smoke = {**self.smoke, "model": _without_keys(self.smoke.get("model", {}), idle)}
        return Document.fingerprint(
            self.model_copy(update={"model": _without_fields(self.model, idle), "smoke": smoke})
        )

    @property
    def parts(self) -> tuple[ModelPart, ...]:
        """The parts that a framework needs to train the case at both scales."""
        return tuple(dict.fromkeys(part for scale in SCALES for part in self.work(scale).model.parts))

    def written_work(self, scale: Scale) -> Work:
        """Return the work at `scale` exactly as the document has it. Raises ValidationError for a wrong one."""
        full = {name: getattr(self, name).model_dump() for name in Work.model_fields}
        return Work.model_validate(merge_nested(full, self.smoke) if scale == "smoke" else full)

    @field_validator("smoke")
    @classmethod
    def _smoke_keys_exist(cls, smoke: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """Refuse unknown keys also where other keys are wrong: both scales are made of a sound document alone."""
        if texts := list(unknown_key_texts(Work, smoke)):
            raise ValueError("; ".join(texts))
        return smoke

    @model_validator(mode="after")
    def _both_scales_are_valid(self) -> Case:
        for scale in SCALES:
            try:
                work = self.written_work(scale)
            except ValidationError as error:
                raise ValueError(f"at scale {scale}: {_error_text(error)}") from None
        if changed := [f"{'.'.join(map(str, place))}: {fault}" for place, fault in type_changes(self.smoke, work)]:
            raise ValueError(f"at scale smoke: {'; '.join(changed)}")
        return self


def _error_text(error: ValidationError) -> str:
    faults = ((".".join(map(str, e["loc"])) or "work", e["msg"].removeprefix("Value error, ")) for e in error.errors())
    return "; ".join(f"{key}: {message}" for key, message in faults)


def merge_nested(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return `base` with the changed keys replaced in every nested mapping. All other keys stay."""
    result = dict(base)
    for key, value in changes.items():
        are_mappings = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merge_nested(result[key], value) if are_mappings else value
    return result


def _idle_fields_of(work: Work) -> tuple[str, ...]:
    """Return the fields of the model that equal their defaults or never bind: the work is the same without them."""
    model, scaling, experts = work.model, work.model.rope_scaling, work.model.experts
    groups = experts.router.groups if experts else None
    capacity = (experts.capacity_factor or 0) * experts.chosen if experts else 0
    has_idle_window = (model.sliding_window or 0) >= work.training.sequence_length
    is_idle = {
        "head_dim": model.head_dim is not None and model.head_dim * model.heads == model.hidden_size,
        "embedding_scale": model.embedding_scale == 1,
        "residual_scale": model.residual_scale == 1,
        "logit_scale": model.logit_scale == 1,
        "attention_scale": model.attention_scale == model.head_size**-0.5,
        "sliding_window": has_idle_window,
        "full_attention_interval": has_idle_window or (model.full_attention_interval or 0) > model.layers,
        "no_rope_interval": (model.no_rope_interval or 0) > model.layers,
        "rope_scaling": scaling is not None and scaling.factor == 1 and scaling.magnitude in (None, 1),
        # an expert takes every token of a sequence that chooses it: none has more than all tokens
        "experts.capacity_factor": experts is not None and capacity >= experts.count,
        "experts.router.groups": groups is not None and groups.chosen == groups.count,
    }
    return tuple(name for name, idle in is_idle.items() if idle)


def _value_at(work: Work, field: str) -> Any:
    """Return a value of the model by its field, such as `experts.router.groups`; None where a part is not there."""
    value: Any = work.model
    for name in field.split("."):
        value = getattr(value, name, None)
    return value


def _fields_within(fields: Sequence[str], part: str) -> list[str]:
    """Return the fields inside a part, such as `router.groups` inside `experts`."""
    return [name.removeprefix(f"{part}.") for name in fields if name.startswith(f"{part}.")]


def _without_fields(value: Value, fields: Sequence[str]) -> Value:
    """Return the model, or a part of it, without these values."""
    changed: dict[str, Any] = {name: None for name in fields if "." not in name}
    for part in {name.partition(".")[0] for name in fields if "." in name}:
        if (inner := getattr(value, part)) is not None:
            changed[part] = _without_fields(inner, _fields_within(fields, part))
    return value.model_copy(update=changed)


def _without_keys(content: Mapping[str, Any], fields: Sequence[str]) -> dict[str, Any]:
    """Return the keys of a document without these fields."""
    return {
        name: _without_keys(value, _fields_within(fields, name)) if isinstance(value, dict) else value
        for name, value in content.items()
        if name not in fields
    }

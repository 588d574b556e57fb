"""A case: the work that is identical for every framework and every vendor.

Units: lengths are in tokens, batches in sequences, seeds are integers below 2**63.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, SerializerFunctionWrapHandler, ValidationError, model_serializer, model_validator

from levelfield.specs.architecture import Experts, LatentAttention, Part, RopeScaling
from levelfield.specs.base import (
    LATER,
    MOST_GRADIENT_STEPS,
    MOST_LAYERS,
    MOST_SIZE,
    MOST_STEPS,
    Document,
    Value,
    changed_types,
)
from levelfield.specs.plain_work import idle_values, left_out, value_at, without
from levelfield.specs.tuning import TuningChoice

Precision = Literal["fp32", "bf16", "fp16", "fp8"]
Scale = Literal["full", "smoke"]
SCALES: tuple[Scale, ...] = ("full", "smoke")


GATED: dict[str, str] = {"swiglu": "silu", "geglu_tanh": "gelu_tanh"}  # of an MLP with a gate, the gate's activation


class Model(Value):
    """A decoder-only transformer, composed of parts: attention, MLP or experts, norms, positions, embeddings.

    family: a word for tables; nothing is computed from it. kv_heads: of keys and values (grouped queries). head_dim:
    width of a head, where it is not hidden_size / heads. bias: of every matrix; qkv_bias: of queries, keys and values.
    query_key_norm: RMSNorm of each head's query and key before the rotation, with norm_eps. sliding_window: a token
    attends to so many tokens, itself among them. norm_place: of a layer's norms, before its parts or after them (then
    x + norm(part(x)); OLMo 2). embedding_scale: embeddings times this number. experts: replaces the MLP of its layers.
    latent_attention: replaces the projections of queries, keys and values.
    """

    family: str = Field(pattern=r"^[a-z][a-z0-9_.]{0,19}$")
    layers: int = Field(ge=1, le=MOST_LAYERS)
    hidden_size: int = Field(ge=1, le=MOST_SIZE)
    ffn_hidden_size: int = Field(ge=1, le=MOST_SIZE)
    heads: int = Field(ge=1, le=MOST_SIZE)
    kv_heads: int = Field(ge=1, le=MOST_SIZE)
    vocab_size: int = Field(ge=2, le=MOST_SIZE)
    positions: Literal["learned", "rope"]
    rope_base: float | None = Field(default=None, gt=0)
    norm: Literal["layernorm", "rmsnorm"]
    norm_eps: float = Field(gt=0)
    activation: Literal["gelu", "gelu_tanh", "swiglu", "geglu_tanh"]
    bias: bool
    tied_embeddings: bool
    hidden_dropout: float = Field(ge=0, lt=1)
    attention_dropout: float = Field(ge=0, lt=1)
    init_std: float = Field(gt=0)
    scaled_residual_init: bool
    head_dim: int | None = Field(default=None, ge=1, le=MOST_SIZE, json_schema_extra=LATER)
    qkv_bias: bool = Field(default=False, json_schema_extra=LATER)
    query_key_norm: bool = Field(default=False, json_schema_extra=LATER)
    sliding_window: int | None = Field(default=None, ge=1, json_schema_extra=LATER)
    rope_scaling: RopeScaling | None = Field(default=None, json_schema_extra=LATER)
    latent_attention: LatentAttention | None = Field(default=None, json_schema_extra=LATER)
    norm_place: Literal["before", "after"] = Field(default="before", json_schema_extra=LATER)
    embedding_scale: float | None = Field(default=None, gt=0, json_schema_extra=LATER)
    experts: Experts | None = Field(default=None, json_schema_extra=LATER)

    @property
    def head_size(self) -> int:
        return self.head_dim or self.hidden_size // self.heads

    @property
    def is_gated(self) -> bool:
        """Whether the MLP has a gate beside its first product."""
        return self.activation in GATED

    @property
    def mixture_layers(self) -> int:
        """The number of layers whose MLP is a mixture of experts."""
        return sum(self.is_mixture(layer) for layer in range(self.layers))

    def is_mixture(self, layer: int) -> bool:
        """Return whether layer `layer`, counted from 0, is a mixture of experts."""
        return self.experts is not None and self.experts.replaces_mlp(layer)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The names of the parts that compose the model. implementation.yaml lists those that a framework has."""
        return tuple(name for name, used in (_attention_parts(self) | _layer_parts(self)).items() if used)

    @model_serializer(mode="wrap")
    def _without_later_parts(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what came later and is not used, so that documents from before it stay as they are."""
        content: dict[str, Any] = handler(self)
        fields = type(self).model_fields.items()
        unused = [name for name, f in fields if f.json_schema_extra == LATER and getattr(self, name) == f.default]
        return {name: value for name, value in content.items() if name not in unused}

    @model_validator(mode="after")
    def _parts_are_consistent(self) -> Model:
        if self.rope_scaling is not None and self.positions != "rope":
            raise ValueError("rope_scaling is given only when positions is 'rope'")
        if self.qkv_bias and self.bias:
            raise ValueError("qkv_bias: bias already gives every matrix a bias; remove one of both")
        if self.query_key_norm and self.latent_attention is not None:
            raise ValueError("query_key_norm: latent attention has norms of its own; remove one of both")
        if self.latent_attention is not None and (self.head_dim or self.positions != "rope"):
            raise ValueError("latent_attention has its own head sizes and rotary positions; remove head_dim, use rope")
        if self.latent_attention is not None and (self.bias or self.qkv_bias):
            raise ValueError("latent_attention: its matrices have no bias; remove bias and qkv_bias")
        experts = self.experts
        if experts is not None and experts.first_layer >= self.layers:
            raise ValueError(f"experts.first_layer: found {experts.first_layer}, expected below layers {self.layers}")
        return self

    @model_validator(mode="after")
    def _consistent(self) -> Model:
        if self.head_dim is None and self.latent_attention is None and self.hidden_size % self.heads:
            raise ValueError(f"hidden_size {self.hidden_size} is not divisible by heads {self.heads}")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads {self.heads} is not divisible by kv_heads {self.kv_heads}")
        if (self.positions == "rope") != (self.rope_base is not None):
            raise ValueError("rope_base is given exactly when positions is 'rope'")
        if self.positions == "rope" and self.head_size % 2:
            raise ValueError(f"rope needs an even head size, found {self.head_size}")
        return self


def _attention_parts(model: Model) -> dict[Part, bool]:
    scaling = model.rope_scaling.kind if model.rope_scaling else None
    return {
        "learned_positions": model.positions == "learned",
        "rope": model.positions == "rope",
        "grouped_queries": model.kv_heads != model.heads,
        "bias": model.bias,
        "qkv_bias": model.qkv_bias,
        "head_dim": model.head_dim is not None,
        "query_key_norm": model.query_key_norm,
        "sliding_window": model.sliding_window is not None,
        "rope_linear": scaling == "linear",
        "rope_llama3": scaling == "llama3",
        "rope_yarn": scaling == "yarn",
        "latent_attention": model.latent_attention is not None,
    }


def _layer_parts(model: Model) -> dict[Part, bool]:
    experts = model.experts
    router = experts.router if experts else None
    return {
        "layernorm": model.norm == "layernorm",
        "rmsnorm": model.norm == "rmsnorm",
        "gelu": model.activation == "gelu",
        "gelu_tanh": model.activation == "gelu_tanh",
        "swiglu": model.activation == "swiglu",
        "geglu_tanh": model.activation == "geglu_tanh",
        "norm_after": model.norm_place == "after",
        "tied_embeddings": model.tied_embeddings,
        "embedding_scale": model.embedding_scale is not None,
        "dropout": bool(model.hidden_dropout or model.attention_dropout),
        "experts": experts is not None,
        "shared_experts": experts is not None and experts.shared > 0,
        "dense_layers": experts is not None and model.mixture_layers < model.layers,
        "expert_capacity": experts is not None and experts.capacity_factor is not None,
        "sigmoid_router": router is not None and router.scores == "sigmoid",
        "router_bias": router is not None and router.bias_rate > 0,
        "router_groups": router is not None and router.groups is not None,
        "router_z_loss": router is not None and router.z_loss > 0,
    }


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
    def _ordered(self) -> Schedule:
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
    steps: int = Field(ge=2, le=MOST_STEPS)
    sequence_length: int = Field(ge=2, le=MOST_SIZE)
    global_batch: int = Field(ge=1, le=MOST_SIZE)
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
    def _scaled(self) -> Training:
        if self.precision == "fp16" and self.loss_scale is None:
            raise ValueError("precision fp16 needs loss_scale")
        return self


class Data(Value):
    """The order of samples: sample i of the run is the i-th of a seeded permutation, the same for every layout.

    split: the parts of the corpus for training, validation and test, as in Megatron; training uses the first.
    alphabet, branching: of the synthetic corpus, used without a real one (docs/decisions/synthetic-corpus.md).
    """

    seed: int = Field(ge=0, lt=2**63)
    shuffle: bool
    split: tuple[float, float, float]
    alphabet: int = Field(ge=2, le=MOST_SIZE)
    branching: int = Field(ge=2, le=16)


class Window(Value):
    """The measured steps, counted from 1, with both ends. The steps before them are the warm-up.

    disturbance_limit: the largest part of the window that outlying steps may cost without a known cause
    (docs/decisions/disturbed-window.md).
    """

    first_step: int = Field(ge=2)
    last_step: int = Field(ge=2)
    disturbance_limit: float = Field(default=0.1, gt=0, le=1, json_schema_extra=LATER)


class Acceptance(Value):
    """A limit for a valid run: the mean loss of its last `tail_steps` is below this fraction of the first loss."""

    final_loss_below_fraction: float = Field(gt=0, le=1)
    tail_steps: int = Field(ge=1)


class Evidence(Value):
    """What a run records beside its losses: the norm of each parameter's gradient at the end of these steps.

    They are warm-up steps, so recording costs the window nothing. The loss alone cannot show a wrong gradient scale.
    """

    gradient_steps: tuple[int, ...] = Field(default=(), max_length=MOST_GRADIENT_STEPS)


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
    def digest_but_precision(self) -> str:
        """The digest of the same work in fp32: equal for two works that differ in their precision only."""
        training = self.training.model_copy(update={"precision": "fp32", "loss_scale": None})
        return self.model_copy(update={"training": training}).fingerprint()

    @model_validator(mode="after")
    def _consistent(self) -> Work:
        last, first, steps = self.window.last_step, self.window.first_step, self.training.steps
        if not first <= last <= steps:
            raise ValueError(f"window {first}..{last} does not lie within the {steps} steps")
        if self.data.alphabet > self.model.vocab_size:
            raise ValueError(f"data.alphabet {self.data.alphabet} is above vocab_size {self.model.vocab_size}")
        if self.data.alphabet < 2 * self.data.branching:
            least = f"twice data.branching {self.data.branching}"
            raise ValueError(f"data.alphabet: found {self.data.alphabet}, expected at least {least}")
        late = [step for step in self.evidence.gradient_steps if not 1 <= step < first]
        if late:
            raise ValueError(f"evidence.gradient_steps {late} do not lie before the window, which starts at {first}")
        if self.acceptance.tail_steps >= steps:
            raise ValueError(f"acceptance.tail_steps: found {self.acceptance.tail_steps}, expected below steps {steps}")
        return self


class Case(Document):
    """The full work, and `smoke`: the keys that differ at smoke scale, with the same closed schema.

    parameters: the exact number at full scale, as published. The catalog holds the case to it: a model whose parts a
    document cannot say, or leaves out, has another number.
    """

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
    smoke: dict[str, dict[str, Any]]
    tuning: dict[Scale, TuningChoice] = Field(default_factory=dict)
    parameters: int | None = Field(default=None, ge=1, json_schema_extra=LATER)

    def work(self, scale: Scale) -> Work:
        """Return the work at `scale`, without the values that change nothing at either scale.

        A value that does something at one scale stays at both: the case has this part.
        """
        return without(self.written(scale), self._idle)

    @property
    def _idle(self) -> tuple[str, ...]:
        """The values of the model that change nothing at either scale, by field."""
        works = [self.written(scale) for scale in SCALES]
        idle = [idle_values(work) for work in works]
        each = list(zip(works, idle, strict=True))
        named = sorted({name for names in idle for name in names})
        return tuple(n for n in named if all(n in names or value_at(work, n) is None for work, names in each))

    def fingerprint(self) -> str:
        """Return the digest of the document without the values that change nothing."""
        idle = self._idle
        if not idle:
            return super().fingerprint()
        model = without(self.written("full"), idle).model
        smoke = {**self.smoke, "model": left_out(self.smoke.get("model", {}), idle)}
        return Document.fingerprint(self.model_copy(update={"model": model, "smoke": smoke}))

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts that a framework needs to train the case at both scales."""
        return tuple(dict.fromkeys(part for scale in SCALES for part in self.work(scale).model.parts))

    def written(self, scale: Scale) -> Work:
        """Return the work at `scale` as the document says it. Raises pydantic.ValidationError when it is not valid."""
        full = {name: getattr(self, name).model_dump() for name in Work.model_fields}
        return Work.model_validate(merged(full, self.smoke) if scale == "smoke" else full)

    @model_validator(mode="after")
    def _both_scales_are_valid(self) -> Case:
        unknown = set(self.smoke) - set(Work.model_fields)
        if unknown:
            raise ValueError(f"smoke: unknown key {sorted(unknown)}; known: {sorted(Work.model_fields)}")
        for scale in SCALES:
            try:
                work = self.written(scale)
            except ValidationError as error:
                raise ValueError(f"at scale {scale}: {_flat(error)}") from None
        if changed := [f"{'.'.join(map(str, place))}: {said}" for place, said in changed_types(self.smoke, work)]:
            raise ValueError(f"at scale smoke: {'; '.join(changed)}")
        return self


def _flat(error: ValidationError) -> str:
    found = ((".".join(map(str, e["loc"])) or "work", e["msg"].removeprefix("Value error, ")) for e in error.errors())
    return "; ".join(f"{key}: {message}" for key, message in found)


def merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return `base` with the changed keys replaced in every nested mapping. All other keys stay."""
    result = dict(base)
    for key, value in changes.items():
        nested = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if nested else value
    return result

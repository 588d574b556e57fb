"""A decoder and the parts that compose it: sizes, rotary scaling, latent attention, experts.

A part has a name. implementation.yaml lists the parts that a framework has, so a case is refused by the part that is
missing, and not by the name of its family.
"""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from levelfield.specs.base import LATER, MAX_EXPERTS, MAX_LAYERS, MAX_SIZE, Value

ModelPart = Literal[
    "learned_positions",
    "rope",
    "layernorm",
    "rmsnorm",
    "gelu",
    "gelu_tanh",
    "swiglu",
    "geglu_tanh",
    "bias",
    "grouped_queries",
    "tied_embeddings",
    "dropout",
    "qkv_bias",
    "attention_bias",
    "unbiased_layernorm",
    "head_dim",
    "query_key_norm",
    "joint_query_key_norm",
    "sliding_window",
    "full_attention_layers",
    "partial_rotary",
    "no_rope_layers",
    "rope_linear",
    "rope_llama3",
    "rope_yarn",
    "latent_attention",
    "norm_after",
    "parallel_residual",
    "embedding_scale",
    "residual_scale",
    "logit_scale",
    "attention_scale",
    "experts",
    "shared_experts",
    "shared_expert_gate",
    "dense_layers",
    "sigmoid_router",
    "router_bias",
    "router_groups",
    "router_z_loss",
    "expert_capacity",
]

# Families as sets of parts: the rows of the support table. A case needs no family of this list.
FAMILIES: dict[str, frozenset[ModelPart]] = {
    "gpt": frozenset(("learned_positions", "layernorm", "gelu_tanh", "bias", "tied_embeddings")),
    "llama": frozenset(("rope", "rmsnorm", "swiglu", "grouped_queries")),
    "qwen": frozenset(
        ("rope", "rmsnorm", "swiglu", "grouped_queries", "head_dim", "query_key_norm", "qkv_bias", "rope_llama3")
    ),
    "mixture": frozenset(
        ("rope", "rmsnorm", "swiglu", "grouped_queries", "query_key_norm", "experts", "shared_experts", "dense_layers")
    ),
}

# By activation of an MLP that has a gate: the activation of the gate itself.
GATE_ACTIVATIONS: dict[str, str] = {"swiglu": "silu", "geglu_tanh": "gelu_tanh"}


class RopeScaling(Value):
    """A change of the rotary frequencies, for sequences longer than those of the first training.

    linear: frequencies over `factor` (Chen et al., 2023). llama3: wavelengths above original_length / low_factor are
    divided by `factor`, those below original_length / high_factor stay, and between both the change is linear
    (Grattafiori et al., 2024, and its reference code). yarn: the same between beta_fast and beta_slow rotations, and
    cosines and sines times 0.1 ln(factor) + 1 (Peng et al., 2023); `magnitude` replaces that number.
    """

    kind: Literal["linear", "llama3", "yarn"]
    factor: float = Field(ge=1)
    original_length: int | None = Field(default=None, ge=1)
    low_factor: float | None = Field(default=None, gt=0)
    high_factor: float | None = Field(default=None, gt=0)
    beta_fast: float | None = Field(default=None, gt=0)
    beta_slow: float | None = Field(default=None, gt=0)
    magnitude: float | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _has_the_keys_of_its_kind(self) -> RopeScaling:
        needed = {
            "linear": set[str](),
            "llama3": {"original_length", "low_factor", "high_factor"},
            "yarn": {"original_length", "beta_fast", "beta_slow"},
        }[self.kind]
        optional = {"kind", "factor"} | ({"magnitude"} if self.kind == "yarn" else set())
        present = {name for name in type(self).model_fields if getattr(self, name) is not None}
        if missing := sorted(needed - present):
            raise ValueError(f"rope_scaling {self.kind}: missing {', '.join(missing)}")
        if unexpected := sorted(present - needed - optional):
            raise ValueError(f"rope_scaling {self.kind}: found {', '.join(unexpected)}, which this kind does not have")
        if self.kind == "llama3" and not (self.low_factor or 0) < (self.high_factor or 0):
            raise ValueError(f"low_factor: found {self.low_factor}, expected below high_factor {self.high_factor}")
        if self.kind == "yarn" and not (self.beta_slow or 0) < (self.beta_fast or 0):
            raise ValueError(f"beta_slow: found {self.beta_slow}, expected below beta_fast {self.beta_fast}")
        return self


class LatentAttention(Value):
    """Multi-head latent attention (DeepSeek-AI, 2024, V2, section 2.1). Sizes are widths."""

    # Of the latent; None: queries come from the hidden state.
    query_rank: int | None = Field(default=None, ge=1, le=MAX_SIZE)
    key_value_rank: int = Field(ge=1, le=MAX_SIZE)  # of the latent
    plain_size: int = Field(ge=1, le=MAX_SIZE)  # the part of a query's and a key's head without rotary positions
    # The part with them; that of the keys is one for all heads.
    rotary_size: int = Field(ge=2, le=MAX_SIZE, multiple_of=2)
    value_size: int = Field(ge=1, le=MAX_SIZE)  # of a head's value


class RouterGroups(Value):
    """Experts are in `count` equal groups, and a token may only take experts of its best `chosen` groups.

    The score of a group is the sum of its best scores, the selection bias included. It counts as many of them as a
    token takes on average from each of its groups, rounded down (DeepSeek-AI, 2024, V3: two).
    """

    count: int = Field(ge=2, le=MAX_EXPERTS)
    chosen: int = Field(ge=1)


class Router(Value):
    """How a token chooses its experts.

    Scores are in float32; of equal scores the expert with the lower index is taken.
    """

    scores: Literal["softmax", "sigmoid"] = "softmax"  # of all experts
    normalised: bool = True  # the gates of the chosen experts are divided by their sum
    scale: float = Field(default=1.0, gt=0)  # gates are multiplied by it
    groups: RouterGroups | None = None
    # Its coefficient; the loss is that of each sequence, experts x sum of (share of the sequence's choices) x
    # (mean score), the mean over sequences and the sum over layers (DeepSeek-AI, 2024, V3, equations 17 to 20);
    # with another definition it would depend on the micro-batch.
    auxiliary_loss: float = Field(default=0.0, ge=0)
    # The coefficient of the mean over tokens of the squared logarithm of the sum of exponentials (Zoph et al.,
    # 2022, equation 5), summed over layers.
    z_loss: float = Field(default=0.0, ge=0)
    # After each step the selection bias of an expert moves by so much against its load over the global batch; the
    # bias chooses experts and is not in their gates (Wang et al., 2024).
    bias_rate: float = Field(default=0.0, ge=0)


class ModelValue(Value):
    """A model, or a part of one, whose documents leave out what came later and is not used."""

    @model_serializer(mode="wrap")
    def _omit_unused_later_fields(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        content: dict[str, Any] = handler(self)
        fields = type(self).model_fields.items()
        unused = [name for name, f in fields if f.json_schema_extra == LATER and getattr(self, name) == f.default]
        return {name: value for name, value in content.items() if name not in unused}


class Experts(ModelValue):
    """A mixture of experts in place of the MLP: `count` MLPs of the model's activation, of which a token uses
    `chosen`.
    """

    count: int = Field(ge=2, le=MAX_EXPERTS)
    chosen: int = Field(ge=1)
    ffn_hidden_size: int = Field(ge=1, le=MAX_SIZE)  # of one expert
    # Experts that every token uses, as one MLP of shared x ffn_hidden_size.
    shared: int = Field(default=0, ge=0, le=MAX_EXPERTS)
    # Their output times the sigmoid of one more product of their input (Qwen2-MoE).
    shared_gate: bool = Field(default=False, json_schema_extra=LATER)
    # Layers first_layer, first_layer + every, ... are mixtures; the others keep the dense MLP.
    first_layer: int = Field(default=0, ge=0)
    every: int = Field(default=1, ge=1)
    router: Router = Router()
    # An expert takes at most ceil(capacity_factor x sequence_length x chosen / count) tokens of each sequence,
    # the first ones; None: it takes all (dropless).
    capacity_factor: float | None = Field(default=None, gt=0)

    def replaces_mlp(self, layer: int) -> bool:
        """Return whether layer `layer`, counted from 0, is a mixture."""
        return layer >= self.first_layer and (layer - self.first_layer) % self.every == 0

    def mixtures_before(self, layer: int) -> int:
        """Return how many of the layers before `layer`, counted from 0, are mixtures."""
        return max(0, -(-(layer - self.first_layer) // self.every))

    @model_validator(mode="after")
    def _choices_are_possible(self) -> Experts:
        if self.chosen > self.count:
            raise ValueError(f"chosen: found {self.chosen}, expected at most count {self.count}")
        if self.shared_gate and not self.shared:
            raise ValueError("shared_gate: found true, and shared is 0; remove it")
        groups = self.router.groups
        if groups is None:
            return self
        if self.count % groups.count:
            raise ValueError(f"router.groups.count: found {groups.count}, expected a divisor of count {self.count}")
        if groups.chosen > groups.count or self.chosen > groups.chosen * (self.count // groups.count):
            raise ValueError(
                f"router.groups.chosen: found {groups.chosen}, expected at most {groups.count} groups that hold the "
                f"{self.chosen} chosen experts"
            )
        return self


class Model(ModelValue):
    """A decoder-only transformer, composed of parts: attention, MLP or experts, norms, positions, embeddings."""

    family: str = Field(pattern=r"^[a-z][a-z0-9_.]{0,19}$")  # a word for tables; nothing is computed from it
    layers: int = Field(ge=1, le=MAX_LAYERS)
    hidden_size: int = Field(ge=1, le=MAX_SIZE)
    ffn_hidden_size: int = Field(ge=1, le=MAX_SIZE)
    heads: int = Field(ge=1, le=MAX_SIZE)
    kv_heads: int = Field(ge=1, le=MAX_SIZE)  # of keys and values (grouped queries)
    vocab_size: int = Field(ge=2, le=MAX_SIZE)
    positions: Literal["learned", "rope"]
    rope_base: float | None = Field(default=None, gt=0)
    norm: Literal["layernorm", "rmsnorm"]
    norm_eps: float = Field(gt=0)
    activation: Literal["gelu", "gelu_tanh", "swiglu", "geglu_tanh"]
    bias: bool  # of every matrix
    tied_embeddings: bool
    hidden_dropout: float = Field(ge=0, lt=1)
    attention_dropout: float = Field(ge=0, lt=1)
    init_std: float = Field(gt=0)
    scaled_residual_init: bool
    # Width of a head, where it is not hidden_size / heads.
    head_dim: int | None = Field(default=None, ge=1, le=MAX_SIZE, json_schema_extra=LATER)
    qkv_bias: bool = Field(default=False, json_schema_extra=LATER)  # of queries, keys and values
    # Of queries, keys, values and attention's output, where the MLP has none (InternLM).
    attention_bias: bool = Field(default=False, json_schema_extra=LATER)
    norm_bias: bool = Field(default=True, json_schema_extra=LATER)  # of a LayerNorm (Cohere has none)
    # RMSNorm of each head's query and key before the rotation, with norm_eps.
    query_key_norm: bool = Field(default=False, json_schema_extra=LATER)
    # The same of all heads of queries together, and of all of keys (OLMo 2).
    joint_query_key_norm: bool = Field(default=False, json_schema_extra=LATER)
    # A token attends to so many tokens, itself among them.
    sliding_window: int | None = Field(default=None, ge=1, json_schema_extra=LATER)
    # Layers interval - 1, 2 interval - 1, ..., counted from 0, attend to all tokens before, the others to the window.
    full_attention_interval: int | None = Field(default=None, ge=2, json_schema_extra=LATER)
    rope_scaling: RopeScaling | None = Field(default=None, json_schema_extra=LATER)
    # So many numbers of each head are rotated, the first ones (GPT-NeoX, GLM-4.5).
    rotary_dim: int | None = Field(default=None, ge=2, multiple_of=2, json_schema_extra=LATER)
    # Layers interval - 1, 2 interval - 1, ..., counted from 0, have no rotation (SmolLM3).
    no_rope_interval: int | None = Field(default=None, ge=2, json_schema_extra=LATER)
    # Replaces the projections of queries, keys and values.
    latent_attention: LatentAttention | None = Field(default=None, json_schema_extra=LATER)
    # Of a layer's norms, before its parts or after them (then x + norm(part(x)); OLMo 2).
    norm_place: Literal["before", "after"] = Field(default="before", json_schema_extra=LATER)
    # x + attention(norm(x)) + mlp(norm(x)), of one norm (GPT-J, Cohere) or of two (GPT-NeoX).
    parallel_residual: Literal["one_norm", "two_norms"] | None = Field(default=None, json_schema_extra=LATER)
    embedding_scale: float | None = Field(default=None, gt=0, json_schema_extra=LATER)  # embeddings times this number
    # What attention and MLP add to the residual stream, times this number (Granite, MiniCPM).
    residual_scale: float | None = Field(default=None, gt=0, json_schema_extra=LATER)
    logit_scale: float | None = Field(default=None, gt=0, json_schema_extra=LATER)  # logits times this number
    # Products of queries and keys times this number, in place of 1 / the root of the head size.
    attention_scale: float | None = Field(default=None, gt=0, json_schema_extra=LATER)
    experts: Experts | None = Field(default=None, json_schema_extra=LATER)  # replaces the MLP of its layers

    @property
    def head_size(self) -> int:
        return self.head_dim or self.hidden_size // self.heads

    def is_rotated(self, layer: int) -> bool:
        """Return whether layer `layer`, counted from 0, has rotary positions."""
        return self.positions == "rope" and not _ends_interval(layer, self.no_rope_interval)

    def layer_window(self, layer: int) -> int | None:
        """Return the sliding window of layer `layer`, counted from 0; None where it attends to all tokens before."""
        return None if _ends_interval(layer, self.full_attention_interval) else self.sliding_window

    @property
    def norms_per_layer(self) -> int:
        """The number of norms of a layer's hidden state."""
        return 1 if self.parallel_residual == "one_norm" else 2

    @property
    def query_factor(self) -> float:
        """What multiplies rotated queries, where scores are divided by the root of the head size."""
        return 1.0 if self.attention_scale is None else self.attention_scale * math.sqrt(self.head_size)

    @property
    def query_key_norm_widths(self) -> tuple[int, int] | None:
        """The widths over which queries and keys are normalised; None in a model that does not."""
        counts = (self.heads, self.kv_heads) if self.joint_query_key_norm else (1, 1)
        has_norms = self.query_key_norm or self.joint_query_key_norm
        return (counts[0] * self.head_size, counts[1] * self.head_size) if has_norms else None

    @property
    def head_widths(self) -> tuple[int, int]:
        """The widths of one head's query and value. Latent attention has queries wider than values."""
        latent = self.latent_attention
        if latent is None:
            return self.head_size, self.head_size
        return latent.plain_size + latent.rotary_size, latent.value_size

    @property
    def is_gated(self) -> bool:
        """Whether the MLP has a gate beside its first product."""
        return self.activation in GATE_ACTIVATIONS

    @property
    def mixture_layers(self) -> int:
        """The number of layers whose MLP is a mixture of experts."""
        return self.experts.mixtures_before(self.layers) if self.experts else 0

    def is_mixture(self, layer: int) -> bool:
        """Return whether layer `layer`, counted from 0, is a mixture of experts."""
        return self.experts is not None and self.experts.replaces_mlp(layer)

    @property
    def parts(self) -> tuple[ModelPart, ...]:
        """The names of the parts that compose the model. implementation.yaml lists those that a framework has."""
        return tuple(name for name, used in _used_parts(self).items() if used)

    @model_validator(mode="after")
    def _parts_are_consistent(self) -> Model:
        if self.qkv_bias and self.bias:
            raise ValueError("qkv_bias: bias already gives every matrix a bias; remove one of both")
        if self.attention_bias and (self.bias or self.qkv_bias):
            raise ValueError("attention_bias: bias and qkv_bias give the same matrices a bias; have one of the three")
        if not self.norm_bias and self.norm != "layernorm":
            raise ValueError("norm_bias: found false, and rmsnorm has no bias; remove it")
        if self.full_attention_interval is not None and self.sliding_window is None:
            raise ValueError("full_attention_interval: without sliding_window every layer attends to all; remove it")
        if self.parallel_residual is not None and self.norm_place == "after":
            raise ValueError("parallel_residual: its norms are before attention and MLP; remove norm_place")
        if self.query_key_norm and self.joint_query_key_norm:
            raise ValueError("query_key_norm is of each head, and joint_query_key_norm of all; remove one of both")
        experts = self.experts
        if experts is not None and experts.first_layer >= self.layers:
            raise ValueError(f"experts.first_layer: found {experts.first_layer}, expected below layers {self.layers}")
        return self

    @model_validator(mode="after")
    def _latent_attention_stands_alone(self) -> Model:
        if (self.query_key_norm or self.joint_query_key_norm) and self.latent_attention is not None:
            raise ValueError("query_key_norm: latent attention has norms of its own; remove one of both")
        if self.latent_attention is not None and (self.head_dim or self.positions != "rope"):
            raise ValueError("latent_attention has its own head sizes and rotary positions; remove head_dim, use rope")
        if self.latent_attention is not None and (self.bias or self.qkv_bias or self.attention_bias):
            raise ValueError("latent_attention: its matrices have no bias; remove bias, qkv_bias and attention_bias")
        if self.latent_attention is not None and (self.rotary_dim or self.no_rope_interval):
            raise ValueError("latent_attention has its own rotary_size; remove rotary_dim and no_rope_interval")
        if self.latent_attention is not None and self.attention_scale is not None:
            raise ValueError("attention_scale: latent attention divides scores by the root of its head size; remove it")
        return self

    @model_validator(mode="after")
    def _sizes_are_consistent(self) -> Model:
        if self.head_dim is None and self.latent_attention is None and self.hidden_size % self.heads:
            raise ValueError(f"hidden_size {self.hidden_size} is not divisible by heads {self.heads}")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads {self.heads} is not divisible by kv_heads {self.kv_heads}")
        return self

    @model_validator(mode="after")
    def _positions_are_consistent(self) -> Model:
        if (self.positions == "rope") != (self.rope_base is not None):
            raise ValueError("rope_base is given exactly when positions is 'rope'")
        if self.rope_scaling is not None and self.positions != "rope":
            raise ValueError("rope_scaling is given only when positions is 'rope'")
        if self.positions == "rope" and self.head_size % 2:
            raise ValueError(f"rope needs an even head size, found {self.head_size}")
        if (self.rotary_dim or self.no_rope_interval) and self.positions != "rope":
            raise ValueError("rotary_dim and no_rope_interval are given only when positions is 'rope'")
        if self.rotary_dim and self.rotary_dim >= self.head_size:
            raise ValueError(f"rotary_dim: found {self.rotary_dim}, expected below the head size {self.head_size}")
        return self


def _ends_interval(layer: int, interval: int | None) -> bool:
    return interval is not None and (layer + 1) % interval == 0


def _used_parts(model: Model) -> dict[ModelPart, bool]:
    """Return every part, and whether the model has it."""
    scaling = model.rope_scaling.kind if model.rope_scaling else None
    experts = model.experts
    router = experts.router if experts else None
    return {
        "learned_positions": model.positions == "learned",
        "rope": model.positions == "rope",
        "grouped_queries": model.kv_heads != model.heads,
        "bias": model.bias,
        "qkv_bias": model.qkv_bias,
        "attention_bias": model.attention_bias,
        "unbiased_layernorm": not model.norm_bias,
        "head_dim": model.head_dim is not None,
        "query_key_norm": model.query_key_norm,
        "joint_query_key_norm": model.joint_query_key_norm,
        "sliding_window": model.sliding_window is not None,
        "full_attention_layers": model.full_attention_interval is not None,
        "partial_rotary": model.rotary_dim is not None,
        "no_rope_layers": model.no_rope_interval is not None,
        "rope_linear": scaling == "linear",
        "rope_llama3": scaling == "llama3",
        "rope_yarn": scaling == "yarn",
        "latent_attention": model.latent_attention is not None,
        "layernorm": model.norm == "layernorm",
        "rmsnorm": model.norm == "rmsnorm",
        "gelu": model.activation == "gelu",
        "gelu_tanh": model.activation == "gelu_tanh",
        "swiglu": model.activation == "swiglu",
        "geglu_tanh": model.activation == "geglu_tanh",
        "norm_after": model.norm_place == "after",
        "parallel_residual": model.parallel_residual is not None,
        "tied_embeddings": model.tied_embeddings,
        "embedding_scale": model.embedding_scale is not None,
        "residual_scale": model.residual_scale is not None,
        "logit_scale": model.logit_scale is not None,
        "attention_scale": model.attention_scale is not None,
        "dropout": bool(model.hidden_dropout or model.attention_dropout),
        "experts": experts is not None,
        "shared_experts": experts is not None and experts.shared > 0,
        "shared_expert_gate": experts is not None and experts.shared_gate,
        "dense_layers": experts is not None and model.mixture_layers < model.layers,
        "expert_capacity": experts is not None and experts.capacity_factor is not None,
        "sigmoid_router": router is not None and router.scores == "sigmoid",
        "router_bias": router is not None and router.bias_rate > 0,
        "router_groups": router is not None and router.groups is not None,
        "router_z_loss": router is not None and router.z_loss > 0,
    }

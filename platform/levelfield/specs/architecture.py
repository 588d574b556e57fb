"""The parts that compose a decoder, beside the sizes in `Model`: rotary scaling, latent attention, experts.

A part has a name. implementation.yaml lists the parts that a framework has, so a case is refused by the part that is
missing, and not by the name of its family.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from levelfield.specs.base import MOST_EXPERTS, MOST_SIZE, Value

Part = Literal[
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
    "head_dim",
    "query_key_norm",
    "sliding_window",
    "rope_linear",
    "rope_llama3",
    "rope_yarn",
    "latent_attention",
    "norm_after",
    "embedding_scale",
    "experts",
    "shared_experts",
    "dense_layers",
    "sigmoid_router",
    "router_bias",
    "router_groups",
    "router_z_loss",
    "expert_capacity",
]

# Families as sets of parts: the rows of the support table. A case needs no family of this list.
FAMILIES: dict[str, frozenset[Part]] = {
    "gpt": frozenset(("learned_positions", "layernorm", "gelu_tanh", "bias", "tied_embeddings")),
    "llama": frozenset(("rope", "rmsnorm", "swiglu", "grouped_queries")),
    "qwen": frozenset(
        ("rope", "rmsnorm", "swiglu", "grouped_queries", "head_dim", "query_key_norm", "qkv_bias", "rope_llama3")
    ),
    "mixture": frozenset(
        ("rope", "rmsnorm", "swiglu", "grouped_queries", "query_key_norm", "experts", "shared_experts", "dense_layers")
    ),
}


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
        given = {name for name in type(self).model_fields if getattr(self, name) is not None}
        if missing := sorted(needed - given):
            raise ValueError(f"rope_scaling {self.kind}: missing {', '.join(missing)}")
        if strange := sorted(given - needed - optional):
            raise ValueError(f"rope_scaling {self.kind}: found {', '.join(strange)}, which this kind does not have")
        if self.kind == "llama3" and not (self.low_factor or 0) < (self.high_factor or 0):
            raise ValueError(f"low_factor: found {self.low_factor}, expected below high_factor {self.high_factor}")
        if self.kind == "yarn" and not (self.beta_slow or 0) < (self.beta_fast or 0):
            raise ValueError(f"beta_slow: found {self.beta_slow}, expected below beta_fast {self.beta_fast}")
        return self


class LatentAttention(Value):
    """Multi-head latent attention (DeepSeek-AI, 2024, V2, section 2.1). Sizes are widths.

    query_rank, key_value_rank: of the latents (query_rank None: queries come from the hidden state). plain_size,
    rotary_size: the parts of a query's and a key's head without and with rotary positions; the rotary part of the keys
    is one for all heads. value_size: of a head's value.
    """

    query_rank: int | None = Field(default=None, ge=1, le=MOST_SIZE)
    key_value_rank: int = Field(ge=1, le=MOST_SIZE)
    plain_size: int = Field(ge=1, le=MOST_SIZE)
    rotary_size: int = Field(ge=2, le=MOST_SIZE, multiple_of=2)
    value_size: int = Field(ge=1, le=MOST_SIZE)


class RouterGroups(Value):
    """Experts are in `count` equal groups, and a token may only take experts of its best `chosen` groups.

    The score of a group is the sum of its best scores, the selection bias included. It counts as many of them as a
    token takes on average from each of its groups, rounded down (DeepSeek-AI, 2024, V3: two).
    """

    count: int = Field(ge=2, le=MOST_EXPERTS)
    chosen: int = Field(ge=1)


class Router(Value):
    """How a token chooses its experts. Scores are in float32; of equal scores the expert with the lower index is taken.

    scores: of all experts, softmax or sigmoid. normalised: the gates of the chosen experts are divided by their sum.
    scale: gates are multiplied by it. auxiliary_loss: its coefficient; the loss is that of each sequence,
    experts x sum of (share of the sequence's choices) x (mean score), the mean over sequences and the sum over layers
    (DeepSeek-AI, 2024, V3, equations 17 to 20); with another definition it would depend on the micro-batch.
    z_loss: the coefficient of the mean over tokens of the squared logarithm of the sum of exponentials (Zoph et al.,
    2022, equation 5), summed over layers. bias_rate: after each step the selection bias of an expert moves by so much
    against its load over the global batch; the bias chooses experts and is not in their gates (Wang et al., 2024).
    """

    scores: Literal["softmax", "sigmoid"] = "softmax"
    normalised: bool = True
    scale: float = Field(default=1.0, gt=0)
    groups: RouterGroups | None = None
    auxiliary_loss: float = Field(default=0.0, ge=0)
    z_loss: float = Field(default=0.0, ge=0)
    bias_rate: float = Field(default=0.0, ge=0)


class Experts(Value):
    """A mixture of experts in place of the MLP: `count` MLPs of the model's activation, of which a token uses `chosen`.

    ffn_hidden_size: of one expert. shared: experts that every token uses, as one MLP of shared x ffn_hidden_size.
    first_layer, every: layers first_layer, first_layer + every, ... are mixtures; the others keep the dense MLP.
    capacity_factor: an expert takes at most ceil(capacity_factor x sequence_length x chosen / count) tokens of each
    sequence, the first ones; None: it takes all (dropless).
    """

    count: int = Field(ge=2, le=MOST_EXPERTS)
    chosen: int = Field(ge=1)
    ffn_hidden_size: int = Field(ge=1, le=MOST_SIZE)
    shared: int = Field(default=0, ge=0, le=MOST_EXPERTS)
    first_layer: int = Field(default=0, ge=0)
    every: int = Field(default=1, ge=1)
    router: Router = Router()
    capacity_factor: float | None = Field(default=None, gt=0)

    def replaces_mlp(self, layer: int) -> bool:
        """Return whether layer `layer`, counted from 0, is a mixture."""
        return layer >= self.first_layer and (layer - self.first_layer) % self.every == 0

    def mixtures_below(self, layer: int) -> int:
        """Return the number of mixtures among the layers before `layer`."""
        return max(0, -(-(layer - self.first_layer) // self.every))

    @model_validator(mode="after")
    def _consistent(self) -> Experts:
        if self.chosen > self.count:
            raise ValueError(f"chosen: found {self.chosen}, expected at most count {self.count}")
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

"""A model as a training process reads it: its sizes and parts, by the names of specs/architecture.py."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from typing import Any, Dict, Optional

GATED = ("swiglu", "geglu_tanh")


@dataclass(frozen=True)
class RopeScaling:
    """A change of the rotary frequencies; `rotary.py` computes it. Keys that the kind does not have are None."""

    kind: str  # linear, llama3 or yarn
    factor: float
    original_length: Optional[int] = None  # tokens of the first training's sequences
    low_factor: Optional[float] = None
    high_factor: Optional[float] = None
    beta_fast: Optional[float] = None  # rotations
    beta_slow: Optional[float] = None
    magnitude: Optional[float] = None  # of cosines and sines; None: by the factor


@dataclass(frozen=True)
class LatentAttention:
    """The widths of multi-head latent attention (DeepSeek-AI, 2024, V2, section 2.1)."""

    query_rank: Optional[int]  # of the queries' latent; None: queries come from the hidden state
    key_value_rank: int  # of the latent of keys and values
    plain_size: int  # of a head's query and key, the part without rotary positions
    rotary_size: int  # the part with them; the keys' is one for all heads
    value_size: int  # of a head's value


@dataclass(frozen=True)
class RouterGroups:
    """Experts are in `count` equal groups, and a token takes experts of its best `chosen` groups only."""

    count: int
    chosen: int


@dataclass(frozen=True)
class Router:
    """How a token chooses its experts."""

    scores: str = "softmax"  # or sigmoid
    normalised: bool = True  # the gates of the chosen experts are divided by their sum
    scale: float = 1.0  # gates are multiplied by it
    groups: Optional[RouterGroups] = None
    auxiliary_loss: float = 0.0  # the coefficient of the balance loss
    z_loss: float = 0.0  # the coefficient of the squared logarithm of the sum of exponentials
    bias_rate: float = 0.0  # by how much a step moves an expert's selection bias


@dataclass(frozen=True)
class Experts:
    """A mixture in place of the MLP: a token uses `chosen` of `count` MLPs."""

    count: int
    chosen: int
    ffn_hidden_size: int  # of one expert
    shared: int = 0  # experts that every token uses, as one MLP
    shared_gate: bool = False  # their output is multiplied by the sigmoid of one more product
    first_layer: int = 0  # layers first_layer, first_layer + every, ... are mixtures
    every: int = 1
    router: Router = Router()
    capacity_factor: Optional[float] = None  # None: an expert takes all tokens that choose it


@dataclass(frozen=True)
class Model:
    """A decoder-only transformer. A job leaves out the fields with defaults where the model does not use them."""

    family: str  # a word for tables
    layers: int
    hidden_size: int
    ffn_hidden_size: int
    heads: int
    kv_heads: int
    vocab_size: int
    positions: str  # learned or rope
    rope_base: Optional[float]  # None: positions are learned
    norm: str  # layernorm or rmsnorm
    norm_eps: float
    activation: str  # gelu, gelu_tanh, swiglu or geglu_tanh
    bias: bool  # of every matrix
    tied_embeddings: bool
    hidden_dropout: float
    attention_dropout: float
    init_std: float
    scaled_residual_init: bool
    head_dim: Optional[int] = None  # the width of a head; None: hidden_size / heads
    qkv_bias: bool = False  # of queries, keys and values only
    attention_bias: bool = False  # of queries, keys, values and attention's output
    norm_bias: bool = True  # of LayerNorm
    query_key_norm: bool = False  # RMSNorm of each head's query and key
    joint_query_key_norm: bool = False  # RMSNorm of all heads' queries together, and of all their keys
    sliding_window: Optional[int] = None  # the tokens that a token attends to, itself included; None: all before it
    full_attention_interval: Optional[int] = None  # layers interval - 1, 2 interval - 1, ... have no window
    rope_scaling: Optional[RopeScaling] = None
    rotary_dim: Optional[int] = None  # the rotated numbers of a head, the first ones; None: all
    no_rope_interval: Optional[int] = None  # layers interval - 1, 2 interval - 1, ... have no rotation
    latent_attention: Optional[LatentAttention] = None  # replaces the projections of queries, keys and values
    norm_place: str = "before"  # or after: where a layer's norms are
    parallel_residual: Optional[str] = None  # one_norm or two_norms: attention and MLP read the block's input
    embedding_scale: Optional[float] = None  # embeddings are multiplied by it
    residual_scale: Optional[float] = None  # what attention and MLP add to the residual stream is multiplied by it
    logit_scale: Optional[float] = None  # logits are multiplied by it
    attention_scale: Optional[float] = None  # of attention's scores; None: 1 / the root of the head size
    experts: Optional[Experts] = None  # replaces the MLP of its layers


# The parts that came after the first cases, with their values where a job does not have them.
UNUSED: Dict[str, Any] = {field.name: field.default for field in fields(Model) if field.default is not MISSING}


def part(model: Model, name: str) -> Any:
    """Return a part of the model that a job may leave out."""
    return getattr(model, name)


def head_size(model: Model) -> int:
    """Return the width of one head of queries and keys."""
    return model.head_dim or model.hidden_size // model.heads


def is_mixture(model: Model, layer: int) -> bool:
    """Return whether layer `layer`, counted from 0, has experts in place of its MLP."""
    experts = model.experts
    return experts is not None and layer >= experts.first_layer and (layer - experts.first_layer) % experts.every == 0


def is_rotated(model: Model, layer: int) -> bool:
    """Return whether layer `layer`, counted from 0, has rotary positions."""
    return model.positions == "rope" and not _ends_interval(layer, model.no_rope_interval)


def layer_window(model: Model, layer: int) -> Optional[int]:
    """Return the sliding window of layer `layer`, counted from 0; None where it attends to all tokens before."""
    return None if _ends_interval(layer, model.full_attention_interval) else model.sliding_window


def _ends_interval(layer: int, interval: Optional[int]) -> bool:
    return interval is not None and (layer + 1) % interval == 0

"""The parts of a model that came after the first cases: their values where a job does not have them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

# By the names of specs/case.py:Model; a job leaves out what it does not use.
UNUSED: dict[str, Any] = {
    "head_dim": None,
    "qkv_bias": False,
    "query_key_norm": False,
    "sliding_window": None,
    "rope_scaling": None,
    "latent_attention": None,
    "norm_place": "before",
    "embedding_scale": None,
    "experts": None,
}
GATED = ("swiglu", "geglu_tanh")


def part(model: SimpleNamespace, name: str) -> Any:
    """Return a part of the model that a job may leave out."""
    return getattr(model, name, UNUSED[name])


def head_size(model: SimpleNamespace) -> int:
    """Return the width of one head of queries and keys."""
    return int(part(model, "head_dim") or model.hidden_size // model.heads)


def is_mixture(model: SimpleNamespace, layer: int) -> bool:
    """Return whether layer `layer`, counted from 0, has experts in place of its MLP."""
    experts = part(model, "experts")
    if experts is None or layer < experts.first_layer:
        return False
    return int(layer - experts.first_layer) % int(experts.every) == 0

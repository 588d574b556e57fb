"""The list of a model's parameters that all frameworks share: canonical name, whole shape, initial values.

Matrices are [out, in]. Matrices and embeddings are N(0, init_std). With scaled_residual_init the two matrices
that write into the residual stream are N(0, init_std / sqrt(2 layers)) (Radford et al., 2019). Norm weights
are 1, biases 0.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Dict, NamedTuple


class ParameterSpec(NamedTuple):
    """The shape of the whole parameter, and either the standard deviation of its values or their constant."""

    shape: tuple[int, ...]
    std: float | None = None
    fill: float | None = None


Parameters = Dict[str, ParameterSpec]


def list_parameters(model: SimpleNamespace, positions: int) -> Parameters:
    """Return every parameter of the model, in the order of the forward pass. `positions`: the sequence length."""
    hidden = model.hidden_size
    found: Parameters = {"embedding.weight": ParameterSpec((model.vocab_size, hidden), model.init_std)}
    if model.positions == "learned":
        found["position.weight"] = ParameterSpec((positions, hidden), model.init_std)
    for layer in range(model.layers):
        for name, spec in _layer(model).items():
            found[f"layers.{layer}.{name}"] = spec
    found.update(_norm(model, "final_norm"))
    if not model.tied_embeddings:
        found["head.weight"] = ParameterSpec((model.vocab_size, hidden), model.init_std)
    return found


def _layer(model: SimpleNamespace) -> Parameters:
    return {
        **_norm(model, "attention_norm"),
        **_attention(model),
        **_norm(model, "mlp_norm"),
        **_mlp(model),
    }


def _attention(model: SimpleNamespace) -> Parameters:
    hidden, head = model.hidden_size, model.hidden_size // model.heads
    inner, narrow = model.heads * head, model.kv_heads * head
    return {
        **_linear(model, "attention.query", inner, hidden),
        **_linear(model, "attention.key", narrow, hidden),
        **_linear(model, "attention.value", narrow, hidden),
        **_linear(model, "attention.output", hidden, inner, residual=True),
    }


def _mlp(model: SimpleNamespace) -> Parameters:
    hidden, inner = model.hidden_size, model.ffn_hidden_size
    gate = _linear(model, "mlp.gate", inner, hidden) if model.activation == "swiglu" else {}
    return {
        **gate,
        **_linear(model, "mlp.up", inner, hidden),
        **_linear(model, "mlp.down", hidden, inner, residual=True),
    }


def _linear(model: SimpleNamespace, name: str, rows: int, columns: int, residual: bool = False) -> Parameters:
    scaled = residual and model.scaled_residual_init
    std = model.init_std / math.sqrt(2 * model.layers) if scaled else model.init_std
    found = {f"{name}.weight": ParameterSpec((rows, columns), std)}
    if model.bias:
        found[f"{name}.bias"] = ParameterSpec((rows,), fill=0.0)
    return found


def _norm(model: SimpleNamespace, name: str) -> Parameters:
    found = {f"{name}.weight": ParameterSpec((model.hidden_size,), fill=1.0)}
    if model.norm == "layernorm":
        found[f"{name}.bias"] = ParameterSpec((model.hidden_size,), fill=0.0)
    return found

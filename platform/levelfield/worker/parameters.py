"""The list of a model's parameters that all frameworks share: canonical name, whole shape, initial values.

Matrices are [out, in]. Matrices and embeddings are N(0, init_std). With scaled_residual_init the two matrices
that write into the residual stream are N(0, init_std / sqrt(2 layers)) (Radford et al., 2019). Norm weights
are 1, biases 0. The experts of a layer are one parameter, [expert, out, in], with the values of a matrix.
"""

from __future__ import annotations

import math
from typing import Dict, NamedTuple

from .architecture import GATED, Experts, LatentAttention, Model, head_size, is_mixture


class ParameterSpec(NamedTuple):
    """The shape of the whole parameter, and either the standard deviation of its values or their constant."""

    shape: tuple[int, ...]
    std: float | None = None
    fill: float | None = None


Parameters = Dict[str, ParameterSpec]


def list_parameters(model: Model, sequence_length: int) -> Parameters:
    """Return every parameter of the model, in the order of the forward pass."""
    hidden = model.hidden_size
    specs: Parameters = {"embedding.weight": ParameterSpec((model.vocab_size, hidden), model.init_std)}
    if model.positions == "learned":
        specs["position.weight"] = ParameterSpec((sequence_length, hidden), model.init_std)
    for layer in range(model.layers):
        for name, spec in _layer(model, layer).items():
            specs[f"layers.{layer}.{name}"] = spec
    specs.update(_norm(model, "final_norm"))
    if not model.tied_embeddings:
        specs["head.weight"] = ParameterSpec((model.vocab_size, hidden), model.init_std)
    return specs


def _layer(model: Model, layer: int) -> Parameters:
    latent, experts = model.latent_attention, model.experts if is_mixture(model, layer) else None
    return {
        **_norm(model, "attention_norm"),
        **(_attention(model) if latent is None else _latent_attention(model, latent)),
        **({} if model.parallel_residual == "one_norm" else _norm(model, "mlp_norm")),
        **(_mlp(model, "mlp", model.ffn_hidden_size) if experts is None else _experts(model, experts)),
    }


def _attention(model: Model) -> Parameters:
    hidden, head, output_bias = model.hidden_size, head_size(model), model.bias or model.attention_bias
    bias = output_bias or model.qkv_bias
    inner, narrow = model.heads * head, model.kv_heads * head
    widths = (head, head) if model.query_key_norm else (inner, narrow) if model.joint_query_key_norm else ()
    specs = {
        **_linear(model, "attention.query", inner, hidden, bias),
        **_linear(model, "attention.key", narrow, hidden, bias),
        **_linear(model, "attention.value", narrow, hidden, bias),
    }
    for name, width in zip(("query", "key"), widths):
        specs[f"attention.{name}_norm.weight"] = ParameterSpec((width,), fill=1.0)
    return {**specs, **_linear(model, "attention.output", hidden, inner, output_bias, residual=True)}


def _latent_attention(model: Model, latent: LatentAttention) -> Parameters:
    """Return the parameters of latent attention: products into the latents, their norms, products out of them."""
    hidden = model.hidden_size
    queries = model.heads * (latent.plain_size + latent.rotary_size)
    keys_values = model.heads * (latent.plain_size + latent.value_size)
    specs: Parameters = {}
    if latent.query_rank is None:
        specs.update(_linear(model, "attention.query", queries, hidden, False))
    else:
        specs.update(_linear(model, "attention.query_down", latent.query_rank, hidden, False))
        specs["attention.query_norm.weight"] = ParameterSpec((latent.query_rank,), fill=1.0)
        specs.update(_linear(model, "attention.query_up", queries, latent.query_rank, False))
    specs.update(_linear(model, "attention.latent_down", latent.key_value_rank + latent.rotary_size, hidden, False))
    specs["attention.latent_norm.weight"] = ParameterSpec((latent.key_value_rank,), fill=1.0)
    specs.update(_linear(model, "attention.latent_up", keys_values, latent.key_value_rank, False))
    inner = model.heads * latent.value_size
    return {**specs, **_linear(model, "attention.output", hidden, inner, False, residual=True)}


def _mlp(model: Model, name: str, inner: int) -> Parameters:
    hidden = model.hidden_size
    gate = _linear(model, f"{name}.gate", inner, hidden, model.bias) if model.activation in GATED else {}
    return {
        **gate,
        **_linear(model, f"{name}.up", inner, hidden, model.bias),
        **_linear(model, f"{name}.down", hidden, inner, model.bias, residual=True),
    }


def _experts(model: Model, experts: Experts) -> Parameters:
    specs: Parameters = {"mlp.router.weight": ParameterSpec((experts.count, model.hidden_size), model.init_std)}
    for name, spec in _mlp(model, "mlp.experts", experts.ffn_hidden_size).items():
        specs[name] = spec._replace(shape=(experts.count, *spec.shape))
    if experts.shared:
        specs.update(_mlp(model, "mlp.shared", experts.shared * experts.ffn_hidden_size))
    if experts.shared_gate:
        specs["mlp.shared_gate.weight"] = ParameterSpec((1, model.hidden_size), model.init_std)
    return specs


def _linear(model: Model, name: str, rows: int, columns: int, bias: bool, residual: bool = False) -> Parameters:
    scaled = residual and model.scaled_residual_init
    std = model.init_std / math.sqrt(2 * model.layers) if scaled else model.init_std
    specs = {f"{name}.weight": ParameterSpec((rows, columns), std)}
    if bias:
        specs[f"{name}.bias"] = ParameterSpec((rows,), fill=0.0)
    return specs


def _norm(model: Model, name: str) -> Parameters:
    specs = {f"{name}.weight": ParameterSpec((model.hidden_size,), fill=1.0)}
    if model.norm == "layernorm" and model.norm_bias:
        specs[f"{name}.bias"] = ParameterSpec((model.hidden_size,), fill=0.0)
    return specs

"""The parameters of a model by canonical name, and their exact count for formulas and memory estimates."""

from __future__ import annotations

import math
from dataclasses import dataclass

from levelfield.specs.architecture import Model

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class ParameterCount:
    """The exact number of parameters."""

    total: int
    # The parameters that one token uses. Of a mixture's routed experts only the chosen ones count. The embedding and
    # the head count whole, as in the published numbers of Mixtral (Jiang et al., 2024) and Qwen3 (Yang et al., 2025).
    active: int
    embedding: int
    position: int
    head: int  # 0 when it is tied to the embedding
    final_norm: int
    in_layers: int  # of all layers
    layers: int


def count_parameters(model: Model, sequence_length: int) -> ParameterCount:
    """Count every parameter. Learned positions have as many rows as the sequence has tokens.

    8,030,261,248 for Llama 3 8B (Dubey et al., 2024: 8.03 billion).
    """
    shapes = outer_shapes(model, sequence_length)
    part_sizes = {part: sum(math.prod(s) for n, s in shapes.items() if n.startswith(part)) for part in _OUTER_PARTS}
    mixture_count, in_layers = model.mixture_layers, 0  # a layer has an MLP or experts: one of each kind is counted
    if mixture_count < model.layers:
        dense = next(layer for layer in range(model.layers) if not model.is_mixture(layer))
        in_layers += (model.layers - mixture_count) * sum(map(math.prod, layer_shapes(model, dense).values()))
    if mixture_count and model.experts is not None:
        in_layers += mixture_count * sum(map(math.prod, layer_shapes(model, model.experts.first_layer).values()))
    total = sum(part_sizes.values()) + in_layers
    active = total - model.mixture_layers * _unchosen_expert_parameters(model)
    return ParameterCount(total=total, active=active, in_layers=in_layers, layers=model.layers, **part_sizes)


def _unchosen_expert_parameters(model: Model) -> int:
    """Return the parameters of one layer's routed experts that a token does not choose."""
    if model.experts is None:
        return 0
    routed = {name: shape for name, shape in expert_matrices(model).items() if name.startswith("mlp.experts.")}
    size = sum(math.prod(shape[1:]) + (shape[1] if model.bias else 0) for shape in routed.values())
    return (model.experts.count - model.experts.chosen) * size


def active_parameters(model: Model, layer: int) -> int:
    """Return the parameters of a layer that one token uses."""
    total = sum(map(math.prod, layer_shapes(model, layer).values()))
    return total - (_unchosen_expert_parameters(model) if model.is_mixture(layer) else 0)


def parameter_shapes(model: Model, sequence_length: int) -> Shapes:
    """Return the name and the shape of every parameter; matrices are [out, in], those of experts [expert, out, in]."""
    layers = {f"layers.{i}.{n}": s for i in range(model.layers) for n, s in layer_shapes(model, i).items()}
    return {**outer_shapes(model, sequence_length), **layers}


def outer_shapes(model: Model, sequence_length: int) -> Shapes:
    """Return the parameters outside the layers."""
    shapes: Shapes = {"embedding.weight": (model.vocab_size, model.hidden_size)}
    if model.positions == "learned":
        shapes["position.weight"] = (sequence_length, model.hidden_size)
    shapes.update(_norm_shapes("final_norm", model))
    if not model.tied_embeddings:
        shapes["head.weight"] = (model.vocab_size, model.hidden_size)
    return shapes


def layer_shapes(model: Model, layer: int = 0) -> Shapes:
    """Return the parameters of layer `layer`, without `layers.{i}.` before their names."""
    shapes, latent = _norm_shapes("attention_norm", model), model.latent_attention
    if model.norms_per_layer == 2:
        shapes |= _norm_shapes("mlp_norm", model)
    # inside attention: of each head's query and key, or of the latents
    inner_norms: dict[str, int | None] = {}
    if latent is not None:
        inner_norms = {"query_norm": latent.query_rank, "latent_norm": latent.key_value_rank}
    elif widths := model.query_key_norm_widths:
        inner_norms = dict(zip(("query_norm", "key_norm"), widths, strict=True))
    shapes |= {f"attention.{name}.weight": (size,) for name, size in inner_norms.items() if size}
    for name, matrix in layer_matrices(model, layer).items():
        shapes[f"{name}.weight"] = matrix
        if name not in _UNBIASED and (
            model.bias
            or (model.qkv_bias and name.split(".")[-1] in _QKV)
            or (model.attention_bias and name.startswith("attention."))
        ):
            shapes[f"{name}.bias"] = matrix[:-1]
    return shapes


def layer_matrices(model: Model, layer: int = 0) -> Shapes:
    """Return the matrices of layer `layer`, [out, in]. All its matrix products use them, except attention's core.

    The matrices of the routed experts are [expert, out, in]; a token uses `chosen` of the experts, see
    `active_matrix_elements`.
    """
    hidden, latent, shapes = model.hidden_size, model.latent_attention, Shapes()
    if latent is not None:
        queries, width = model.heads * (latent.plain_size + latent.rotary_size), model.heads * latent.value_size
        if latent.query_rank:
            shapes["attention.query_down"] = (latent.query_rank, hidden)
            shapes["attention.query_up"] = (queries, latent.query_rank)
        else:
            shapes["attention.query"] = (queries, hidden)
        shapes["attention.latent_down"] = (latent.key_value_rank + latent.rotary_size, hidden)
        keys_and_values = model.heads * (latent.plain_size + latent.value_size)
        shapes["attention.latent_up"] = (keys_and_values, latent.key_value_rank)
    else:
        width, keys = model.heads * model.head_size, model.kv_heads * model.head_size
        shapes |= {f"attention.{n}": (rows, hidden) for n, rows in zip(_QKV, (width, keys, keys), strict=True)}
    shapes["attention.output"] = (hidden, width)
    return {**shapes, **(expert_matrices(model) if model.is_mixture(layer) else _mlp_matrices(model))}


def active_matrix_elements(model: Model, layer: int = 0) -> int:
    """Return how many matrix elements of a layer one token is multiplied with, without the router's.

    Published formulas do not count the router: Megatron-LM's (megatron/training/training.py) counts the others.
    """
    chosen = model.experts.chosen if model.experts is not None else 1
    return sum(
        chosen * math.prod(shape[1:]) if len(shape) == 3 else math.prod(shape)
        for name, shape in layer_matrices(model, layer).items()
        if name != "mlp.router"
    )


def expert_matrices(model: Model) -> Shapes:
    """Return the matrices of a mixture of experts. Raises ValueError for a model without experts."""
    experts = model.experts
    if experts is None:
        raise ValueError(f"family {model.family}: found no experts")
    routed = _mlp_matrices(model, "mlp.experts", experts.ffn_hidden_size)
    shared = _mlp_matrices(model, "mlp.shared", experts.shared * experts.ffn_hidden_size) if experts.shared else {}
    shared |= {"mlp.shared_gate": (1, model.hidden_size)} if experts.shared_gate else {}
    return {
        "mlp.router": (experts.count, model.hidden_size),
        **{name: (experts.count, *shape) for name, shape in routed.items()},
        **shared,
    }


_QKV = ("query", "key", "value")
_UNBIASED = ("mlp.router", "mlp.shared_gate")
_OUTER_PARTS = ("embedding", "position", "head", "final_norm")


def _mlp_matrices(model: Model, name: str = "mlp", inner: int | None = None) -> Shapes:
    hidden, ffn = model.hidden_size, inner or model.ffn_hidden_size
    shapes: Shapes = {f"{name}.up": (ffn, hidden)}
    if model.is_gated:
        shapes[f"{name}.gate"] = (ffn, hidden)
    return {**shapes, f"{name}.down": (hidden, ffn)}


def _norm_shapes(name: str, model: Model) -> Shapes:
    width: tuple[int, ...] = (model.hidden_size,)
    return {f"{name}.weight": width} | (
        {f"{name}.bias": width} if model.norm == "layernorm" and model.norm_bias else {}
    )

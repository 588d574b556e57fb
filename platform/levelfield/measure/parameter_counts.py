"""The parameters of a model by canonical name, and their exact count for formulas and memory estimates."""

from __future__ import annotations

import math
from dataclasses import dataclass

from levelfield.specs.case import Model

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class ParameterCount:
    """The exact number of parameters. `per_layer`: of one layer; `head`: 0 when it is tied to the embedding."""

    total: int
    embedding: int
    position: int
    head: int
    final_norm: int
    per_layer: int
    layers: int


def parameters(model: Model, sequence_length: int) -> ParameterCount:
    """Count every parameter. Learned positions have as many rows as the sequence has tokens.

    8,030,261,248 for Llama 3 8B (Dubey et al., 2024: 8.03 billion).
    """
    shapes = outer_shapes(model, sequence_length)
    size = {part: sum(math.prod(s) for n, s in shapes.items() if n.startswith(part)) for part in _PARTS}
    per_layer = sum(math.prod(shape) for shape in layer_shapes(model).values())
    total = sum(size.values()) + model.layers * per_layer
    return ParameterCount(
        total, size["embedding"], size["position"], size["head"], size["final_norm"], per_layer, model.layers
    )


def parameter_shapes(model: Model, sequence_length: int) -> Shapes:
    """Return the name and the shape of every parameter; matrices are [out, in]."""
    layers = {f"layers.{i}.{n}": s for i in range(model.layers) for n, s in layer_shapes(model).items()}
    return {**outer_shapes(model, sequence_length), **layers}


def outer_shapes(model: Model, sequence_length: int) -> Shapes:
    """Return the parameters outside the layers."""
    shapes: Shapes = {"embedding.weight": (model.vocab_size, model.hidden_size)}
    if model.positions == "learned":
        shapes["position.weight"] = (sequence_length, model.hidden_size)
    shapes.update(_norm("final_norm", model))
    if not model.tied_embeddings:
        shapes["head.weight"] = (model.vocab_size, model.hidden_size)
    return shapes


def layer_shapes(model: Model) -> Shapes:
    """Return the parameters of one layer, without `layers.{i}.` before their names."""
    shapes = _norm("attention_norm", model) | _norm("mlp_norm", model)
    for name, matrix in layer_matrices(model).items():
        shapes[f"{name}.weight"] = matrix
        if model.bias:
            shapes[f"{name}.bias"] = (matrix[0],)
    return shapes


def layer_matrices(model: Model) -> Shapes:
    """Return the matrices of one layer, [out, in]. All its matrix products use them, except attention's core."""
    hidden, ffn = model.hidden_size, model.ffn_hidden_size
    queries, keys = model.heads * model.head_size, model.kv_heads * model.head_size
    shapes: Shapes = {f"attention.{n}": (rows, hidden) for n, rows in zip(_QKV, (queries, keys, keys), strict=True)}
    shapes["attention.output"] = (hidden, queries)
    shapes["mlp.up"] = (ffn, hidden)
    if model.activation == "swiglu":
        shapes["mlp.gate"] = (ffn, hidden)
    shapes["mlp.down"] = (hidden, ffn)
    return shapes


_QKV = ("query", "key", "value")
_PARTS = ("embedding", "position", "head", "final_norm")


def _norm(name: str, model: Model) -> Shapes:
    width: tuple[int, ...] = (model.hidden_size,)
    return {f"{name}.weight": width} | ({f"{name}.bias": width} if model.norm == "layernorm" else {})

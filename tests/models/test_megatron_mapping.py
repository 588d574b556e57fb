"""Where canonical parameters lie in Megatron's, without the framework."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from layouts import MODELS, ROOT, parsed_model
from levelfield.worker import Initializer
from levelfield.worker.architecture import Model

pytestmark = pytest.mark.torch


def module(name: str) -> ModuleType:
    """models/megatron/<name>.py: its folder is not on the path, where its names would hide those of models/torch."""
    spec = importlib.util.spec_from_file_location(f"megatron_{name}", ROOT / "models" / "megatron" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = loaded
    spec.loader.exec_module(loaded)
    return loaded


canonical, sequence = module("canonical"), module("sequence")
NAMES = [
    "output_layer.weight", "embedding.word_embeddings.weight", "embedding.position_embeddings.weight",
    "decoder.final_layernorm.weight", "decoder.final_layernorm.bias",
    *(f"decoder.layers.{layer}.{name}.{kind}" for layer in range(4) for kind in ("weight", "bias") for name in (
        "input_layernorm", "self_attention.linear_qkv", "self_attention.linear_proj", "pre_mlp_layernorm",
        "mlp.linear_fc1", "mlp.linear_fc2", "self_attention.q_layernorm", "self_attention.k_layernorm", "mlp.router",
        "mlp.shared_experts.linear_fc1", "mlp.shared_experts.linear_fc2")),
]  # fmt: skip


def shapes_of(model: Model) -> dict[str, tuple[int, ...]]:
    job: Any = SimpleNamespace(model=model, training=SimpleNamespace(seed=1, sequence_length=32))
    return {name: spec.shape for name, spec in Initializer(job).parameters(model).items()}


def correspondence(
    family: str, ranks: int = 1, rank: int = 0, first_layer: int = 0, first_expert: int = 0, **changes: object
) -> Any:
    model = parsed_model({**MODELS[family], **changes})
    return canonical.Correspondence(model, shapes_of(model), ranks, rank, first_layer, first_expert)


def parts_of(table: Any, experts: int = 0) -> Iterator[Any]:
    """Of all parameters that Megatron has for this model: what is not in it has no shape. experts: on this rank."""
    layers = [f"decoder.layers.{layer}.mlp.experts.local_experts" for layer in range(4)]
    own = [f"{layer}.{n}.linear_fc{part}.weight" for layer in layers for n in range(experts) for part in (1, 2)]
    for name in (*(NAMES[1:] if table.model.tied_embeddings else NAMES), *own):
        with contextlib.suppress(KeyError):
            yield from table.parts(name)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("family", sorted(set(MODELS) - {"mixture"}))
def test_the_ranks_hold_each_element_once_or_the_whole_on_each(family: str, ranks: int) -> None:
    shapes = correspondence(family).shapes
    held = {name: np.zeros(shape, dtype=int) for name, shape in shapes.items()}
    for rank in range(ranks):
        table = correspondence(family, ranks, rank)
        for part in parts_of(table):
            held[part.name][part.slices] += 1
    for name, times in held.items():
        whole = "norm" in name or name.startswith("position") or name.endswith(("output.bias", "down.bias"))
        assert (times == (ranks if whole else 1)).all(), name


@pytest.mark.parametrize(("tensor", "expert"), [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_the_ranks_hold_each_element_of_a_mixture_once_or_the_whole_on_each(tensor: int, expert: int) -> None:
    held = {name: np.zeros(shape, dtype=int) for name, shape in correspondence("mixture").shapes.items()}
    for rank, first in itertools.product(range(tensor), range(0, 4, 4 // expert)):
        for part in parts_of(correspondence("mixture", tensor, rank, first_expert=first), 4 // expert):
            held[part.name][part.slices] += 1
    for name, times in held.items():
        whole = "norm" in name or "router" in name
        replicas = 1 if "experts" in name else expert
        assert (times == (replicas * tensor if whole else replicas)).all(), name


def test_an_experts_rows_are_those_of_its_number_on_this_rank() -> None:
    table = correspondence("mixture", ranks=2, rank=1, first_expert=2)
    gate, up = table.parts("decoder.layers.1.mlp.experts.local_experts.1.linear_fc1.weight")
    assert (gate.name, up.name) == ("layers.1.mlp.experts.gate.weight", "layers.1.mlp.experts.up.weight")
    assert gate.slices == up.slices == (slice(3, 4), slice(24, 48), slice(0, 32))
    assert (gate.start, gate.stop, up.start, up.stop) == (0, 24, 24, 48)
    values = torch.arange(48 * 32).reshape(48, 32)
    assert up.values(values).shape == (1, 24, 32)
    assert (up.values(values)[0] == values[24:]).all()
    (down,) = table.parts("decoder.layers.1.mlp.experts.local_experts.0.linear_fc2.weight")
    assert down.slices == (slice(2, 3), slice(0, 32), slice(24, 48))


def test_context_ranks_share_a_sequence_in_pieces_from_both_ends() -> None:
    ranks = [sequence.Sequence(16, 2, rank, "cpu") for rank in range(2)]
    assert [each.places.tolist() for each in ranks] == [[0, 1, 2, 3, 12, 13, 14, 15], [4, 5, 6, 7, 8, 9, 10, 11]]
    tokens = torch.arange(32).reshape(2, 16)
    assert ranks[1].part(tokens).tolist() == [[*range(4, 12)], [*range(20, 28)]]
    assert sequence.Sequence(16, 1, 0, "cpu").part(tokens) is tokens


def test_rows_of_query_key_and_value_are_those_of_their_group() -> None:
    """Four heads and two key-value heads of eight: [q0 q1 k0 v0 | q2 q3 k1 v1]; the second rank has the second."""
    tensor = torch.arange(64)
    query, key, value = correspondence("llama").parts("decoder.layers.0.self_attention.linear_qkv.weight")
    assert query.view(tensor).flatten().tolist() == [*range(16), *range(32, 48)]
    assert key.view(tensor).flatten().tolist() == [*range(16, 24), *range(48, 56)]
    assert value.view(tensor).flatten().tolist() == [*range(24, 32), *range(56, 64)]
    second = correspondence("llama", ranks=2, rank=1).parts("decoder.layers.0.self_attention.linear_qkv.weight")
    assert [part.slices[0] for part in second] == [slice(16, 32), slice(8, 16), slice(8, 16)]


def test_gate_lies_before_up_on_every_rank() -> None:
    for rank in range(2):
        gate, up = correspondence("llama", 2, rank).parts("decoder.layers.1.mlp.linear_fc1.weight")
        assert (gate.name, up.name) == ("layers.1.mlp.gate.weight", "layers.1.mlp.up.weight")
        assert (gate.start, gate.stop, up.start, up.stop) == (0, 48, 48, 96)
        assert gate.slices[0] == up.slices[0] == slice(48 * rank, 48 * rank + 48)


def test_layers_are_counted_over_the_pipeline_and_a_tied_head_is_the_embedding() -> None:
    table = correspondence("gpt", first_layer=2)
    assert [part.name for part in table.parts("decoder.layers.1.mlp.linear_fc1.bias")] == ["layers.3.mlp.up.bias"]
    assert [part.name for part in table.parts("output_layer.weight")] == ["embedding.weight"]
    assert [part.name for part in correspondence("llama").parts("output_layer.weight")] == ["head.weight"]


def test_norms_inside_transformer_engines_layers_have_the_same_names() -> None:
    for fused, local in (("self_attention.linear_qkv", "input_layernorm"), ("mlp.linear_fc1", "pre_mlp_layernorm")):
        for kind in ("weight", "bias"):
            names = (f"decoder.layers.0.{fused}.layer_norm_{kind}", f"decoder.layers.0.{local}.{kind}")
            first, second = (correspondence("gpt").parts(name) for name in names)
            assert first == second


def test_an_unknown_parameter_is_an_error() -> None:
    with pytest.raises(KeyError):
        correspondence("gpt").parts("decoder.layers.0.mlp.shared_experts.gate_weight")

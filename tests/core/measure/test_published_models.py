"""Parameters and FLOPs of published models, and of every case as they were before models had parts."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from levelfield.catalog.registry import Registry
from levelfield.measure.flops import FormulaError, attended_keys, flops_per_token
from levelfield.measure.parameter_counts import active_matrix_elements, count_parameters, parameter_shapes
from levelfield.specs.architecture import Model
from levelfield.worker.architecture import Model as WorkerModel
from levelfield.worker.job import parse
from levelfield.worker.parameters import list_parameters
from published_models import MODELS

RECORDED = json.loads((Path(__file__).parents[1] / "data" / "case_figures.json").read_text())
MIXTURES = [name for name, published in MODELS.items() if published.gigaflops]


def made(model: Model, length: int = 4096) -> dict[str, tuple[int, ...]]:
    parsed = parse(WorkerModel, model.model_dump(), "model")
    return {name: spec.shape for name, spec in list_parameters(parsed, length).items()}


# ---- counts


@pytest.mark.parametrize("name", MODELS)
def test_the_count_is_the_published_one_to_the_last_parameter(name: str) -> None:
    count = count_parameters(MODELS[name].model(), 4096)
    assert (count.total, count.active) == (MODELS[name].total, MODELS[name].active)
    parts = count.embedding + count.position + count.head + count.final_norm + count.in_layers
    assert parts == count.total == sum(map(math.prod, parameter_shapes(MODELS[name].model(), 4096).values()))


@pytest.mark.parametrize("name", MODELS)
def test_the_worker_makes_the_parameters_that_are_counted(name: str) -> None:
    assert made(MODELS[name].model()) == parameter_shapes(MODELS[name].model(), 4096)


@pytest.mark.parametrize(
    "changes",
    [
        {"layers": 31},
        {"vocab_size": 32001},
        {"query_key_norm": True},
        {"head_dim": 64},
        {"qkv_bias": True},
        {"experts": dict(count=8, chosen=2, ffn_hidden_size=14336, shared=1)},
        {"experts": dict(count=8, chosen=2, ffn_hidden_size=14336, every=2)},
        {"experts": dict(count=8, chosen=2, ffn_hidden_size=14336, first_layer=1)},
        {"experts": dict(count=8, chosen=2, ffn_hidden_size=14335)},
    ],
)
def test_another_shape_has_another_count_that_the_worker_agrees_with(changes: dict[str, Any]) -> None:
    changed = MODELS["mixtral_8x7b"].model(**changes)
    count = count_parameters(changed, 4096)
    assert count.total != MODELS["mixtral_8x7b"].total and count.active != MODELS["mixtral_8x7b"].active
    assert made(changed) == parameter_shapes(changed, 4096)


def test_biases_of_experts_are_made_counted_and_inactive_with_them() -> None:
    experts = dict(count=4, chosen=1, ffn_hidden_size=10, shared=1, first_layer=1, every=2)
    model = MODELS["mixtral_8x7b"].model(layers=4, hidden_size=32, heads=4, kv_heads=2, bias=True, experts=experts)
    assert made(model, 8) == parameter_shapes(model, 8)
    assert "layers.1.mlp.experts.up.bias" in made(model, 8) and "layers.1.mlp.router.bias" not in made(model, 8)
    count, of_one_expert = count_parameters(model, 8), 3 * 32 * 10 + 10 + 10 + 32
    assert count.total - count.active == 2 * 3 * of_one_expert  # two mixtures, three experts that are not chosen


def test_more_chosen_experts_are_active_and_no_more_in_all() -> None:
    experts = dict(count=8, chosen=3, ffn_hidden_size=14336)
    count = count_parameters(MODELS["mixtral_8x7b"].model(experts=experts), 4096)
    assert count.total == MODELS["mixtral_8x7b"].total
    assert count.active - MODELS["mixtral_8x7b"].active == 32 * 3 * 4096 * 14336


# ---- FLOPs


@pytest.mark.parametrize("name", MIXTURES)
def test_flops_are_what_published_rows_imply(name: str) -> None:
    count = flops_per_token("megatron", MODELS[name].model(), 4096) / 1e9
    expected = MODELS[name].gigaflops
    assert expected is not None and count == pytest.approx(expected, abs=0.06)
    assert count * 1.01 != pytest.approx(expected, abs=0.06)


def test_a_mixture_s_flops_by_hand() -> None:
    """Mixtral: 6 x (active weights and the head) + 6 x layers x length x width of the causal half of attention."""
    model, length = MODELS["mixtral_8x7b"].model(), 4096
    layer = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 2 * 3 * 4096 * 14336
    assert active_matrix_elements(model, 0) == layer
    by_hand = 6 * (32 * layer + 4096 * 32000) + 6 * 32 * length * 4096
    assert flops_per_token("megatron", model, length) == by_hand


def test_palm_and_6n_count_active_parameters() -> None:
    for name in MIXTURES:
        model = MODELS[name].model()
        assert flops_per_token("6n", model, 4096) == 6 * MODELS[name].active
        assert 6 * MODELS[name].active < flops_per_token("palm", model, 4096) < 6 * MODELS[name].total


def test_latent_attention_counts_both_widths_of_its_core() -> None:
    model = MODELS["deepseek_v3"].model()
    longer = flops_per_token("megatron", model, 8192) - flops_per_token("megatron", model, 4096)
    assert longer == 3 * 61 * 4096 * 128 * ((128 + 64) + 128)


@pytest.mark.parametrize(("window", "keys"), [(None, 512.0), (1024, 512.0), (2000, 512.0), (1, 1 - 1 / 2048)])
def test_the_keys_that_a_token_attends_to(window: int | None, keys: float) -> None:
    assert attended_keys(MODELS["mixtral_8x7b"].model(sliding_window=window), 1024) == keys


@pytest.mark.parametrize("window", [1, 7, 64, 100, 128])
def test_a_sliding_window_counts_its_keys_one_by_one(window: int) -> None:
    """The triangle of the first tokens, with half of the diagonal as under the causal mask without a window."""
    model, length = MODELS["mixtral_8x7b"].model(sliding_window=window), 128
    one_by_one = sum(min(token + 0.5, window) for token in range(length)) / length
    assert attended_keys(model, length) == pytest.approx(one_by_one, abs=1e-9)


def test_a_window_of_some_layers_counts_in_those() -> None:
    model = MODELS["llama3.1_8b"].model(layers=10, sliding_window=1024, full_attention_interval=4)
    full, narrow = 4096.0, 1024 - 1024**2 / 16384
    assert attended_keys(model, 8192) == pytest.approx((2 * full + 8 * narrow) / 10)
    assert attended_keys(model, 8192, (3, 7)) == full and attended_keys(model, 8192, (0, 1, 2)) == narrow
    plain, first = (
        flops_per_token("megatron", model, 8192, recompute="selective-attention", repeated=layers)
        for layers in ((), (0, 1, 2))
    )
    assert first - plain == pytest.approx(3 * 4 * 4096 * narrow)


@pytest.mark.parametrize(
    "changes",
    [
        {"attention_bias": True},
        {"norm": "layernorm", "norm_bias": False},
        {"parallel_residual": "one_norm"},
        {"norm": "layernorm", "parallel_residual": "two_norms", "bias": True},
    ],
)
def test_the_worker_makes_the_parameters_of_each_part(changes: dict[str, Any]) -> None:
    model = MODELS["llama3.1_8b"].model(layers=2, **changes)
    assert made(model) == parameter_shapes(model, 4096)


def test_the_gate_of_shared_experts_is_a_parameter_of_each_mixture() -> None:
    experts = {**MODELS["deepseek_v2_lite"].model().model_dump()["experts"], "shared_gate": True}
    plain, model = (MODELS["deepseek_v2_lite"].model(**change) for change in ({}, {"experts": experts}))
    assert made(model) == parameter_shapes(model, 4096)
    assert count_parameters(model, 4096).total - count_parameters(plain, 4096).total == 26 * model.hidden_size


def test_a_window_lowers_megatron_s_flops_only() -> None:
    whole, narrow = MODELS["llama3.1_8b"].model(), MODELS["llama3.1_8b"].model(sliding_window=1024)
    assert flops_per_token("megatron", narrow, 8192) < flops_per_token("megatron", whole, 8192)
    assert flops_per_token("palm", narrow, 8192) == flops_per_token("palm", whole, 8192)


def test_formulas_that_know_no_mixture_say_so() -> None:
    model = MODELS["mixtral_8x7b"].model()
    with pytest.raises(FormulaError, match="without a gate"):
        flops_per_token("megatron-2021", model, 4096, recompute="full")
    with pytest.raises(FormulaError, match="mixture of experts"):
        flops_per_token("megatron", model, 4096, recompute="full-except-down")


def test_full_recomputation_of_a_mixture_repeats_its_active_layers() -> None:
    model = MODELS["qwen3_30b_a3b"].model()
    plain, again = (flops_per_token("megatron", model, 4096, recompute=r) for r in ("none", "full"))
    logits = 6 * 2048 * 151936
    assert again - plain == pytest.approx((plain - logits) / 3)


# ---- what there was stays


@pytest.mark.parametrize("name", RECORDED)
def test_a_case_from_before_has_its_digest_and_its_figures(name: str) -> None:
    case, scale = name.split(" ")
    work = Registry([]).case(case).work("full" if scale == "full" else "smoke")
    count = count_parameters(work.model, work.training.sequence_length)
    flops = [flops_per_token(f, work.model, work.training.sequence_length) for f in ("palm", "6n", "megatron")]
    assert [work.fingerprint(), count.total, *flops] == RECORDED[name]
    assert count.active == count.total


def test_an_unused_part_is_not_written_and_a_used_one_changes_the_digest() -> None:
    model = Registry([]).case("llama3_8b").model
    assert not {"experts", "head_dim", "qkv_bias", "rope_scaling", "norm_place"} & set(model.model_dump())
    for change in ({"qkv_bias": True}, {"head_dim": 128}, {"norm_place": "after"}, {"sliding_window": 4096}):
        changed = Model.model_validate({**model.model_dump(), **change})
        assert changed.fingerprint() != model.fingerprint() and set(change) <= set(changed.model_dump())

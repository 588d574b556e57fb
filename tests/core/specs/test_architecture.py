"""The parts of a model: what composes, what is refused with which words, and the names that a framework lists."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from levelfield.catalog.registry import Registry
from levelfield.specs.architecture import FAMILIES, Experts, Model, ModelPart, RopeScaling, Router
from levelfield.specs.base import Value
from published_models import MODELS
from pydantic import ValidationError

LLAMA3 = {"kind": "llama3", "factor": 8, "low_factor": 1, "high_factor": 4, "original_length": 8192}
YARN = {"kind": "yarn", "factor": 40, "original_length": 4096, "beta_fast": 32, "beta_slow": 1}
MIXTURE = {"count": 8, "chosen": 2, "ffn_hidden_size": 64}
LATENT = {"key_value_rank": 64, "plain_size": 16, "rotary_size": 8, "value_size": 16}


def reason(document: type[Value], **content: Any) -> str:
    with pytest.raises(ValidationError) as refusal:
        document.model_validate(content)
    (fault,) = refusal.value.errors()
    return f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}"


def model_reason(**changes: Any) -> str:
    return reason(Model, **{**MODELS["mixtral_8x7b"].model().model_dump(), "experts": None, **changes})


# ---- rotary scaling


def test_each_kind_of_scaling_is_whole_with_its_own_keys() -> None:
    for content in ({"kind": "linear", "factor": 2}, LLAMA3, YARN, {**YARN, "magnitude": 0.7}):
        assert RopeScaling.model_validate(content).kind == content["kind"]


@pytest.mark.parametrize("key", ["low_factor", "high_factor", "original_length"])
def test_llama3_scaling_names_the_missing_key(key: str) -> None:
    content = {name: value for name, value in LLAMA3.items() if name != key}
    assert reason(RopeScaling, **content).endswith(f"llama3: missing {key}")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({**YARN, "beta_fast": None}, "rope_scaling yarn: missing beta_fast"),
        ({**YARN, "low_factor": 1}, "rope_scaling yarn: found low_factor, which this kind does not have"),
        ({**LLAMA3, "magnitude": 1}, "rope_scaling llama3: found magnitude, which this kind does not have"),
        ({"kind": "linear", "factor": 2, "beta_slow": 1}, "linear: found beta_slow, which this kind does not have"),
        ({**LLAMA3, "low_factor": 4}, "low_factor: found 4.0, expected below high_factor 4.0"),
        ({**YARN, "beta_slow": 32}, "beta_slow: found 32.0, expected below beta_fast 32.0"),
        ({**LLAMA3, "factor": 0.5}, "factor: Input should be greater than or equal to 1"),
        ({**LLAMA3, "factor": float("nan")}, "factor: "),
        ({**LLAMA3, "kind": "dynamic"}, "kind: Input should be 'linear', 'llama3' or 'yarn'"),
    ],
)
def test_a_wrong_scaling_is_refused(content: dict[str, Any], message: str) -> None:
    assert message in reason(RopeScaling, **content)


# ---- experts


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"chosen": 9}, "chosen: found 9, expected at most count 8"),
        ({"chosen": 0}, "chosen: Input should be greater than or equal to 1"),
        ({"count": 1, "chosen": 1}, "count: Input should be greater than or equal to 2"),
        ({"every": 0}, "every: Input should be greater than or equal to 1"),
        ({"capacity_factor": 0}, "capacity_factor: Input should be greater than 0"),
        ({"capacity_factor": float("inf")}, "capacity_factor: "),
        ({"router": {"scores": "sparsemax"}}, "router.scores: Input should be 'softmax' or 'sigmoid'"),
        ({"router": {"auxiliary_loss": -0.1}}, "router.auxiliary_loss: Input should be greater than or equal to 0"),
        ({"router": {"scale": 0}}, "router.scale: Input should be greater than 0"),
        ({"router": {"top_k": 2}}, "router.top_k: Extra inputs are not permitted"),
        ({"router": {"groups": {"count": 3, "chosen": 1}}}, "groups.count: found 3, expected a divisor of count 8"),
        ({"router": {"groups": {"count": 2, "chosen": 3}}}, "groups.chosen: found 3, expected at most 2 groups"),
        ({"chosen": 3, "router": {"groups": {"count": 4, "chosen": 1}}}, "that hold the 3 chosen experts"),
    ],
)
def test_wrong_experts_are_refused(change: dict[str, Any], message: str) -> None:
    assert message in reason(Experts, **{**MIXTURE, **change})


def test_the_layers_that_are_mixtures() -> None:
    def layers(**changes: int) -> list[int]:
        return [n for n in range(7) if Experts.model_validate({**MIXTURE, **changes}).replaces_mlp(n)]

    assert layers() == list(range(7))
    assert layers(first_layer=3) == [3, 4, 5, 6]
    assert layers(every=2) == [0, 2, 4, 6]
    assert layers(first_layer=1, every=3) == [1, 4]


def test_the_number_of_mixtures_is_that_of_the_layers() -> None:
    model = MODELS["mixtral_8x7b"].model(layers=7, experts={**MIXTURE, "first_layer": 1, "every": 3})
    assert model.mixture_layers == 2 and [model.is_mixture(n) for n in range(4)] == [False, True, False, False]
    assert MODELS["llama3.1_8b"].model().mixture_layers == 0


# ---- models


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"positions": "learned", "rope_base": None, "rope_scaling": LLAMA3},
            "rope_scaling is given only when positions is 'rope'",
        ),
        ({"bias": True, "qkv_bias": True}, "qkv_bias: bias already gives every matrix a bias"),
        ({"query_key_norm": True, "latent_attention": LATENT}, "query_key_norm: latent attention has norms of its own"),
        ({"query_key_norm": True, "joint_query_key_norm": True}, "joint_query_key_norm of all; remove one of both"),
        ({"attention_scale": 0.1, "latent_attention": LATENT}, "attention_scale: latent attention divides scores"),
        ({"attention_bias": True, "qkv_bias": True}, "attention_bias: bias and qkv_bias give the same matrices a bias"),
        ({"norm_bias": False}, "norm_bias: found false, and rmsnorm has no bias; remove it"),
        ({"full_attention_interval": 4}, "full_attention_interval: without sliding_window every layer attends to all"),
        (
            {"parallel_residual": "two_norms", "norm_place": "after"},
            "parallel_residual: its norms are before attention",
        ),
        ({"rotary_dim": 128}, "rotary_dim: found 128, expected below the head size 128"),
        ({"rotary_dim": 3}, "rotary_dim: Input should be a multiple of 2"),
        ({"no_rope_interval": 1}, "no_rope_interval: Input should be greater than or equal to 2"),
        ({"rotary_dim": 64, "latent_attention": LATENT}, "latent_attention has its own rotary_size; remove rotary_dim"),
        ({"positions": "learned", "rope_base": None, "no_rope_interval": 4}, "given only when positions is 'rope'"),
        ({"experts": {**MIXTURE, "shared_gate": True}}, "shared_gate: found true, and shared is 0; remove it"),
        ({"head_dim": 64, "latent_attention": LATENT}, "latent_attention has its own head sizes"),
        ({"bias": True, "latent_attention": LATENT}, "latent_attention: its matrices have no bias"),
        ({"qkv_bias": True, "latent_attention": LATENT}, "latent_attention: its matrices have no bias"),
        ({"experts": {**MIXTURE, "first_layer": 32}}, "experts.first_layer: found 32, expected below layers 32"),
        ({"head_dim": 65}, "rope needs an even head size, found 65"),
        ({"head_dim": 0}, "head_dim: Input should be greater than or equal to 1"),
        ({"sliding_window": 0}, "sliding_window: Input should be greater than or equal to 1"),
        ({"hidden_size": 4100}, "hidden_size 4100 is not divisible by heads 32"),
        ({"latent_attention": {**LATENT, "rotary_size": 7}}, "latent_attention.rotary_size: Input should be a mul"),
        ({"embedding_scale": float("nan")}, "embedding_scale: "),
        ({"family": "My Family"}, "family: String should match pattern"),
        ({"norm_place": "sandwich"}, "norm_place: Input should be 'before' or 'after'"),
    ],
)
def test_parts_that_do_not_compose_are_refused(changes: dict[str, Any], message: str) -> None:
    assert message in model_reason(**changes)


def test_a_head_size_of_its_own_needs_no_division() -> None:
    model = MODELS["qwen3_30b_a3b"].model()
    assert model.head_size == 128 != model.hidden_size // model.heads
    assert MODELS["mixtral_8x7b"].model(hidden_size=4100, head_dim=128).head_size == 128


# ---- the names of parts

PARTS: dict[str, set[str]] = {
    "qwen2.5_7b": {"qkv_bias"},
    "llama3.1_8b": {"rope_llama3"},
    "qwen3_8b": {"query_key_norm", "head_dim"},
    "mixtral_8x7b": {"experts"},
    "qwen3_30b_a3b": {"query_key_norm", "head_dim", "experts"},
    "deepseek_v2_lite": {"latent_attention", "experts", "shared_experts", "dense_layers"},
}


@pytest.mark.parametrize("name", PARTS)
def test_a_published_model_has_its_parts_and_no_other(name: str) -> None:
    llama = {"rope", "rmsnorm", "swiglu"} | (set() if name == "deepseek_v2_lite" else {"grouped_queries"})
    assert set(MODELS[name].model().parts) == PARTS[name] | llama


# A change of Mixtral, and the part that it adds or removes.
ONE_PART: list[tuple[dict[str, Any], ModelPart]] = [
    ({"positions": "learned", "rope_base": None}, "learned_positions"),
    ({"norm": "layernorm"}, "layernorm"),
    ({"activation": "gelu"}, "gelu"),
    ({"activation": "gelu_tanh"}, "gelu_tanh"),
    ({"activation": "geglu_tanh"}, "geglu_tanh"),
    ({"bias": True}, "bias"),
    ({"tied_embeddings": True}, "tied_embeddings"),
    ({"hidden_dropout": 0.1}, "dropout"),
    ({"attention_dropout": 0.1}, "dropout"),
    ({"qkv_bias": True}, "qkv_bias"),
    ({"head_dim": 64}, "head_dim"),
    ({"query_key_norm": True}, "query_key_norm"),
    ({"joint_query_key_norm": True}, "joint_query_key_norm"),
    ({"attention_bias": True}, "attention_bias"),
    ({"sliding_window": 4096}, "sliding_window"),
    ({"rotary_dim": 64}, "partial_rotary"),
    ({"no_rope_interval": 4}, "no_rope_layers"),
    ({"rope_scaling": {"kind": "linear", "factor": 2}}, "rope_linear"),
    ({"rope_scaling": LLAMA3}, "rope_llama3"),
    ({"rope_scaling": YARN}, "rope_yarn"),
    ({"latent_attention": LATENT}, "latent_attention"),
    ({"norm_place": "after"}, "norm_after"),
    ({"parallel_residual": "one_norm"}, "parallel_residual"),
    ({"sliding_window": 4096, "full_attention_interval": 4}, "full_attention_layers"),
    ({"norm": "layernorm", "norm_bias": False}, "unbiased_layernorm"),
    ({"embedding_scale": 64}, "embedding_scale"),
    ({"residual_scale": 0.22}, "residual_scale"),
    ({"logit_scale": 0.125}, "logit_scale"),
    ({"attention_scale": 0.0078125}, "attention_scale"),
    ({"experts": MIXTURE}, "experts"),
    ({"experts": {**MIXTURE, "shared": 1}}, "shared_experts"),
    ({"experts": {**MIXTURE, "shared": 1, "shared_gate": True}}, "shared_expert_gate"),
    ({"experts": {**MIXTURE, "first_layer": 1}}, "dense_layers"),
    ({"experts": {**MIXTURE, "capacity_factor": 1.25}}, "expert_capacity"),
    ({"experts": {**MIXTURE, "router": {"scores": "sigmoid"}}}, "sigmoid_router"),
    ({"experts": {**MIXTURE, "router": {"bias_rate": 0.001}}}, "router_bias"),
    ({"experts": {**MIXTURE, "router": {"groups": {"count": 4, "chosen": 2}}}}, "router_groups"),
    ({"experts": {**MIXTURE, "router": {"z_loss": 0.001}}}, "router_z_loss"),
]


# Parts that a part goes with.
NEEDED: dict[str, set[str]] = {
    "full_attention_layers": {"sliding_window"},
    "unbiased_layernorm": {"layernorm"},
    "shared_expert_gate": {"shared_experts"},
}


@pytest.mark.parametrize(("change", "part"), ONE_PART, ids=[part for _, part in ONE_PART])
def test_a_change_adds_its_part(change: dict[str, Any], part: ModelPart) -> None:
    plain = MODELS["mixtral_8x7b"].model(experts=None)
    changed = Model.model_validate({**plain.model_dump(), **change})
    assert part not in plain.parts
    replaced = {"rope", "rmsnorm", "swiglu"}
    added = set(changed.parts) - set(plain.parts) - NEEDED.get(part, set())
    assert added - {"experts"} == {part} - {"experts"} and part in added
    assert set(plain.parts) - set(changed.parts) <= replaced


def test_every_part_is_the_part_of_some_model() -> None:
    in_all = {part for _, part in ONE_PART} | set(MODELS["mixtral_8x7b"].model().parts)
    assert in_all == set(get_args(ModelPart))


def test_the_families_of_the_table_are_made_of_parts() -> None:
    assert all(family <= set(get_args(ModelPart)) for family in FAMILIES.values())
    assert set(Registry([]).case("llama3_8b").model.parts) <= FAMILIES["llama"]
    assert set(Registry([]).case("gpt2_small").work("smoke").model.parts) <= FAMILIES["gpt"] | {"gelu"}


def test_a_router_s_defaults_are_mixtral_s() -> None:
    router = Router()
    assert (router.scores, router.normalised, router.scale, router.auxiliary_loss) == ("softmax", True, 1.0, 0.0)

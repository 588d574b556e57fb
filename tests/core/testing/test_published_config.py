"""A case from Hugging Face's config.json: what their classes have, and each key that a case cannot say, by its name."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from huggingface_classes import hf_config
from levelfield.catalog.registry import Registry
from levelfield.cli.main import main
from levelfield.errors import DocumentError, UsageError
from levelfield.measure.parameter_counts import count_parameters
from levelfield.specs.architecture import Model
from levelfield.specs.base import parse
from levelfield.specs.case import Case
from levelfield.testing.case_checks import DEFAULT_HARDWARE, CaseSubject, check_case
from levelfield.testing.case_draft import case_document
from levelfield.testing.framework_kit.small_jobs import MODELS
from levelfield.testing.published_config import read_config

_TOKENS: dict[str, Any] = {
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.43.0",
    "use_cache": True,
}


CLASSES = {
    "gpt2": "GPT2LMHeadModel",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma": "GemmaForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "gpt_neox": "GPTNeoXForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "internlm2": "InternLM2ForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "granite": "GraniteForCausalLM",
    "minicpm": "MiniCPMForCausalLM",
    "orion": "OrionForCausalLM",
    "qwen": "QWenLMHeadModel",
    "deepseek": "DeepseekForCausalLM",
    "olmo3": "Olmo3ForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
    "cohere": "CohereForCausalLM",
    "cohere2": "Cohere2ForCausalLM",
    "stablelm": "StableLmForCausalLM",
    "falcon": "FalconForCausalLM",
    "internlm": "InternLMForCausalLM",
    "chatglm": "ChatGLMModel",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "glm4_moe": "Glm4MoeForCausalLM",
    "minimax_m2": "MiniMaxM2ForCausalLM",
}


def rotary(
    kind: str, layers: int, hidden: int, heads: int, kv: int, ffn: int, vocab: int, /, **more: Any
) -> dict[str, Any]:
    sizes = dict(num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=heads, num_key_value_heads=kv)
    shared = dict(intermediate_size=ffn, vocab_size=vocab, max_position_embeddings=32768, rms_norm_eps=1e-5)
    named = {"model_type": kind, "architectures": [CLASSES[kind]]}
    return {**_TOKENS, **named, **sizes, **shared, "initializer_range": 0.02, **more}


def layer_norms(config: dict[str, Any]) -> dict[str, Any]:
    return {"layer_norm_eps" if key == "rms_norm_eps" else key: value for key, value in config.items()}


LLAMA3 = {
    "factor": 8.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}
WINDOWLESS = {"use_sliding_window": False, "sliding_window": 131072, "max_window_layers": 28}
# As their makers publish them, and the numbers of parameters that transformers counts.
PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    "gpt2": (
        {
            **_TOKENS,
            "model_type": "gpt2",
            "architectures": [CLASSES["gpt2"]],
            **{"activation_function": "gelu_new", "attn_pdrop": 0.1, "embd_pdrop": 0.1, "resid_pdrop": 0.1},
            **{"n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "vocab_size": 50257},
            **{"initializer_range": 0.02, "layer_norm_epsilon": 1e-5, "summary_type": "cls_index"},
            "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
        },
        124_439_808,
    ),
    "llama3.1_8b": (
        rotary(
            *("llama", 32, 4096, 32, 8, 14336, 128256),
            **{"attention_bias": False, "mlp_bias": False, "pretraining_tp": 1, "tie_word_embeddings": False},
            **{"rope_theta": 500000.0, "rope_scaling": LLAMA3, "hidden_act": "silu", "attention_dropout": 0.0},
        ),
        8_030_261_248,
    ),
    "mistral_7b": (
        rotary("mistral", 32, 4096, 32, 8, 14336, 32000, sliding_window=4096, rope_theta=10000.0, hidden_act="silu"),
        7_241_732_096),
    "qwen2.5_7b": (
        rotary("qwen2", 28, 3584, 28, 4, 18944, 152064, **WINDOWLESS, rope_theta=1e6, tie_word_embeddings=False),
        7_615_616_512),
    "qwen3_8b": (
        rotary(
            *("qwen3", 36, 4096, 32, 8, 12288, 151936),
            **{"head_dim": 128, "attention_bias": False, "max_window_layers": 36, "use_sliding_window": False},
            **{"sliding_window": None, "rope_scaling": None, "rope_theta": 1000000},
        ),
        8_190_735_360,
    ),
    "gemma_7b": (
        rotary("gemma", 28, 3072, 16, 16, 24576, 256000, head_dim=256, hidden_act="gelu", hidden_activation=None),
        8_537_680_896),
    "mixtral_8x7b": (
        rotary(
            *("mixtral", 32, 4096, 32, 8, 14336, 32000),
            **{"num_experts_per_tok": 2, "num_local_experts": 8, "router_aux_loss_coef": 0.02, "sliding_window": None},
            **{"output_router_logits": False, "rope_theta": 1e6, "attention_dropout": 0.0},
        ),
        46_702_792_704,
    ),
    "qwen3_30b_a3b": (
        rotary(
            *("qwen3_moe", 48, 2048, 32, 4, 6144, 151936),
            **{"head_dim": 128, "decoder_sparse_step": 1, "mlp_only_layers": [], "moe_intermediate_size": 768},
            **{"norm_topk_prob": True, "num_experts": 128, "num_experts_per_tok": 8, "router_aux_loss_coef": 0.001},
            **{"rope_theta": 1000000.0, "rope_scaling": None, **WINDOWLESS, "tie_word_embeddings": False},
        ),
        30_532_122_624,
    ),
    "redpajama_3b": (
        {
            **{**_TOKENS, "model_type": "gpt_neox", "architectures": [CLASSES["gpt_neox"]], "hidden_act": "gelu"},
            **{"num_hidden_layers": 32, "hidden_size": 2560, "num_attention_heads": 32, "intermediate_size": 10240},
            **{"vocab_size": 50432, "max_position_embeddings": 2048, "layer_norm_eps": 1e-5, "rotary_pct": 1.0},
            **{"initializer_range": 0.02, "rotary_emb_base": 10000, "use_parallel_residual": False},
            "tie_word_embeddings": False,
        },
        2_775_864_320,
    ),
    "phi3_mini_4k": (
        rotary(
            *("phi3", 32, 3072, 32, 32, 8192, 32064),
            **{"sliding_window": 2047, "rope_theta": 10000.0, "rope_scaling": None, "tie_word_embeddings": False},
            **{"embd_pdrop": 0.0, "resid_pdrop": 0.0, "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config"}},
            **{"attention_bias": False, "original_max_position_embeddings": 4096},
        ),
        3_821_079_552,
    ),
    "granite3_2b": (
        rotary(
            *("granite", 40, 2048, 32, 8, 8192, 49155),
            **{"attention_bias": False, "mlp_bias": False, "attention_dropout": 0.1, "hidden_act": "silu"},
            **{"attention_multiplier": 0.015625, "embedding_multiplier": 12.0, "residual_multiplier": 0.22},
            **{"logits_scaling": 8.0, "rope_scaling": None, "rope_theta": 10000, "tie_word_embeddings": True},
        ),
        2_533_531_648,
    ),
    "minicpm_2b": (
        rotary(
            *("minicpm", 40, 2304, 36, 36, 5760, 122753),
            **{"hidden_act": "silu", "scale_emb": 12, "dim_model_base": 256, "scale_depth": 1.4},
            tie_word_embeddings=True,
        ),
        2_724_880_896,
    ),
    "olmo3_7b": (
        rotary(
            *("olmo3", 32, 4096, 32, 32, 11008, 100278),
            **{"layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 8, "sliding_window": 4096},
            **{"rope_theta": 500000, "hidden_act": "silu", "tie_word_embeddings": False, "attention_bias": False},
        ),
        7_298_011_136,
    ),
    "smollm3_3b": (
        rotary(
            *("smollm3", 36, 2048, 16, 4, 11008, 128256),
            **{"no_rope_layers": [1, 1, 1, 0] * 9, "no_rope_layer_interval": 4, "rope_theta": 5e6},
            **{"hidden_act": "silu", "tie_word_embeddings": True, "attention_bias": False, "attention_dropout": 0.0},
        ),
        3_075_098_624,
    ),
    "aya_23": (
        layer_norms(
            rotary(
                *("cohere", 32, 4096, 32, 8, 14336, 256000),
                **{"logit_scale": 0.0625, "use_qk_norm": False, "rope_theta": 10000, "attention_bias": False},
            )
        ),
        8_028_033_024,
    ),
    "command_r7b": (
        layer_norms(
            rotary(
                *("cohere2", 32, 4096, 32, 8, 14336, 256000),
                **{"logit_scale": 0.25, "sliding_window": 4096, "sliding_window_pattern": 4, "rotary_pct": 1.0},
                **{"order_of_interleaved_layers": "local_attn_first", "use_parallel_block": True, "rope_theta": 50000},
            )
        ),
        8_028_033_024,
    ),
    "stablelm_3b": (
        layer_norms(
            rotary(
                *("stablelm", 32, 2560, 32, 32, 6912, 50304),
                **{"partial_rotary_factor": 0.25, "rope_theta": 10000, "use_qkv_bias": False, "hidden_act": "silu"},
            )
        ),
        2_795_443_200,
    ),
    "falcon_7b": (
        {
            **{**_TOKENS, "model_type": "falcon", "architectures": [CLASSES["falcon"]], "initializer_range": 0.02},
            **{"num_hidden_layers": 32, "hidden_size": 4544, "num_attention_heads": 71, "vocab_size": 65024},
            **{"bias": False, "alibi": False, "multi_query": True, "new_decoder_architecture": False},
            **{"parallel_attn": True, "layer_norm_epsilon": 1e-5, "hidden_dropout": 0.0, "attention_dropout": 0.0},
        },
        6_921_720_704,
    ),
    "falcon_40b": (
        {
            **{**_TOKENS, "model_type": "falcon", "architectures": [CLASSES["falcon"]], "initializer_range": 0.02},
            **{"num_hidden_layers": 60, "hidden_size": 8192, "num_attention_heads": 128, "vocab_size": 65024},
            **{"bias": False, "alibi": False, "num_kv_heads": 8, "new_decoder_architecture": True},
            **{"parallel_attn": True, "layer_norm_epsilon": 1e-5, "hidden_dropout": 0.0, "attention_dropout": 0.0},
        },
        41_303_293_952,
    ),
    "pythia_6.9b": (
        {
            **{**_TOKENS, "model_type": "gpt_neox", "architectures": [CLASSES["gpt_neox"]], "hidden_act": "gelu"},
            **{"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "intermediate_size": 16384},
            **{"vocab_size": 50432, "max_position_embeddings": 2048, "layer_norm_eps": 1e-5, "rotary_pct": 0.25},
            **{"initializer_range": 0.02, "rotary_emb_base": 10000, "use_parallel_residual": True},
            "tie_word_embeddings": False,
        },
        6_857_302_016,
    ),
    "internlm_7b": (  # the number of its code
        rotary("internlm", 32, 4096, 32, 32, 11008, 103168, bias=True, hidden_act="silu", tie_word_embeddings=False),
        7_321_948_160,
    ),
    "chatglm3_6b": (  # the number of its code
        {
            **{"model_type": "chatglm", "architectures": [CLASSES["chatglm"]], "num_layers": 28, "hidden_size": 4096},
            **{"num_attention_heads": 32, "ffn_hidden_size": 13696, "padded_vocab_size": 65024, "kv_channels": 128},
            **{"multi_query_attention": True, "multi_query_group_num": 2, "add_qkv_bias": True, "seq_length": 8192},
            **{"add_bias_linear": False, "rmsnorm": True, "original_rope": True, "layernorm_epsilon": 1e-5},
            **{"hidden_dropout": 0.0, "attention_dropout": 0.0, "tie_word_embeddings": False},
        },
        6_243_584_000,
    ),
    "qwen1.5_moe": (
        rotary(
            *("qwen2_moe", 24, 2048, 16, 16, 5632, 151936),
            **{"decoder_sparse_step": 1, "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632},
            **{"norm_topk_prob": False, "num_experts": 60, "num_experts_per_tok": 4, "router_aux_loss_coef": 0.001},
            **{"rope_theta": 1e6, **WINDOWLESS, "tie_word_embeddings": False, "hidden_act": "silu"},
        ),
        14_315_784_192,
    ),
    "glm4.5_air": (
        rotary(
            *("glm4_moe", 46, 4096, 96, 8, 10944, 151552),
            **{"head_dim": 128, "partial_rotary_factor": 0.5, "moe_intermediate_size": 1408, "n_routed_experts": 128},
            **{"n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 1, "n_group": 1},
            **{"topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 1.0, "use_qk_norm": False},
            **{"attention_bias": True, "rope_theta": 1000000, "num_nextn_predict_layers": 1, "hidden_act": "silu"},
        ),
        106_852_245_504,
    ),
    "minimax_m2": (
        rotary(
            *("minimax_m2", 62, 3072, 48, 8, 1536, 200064),
            **{"head_dim": 128, "rotary_dim": 64, "use_qk_norm": True, "num_local_experts": 256},
            **{"num_experts_per_tok": 8, "scoring_func": "sigmoid", "use_routing_bias": True, "rope_theta": 5e6},
        ),
        228_689_748_992,
    ),
    "olmo2_7b": (
        rotary(
            *("olmo2", 32, 4096, 32, 32, 11008, 100352),
            **{"attention_bias": False, "attention_dropout": 0.0, "hidden_act": "silu", "rope_theta": 500000},
            tie_word_embeddings=False,
        ),
        7_298_617_344,
    ),
    # of these four the code is published beside the weights, which have so many numbers
    "internlm2_7b": (
        rotary("internlm2", 32, 4096, 32, 8, 14336, 92544, bias=False, rope_theta=1000000, attn_implementation="eager"),
        7_737_708_544,
    ),
    "orion_14b": (
        rotary("orion", 40, 5120, 40, 40, 15360, 84608, max_sequence_length=4096, pretraining_tp=1, rope_theta=1e4),
        14_498_703_360,
    ),
    "qwen_1.8b": (
        {
            **{**_TOKENS, "model_type": "qwen", "architectures": [CLASSES["qwen"]], "no_bias": True},
            **{"num_hidden_layers": 24, "hidden_size": 2048, "num_attention_heads": 16, "intermediate_size": 11008},
            **{"vocab_size": 151936, "max_position_embeddings": 8192, "seq_length": 8192, "kv_channels": 128},
            **{"layer_norm_epsilon": 1e-6, "rotary_emb_base": 10000, "rotary_pct": 1.0, "initializer_range": 0.02},
            **{"attn_dropout_prob": 0.0, "emb_dropout_prob": 0.0, "scale_attn_weights": True, "use_logn_attn": True},
            "tie_word_embeddings": False,
        },
        1_836_828_672,
    ),
    "deepseek_moe_16b": (
        rotary(
            *("deepseek", 28, 2048, 16, 16, 10944, 102400),
            **{"first_k_dense_replace": 1, "moe_intermediate_size": 1408, "n_routed_experts": 64},
            **{"scoring_func": "softmax", "n_shared_experts": 2, "norm_topk_prob": False, "num_experts_per_tok": 6},
            **{"moe_layer_freq": 1, "rope_theta": 10000, "attention_bias": False, "aux_loss_alpha": 0.001},
            tie_word_embeddings=False,
        ),
        16_375_728_128,
    ),
}  # fmt: skip


def written(folder: Path, content: dict[str, Any]) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(content))
    return path


class Refusal(NamedTuple):
    """Why a config.json gives no case."""

    text: str
    keys: dict[str, str]  # the refused keys, with the words on each


def refusal_of(error: UsageError) -> Refusal:
    return Refusal(str(error), dict(re.findall(r"key '([^']+)': (.*)", str(error))))


def refuse(folder: Path, content: dict[str, Any], *ignored: str) -> Refusal:
    with pytest.raises(UsageError) as error:
        read_config(written(folder, content), frozenset(ignored))
    return refusal_of(error.value)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_model_has_its_parameters(tmp_path: Path, name: str) -> None:
    content, total = PUBLISHED[name]
    config = read_config(written(tmp_path, content))
    assert count_parameters(config.model, config.max_sequence_length).total == total
    assert "use_cache" not in content or "use_cache" in config.left_out


@pytest.mark.parametrize("name", ["llama3.1_8b", "mixtral_8x7b", "qwen2.5_7b", "qwen3_8b", "qwen3_30b_a3b"])
def test_the_shipped_case_of_a_model_is_what_its_config_says(tmp_path: Path, name: str) -> None:
    """But for the shipped cases' own family and initial residuals, and rotary bases that the releases differ in."""
    model, shipped = read_config(written(tmp_path, PUBLISHED[name][0])).model, Registry().case(name).work("full").model
    differing = {"family", "scaled_residual_init", "norm_eps"}
    theirs = model.model_dump(exclude=differing)
    ours = shipped.model_copy(update={"head_dim": model.head_dim}).model_dump(exclude=differing)
    for content in (theirs, ours):
        if content.get("experts"):
            router = content["experts"]["router"]
            router["auxiliary_loss"] = round(router["auxiliary_loss"], 6)
    assert theirs == ours
    assert model.head_size == shipped.head_size


@pytest.mark.parametrize("name", ["gpt2_small", "llama3.1_8b", "qwen2.5_7b", "qwen3_8b", "llama3_70b"])
def test_what_is_exported_reads_back(tmp_path: Path, name: str) -> None:
    work = Registry().case(name).work("full")
    model = read_config(written(tmp_path, hf_config(work.model, work.training.sequence_length))).model
    absent = {"family", "scaled_residual_init", "head_dim"}
    assert model.model_dump(exclude=absent) == work.model.model_dump(exclude=absent)


_ROTATED = {"positions": "rope", "rope_base": 10000.0, "scaled_residual_init": False}
_EXPERTS = {"count": 4, "chosen": 2, "ffn_hidden_size": 8}
_BALANCED = {"auxiliary_loss": 0.0005}  # by default 0.001 x 2 experts / 4 layers
_SIGMOID = {"scores": "sigmoid", "bias_rate": 0.001}
PARTS: dict[str, tuple[str, dict[str, Any]]] = {
    "olmo2": ("llama", {"joint_query_key_norm": True, "norm_place": "after"}),
    "olmo3": (
        "llama",
        {"joint_query_key_norm": True, "norm_place": "after", "sliding_window": 8, "full_attention_interval": 2},
    ),
    "smollm3": ("llama", {"no_rope_interval": 2}),
    "granite": ("llama", {"residual_scale": 0.5, "logit_scale": 0.25, "attention_scale": 0.125}),
    "cohere": (
        "llama",
        {"norm": "layernorm", "norm_bias": False, "parallel_residual": "one_norm", "logit_scale": 0.25},
    ),
    "stablelm": ("llama", {"norm": "layernorm", "rotary_dim": 4, "qkv_bias": True}),
    "gpt_neox": (
        "gpt",
        {**_ROTATED, "tied_embeddings": False, "rotary_dim": 4, "parallel_residual": "two_norms"},
    ),
    "qwen2_moe": (
        "llama",
        {"qkv_bias": True, "experts": {**_EXPERTS, "shared": 2, "shared_gate": True, "router": _BALANCED}},
    ),
    "glm4_moe": (
        "llama",
        {"rotary_dim": 4, "query_key_norm": True, "experts": {**_EXPERTS, "shared": 1, "router": _SIGMOID}},
    ),
    "minimax_m2": (
        "llama",
        {
            "rotary_dim": 4,
            "joint_query_key_norm": True,
            "ffn_hidden_size": 8,
            "experts": {**_EXPERTS, "router": _SIGMOID},
        },
    ),
}


@pytest.mark.parametrize("kind", PARTS)
def test_a_part_is_read_as_their_class_has_it(tmp_path: Path, kind: str) -> None:
    base, changes = PARTS[kind]
    model = Model.model_validate({**MODELS[base], **changes})
    config = hf_config(model, 64)
    read_model = read_config(written(tmp_path, config)).model
    absent = {"family", "scaled_residual_init", "head_dim"}
    assert config["model_type"] == kind
    assert read_model.model_dump(exclude=absent) == model.model_dump(exclude=absent)


# GPT, a large head, and a mixture; the others' numbers and models are compared above and below.
DRAFTED = ("gpt2", "gemma_7b", "mixtral_8x7b")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in DRAFTED else [pytest.mark.thorough]) for n in PUBLISHED]
)
def test_a_drafted_case_is_whole_and_passes_with_every_framework(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, PUBLISHED[name][0])
    text = case_document("drafted", path, read_config(path), (), is_count_published=False)
    case = parse(Case, yaml.safe_load(text), "drafted")
    assert case.work("smoke").model.head_size * 2 > 0 and set(case.work("smoke").model.parts) <= set(case.parts)
    place = tmp_path / "configs/cases/drafted.yaml"
    place.parent.mkdir(parents=True)
    place.write_text(text)
    registry = Registry([tmp_path])
    findings = {
        item.check: item for item in check_case(CaseSubject(registry, registry.case("drafted"), DEFAULT_HARDWARE))
    }
    assert all(finding.is_good for finding in findings.values()), findings
    assert findings["torch"].status == "ok"
    assert f"{DEFAULT_HARDWARE.nodes}x{DEFAULT_HARDWARE.devices} {DEFAULT_HARDWARE.chip}" in findings["torch"].says


def test_a_newer_release_names_its_experts_otherwise(tmp_path: Path) -> None:
    content = dict(PUBLISHED["qwen3_30b_a3b"][0])
    model = read_config(written(tmp_path, content)).model
    content["num_local_experts"] = content.pop("num_experts")
    assert read_config(written(tmp_path, content)).model == model


def test_keys_of_a_class_or_a_browser_change_nothing(tmp_path: Path) -> None:
    content = PUBLISHED["llama3.1_8b"][0]
    more = {"is_llama_config": True, "rope_interleaved": False, "pretraining_tp": 2, "is_encoder_decoder": False}
    model = read_config(written(tmp_path, {**content, **more, "transformers.js_config": {"kv_cache_dtype": {}}})).model
    assert model == read_config(written(tmp_path, content)).model


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("llama3.1_8b", {"attention_bias": True},
     "key 'mlp_bias': found false: a case has biases in all matrices or in none"),
    ("llama3.1_8b", {"rope_scaling": {**LLAMA3, "rope_type": "longrope"}},
     "key 'rope_scaling.rope_type': found 'longrope'"),
    ("llama3.1_8b", {"rope_scaling": {**LLAMA3, "mscale": 1.0}}, "key 'rope_scaling.mscale': found 1.0, which a case"),
    ("llama3.1_8b", {"rope_scaling": {"rope_type": ["yarn"]}}, "key 'rope_scaling.rope_type': found ['yarn']"),
    ("llama3.1_8b", {"partial_rotary_factor": 0.5},
     "key 'partial_rotary_factor': found 0.5: transformers' class of this model rotates whole"),
    ("llama3.1_8b", {"hidden_act": "relu"}, "key 'hidden_act': found 'relu', expected one of silu"),
    ("llama3.1_8b", {"quantization_config": {"bits": 4}},
     "key 'quantization_config': found {\"bits\": 4}, which a case"),
    ("llama3.1_8b", {"auto_map": {"AutoModel": "theirs.Model"}}, "key 'auto_map'"),
    ("llama3.1_8b", {"rms_norm_eps": None}, "key 'rms_norm_eps': found null, expected int or float"),
    ("llama3.1_8b", {"num_hidden_layers": True}, "key 'num_hidden_layers': found true, expected int"),
    ("llama3.1_8b", {"num_attention_heads": 31},
     "gives no model: model: hidden_size 4096 is not divisible by heads 31; heads is num_attention_heads"),
    ("llama3.1_8b", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
     "key 'rope_scaling': found other"),
    ("mistral_7b", {"layer_types": ["full_attention"]}, "key 'layer_types'"),
    ("gemma_7b", {"final_logit_softcapping": 30.0},
     "key 'final_logit_softcapping': found 30.0, which a case cannot say"),
    ("gemma_7b", {"model_type": "gemma2"},
     "found 'gemma2', which a case cannot say: it has norms before and after each part"),
    ("llama3.1_8b", {"rope_interleaved": True}, "key 'rope_interleaved': found true: a case rotates the halves"),
    ("llama3.1_8b", {"is_encoder_decoder": True}, "key 'is_encoder_decoder': found true: a case has no encoder"),
    ("redpajama_3b", {"attention_bias": False}, "key 'attention_bias': found false"),
    ("olmo3_7b", {"layer_types": ["full_attention"] * 3 + ["sliding_attention"] * 29}, "key 'layer_types': found full"),
    ("smollm3_3b", {"no_rope_layers": [1, 1, 0, 1] * 9}, "key 'no_rope_layers': found no rotation in layers"),
    ("aya_23", {"use_qk_norm": True}, "key 'use_qk_norm': found true"),
    ("stablelm_3b", {"qk_layernorm": True}, "key 'qk_layernorm': found true"),
    ("falcon_7b", {"alibi": True}, "key 'alibi': found true: a case has no ALiBi"),
    ("chatglm3_6b", {"add_bias_linear": True}, "key 'add_bias_linear': found true: the code beside chatglm's"),
    ("qwen1.5_moe", {"shared_expert_intermediate_size": 5633}, "found 5633, expected a multiple of moe_intermediate"),
    ("minimax_m2", {"scoring_func": "softmax"}, 'key \'scoring_func\': found "softmax"'),
    ("qwen_1.8b", {"no_bias": False}, "key 'no_bias': found false: a case has biases of queries"),
    ("deepseek_moe_16b", {"scoring_func": "sigmoid"}, "key 'scoring_func': found \"sigmoid\": a case's router"),
    ("phi3_mini_4k", {"rope_scaling": {"type": "longrope", "long_factor": [1.0]}},
     "key 'rope_scaling.rope_type': found 'longrope'"),
    ("llama3.1_8b", {"model_type": "phi"}, "which a case cannot say: its head has a bias"),
    ("gemma_7b", {"model_type": ["gemma"]}, "expected one of chatglm, cohere, cohere2, deepseek"),
    ("gemma_7b", {"head_dim": None}, "key 'head_dim': found null, expected int"),
    ("mixtral_8x7b", {"router_jitter_noise": 0.1},
     "key 'router_jitter_noise': found 0.1: a case's router has no noise"),
    ("qwen3_30b_a3b", {"mlp_only_layers": [3]}, "key 'mlp_only_layers': found [3]"),
    ("qwen3_30b_a3b", {"shared_expert_intermediate_size": 64}, "key 'shared_expert_intermediate_size'"),
    ("llama3.1_8b", {"rope_scaling": {"factor": 2}},
     "key 'rope_scaling.rope_type': missing beside factor; expected linear, llama3, yarn, or no such keys"),
    ("llama3.1_8b", {"rope_scaling": {"type": "default", "factor": 2}},
     "key 'rope_scaling.rope_type': found default beside factor; expected linear"),
    ("llama3.1_8b", {"rope_scaling": {"type": "linear", "factor": 0.5}},
     "config.json: key 'rope_scaling.factor': found 0.5, expected at least 1"),
    ("llama3.1_8b", {"max_position_embeddings": 0}, "key 'max_position_embeddings': found 0, expected 2 to"),
    ("gpt2", {"vocab_size": 3}, "key 'vocab_size': found 3, expected at least 4"),
    ("gpt2", {"n_positions": 1}, "key 'n_positions': found 1, expected 2 to"),
    ("llama3.1_8b", {"num_hidden_layers": 0}, "config.json: key 'num_hidden_layers': found 0, expected at least 1"),
    ("gpt2", {"n_layer": -1}, "config.json: key 'n_layer': found -1, expected at least 1"),
    ("gpt2", {"n_head": 7}, "not divisible by heads 7; hidden_size is n_embd, heads is n_head"),
    ("mixtral_8x7b", {"num_local_experts": 0}, "config.json: key 'num_local_experts': found 0, expected at least 2"),
    ("mixtral_8x7b", {"num_experts_per_tok": 9}, "found 9, expected at most count 8; count is num_local_experts"),
    ("mixtral_8x7b", {"router_aux_loss_coef": -1}, "key 'router_aux_loss_coef': found -1, expected at least 0"),
    ("gpt2", {"embd_pdrop": 0.2}, "key 'embd_pdrop': found 0.2: a case has one rate"),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "key 'scale_attn_by_inverse_layer_idx': found true"),
    ("llama3.1_8b", {"architectures": "x"}, "key 'architectures': found \"x\", expected list"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "change", "words"), REFUSED, ids=[str(row[1])[:40] for row in REFUSED])
def test_what_a_case_cannot_say_is_refused_by_the_name_of_its_key(
    tmp_path: Path, name: str, change: dict[str, Any], words: str
) -> None:
    assert words in refuse(tmp_path, {**PUBLISHED[name][0], **change}).text


# The changes to a published file, a key that --ignore names, and why this key cannot be left out.
NEEDED: list[tuple[str, dict[str, Any], str, str]] = [
    ("llama3.1_8b", {}, "hidden_size", "the model needs it; it cannot be left out: give no --ignore for it"),
    ("llama3.1_8b", {"attention_bias": True, "mlp_bias": True}, "mlp_bias", "by default false: a case has"),
    ("gpt2", {"resid_pdrop": 0}, "embd_pdrop", "by default 0.1: a case"),
    ("qwen3_8b", {"use_sliding_window": True, "sliding_window": 1024, "max_window_layers": 18}, "max_window_layers",
     "it says which layers have a window; it cannot be left out"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "change", "key", "words"), NEEDED, ids=[row[2] for row in NEEDED])
def test_a_key_that_the_model_needs_cannot_be_left_out(
    tmp_path: Path, name: str, change: dict[str, Any], key: str, words: str
) -> None:
    assert refuse(tmp_path, {**PUBLISHED[name][0], **change}, key).keys[key].startswith(words)


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_key_counts_or_is_known_to_change_nothing(tmp_path: Path, name: str) -> None:
    """Each key's value replaced by one that it cannot have: the model is another one, or the key is named."""
    content = PUBLISHED[name][0]
    plain = read_config(written(tmp_path, content))
    for key in content:
        try:
            config = read_config(written(tmp_path, {**content, key: "strange"}))
        except UsageError as error:
            assert key in str(error)
        else:
            idle = ("sliding_window", "max_window_layers") if "use_sliding_window" in content else ()
            assert key in (*plain.left_out, *idle), key
            assert config.model == plain.model, key


def test_all_problems_are_reported_at_once_and_one_may_be_left_out(tmp_path: Path) -> None:
    content = {**PUBLISHED["gemma_7b"][0], "final_logit_softcapping": 30.0, "head_dim": "x"}
    del content["rms_norm_eps"]
    refusal = refuse(tmp_path, content)
    assert set(refusal.keys) == {"head_dim", "rms_norm_eps", "final_logit_softcapping"}
    assert refusal.keys["rms_norm_eps"].startswith("missing;")
    assert "final_logit_softcapping" not in refuse(tmp_path, content, "final_logit_softcapping").text
    assert refuse(tmp_path, content, "nothing").text.startswith("--ignore nothing:")


def test_only_keys_that_can_be_left_out_get_the_hint_of_ignore(tmp_path: Path) -> None:
    content = PUBLISHED["llama3.1_8b"][0]
    lacking = {key: value for key, value in content.items() if key != "rms_norm_eps"}
    for key, wrong in (
        ("rms_norm_eps", lacking),
        ("num_hidden_layers", {**content, "num_hidden_layers": "x"}),
        ("max_position_embeddings", {**content, "max_position_embeddings": 0}),
    ):
        refusal = refuse(tmp_path, wrong)
        assert list(refusal.keys) == [key]
        assert "--ignore" not in refusal.text
    assert "--ignore KEY" in refuse(tmp_path, {**lacking, "quantization_config": {"bits": 4}}).text
    wrong = {**content, "num_hidden_layers": "x", "attention_dropout": "x"}
    refusal = refuse(tmp_path, wrong, "num_hidden_layers", "attention_dropout")
    assert list(refusal.keys) == ["num_hidden_layers"]
    assert "--ignore KEY" not in refusal.text
    path = written(tmp_path, {**content, "attention_dropout": "x"})
    assert read_config(path, frozenset(["attention_dropout"])).model.attention_dropout == 0


def test_a_class_of_another_model_is_refused(tmp_path: Path) -> None:
    assert {content["model_type"] for content, _ in PUBLISHED.values()} == set(CLASSES)
    for content, _ in PUBLISHED.values():
        expected = CLASSES[content["model_type"]]
        absent = {key: value for key, value in content.items() if key != "architectures"}
        model = read_config(written(tmp_path, content)).model
        for fine in (absent, {**content, "architectures": None}, {**content, "architectures": []}):
            assert read_config(written(tmp_path, fine)).model == model
        for wrong in ("ForCausalLM", "LlamaForSequenceClassification", "Qwen3Model", [expected, "Qwen3Model"]):
            names = wrong if isinstance(wrong, list) else [wrong]
            words = refuse(tmp_path, {**content, "architectures": names}).keys["architectures"]
            assert words.startswith(f"found {json.dumps(names)}, expected {expected},")
            assert read_config(written(tmp_path, {**content, "architectures": names}), frozenset(["architectures"]))
    old = {**PUBLISHED["llama3.1_8b"][0], "architectures": ["LLaMAForCausalLM"]}
    assert read_config(written(tmp_path, old)).model_type == "llama"


def test_an_ignored_key_is_left_out_or_refused(tmp_path: Path) -> None:
    llama = {**PUBLISHED["llama3.1_8b"][0], "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}
    ignored = frozenset(["rope_scaling", "rope_theta", "tie_word_embeddings", "num_key_value_heads"])
    config = read_config(written(tmp_path, llama), ignored)
    assert config.model.rope_scaling is None and config.model.rope_base == 10000 and config.model.kv_heads == 32
    assert not config.model.tied_embeddings and ignored <= set(config.assumed) and not ignored & set(config.left_out)
    both = {**PUBLISHED["llama3.1_8b"][0], "rope_scaling": None, "rope_parameters": {"rope_theta": 1e4}}
    assert read_config(written(tmp_path, both), frozenset(["rope_theta"])).model.rope_base == 1e4
    for name, (content, _) in PUBLISHED.items():
        for key in content:
            path = written(tmp_path, content)
            try:
                config = read_config(path, frozenset([key]))
            except UsageError as error:
                assert "--ignore" in refusal_of(error).keys[key], (name, key)
            else:
                absent = {other: value for other, value in content.items() if other != key}
                assert config == read_config(written(tmp_path, absent)), (name, key)
    gemma = {**PUBLISHED["gemma_7b"][0], "hidden_act": "relu"}
    assert "relu" in refuse(tmp_path, gemma).keys["hidden_act"]
    assert read_config(written(tmp_path, gemma), frozenset(["hidden_act"])).model.activation == "geglu_tanh"


def test_the_source_of_a_case_names_what_was_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = written(tmp_path, PUBLISHED["llama3.1_8b"][0])
    new = ["case", "new", "mine", "--from", str(config), "--output", str(tmp_path)]
    assert main([*new, "--ignore", "hidden_size"]) == 2
    assert "'hidden_size'" in capsys.readouterr().err
    assert main([*new, *("--ignore", "rope_scaling") * 2, "--ignore", "bos_token_id"]) == 0
    absent = "bos_token_id, rope_scaling"
    assert f"--ignore: {absent}" in capsys.readouterr().out
    case = yaml.safe_load((tmp_path / "configs/cases/mine.yaml").read_text())
    assert f"without {absent})" in case["source"]
    assert "rope_scaling" not in case["model"]


def test_a_switched_window_is_that_of_each_layer(tmp_path: Path) -> None:
    """As transformers has it: layer_types, and without it the layers from max_window_layers on."""
    full, sliding = "full_attention", "sliding_attention"
    qwen = {**PUBLISHED["qwen3_8b"][0], "use_sliding_window": True, "sliding_window": 1024}
    lacking = {key: value for key, value in qwen.items() if key != "sliding_window"}
    windows: list[tuple[dict[str, Any], dict[str, Any], int | None]] = [
        (qwen, {"max_window_layers": 36}, None),
        (qwen, {"max_window_layers": 40}, None),
        (qwen, {"max_window_layers": 0}, 1024),
        (lacking, {"max_window_layers": 0}, 4096),
        (qwen, {"max_window_layers": 18, "sliding_window": None}, None),
        (qwen, {"max_window_layers": 18, "use_sliding_window": False}, None),
        (qwen, {"max_window_layers": 0, "layer_types": [full] * 36}, None),
        (qwen, {"max_window_layers": 36, "layer_types": [sliding] * 36}, 1024),
        (PUBLISHED["qwen3_30b_a3b"][0], {"use_sliding_window": True, "max_window_layers": 0}, 131072),
    ]
    for content, change, window in windows:
        assert read_config(written(tmp_path, {**content, **change})).model.sliding_window == window, change
    faults: list[tuple[str, dict[str, Any], str]] = [
        ("qwen3_8b", {"max_window_layers": 18}, "key 'max_window_layers': found 18: of a case, all layers have"),
        ("qwen3_8b", {"layer_types": [full, sliding] * 18}, "key 'layer_types': found full_attention, sliding_att"),
        ("qwen3_8b", {"layer_types": [full] * 20}, "found 20 entries, expected one for each of 36 layers"),
        ("qwen3_8b", {"layer_types": []}, "key 'layer_types': found 0 entries, expected one for each of 36 layers"),
        ("qwen3_8b", {"layer_types": ["chunked_attention"] * 36}, "key 'layer_types': found chunked_attention: of"),
        ("qwen3_8b", {"layer_types": [sliding] * 36, "sliding_window": None}, "use_sliding_window and sliding_window"),
        ("qwen3_8b", {"max_window_layers": "x"}, "key 'max_window_layers': found \"x\", expected int"),
        ("qwen3_30b_a3b", {"max_window_layers": 48}, "key 'max_window_layers': found 48: by it no layer has a window"),
    ]
    for name, change, words in faults:
        content = {**PUBLISHED[name][0], "use_sliding_window": True, "sliding_window": 1024, **change}
        refusal = refuse(tmp_path, content)
        assert words in refusal.text, change
        assert "--ignore" not in refusal.text, change
        for key in {"use_sliding_window", "sliding_window", "max_window_layers", "layer_types"} & set(content):
            assert "--ignore" in refuse(tmp_path, content, key).keys[key]


def test_experts_at_equal_steps_and_dense_layers_first(tmp_path: Path) -> None:
    content = PUBLISHED["qwen3_30b_a3b"][0]
    for change, first, every in (({"decoder_sparse_step": 2}, 1, 2), ({"mlp_only_layers": [0, 1]}, 2, 1)):
        experts = read_config(written(tmp_path, {**content, **change})).model.experts
        assert experts is not None and (experts.first_layer, experts.every) == (first, every)


def test_a_case_is_written_checked_and_planned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = written(tmp_path, PUBLISHED["llama3.1_8b"][0])
    new = ["case", "new", "my_llama", "--from", str(config), "--output", str(tmp_path / "mine")]
    count = PUBLISHED["llama3.1_8b"][1]
    assert main([*new, "--parameters", str(count + 1)]) == 2
    assert f"found {count + 1:,}" in capsys.readouterr().err
    assert not (tmp_path / "mine").exists()
    assert main([*new, "--parameters", str(count)]) == 0
    output = capsys.readouterr().out
    assert "nothing: bos_token_id" in output
    assert all(len(line) <= 80 for line in output.splitlines() if "/" not in line)
    mine = ["--plugins", str(tmp_path / "mine")]
    assert main([*new, *mine]) == 2
    assert "'my_llama' exists" in capsys.readouterr().err
    assert main(["case", "check", "my_llama", *mine]) == 0
    output = capsys.readouterr().out
    assert f"{count:,};" in output
    assert "rope_llama3" in output
    assert all(len(line) <= 80 for line in output.splitlines())
    assert main(["--case", "my_llama:torch:cpu", "--scale", "smoke", "--dry-run", *mine]) == 0


@pytest.mark.parametrize("text", ["{", "[1]", '{"model_type": "llama", "model_type": "llama"}', "null", "\udcff"])
def test_a_file_that_is_no_configuration(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    assert main(["case", "new", "x", "--from", str(path), "--output", str(tmp_path)]) == 2
    assert "config.json" in capsys.readouterr().err


@pytest.mark.parametrize(("size", "branching"), [(50, 8), (10, 5), (4, 2)])
def test_a_model_with_a_small_vocabulary_has_a_case(tmp_path: Path, size: int, branching: int) -> None:
    rates = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    sizes = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128, "layer_norm_epsilon": 1e-5}
    path = written(tmp_path, {"model_type": "gpt2", **rates, **sizes, "vocab_size": size})
    text = case_document("small", path, read_config(path), (), is_count_published=False)
    data = parse(Case, yaml.safe_load(text), "small").work("smoke").data
    assert (data.alphabet, data.branching) == (size, branching)


@pytest.mark.parametrize(
    ("name", "factors"),
    [
        ("aya_23", (0.5, None)),
        ("granite3_2b", (0.5, 0.03125)),
        ("command_r7b", (0.5, None)),
        ("qwen3_8b", (None, None)),
    ],
)
def test_factors_against_the_width_grow_at_smoke_scale(
    tmp_path: Path, name: str, factors: tuple[float | None, ...]
) -> None:
    """With the factors of the full width a narrow model hardly learns within the steps of a smoke run."""
    path = written(tmp_path, PUBLISHED[name][0])
    text = case_document("drafted", path, read_config(path), (), is_count_published=False)
    model = parse(Case, yaml.safe_load(text), "drafted").work("smoke").model
    assert (model.logit_scale, model.attention_scale) == factors


def test_each_kind_of_layer_is_left_at_smoke_scale(tmp_path: Path) -> None:
    for name in ("olmo3_7b", "smollm3_3b", "command_r7b", "glm4.5_air"):
        path = written(tmp_path, PUBLISHED[name][0])
        text = case_document("drafted", path, read_config(path), (), is_count_published=False)
        work = parse(Case, yaml.safe_load(text), "drafted").work("smoke")
        model = work.model
        assert {model.is_rotated(layer) for layer in range(model.layers)} == {True, model.no_rope_interval is None}
        windows = {model.layer_window(layer) for layer in range(model.layers)}
        assert windows == ({None, 64} if model.full_attention_interval else {None})
        assert (model.rotary_dim or 0) < model.head_size


_STRANGE: tuple[Any, ...] = (
    None, True, 0, -1, 3, float("inf"), float("nan"), "x", [], [0], {}, 2**70, ["full_attention"],
    {"full_attention": 5, "sliding_attention": 6},
    {"full_attention": {"partial_rotary_factor": "x"}, "sliding_attention": {"partial_rotary_factor": "x"}},
    {"rope_theta": "x", "partial_rotary_factor": []}, {"partial_rotary_factor": float("inf"), "rope_theta": 1.0},
)  # fmt: skip
_STRANGE_KEYS = (
    *("rope_parameters", "rope_scaling", "partial_rotary_factor", "rotary_dim", "rotary_pct", "layer_types"),
    *(
        "no_rope_layers",
        "no_rope_layer_interval",
        "sliding_window",
        "sliding_window_pattern",
        "head_dim",
        "hidden_size",
    ),
    *(
        "num_attention_heads",
        "n_group",
        "shared_expert_intermediate_size",
        "moe_intermediate_size",
        "num_hidden_layers",
    ),
)


@pytest.mark.parametrize("name", ["smollm3_3b", "command_r7b", "glm4.5_air", "minimax_m2", "qwen1.5_moe", "gemma_7b"])
def test_a_strange_value_is_read_or_refused_by_a_sentence(tmp_path: Path, name: str) -> None:
    for key, value in itertools.product(_STRANGE_KEYS, _STRANGE):
        with contextlib.suppress(UsageError, DocumentError):
            read_config(written(tmp_path, {**PUBLISHED[name][0], key: value}))

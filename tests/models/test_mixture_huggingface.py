"""torch's mixtures of experts against HuggingFace's, in float32: logits, loss and every gradient, the router's too."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from huggingface_classes import NoEquivalent, hf_config, mixture_arrays, to_hf
from layouts import MODELS
from leaf_gradient import gradient_of
from levelfield.specs.architecture import Model
from safetensors.numpy import save_file
from test_torch_huggingface import build, random_arrays
from torch.nn import functional

pytestmark = pytest.mark.torch
LENGTH = 21
TOLERANCE = 2e-5


def model_of(router: dict[str, Any] | None = None, experts: dict[str, Any] | None = None, **changes: object) -> Model:
    """A small mixture with odd sizes, without the parts that HuggingFace's classes do not have."""
    content = copy.deepcopy({**MODELS["mixture"], "layers": 3, "hidden_size": 24, "ffn_hidden_size": 50, **changes})
    content["experts"] |= {"count": 5, "ffn_hidden_size": 18, "shared": 0, "first_layer": 0, **(experts or {})}
    content["experts"]["router"] |= {"auxiliary_loss": 0.0, **(router or {})}
    return Model.model_validate(content)


def theirs_of(model: Model, arrays: dict[str, np.ndarray], folder: Path) -> Any:
    """HuggingFace's model, read from files, as a user reads it."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(hf_config(model, LENGTH)))
    save_file(to_hf(model, arrays), folder / "model.safetensors", metadata={"format": "pt"})
    loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True, experts_implementation="eager"
    )
    theirs, report = loaded
    assert not report["missing_keys"] and not report["unexpected_keys"] and not report["mismatched_keys"], report
    return theirs.eval()


def tokens_of(model: Model) -> torch.Tensor:
    return torch.randint(0, model.vocab_size, (3, LENGTH + 1), generator=torch.Generator().manual_seed(1))


def gradients_by_their_name(model: Model, ours: Any) -> dict[str, torch.Tensor]:
    found = {name: parameter.grad.numpy() for name, parameter in ours.named_parameters()}
    renamed = {name: array for name, array in mixture_arrays(model, found).items() if "correction_bias" not in name}
    return {name: torch.from_numpy(np.array(array)) for name, array in renamed.items()}


def split_experts(gradients: dict[str, torch.Tensor], model: Model) -> dict[str, torch.Tensor]:
    """Their gradients under the names of their files: one matrix for each expert."""
    found = {}
    for name, gradient in gradients.items():
        place, _, kind = name.partition(".experts.")
        is_sparse = hf_config(model, LENGTH)["model_type"] in ("mixtral", "minimax_m2")
        prefix = f"{place.replace('.mlp', '.block_sparse_moe')}.experts" if is_sparse else f"{place}.experts"
        names = ("w1", "w3", "w2") if is_sparse else ("gate_proj", "up_proj", "down_proj")
        if kind == "gate_up_proj":
            for index, each in enumerate(gradient):
                gate, up = each.chunk(2)
                found[f"{prefix}.{index}.{names[0]}.weight"], found[f"{prefix}.{index}.{names[1]}.weight"] = gate, up
        elif kind == "down_proj":
            found |= {f"{prefix}.{index}.{names[2]}.weight": each for index, each in enumerate(gradient)}
        else:
            found[name.replace(".mlp.gate", ".block_sparse_moe.gate") if is_sparse else name] = gradient
    return found


def largest_difference(model: Model, ours: Any, theirs: Any) -> float:
    """Of logits, loss and all gradients, relative to the largest value of each."""
    tokens = tokens_of(model)
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    logits, loss = theirs(inputs).logits, ours(inputs, targets)
    their_loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    loss.backward()
    their_loss.backward()
    with torch.no_grad():
        pairs = [(ours(inputs), logits), (loss[0], their_loss)]
    own = gradients_by_their_name(model, ours)
    right = split_experts({name: parameter.grad for name, parameter in theirs.named_parameters()}, model)
    assert set(own) == set(right)
    pairs += [(own[name], right[name]) for name in right]
    pairs = [(a.detach(), b.detach()) for a, b in pairs]
    return max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-6)) for a, b in pairs)


CASES: dict[str, dict[str, Any]] = {
    "mixtral": {"query_key_norm": False},
    "mixtral, three of five": {"query_key_norm": False, "experts": {"chosen": 3}},
    "qwen3 moe": {"head_dim": 10},
    "qwen3 moe with dense layers, not normalised": {
        "experts": {"first_layer": 1, "every": 2},
        "router": {"normalised": False},
    },
    "qwen2 moe": {
        "query_key_norm": False,
        "qkv_bias": True,
        "experts": {"shared": 2, "shared_gate": True},
        "router": {"normalised": False},
    },
    "glm4 moe": {
        "query_key_norm": False,
        "qkv_bias": True,
        "rotary_dim": 4,
        "experts": {"shared": 1, "first_layer": 1},
        "router": {"scores": "sigmoid", "scale": 1.5, "bias_rate": 1e-3},
    },
    "minimax m2": {
        "query_key_norm": False,
        "joint_query_key_norm": True,
        "rotary_dim": 4,
        "head_dim": 8,
        "router": {"scores": "sigmoid", "bias_rate": 1e-3},
    },
}


@pytest.mark.parametrize("name", CASES)
def test_logits_loss_and_gradients_are_those_of_huggingface(name: str, tmp_path: Path) -> None:
    model = model_of(**CASES[name])
    arrays = random_arrays(model)
    assert largest_difference(model, build(model, arrays), theirs_of(model, arrays, tmp_path)) <= TOLERANCE


@pytest.mark.parametrize(
    "exchanged",
    [
        {"layers.1.mlp.experts.gate.weight": "layers.1.mlp.experts.up.weight"},
        {"layers.0.mlp.router.weight": "layers.2.mlp.router.weight"},
    ],
)
def test_an_exchanged_parameter_shows(exchanged: dict[str, str], tmp_path: Path) -> None:
    model = model_of()
    arrays = random_arrays(model)
    wrong = {name: arrays[exchanged.get(name, name)] for name in arrays}
    assert largest_difference(model, build(model, wrong), theirs_of(model, arrays, tmp_path)) > 100 * TOLERANCE


# DeepSeek-V3's block alone: its attention is another


def their_block(model: Model, bias: torch.Tensor) -> Any:
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE

    experts = model.experts
    assert experts is not None and experts.router.groups is not None
    config = transformers.DeepseekV3Config(
        hidden_size=model.hidden_size, moe_intermediate_size=experts.ffn_hidden_size, n_shared_experts=experts.shared,
        n_routed_experts=experts.count, num_experts_per_tok=experts.chosen, n_group=experts.router.groups.count,
        topk_group=experts.router.groups.chosen, norm_topk_prob=experts.router.normalised,
        routed_scaling_factor=experts.router.scale,
    )  # fmt: skip
    block = DeepseekV3MoE(config)
    block.gate.e_score_correction_bias.copy_(bias)
    return block


def test_a_block_of_deepseek_v3() -> None:
    groups = {"scores": "sigmoid", "scale": 2.5, "groups": {"count": 3, "chosen": 2}, "bias_rate": 1e-3}
    model = model_of(router=groups, experts={"count": 12, "chosen": 4, "shared": 2})
    ours: Any = build(model, random_arrays(model)).layers["1"].mlp
    ours.tally.bias = torch.linspace(-0.3, 0.3, 12)
    theirs = their_block(model, ours.tally.bias)
    own = {name: parameter.detach() for name, parameter in ours.named_parameters()}
    theirs.load_state_dict(
        {
            "gate.weight": own["router.weight"],
            "gate.e_score_correction_bias": ours.tally.bias,
            "experts.gate_up_proj": torch.cat((own["experts.gate.weight"], own["experts.up.weight"]), 1),
            "experts.down_proj": own["experts.down.weight"],
            **{f"shared_experts.{name}_proj.weight": own[f"shared.{name}.weight"] for name in ("gate", "up", "down")},
        }
    )
    x = torch.randn(3, LENGTH, model.hidden_size, generator=torch.Generator().manual_seed(2))
    gradient = torch.randn(x.shape, generator=torch.Generator().manual_seed(3))
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    outputs = [block(each) for block, each in zip((ours, theirs), inputs, strict=True)]
    for output in outputs:
        output.backward(gradient)
    pairs = [outputs, [each.grad for each in inputs], [ours.router.weight.grad, theirs.gate.weight.grad]]
    pairs.append([ours.experts.down.weight.grad, theirs.experts.down_proj.grad])
    assert max(float(((a - b).abs().max() / b.abs().max()).detach()) for a, b in pairs) <= TOLERANCE


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"experts": {"shared": 1}}, "shared 1"),
        ({"router": {"scores": "sigmoid"}, "sliding_window": 4}, "sliding_window 4"),
        ({"experts": {"shared": 1, "shared_gate": True}}, "query_key_norm True"),
        ({"query_key_norm": False, "experts": {"first_layer": 1}}, "first_layer 1"),
        ({"query_key_norm": False, "router": {"normalised": False}}, "normalised False"),
        ({"experts": {"capacity_factor": 1.0}}, "capacity_factor 1.0"),
        ({"bias": True}, "bias True"),
    ],
)
def test_a_mixture_without_an_equivalent_is_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(NoEquivalent, match=named):
        hf_config(model_of(**changes), LENGTH)


# DeepSeek-V3 whole: latent attention, a dense layer, groups, shared experts

LATENT = {"query_rank": 14, "key_value_rank": 10, "plain_size": 6, "rotary_size": 4, "value_size": 9}


def deepseek(query_rank: int | None = 14) -> Model:
    return model_of(
        router={"scores": "sigmoid", "scale": 2.5, "groups": {"count": 3, "chosen": 2}, "bias_rate": 1e-3},
        experts={"count": 12, "chosen": 4, "shared": 2, "first_layer": 1},
        query_key_norm=False, kv_heads=4, norm_eps=1e-6, latent_attention={**LATENT, "query_rank": query_rank},
    )  # fmt: skip


def their_deepseek(model: Model) -> Any:
    experts, latent = model.experts, model.latent_attention
    assert experts is not None and experts.router.groups is not None and latent is not None
    config = transformers.DeepseekV3Config(
        vocab_size=model.vocab_size, hidden_size=model.hidden_size, intermediate_size=model.ffn_hidden_size,
        moe_intermediate_size=experts.ffn_hidden_size, num_hidden_layers=model.layers,
        num_attention_heads=model.heads, num_key_value_heads=model.heads, n_shared_experts=experts.shared,
        n_routed_experts=experts.count, num_experts_per_tok=experts.chosen, n_group=experts.router.groups.count,
        topk_group=experts.router.groups.chosen, routed_scaling_factor=experts.router.scale,
        first_k_dense_replace=experts.first_layer, norm_topk_prob=True, q_lora_rank=latent.query_rank,
        kv_lora_rank=latent.key_value_rank, qk_nope_head_dim=latent.plain_size, qk_rope_head_dim=latent.rotary_size,
        v_head_dim=latent.value_size, rope_interleave=False, rms_norm_eps=model.norm_eps, tie_word_embeddings=False,
        max_position_embeddings=LENGTH, rope_parameters={"rope_type": "default", "rope_theta": model.rope_base},
        attn_implementation="eager", experts_implementation="eager",
    )  # fmt: skip
    return transformers.AutoModelForCausalLM.from_config(config).eval()


DEEPSEEK_NAMES = {
    "attention.query_down": "self_attn.q_a_proj", "attention.query_norm": "self_attn.q_a_layernorm",
    "attention.query_up": "self_attn.q_b_proj", "attention.query": "self_attn.q_proj",
    "attention.latent_down": "self_attn.kv_a_proj_with_mqa", "attention.latent_norm": "self_attn.kv_a_layernorm",
    "attention.latent_up": "self_attn.kv_b_proj", "attention.output": "self_attn.o_proj",
    "attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm", "mlp.router": "mlp.gate",
    **{f"mlp.{name}": f"mlp.{name}_proj" for name in ("gate", "up", "down")},
    **{f"mlp.shared.{name}": f"mlp.shared_experts.{name}_proj" for name in ("gate", "up", "down")},
}  # fmt: skip
ENDS = {"embedding.weight": "model.embed_tokens.weight", "final_norm.weight": "model.norm.weight",
        "head.weight": "lm_head.weight"}  # fmt: skip


def as_deepseek(values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Ours under their names; the gates and ups of all experts are one parameter there."""
    found = {}
    for name, value in values.items():
        if name in ENDS:
            found[ENDS[name]] = value
            continue
        _, layer, own = name.removesuffix(".weight").split(".", 2)
        place = f"model.layers.{layer}."
        if own == "mlp.experts.gate":
            up = values[name.replace(".gate.", ".up.")]
            found[f"{place}mlp.experts.gate_up_proj"] = torch.cat((value, up), 1)
        elif own == "mlp.experts.down":
            found[f"{place}mlp.experts.down_proj"] = value
        elif own != "mlp.experts.up":
            found[f"{place}{DEEPSEEK_NAMES[own]}.weight"] = value
    return found


@pytest.mark.parametrize("query_rank", [14, None])
def test_deepseek_v3_whole(query_rank: int | None) -> None:
    model = deepseek(query_rank)
    arrays = random_arrays(model)
    ours, theirs, tokens = build(model, arrays), their_deepseek(model), tokens_of(model)
    missing, strange = theirs.load_state_dict(
        as_deepseek({name: torch.from_numpy(array) for name, array in arrays.items()}), strict=False
    )
    assert not strange and all(name.endswith("e_score_correction_bias") for name in missing)
    logits, loss = theirs(tokens[:, :-1]).logits, ours(tokens[:, :-1], tokens[:, 1:])
    their_loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    their_loss.backward()
    own = as_deepseek({name: gradient_of(parameter) for name, parameter in ours.named_parameters()})
    right = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    assert set(own) == set(right)
    pairs = [(loss[0], their_loss), *((own[name], right[name]) for name in right)]
    with torch.no_grad():
        pairs.append((ours(tokens[:, :-1]), logits))
    apart = [((a - b).abs().max() / b.abs().max()).item() for a, b in pairs]
    assert max(apart) <= TOLERANCE

"""A mixture of experts as HuggingFace's Mixtral or Qwen3-MoE: their config.json, and the names of their files.

Their files have one matrix for each expert; from_pretrained joins them. tests/models/test_mixture_huggingface.py checks
the mapping by logits and gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from levelfield.errors import UsageError
from levelfield.specs.architecture import Experts, Model

Arrays = Mapping[str, NDArray[np.float32]]

_ATTENTION = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "o_proj"}
_NORMS = {"query_norm": "q_norm", "key_norm": "k_norm"}
_DENSE = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
_MIXTRAL = {"gate": "w1", "up": "w3", "down": "w2"}


def mixture_config(model: Model, sequence_length: int) -> dict[str, Any]:
    """Return the config.json of MixtralForCausalLM or Qwen3MoeForCausalLM. Raises UsageError when neither fits.

    The coefficient of the auxiliary loss is left out: theirs has another definition.
    """
    experts = _equivalent(model)
    own = _qwen_config(model, experts) if model.query_key_norm else _mixtral_config(model, experts)
    return {
        "max_position_embeddings": sequence_length,
        "hidden_size": model.hidden_size,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_size,
        "hidden_act": "silu",
        "rms_norm_eps": model.norm_eps,
        "rope_theta": model.rope_base,
        "rope_parameters": {"rope_type": "default", "rope_theta": model.rope_base},
        "num_experts_per_tok": experts.chosen,
        **own,
    }


def mixture_arrays(model: Model, arrays: Arrays) -> dict[str, NDArray[np.float32]]:
    """Return canonical arrays under the names of their files. Raises UsageError as `mixture_config` does."""
    _equivalent(model)
    named = {"model.embed_tokens.weight": arrays["embedding.weight"], "model.norm.weight": arrays["final_norm.weight"]}
    for layer in range(model.layers):
        own = {name.removeprefix(f"layers.{layer}."): array for name, array in _of_layer(arrays, layer)}
        for name, array in _layer(model, layer, own).items():
            named[f"model.layers.{layer}.{name}.weight"] = array
    return named if model.tied_embeddings else {**named, "lm_head.weight": arrays["head.weight"]}


def _of_layer(arrays: Arrays, layer: int) -> list[tuple[str, NDArray[np.float32]]]:
    return [(name.removesuffix(".weight"), a) for name, a in arrays.items() if name.startswith(f"layers.{layer}.")]


def _layer(model: Model, layer: int, own: Arrays) -> dict[str, NDArray[np.float32]]:
    named = {"input_layernorm": own["attention_norm"], "post_attention_layernorm": own["mlp_norm"]}
    for ours, theirs in (_ATTENTION | _NORMS if model.query_key_norm else _ATTENTION).items():
        named[f"self_attn.{theirs}"] = own[f"attention.{ours}"]
    if not model.is_mixture(layer):
        return named | {f"mlp.{theirs}": own[f"mlp.{ours}"] for ours, theirs in _DENSE.items()}
    place, names = ("mlp", _DENSE) if model.query_key_norm else ("block_sparse_moe", _MIXTRAL)
    named[f"{place}.gate"] = own["mlp.router"]
    for ours, theirs in names.items():
        for index, matrix in enumerate(own[f"mlp.experts.{ours}"]):
            named[f"{place}.experts.{index}.{theirs}"] = matrix
    return named


def _mixtral_config(model: Model, experts: Experts) -> dict[str, Any]:
    return {
        "model_type": "mixtral",
        "architectures": ["MixtralForCausalLM"],
        "intermediate_size": experts.ffn_hidden_size,
        "num_local_experts": experts.count,
        "sliding_window": model.sliding_window,
    }


def _qwen_config(model: Model, experts: Experts) -> dict[str, Any]:
    return {
        "model_type": "qwen3_moe",
        "architectures": ["Qwen3MoeForCausalLM"],
        "intermediate_size": model.ffn_hidden_size,
        "moe_intermediate_size": experts.ffn_hidden_size,
        "num_experts": experts.count,
        "norm_topk_prob": experts.router.normalised,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [layer for layer in range(model.layers) if not model.is_mixture(layer)],
        "attention_bias": False,
        "use_sliding_window": False,
    }


def _equivalent(model: Model) -> Experts:
    """Return the experts of a model that one of both has. Raises UsageError with every part that it has not."""
    experts = model.experts
    if experts is None:
        raise UsageError("no equivalent in HuggingFace's mixtures of experts: experts None")
    name = "Qwen3MoeForCausalLM" if model.query_key_norm else "MixtralForCausalLM"
    wanted = {**_SHARED, "normalised": True, "dense layers": 0}
    if model.query_key_norm:
        wanted = {**_SHARED, "sliding_window": None}
    found = {key: _value(model, experts, key) for key in wanted}
    wrong = [f"{key} {found[key]!r} (it has {wanted[key]!r})" for key in wanted if found[key] != wanted[key]]
    if wrong:
        raise UsageError(f"no equivalent in HuggingFace's {name}: {', '.join(wrong)}")
    return experts


_SHARED: dict[str, Any] = {
    "norm": "rmsnorm", "positions": "rope", "activation": "swiglu", "hidden_dropout": 0, "bias": False,
    "qkv_bias": False, "rope_scaling": None, "latent_attention": None, "norm_place": "before", "embedding_scale": None,
    "shared": 0, "capacity_factor": None, "scores": "softmax", "scale": 1.0, "groups": None, "bias_rate": 0,
}  # fmt: skip


def _value(model: Model, experts: Experts, key: str) -> Any:
    if key == "dense layers":
        return model.layers - model.mixture_layers
    owner = next(each for each in (model, experts, experts.router) if key in type(each).model_fields)
    return getattr(owner, key)

"""A case's model as HuggingFace's classes have it: config.json, and the names of the initial weights.

The class of a dense model with rotary positions follows from its parts and not from its family: these classes share one
layout of parameters and differ in their constants; OLMo 2 names its norms otherwise. A mixture of experts is Mixtral or
Qwen3-MoE; their files have one matrix for each expert, and from_pretrained joins them. The mapping is held to logits,
loss and gradients in tests/models/test_torch_huggingface.py and test_mixture_huggingface.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
from levelfield.specs.architecture import Experts, Model, RopeScaling
from levelfield.specs.base import LATER
from levelfield.specs.case import Work
from levelfield.worker import Initializer
from levelfield.worker.architecture import Model as WorkerModel
from levelfield.worker.job import parse
from numpy.typing import NDArray

Array = NDArray[np.float32]
Arrays = Mapping[str, Array]

_GPT_ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh"}


class NoEquivalent(Exception):
    """HuggingFace has no class with these parts. The message names the parts."""


def initial_arrays(work: Work) -> dict[str, Array]:
    """Return the whole initial value of every parameter by canonical name, as float32."""
    model = parse(WorkerModel, work.model.model_dump(), "model")
    job: Any = SimpleNamespace(model=model, training=work.training)
    initializer = Initializer(job)
    return {name: initializer.array(name, spec.shape) for name, spec in initializer.parameters(model).items()}


def hf_config(model: Model, sequence_length: int) -> dict[str, Any]:
    """Return the config.json of HuggingFace's class for the model. Raises NoEquivalent when there is none."""
    _check_equivalent(model)
    shared = {
        "vocab_size": model.vocab_size,
        "initializer_range": model.init_std,
        "attention_dropout": model.attention_dropout,
        "tie_word_embeddings": model.tied_embeddings,
        "bos_token_id": None,
        "eos_token_id": None,
        "dtype": "float32",
    }
    if model.experts is not None:
        return {**shared, **mixture_config(model, sequence_length)}
    return {**shared, **(_gpt_config if _is_gpt(model) else rotary_config)(model, sequence_length)}


def to_hf(model: Model, arrays: Arrays) -> dict[str, Array]:
    """Return canonical arrays under HuggingFace's names and layouts. Raises NoEquivalent as `hf_config` does."""
    _check_equivalent(model)
    if model.experts is not None:
        return {name: np.ascontiguousarray(array) for name, array in mixture_arrays(model, arrays).items()}
    hf_arrays = (_gpt_arrays if _is_gpt(model) else rotary_arrays)(model, arrays)
    return {name: np.ascontiguousarray(array) for name, array in hf_arrays.items()}


def _check_equivalent(model: Model) -> None:
    """Raises NoEquivalent with every part that the class of a GPT has not; the other modules check their own."""
    if _is_gpt(model):
        activation = model.activation if model.activation in _GPT_ACTIVATIONS else "gelu"
        class_values = {"norm": "layernorm", "bias": True, "kv_heads": model.heads, "activation": activation}
        refuse_others(model, "GPT2LMHeadModel", class_values)


def _is_gpt(model: Model) -> bool:
    return model.positions == "learned" and model.experts is None


def _gpt_config(model: Model, sequence_length: int) -> dict[str, Any]:
    return {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "n_positions": sequence_length,
        "n_embd": model.hidden_size,
        "n_layer": model.layers,
        "n_head": model.heads,
        "n_inner": model.ffn_hidden_size,
        "activation_function": _GPT_ACTIVATIONS[model.activation],
        "layer_norm_epsilon": model.norm_eps,
        "embd_pdrop": model.hidden_dropout,
        "resid_pdrop": model.hidden_dropout,
        "attn_pdrop": model.attention_dropout,
    }


def _gpt_arrays(model: Model, arrays: Arrays) -> dict[str, Array]:
    hf_arrays = {
        "transformer.wte.weight": arrays["embedding.weight"],
        "transformer.wpe.weight": arrays["position.weight"],
        "transformer.ln_f.weight": arrays["final_norm.weight"],
        "transformer.ln_f.bias": arrays["final_norm.bias"],
    }
    for layer in range(model.layers):
        hf_arrays.update(_gpt_layer(arrays, f"layers.{layer}", f"transformer.h.{layer}"))
    return hf_arrays if model.tied_embeddings else {**hf_arrays, "lm_head.weight": arrays["head.weight"]}


def _gpt_layer(arrays: Arrays, ours: str, theirs: str) -> dict[str, Array]:
    """Return one GPT-2 layer. Its matrices are Conv1D, [in, out]; one of them holds query, key and value."""
    hf_arrays = {}
    for part in ("weight", "bias"):
        fused = [arrays[f"{ours}.attention.{name}.{part}"] for name in ("query", "key", "value")]
        hf_arrays[f"{theirs}.ln_1.{part}"] = arrays[f"{ours}.attention_norm.{part}"]
        hf_arrays[f"{theirs}.ln_2.{part}"] = arrays[f"{ours}.mlp_norm.{part}"]
        hf_arrays[f"{theirs}.attn.c_attn.{part}"] = np.concatenate(fused).T
        hf_arrays[f"{theirs}.attn.c_proj.{part}"] = arrays[f"{ours}.attention.output.{part}"].T
        hf_arrays[f"{theirs}.mlp.c_fc.{part}"] = arrays[f"{ours}.mlp.up.{part}"].T
        hf_arrays[f"{theirs}.mlp.c_proj.{part}"] = arrays[f"{ours}.mlp.down.{part}"].T
    return hf_arrays


# -- dense models with rotary positions
_ATTENTION = {
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
}
_MLP = {"mlp.gate": "mlp.gate_proj", "mlp.up": "mlp.up_proj", "mlp.down": "mlp.down_proj"}
_NORMS = {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
_HEAD_NORMS = {"attention.query_norm": "self_attn.q_norm", "attention.key_norm": "self_attn.k_norm"}


@dataclass(frozen=True)
class RotaryClass:
    """One of HuggingFace's classes. takes: the later parts that it may have; constants: what its config.json adds.

    norm_offset: what its norms add to their weights. norms: their names of a layer's.
    """

    name: str
    model_type: str
    takes: tuple[str, ...]
    constants: dict[str, Any]
    norm_offset: float = 0.0
    norms: Mapping[str, str] = field(default_factory=lambda: _NORMS)


_ALWAYS = ("head_dim", "rope_scaling")
_LLAMA = RotaryClass("LlamaForCausalLM", "llama", _ALWAYS, {"hidden_act": "silu"})
_MISTRAL = RotaryClass("MistralForCausalLM", "mistral", (*_ALWAYS, "sliding_window"), {"hidden_act": "silu"})
_QWEN2 = RotaryClass("Qwen2ForCausalLM", "qwen2", (*_ALWAYS, "qkv_bias"), {"hidden_act": "silu"})
_QWEN3 = RotaryClass("Qwen3ForCausalLM", "qwen3", (*_ALWAYS, "query_key_norm"), {"hidden_act": "silu"})
_OLMO2 = RotaryClass(
    "Olmo2ForCausalLM",
    "olmo2",
    ("rope_scaling", "joint_query_key_norm"),
    {"hidden_act": "silu"},
    norms={"attention_norm": "post_attention_layernorm", "mlp_norm": "post_feedforward_layernorm"},
)
_MULTIPLIERS = ("residual_scale", "logit_scale", "attention_scale")
_GRANITE = RotaryClass(
    "GraniteForCausalLM", "granite", (*_ALWAYS, "embedding_scale", *_MULTIPLIERS), {"hidden_act": "silu"}
)
_GEMMA = RotaryClass(
    "GemmaForCausalLM", "gemma", (*_ALWAYS, "embedding_scale"), {"hidden_act": "gelu_pytorch_tanh"}, norm_offset=1.0
)


def rotary_config(model: Model, sequence_length: int) -> dict[str, Any]:
    """Return the config.json of the class that the model's parts choose. Raises NoEquivalent when it does not fit."""
    theirs = _class_of(model)
    class_fields: dict[str, Any] = {"mlp_bias": model.bias} if theirs in (_LLAMA, _GRANITE) else {}
    class_fields |= {"sliding_window": model.sliding_window} if theirs is _MISTRAL else {}
    class_fields |= _granite_fields(model) if theirs is _GRANITE else {}
    return {
        "model_type": theirs.model_type,
        "architectures": [theirs.name],
        "max_position_embeddings": sequence_length,
        "hidden_size": model.hidden_size,
        "intermediate_size": model.ffn_hidden_size,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_size,
        "rms_norm_eps": model.norm_eps,
        "rope_theta": model.rope_base,
        "rope_parameters": {**_scaling(model.rope_scaling), "rope_theta": model.rope_base},
        "attention_bias": model.bias,
        **theirs.constants,
        **class_fields,
    }


def _granite_fields(model: Model) -> dict[str, Any]:
    scales = {"embedding_multiplier": model.embedding_scale or 1.0, "residual_multiplier": model.residual_scale or 1.0}
    attention = model.attention_scale or model.head_size**-0.5
    return {**scales, "logits_scaling": 1 / (model.logit_scale or 1.0), "attention_multiplier": attention}


def rotary_arrays(model: Model, arrays: Arrays) -> dict[str, Array]:
    """Return canonical arrays under the names of their files. Raises NoEquivalent as `rotary_config` does."""
    rotary_class = _class_of(model)
    offset = rotary_class.norm_offset
    norms = {**rotary_class.norms, **(_HEAD_NORMS if model.query_key_norm_widths else {})}
    hf_arrays = {
        "model.embed_tokens.weight": arrays["embedding.weight"],
        "model.norm.weight": arrays["final_norm.weight"] - np.float32(offset),
    }
    for layer in range(model.layers):
        ours, theirs = f"layers.{layer}", f"model.layers.{layer}"
        for name, their_name in norms.items():
            hf_arrays[f"{theirs}.{their_name}.weight"] = arrays[f"{ours}.{name}.weight"] - np.float32(offset)
        for name, their_name in {**_ATTENTION, **_MLP}.items():
            for part in ("weight", "bias") if f"{ours}.{name}.bias" in arrays else ("weight",):
                hf_arrays[f"{theirs}.{their_name}.{part}"] = arrays[f"{ours}.{name}.{part}"]
    return hf_arrays if model.tied_embeddings else {**hf_arrays, "lm_head.weight": arrays["head.weight"]}


def refuse_others(model: Model, name: str, class_values: dict[str, Any], takes: tuple[str, ...] = ()) -> None:
    """Raises NoEquivalent with every field of the model that the class `name` has otherwise.

    class_values: the values that it has. takes: the later parts that it can have.
    """
    later = {key: f.default for key, f in Model.model_fields.items() if f.json_schema_extra == LATER}
    class_values = {**{key: value for key, value in later.items() if key not in takes}, **class_values}
    model_values = {key: getattr(model, key) for key in class_values}
    wrong = [
        f"{key} {model_values[key]!r} (it has {class_values[key]!r})"
        for key in class_values
        if not _same(model_values[key], class_values[key])
    ]
    if wrong:
        raise NoEquivalent(f"no equivalent in HuggingFace's {name}: {', '.join(wrong)}")


def _class_of(model: Model) -> RotaryClass:
    chosen = (
        (_GRANITE, any(getattr(model, name) is not None for name in _MULTIPLIERS)),
        (_MISTRAL, model.sliding_window is not None),
        (_GEMMA, model.activation == "geglu_tanh" or model.embedding_scale is not None),
        (_OLMO2, model.joint_query_key_norm),
        (_QWEN3, model.query_key_norm),
        (_QWEN2, model.qkv_bias),
    )
    theirs = next((rotary_class for rotary_class, has in chosen if has), _LLAMA)
    class_values: dict[str, Any] = {"norm": "rmsnorm", "positions": "rope", "activation": "swiglu", "hidden_dropout": 0}
    class_values |= {} if theirs in (_LLAMA, _GRANITE) else {"bias": False}
    class_values |= {"norm_place": "after"} if theirs is _OLMO2 else {}
    if theirs is _GEMMA:
        class_values |= {"activation": "geglu_tanh", "embedding_scale": math.sqrt(model.hidden_size)}
    refuse_others(model, theirs.name, class_values, theirs.takes)
    return theirs


def _scaling(scaling: RopeScaling | None) -> dict[str, Any]:
    """Return the rope_parameters without the base."""
    if scaling is None:
        return {"rope_type": "default"}
    names = {
        "factor": "factor",
        "original_length": "original_max_position_embeddings",
        "low_factor": "low_freq_factor",
        "high_factor": "high_freq_factor",
        "beta_fast": "beta_fast",
        "beta_slow": "beta_slow",
        "magnitude": "attention_factor",
    }
    parameters = {
        theirs: getattr(scaling, ours) for ours, theirs in names.items() if getattr(scaling, ours) is not None
    }
    return {"rope_type": scaling.kind, **parameters}


def _same(model_value: Any, class_value: Any) -> bool:
    if isinstance(model_value, float) and isinstance(class_value, float):
        return math.isclose(model_value, class_value, rel_tol=1e-6)
    return bool(model_value == class_value)


# -- mixtures of experts
_QWEN_EXPERT = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
_MIXTRAL_EXPERT = {"gate": "w1", "up": "w3", "down": "w2"}


def mixture_config(model: Model, sequence_length: int) -> dict[str, Any]:
    """Return the config.json of MixtralForCausalLM or Qwen3MoeForCausalLM. Raises NoEquivalent when neither fits.

    The coefficient of the auxiliary loss is left out: theirs has another definition.
    """
    experts = _equivalent(model)
    class_fields = _qwen_config(model, experts) if model.query_key_norm else _mixtral_config(model, experts)
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
        **class_fields,
    }


def mixture_arrays(model: Model, arrays: Arrays) -> dict[str, Array]:
    """Return canonical arrays under the names of their files. Raises NoEquivalent as `mixture_config` does."""
    _equivalent(model)
    hf_arrays = {
        "model.embed_tokens.weight": arrays["embedding.weight"],
        "model.norm.weight": arrays["final_norm.weight"],
    }
    for layer in range(model.layers):
        layer_arrays = {name.removeprefix(f"layers.{layer}."): array for name, array in _layer_arrays(arrays, layer)}
        for name, array in _layer(model, layer, layer_arrays).items():
            hf_arrays[f"model.layers.{layer}.{name}.weight"] = array
    return hf_arrays if model.tied_embeddings else {**hf_arrays, "lm_head.weight": arrays["head.weight"]}


def _layer_arrays(arrays: Arrays, layer: int) -> list[tuple[str, Array]]:
    return [(name.removesuffix(".weight"), a) for name, a in arrays.items() if name.startswith(f"layers.{layer}.")]


def _layer(model: Model, layer: int, arrays: Arrays) -> dict[str, Array]:
    shared = {**_NORMS, **_ATTENTION, **(_HEAD_NORMS if model.query_key_norm else {})}
    if not model.is_mixture(layer):
        return {theirs: arrays[ours] for ours, theirs in {**shared, **_MLP}.items()}
    hf_arrays = {theirs: arrays[ours] for ours, theirs in shared.items()}
    place, names = ("mlp", _QWEN_EXPERT) if model.query_key_norm else ("block_sparse_moe", _MIXTRAL_EXPERT)
    hf_arrays[f"{place}.gate"] = arrays["mlp.router"]
    for ours, theirs in names.items():
        for index, matrix in enumerate(arrays[f"mlp.experts.{ours}"]):
            hf_arrays[f"{place}.experts.{index}.{theirs}"] = matrix
    return hf_arrays


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
    """Return the experts of a model that one of both has. Raises NoEquivalent with every part that it has not."""
    experts = model.experts
    if experts is None:
        raise NoEquivalent("no equivalent in HuggingFace's mixtures of experts: experts None")
    name = "Qwen3MoeForCausalLM" if model.query_key_norm else "MixtralForCausalLM"
    class_values = {**_SHARED, "normalised": True, "dense layers": 0}
    if model.query_key_norm:
        class_values = {**_SHARED, "sliding_window": None}
    model_values = {key: _value(model, experts, key) for key in class_values}
    wrong = [
        f"{key} {model_values[key]!r} (it has {class_values[key]!r})"
        for key in class_values
        if model_values[key] != class_values[key]
    ]
    if wrong:
        raise NoEquivalent(f"no equivalent in HuggingFace's {name}: {', '.join(wrong)}")
    return experts


_SHARED: dict[str, Any] = {
    "norm": "rmsnorm", "positions": "rope", "activation": "swiglu", "hidden_dropout": 0, "bias": False,
    "qkv_bias": False, "joint_query_key_norm": False, "rope_scaling": None, "latent_attention": None,
    "norm_place": "before", "embedding_scale": None, "residual_scale": None, "logit_scale": None,
    "attention_scale": None, "shared": 0, "capacity_factor": None, "scores": "softmax",
    "scale": 1.0, "groups": None, "bias_rate": 0,
}  # fmt: skip


def _value(model: Model, experts: Experts, key: str) -> Any:
    if key == "dense layers":
        return model.layers - model.mixture_layers
    owner = next(part for part in (model, experts, experts.router) if key in type(part).model_fields)
    return getattr(owner, key)

"""A case's model as HuggingFace's classes have it: config.json, and the names of the initial weights.

The class of a dense model with rotary positions follows from its parts and not from its family: these classes share one
layout of parameters and differ in their constants; OLMo names its norms otherwise, Cohere rotates neighbours, and
GPT-NeoX joins queries, keys and values. Files of a mixture have one matrix for each expert, and from_pretrained joins
them. The mapping is held to logits, loss and gradients in tests/models/test_torch_huggingface.py and
test_mixture_huggingface.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
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
        "pad_token_id": None,  # the embedding of one has no gradient
        "dtype": "float32",
    }
    if model.experts is not None:
        return {**shared, **mixture_config(model, sequence_length)}
    config = _gpt_config if _is_gpt(model) else _neox_config if _is_neox(model) else rotary_config
    return {**shared, **config(model, sequence_length)}


def to_hf(model: Model, arrays: Arrays) -> dict[str, Array]:
    """Return canonical arrays under HuggingFace's names and layouts. Raises NoEquivalent as `hf_config` does."""
    _check_equivalent(model)
    if model.experts is not None:
        return {name: np.ascontiguousarray(array) for name, array in mixture_arrays(model, arrays).items()}
    rename = _gpt_arrays if _is_gpt(model) else _neox_arrays if _is_neox(model) else rotary_arrays
    hf_arrays = rename(model, arrays)
    return {name: np.ascontiguousarray(array) for name, array in hf_arrays.items()}


def _check_equivalent(model: Model) -> None:
    """Raises NoEquivalent with every part that the class of a GPT has not; the other modules check their own."""
    if _is_gpt(model):
        activation = model.activation if model.activation in _GPT_ACTIVATIONS else "gelu"
        class_values = {"norm": "layernorm", "bias": True, "kv_heads": model.heads, "activation": activation}
        refuse_others(model, "GPT2LMHeadModel", class_values)
    elif _is_neox(model):
        activation = model.activation if model.activation in _GPT_ACTIVATIONS else "gelu"
        class_values = {"norm": "layernorm", "kv_heads": model.heads, "activation": activation}
        class_values |= {"parallel_residual": "two_norms"} if model.parallel_residual else {}
        refuse_others(model, "GPTNeoXForCausalLM", class_values, ("rotary_dim",))


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


def _is_neox(model: Model) -> bool:
    return model.positions == "rope" and model.bias and not model.is_gated and model.experts is None


def _neox_config(model: Model, sequence_length: int) -> dict[str, Any]:
    share = (model.rotary_dim or model.head_size) / model.head_size
    return {
        "model_type": "gpt_neox",
        "architectures": ["GPTNeoXForCausalLM"],
        "max_position_embeddings": sequence_length,
        "hidden_size": model.hidden_size,
        "intermediate_size": model.ffn_hidden_size,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "hidden_act": _GPT_ACTIVATIONS[model.activation],
        "hidden_dropout": model.hidden_dropout,
        "layer_norm_eps": model.norm_eps,
        "rotary_emb_base": model.rope_base,
        "rotary_pct": share,
        "use_parallel_residual": model.parallel_residual is not None,
    }


def _neox_arrays(model: Model, arrays: Arrays) -> dict[str, Array]:
    """Return canonical arrays under GPT-NeoX's names. One matrix has each head's query, key and value after another."""
    hf_arrays = {"gpt_neox.embed_in.weight": arrays["embedding.weight"]}
    if not model.tied_embeddings:
        hf_arrays["lm_head.weight"] = arrays["head.weight"]
    for part in ("weight", "bias"):
        hf_arrays[f"gpt_neox.final_layer_norm.{part}"] = arrays[f"final_norm.{part}"]
        for layer in range(model.layers):
            ours, theirs = f"layers.{layer}", f"gpt_neox.layers.{layer}"
            fused = [arrays[f"{ours}.attention.{name}.{part}"] for name in ("query", "key", "value")]
            by_head = [array.reshape(model.heads, 1, model.head_size, -1) for array in fused]
            joined = np.concatenate(by_head, 1).reshape(3 * model.heads * model.head_size, -1)
            hf_arrays[f"{theirs}.attention.query_key_value.{part}"] = joined if part == "weight" else joined[:, 0]
            for name, their_name in _NEOX_LAYER.items():
                hf_arrays[f"{theirs}.{their_name}.{part}"] = arrays[f"{ours}.{name}.{part}"]
    return hf_arrays


_NEOX_LAYER = {
    "attention_norm": "input_layernorm",
    "attention.output": "attention.dense",
    "mlp_norm": "post_attention_layernorm",
    "mlp.up": "mlp.dense_h_to_4h",
    "mlp.down": "mlp.dense_4h_to_h",
}


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

    norm_offset: what its norms add to their weights. norms: their names of a layer's. values: what it has in the place
    of Llama's. norm_eps: their name of it. rotates_neighbours: the pairs 2i and 2i + 1, not a head's halves.
    fields: further ones of config.json.
    """

    name: str
    model_type: str
    takes: tuple[str, ...]
    constants: dict[str, Any]
    norm_offset: float = 0.0
    norms: Mapping[str, str] = field(default_factory=lambda: _NORMS)
    values: Mapping[str, Any] = field(default_factory=lambda: {"bias": False})
    norm_eps: str = "rms_norm_eps"
    rotates_neighbours: bool = False
    fields: Callable[[Model], dict[str, Any]] = lambda model: {}


_ALWAYS = ("head_dim", "rope_scaling")
_LLAMA = RotaryClass(
    "LlamaForCausalLM",
    "llama",
    (*_ALWAYS, "attention_bias"),
    {"hidden_act": "silu"},
    values={},
    fields=lambda model: {"attention_bias": model.bias or model.attention_bias, "mlp_bias": model.bias},
)
_MISTRAL = RotaryClass(
    "MistralForCausalLM",
    "mistral",
    (*_ALWAYS, "sliding_window"),
    {"hidden_act": "silu"},
    fields=lambda model: {"sliding_window": model.sliding_window},
)
_QWEN2 = RotaryClass("Qwen2ForCausalLM", "qwen2", (*_ALWAYS, "qkv_bias"), {"hidden_act": "silu"})
_QWEN3 = RotaryClass("Qwen3ForCausalLM", "qwen3", (*_ALWAYS, "query_key_norm"), {"hidden_act": "silu"})
_OLMO_NORMS = {"attention_norm": "post_attention_layernorm", "mlp_norm": "post_feedforward_layernorm"}
_OLMO2 = RotaryClass(
    "Olmo2ForCausalLM",
    "olmo2",
    ("rope_scaling", "joint_query_key_norm"),
    {"hidden_act": "silu"},
    norms=_OLMO_NORMS,
    values={"bias": False, "norm_place": "after"},
)
_OLMO3 = RotaryClass(
    "Olmo3ForCausalLM",
    "olmo3",
    ("joint_query_key_norm", "sliding_window", "full_attention_interval"),
    {"hidden_act": "silu"},
    norms=_OLMO_NORMS,
    values={"bias": False, "norm_place": "after", "joint_query_key_norm": True},
    fields=lambda model: {
        "sliding_window": model.sliding_window,
        "layer_types": [
            "sliding_attention" if model.layer_window(layer) else "full_attention" for layer in range(model.layers)
        ],
        "rope_parameters": dict.fromkeys(("sliding_attention", "full_attention"), _rope_parameters(model)),
    },
)
_SMOLLM3 = RotaryClass(
    "SmolLM3ForCausalLM",
    "smollm3",
    (*_ALWAYS, "no_rope_interval"),
    {"hidden_act": "silu"},
    fields=lambda model: {"no_rope_layers": [int(model.is_rotated(layer)) for layer in range(model.layers)]},
)
_COHERE = RotaryClass(
    "CohereForCausalLM",
    "cohere",
    ("logit_scale",),
    {"hidden_act": "silu", "use_qk_norm": False},
    norms={"attention_norm": "input_layernorm"},
    values={"bias": False, "norm": "layernorm", "norm_bias": False, "parallel_residual": "one_norm"},
    norm_eps="layer_norm_eps",
    rotates_neighbours=True,
    fields=lambda model: {"logit_scale": model.logit_scale or 1.0},
)
_STABLELM = RotaryClass(
    "StableLmForCausalLM",
    "stablelm",
    ("qkv_bias", "rotary_dim"),
    {"hidden_act": "silu", "qk_layernorm": False},
    values={"bias": False, "norm": "layernorm"},
    norm_eps="layer_norm_eps",
    fields=lambda model: {"use_qkv_bias": model.qkv_bias},
)
_MULTIPLIERS = ("residual_scale", "logit_scale", "attention_scale")
_GRANITE = RotaryClass(
    "GraniteForCausalLM",
    "granite",
    (*_ALWAYS, "embedding_scale", *_MULTIPLIERS),
    {"hidden_act": "silu"},
    values={},
    fields=lambda model: {
        "mlp_bias": model.bias,
        "embedding_multiplier": model.embedding_scale or 1.0,
        "residual_multiplier": model.residual_scale or 1.0,
        "logits_scaling": 1 / (model.logit_scale or 1.0),
        "attention_multiplier": model.attention_scale or model.head_size**-0.5,
    },
)
_GEMMA = RotaryClass(
    "GemmaForCausalLM", "gemma", (*_ALWAYS, "embedding_scale"), {"hidden_act": "gelu_pytorch_tanh"}, norm_offset=1.0
)


def rotary_config(model: Model, sequence_length: int) -> dict[str, Any]:
    """Return the config.json of the class that the model's parts choose. Raises NoEquivalent when it does not fit."""
    theirs = _class_of(model)
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
        theirs.norm_eps: model.norm_eps,
        "rope_theta": model.rope_base,
        "rope_parameters": _rope_parameters(model),
        "attention_bias": model.bias,
        **theirs.constants,
        **theirs.fields(model),
    }


def _rope_parameters(model: Model) -> dict[str, Any]:
    share = {} if model.rotary_dim is None else {"partial_rotary_factor": model.rotary_dim / model.head_size}
    return {**_scaling(model.rope_scaling), "rope_theta": model.rope_base, **share}


def rotary_arrays(model: Model, arrays: Arrays) -> dict[str, Array]:
    """Return canonical arrays under the names of their files. Raises NoEquivalent as `rotary_config` does."""
    rotary_class = _class_of(model)
    norms = {**rotary_class.norms, **(_HEAD_NORMS if model.query_key_norm_widths else {})}
    hf_arrays = {"model.embed_tokens.weight": arrays["embedding.weight"]}
    layers = [(f"layers.{layer}.", f"model.layers.{layer}.") for layer in range(model.layers)]
    names = {f"{a}{ours}": f"{b}{theirs}" for a, b in layers for ours, theirs in {**_ATTENTION, **_MLP}.items()}
    norm_names = {"final_norm": "model.norm"}
    norm_names |= {f"{a}{ours}": f"{b}{theirs}" for a, b in layers for ours, theirs in norms.items()}
    for name, their_name in {**names, **norm_names}.items():
        for part in ("weight", "bias") if f"{name}.bias" in arrays else ("weight",):
            hf_arrays[f"{their_name}.{part}"] = arrays[f"{name}.{part}"]
    for their_name in norm_names.values():
        hf_arrays[f"{their_name}.weight"] = hf_arrays[f"{their_name}.weight"] - np.float32(rotary_class.norm_offset)
    if rotary_class.rotates_neighbours:
        for _, layer in layers:
            for name in ("q_proj", "k_proj"):
                key = f"{layer}self_attn.{name}.weight"
                halves = hf_arrays[key].reshape(-1, 2, model.head_size // 2, model.hidden_size)
                hf_arrays[key] = halves.swapaxes(1, 2).reshape(-1, model.hidden_size)
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
        (_COHERE, model.parallel_residual is not None),
        (_STABLELM, model.norm == "layernorm"),
        (_GRANITE, any(getattr(model, name) is not None for name in _MULTIPLIERS)),
        (_OLMO3, model.full_attention_interval is not None),
        (_SMOLLM3, model.no_rope_interval is not None),
        (_MISTRAL, model.sliding_window is not None),
        (_GEMMA, model.activation == "geglu_tanh" or model.embedding_scale is not None),
        (_OLMO2, model.joint_query_key_norm),
        (_QWEN3, model.query_key_norm),
        (_QWEN2, model.qkv_bias),
    )
    theirs = next((rotary_class for rotary_class, has in chosen if has), _LLAMA)
    class_values: dict[str, Any] = {"norm": "rmsnorm", "positions": "rope", "activation": "swiglu", "hidden_dropout": 0}
    class_values |= theirs.values
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
_PROJECTIONS = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
_MIXTRAL_EXPERT = {"gate": "w1", "up": "w3", "down": "w2"}


@dataclass(frozen=True)
class MixtureClass:
    """One of HuggingFace's mixtures. takes: the fields of model, experts and router that it may have.

    values: those that it has otherwise than Mixtral. fields: of config.json. experts: their name of a layer's experts
    and its matrices. selection_bias: their name of the router's, which is no parameter.
    """

    name: str
    model_type: str
    takes: tuple[str, ...]
    values: Mapping[str, Any]
    fields: Callable[[Model, Experts], dict[str, Any]]
    place: str = "mlp"
    expert: Mapping[str, str] = field(default_factory=lambda: _PROJECTIONS)
    shared: str = ""
    selection_bias: str = ""


def _dense_layers(model: Model) -> list[int]:
    return [layer for layer in range(model.layers) if not model.is_mixture(layer)]


def _qwen_fields(model: Model, experts: Experts) -> dict[str, Any]:
    return {
        "intermediate_size": model.ffn_hidden_size,
        "moe_intermediate_size": experts.ffn_hidden_size,
        "num_experts": experts.count,
        "norm_topk_prob": experts.router.normalised,
        "decoder_sparse_step": 1,
        "mlp_only_layers": _dense_layers(model),
        "attention_bias": False,
        "use_sliding_window": False,
    }


def _glm_fields(model: Model, experts: Experts) -> dict[str, Any]:
    groups = experts.router.groups
    return {
        "intermediate_size": model.ffn_hidden_size,
        "moe_intermediate_size": experts.ffn_hidden_size,
        "n_routed_experts": experts.count,
        "n_shared_experts": experts.shared,
        "first_k_dense_replace": experts.first_layer,
        "n_group": groups.count if groups else 1,
        "topk_group": groups.chosen if groups else 1,
        "norm_topk_prob": experts.router.normalised,
        "routed_scaling_factor": experts.router.scale,
        "attention_bias": model.qkv_bias,
        "use_qk_norm": model.query_key_norm,
    }


_DENSE = ("first_layer", "every")
_MIXTRAL = MixtureClass(
    "MixtralForCausalLM",
    "mixtral",
    ("head_dim", "sliding_window"),
    {},
    lambda model, experts: {
        "intermediate_size": experts.ffn_hidden_size,
        "num_local_experts": experts.count,
        "sliding_window": model.sliding_window,
    },
    "block_sparse_moe",
    _MIXTRAL_EXPERT,
)
_QWEN3_MOE = MixtureClass(
    "Qwen3MoeForCausalLM", "qwen3_moe", ("head_dim", "normalised", *_DENSE), {"query_key_norm": True}, _qwen_fields
)
_QWEN2_MOE = MixtureClass(
    "Qwen2MoeForCausalLM",
    "qwen2_moe",
    ("normalised", "shared", *_DENSE),
    {"qkv_bias": True, "shared_gate": True},
    lambda model, experts: {
        **_qwen_fields(model, experts),
        "qkv_bias": True,
        "shared_expert_intermediate_size": experts.shared * experts.ffn_hidden_size,
    },
    shared="mlp.shared_expert",
)
_GLM4_MOE = MixtureClass(
    "Glm4MoeForCausalLM",
    "glm4_moe",
    (
        *("head_dim", "query_key_norm", "qkv_bias", "rotary_dim"),
        *("normalised", "shared", "first_layer", "scale", "groups", "bias_rate"),
    ),
    {"scores": "sigmoid"},
    _glm_fields,
    shared="mlp.shared_experts",
    selection_bias="mlp.gate.e_score_correction_bias",
)
_MINIMAX_M2 = MixtureClass(
    "MiniMaxM2ForCausalLM",
    "minimax_m2",
    ("head_dim", "bias_rate", "rotary_dim"),
    {"scores": "sigmoid", "joint_query_key_norm": True},
    lambda model, experts: {"intermediate_size": experts.ffn_hidden_size, "num_local_experts": experts.count},
    "block_sparse_moe",
    _MIXTRAL_EXPERT,
    selection_bias="block_sparse_moe.e_score_correction_bias",
)


def mixture_config(model: Model, sequence_length: int) -> dict[str, Any]:
    """Return the config.json of the mixture that the model's parts choose. Raises NoEquivalent when none fits.

    The coefficient of the auxiliary loss is left out: theirs has another definition.
    """
    theirs, experts = _mixture_class(model)
    return {
        "model_type": theirs.model_type,
        "architectures": [theirs.name],
        "max_position_embeddings": sequence_length,
        "hidden_size": model.hidden_size,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_size,
        "hidden_act": "silu",
        "rms_norm_eps": model.norm_eps,
        "rope_theta": model.rope_base,
        "rope_parameters": _rope_parameters(model),
        "num_experts_per_tok": experts.chosen,
        **theirs.fields(model, experts),
    }


def mixture_arrays(model: Model, arrays: Arrays) -> dict[str, Array]:
    """Return canonical arrays under the names of their files. Raises NoEquivalent as `mixture_config` does."""
    theirs, experts = _mixture_class(model)
    names = {**_NORMS, **_ATTENTION, **_MLP, **(_HEAD_NORMS if model.query_key_norm_widths else {})}
    names |= {"mlp.router": f"{theirs.place}.gate", "mlp.shared_gate": "mlp.shared_expert_gate"}
    names |= {f"mlp.shared.{ours}": f"{theirs.shared}.{name}" for ours, name in _PROJECTIONS.items()}
    outer = {"embedding": "model.embed_tokens", "final_norm": "model.norm", "head": "lm_head"}
    hf_arrays = {}
    for name, array in arrays.items():
        module, _, part = name.rpartition(".")
        if module in outer:
            hf_arrays[f"{outer[module]}.{part}"] = array
            continue
        _, layer, ours = module.split(".", 2)
        if ours.startswith("mlp.experts."):
            matrix = theirs.expert[ours.removeprefix("mlp.experts.")]
            for index, expert in enumerate(array):
                hf_arrays[f"model.layers.{layer}.{theirs.place}.experts.{index}.{matrix}.{part}"] = expert
        else:
            hf_arrays[f"model.layers.{layer}.{names[ours]}.{part}"] = array
    if theirs.selection_bias:
        for number in filter(model.is_mixture, range(model.layers)):
            hf_arrays[f"model.layers.{number}.{theirs.selection_bias}"] = np.zeros(experts.count, np.float32)
    return hf_arrays


def _mixture_class(model: Model) -> tuple[MixtureClass, Experts]:
    """Return the class of the model's parts, and its experts. Raises NoEquivalent with every part that it lacks."""
    experts = model.experts
    if experts is None:
        raise NoEquivalent("no equivalent in HuggingFace's mixtures of experts: experts None")
    has_sigmoid = experts.router.scores == "sigmoid"
    chosen = (
        (_MINIMAX_M2, has_sigmoid and model.joint_query_key_norm),
        (_GLM4_MOE, has_sigmoid),
        (_QWEN2_MOE, experts.shared_gate),
        (_QWEN3_MOE, model.query_key_norm),
    )
    theirs = next((mixture_class for mixture_class, has in chosen if has), _MIXTRAL)
    fields = [*Model.model_fields.items(), *Experts.model_fields.items()]
    later = {key: f.default for key, f in fields if f.json_schema_extra == LATER and key != "experts"}
    class_values = {**later, **_MIXTRAL_VALUES, **theirs.values}
    class_values = {key: value for key, value in class_values.items() if key not in theirs.takes}
    model_values = {key: _value(model, experts, key) for key in class_values}
    wrong = [
        f"{key} {model_values[key]!r} (it has {class_values[key]!r})"
        for key in class_values
        if model_values[key] != class_values[key]
    ]
    if wrong:
        raise NoEquivalent(f"no equivalent in HuggingFace's {theirs.name}: {', '.join(wrong)}")
    return theirs, experts


_MIXTRAL_VALUES: dict[str, Any] = {
    "norm": "rmsnorm", "positions": "rope", "activation": "swiglu", "hidden_dropout": 0, "bias": False,
    "shared": 0, "first_layer": 0, "every": 1, "capacity_factor": None, "scores": "softmax", "normalised": True,
    "scale": 1.0, "groups": None, "bias_rate": 0,
}  # fmt: skip


def _value(model: Model, experts: Experts, key: str) -> Any:
    owner = next(part for part in (model, experts, experts.router) if key in type(part).model_fields)
    return getattr(owner, key)

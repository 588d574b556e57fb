"""A dense model with rotary positions under HuggingFace's names.

Its class follows from its parts and not from its family. The classes share one layout of parameters and differ in their
constants. tests/models/test_torch_huggingface.py checks the mapping by logits, loss and gradients.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from levelfield.errors import UsageError
from levelfield.specs.architecture import Model, RopeScaling
from levelfield.specs.base import LATER

Array = NDArray[np.float32]
Arrays = Mapping[str, Array]

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

    norm_offset: what its norms add to their weights.
    """

    name: str
    model_type: str
    takes: tuple[str, ...]
    constants: dict[str, Any]
    norm_offset: float = 0.0


_ALWAYS = ("head_dim", "rope_scaling")
_LLAMA = RotaryClass("LlamaForCausalLM", "llama", _ALWAYS, {"hidden_act": "silu"})
_MISTRAL = RotaryClass("MistralForCausalLM", "mistral", (*_ALWAYS, "sliding_window"), {"hidden_act": "silu"})
_QWEN2 = RotaryClass("Qwen2ForCausalLM", "qwen2", (*_ALWAYS, "qkv_bias"), {"hidden_act": "silu"})
_QWEN3 = RotaryClass("Qwen3ForCausalLM", "qwen3", (*_ALWAYS, "query_key_norm"), {"hidden_act": "silu"})
_GEMMA = RotaryClass(
    "GemmaForCausalLM", "gemma", (*_ALWAYS, "embedding_scale"), {"hidden_act": "gelu_pytorch_tanh"}, norm_offset=1.0
)


def rotary_config(model: Model, sequence_length: int) -> dict[str, Any]:
    """Return the config.json of the class that the model's parts choose. Raises UsageError when it does not fit."""
    theirs = _class_of(model)
    own: dict[str, Any] = {"mlp_bias": model.bias} if theirs is _LLAMA else {}
    own |= {"sliding_window": model.sliding_window} if theirs is _MISTRAL else {}
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
        **own,
    }


def rotary_arrays(model: Model, arrays: Arrays) -> dict[str, Array]:
    """Return canonical arrays under the names of their files. Raises UsageError as `rotary_config` does."""
    offset = _class_of(model).norm_offset
    named = {
        "model.embed_tokens.weight": arrays["embedding.weight"],
        "model.norm.weight": arrays["final_norm.weight"] - np.float32(offset),
    }
    for layer in range(model.layers):
        ours, theirs = f"layers.{layer}", f"model.layers.{layer}"
        for name, their_name in {**_NORMS, **(_HEAD_NORMS if model.query_key_norm else {})}.items():
            named[f"{theirs}.{their_name}.weight"] = arrays[f"{ours}.{name}.weight"] - np.float32(offset)
        for name, their_name in {**_ATTENTION, **_MLP}.items():
            for part in ("weight", "bias") if f"{ours}.{name}.bias" in arrays else ("weight",):
                named[f"{theirs}.{their_name}.{part}"] = arrays[f"{ours}.{name}.{part}"]
    return named if model.tied_embeddings else {**named, "lm_head.weight": arrays["head.weight"]}


def refuse_others(model: Model, name: str, wanted: dict[str, Any], takes: tuple[str, ...] = ()) -> None:
    """Raises UsageError with every field of the model that the class `name` has otherwise.

    wanted: the values that it has. takes: the later parts that it can have.
    """
    later = {key: f.default for key, f in Model.model_fields.items() if f.json_schema_extra == LATER}
    wanted = {**{key: value for key, value in later.items() if key not in takes}, **wanted}
    found = {key: getattr(model, key) for key in wanted}
    wrong = [f"{key} {found[key]!r} (it has {wanted[key]!r})" for key in wanted if not _same(found[key], wanted[key])]
    if wrong:
        raise UsageError(f"no equivalent in HuggingFace's {name}: {', '.join(wrong)}")


def _class_of(model: Model) -> RotaryClass:
    chosen = (
        (_MISTRAL, model.sliding_window is not None),
        (_GEMMA, model.activation == "geglu_tanh" or model.embedding_scale is not None),
        (_QWEN3, model.query_key_norm),
        (_QWEN2, model.qkv_bias),
    )
    theirs = next((each for each, has in chosen if has), _LLAMA)
    wanted: dict[str, Any] = {"norm": "rmsnorm", "positions": "rope", "activation": "swiglu", "hidden_dropout": 0}
    wanted |= {} if theirs is _LLAMA else {"bias": False}
    if theirs is _GEMMA:
        wanted |= {"activation": "geglu_tanh", "embedding_scale": math.sqrt(model.hidden_size)}
    refuse_others(model, theirs.name, wanted, theirs.takes)
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
    given = {theirs: getattr(scaling, ours) for ours, theirs in names.items() if getattr(scaling, ours) is not None}
    return {"rope_type": scaling.kind, **given}


def _same(found: Any, wanted: Any) -> bool:
    if isinstance(found, float) and isinstance(wanted, float):
        return math.isclose(found, wanted, rel_tol=1e-6)
    return bool(found == wanted)

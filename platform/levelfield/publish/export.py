"""Initial weights in other formats: the platform's canonical parameters under HuggingFace's names.

The mapping is checked by logits: tests/models/test_torch_huggingface.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from levelfield.errors import UsageError
from levelfield.publish.mixture_export import mixture_arrays, mixture_config
from levelfield.specs.base import LATER
from levelfield.specs.case import Model, Work
from levelfield.worker import Initializer
from levelfield.worker.job import namespace

Array = NDArray[np.float32]
Arrays = Mapping[str, Array]

_GPT_ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh"}
_LLAMA_LINEAR = {
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
}


def export_hf(work: Work, output: Path) -> list[Path]:
    """Write the initial weights of `work` as `config.json` and `model.safetensors`, which from_pretrained reads.

    Needs memory for all parameters in float32. Raises UsageError when the architecture has no equivalent.
    """
    config = hf_config(work.model, work.training.sequence_length)
    arrays = to_hf(work.model, initial_arrays(work))
    output.mkdir(parents=True, exist_ok=True)
    paths = [output / "config.json", output / "model.safetensors"]
    paths[0].write_text(json.dumps(config, indent=2) + "\n")
    save_file(dict(arrays), paths[1], metadata={"format": "pt"})
    return paths


def initial_arrays(work: Work) -> dict[str, Array]:
    """Return the whole initial value of every parameter by canonical name, as float32."""
    job = namespace({"model": work.model.model_dump(), "training": work.training.model_dump()})
    initializer = Initializer(job)
    return {name: initializer.array(name, spec.shape) for name, spec in initializer.parameters(job.model).items()}


def hf_config(model: Model, sequence_length: int) -> dict[str, Any]:
    """Return the config.json of HuggingFace's class for the model. Raises UsageError when there is none."""
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
    return {**shared, **(_gpt_config if model.family == "gpt" else _llama_config)(model, sequence_length)}


def to_hf(model: Model, arrays: Arrays) -> dict[str, Array]:
    """Return canonical arrays under HuggingFace's names and layouts. Raises UsageError as `hf_config` does."""
    _check_equivalent(model)
    if model.experts is not None:
        return {name: np.ascontiguousarray(array) for name, array in mixture_arrays(model, arrays).items()}
    named = _gpt_arrays(model, arrays) if model.family == "gpt" else _llama_arrays(model, arrays)
    return {name: np.ascontiguousarray(array) for name, array in named.items()}


def _check_equivalent(model: Model) -> None:
    if model.experts is not None:
        return  # mixture_export.py checks its own
    wanted: dict[str, Any] = {"norm": "rmsnorm", "positions": "rope", "activation": "swiglu", "hidden_dropout": 0}
    if model.family == "gpt":
        wanted = {"norm": "layernorm", "positions": "learned", "bias": True, "kv_heads": model.heads}
        wanted["activation"] = model.activation if model.activation in _GPT_ACTIVATIONS else "gelu"
    wanted |= {name: f.default for name, f in Model.model_fields.items() if f.json_schema_extra == LATER}
    found = {key: getattr(model, key) for key in wanted}
    wrong = [f"{key} {found[key]!r} (it has {wanted[key]!r})" for key in wanted if found[key] != wanted[key]]
    if wrong:
        name = "GPT2LMHeadModel" if model.family == "gpt" else "LlamaForCausalLM"
        raise UsageError(f"no equivalent in HuggingFace's {name}: {', '.join(wrong)}")


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


def _llama_config(model: Model, sequence_length: int) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "max_position_embeddings": sequence_length,
        "hidden_size": model.hidden_size,
        "intermediate_size": model.ffn_hidden_size,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_size,
        "hidden_act": "silu",
        "rms_norm_eps": model.norm_eps,
        "rope_theta": model.rope_base,
        "rope_parameters": {"rope_type": "default", "rope_theta": model.rope_base},
        "attention_bias": model.bias,
        "mlp_bias": model.bias,
    }


def _gpt_arrays(model: Model, arrays: Arrays) -> dict[str, Array]:
    named = {
        "transformer.wte.weight": arrays["embedding.weight"],
        "transformer.wpe.weight": arrays["position.weight"],
        "transformer.ln_f.weight": arrays["final_norm.weight"],
        "transformer.ln_f.bias": arrays["final_norm.bias"],
    }
    for layer in range(model.layers):
        named.update(_gpt_layer(arrays, f"layers.{layer}", f"transformer.h.{layer}"))
    return named if model.tied_embeddings else {**named, "lm_head.weight": arrays["head.weight"]}


def _gpt_layer(arrays: Arrays, ours: str, theirs: str) -> dict[str, Array]:
    """Return one GPT-2 layer. Its matrices are Conv1D, [in, out]; one of them holds query, key and value."""
    named = {}
    for part in ("weight", "bias"):
        fused = [arrays[f"{ours}.attention.{name}.{part}"] for name in ("query", "key", "value")]
        named[f"{theirs}.ln_1.{part}"] = arrays[f"{ours}.attention_norm.{part}"]
        named[f"{theirs}.ln_2.{part}"] = arrays[f"{ours}.mlp_norm.{part}"]
        named[f"{theirs}.attn.c_attn.{part}"] = np.concatenate(fused).T
        named[f"{theirs}.attn.c_proj.{part}"] = arrays[f"{ours}.attention.output.{part}"].T
        named[f"{theirs}.mlp.c_fc.{part}"] = arrays[f"{ours}.mlp.up.{part}"].T
        named[f"{theirs}.mlp.c_proj.{part}"] = arrays[f"{ours}.mlp.down.{part}"].T
    return named


def _llama_arrays(model: Model, arrays: Arrays) -> dict[str, Array]:
    named = {
        "model.embed_tokens.weight": arrays["embedding.weight"],
        "model.norm.weight": arrays["final_norm.weight"],
    }
    for layer in range(model.layers):
        ours, theirs = f"layers.{layer}", f"model.layers.{layer}"
        named[f"{theirs}.input_layernorm.weight"] = arrays[f"{ours}.attention_norm.weight"]
        named[f"{theirs}.post_attention_layernorm.weight"] = arrays[f"{ours}.mlp_norm.weight"]
        for name, their_name in _LLAMA_LINEAR.items():
            for part in ("weight", "bias") if model.bias else ("weight",):
                named[f"{theirs}.{their_name}.{part}"] = arrays[f"{ours}.{name}.{part}"]
    return named if model.tied_embeddings else {**named, "lm_head.weight": arrays["head.weight"]}

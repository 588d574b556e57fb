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
from safetensors import SafetensorError
from safetensors.numpy import save_file

from levelfield.errors import UsageError
from levelfield.publish.mixture_export import mixture_arrays, mixture_config
from levelfield.publish.rotary_export import refuse_others, rotary_arrays, rotary_config
from levelfield.specs.architecture import Model
from levelfield.specs.case import Work
from levelfield.worker import Initializer
from levelfield.worker.job import namespace

Array = NDArray[np.float32]
Arrays = Mapping[str, Array]

_GPT_ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh"}


def export_hf(work: Work, output: Path, replace: bool = False) -> list[Path]:
    """Write the initial weights of `work` as `config.json` and `model.safetensors`, which from_pretrained reads.

    Needs memory for all parameters in float32. Raises UsageError when the architecture has no equivalent, and for a
    folder that holds anything, unless `replace`: trained weights have the same names.
    """
    _refuse_full(output, replace)
    config = hf_config(work.model, work.training.sequence_length)
    arrays = to_hf(work.model, initial_arrays(work))
    paths = [output / "config.json", output / "model.safetensors"]
    try:
        output.mkdir(parents=True, exist_ok=True)
        save_file(dict(arrays), paths[1], metadata={"format": "pt"})
        paths[0].write_text(json.dumps(config, indent=2) + "\n")
    except (OSError, SafetensorError) as error:
        for path in paths:  # a half of it would block the next try
            path.unlink(missing_ok=True)
        raise UsageError(f"--output {output}: cannot be written: {getattr(error, 'strerror', error)}") from None
    return paths


def _refuse_full(output: Path, replace: bool) -> None:
    if output.exists() and not output.is_dir():
        raise UsageError(f"--output {output}: found a file, expected a folder or nothing")
    if not replace and output.is_dir() and (found := sorted(path.name for path in output.iterdir())):
        raise UsageError(
            f"--output {output}: found {', '.join(found[:3])}{' and more' if found[3:] else ''}, expected an empty "
            "folder or none. Name another one, or replace what is there with --force"
        )


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
    return {**shared, **(_gpt_config if _is_gpt(model) else rotary_config)(model, sequence_length)}


def to_hf(model: Model, arrays: Arrays) -> dict[str, Array]:
    """Return canonical arrays under HuggingFace's names and layouts. Raises UsageError as `hf_config` does."""
    _check_equivalent(model)
    if model.experts is not None:
        return {name: np.ascontiguousarray(array) for name, array in mixture_arrays(model, arrays).items()}
    named = (_gpt_arrays if _is_gpt(model) else rotary_arrays)(model, arrays)
    return {name: np.ascontiguousarray(array) for name, array in named.items()}


def _check_equivalent(model: Model) -> None:
    """Raises UsageError with every part that the class of a GPT has not; the other modules check their own."""
    if _is_gpt(model):
        activation = model.activation if model.activation in _GPT_ACTIVATIONS else "gelu"
        wanted = {"norm": "layernorm", "bias": True, "kv_heads": model.heads, "activation": activation}
        refuse_others(model, "GPT2LMHeadModel", wanted)


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

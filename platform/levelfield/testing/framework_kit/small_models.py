"""The small models that every framework trains in its tests: one for each family of the support table."""

from __future__ import annotations

from typing import Any

MODELS: dict[str, dict[str, Any]] = {
    "gpt": {
        "family": "gpt", "layers": 4, "hidden_size": 32, "ffn_hidden_size": 128, "heads": 4, "kv_heads": 4,
        "vocab_size": 128, "positions": "learned", "rope_base": None, "norm": "layernorm", "norm_eps": 1e-5,
        "activation": "gelu_tanh", "bias": True, "tied_embeddings": True, "hidden_dropout": 0.0,
        "attention_dropout": 0.0, "init_std": 0.02, "scaled_residual_init": True,
    },
    "llama": {
        "family": "llama", "layers": 4, "hidden_size": 32, "ffn_hidden_size": 96, "heads": 4, "kv_heads": 2,
        "vocab_size": 128, "positions": "rope", "rope_base": 10000.0, "norm": "rmsnorm", "norm_eps": 1e-5,
        "activation": "swiglu", "bias": False, "tied_embeddings": False, "hidden_dropout": 0.0,
        "attention_dropout": 0.0, "init_std": 0.02, "scaled_residual_init": True,
    },
    "qwen": {
        "family": "qwen", "layers": 4, "hidden_size": 32, "ffn_hidden_size": 96, "heads": 4, "kv_heads": 2,
        "vocab_size": 128, "positions": "rope", "rope_base": 10000.0, "norm": "rmsnorm", "norm_eps": 1e-6,
        "activation": "swiglu", "bias": False, "tied_embeddings": False, "hidden_dropout": 0.0,
        "attention_dropout": 0.0, "init_std": 0.02, "scaled_residual_init": True,
        "head_dim": 12, "qkv_bias": True, "query_key_norm": True,
        "rope_scaling": {"kind": "llama3", "factor": 4.0, "original_length": 16, "low_factor": 1.0,
                         "high_factor": 4.0, "beta_fast": None, "beta_slow": None, "magnitude": None},
    },
}  # fmt: skip
MODELS["mixture"] = {
    **MODELS["llama"],
    "family": "mixture",
    "query_key_norm": True,
    "experts": {
        "count": 4, "chosen": 2, "ffn_hidden_size": 48, "shared": 1, "first_layer": 1, "every": 1,
        "router": {"scores": "softmax", "normalised": True, "scale": 1.0, "groups": None, "auxiliary_loss": 0.01,
                   "z_loss": 0.0, "bias_rate": 0.0},
        "capacity_factor": None,
    },
}  # fmt: skip
EVERYWHERE = ("gpt", "llama")  # what every framework trains


def with_large_weights(model: dict[str, Any]) -> dict[str, Any]:
    """Return the model with weights five times as large, whose activations reach where functions bend.

    With small weights every activation is nearly a line, and a wrong constant in it changes no digit that is compared.
    """
    return {**model, "init_std": 0.1}


def with_large_vocabulary(model: dict[str, Any]) -> dict[str, Any]:
    """Return one layer of the model with an embedding of a million elements.

    Sums in float32 over so many are wrong in the fourth or fifth digit where they are made one by one.
    """
    return {**model, "layers": 1, "vocab_size": 32768}

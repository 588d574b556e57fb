"""How the config.json of each mixture of experts is read: one declaration for each."""

from __future__ import annotations

from levelfield.testing.config_keys import NUMBER_TYPES, ConfigKeys, Fields
from levelfield.testing.config_rotary import (
    GATED_ACTIVATIONS,
    PUBLISHED_CODE,
    ROTARY_DEFAULTS,
    ROTARY_DEFAULTS_WITH_ALL_HEADS,
    ROTARY_DEFAULTS_WITHOUT_HEAD_DIM,
    SWITCHED_WINDOW_DEFAULTS,
    ConfigForm,
    read_rotary,
    read_switched_window,
    read_unbiased,
    take_activation,
)

_BIAS_RATE = 0.001


def _read_mixtral(keys: ConfigKeys) -> Fields:
    keys.require("router_jitter_noise", (0.0, 0), "a case's router has no noise")
    fields, chosen = read_unbiased(keys, has_window=True), keys.take("num_experts_per_tok", int)
    experts = {
        "count": keys.take("num_local_experts", int),
        "chosen": chosen,
        "ffn_hidden_size": fields["ffn_hidden_size"],
        "router": {"auxiliary_loss": _balancing_loss(keys, chosen, fields["layers"])},
    }
    return {**fields, "experts": experts}


def _read_qwen3_moe(keys: ConfigKeys) -> Fields:
    fields = read_switched_window(keys, is_mixture=True)
    chosen, step = keys.take("num_experts_per_tok", int), keys.take("decoder_sparse_step", int)
    dense = keys.take("mlp_only_layers", list) or []
    first = (step or 1) - 1
    if dense:
        first = len(dense)
        if sorted(dense, key=str) != list(range(first)) or step != 1:
            keys.add_problem(
                "mlp_only_layers", f"found {dense}: a case's layers without experts come first, or at equal steps"
            )
    experts = {
        # transformers 5 writes the newer name
        "count": keys.take("num_local_experts" if "num_local_experts" in keys.content else "num_experts", int),
        "chosen": chosen,
        "ffn_hidden_size": keys.take("moe_intermediate_size", int),
        "first_layer": first,
        "every": step,
        "router": {
            "normalised": keys.take("norm_topk_prob", bool),
            "auxiliary_loss": _balancing_loss(keys, chosen, fields["layers"]),
        },
    }
    return {**fields, "query_key_norm": True, "experts": experts}


def _read_qwen2_moe(keys: ConfigKeys) -> Fields:
    keys.require("qkv_bias", (True,), "transformers 4's qwen2_moe has biases of queries, keys and values")
    fields = _read_qwen3_moe(keys)
    shared, width = keys.take("shared_expert_intermediate_size", int), fields["experts"]["ffn_hidden_size"]
    if shared and width and shared % width:
        keys.add_problem(
            "shared_expert_intermediate_size", f"found {shared}, expected a multiple of moe_intermediate_size {width}"
        )
    experts = {**fields["experts"], "shared": (shared or 0) // (width or 1), "shared_gate": True}
    return {**fields, "query_key_norm": False, "qkv_bias": True, "experts": experts}


def _read_glm4_moe(keys: ConfigKeys) -> Fields:
    groups, chosen_groups = keys.take("n_group", int), keys.take("topk_group", int)
    has_bias, has_norm = keys.take("attention_bias", bool), keys.take("use_qk_norm", bool)
    if extra := keys.take("num_nextn_predict_layers", (int, type(None))):
        keys.remarks.append(f"num_nextn_predict_layers {extra} is left out: these layers predict further tokens")
    router = {
        "normalised": keys.take("norm_topk_prob", bool),
        "scale": keys.take("routed_scaling_factor", NUMBER_TYPES),
        "groups": {"count": groups, "chosen": chosen_groups} if (groups or 1) > 1 else None,
    }
    experts = {
        "count": keys.take("n_routed_experts", int),
        "chosen": keys.take("num_experts_per_tok", int),
        "ffn_hidden_size": keys.take("moe_intermediate_size", int),
        "shared": keys.take("n_shared_experts", int),
        "first_layer": keys.take("first_k_dense_replace", int),
        "router": {**_biased_router(keys), **router},
    }
    activation = take_activation(keys, "hidden_act", GATED_ACTIVATIONS)
    return {
        **read_rotary(keys),
        "activation": activation,
        "qkv_bias": bool(has_bias),
        "query_key_norm": bool(has_norm),
        "experts": experts,
    }


def _read_minimax_m2(keys: ConfigKeys) -> Fields:
    keys.require("use_qk_norm", (True,), "transformers' minimax_m2 has norms of queries and keys")
    keys.require("scoring_func", ("sigmoid",), "transformers' minimax_m2 has sigmoid scores")
    keys.require("use_routing_bias", (True,), "transformers' minimax_m2 has a selection bias")
    keys.require("router_jitter_noise", (0.0, 0), "a case's router has no noise")
    fields = read_unbiased(keys)
    experts = {
        "count": keys.take("num_local_experts", int),
        "chosen": keys.take("num_experts_per_tok", int),
        "ffn_hidden_size": fields["ffn_hidden_size"],
        "router": _biased_router(keys),
    }
    return {**fields, "joint_query_key_norm": True, "experts": experts}


def _biased_router(keys: ConfigKeys) -> Fields:
    keys.remarks.append(f"config.json has no rate of the router's selection bias, so {_BIAS_RATE}, DeepSeek-V3's")
    return {"scores": "sigmoid", "bias_rate": _BIAS_RATE}


def _read_deepseek(keys: ConfigKeys) -> Fields:
    """DeepSeekMoE, whose code is published beside its weights."""
    keys.require("scoring_func", ("softmax",), "a case's router with other scores has a selection bias")
    keys.require("seq_aux", (True,), "a case's balancing loss is that of each sequence")
    experts = {
        "count": keys.take("n_routed_experts", int),
        "chosen": keys.take("num_experts_per_tok", int),
        "ffn_hidden_size": keys.take("moe_intermediate_size", int),
        "shared": keys.take("n_shared_experts", (int, type(None))) or 0,
        "first_layer": keys.take("first_k_dense_replace", int),
        "every": keys.take("moe_layer_freq", int),
        "router": {
            "normalised": keys.take("norm_topk_prob", bool),
            "auxiliary_loss": keys.take("aux_loss_alpha", NUMBER_TYPES),
        },
    }
    return {**read_unbiased(keys), "experts": experts}


def _balancing_loss(keys: ConfigKeys, chosen: int | None, layers: int | None) -> float:
    """Return the coefficient of a case's balancing loss, which is of a sequence and of a layer (writing-a-case.md)."""
    coefficient = keys.take("router_aux_loss_coef", NUMBER_TYPES)
    converted = float(f"{(coefficient or 0) * (chosen or 1) / (layers or 1):.6g}")
    keys.remarks.append(
        f"router_aux_loss_coef {coefficient} x {chosen} experts / {layers} layers is auxiliary_loss {converted:g}"
    )
    return converted


MIXTURE_FORMS = {
    "mixtral": ConfigForm(_read_mixtral, {**ROTARY_DEFAULTS, "rope_theta": 1e6}),
    "qwen3_moe": ConfigForm(
        _read_qwen3_moe,
        {
            **ROTARY_DEFAULTS_WITHOUT_HEAD_DIM,
            **SWITCHED_WINDOW_DEFAULTS,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        },
    ),
    "qwen2_moe": ConfigForm(
        _read_qwen2_moe,
        {
            **{**ROTARY_DEFAULTS, **SWITCHED_WINDOW_DEFAULTS, "decoder_sparse_step": 1, "mlp_only_layers": []},
            **{"norm_topk_prob": False, "router_aux_loss_coef": 0.001},
        },
    ),
    "glm4_moe": ConfigForm(
        _read_glm4_moe,
        {
            **{**ROTARY_DEFAULTS_WITHOUT_HEAD_DIM, "partial_rotary_factor": 0.5, "num_nextn_predict_layers": None},
            **{"n_group": 1, "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 1.0},
            **{"first_k_dense_replace": 1, "n_shared_experts": 1, "use_qk_norm": False},
        },
    ),
    "minimax_m2": ConfigForm(
        _read_minimax_m2,
        {**ROTARY_DEFAULTS_WITHOUT_HEAD_DIM, "rotary_dim": None, "max_position_embeddings": 196608},
        class_name="MiniMaxM2ForCausalLM",
    ),
    "deepseek": ConfigForm(
        _read_deepseek,
        {
            **{**ROTARY_DEFAULTS_WITH_ALL_HEADS, "aux_loss_alpha": 0.001, "first_k_dense_replace": 0},
            **{"moe_layer_freq": 1, "norm_topk_prob": False, "n_shared_experts": None},
        },
        idle_keys=PUBLISHED_CODE,
    ),
}

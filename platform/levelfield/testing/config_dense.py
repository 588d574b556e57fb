"""How the config.json of each dense model_type is read: one declaration for each."""

from __future__ import annotations

import math
from functools import partial

from levelfield.testing.config_keys import NUMBER_TYPES, ConfigKeys, Fields, short_json
from levelfield.testing.config_rotary import (
    FULL,
    LAYER_NORM_EPS,
    NEIGHBOURS,
    PLAIN_ACTIVATIONS,
    PUBLISHED_CODE,
    ROTARY_DEFAULTS,
    ROTARY_DEFAULTS_WITH_ALL_HEADS,
    ROTARY_DEFAULTS_WITHOUT_HEAD_DIM,
    SWITCHED_WINDOW_DEFAULTS,
    ConfigForm,
    full_interval,
    read_llama,
    read_rotary,
    read_switched_window,
    read_unbiased,
    take_activation,
    take_multiplier,
)

_GEMMA_DEFAULTS = {"hidden_act": "gelu_pytorch_tanh", "hidden_activation": None, "tie_word_embeddings": True}
_GPT2_DEFAULTS = {
    "architectures": None,
    "n_inner": None,
    "embd_pdrop": 0.1,
    "tie_word_embeddings": True,
    "initializer_range": 0.02,
    "activation_function": "gelu_new",
}
_COHERE_DEFAULTS = {**ROTARY_DEFAULTS_WITH_ALL_HEADS, "tie_word_embeddings": True, "logit_scale": 0.0625}
_CHATGLM_SETTINGS = {
    **{"add_bias_linear": False, "apply_residual_connection_post_layernorm": False, "original_rope": True},
    **{"post_layer_norm": True, "rmsnorm": True, "fp32_residual_connection": False},
}


def _read_gpt2(keys: ConfigKeys) -> Fields:
    hidden, heads, inner = keys.take("n_embd", int), keys.take("n_head", int), keys.take("n_inner", (int, type(None)))
    dropout = keys.take("resid_pdrop", NUMBER_TYPES)
    keys.require(
        "embd_pdrop", (dropout,), f"a case has one rate for embeddings and residuals, and resid_pdrop is {dropout}"
    )
    for key, value in (("scale_attn_weights", True), ("scale_attn_by_inverse_layer_idx", False)):
        keys.require(key, (value,), "a case divides attention's scores by the root of the head size, in every layer")
    attention = keys.take("attn_pdrop", NUMBER_TYPES)
    keys.require("attention_dropout", (attention,), f"attn_pdrop is {attention}")
    keys.require("reorder_and_upcast_attn", (False,), "a case does not order attention's operations")
    keys.require("add_cross_attention", (False,), "a case has no attention to another sequence")
    return {
        "layers": keys.take("n_layer", int),
        "hidden_size": hidden,
        "ffn_hidden_size": inner or 4 * (hidden or 0),
        "heads": heads,
        "kv_heads": heads,
        "vocab_size": keys.take("vocab_size", int),
        "positions": "learned",
        "norm": "layernorm",
        "norm_eps": keys.take("layer_norm_epsilon", NUMBER_TYPES),
        "activation": take_activation(keys, "activation_function", PLAIN_ACTIVATIONS),
        "bias": True,
        "tied_embeddings": keys.take("tie_word_embeddings", bool),
        "hidden_dropout": dropout,
        "attention_dropout": attention,
        "init_std": keys.take("initializer_range", NUMBER_TYPES),
        "scaled_residual_init": True,  # transformers scales `c_proj` so
    }


def _read_gemma(keys: ConfigKeys) -> Fields:
    activation = keys.take("hidden_activation", (str, type(None)))
    older = keys.take("hidden_act", str)
    if activation not in (None, "gelu_pytorch_tanh") or older not in ("gelu", "gelu_pytorch_tanh"):
        key = "hidden_act" if activation in (None, "gelu_pytorch_tanh") else "hidden_activation"
        keys.add_problem(key, f"found {activation!r} and hidden_act {older!r}, expected gelu_pytorch_tanh")
    if older == "gelu":
        keys.remarks.append("hidden_act gelu is read as gelu_pytorch_tanh, as transformers does for Gemma")
    keys.require("attention_bias", (False,), "a case has biases of queries, keys and values alone, or of all matrices")
    fields = read_rotary(keys)
    return {**fields, "activation": "geglu_tanh", "embedding_scale": math.sqrt(max(fields["hidden_size"] or 1, 1))}


def _read_phi3(keys: ConfigKeys) -> Fields:
    keys.require("resid_pdrop", (0.0, 0), "a case has one rate for embeddings and residuals, which is 0 here")
    keys.require("embd_pdrop", (0.0, 0), "a case has one rate for embeddings and residuals, which is 0 here")
    return read_unbiased(keys, has_window=True)


def _read_olmo2(keys: ConfigKeys) -> Fields:
    return {**read_unbiased(keys), "norm_place": "after", "joint_query_key_norm": True}


def _read_olmo3(keys: ConfigKeys) -> Fields:
    return {**read_switched_window(keys), "norm_place": "after", "joint_query_key_norm": True}


def _read_smollm3(keys: ConfigKeys) -> Fields:
    keys.require("use_sliding_window", (False,), "a case has no window of the layers without rotary positions alone")
    keys.require("sliding_window", (None,), "use_sliding_window is false")
    fields = read_llama(keys)
    interval, rotated = keys.take("no_rope_layer_interval", int), keys.take("no_rope_layers", (list, type(None)))
    if rotated is not None:
        interval = rotated.index(0) + 1 if 0 in rotated else len(rotated) + 1
    types = keys.take("layer_types", (list, type(None))) or []
    if set(map(str, types)) - {FULL}:
        keys.add_problem("layer_types", "found a kind other than full_attention, and use_sliding_window is false")
    if rotated is not None:
        expected = [int((layer + 1) % interval > 0) for layer in range(len(rotated))]
        if rotated != expected or len(rotated) != fields["layers"]:
            keys.add_problem("no_rope_layers", "found no rotation in layers at unequal steps, or not one entry a layer")
    has_plain_layers = bool(interval) and interval <= (fields["layers"] or 0)
    return {**fields, "no_rope_interval": interval if has_plain_layers else None}


def _read_cohere(keys: ConfigKeys) -> Fields:
    keys.require("use_qk_norm", (False,), "a case's norm of queries and keys is an RMSNorm of each head, or of all")
    keys.remarks.append(NEIGHBOURS)
    return {
        **read_unbiased(keys),
        "norm": "layernorm",
        "norm_bias": False,
        "parallel_residual": "one_norm",
        "logit_scale": take_multiplier(keys, "logit_scale"),
    }


def _read_cohere2(keys: ConfigKeys) -> Fields:
    """Command R7B: layers with a window are rotated, the others are not."""
    pattern = keys.take("sliding_window_pattern", int)
    window, types = keys.take("sliding_window", int), keys.take("layer_types", (list, type(None)))
    interval = full_interval(types) if types else pattern
    if interval is None:
        keys.add_problem("layer_types", "found no full_attention in each n-th layer alone")
    keys.require("order_of_interleaved_layers", ("local_attn_first",), "a case's layers with a window come first")
    keys.require("rotary_pct", (1.0, 1), "a case's layers with a window rotate whole heads")
    keys.require("use_parallel_block", (True,), "transformers' cohere2 has attention and MLP side by side")
    return {
        **_read_cohere(keys),
        "sliding_window": window,
        "full_attention_interval": interval,
        "no_rope_interval": interval,
    }


def _read_stablelm(keys: ConfigKeys) -> Fields:
    keys.require("qk_layernorm", (False,), "a case's norm of queries and keys is an RMSNorm")
    keys.require("hidden_dropout", (0.0, 0), "a case has one rate for embeddings and residuals, which is 0 here")
    is_parallel = keys.take("use_parallel_residual", bool)
    return {
        **read_unbiased(keys),
        "norm": "layernorm",
        "qkv_bias": bool(keys.take("use_qkv_bias", bool)),
        "parallel_residual": "one_norm" if is_parallel else None,
    }


def _read_internlm(keys: ConfigKeys) -> Fields:
    """InternLM's first release, whose code is published beside its weights."""
    fields, bias = read_unbiased(keys), keys.take("bias", bool)
    return {**fields, "attention_bias": bool(bias)}


def _read_chatglm(keys: ConfigKeys) -> Fields:
    """ChatGLM2 and 3, whose code is published beside their weights. They rotate a half of each head."""
    for key, value in _CHATGLM_SETTINGS.items():
        keys.require(key, (value,), f"the code beside chatglm's weights has {short_json(value)}")
    keys.require("hidden_dropout", (0.0, 0), "a case has one rate for embeddings and residuals, which is 0 here")
    groups, has_groups = keys.take("multi_query_group_num", int), keys.take("multi_query_attention", bool)
    ratio = keys.take("rope_ratio", NUMBER_TYPES)
    keys.remarks.append(NEIGHBOURS)
    fields = read_rotary(keys)
    return {
        **fields,
        "kv_heads": groups if has_groups else fields["heads"],
        "rope_base": 10000.0 * (ratio or 1),
        "activation": "swiglu",
        "qkv_bias": bool(keys.take("add_qkv_bias", bool)),
    }


def _read_falcon(keys: ConfigKeys) -> Fields:
    keys.require("alibi", (False,), "a case has no ALiBi")
    keys.require("bias", (False,), "a case's biases are of all matrices, and falcon's head has none")
    keys.require("hidden_dropout", (0.0, 0), "a case has one rate for embeddings and residuals, which is 0 here")
    keys.require("parallel_attn", (True,), "a case reads falcon with attention and MLP side by side")
    fields, is_newer = read_rotary(keys), keys.take("new_decoder_architecture", bool)
    has_one_key, norms = keys.take("multi_query", bool), keys.take("num_ln_in_parallel_attn", (int, type(None)))
    return {
        **fields,
        "ffn_hidden_size": fields["ffn_hidden_size"] or 4 * (fields["hidden_size"] or 0),
        "kv_heads": fields["kv_heads"] if is_newer else 1 if has_one_key else fields["heads"],
        "norm": "layernorm",
        "activation": take_activation(keys, "hidden_act", PLAIN_ACTIVATIONS),
        "parallel_residual": "two_norms" if is_newer and norms in (None, 2) else "one_norm",
    }


def _read_granite(keys: ConfigKeys) -> Fields:
    return {
        **read_llama(keys),
        "embedding_scale": take_multiplier(keys, "embedding_multiplier"),
        "residual_scale": take_multiplier(keys, "residual_multiplier"),
        "logit_scale": _inverse(take_multiplier(keys, "logits_scaling")),
        "attention_scale": keys.take("attention_multiplier", NUMBER_TYPES),
    }


def _inverse(value: float | None) -> float | None:
    return 1 / value if value else value


def _read_minicpm(keys: ConfigKeys) -> Fields:
    """MiniCPM, whose code is published beside its weights."""
    fields = read_unbiased(keys)
    depth, base = keys.take("scale_depth", NUMBER_TYPES), keys.take("dim_model_base", int)
    return {
        **fields,
        "embedding_scale": take_multiplier(keys, "scale_emb"),
        "residual_scale": (depth or 0) / math.sqrt(max(fields["layers"] or 1, 1)),
        "logit_scale": (base or 0) / max(fields["hidden_size"] or 1, 1),
    }


def _read_orion(keys: ConfigKeys) -> Fields:
    return {**read_unbiased(keys), "norm": "layernorm"}


def _read_qwen(keys: ConfigKeys) -> Fields:
    """Qwen's first release: biases of queries, keys and values, and an intermediate_size of both products together."""
    keys.require("no_bias", (True,), "a case has biases of queries, keys and values alone, or of all matrices")
    keys.require("rotary_pct", (1.0, 1), "a case rotates whole heads")
    keys.require("scale_attn_weights", (True,), "a case divides attention's scores by the root of the head size")
    keys.require("emb_dropout_prob", (0.0, 0), "a case has one rate for embeddings and residuals, which is 0 here")
    fields = read_unbiased(keys)
    both = fields["ffn_hidden_size"]
    keys.remarks.append(f"intermediate_size {both} is of the gate and its product together")
    return {**fields, "ffn_hidden_size": both and both // 2, "qkv_bias": True}


def _read_gpt_neox(keys: ConfigKeys) -> Fields:
    is_parallel = keys.take("use_parallel_residual", bool)
    keys.require("attention_bias", (True,), "a case has biases of queries, keys and values alone, or of all matrices")
    return {
        **read_rotary(keys),
        "parallel_residual": "two_norms" if is_parallel else None,
        "norm": "layernorm",
        "bias": True,
        "activation": take_activation(keys, "hidden_act", PLAIN_ACTIVATIONS),
        "hidden_dropout": keys.take("hidden_dropout", NUMBER_TYPES),
    }


DENSE_FORMS = {
    "gpt2": ConfigForm(_read_gpt2, _GPT2_DEFAULTS, class_name="GPT2LMHeadModel"),
    "llama": ConfigForm(read_llama, {**ROTARY_DEFAULTS_WITH_ALL_HEADS, "mlp_bias": False}),
    "mistral": ConfigForm(partial(read_unbiased, has_window=True), ROTARY_DEFAULTS),
    "internlm2": ConfigForm(
        read_unbiased,
        ROTARY_DEFAULTS,
        {"attention_bias": "bias"},
        class_name="InternLM2ForCausalLM",
        idle_keys=PUBLISHED_CODE,
    ),
    "granite": ConfigForm(
        _read_granite,
        {
            **{**ROTARY_DEFAULTS_WITH_ALL_HEADS, "mlp_bias": False, "embedding_multiplier": 1.0},
            **{"residual_multiplier": 1.0, "logits_scaling": 1.0, "attention_multiplier": 1.0},
        },
    ),
    "minicpm": ConfigForm(
        _read_minicpm,
        {**ROTARY_DEFAULTS_WITH_ALL_HEADS, "scale_emb": 1, "scale_depth": 1, "dim_model_base": 1},
        class_name="MiniCPMForCausalLM",
        idle_keys=PUBLISHED_CODE,
    ),
    "olmo2": ConfigForm(_read_olmo2, ROTARY_DEFAULTS_WITH_ALL_HEADS),
    "olmo3": ConfigForm(
        _read_olmo3,
        {**ROTARY_DEFAULTS_WITH_ALL_HEADS, "use_sliding_window": True, "sliding_window": 4096, "layer_types": None},
    ),
    "smollm3": ConfigForm(
        _read_smollm3,
        {
            **{**ROTARY_DEFAULTS_WITH_ALL_HEADS, "mlp_bias": False, "no_rope_layer_interval": 4},
            **{"no_rope_layers": None, "layer_types": None, "tie_word_embeddings": True, "sliding_window": None},
        },
        class_name="SmolLM3ForCausalLM",
    ),
    "cohere": ConfigForm(_read_cohere, _COHERE_DEFAULTS, LAYER_NORM_EPS),
    "cohere2": ConfigForm(
        _read_cohere2,
        {**_COHERE_DEFAULTS, "sliding_window": 4096, "sliding_window_pattern": 4, "layer_types": None},
        LAYER_NORM_EPS,
    ),
    "stablelm": ConfigForm(
        _read_stablelm,
        {
            **{**ROTARY_DEFAULTS_WITH_ALL_HEADS, "partial_rotary_factor": 0.25, "use_qkv_bias": False},
            "use_parallel_residual": False,
        },
        LAYER_NORM_EPS,
        class_name="StableLmForCausalLM",
    ),
    "internlm": ConfigForm(
        _read_internlm,
        {**ROTARY_DEFAULTS_WITH_ALL_HEADS, "bias": True},
        class_name="InternLMForCausalLM",
        idle_keys=PUBLISHED_CODE,
    ),
    "chatglm": ConfigForm(
        _read_chatglm,
        {
            **{**ROTARY_DEFAULTS_WITH_ALL_HEADS, "partial_rotary_factor": 0.5, "rope_ratio": 1},
            **{"add_qkv_bias": False, "multi_query_attention": False, "multi_query_group_num": 1},
        },
        {
            **{"num_hidden_layers": "num_layers", "intermediate_size": "ffn_hidden_size", "head_dim": "kv_channels"},
            **{"vocab_size": "padded_vocab_size", "rms_norm_eps": "layernorm_epsilon"},
            "max_position_embeddings": "seq_length",
        },
        class_name="ChatGLMModel",
        # how it is computed
        idle_keys=PUBLISHED_CODE
        | {"apply_query_key_layer_scaling", "attention_softmax_in_fp32", "bias_dropout_fusion"},
    ),
    "falcon": ConfigForm(
        _read_falcon,
        {
            **{**ROTARY_DEFAULTS_WITH_ALL_HEADS, "tie_word_embeddings": True, "hidden_act": "gelu"},
            **{"ffn_hidden_size": None, "num_kv_heads": None, "new_decoder_architecture": False, "activation": "gelu"},
            **{"multi_query": True, "num_ln_in_parallel_attn": None, "max_position_embeddings": 2048},
        },
        {
            **{"rms_norm_eps": "layer_norm_epsilon", "intermediate_size": "ffn_hidden_size"},
            **{"num_key_value_heads": "num_kv_heads", "hidden_act": "activation"},
        },
        idle_keys=PUBLISHED_CODE,
    ),
    "orion": ConfigForm(_read_orion, ROTARY_DEFAULTS, idle_keys=PUBLISHED_CODE | {"max_sequence_length"}),
    "phi3": ConfigForm(
        _read_phi3,
        {**ROTARY_DEFAULTS_WITH_ALL_HEADS, "sliding_window": None},
        idle_keys=PUBLISHED_CODE | {"original_max_position_embeddings"},  # of rope_scaling alone
    ),
    "qwen": ConfigForm(
        _read_qwen,
        {
            **{**ROTARY_DEFAULTS_WITH_ALL_HEADS, "kv_channels": None, "attn_dropout_prob": 0.0},
            **{"layer_norm_epsilon": 1e-6, "rotary_emb_base": 10000.0},
        },
        {
            **{"rope_theta": "rotary_emb_base", "rms_norm_eps": "layer_norm_epsilon", "head_dim": "kv_channels"},
            **{"attention_dropout": "attn_dropout_prob"},
        },
        class_name="QWenLMHeadModel",
        # how it is computed, and what counts beyond seq_length only
        idle_keys=PUBLISHED_CODE
        | {"use_flash_attn", "bf16", "fp16", "fp32", "seq_length", "use_dynamic_ntk", "use_logn_attn"},
    ),
    "qwen2": ConfigForm(
        lambda keys: {**read_switched_window(keys), "qkv_bias": True},
        {**ROTARY_DEFAULTS, **SWITCHED_WINDOW_DEFAULTS},
    ),
    "qwen3": ConfigForm(
        lambda keys: {**read_switched_window(keys), "query_key_norm": True},
        {**ROTARY_DEFAULTS_WITHOUT_HEAD_DIM, **SWITCHED_WINDOW_DEFAULTS},
    ),
    "gemma": ConfigForm(_read_gemma, {**ROTARY_DEFAULTS_WITHOUT_HEAD_DIM, **_GEMMA_DEFAULTS}),
    "gpt_neox": ConfigForm(
        _read_gpt_neox,
        {
            **{**ROTARY_DEFAULTS_WITH_ALL_HEADS, "use_parallel_residual": True, "partial_rotary_factor": 0.25},
            "rotary_pct": 0.25,
            **{"hidden_act": "gelu", "attention_bias": True, "hidden_dropout": 0.0, "layer_norm_eps": 1e-5},
            "rotary_emb_base": 10000.0,
        },
        {
            **{"rope_theta": "rotary_emb_base", "rms_norm_eps": "layer_norm_eps"},
            "partial_rotary_factor": "rotary_pct",
        },
        class_name="GPTNeoXForCausalLM",
    ),
}

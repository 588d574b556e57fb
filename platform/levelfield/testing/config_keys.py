"""The content of a config.json: values by key, with a problem for each key that is missing, wrong or unread."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from levelfield.specs.short_names import clipped

Fields = dict[str, Any]
NUMBER_TYPES = (int, float)
# Tokens, outputs, generation and the loading of files: nothing of these is part of a pretraining's arithmetic.
IRRELEVANT_KEYS = frozenset(
    (
        *("torch_dtype", "dtype", "transformers_version", "use_cache", "unsloth_fixed"),
        *("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "unk_token_id", "decoder_start_token_id"),
        *("_name_or_path", "name_or_path", "_commit_hash", "attn_implementation", "_attn_implementation"),
        *("_attn_implementation_autoset", "id2label", "label2id", "num_labels", "problem_type", "finetuning_task"),
        *("task_specific_params", "return_dict", "output_attentions", "output_hidden_states", "output_router_logits"),
        *("tokenizer_class", "prefix", "is_decoder", "use_bfloat16", "torchscript", "gradient_checkpointing"),
        *("summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels", "summary_first_dropout"),
        *("keys_to_ignore_at_inference", "max_length", "min_length", "do_sample", "temperature", "top_k", "top_p"),
        *("num_beams", "num_return_sequences", "repetition_penalty", "n_ctx", "_from_model_config"),
        *("n_special", "predict_special_tokens", "is_llama_config", "transformers.js_config"),
        "pretraining_tp",  # the same sums in another order
    )
)


class ConfigKeys:
    """The content of a config.json. Problems are collected, so that one error names every key.

    defaults: what transformers takes where a key is absent, in all its releases. ignored: keys that count as absent.
    parent_path: the path to an inner mapping, such as `rope_scaling.`; empty for the whole file. names: this file's
    names of keys, by those that most files have. idle_keys: keys that change nothing, beside IRRELEVANT_KEYS.
    """

    def __init__(
        self,
        content: Mapping[str, Any],
        defaults: Mapping[str, Any],
        ignored: frozenset[str] = frozenset(),
        parent_path: str = "",
        names: Mapping[str, str] = MappingProxyType({}),
        idle_keys: frozenset[str] = frozenset(),
    ) -> None:
        self._names, self._idle_keys = names, IRRELEVANT_KEYS | idle_keys
        self.content = {key: value for key, value in content.items() if key not in ignored}
        self.defaults, self.ignored, self._parent_path = defaults, ignored, parent_path
        self.read_keys: set[str] = set()
        self.problems: list[str] = []
        self.may_ignore = False  # whether --ignore helps against one of the problems
        self.assumed: dict[str, Any] = {}
        self.remarks: list[str] = []  # about what was converted

    def take(self, key: str, kind: type | tuple[type, ...]) -> Any:
        """Return a value of this type, or the default; None, with a problem, without either."""
        key = self._names.get(key, key)
        self.read_keys.add(key)
        if key not in self.content:
            if key in self.defaults:
                self.assumed[key] = self.defaults[key]
                return self.defaults[key]
            fault = "missing; transformers' own default has changed between releases, or there is none"
            if key in self.ignored:
                fault = "the model needs it; it cannot be left out: give no --ignore for it"
            self.add_problem(key, fault, is_needed=True)
            return None
        value = self.content[key]
        types = kind if isinstance(kind, tuple) else (kind,)
        is_truth = isinstance(value, bool)
        if (is_truth and bool in types) or (not is_truth and isinstance(value, types)):
            return value
        names = " or ".join("null" if member is type(None) else member.__name__ for member in types)
        self.add_problem(key, f"found {short_json(value)}, expected {names}", is_needed=True)
        return None

    def require(self, key: str, allowed: tuple[Any, ...], reason: str) -> None:
        """Add a problem for a value that is none of these. An absent key has its default, or the first of them."""
        key = self._names.get(key, key)
        self.read_keys.add(key)
        value = self.content.get(key, self.defaults.get(key, allowed[0]))
        if not any(type(value) is type(option) and value == option for option in allowed):
            origin = "found" if key in self.content else "by default"
            advice = "; give no --ignore for it" if key in self.ignored else ""
            self.add_problem(key, f"{origin} {short_json(value)}: {reason}{advice}")

    def add_problem(self, key: str, message: str, is_needed: bool = False) -> None:
        """Add a problem of a key. is_needed: no model is without it, so the user cannot leave it out."""
        self.may_ignore |= not is_needed
        self.problems.append(f"key '{self._parent_path}{key}': {message}")

    def config_key(self, field: str) -> str | None:
        """Return the key here that gives a field of a case's model, such as n_layer; None without one."""
        return next((key for key in CONFIG_KEYS.get(field, (field,)) if key.partition(".")[0] in self.content), None)

    def report_unread_keys(self) -> None:
        """Add a problem for each key that nothing has read. An unknown null asks for nothing."""
        for key, value in self.content.items():
            if key not in self.read_keys and key not in self._idle_keys and value is not None:
                self.add_problem(key, f"found {short_json(value)}, which a case cannot say")


_ORIGINAL_LENGTH_KEY = {"original_max_position_embeddings": "original_length"}
SCALINGS: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "linear": ({"factor": "factor"}, {}),
    "llama3": (
        {"factor": "factor", **_ORIGINAL_LENGTH_KEY, "low_freq_factor": "low_factor",
         "high_freq_factor": "high_factor"},
        {},
    ),
    "yarn": (
        {"factor": "factor", **_ORIGINAL_LENGTH_KEY, "beta_fast": "beta_fast", "beta_slow": "beta_slow",
         "attention_factor": "magnitude"},
        {"original_max_position_embeddings": None, "beta_fast": 32, "beta_slow": 1, "attention_factor": None},
    ),
}  # fmt: skip
# The keys of config.json that give a field of a case's model, by the field; each file has one of them at most.
CONFIG_KEYS: dict[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "hidden_size": ("hidden_size", "n_embd"),
    "ffn_hidden_size": ("intermediate_size", "n_inner", "ffn_hidden_size"),
    "heads": ("num_attention_heads", "n_head"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "multi_query_group_num"),
    "vocab_size": ("vocab_size", "padded_vocab_size"),
    "rope_base": ("rope_theta", "rope_parameters.rope_theta", "rotary_emb_base"),
    "norm_eps": ("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", "layernorm_epsilon"),
    "hidden_dropout": ("resid_pdrop", "hidden_dropout"),
    "attention_dropout": ("attention_dropout", "attn_pdrop", "attn_dropout_prob"),
    "init_std": ("initializer_range",),
    "embedding_scale": ("embedding_multiplier", "scale_emb"),
    "residual_scale": ("residual_multiplier", "scale_depth"),
    "logit_scale": ("logits_scaling", "dim_model_base", "logit_scale"),
    "rotary_dim": ("rotary_dim", "partial_rotary_factor", "rotary_pct"),
    "no_rope_interval": ("no_rope_layers", "no_rope_layer_interval", "sliding_window_pattern"),
    "full_attention_interval": ("layer_types", "sliding_window_pattern"),
    "attention_scale": ("attention_multiplier",),
    "experts.count": ("num_local_experts", "num_experts", "n_routed_experts"),
    "experts.chosen": ("num_experts_per_tok",),
    "experts.ffn_hidden_size": ("moe_intermediate_size", "intermediate_size"),
    "experts.shared": ("n_shared_experts", "shared_expert_intermediate_size"),
    "experts.router.scale": ("routed_scaling_factor",),
    "experts.router.groups.count": ("n_group",),
    "experts.router.groups.chosen": ("topk_group",),
    "experts.first_layer": ("mlp_only_layers", "first_k_dense_replace"),
    "experts.every": ("decoder_sparse_step", "moe_layer_freq"),
    "experts.router.auxiliary_loss": ("router_aux_loss_coef", "aux_loss_alpha"),
    **{
        f"rope_scaling.{ours}": (f"rope_scaling.{theirs}", f"rope_parameters.{theirs}")
        for names, _ in SCALINGS.values()
        for theirs, ours in names.items()
    },
}


def short_json(value: Any) -> str:
    return clipped(json.dumps(value, default=str), 60)

"""Read a case's model from Hugging Face's config.json. A key that a case cannot express is refused by its name."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from levelfield.errors import DocumentError, UsageError
from levelfield.specs.architecture import Model
from levelfield.specs.base import MAX_SIZE, fault_text
from levelfield.specs.bounded_reading import read_mapping
from levelfield.specs.short_names import clipped

Fields = dict[str, Any]
NUMBER_TYPES = (int, float)
MIN_VOCABULARY_SIZE = 4  # a case's synthetic corpus needs it: two tokens may follow each token
_ROTARY_DEFAULTS = {
    "head_dim": None,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "rope_parameters": None,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "initializer_range": 0.02,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "architectures": None,
}
_SWITCHED_WINDOW_DEFAULTS = {"use_sliding_window": False, "sliding_window": 4096, "layer_types": None}
_WINDOW_KEYS = ("use_sliding_window", "sliding_window", "max_window_layers", "layer_types")
_FULL, _SLIDING = "full_attention", "sliding_attention"
_GEMMA_DEFAULTS = {"hidden_act": "gelu_pytorch_tanh", "hidden_activation": None, "tie_word_embeddings": True}
_GPT2_DEFAULTS = {
    "architectures": None,
    "n_inner": None,
    "embd_pdrop": 0.1,
    "tie_word_embeddings": True,
    "initializer_range": 0.02,
    "activation_function": "gelu_new",
}
_GATED_ACTIVATIONS = {"silu": "swiglu", "swish": "swiglu", "gelu_pytorch_tanh": "geglu_tanh"}
_PLAIN_ACTIVATIONS = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu"}
_PARALLEL = "its attention and MLP read one norm side by side"
_IMAGES = "it reads images"
_SHARED_GATE = "it has a gate of its shared experts (shared_expert_intermediate_size)"
_BOTH_NORMS = "norms before and after each part"
_PART_OF_HEAD = "it rotates a part of each head (partial_rotary_factor)"
_YARN_SCALE = "its rope_scaling also scales the scores of attention (mscale_all_dim)"
# What a case cannot say of each, by model_type.
_UNSUPPORTED_MODELS = {
    "baichuan": "its head divides each row by its norm, or its larger model has ALiBi",
    "bert": "each token attends to all others",
    "chatglm": _PART_OF_HEAD,
    "cohere": _PARALLEL,
    "cohere2": _PARALLEL,
    "deepseek_v2": _YARN_SCALE,
    "deepseek_v3": f"{_YARN_SCALE} (configs/cases/deepseek_v3.yaml is without)",
    "falcon": _PARALLEL,
    "gemma2": f"it has {_BOTH_NORMS}, and soft caps (attn_logit_softcapping)",
    "gemma3_text": f"it has {_BOTH_NORMS}, and two rotary bases (rope_local_base_freq)",
    "gemma3": f"{_IMAGES}, and has {_BOTH_NORMS}",
    "glm4": f"it has {_BOTH_NORMS}, and rotates a part of each head (partial_rotary_factor)",
    "glm4_moe": _PART_OF_HEAD,
    "gpt_oss": "it has attention sinks, a sliding window in every other layer, and clamped gates (swiglu_limit)",
    "gptj": _PARALLEL,
    "granitemoe": "its experts are not read (a granite without experts is)",
    "internlm": "it has biases in all matrices of attention, and none in its MLP",
    "kimi_k2": _YARN_SCALE,
    "llama4": f"{_IMAGES}, and has layers without rotary positions (no_rope_layers)",
    "llama4_text": "it has layers without rotary positions (no_rope_layers), and attention in chunks",
    "llava": f"{_IMAGES} (give the config.json of its language model)",
    "minimax_m2": _PART_OF_HEAD,
    "ministral3": f"{_IMAGES}, and its attention's scores grow with the position (llama_4_scaling_beta)",
    "mistral3": f"{_IMAGES} (give the config.json of its language model)",
    "nemotron_h": "it has layers of Mamba",
    "olmo3": "some of its layers have a sliding window",
    "phi": _PARALLEL,
    "phi-msft": _PARALLEL,
    "phi3_v": f"{_IMAGES} (give the config.json of its language model)",
    "qwen2_moe": _SHARED_GATE,
    "qwen3_next": f"it has layers of linear attention (gated delta rule), and {_SHARED_GATE.removeprefix('it has ')}",
    "rwkv5": "it has no attention",
    "smollm3": "it has layers without rotary positions (no_rope_layers)",
    "stablelm": _PART_OF_HEAD,
}
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
        self.add_problem(key, f"found {_short_json(value)}, expected {names}", is_needed=True)
        return None

    def require(self, key: str, allowed: tuple[Any, ...], reason: str) -> None:
        """Add a problem for a value that is none of these. An absent key has its default, or the first of them."""
        key = self._names.get(key, key)
        self.read_keys.add(key)
        value = self.content.get(key, self.defaults.get(key, allowed[0]))
        if not any(type(value) is type(option) and value == option for option in allowed):
            origin = "found" if key in self.content else "by default"
            advice = "; give no --ignore for it" if key in self.ignored else ""
            self.add_problem(key, f"{origin} {_short_json(value)}: {reason}{advice}")

    def add_problem(self, key: str, message: str, is_needed: bool = False) -> None:
        """Add a problem of a key. is_needed: no model is without it, so the user cannot leave it out."""
        self.may_ignore |= not is_needed
        self.problems.append(f"key '{self._parent_path}{key}': {message}")

    def config_key(self, field: str) -> str | None:
        """Return the key here that gives a field of a case's model, such as n_layer; None without one."""
        return next((key for key in _CONFIG_KEYS.get(field, (field,)) if key.partition(".")[0] in self.content), None)

    def report_unread_keys(self) -> None:
        """Add a problem for each key that nothing has read. An unknown null asks for nothing."""
        for key, value in self.content.items():
            if key not in self.read_keys and key not in self._idle_keys and value is not None:
                self.add_problem(key, f"found {_short_json(value)}, which a case cannot say")


@dataclass(frozen=True)
class PublishedModel:
    """The model of a config.json, as a case has it."""

    model_type: str
    model: Model
    max_sequence_length: int
    left_out: tuple[str, ...]  # keys that change nothing
    assumed: dict[str, Any]  # absent keys, with transformers' defaults
    remarks: tuple[str, ...]  # sentences about what was converted


def read_config(path: Path, ignored: frozenset[str] = frozenset()) -> PublishedModel:
    """Return the model of a config.json. Raises UsageError with every key that a case cannot say.

    ignored: keys that the user leaves out, although they are not known to change nothing. The model has transformers'
    defaults of them, and a key without one is refused.
    """
    content = read_mapping(path, "config.json")
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise DocumentError(f"{path}: found no mapping of keys to values, expected Hugging Face's config.json")
    kind = content.get("model_type")
    if not isinstance(kind, str) or kind not in _READERS:
        reason = (
            f", which a case cannot say: {_UNSUPPORTED_MODELS[kind]}"
            if isinstance(kind, str) and kind in _UNSUPPORTED_MODELS
            else ""
        )
        value = "missing" if kind is None else f"found {str(kind)[:40]!r}{reason}"
        expected = f"expected one of {', '.join(sorted(_READERS))}"
        by_hand = "For another one write the case by hand: docs/writing-a-case.md"
        raise UsageError(f"{path}: key 'model_type': {value}; {expected}. {by_hand}")
    if absent := sorted(ignored - set(content)):
        raise UsageError(f"--ignore {absent[0]}: {path} has no such key; leave the option out")
    form = _READERS[kind]
    keys = ConfigKeys(content, form.defaults, ignored, names=form.names, idle_keys=form.idle_keys)
    keys.take("model_type", str)
    keys.require("is_encoder_decoder", (False,), "a case has no encoder")
    expected = form.class_name or kind.title().replace("_", "") + "ForCausalLM"
    classes = keys.take("architectures", (list, type(None))) or [expected]
    if {str(name).lower() for name in classes} != {expected.lower()}:  # some old files have LLaMAForCausalLM
        keys.add_problem(
            "architectures", f"found {_short_json(classes)}, expected {expected}, the language model of {kind}"
        )
    fields = form.read(keys)
    length_key = "n_positions" if kind == "gpt2" else "max_position_embeddings"
    length = keys.take(length_key, int)
    if length is not None and not 2 <= length <= MAX_SIZE:
        keys.add_problem(length_key, f"found {length}, expected 2 to {MAX_SIZE:,}", is_needed=True)
    if fields["vocab_size"] in range(1, MIN_VOCABULARY_SIZE):
        keys.add_problem(
            "vocab_size", f"found {fields['vocab_size']}, expected at least {MIN_VOCABULARY_SIZE}", is_needed=True
        )
    keys.report_unread_keys()
    if keys.problems:
        lines = "".join(f"\n  {problem}" for problem in keys.problems)
        if not keys.may_ignore:
            raise UsageError(f"{path}: gives no model:{lines}")
        raise UsageError(
            f"{path}: a case cannot say all of it:{lines}\nOf a key that changes nothing in this model, --ignore KEY "
            "leaves it out, and the case's source says so"
        )
    left_out = tuple(sorted(set(keys.content) - keys.read_keys))
    return PublishedModel(
        kind, _validated_model(path, kind, fields, keys), length, left_out, keys.assumed, tuple(keys.remarks)
    )


def _validated_model(path: Path, kind: str, fields: Fields, keys: ConfigKeys) -> Model:
    """Return the model. Raises UsageError with the key of config.json that has the first wrong value."""
    try:
        return Model.model_validate({"family": kind, **fields})
    except ValidationError as error:
        first = error.errors()[0]
    field = ".".join(map(str, first["loc"]))
    if key := keys.config_key(field):
        message = fault_text({**first, "input": keys.content.get(key, first.get("input"))}, Model)
        raise UsageError(f"{path}: key '{key}': {message}")
    message = fault_text(first, Model)
    names = ((name.removeprefix(f"{field}."), keys.config_key(name)) for name in _CONFIG_KEYS)
    others = ", ".join(f"{name} is {key}" for name, key in names if key != name and key and name in message.split())
    raise UsageError(f"{path}: gives no model: {field or 'model'}: {message}{f'; {others}' if others else ''}")


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
        "activation": _take_activation(keys, "activation_function", _PLAIN_ACTIVATIONS),
        "bias": True,
        "tied_embeddings": keys.take("tie_word_embeddings", bool),
        "hidden_dropout": dropout,
        "attention_dropout": attention,
        "init_std": keys.take("initializer_range", NUMBER_TYPES),
        "scaled_residual_init": True,  # transformers scales `c_proj` so
    }


def _read_rotary(keys: ConfigKeys, window: int | None = None) -> Fields:
    """Return what all decoders with rotary positions have. The activation is that of an MLP with a gate."""
    heads, hidden = keys.take("num_attention_heads", int), keys.take("hidden_size", int)
    width = keys.take("head_dim", (int, type(None)) if "head_dim" in keys.defaults else int)
    # the base and its scaling, by the older keys (rope_theta, rope_scaling) or by the newer rope_parameters
    keys.require("partial_rotary_factor", (1.0, 1), "a case rotates whole heads")
    keys.require("rope_interleaved", (False,), "a case rotates the halves of a head")
    older = keys.take("rope_scaling", (dict, type(None)))
    newer = keys.take("rope_parameters", (dict, type(None)))
    if older and newer and older != newer:
        keys.add_problem("rope_scaling", "found other values than in rope_parameters")
    name, content = ("rope_parameters", dict(newer)) if newer else ("rope_scaling", dict(older or {}))
    base = content.pop("rope_theta", None)
    if base is None or "rope_theta" in keys.content:
        theta = keys.take("rope_theta", NUMBER_TYPES)
        if base is not None and theta != base:
            keys.add_problem("rope_theta", f"found {theta}, and {base} in {name}")
        base = theta
    scaling = _read_rope_scaling(keys, name, content)
    return {
        "layers": keys.take("num_hidden_layers", int),
        "hidden_size": hidden,
        "ffn_hidden_size": keys.take("intermediate_size", int),
        "heads": heads,
        "kv_heads": keys.take("num_key_value_heads", (int, type(None))) or heads,
        "head_dim": None if width and heads and width * heads == hidden else width,
        "vocab_size": keys.take("vocab_size", int),
        "positions": "rope",
        "rope_base": base,
        "rope_scaling": scaling,
        "sliding_window": window,
        "norm": "rmsnorm",
        "norm_eps": keys.take("rms_norm_eps", NUMBER_TYPES),
        "bias": False,
        "tied_embeddings": keys.take("tie_word_embeddings", bool),
        "hidden_dropout": 0.0,
        "attention_dropout": keys.take("attention_dropout", NUMBER_TYPES),
        "init_std": keys.take("initializer_range", NUMBER_TYPES),
        "scaled_residual_init": False,
    }


def _read_llama(keys: ConfigKeys) -> Fields:
    bias = keys.take("attention_bias", bool)
    keys.require("mlp_bias", (bias,), f"a case has biases in all matrices or in none, and attention_bias is {bias}")
    return {
        **_read_rotary(keys),
        "bias": bool(bias),
        "activation": _take_activation(keys, "hidden_act", _GATED_ACTIVATIONS),
    }


def _read_unbiased(keys: ConfigKeys, has_window: bool = False) -> Fields:
    window = keys.take("sliding_window", (int, type(None))) if has_window else None
    keys.require("attention_bias", (False,), "a case has biases of queries, keys and values alone, or of all matrices")
    return {**_read_rotary(keys, window), "activation": _take_activation(keys, "hidden_act", _GATED_ACTIVATIONS)}


def _read_switched_window(keys: ConfigKeys, is_mixture: bool = False) -> Fields:
    """Return the fields with the sliding window of all layers. Adds a problem where only some layers have one."""
    fields = _read_unbiased(keys)
    layers = fields["layers"]
    keys.read_keys.update(_WINDOW_KEYS)
    if ignored := [key for key in _WINDOW_KEYS if key in keys.ignored]:
        for key in ignored:
            keys.add_problem(
                key,
                "it says which layers have a window; it cannot be left out: give no --ignore for it",
                is_needed=True,
            )
        return {**fields, "sliding_window": None}
    window = keys.take("sliding_window", (int, type(None))) if keys.take("use_sliding_window", bool) else None
    # layer_types says which layers have it; without it those from max_window_layers on
    types, config_value = keys.take("layer_types", (list, type(None))), None
    if types is not None:
        key, kinds = "layer_types", set(map(str, types))
        config_value = ", ".join(sorted(kinds)) or "no entry"
        if layers is not None and len(types) != layers:
            keys.add_problem(
                key, f"found {len(types)} entries, expected one for each of {layers} layers", is_needed=True
            )
    else:
        key, kinds = "max_window_layers", {_FULL if window is None else _SLIDING}
        config_value = None if window is None else keys.take(key, int)
        if config_value is not None and layers is not None:
            kinds = ({_FULL} if config_value > 0 else set()) | ({_SLIDING} if config_value < layers else set())
    if kinds not in ({_FULL}, {_SLIDING}):
        keys.add_problem(
            key, f"found {config_value}: of a case, all layers have a sliding window or none", is_needed=True
        )
    elif kinds == {_SLIDING} and window is None:
        keys.add_problem(
            key, f"found {config_value}, and use_sliding_window and sliding_window give no window", is_needed=True
        )
    elif kinds == {_FULL} and window is not None and is_mixture:
        keys.add_problem(
            key,
            f"found {config_value}: by it no layer has a window, and in transformers' qwen3_moe all have it",
            is_needed=True,
        )
    return {**fields, "sliding_window": window if kinds == {_SLIDING} else None}


def _read_gemma(keys: ConfigKeys) -> Fields:
    activation = keys.take("hidden_activation", (str, type(None)))
    older = keys.take("hidden_act", str)
    if activation not in (None, "gelu_pytorch_tanh") or older not in ("gelu", "gelu_pytorch_tanh"):
        key = "hidden_act" if activation in (None, "gelu_pytorch_tanh") else "hidden_activation"
        keys.add_problem(key, f"found {activation!r} and hidden_act {older!r}, expected gelu_pytorch_tanh")
    if older == "gelu":
        keys.remarks.append("hidden_act gelu is read as gelu_pytorch_tanh, as transformers does for Gemma")
    keys.require("attention_bias", (False,), "a case has biases of queries, keys and values alone, or of all matrices")
    fields = _read_rotary(keys)
    return {**fields, "activation": "geglu_tanh", "embedding_scale": math.sqrt(fields["hidden_size"] or 1)}


def _read_mixtral(keys: ConfigKeys) -> Fields:
    keys.require("router_jitter_noise", (0.0, 0), "a case's router has no noise")
    fields, chosen = _read_unbiased(keys, has_window=True), keys.take("num_experts_per_tok", int)
    experts = {
        "count": keys.take("num_local_experts", int),
        "chosen": chosen,
        "ffn_hidden_size": fields["ffn_hidden_size"],
        "router": {"auxiliary_loss": _balancing_loss(keys, chosen, fields["layers"])},
    }
    return {**fields, "experts": experts}


def _read_qwen3_moe(keys: ConfigKeys) -> Fields:
    fields = _read_switched_window(keys, is_mixture=True)
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


def _read_phi3(keys: ConfigKeys) -> Fields:
    keys.require("resid_pdrop", (0.0, 0), "a case has one rate for embeddings and residuals, which is 0 here")
    keys.require("embd_pdrop", (0.0, 0), "a case has one rate for embeddings and residuals, which is 0 here")
    return _read_unbiased(keys, has_window=True)


def _read_olmo2(keys: ConfigKeys) -> Fields:
    return {**_read_unbiased(keys), "norm_place": "after", "joint_query_key_norm": True}


def _read_granite(keys: ConfigKeys) -> Fields:
    return {
        **_read_llama(keys),
        "embedding_scale": _take_multiplier(keys, "embedding_multiplier"),
        "residual_scale": _take_multiplier(keys, "residual_multiplier"),
        "logit_scale": _inverse(_take_multiplier(keys, "logits_scaling")),
        "attention_scale": keys.take("attention_multiplier", NUMBER_TYPES),
    }


def _read_minicpm(keys: ConfigKeys) -> Fields:
    """MiniCPM, whose code is published beside its weights."""
    fields = _read_unbiased(keys)
    depth, base = keys.take("scale_depth", NUMBER_TYPES), keys.take("dim_model_base", int)
    return {
        **fields,
        "embedding_scale": _take_multiplier(keys, "scale_emb"),
        "residual_scale": (depth or 0) / math.sqrt(max(fields["layers"] or 1, 1)),
        "logit_scale": (base or 0) / max(fields["hidden_size"] or 1, 1),
    }


def _take_multiplier(keys: ConfigKeys, key: str) -> float | None:
    """Return a factor; None of 1, which changes nothing."""
    value: float | None = keys.take(key, NUMBER_TYPES)
    return None if value == 1 else value


def _inverse(value: float | None) -> float | None:
    return 1 / value if value else value


def _read_orion(keys: ConfigKeys) -> Fields:
    return {**_read_unbiased(keys), "norm": "layernorm"}


def _read_qwen(keys: ConfigKeys) -> Fields:
    """Qwen's first release: biases of queries, keys and values, and an intermediate_size of both products together."""
    keys.require("no_bias", (True,), "a case has biases of queries, keys and values alone, or of all matrices")
    keys.require("rotary_pct", (1.0, 1), "a case rotates whole heads")
    keys.require("scale_attn_weights", (True,), "a case divides attention's scores by the root of the head size")
    keys.require("emb_dropout_prob", (0.0, 0), "a case has one rate for embeddings and residuals, which is 0 here")
    fields = _read_unbiased(keys)
    both = fields["ffn_hidden_size"]
    keys.remarks.append(f"intermediate_size {both} is of the gate and its product together")
    return {**fields, "ffn_hidden_size": both and both // 2, "qkv_bias": True}


def _read_gpt_neox(keys: ConfigKeys) -> Fields:
    keys.require("use_parallel_residual", (False,), f"a case has one after the other, and {_PARALLEL}")
    keys.require("rotary_pct", (1.0, 1), "a case rotates whole heads")
    keys.require("attention_bias", (True,), "a case has biases of queries, keys and values alone, or of all matrices")
    return {
        **_read_rotary(keys),
        "norm": "layernorm",
        "bias": True,
        "activation": _take_activation(keys, "hidden_act", _PLAIN_ACTIVATIONS),
        "hidden_dropout": keys.take("hidden_dropout", NUMBER_TYPES),
    }


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
    return {**_read_unbiased(keys), "experts": experts}


def _balancing_loss(keys: ConfigKeys, chosen: int | None, layers: int | None) -> float:
    """Return the coefficient of a case's balancing loss, which is of a sequence and of a layer (writing-a-case.md)."""
    coefficient = keys.take("router_aux_loss_coef", NUMBER_TYPES)
    converted = float(f"{(coefficient or 0) * (chosen or 1) / (layers or 1):.6g}")
    keys.remarks.append(
        f"router_aux_loss_coef {coefficient} x {chosen} experts / {layers} layers is auxiliary_loss {converted:g}"
    )
    return converted


def _take_activation(keys: ConfigKeys, key: str, names: dict[str, str]) -> str | None:
    value = keys.take(key, str)
    if value is not None and value not in names:
        keys.add_problem(key, f"found '{value}', expected one of {', '.join(names)}")
    return names.get(value or "")


def _read_rope_scaling(keys: ConfigKeys, name: str, content: Fields) -> Fields | None:
    kinds = [content.pop(key) for key in ("rope_type", "type") if key in content]
    kind = kinds[0] if kinds else "default"
    if kind == "default":
        if content:
            begin = "found default" if kinds else "missing"
            beside = f"{begin} beside {', '.join(sorted(map(str, content)))}"
            keys.add_problem(f"{name}.rope_type", f"{beside}; expected {', '.join(_SCALINGS)}, or no such keys")
        return None
    if not isinstance(kind, str) or kind not in _SCALINGS:
        keys.add_problem(f"{name}.rope_type", f"found {kind!r}, expected default, {', '.join(_SCALINGS)}")
        return None
    names, defaults = _SCALINGS[kind]
    inner = ConfigKeys(content, defaults, parent_path=f"{name}.")
    scaling = {ours: inner.take(theirs, (*NUMBER_TYPES, type(None))) for theirs, ours in names.items()}
    if kind == "yarn" and scaling["original_length"] is None:
        scaling["original_length"] = keys.take("max_position_embeddings", int)
    inner.report_unread_keys()
    keys.problems += inner.problems
    keys.may_ignore |= inner.may_ignore
    values = {ours: value for ours, value in scaling.items() if value is not None}
    if "original_length" in values:
        values["original_length"] = int(values["original_length"])
    return {"kind": kind, **values}


_ORIGINAL_LENGTH_KEY = {"original_max_position_embeddings": "original_length"}
_SCALINGS: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
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
_CONFIG_KEYS: dict[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers", "n_layer"),
    "hidden_size": ("hidden_size", "n_embd"),
    "ffn_hidden_size": ("intermediate_size", "n_inner"),
    "heads": ("num_attention_heads", "n_head"),
    "kv_heads": ("num_key_value_heads",),
    "vocab_size": ("vocab_size",),
    "rope_base": ("rope_theta", "rope_parameters.rope_theta", "rotary_emb_base"),
    "norm_eps": ("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps"),
    "hidden_dropout": ("resid_pdrop", "hidden_dropout"),
    "attention_dropout": ("attention_dropout", "attn_pdrop", "attn_dropout_prob"),
    "init_std": ("initializer_range",),
    "embedding_scale": ("embedding_multiplier", "scale_emb"),
    "residual_scale": ("residual_multiplier", "scale_depth"),
    "logit_scale": ("logits_scaling", "dim_model_base"),
    "attention_scale": ("attention_multiplier",),
    "experts.count": ("num_local_experts", "num_experts", "n_routed_experts"),
    "experts.chosen": ("num_experts_per_tok",),
    "experts.ffn_hidden_size": ("moe_intermediate_size", "intermediate_size"),
    "experts.shared": ("n_shared_experts",),
    "experts.first_layer": ("mlp_only_layers", "first_k_dense_replace"),
    "experts.every": ("decoder_sparse_step", "moe_layer_freq"),
    "experts.router.auxiliary_loss": ("router_aux_loss_coef", "aux_loss_alpha"),
    **{
        f"rope_scaling.{ours}": (f"rope_scaling.{theirs}", f"rope_parameters.{theirs}")
        for names, _ in _SCALINGS.values()
        for theirs, ours in names.items()
    },
}
_ROTARY_DEFAULTS_WITHOUT_HEAD_DIM = {
    key: value for key, value in _ROTARY_DEFAULTS.items() if key != "head_dim"
}  # theirs is not hidden_size / heads
_ROTARY_DEFAULTS_WITH_ALL_HEADS = {**_ROTARY_DEFAULTS, "num_key_value_heads": None}


@dataclass(frozen=True)
class _ConfigForm:
    """How the config.json of a model_type is read."""

    read: Callable[[ConfigKeys], Fields]
    defaults: dict[str, Any]  # of absent keys
    names: Mapping[str, str] = field(default_factory=dict)  # its own names of keys
    class_name: str | None = None  # of its language model, where that does not follow from model_type
    idle_keys: frozenset[str] = frozenset()  # more of those that change nothing


_PUBLISHED_CODE = frozenset({"auto_map"})  # code beside the weights, which is what is read here
_READERS = {
    "gpt2": _ConfigForm(_read_gpt2, _GPT2_DEFAULTS, class_name="GPT2LMHeadModel"),
    "llama": _ConfigForm(_read_llama, {**_ROTARY_DEFAULTS_WITH_ALL_HEADS, "mlp_bias": False}),
    "mistral": _ConfigForm(partial(_read_unbiased, has_window=True), _ROTARY_DEFAULTS),
    "internlm2": _ConfigForm(
        _read_unbiased,
        _ROTARY_DEFAULTS,
        {"attention_bias": "bias"},
        class_name="InternLM2ForCausalLM",
        idle_keys=_PUBLISHED_CODE,
    ),
    "granite": _ConfigForm(
        _read_granite,
        {
            **{**_ROTARY_DEFAULTS_WITH_ALL_HEADS, "mlp_bias": False, "embedding_multiplier": 1.0},
            **{"residual_multiplier": 1.0, "logits_scaling": 1.0, "attention_multiplier": 1.0},
        },
    ),
    "minicpm": _ConfigForm(
        _read_minicpm,
        {**_ROTARY_DEFAULTS_WITH_ALL_HEADS, "scale_emb": 1, "scale_depth": 1, "dim_model_base": 1},
        class_name="MiniCPMForCausalLM",
        idle_keys=_PUBLISHED_CODE,
    ),
    "olmo2": _ConfigForm(_read_olmo2, _ROTARY_DEFAULTS_WITH_ALL_HEADS),
    "orion": _ConfigForm(_read_orion, _ROTARY_DEFAULTS, idle_keys=_PUBLISHED_CODE | {"max_sequence_length"}),
    "phi3": _ConfigForm(
        _read_phi3,
        {**_ROTARY_DEFAULTS_WITH_ALL_HEADS, "sliding_window": None},
        idle_keys=_PUBLISHED_CODE | {"original_max_position_embeddings"},  # of rope_scaling alone
    ),
    "qwen": _ConfigForm(
        _read_qwen,
        {
            **{**_ROTARY_DEFAULTS_WITH_ALL_HEADS, "kv_channels": None, "attn_dropout_prob": 0.0},
            **{"layer_norm_epsilon": 1e-6, "rotary_emb_base": 10000.0},
        },
        {
            **{"rope_theta": "rotary_emb_base", "rms_norm_eps": "layer_norm_epsilon", "head_dim": "kv_channels"},
            **{"attention_dropout": "attn_dropout_prob"},
        },
        class_name="QWenLMHeadModel",
        # how it is computed, and what counts beyond seq_length only
        idle_keys=_PUBLISHED_CODE
        | {"use_flash_attn", "bf16", "fp16", "fp32", "seq_length", "use_dynamic_ntk", "use_logn_attn"},
    ),
    "qwen2": _ConfigForm(
        lambda keys: {**_read_switched_window(keys), "qkv_bias": True},
        {**_ROTARY_DEFAULTS, **_SWITCHED_WINDOW_DEFAULTS},
    ),
    "qwen3": _ConfigForm(
        lambda keys: {**_read_switched_window(keys), "query_key_norm": True},
        {**_ROTARY_DEFAULTS_WITHOUT_HEAD_DIM, **_SWITCHED_WINDOW_DEFAULTS},
    ),
    "gemma": _ConfigForm(_read_gemma, {**_ROTARY_DEFAULTS_WITHOUT_HEAD_DIM, **_GEMMA_DEFAULTS}),
    "gpt_neox": _ConfigForm(
        _read_gpt_neox,
        {
            **{**_ROTARY_DEFAULTS_WITH_ALL_HEADS, "use_parallel_residual": True, "rotary_pct": 0.25},
            **{"hidden_act": "gelu", "attention_bias": True, "hidden_dropout": 0.0, "layer_norm_eps": 1e-5},
            "rotary_emb_base": 10000.0,
        },
        {"rope_theta": "rotary_emb_base", "rms_norm_eps": "layer_norm_eps"},
        class_name="GPTNeoXForCausalLM",
    ),
    "mixtral": _ConfigForm(_read_mixtral, {**_ROTARY_DEFAULTS, "rope_theta": 1e6}),
    "qwen3_moe": _ConfigForm(
        _read_qwen3_moe,
        {
            **_ROTARY_DEFAULTS_WITHOUT_HEAD_DIM,
            **_SWITCHED_WINDOW_DEFAULTS,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        },
    ),
    "deepseek": _ConfigForm(
        _read_deepseek,
        {
            **{**_ROTARY_DEFAULTS_WITH_ALL_HEADS, "aux_loss_alpha": 0.001, "first_k_dense_replace": 0},
            **{"moe_layer_freq": 1, "norm_topk_prob": False, "n_shared_experts": None},
        },
        idle_keys=_PUBLISHED_CODE,
    ),
}


def _short_json(value: Any) -> str:
    return clipped(json.dumps(value, default=str), 60)

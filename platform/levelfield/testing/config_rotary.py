"""What decoders with rotary positions share in their config.json: sizes, rotation, windows, activation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from levelfield.testing.config_keys import NUMBER_TYPES, SCALINGS, ConfigKeys, Fields, short_json

ROTARY_DEFAULTS = {
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
ROTARY_DEFAULTS_WITHOUT_HEAD_DIM = {
    key: value for key, value in ROTARY_DEFAULTS.items() if key != "head_dim"
}  # theirs is not hidden_size / heads
ROTARY_DEFAULTS_WITH_ALL_HEADS = {**ROTARY_DEFAULTS, "num_key_value_heads": None}
SWITCHED_WINDOW_DEFAULTS = {"use_sliding_window": False, "sliding_window": 4096, "layer_types": None}
_WINDOW_KEYS = ("use_sliding_window", "sliding_window", "max_window_layers", "layer_types")
FULL, _SLIDING = "full_attention", "sliding_attention"
GATED_ACTIVATIONS = {"silu": "swiglu", "swish": "swiglu", "gelu_pytorch_tanh": "geglu_tanh"}
PLAIN_ACTIVATIONS = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu"}
NEIGHBOURS = "its heads rotate neighbouring numbers: rows of queries and keys are in another order than in its weights"
LAYER_NORM_EPS = {"rms_norm_eps": "layer_norm_eps"}
PUBLISHED_CODE = frozenset({"auto_map"})  # code beside the weights, which is what is read here


@dataclass(frozen=True)
class ConfigForm:
    """How the config.json of a model_type is read."""

    read: Callable[[ConfigKeys], Fields]
    defaults: dict[str, Any]  # of absent keys
    names: Mapping[str, str] = field(default_factory=dict)  # its own names of keys
    class_name: str | None = None  # of its language model, where that does not follow from model_type
    idle_keys: frozenset[str] = frozenset()  # more of those that change nothing


def read_rotary(keys: ConfigKeys, window: int | None = None) -> Fields:
    """Return what all decoders with rotary positions have. The activation is that of an MLP with a gate."""
    heads, hidden = keys.take("num_attention_heads", int), keys.take("hidden_size", int)
    width = keys.take("head_dim", (int, type(None)) if "head_dim" in keys.defaults else int)
    # the base and its scaling, by the older keys (rope_theta, rope_scaling) or by the newer rope_parameters
    has_share = "partial_rotary_factor" in keys.defaults
    if not has_share:
        keys.require("partial_rotary_factor", (1.0, 1), "transformers' class of this model rotates whole heads")
    keys.require("rope_interleaved", (False,), "a case rotates the halves of a head")
    older = keys.take("rope_scaling", (dict, type(None)))
    newer = keys.take("rope_parameters", (dict, type(None)))
    if older and newer and older != newer:
        keys.add_problem("rope_scaling", "found other values than in rope_parameters")
    name, content = ("rope_parameters", dict(newer)) if newer else ("rope_scaling", dict(older or {}))
    if set(content) == {FULL, _SLIDING}:  # of layers by their kind
        if content[FULL] != content[_SLIDING] or not isinstance(content[FULL], dict):
            keys.add_problem(name, "found no mapping that both kinds of layers have; in a case all have the same")
        content = dict(content[FULL]) if isinstance(content[FULL], dict) else {}
    share = content.pop("partial_rotary_factor", None)
    if share is None and has_share:
        share = keys.take("partial_rotary_factor", NUMBER_TYPES)
    base = content.pop("rope_theta", None)
    if base is None or "rope_theta" in keys.content:
        theta = keys.take("rope_theta", NUMBER_TYPES)
        if base is not None and theta != base:
            keys.add_problem("rope_theta", f"found {theta}, and {base} in {name}")
        base = theta
    scaling = _read_rope_scaling(keys, name, content)
    head = width or (hidden or 0) // max(heads or 1, 1)
    if share is None and "rotary_dim" in keys.defaults:
        rotary_dim = keys.take("rotary_dim", (int, type(None)))
    else:
        rotary_dim = _take_rotated_part(keys, share, head)
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
        "rotary_dim": None if rotary_dim in (None, head) else rotary_dim,
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


def _take_rotated_part(keys: ConfigKeys, share: Any, head: int) -> int:
    """Return how many of `head` numbers are rotated by their share; None is all."""
    if share is None:
        return head
    if isinstance(share, bool) or not isinstance(share, NUMBER_TYPES) or not 0 < share <= 1:
        keys.add_problem("partial_rotary_factor", f"found {short_json(share)}, expected above 0 and at most 1")
        return head
    return int(head * share)


def read_llama(keys: ConfigKeys) -> Fields:
    bias = keys.take("attention_bias", bool)
    keys.require("mlp_bias", (bias,), f"a case has biases in all matrices or in none, and attention_bias is {bias}")
    return {
        **read_rotary(keys),
        "bias": bool(bias),
        "activation": take_activation(keys, "hidden_act", GATED_ACTIVATIONS),
    }


def read_unbiased(keys: ConfigKeys, has_window: bool = False) -> Fields:
    window = keys.take("sliding_window", (int, type(None))) if has_window else None
    keys.require("attention_bias", (False,), "a case has biases of queries, keys and values alone, or of all matrices")
    return {**read_rotary(keys, window), "activation": take_activation(keys, "hidden_act", GATED_ACTIVATIONS)}


def read_switched_window(keys: ConfigKeys, is_mixture: bool = False) -> Fields:
    """Return the fields with the sliding window of all layers. Adds a problem where only some layers have one."""
    fields = read_unbiased(keys)
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
        key, kinds = "max_window_layers", {FULL if window is None else _SLIDING}
        config_value = None if window is None else keys.take(key, int)
        if config_value is not None and layers is not None:
            kinds = ({FULL} if config_value > 0 else set()) | ({_SLIDING} if config_value < layers else set())
    interval = full_interval(types or ())
    if kinds not in ({FULL}, {_SLIDING}) and not (interval and window):
        keys.add_problem(
            key,
            f"found {config_value}: of a case, all layers have a sliding window, or none, or all but every n-th",
            is_needed=True,
        )
    elif kinds == {_SLIDING} and window is None:
        keys.add_problem(
            key, f"found {config_value}, and use_sliding_window and sliding_window give no window", is_needed=True
        )
    elif kinds == {FULL} and window is not None and is_mixture:
        keys.add_problem(
            key,
            f"found {config_value}: by it no layer has a window, and in transformers' qwen3_moe all have it",
            is_needed=True,
        )
    has_window = _SLIDING in kinds
    return {**fields, "sliding_window": window if has_window else None, "full_attention_interval": interval}


def full_interval(types: Sequence[Any]) -> int | None:
    """Return n where layers n - 1, 2 n - 1, ..., counted from 0, have full attention and the others a window."""
    interval = types.index(FULL) + 1 if FULL in types else 0
    expected = [_SLIDING if (layer + 1) % max(interval, 1) else FULL for layer in range(len(types))]
    return interval if interval > 1 and list(types) == expected else None


def take_multiplier(keys: ConfigKeys, key: str) -> float | None:
    """Return a factor; None of 1, which changes nothing."""
    value: float | None = keys.take(key, NUMBER_TYPES)
    return None if value == 1 else value


def take_activation(keys: ConfigKeys, key: str, names: dict[str, str]) -> str | None:
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
            keys.add_problem(f"{name}.rope_type", f"{beside}; expected {', '.join(SCALINGS)}, or no such keys")
        return None
    if kind == "dynamic":
        keys.remarks.append(f"{name} dynamic is left out: it changes nothing within max_position_embeddings")
        return None
    if not isinstance(kind, str) or kind not in SCALINGS:
        keys.add_problem(f"{name}.rope_type", f"found {kind!r}, expected default, {', '.join(SCALINGS)}")
        return None
    names, defaults = SCALINGS[kind]
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

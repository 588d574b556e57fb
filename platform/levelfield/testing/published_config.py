"""Read a case's model from Hugging Face's config.json. A key that a case cannot express is refused by its name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from levelfield.errors import DocumentError, UsageError
from levelfield.specs.architecture import Model
from levelfield.specs.base import MAX_SIZE, fault_text
from levelfield.specs.bounded_reading import read_mapping
from levelfield.testing.config_dense import DENSE_FORMS
from levelfield.testing.config_keys import CONFIG_KEYS, ConfigKeys, Fields, short_json
from levelfield.testing.config_mixtures import MIXTURE_FORMS

MIN_VOCABULARY_SIZE = 4  # a case's synthetic corpus needs it: two tokens may follow each token
_HEAD_BIAS = "its head has a bias"
_IMAGES = "it reads images"
_BOTH_NORMS = "norms before and after each part"
_YARN_SCALE = "its rope_scaling also scales the scores of attention (mscale_all_dim)"
# What a case cannot say of each, by model_type.
_UNSUPPORTED_MODELS = {
    "baichuan": "its head divides each row by its norm, or its larger model has ALiBi",
    "bert": "each token attends to all others",
    "deepseek_v2": _YARN_SCALE,
    "deepseek_v3": f"{_YARN_SCALE} (configs/cases/deepseek_v3.yaml is without)",
    "gemma2": f"it has {_BOTH_NORMS}, and soft caps (attn_logit_softcapping)",
    "gemma3_text": f"it has {_BOTH_NORMS}, and two rotary bases (rope_local_base_freq)",
    "gemma3": f"{_IMAGES}, and has {_BOTH_NORMS}",
    "glm4": f"it has {_BOTH_NORMS}, and rotates a part of each head (partial_rotary_factor)",
    "gpt_oss": "it has attention sinks, and clamped gates (swiglu_limit)",
    "gptj": f"{_HEAD_BIAS}, and its attention's matrices have none",
    "granitemoe": "its experts are not read (a granite without experts is)",
    "kimi_k2": _YARN_SCALE,
    "llama4": f"{_IMAGES}, and has attention in chunks",
    "llama4_text": "it has attention in chunks, and scales of queries by position (attn_temperature_tuning)",
    "llava": f"{_IMAGES} (give the config.json of its language model)",
    "ministral3": f"{_IMAGES}, and its attention's scores grow with the position (llama_4_scaling_beta)",
    "mistral3": f"{_IMAGES} (give the config.json of its language model)",
    "nemotron_h": "it has layers of Mamba",
    "phi": _HEAD_BIAS,
    "phi-msft": _HEAD_BIAS,
    "phi3_v": f"{_IMAGES} (give the config.json of its language model)",
    "qwen3_next": "it has layers of linear attention (gated delta rule)",
    "rwkv5": "it has no attention",
}
FORMS = {**DENSE_FORMS, **MIXTURE_FORMS}


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
    if not isinstance(kind, str) or kind not in FORMS:
        reason = (
            f", which a case cannot say: {_UNSUPPORTED_MODELS[kind]}"
            if isinstance(kind, str) and kind in _UNSUPPORTED_MODELS
            else ""
        )
        value = "missing" if kind is None else f"found {str(kind)[:40]!r}{reason}"
        expected = f"expected one of {', '.join(sorted(FORMS))}"
        by_hand = "For another one write the case by hand: docs/writing-a-case.md"
        raise UsageError(f"{path}: key 'model_type': {value}; {expected}. {by_hand}")
    if absent := sorted(ignored - set(content)):
        raise UsageError(f"--ignore {absent[0]}: {path} has no such key; leave the option out")
    form = FORMS[kind]
    keys = ConfigKeys(content, form.defaults, ignored, names=form.names, idle_keys=form.idle_keys)
    keys.take("model_type", str)
    keys.require("is_encoder_decoder", (False,), "a case has no encoder")
    expected = form.class_name or kind.title().replace("_", "") + "ForCausalLM"
    classes = keys.take("architectures", (list, type(None))) or [expected]
    if {str(name).lower() for name in classes} != {expected.lower()}:  # some old files have LLaMAForCausalLM
        keys.add_problem(
            "architectures", f"found {short_json(classes)}, expected {expected}, the language model of {kind}"
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
    names = ((name.removeprefix(f"{field}."), keys.config_key(name)) for name in CONFIG_KEYS)
    others = ", ".join(f"{name} is {key}" for name, key in names if key != name and key and name in message.split())
    raise UsageError(f"{path}: gives no model: {field or 'model'}: {message}{f'; {others}' if others else ''}")

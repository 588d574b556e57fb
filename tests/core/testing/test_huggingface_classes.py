"""No field of the model is lost on the way into HuggingFace's configuration and weights, with which tests compare."""

from __future__ import annotations

import contextlib
import itertools
import re
from typing import Any

import huggingface_classes as classes
import numpy as np
import pytest
from levelfield.specs.architecture import Experts, Model, Router
from levelfield.specs.base import load
from levelfield.specs.case import Case, Work
from plans import PLUGINS
from pydantic import ValidationError

WORK = load(Case, PLUGINS / "configs/cases/tiny.yaml").work("smoke")
LLAMA: dict[str, Any] = {
    "family": "llama",
    "positions": "rope",
    "rope_base": 10000.0,
    "norm": "rmsnorm",
    "activation": "swiglu",
    "bias": False,
    "tied_embeddings": False,
}
# Another valid value of every field of the model.
OTHER: dict[str, dict[str, Any]] = {
    "family": {"family": "llama"},
    "layers": {"layers": 3},
    "hidden_size": {"hidden_size": 32},
    "ffn_hidden_size": {"ffn_hidden_size": 48},
    "heads": {"heads": 8},
    "kv_heads": {"kv_heads": 2},
    "vocab_size": {"vocab_size": 96},
    "positions": {"positions": "rope", "rope_base": 500.0},
    "rope_base": {"positions": "rope", "rope_base": 600.0},
    "norm": {"norm": "rmsnorm"},
    "norm_eps": {"norm_eps": 1e-3},
    "activation": {"activation": "gelu_tanh"},
    "bias": {"bias": False},
    "tied_embeddings": {"tied_embeddings": False},
    "hidden_dropout": {"hidden_dropout": 0.1},
    "attention_dropout": {"attention_dropout": 0.1},
    "init_std": {"init_std": 0.03},
    "scaled_residual_init": {"scaled_residual_init": True},
    "head_dim": {"head_dim": 6},
    "qkv_bias": {"qkv_bias": True},
    "attention_bias": {"attention_bias": True},
    "norm_bias": {"norm_bias": False, "norm": "layernorm"},
    "query_key_norm": {"query_key_norm": True},
    "joint_query_key_norm": {"joint_query_key_norm": True},
    "sliding_window": {"sliding_window": 4},
    "full_attention_interval": {"sliding_window": 4, "full_attention_interval": 2},
    "rotary_dim": {"positions": "rope", "rope_base": 1e4, "rotary_dim": 2},
    "no_rope_interval": {"positions": "rope", "rope_base": 1e4, "no_rope_interval": 2},
    "rope_scaling": {"positions": "rope", "rope_base": 1e4, "rope_scaling": {"kind": "linear", "factor": 2}},
    "latent_attention": {"positions": "rope", "bias": False, "query_key_norm": False, "rope_base": 1e4,
        "latent_attention": {"key_value_rank": 8, "plain_size": 8, "rotary_size": 4, "value_size": 8}},
    "norm_place": {"norm_place": "after"},
    "parallel_residual": {"parallel_residual": "two_norms"},
    "embedding_scale": {"embedding_scale": 2.0},
    "residual_scale": {"residual_scale": 0.3},
    "logit_scale": {"logit_scale": 0.3},
    "attention_scale": {"attention_scale": 0.3},
    "experts": {"experts": {"count": 4, "chosen": 2, "ffn_hidden_size": 8}},
}  # fmt: skip
OTHER_OF_LLAMA: dict[str, dict[str, Any]] = {
    "family": {"family": "gpt"},
    "positions": {"positions": "learned", "rope_base": None},
    "norm": {"norm": "layernorm"},
    "bias": {"bias": True},
    "tied_embeddings": {"tied_embeddings": True},
}


def written(model: Model) -> tuple[Any, dict[str, bytes]]:
    """What their files have of a model: the configuration, and the weights as bytes."""
    work: Work = WORK.model_copy(update={"model": model})
    arrays = classes.to_hf(model, classes.initial_arrays(work))
    named = {name: np.asarray(array).tobytes() for name, array in arrays.items()}
    return classes.hf_config(model, work.training.sequence_length), named


def refused_fields(error: classes.NoEquivalent) -> set[str]:
    """Return the fields that a refusal names after HuggingFace's class."""
    _, _, after = str(error).partition(":")
    fields = {*Model.model_fields, *Experts.model_fields, *Router.model_fields}
    return fields & set(re.findall(r"\w+", after))


def lost(base: Model) -> list[str]:
    """The fields whose change alters nothing in their files, and that are not refused either.

    The family is a word that nothing follows from.
    """
    before, unseen = written(base), []
    assert set(OTHER) == set(Model.model_fields)
    for name in OTHER:
        model = change_field(base, name)
        try:
            unseen += [name] if written(model) == before and name != "family" else []
        except classes.NoEquivalent as error:
            assert refused_fields(error), name
    return unseen


def change_field(base: Model, name: str) -> Model:
    """Return the model with another value of a field, without a part that does not go with it."""
    content, later = base.model_dump(), {n: f.default for n, f in Model.model_fields.items() if f.json_schema_extra}
    unused: list[dict[str, Any]] = [{}, *({part: default} for part, default in later.items()), {"bias": False}]
    values = [table[name] for table in (OTHER, OTHER_OF_LLAMA) if name in table]
    values += [{name: later[name]}] if name in later else []
    for without, change in itertools.product(unused, values):
        with contextlib.suppress(ValidationError):
            model = Model.model_validate({**content, **without, **change})
            if getattr(model, name) != getattr(base, name):
                return model
    raise AssertionError(f"no other value of {name}")


CLASSES: dict[str, dict[str, Any]] = {
    "GPT2LMHeadModel": {},
    "LlamaForCausalLM": LLAMA,
    "MistralForCausalLM": {**LLAMA, "sliding_window": 3},
    "Qwen2ForCausalLM": {**LLAMA, "qkv_bias": True},
    "Qwen3ForCausalLM": {**LLAMA, "query_key_norm": True},
    "Olmo2ForCausalLM": {**LLAMA, "joint_query_key_norm": True, "norm_place": "after"},
    "Olmo3ForCausalLM": {
        **LLAMA,
        "joint_query_key_norm": True,
        "norm_place": "after",
        "sliding_window": 3,
        "full_attention_interval": 2,
    },
    "SmolLM3ForCausalLM": {**LLAMA, "no_rope_interval": 2},
    "CohereForCausalLM": {
        **LLAMA,
        "norm": "layernorm",
        "norm_bias": False,
        "parallel_residual": "one_norm",
        "logit_scale": 0.25,
    },
    "StableLmForCausalLM": {**LLAMA, "norm": "layernorm", "rotary_dim": 2},
    "GPTNeoXForCausalLM": {"positions": "rope", "rope_base": 1e4, "rotary_dim": 2, "parallel_residual": "two_norms"},
    "GraniteForCausalLM": {**LLAMA, "residual_scale": 0.2, "logit_scale": 0.125, "attention_scale": 0.1},
    "GemmaForCausalLM": {**LLAMA, "activation": "geglu_tanh", "embedding_scale": 4.0},  # the root of hidden_size 16
}


@pytest.mark.parametrize("name", CLASSES)
def test_every_field_of_the_model_is_in_their_files_or_refused(name: str) -> None:
    base = Model.model_validate({**WORK.model.model_dump(), **CLASSES[name]})
    assert classes.hf_config(base, 8)["architectures"] == [name]
    assert lost(base) == []


def test_a_field_that_is_dropped_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    right = classes._gpt_config
    monkeypatch.setattr(classes, "_gpt_config", lambda *a: {k: v for k, v in right(*a).items() if k[-5:] != "pdrop"})
    monkeypatch.setattr(classes, "_GPT_ACTIVATIONS", {"gelu": "gelu", "gelu_tanh": "gelu"})
    assert lost(WORK.model) == ["activation", "hidden_dropout"]


def test_the_dropout_of_a_llama_is_refused_by_name() -> None:
    model = Model.model_validate({**WORK.model.model_dump(), **LLAMA, "hidden_dropout": 0.1})
    with pytest.raises(classes.NoEquivalent, match=r"hidden_dropout 0\.1") as error:
        classes.hf_config(model, 8)
    assert "LlamaForCausalLM" in str(error.value)


# ---- mixtures of experts

MIXTURE = {**LLAMA, "experts": {"count": 4, "chosen": 2, "ffn_hidden_size": 8}}
OTHER_EXPERTS: dict[str, Any] = {
    "count": 6, "chosen": 1, "ffn_hidden_size": 10, "shared": 1, "first_layer": 1, "every": 2, "capacity_factor": 1.0,
    "shared_gate": True,
}  # fmt: skip
OTHER_ROUTER: dict[str, Any] = {
    "scores": "sigmoid", "normalised": False, "scale": 2.0, "groups": {"count": 2, "chosen": 1}, "bias_rate": 1e-3,
}  # fmt: skip


def lost_in_experts(base: Model) -> list[str]:
    """As `lost`, for the fields of the experts and of their router but its losses, which no weight follows from."""
    assert {*OTHER_EXPERTS, "router"} == set(Experts.model_fields)
    assert {*OTHER_ROUTER, "auxiliary_loss", "z_loss"} == set(Router.model_fields)
    content, before, unseen = base.model_dump(), written(base), []
    changes = [({name: value}, name) for name, value in OTHER_EXPERTS.items()]
    changes += [({"router": {**content["experts"]["router"], name: v}}, name) for name, v in OTHER_ROUTER.items()]
    for change, name in changes:
        try:
            shared = {"shared": 1} if "shared_gate" in change else {}
            model = Model.model_validate({**content, "experts": {**content["experts"], **shared, **change}})
            unseen += [name] if written(model) == before else []
        except classes.NoEquivalent as error:
            assert refused_fields(error), name
    return unseen


@pytest.mark.parametrize("normed", [False, True], ids=["mixtral", "qwen3 moe"])
def test_every_field_of_a_mixture_is_in_their_files_or_refused(normed: bool) -> None:
    base = Model.model_validate({**WORK.model.model_dump(), **MIXTURE, "query_key_norm": normed})
    config, _ = written(base)
    assert config["architectures"] == ["Qwen3MoeForCausalLM" if normed else "MixtralForCausalLM"]
    assert lost_in_experts(base) == []
    # Mixtral has no dense layer, so no width of one
    assert lost(base) == ([] if normed else ["ffn_hidden_size"])


def test_a_mixture_has_a_matrix_for_each_expert() -> None:
    base = Model.model_validate({**WORK.model.model_dump(), **MIXTURE})
    arrays = classes.initial_arrays(WORK.model_copy(update={"model": base}))
    named = classes.to_hf(base, arrays)
    for ours, theirs in (("gate", "w1"), ("up", "w3"), ("down", "w2")):
        matrix = named[f"model.layers.0.block_sparse_moe.experts.3.{theirs}.weight"]
        assert np.array_equal(matrix, arrays[f"layers.0.mlp.experts.{ours}.weight"][3])

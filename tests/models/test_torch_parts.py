"""The parts of today's models in torch: alike in every layout, and GPT and Llama as they were before them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from layouts import MODELS, SINGLE, Curve, compare, parsed_job, parsed_model, planted, shallow, small_job, train
from levelfield.worker import Initializer, layer_window
from matrix import VARIANTS

pytestmark = [pytest.mark.torch, pytest.mark.layouts]

RECORDED = json.loads(Path(__file__).with_name("recorded_curves.json").read_text())
STEPS = 3
COMPOSED = {
    "window, yarn, gelu gate, scaled embeddings": {
        "sliding_window": 5, "activation": "geglu_tanh", "embedding_scale": 32**0.5, "tied_embeddings": True,
        "rope_scaling": {"kind": "yarn", "factor": 4.0, "original_length": 16, "beta_fast": 8.0, "beta_slow": 1.0},
    },
    "norms after, linear scaling": {
        "norm_place": "after", "head_dim": 6, "residual_scale": 0.5, "logit_scale": 0.5, "attention_scale": 0.2,
        "rope_scaling": {"kind": "linear", "factor": 2.0},
    },
    "one norm for attention and MLP, windows and rotations of some layers": {
        "norm": "layernorm", "norm_bias": False, "parallel_residual": "one_norm", "attention_bias": True,
        "sliding_window": 5, "full_attention_interval": 2, "no_rope_interval": 2, "rotary_dim": 4,
    },
    "two norms side by side": {"parallel_residual": "two_norms", "sliding_window": 5, "full_attention_interval": 2},
}  # fmt: skip


def facts_of(curve: Curve) -> dict[str, object]:
    """What a curve says, short: the figures of some steps, and digests of the weights and tokens."""
    exact = {"weights": curve.weights, "tokens": curve.token_checksums}
    digests = {
        key: hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest() for key, value in exact.items()
    }
    return {"losses": curve.losses[:40:13], "grad_norms": curve.grad_norms[:40:13], **digests}


@pytest.mark.parametrize("family", sorted(RECORDED))
def test_gpt_and_llama_train_what_they_trained_before_models_had_parts(
    family: str, reference: Callable[[str], Curve]
) -> None:
    """Recorded then. Digits beyond the limits are the processor's: on the one of then they were the same bits."""
    found, recorded = facts_of(reference(family)), RECORDED[family]
    assert {key: found[key] for key in ("weights", "tokens")} == {key: recorded[key] for key in ("weights", "tokens")}
    assert found["losses"] == pytest.approx(recorded["losses"], rel=1e-5)
    assert found["grad_norms"] == pytest.approx(recorded["grad_norms"], rel=1e-4)


@pytest.mark.parametrize(
    ("composed", "name"),
    list(zip(COMPOSED, ("TP2 sequence parallel", "ZeRO 3, DP2", "TP2 sequence parallel", "CP2"), strict=True)),
)
def test_other_parts_train_alike_in_layouts_that_divide_them(
    composed: str, name: str, torch_of: Callable[[dict[str, Any]], Curve]
) -> None:
    model = {**shallow(MODELS["llama"]), **COMPOSED[composed]}
    right = torch_of(small_job(model, SINGLE, STEPS))
    found = compare(train(small_job(model, VARIANTS[name], STEPS)), right)
    assert found.is_within_limits(), found


UNSUMMED = "from parallelism import tensor_parallel\ntensor_parallel.head_norms = lambda model: {}"


def test_a_norm_of_queries_that_is_not_summed_over_the_heads_of_all_ranks_is_seen(
    tmp_path: Path, torch_of: Callable[[dict[str, Any]], Curve]
) -> None:
    """The gradient's whole norm moves little; that of the parameter does not."""
    model = shallow(MODELS["qwen"])
    right = torch_of(small_job(model, SINGLE, STEPS))
    found = compare(train(small_job(model, VARIANTS["TP2"], STEPS), planted(tmp_path, "torch", UNSUMMED)), right)
    assert not found.is_within_limits()
    assert found.grad_norm is not None and found.parameter_norm is not None
    assert found.grad_norm < 0.05 < 0.2 < found.parameter_norm


def loss_of(model: dict[str, Any]) -> float:
    """Of the initial weights, in this process."""
    from model.attention import choose_attention
    from model.decoder import Decoder, stage_of

    fields = parsed_model(model)
    initializer = Initializer(parsed_job(small_job(model, SINGLE, seed=1)))
    attend = lambda layer: choose_attention("sdpa", 0.0, None, layer_window(fields, layer))  # noqa: E731
    ours = Decoder(fields, 32, torch.float32, stage_of(fields.layers, 1, 0), attend)
    specs = initializer.parameters(fields)
    ours.load_state_dict({name: torch.from_numpy(initializer.array(name, specs[name].shape)) for name in specs})
    ours.prepare(torch.device("cpu"))
    tokens = torch.arange(33)[None] * 7 % fields.vocab_size
    return ours(tokens[:, :-1], tokens[:, 1:]).item()


def test_each_part_changes_the_loss() -> None:
    """So that a part which is read and not used shows."""
    window, after, *_ = COMPOSED.values()
    changes = [
        *({key: MODELS["qwen"][key]} for key in ("head_dim", "query_key_norm", "rope_scaling")),
        *({key: value} for key, value in {**window, **after}.items() if key != "head_dim"),
        {"rope_scaling": window["rope_scaling"]},
        {"rope_scaling": {**window["rope_scaling"], "magnitude": 1.5}},
        {"sliding_window": 5, "full_attention_interval": 2},
        {"parallel_residual": "one_norm"},  # two norms are equal at first
        {"no_rope_interval": 2},
        {"rotary_dim": 4},
        {"norm": "layernorm"},
    ]
    losses = {loss_of({**MODELS["llama"], "init_std": 0.2, **change}) for change in ({}, *changes)}
    assert len(losses) == 1 + len(changes)

"""The torch models against HuggingFace's, in float32, with every parameter random: biases and norms too."""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from layouts import EVERYWHERE, MODELS
from levelfield.errors import UsageError
from levelfield.publish.export import export_hf, hf_config, initial_arrays, to_hf
from levelfield.specs.case import Model, Work
from levelfield.worker import Initializer

pytestmark = pytest.mark.torch
LENGTH = 24
TOLERANCE = 1e-5


@dataclasses.dataclass(frozen=True)
class Pair:
    """Our model and HuggingFace's with the same random weights."""

    ours: torch.nn.Module
    theirs: torch.nn.Module

    def difference(self) -> float:
        tokens = torch.randint(0, self.ours.model.vocab_size, (3, LENGTH), generator=torch.Generator().manual_seed(1))
        with torch.no_grad():
            return (self.ours(tokens) - self.theirs(tokens).logits).abs().max().item()


def model_of(family: str, **changes) -> Model:
    return Model.model_validate({**MODELS[family], **changes})


def random_arrays(model: Model) -> dict[str, np.ndarray]:
    """Every parameter far from its initial value, so that a forgotten or exchanged one shows."""
    generator = np.random.default_rng(3)
    job = SimpleNamespace(
        model=SimpleNamespace(**model.model_dump()), training=SimpleNamespace(seed=1, sequence_length=LENGTH)
    )
    return {
        name: generator.normal(1.0 if spec.fill == 1.0 else 0.0, 0.2, spec.shape).astype(np.float32)
        for name, spec in Initializer(job).parameters(job.model).items()
    }


def build(model: Model, arrays: dict[str, np.ndarray]):
    from attention import choose_attention
    from decoder import Decoder, stage_of

    fields = SimpleNamespace(**model.model_dump())
    ours = Decoder(fields, LENGTH, torch.float32, stage_of(model.layers, 1, 0), choose_attention("sdpa", 0.0, None))
    ours.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})
    ours.prepare(torch.device("cpu"))
    return ours


def pair(model: Model) -> Pair:
    arrays = random_arrays(model)
    config = transformers.AutoConfig.for_model(**hf_config(model, LENGTH))
    theirs = transformers.AutoModelForCausalLM.from_config(config).eval()
    state = {name: torch.from_numpy(array) for name, array in to_hf(model, arrays).items()}
    missing, unexpected = theirs.load_state_dict(state, strict=False)
    assert set(missing) <= ({"lm_head.weight"} if model.tied_embeddings else set())
    assert not unexpected
    theirs.tie_weights()
    return Pair(build(model, arrays), theirs)


CASES = [
    pytest.param("gpt", {}, id="gpt"),
    pytest.param("gpt", {"activation": "gelu"}, id="gpt erf"),
    pytest.param("gpt", {"tied_embeddings": False, "norm_eps": 1e-3}, id="gpt untied"),
    pytest.param("llama", {}, id="llama grouped queries"),
    pytest.param("llama", {"kv_heads": 4, "tied_embeddings": True}, id="llama tied"),
    pytest.param("llama", {"bias": True, "rope_base": 500000.0, "kv_heads": 1}, id="llama biases"),
]


@pytest.mark.parametrize(("family", "changes"), CASES)
def test_logits_are_those_of_huggingface(family, changes):
    assert pair(model_of(family, **changes)).difference() <= TOLERANCE


@pytest.mark.parametrize(
    ("family", "fault"),
    [
        ("gpt", {"layers.1.attention.query.weight": "layers.1.attention.key.weight"}),
        ("gpt", {"layers.0.mlp_norm.bias": "layers.0.attention_norm.bias"}),
        ("llama", {"layers.2.mlp.gate.weight": "layers.2.mlp.up.weight"}),
        ("llama", {"final_norm.weight": "layers.3.mlp_norm.weight"}),
    ],
)
def test_an_exchanged_parameter_shows_in_the_logits(family, fault):
    model = model_of(family)
    wrong = pair(model)
    arrays = random_arrays(model)
    exchanged = {name: arrays[fault.get(name, name)] for name in arrays}
    assert Pair(build(model, exchanged), wrong.theirs).difference() > 100 * TOLERANCE


@pytest.mark.parametrize("fault", [{"norm_eps": 1e-2}, {"rope_base": 20000.0}])
def test_a_wrong_constant_shows_in_the_logits(fault):
    model = model_of("llama")
    right = pair(model)
    wrong = build(model_of("llama", **fault), random_arrays(model))
    assert Pair(wrong, right.theirs).difference() > 10 * TOLERANCE


@pytest.mark.parametrize("family", EVERYWHERE)
def test_an_export_is_loaded_by_from_pretrained(family, tmp_path):
    work = work_of(family)
    paths = export_hf(work, tmp_path / "weights")
    assert [path.name for path in paths] == ["config.json", "model.safetensors"]
    assert json.loads(paths[0].read_text())["vocab_size"] == work.model.vocab_size
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "weights").eval()
    ours = build(work.model, initial_arrays(work))
    assert Pair(ours, theirs).difference() <= TOLERANCE


@pytest.mark.parametrize(
    ("family", "changes", "named"),
    [
        ("llama", {"positions": "learned", "rope_base": None}, "positions 'learned'"),
        ("llama", {"activation": "gelu"}, "activation 'gelu'"),
        ("gpt", {"bias": False}, "bias False"),
        ("gpt", {"kv_heads": 2}, "kv_heads 2"),
        ("gpt", {"norm": "rmsnorm"}, "norm 'rmsnorm'"),
    ],
)
def test_an_architecture_without_an_equivalent_is_refused(family, changes, named):
    with pytest.raises(UsageError, match=named):
        hf_config(model_of(family, **changes), LENGTH)


def work_of(family: str) -> Work:
    """A whole work around the small model; only its model, length and seed matter here."""
    from layouts import SINGLE, job_of

    job = job_of(MODELS[family], SINGLE, sequence_length=LENGTH)
    return Work.model_validate(
        {
            "model": job["model"],
            "training": job["training"],
            "data": job["data"],
            "window": {"first_step": 2, "last_step": 40},
            "acceptance": {"final_loss_below_fraction": 0.9, "tail_steps": 5},
            "limits": {"heartbeat_seconds": 30, "step_seconds": 60, "start_seconds": 60},
        }
    )

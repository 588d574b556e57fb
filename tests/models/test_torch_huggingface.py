"""The torch models against HuggingFace's, in float32, with every parameter random: biases and norms too."""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import transformers
from huggingface_classes import NoEquivalent, hf_config, initial_arrays, to_hf
from layouts import COMMON_MODELS, MODELS, parsed_model
from levelfield.specs.architecture import Model
from levelfield.specs.case import Work
from levelfield.worker.parameters import list_parameters
from numpy.typing import NDArray
from safetensors.numpy import save_file

if TYPE_CHECKING:
    from model.decoder import Decoder

pytestmark = pytest.mark.torch
LENGTH = 24
TOLERANCE = 1e-5


@dataclasses.dataclass(frozen=True)
class Pair:
    """Our model and HuggingFace's with the same random weights."""

    ours: Decoder
    theirs: Any  # a class of transformers

    def difference(self) -> float:
        tokens = torch.randint(0, self.ours.model.vocab_size, (3, LENGTH), generator=torch.Generator().manual_seed(1))
        with torch.no_grad():
            return (self.ours(tokens) - self.theirs(tokens).logits).abs().max().item()

    def trained_difference(self, model: Model) -> float:
        """The largest relative difference of the loss and of each parameter's gradient."""
        tokens = torch.randint(
            0, self.ours.model.vocab_size, (3, LENGTH + 1), generator=torch.Generator().manual_seed(2)
        )
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        ours = self.ours(inputs, targets)
        theirs = torch.nn.functional.cross_entropy(self.theirs(inputs).logits.flatten(0, 1), targets.flatten())
        ours.backward()
        theirs.backward()
        gradients = {name: gradient_of(parameter) for name, parameter in self.ours.named_parameters()}
        # to_hf may add a constant: of a gradient it is taken off again
        zeros = to_hf(model, {name: np.zeros_like(gradient) for name, gradient in gradients.items()})
        renamed = {name: array - zeros[name] for name, array in to_hf(model, gradients).items()}
        found = {name: gradient_of(parameter) for name, parameter in self.theirs.named_parameters()}
        assert set(found) == set(renamed)
        least = 1e-3 * max(np.linalg.norm(gradient) for gradient in found.values())
        apart = [np.linalg.norm(found[n] - renamed[n]) / max(np.linalg.norm(found[n]), least) for n in found]
        return max(abs(ours.item() / theirs.item() - 1), *apart)


def gradient_of(parameter: torch.nn.Parameter) -> NDArray[np.float32]:
    assert parameter.grad is not None
    return parameter.grad.numpy()


def model_of(family: str, **changes: Any) -> Model:
    return Model.model_validate({**MODELS[family], **changes})


def random_arrays(model: Model) -> dict[str, np.ndarray]:
    """Every parameter far from its initial value, so that a forgotten or exchanged one shows."""
    generator = np.random.default_rng(3)
    return {
        name: generator.normal(1.0 if spec.fill == 1.0 else 0.0, 0.2, spec.shape).astype(np.float32)
        for name, spec in list_parameters(parsed_model(model.model_dump()), LENGTH).items()
    }


def build(model: Model, arrays: dict[str, np.ndarray]) -> Decoder:
    from model.attention import choose_attention
    from model.decoder import Decoder, stage_of

    fields = parsed_model(model.model_dump())
    attend = lambda layer: choose_attention("sdpa", 0.0, None, model.layer_window(layer))  # noqa: E731
    ours = Decoder(fields, LENGTH, torch.float32, stage_of(model.layers, 1, 0), attend)
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


LLAMA3 = {"kind": "llama3", "factor": 8.0, "original_length": 12, "low_factor": 1.0, "high_factor": 4.0}
YARN = {"kind": "yarn", "factor": 4.0, "original_length": 6, "beta_fast": 2.0, "beta_slow": 0.5}
GEMMA = {"activation": "geglu_tanh", "embedding_scale": 32**0.5, "tied_embeddings": True}
GRANITE = {
    "embedding_scale": 3.0, "residual_scale": 0.3, "logit_scale": 0.2, "attention_scale": 0.1, "tied_embeddings": True,
}  # fmt: skip
OLMO3 = {
    "joint_query_key_norm": True, "norm_place": "after", "sliding_window": 7, "full_attention_interval": 2,
}  # fmt: skip
COHERE = {
    "parallel_residual": "one_norm", "norm": "layernorm", "norm_bias": False, "logit_scale": 0.25,
    "tied_embeddings": True,
}  # fmt: skip
STABLELM = {"norm": "layernorm", "rotary_dim": 4, "qkv_bias": True}
NEOX = {
    "norm": "layernorm", "bias": True, "activation": "gelu", "kv_heads": 4, "rotary_dim": 2,
    "parallel_residual": "two_norms",
}  # fmt: skip
CASES = [
    pytest.param("gpt", {}, id="gpt"),
    pytest.param("gpt", {"activation": "gelu"}, id="gpt erf"),
    pytest.param("gpt", {"tied_embeddings": False, "norm_eps": 1e-3}, id="gpt untied"),
    pytest.param("llama", {}, id="llama grouped queries"),
    pytest.param("llama", {"kv_heads": 4, "tied_embeddings": True}, id="llama tied"),
    pytest.param("llama", {"bias": True, "rope_base": 500000.0, "kv_heads": 1}, id="llama biases"),
    pytest.param("llama", {"rope_scaling": LLAMA3}, id="llama 3.1"),
    pytest.param("llama", {"rope_scaling": {"kind": "linear", "factor": 3.0}, "head_dim": 10}, id="linear"),
    pytest.param("llama", {"rope_scaling": YARN}, id="yarn"),
    pytest.param("llama", {"rope_scaling": {**YARN, "magnitude": 1.4}, "head_dim": 14}, id="yarn's magnitude"),
    pytest.param("llama", {"qkv_bias": True, "norm_eps": 1e-6, "rope_base": 1e6}, id="qwen2.5"),
    pytest.param("llama", {"query_key_norm": True, "head_dim": 12, "norm_eps": 1e-6}, id="qwen3"),
    pytest.param("llama", {"query_key_norm": True, "rope_scaling": YARN, "kv_heads": 1}, id="qwen3 yarn"),
    pytest.param("llama", {"joint_query_key_norm": True, "norm_place": "after"}, id="olmo2"),
    pytest.param("llama", GRANITE, id="granite"),
    pytest.param("llama", {"residual_scale": 0.3, "bias": True, "head_dim": 10}, id="granite's residuals alone"),
    pytest.param("llama", OLMO3, id="olmo3"),
    pytest.param("llama", COHERE, id="cohere"),
    pytest.param("llama", STABLELM, id="stablelm"),
    pytest.param("llama", NEOX, id="gpt neox"),
    pytest.param("llama", {**NEOX, "parallel_residual": None, "rotary_dim": None}, id="gpt neox one after the other"),
    pytest.param("llama", {"no_rope_interval": 2, "tied_embeddings": True}, id="smollm3"),
    pytest.param("llama", {"attention_bias": True}, id="internlm, or llama with biases of attention"),
    pytest.param("llama", {"sliding_window": 7}, id="mistral"),
    pytest.param("llama", GEMMA, id="gemma"),
    pytest.param("llama", {**GEMMA, "head_dim": 6, "kv_heads": 1, "tied_embeddings": False}, id="gemma untied"),
]


@pytest.mark.parametrize(("family", "changes"), CASES)
def test_logits_are_those_of_huggingface(family: str, changes: dict[str, Any]) -> None:
    model = model_of(family, **changes)
    both = pair(model)
    assert both.difference() <= TOLERANCE
    assert both.trained_difference(model) <= TOLERANCE


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"rope_scaling": LLAMA3}, {"rope_scaling": {**LLAMA3, "factor": 7.9}}),
        ({"rope_scaling": LLAMA3}, {"rope_scaling": {**LLAMA3, "high_factor": 4.1}}),
        ({"rope_scaling": YARN}, {"rope_scaling": {**YARN, "magnitude": 1.0}}),
        ({"rope_scaling": YARN}, {"rope_scaling": {**YARN, "beta_slow": 0.05}}),
        ({"sliding_window": 7}, {"sliding_window": 8}),
        ({"sliding_window": 7}, {"sliding_window": None}),
        (GEMMA, {"embedding_scale": 1.01 * 32**0.5}),
        (GEMMA, {"activation": "swiglu"}),
        (OLMO3, {"full_attention_interval": None}),
        (OLMO3, {"full_attention_interval": 3}),
        (COHERE, {"logit_scale": 0.26}),
        (NEOX, {"parallel_residual": None}),
        (STABLELM, {"rotary_dim": 2}),
        (NEOX, {"rotary_dim": 4}),
        ({"no_rope_interval": 2}, {"no_rope_interval": 4}),
        (GRANITE, {"residual_scale": 0.31}),
        (GRANITE, {"logit_scale": 0.21}),
        (GRANITE, {"attention_scale": None}),
        ({"query_key_norm": True}, {"query_key_norm": True, "norm_eps": 1e-2}),
        (
            {"joint_query_key_norm": True, "norm_place": "after"},
            {"joint_query_key_norm": True, "norm_place": "after", "norm_eps": 1e-2},
        ),
    ],
)
def test_a_wrong_constant_of_a_part_shows_in_the_logits(changes: dict[str, Any], fault: dict[str, Any]) -> None:
    right = model_of("llama", **changes)
    wrong = build(model_of("llama", **{**changes, **fault}), random_arrays(right))
    assert Pair(wrong, pair(right).theirs).difference() > 10 * TOLERANCE


def test_norms_after_a_layers_parts_are_those_of_a_llama_with_its_norms_moved() -> None:
    """HuggingFace has no class with this part alone."""
    model = model_of("llama")
    both = pair(model)
    for layer in both.theirs.model.layers:
        layer.forward = functools.partial(norms_after, layer)
    after = Pair(build(model_of("llama", norm_place="after"), random_arrays(model)), both.theirs)
    assert both.difference() > 100 * TOLERANCE
    assert after.difference() <= TOLERANCE
    assert after.trained_difference(model) <= TOLERANCE


def norms_after(layer: Any, hidden_states: torch.Tensor, **more: Any) -> torch.Tensor:
    hidden_states = hidden_states + layer.input_layernorm(layer.self_attn(hidden_states=hidden_states, **more)[0])
    return hidden_states + layer.post_attention_layernorm(layer.mlp(hidden_states))


@pytest.mark.parametrize(
    ("family", "fault"),
    [
        ("gpt", {"layers.1.attention.query.weight": "layers.1.attention.key.weight"}),
        ("gpt", {"layers.0.mlp_norm.bias": "layers.0.attention_norm.bias"}),
        ("llama", {"layers.2.mlp.gate.weight": "layers.2.mlp.up.weight"}),
        ("llama", {"final_norm.weight": "layers.3.mlp_norm.weight"}),
    ],
)
def test_an_exchanged_parameter_shows_in_the_logits(family: str, fault: dict[str, Any]) -> None:
    model = model_of(family)
    wrong = pair(model)
    arrays = random_arrays(model)
    exchanged = {name: arrays[fault.get(name, name)] for name in arrays}
    assert Pair(build(model, exchanged), wrong.theirs).difference() > 100 * TOLERANCE


@pytest.mark.parametrize("fault", [{"norm_eps": 1e-2}, {"rope_base": 20000.0}])
def test_a_wrong_constant_shows_in_the_logits(fault: dict[str, Any]) -> None:
    model = model_of("llama")
    right = pair(model)
    wrong = build(model_of("llama", **fault), random_arrays(model))
    assert Pair(wrong, right.theirs).difference() > 10 * TOLERANCE


@pytest.mark.parametrize("family", COMMON_MODELS)
def test_initial_weights_are_loaded_by_from_pretrained(family: str, tmp_path: Path) -> None:
    work = work_of(family)
    arrays = initial_arrays(work)
    (tmp_path / "config.json").write_text(json.dumps(hf_config(work.model, work.training.sequence_length)))
    save_file(to_hf(work.model, arrays), tmp_path / "model.safetensors", metadata={"format": "pt"})
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    ours = build(work.model, arrays)
    assert Pair(ours, theirs).difference() <= TOLERANCE


@pytest.mark.parametrize(
    ("family", "changes", "named"),
    [
        ("llama", {"positions": "learned", "rope_base": None}, "GPT2LMHeadModel: norm 'rmsnorm'"),
        ("llama", {"norm_place": "after"}, "LlamaForCausalLM: norm_place 'after'"),
        ("llama", {"query_key_norm": True, "qkv_bias": True}, "Qwen3ForCausalLM: qkv_bias True"),
        ("llama", {"query_key_norm": True, "sliding_window": 8}, "MistralForCausalLM: query_key_norm True"),
        ("llama", {"qkv_bias": True, "activation": "gelu"}, "Qwen2ForCausalLM: activation 'gelu'"),
        ("llama", {"activation": "geglu_tanh"}, "GemmaForCausalLM: embedding_scale None"),
        ("llama", {**GEMMA, "embedding_scale": 5.0}, r"embedding_scale 5.0 \(it has 5.65"),
        ("llama", {"activation": "gelu"}, "activation 'gelu'"),
        ("gpt", {"bias": False}, "bias False"),
        ("gpt", {"kv_heads": 2}, "kv_heads 2"),
        ("gpt", {"norm": "rmsnorm"}, "norm 'rmsnorm'"),
    ],
)
def test_an_architecture_without_an_equivalent_is_refused(family: str, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(NoEquivalent, match=named):
        hf_config(model_of(family, **changes), LENGTH)


def work_of(family: str) -> Work:
    """A whole work around the small model; only its model, length and seed matter here."""
    from layouts import SINGLE, small_job

    job = small_job(MODELS[family], SINGLE, sequence_length=LENGTH)
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

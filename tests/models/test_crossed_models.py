"""What the case says of a model decides, not its family: a GPT with SwiGLU, a Llama with GELU; uneven stages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from layouts import MODELS, SINGLE, Curve, Variant, compare, planted, script_of, small_job, train

pytestmark = [pytest.mark.layouts, pytest.mark.torch]

CROSSED: dict[str, dict[str, Any]] = {
    "gpt with swiglu": {**MODELS["gpt"], "activation": "swiglu"},
    "gpt like llama": {**MODELS["llama"], "family": "gpt"},
    "llama with gelu": {**MODELS["llama"], "activation": "gelu"},
    "llama with a gpt block": {**MODELS["llama"], "activation": "gelu_tanh", "bias": True, "norm": "layernorm"},
}
STEPS = 3
UNEVEN = Variant("PP3", {"pipeline": 3})  # four layers: two stages of one layer after one of two


def slow(*values: str) -> Any:
    return pytest.param(*values, marks=pytest.mark.thorough)


@pytest.mark.parametrize(
    ("framework", "name"),
    [
        ("deepspeed", "gpt with swiglu"),
        *(slow("deepspeed", name) for name in CROSSED if name != "gpt with swiglu"),
        *(slow(framework, name) for framework in ("paddle", "megatron", "oneflow") for name in CROSSED),
    ],
)
def test_a_crossed_model_trains_alike_in_every_framework(
    framework: str, name: str, interpreter_of: Callable[[str], Path], torch_of: Callable[[dict[str, Any]], Curve]
) -> None:
    """Paddle, Megatron and OneFlow have MLPs of their own; DeepSpeed trains torch's model."""
    job = small_job(CROSSED[name], SINGLE, STEPS)
    found = compare(train(job, script_of(framework), interpreter_of(framework)), torch_of(job))
    assert found.is_within_limits(), found


def test_the_wrong_mlp_is_seen(tmp_path: Path, torch_of: Callable[[dict[str, Any]], Curve]) -> None:
    """GELU's gate for SwiGLU's, of the same parameters."""
    fault = "from model import decoder\ndecoder.GATES['swiglu'] = decoder.functional.gelu"
    job = small_job(CROSSED["gpt with swiglu"], SINGLE, STEPS)
    found = compare(train(job, planted(tmp_path, "torch", fault)), torch_of(job))
    assert found.same_weights and not found.is_within_limits()


@pytest.mark.parametrize("framework", ["torch", slow("paddle"), slow("oneflow")])
def test_stages_that_differ_by_a_layer_train_what_one_process_trains(
    framework: str, interpreter_of: Callable[[str], Path], torch_of: Callable[[dict[str, Any]], Curve]
) -> None:
    python = None if framework == "torch" else interpreter_of(framework)
    curve = train(small_job(MODELS["gpt"], UNEVEN, STEPS), script_of(framework), python)
    found = compare(curve, torch_of(small_job(MODELS["gpt"], SINGLE, STEPS)))
    assert found.is_within_limits(), found

"""DeepSpeed: padding, 16 bits, what is kept of a run, and planted faults. Its layouts: test_layouts.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from layouts import MODELS, NOBODY_JOINS, SINGLE, Variant, compare, events, job_of, launch, planted, script_of, train

pytestmark = [pytest.mark.layouts, pytest.mark.torch]

TRAIN = script_of("deepspeed")


def zero(stage: int, ranks: int = 2) -> dict[str, int]:
    return {"data": ranks, "sharding_stage": stage, "sharding_degree": ranks if stage else 1}


@pytest.fixture(scope="module")
def python(interpreter_of) -> Path:
    return interpreter_of("deepspeed")


def test_sizes_that_ranks_do_not_divide(python):
    """ZeRO 3 pads each flattened parameter: initial values, weights and gradients must not take the padding."""
    odd = {"vocab_size": 67, "hidden_size": 42, "ffn_hidden_size": 51, "heads": 3, "kv_heads": 3}
    model = {**MODELS["llama"], **odd, "layers": 2}
    variant = Variant("ZeRO 3, DP4", zero(3, 4), micro_batch=1)
    found = compare(train(job_of(model, variant, 10), TRAIN, python), train(job_of(model, SINGLE, 10)))
    assert found.within(), found


# ---- 16 bits


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_bf16_starts_from_the_same_float32_weights_and_stays_near(stage, python):
    job = job_of(MODELS["gpt"], Variant("", zero(stage)), 10, precision="bf16")
    found = compare(train(job, TRAIN, python), train(job_of(MODELS["gpt"], SINGLE, 10)))
    assert found.same_weights and found.same_tokens
    assert 0 < found.loss < 1e-3
    assert found.grad_norm < 2e-2
    assert found.total_norm < 1e-5


# ---- the case's other promises


@pytest.mark.parametrize(
    ("layout", "precision", "words"),
    [
        ({"tensor": 2}, "fp32", "tensor 2"),
        ({"pipeline": 2}, "fp32", "pipeline 2"),
        ({}, "fp8", "precision fp8"),
        ({}, "fp16", "precision fp16"),
        ({"data": 4, "sharding_stage": 3, "sharding_degree": 2}, "fp32", "2 of 4 ranks"),
    ],
)
def test_what_is_not_offered_is_unsupported(layout, precision, words, tmp_path, python):
    job = job_of(MODELS["gpt"], Variant("", layout, micro_batch=1), 2, precision=precision)
    script = planted(tmp_path, "deepspeed", NOBODY_JOINS)
    assert {end.returncode for end in launch(job, tmp_path, script, python)} == {1}
    error = events(tmp_path, 0)[-1]
    assert error["class"] == "unsupported"
    assert words in error["message"]


# ---- planted faults

SUMMED = """
import deepspeed.runtime.zero.stage_1_and_2 as stage
right = stage.DeepSpeedZeroOptimizer.__init__
def init(self, *positional, **named):
    named["gradient_average"] = False
    right(self, *positional, **named)
stage.DeepSpeedZeroOptimizer.__init__ = init
"""
UNCLIPPED = """
import engine
right = engine.configuration
engine.configuration = lambda job: {**right(job), "gradient_clipping": 0.0}
"""


@pytest.mark.parametrize("fault", [SUMMED, UNCLIPPED], ids=["gradients summed", "gradients not clipped"])
def test_a_fault_is_seen(fault, tmp_path, python, differs):
    found = differs(tmp_path, "deepspeed", python, fault, variant=Variant("", zero(1)))
    assert found.first_loss < 1e-6
    assert not found.within(), found

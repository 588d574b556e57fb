"""DeepSpeed: padding, 16 bits, what is unsupported, and planted faults. Its layouts: test_layouts.py."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from layouts import (
    MODELS,
    NOBODY_JOINS,
    SINGLE,
    Curve,
    Variant,
    compare,
    events,
    first_steps,
    launch,
    planted,
    script_of,
    small_job,
    train,
)
from levelfield.catalog.registry import Registry
from levelfield.catalog.support import support_rows
from levelfield.specs.case import Precision
from levelfield.specs.implementation import ImplementationFile

pytestmark = [pytest.mark.layouts, pytest.mark.torch]

TRAIN = script_of("deepspeed")


def zero(stage: int, ranks: int = 2) -> dict[str, int]:
    return {"data": ranks, "sharding_stage": stage, "sharding_degree": ranks if stage else 1}


FRAMEWORK = "deepspeed"


def test_sizes_that_ranks_do_not_divide(python: Path, torch_of: Callable[[dict[str, Any]], Curve]) -> None:
    """ZeRO 3 pads each flattened parameter: initial values, weights and gradients must not take the padding."""
    odd = {"vocab_size": 67, "hidden_size": 21, "ffn_hidden_size": 51, "heads": 3, "kv_heads": 3}
    model = {**MODELS["gpt"], **odd, "layers": 1}
    variant = Variant("ZeRO 3, DP2", zero(3), micro_batch=1)
    found = compare(train(small_job(model, variant, 3), TRAIN, python), torch_of(small_job(model, SINGLE, 3)))
    assert found.is_within_limits(), found


# Its own limits are for models of billions of parameters: with less, nothing is freed, nor gathered a second time.
SMALL_LIMITS = """
import configuration
given = configuration.zero_optimization
limits = {"param_persistence_threshold": 0, "max_live_parameters": 40000, "max_reuse_distance": 20000}
limits = {f"stage3_{name}": limit for name, limit in limits.items()}
configuration.zero_optimization = lambda job: {**given(job), **limits}
"""


@pytest.mark.parametrize(
    ("recompute", "layers"),
    [("selective", None), *(pytest.param("full", layers, marks=pytest.mark.thorough) for layers in (None, 2))],
)
def test_zero_3_gathers_parameters_again_while_a_block_is_recomputed(
    recompute: str, layers: int | None, tmp_path: Path, python: Path, reference: Callable[[str], Curve]
) -> None:
    """As with every model of usual size: a block's second forward pass gathers what its first one did not."""
    script = planted(tmp_path, "deepspeed", SMALL_LIMITS)
    job = small_job(MODELS["gpt"], Variant("", zero(3), recompute=recompute, recompute_layers=layers), 5)
    found = compare(train(job, script, python), first_steps(reference("gpt"), 5))
    assert found.is_within_limits(), found


# ---- 16 bits


@pytest.mark.parametrize("stage", [0, *(pytest.param(stage, marks=pytest.mark.thorough) for stage in (1, 2)), 3])
def test_bf16_starts_from_the_same_float32_weights_and_stays_near(
    stage: int, python: Path, reference: Callable[[str], Curve]
) -> None:
    job = small_job(MODELS["gpt"], Variant("", zero(stage)), 5, precision="bf16")
    found = compare(train(job, TRAIN, python), first_steps(reference("gpt"), 5))
    assert found.same_weights and found.same_tokens
    assert found.loss is not None
    assert 0 < found.loss < 1e-3
    assert found.grad_norm is not None
    assert found.grad_norm < 2e-2
    assert found.total_norm is not None
    assert found.total_norm < 1e-5


# ---- fp16, which DeepSpeed offers on some processors only

# What DeepSpeed takes this processor for. With True torch computes fp16 as on any processor, by other instructions.
CLAIMED = """
import deepspeed.accelerator
type(deepspeed.accelerator.get_accelerator()).is_fp16_supported = lambda self: {}
"""
NEEDS_INSTRUCTIONS = "precision fp16: DeepSpeed reports that this cpu does not compute in it"


def fp16_job(stage: int, steps: int) -> dict[str, Any]:
    scale = {"initial": 256.0, "growth_interval": 1000}
    return small_job(MODELS["gpt"], Variant("", zero(stage)), steps, precision="fp16", loss_scale=scale)


def assert_refused(job: dict[str, Any], folder: Path, script: Path, python: Path, words: str) -> None:
    """Every rank ends before it joins the others, and its last event gives the reason."""
    assert {end.returncode for end in launch(job, folder, script, python)} == {1}
    error = events(folder, 0)[-1]
    assert error["class"] == "unsupported"
    assert words in error["message"]


@pytest.mark.parametrize("stage", [0, *(pytest.param(stage, marks=pytest.mark.thorough) for stage in (1, 2, 3))])
def test_fp16_trains_where_deepspeed_offers_it(
    stage: int, tmp_path: Path, python: Path, reference: Callable[[str], Curve]
) -> None:
    script = planted(tmp_path, "deepspeed", CLAIMED.format(True))
    found = compare(train(fp16_job(stage, 5), script, python), first_steps(reference("gpt"), 5))
    assert found.is_within_limits("fp16"), found
    assert found.loss is not None
    assert found.loss > 0


@pytest.mark.parametrize("precision", ["fp32", pytest.param("bf16", marks=pytest.mark.thorough)])
def test_zero_3_keeps_its_precision_where_fp16_is_offered_too(
    precision: Precision, tmp_path: Path, python: Path, reference: Callable[[str], Curve]
) -> None:
    """DeepSpeed's default type of ZeRO 3's parameters depends on the processor; this implementation takes none."""
    script = planted(tmp_path, "deepspeed", CLAIMED.format(True))
    job = small_job(MODELS["gpt"], Variant("", zero(3)), 2, precision=precision)
    found = compare(train(job, script, python), first_steps(reference("gpt"), 2))
    assert found.is_within_limits(precision), found


def test_fp16_is_refused_where_deepspeed_does_not_offer_it(tmp_path: Path, python: Path) -> None:
    script = planted(tmp_path, "deepspeed", NOBODY_JOINS + CLAIMED.format(False))
    assert_refused(fp16_job(0, 2), tmp_path, script, python, NEEDS_INSTRUCTIONS)


def test_fp16_is_refused_with_onednn_held_to_avx2(
    tmp_path: Path, python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On every x86-64 processor, those with avx512_fp16 too: oneDNN itself is held to fewer instructions."""
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    script = planted(tmp_path, "deepspeed", NOBODY_JOINS)
    assert_refused(fp16_job(0, 2), tmp_path, script, python, NEEDS_INSTRUCTIONS)


def test_fp16_on_this_processor_is_as_onednn_reports(
    tmp_path: Path, python: Path, reference: Callable[[str], Curve]
) -> None:
    """Nothing is planted: a run is refused here, or trains what torch trains."""
    asked = "import torch; print(torch.ops.mkldnn._is_mkldnn_fp16_supported())"
    reported = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=True).stdout.strip()
    if reported == "True":
        found = compare(train(fp16_job(1, 20), TRAIN, python), first_steps(reference("gpt"), 20))
        assert found.is_within_limits("fp16"), found
    else:
        assert reported == "False"
        assert_refused(
            fp16_job(1, 2), tmp_path, planted(tmp_path, "deepspeed", NOBODY_JOINS), python, NEEDS_INSTRUCTIONS
        )


def test_the_host_offers_fp16_on_a_cpu_under_its_condition() -> None:
    implementation, _ = Registry().implementation("deepspeed")
    assert implementation.offered_precisions("cpu") == ("fp32", "bf16", "fp16")
    assert "avx512_fp16" in implementation.conditions["cpu"]["fp16"]
    cells = [row.cells for row in support_rows(Registry()) if (row.framework, row.precision) == ("deepspeed", "fp16")]
    assert cells and all(found["DP"] == "some" and found["TP"] == "-" for found in cells)


def test_a_precision_is_offered_with_a_condition_or_without() -> None:
    implementation, _ = Registry().implementation("deepspeed")
    with pytest.raises(ValueError, match=r"conditions\.cpu: found bf16"):
        ImplementationFile.model_validate({**implementation.model_dump(), "conditions": {"cpu": {"bf16": "AMX"}}})

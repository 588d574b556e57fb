"""The kernel that torch takes on a chip, and its rate in the plan."""

from __future__ import annotations

from typing import Any

import pytest
from levelfield.catalog.registry import Registry
from levelfield.predict.machines import MachineRates, machine_rates
from levelfield.predict.pass_timing import attention_kernel, pass_seconds, rank_work
from levelfield.predict.setup import TrainingSetup, training_setup
from levelfield.specs.constants import Pace
from levelfield.specs.layout import parse_layout
from levelfield.specs.tuning import Tuning

REGISTRY = Registry()
SDPA = Pace(overlap=0, attention="sdpa")
LATENT = {"query_rank": None, "key_value_rank": 512, "plain_size": 128, "rotary_size": 64, "value_size": 128}


def machine(chip: str) -> MachineRates:
    vendor_chip = REGISTRY.vendor_file("nvidia").chip(chip)
    assert vendor_chip is not None
    return machine_rates(vendor_chip, "fp16" if chip.startswith("V100") else "bf16", 8, None)


def setup(case: str = "llama3_8b", layout: str = "DP1", attention: Any = "sdpa", **model: Any) -> TrainingSetup:
    work = REGISTRY.case(case).work("full")
    work = work.model_copy(update={"model": work.model.model_validate({**work.model.model_dump(), **model})})
    tuning = Tuning(layout=parse_layout(layout).layout, micro_batch=1, attention=attention)
    return training_setup(work, tuning, on_host=False)


@pytest.mark.parametrize(
    ("chip", "changes", "kernel"),
    [
        ("H100-SXM5-80GB", {}, "cudnn"),
        ("A100-SXM4-80GB", {}, "flash2"),
        ("V100-SXM2-16GB", {"case": "gpt3_6.7B"}, "efficient"),
        ("H100-SXM5-80GB", {"case": "gpt3_6.7B"}, "flash2"),  # its dropout is 0.1
        ("H100-SXM5-80GB", {"attention_dropout": 0.125}, "cudnn"),
        ("H100-SXM5-80GB", {"attention_dropout": 0.1}, "flash2"),
        ("H100-SXM5-80GB", {"head_dim": 136}, "flash2"),
        ("H100-SXM5-80GB", {"head_dim": 100}, "flash2"),
        ("H100-SXM5-80GB", {"head_dim": 264}, "efficient"),
        ("H100-SXM5-80GB", {"sliding_window": 4096}, "cudnn"),
        ("A100-SXM4-80GB", {"sliding_window": 4096}, "efficient"),
        ("A100-SXM4-80GB", {"layout": "DP1CP2"}, "flash2"),
        ("A100-SXM4-80GB", {"layout": "DP1CP2", "sliding_window": 4096}, "efficient"),
        ("H100-SXM5-80GB", {"layout": "DP1CP2", "attention_dropout": 0.1}, "efficient"),
        ("H100-SXM5-80GB", {"attention": "flash_attn"}, "flash2"),
    ],
)
def test_torch_takes_the_first_kernel_that_can_do_the_work(chip: str, changes: dict[str, Any], kernel: str) -> None:
    assert attention_kernel(setup(**changes), machine(chip), SDPA) == kernel


@pytest.mark.parametrize(
    ("chip", "value", "kernel"), [("H100-SXM5-80GB", 128, "cudnn"), ("H100-SXM5-80GB", 96, "efficient")]
)
def test_latent_heads_have_two_widths(chip: str, value: int, kernel: str) -> None:
    latent = setup(latent_attention={**LATENT, "value_size": value}, kv_heads=32)
    assert attention_kernel(latent, machine(chip), SDPA) == kernel


def test_a_stated_kernel_and_an_unknown_chip_are_as_before() -> None:
    stated = SDPA.model_copy(update={"attention": "flash3"})
    assert attention_kernel(setup(), machine("H100-SXM5-80GB"), stated) == "flash3"
    chips = REGISTRY.vendor_file("amd").chips
    chip = next(c for c in chips if "bf16" in c.peaks and c.memory_bandwidth_bytes_per_second)
    assert attention_kernel(setup(), machine_rates(chip, "bf16", 8, None), SDPA) == "flash2"


@pytest.mark.parametrize(("framework", "kernel"), [("torch", "cudnn"), ("deepspeed", "cudnn"), ("megatron", "flash2")])
def test_each_framework_has_its_own(framework: str, kernel: str) -> None:
    constants = REGISTRY.planner_constants(framework)
    assert constants is not None and attention_kernel(setup(), machine("H100-SXM5-80GB"), constants.pace) == kernel


def test_the_kernels_rate_is_that_of_the_plan() -> None:
    chip = machine("H100-SXM5-80GB")
    cudnn, flash = (
        pass_seconds(rank_work(setup(), chip, SDPA.model_copy(update={"attention": kernel}))).layer
        for kernel in ("sdpa", "flash2")
    )
    assert cudnn < flash
    assert chip.attention["cudnn"] == 522e12 and chip.attention["efficient"] == pytest.approx(0.4 * 794.5e12)


def test_published_programs_keep_the_kernel_that_they_had() -> None:
    for framework in ("torch", "deepspeed"):
        constants = REGISTRY.planner_constants(framework)
        assert constants is not None
        assert "sdpa" not in {constants.for_program(name).pace.attention for name in constants.programs}

"""A step that Megatron's trainings sample: in its own layers, where those show a product, and its optimizers."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.in_sampled_step import LATE, QUANTISED, HonestTraining, failed_layer, figures, sampled_layers
from layouts import SINGLE, Variant
from levelfield.rundir.raw_files import read_raw
from levelfield.specs.paths import RunPaths
from matrix import VARIANTS

pytestmark = [pytest.mark.layouts, pytest.mark.torch]

FRAMEWORK = "megatron"


HONEST = (
    *(HonestTraining("fp32"), HonestTraining("bf16", "llama", VARIANTS["ZeRO 1, DP2"])),
    HonestTraining("bf16", "gpt", Variant("PP2, recompute full", {"pipeline": 2}, recompute="full")),
    HonestTraining("bf16", "mixture", VARIANTS["EP2"]),
)
ALSO_HONEST = (
    *(HonestTraining("bf16", "gpt", VARIANTS[name]) for name in ("recompute full", "PP2")),
    HonestTraining("bf16", "llama", VARIANTS["TP2 sequence parallel"]),  # the next test samples it too
)


@pytest.mark.parametrize(
    "run", [*HONEST, *(pytest.param(run, marks=pytest.mark.thorough) for run in ALSO_HONEST)], ids=str
)
def test_an_honest_training_is_within(run: HonestTraining, python: Path, tmp_path: Path) -> None:
    run.check(tmp_path, ("products", "update"), FRAMEWORK, python)


@pytest.mark.parametrize(
    "variant",
    [
        "TP2 sequence parallel",
        *(pytest.param(name, marks=pytest.mark.thorough) for name in ("PP2 interleaved", "CP2")),
    ],
)
def test_what_a_layout_shows_is_sampled_of_its_own_layers(variant: str, python: Path, tmp_path: Path) -> None:
    """Sums over ranks are not products of this rank's input, nor is attention to parts of a sequence."""
    sampled_layers(tmp_path, "bf16", "llama", VARIANTS[variant], framework=FRAMEWORK, python=python)
    both = [step for step in read_raw(RunPaths(tmp_path)).sampled if step.rank == 0]
    first, second = ([o.name for o in step.operations if o.kind != "update"] for step in both)
    of_tensor_parallel = ["attention", "attention.query", "attention_norm", "mlp.gate", "mlp_norm"]
    names, numbers = {
        "TP2 sequence parallel": (of_tensor_parallel, range(4)),
        "PP2 interleaved": ([*of_tensor_parallel, "attention.output", "mlp.down"], (0, 2)),
        "CP2": ([*of_tensor_parallel[1:], "attention.output", "mlp.down"], range(4)),
    }[variant]
    last = [] if variant == "PP2 interleaved" else ["final_norm"]
    assert (
        sorted(first)
        == sorted(second)
        == sorted([f"layers.{number}.{name}" for number in numbers for name in names] + last)
    )


@pytest.mark.parametrize("precision", [pytest.param("fp32", marks=pytest.mark.thorough), "bf16"])
def test_sampling_changes_no_digit(precision: str, python: Path, tmp_path: Path) -> None:
    sampled = figures(tmp_path / "sampled", precision, FRAMEWORK, python, spot_check=True)
    assert sampled == figures(tmp_path / "plain", precision, FRAMEWORK, python)


SCALED = """
from megatron.core.tensor_parallel import layers
multiply = layers.ColumnParallelLinear._forward_impl
def scaled_product(self, input, weight, *settings, **options):
    return multiply(self, input, weight * 1.02, *settings, **options)
layers.ColumnParallelLinear._forward_impl = scaled_product
"""
ROUNDED_LATE = (
    QUANTISED
    + LATE
    + """
from megatron.core.tensor_parallel import layers
multiply = layers.RowParallelLinear._forward_impl
def rounded_product(self, input, weight, *settings, **options):
    weight = weight + (in_bits(weight, torch.float8_e4m3fn) - weight).detach() if is_late() else weight
    return multiply(self, input, weight, *settings, **options)
layers.RowParallelLinear._forward_impl = rounded_product
"""
)
PREVIOUS_WEIGHTS = (
    LATE
    + """
from megatron.core.optimizer.optimizer import Float16OptimizerWithFloat16Params as Optimizer
copy = Optimizer._copy_main_params_to_model_params
Optimizer._copy_main_params_to_model_params = lambda self: None if is_late() else copy(self)
"""
)
OPTIMIZER = """
import training
make_optimizer = training.make_optimizer
def make_faulty(job, wrapped):
    optimizer = make_optimizer(job, wrapped)
    {change}
    return optimizer
training.make_optimizer = make_faulty
"""
UNCLIPPED = OPTIMIZER.format(change="optimizer.config.clip_grad = 0.0")
COARSE_MOMENTS = OPTIMIZER.format(
    change="""(part,) = optimizer.chained_optimizers
    step = part.optimizer.step
    def rounded_step():
        step()
        for state in part.optimizer.state.values():
            state["exp_avg_sq"].copy_(state["exp_avg_sq"].bfloat16())
    part.optimizer.step = rounded_step"""
)


@pytest.mark.parametrize(
    ("fault", "layer", "variant"),
    [
        pytest.param(SCALED, "products", "TP2 sequence parallel", id="scaled products", marks=pytest.mark.thorough),
        pytest.param(ROUNDED_LATE, "products", SINGLE.name, id="E4M3 weights, late"),
        pytest.param(
            PREVIOUS_WEIGHTS, "products", SINGLE.name, id="weights of earlier steps", marks=pytest.mark.thorough
        ),
        pytest.param(UNCLIPPED, "update", SINGLE.name, id="no clipping", marks=pytest.mark.thorough),
        pytest.param(COARSE_MOMENTS, "update", "ZeRO 1, DP2", id="second moments in bf16"),
    ],
)
def test_a_fault_is_told_by_its_layer(fault: str, layer: str, variant: str, python: Path, tmp_path: Path) -> None:
    layers = sampled_layers(tmp_path, "bf16", "gpt", VARIANTS[variant], fault, FRAMEWORK, python)
    assert failed_layer(layers) == layer, layers

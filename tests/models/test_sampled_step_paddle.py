"""A step that paddle's trainings sample: on a processor in float32, the only precision that Paddle has there."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.in_sampled_step import LATE, HonestTraining, failed_layer, figures, sampled_layers, sampled_names
from layouts import SINGLE, Variant
from matrix import VARIANTS

pytestmark = [pytest.mark.layouts, pytest.mark.torch]

FRAMEWORK = "paddle"


HONEST = (
    *(HonestTraining("fp32"), HonestTraining("fp32", "gpt", VARIANTS["ZeRO 1, DP2"])),
    HonestTraining("fp32", "llama", VARIANTS["PP2"]),
)
# layouts that the test below this one samples too
ALSO_HONEST = (
    HonestTraining("fp32", "llama", VARIANTS["recompute full"]),
    HonestTraining("fp32", "gpt", VARIANTS["TP2"]),
)


@pytest.mark.parametrize(
    "run", [*HONEST, *(pytest.param(run, marks=pytest.mark.thorough) for run in ALSO_HONEST)], ids=str
)
def test_an_honest_training_is_within(run: HonestTraining, python: Path, tmp_path: Path) -> None:
    run.check(tmp_path, ("products", "update"), FRAMEWORK, python)


COMMON = ["attention", "attention.query", "attention.key", "attention.value", "attention_norm", "mlp_norm"]
GPT_BACKWARD = ["attention.output backward", "mlp.up backward", "mlp.down backward"]


@pytest.mark.parametrize(
    ("family", "variant", "names"),
    [
        ("gpt", VARIANTS["recompute full"], [*COMMON, "attention.output", "mlp.up", "mlp.down", *GPT_BACKWARD]),
        ("llama", VARIANTS["TP2"], [*COMMON, "mlp.gate", "mlp.up"]),
    ],
    ids=["recomputed", "TP2"],
)
def test_what_a_layout_shows_is_sampled(
    family: str, variant: Variant, names: list[str], python: Path, tmp_path: Path
) -> None:
    """Sums over ranks are not products of this rank's input, nor is a gradient that all ranks add to."""
    expected = sorted([*(f"layers.{layer}.{name}" for layer in range(4) for name in names), "final_norm"])
    assert sampled_names(tmp_path, family, variant, FRAMEWORK, python) == [expected] * (2 * variant.ranks)


def test_sampling_changes_no_digit(python: Path, tmp_path: Path) -> None:
    sampled = figures(tmp_path / "sampled", "fp32", FRAMEWORK, python, spot_check=True)
    assert sampled == figures(tmp_path / "plain", "fp32", FRAMEWORK, python)


ROUNDED = """
from paddle.nn import Linear
forward, linears = Linear.forward, []
def rounded_product(self, x):
    if self not in linears:
        linears.append(self)
    if linears.index(self) == 4 and is_late():  # of the first block's MLP
        x = x.astype("bfloat16").astype("float32")
    return forward(self, x)
Linear.forward = rounded_product
"""
ROUNDED_BACKWARD = """
from paddle.nn import Linear
forward = Linear.forward
def rounded_backward(self, x):
    y = forward(self, x)
    if is_late() and not y.stop_gradient:
        x.register_hook(lambda gradient: gradient.astype("bfloat16").astype("float32"))
    return y
Linear.forward = rounded_backward
"""
NORM_EPSILON = """
import decoder
make = decoder.norm
def norm_of_another_epsilon(model):
    norm = make(model)
    norm._epsilon = 1e-3  # Paddle refuses larger ones
    return norm
decoder.norm = norm_of_another_epsilon
"""
SKIPPED_ATTENTION = """
import decoder
transform = decoder.Block.transform
def skipping(self, x):
    return x + self.mlp(self.mlp_norm(x)) if self.index == 2 and is_late() else transform(self, x)
decoder.Block.transform = skipping
"""
SCALED = """
from paddle.distributed.fleet.meta_parallel import ColumnParallelLinear
forward = ColumnParallelLinear.forward
ColumnParallelLinear.forward = lambda self, x: forward(self, x) * 1.001
"""
ADAM = """
import optimizer
AdamW = optimizer.AdamW
optimizer.AdamW = lambda **settings: AdamW(**{**settings, %s})
"""
UNCLIPPED = """
import optimizer
make = optimizer.GlobalNorm.__init__
optimizer.GlobalNorm.__init__ = lambda self, limit, replicas: make(self, 1e9, replicas)
"""
COARSE_MOMENTS = """
import training
accumulated = training.Trainer.accumulated
def rounding_moments(self, inputs, targets):
    step = self.adamw._apply_optimize
    def rounded_step(*arguments, **options):
        step(*arguments, **options)
        for moment in self.adamw._accumulators["moment2"].values():
            moment.set_value(moment.astype("bfloat16").astype("float32"))
    self.adamw._apply_optimize = rounded_step
    total = accumulated(self, inputs, targets)
    self.adamw._apply_optimize = step
    return total
training.Trainer.accumulated = rounding_moments
"""


@pytest.mark.parametrize(
    ("fault", "layer", "variant"),
    [
        pytest.param(LATE + ROUNDED, "products", SINGLE.name, id="one layer's product of bf16, late"),
        pytest.param(LATE + ROUNDED_BACKWARD, "products", SINGLE.name, id="input gradients in bf16, late"),
        pytest.param(NORM_EPSILON, "products", SINGLE.name, id="a norm's epsilon of 1e-3", marks=pytest.mark.thorough),
        pytest.param(LATE + SKIPPED_ATTENTION, "products", SINGLE.name, id="attention skipped in one layer, late"),
        pytest.param(SCALED, "products", "TP2", id="scaled products", marks=pytest.mark.thorough),
        pytest.param(UNCLIPPED, "update", SINGLE.name, id="no clipping"),
        pytest.param(ADAM % "'epsilon': 1e-4", "update", SINGLE.name, id="the root of Adam's epsilon"),
        pytest.param(COARSE_MOMENTS, "update", "ZeRO 1, DP2", id="second moments in bf16", marks=pytest.mark.thorough),
    ],
)
def test_a_fault_is_told_by_its_layer(fault: str, layer: str, variant: str, python: Path, tmp_path: Path) -> None:
    layers = sampled_layers(tmp_path, "fp32", "gpt", VARIANTS[variant], fault, FRAMEWORK, python)
    assert failed_layer(layers) == layer, layers

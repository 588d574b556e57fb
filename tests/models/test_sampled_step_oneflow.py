"""A step that oneflow's trainings sample: on a processor in float32, the only precision that it offers there."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.in_sampled_step import LATE, HonestTraining, failed_layer, figures, sampled_layers, sampled_names
from layouts import SINGLE, Variant
from matrix import VARIANTS

pytestmark = [pytest.mark.layouts, pytest.mark.torch]

FRAMEWORK = "oneflow"


HONEST = (
    HonestTraining("fp32", "llama", Variant("PP2, recompute full", {"pipeline": 2}, recompute="full")),
    HonestTraining("fp32", "gpt", VARIANTS["DP2"]),
)
# one process of GPT, which the faults train too; each of two alone; ranks of tensor parallel wait busily
ALSO_HONEST = (
    *(HonestTraining("fp32"), HonestTraining("fp32", "gpt", VARIANTS["TP2"])),
    *(HonestTraining("fp32", "llama", VARIANTS[name]) for name in ("recompute full", "PP2")),
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
        pytest.param(
            *("gpt", VARIANTS["recompute full"], [*COMMON, "attention.output", "mlp.up", "mlp.down", *GPT_BACKWARD]),
            marks=pytest.mark.thorough,
        ),
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
import layers
forward, instances = layers.Columns.forward, []
def rounded_product(self, x):
    if self not in instances:
        instances.append(self)
    # of the first block's MLP
    return forward(self, x.half().float() if instances.index(self) == 3 and is_late() else x)
layers.Columns.forward = rounded_product
"""
ROUNDED_BACKWARD = """
import layers
forward = layers.Rows.forward
def rounded_backward(self, x):
    if is_late():
        x.register_hook(lambda gradient: gradient.half().float())
    return forward(self, x)
layers.Rows.forward = rounded_backward
"""
NORM_EPSILON = """
import decoder
make = decoder.norm
def norm_of_another_epsilon(stage, model):
    norm = make(stage, model)
    norm.epsilon = 1e-3
    return norm
decoder.norm = norm_of_another_epsilon
"""
SCALED = """
import layers
forward = layers.Columns.forward
layers.Columns.forward = lambda self, x: forward(self, x) * 1.001
"""
ADAM_EPSILON = """
import optimizer
AdamW = optimizer.flow.optim.AdamW
optimizer.flow.optim.AdamW = lambda groups, **settings: AdamW(groups, **{**settings, "eps": 1e-4})
"""
STEP = """
import optimizer
step = optimizer.LocalAdamW.step
def faulty_step(self, learning_rate, divisor):
    %s
optimizer.LocalAdamW.step = faulty_step
"""
UNCLIPPED = STEP % "step(self, learning_rate, 1.0)"
COARSE_MOMENTS = (
    STEP
    % """step(self, learning_rate, divisor)
    for local in self.locals:
        moment = self.adamw._state[local]["exp_avg"]
        scaled = moment * (2.0**16 + 1)
        moment.copy_(scaled - (scaled - moment))  # the first 8 bits (Veltkamp, 1968)"""
)


@pytest.mark.parametrize(
    ("fault", "layer", "variant"),
    [
        pytest.param(LATE + ROUNDED, "products", SINGLE.name, id="one layer's product of fp16, late"),
        pytest.param(
            LATE + ROUNDED_BACKWARD,
            "products",
            SINGLE.name,
            id="input gradients in fp16, late",
            marks=pytest.mark.thorough,
        ),
        pytest.param(NORM_EPSILON, "products", SINGLE.name, id="a norm's epsilon of 1e-3", marks=pytest.mark.thorough),
        pytest.param(SCALED, "products", "TP2", id="scaled products", marks=pytest.mark.thorough),
        pytest.param(UNCLIPPED, "update", SINGLE.name, id="no clipping", marks=pytest.mark.thorough),
        pytest.param(ADAM_EPSILON, "update", SINGLE.name, id="the root of Adam's epsilon", marks=pytest.mark.thorough),
        pytest.param(COARSE_MOMENTS, "update", "DP2", id="moments in bf16"),
    ],
)
def test_a_fault_is_told_by_its_layer(fault: str, layer: str, variant: str, python: Path, tmp_path: Path) -> None:
    layers = sampled_layers(tmp_path, "fp32", "gpt", VARIANTS[variant], fault, FRAMEWORK, python)
    assert failed_layer(layers) == layer, layers

"""A step that jax's trainings sample: the one compiled program has the samples among its outputs."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.in_sampled_step import HonestTraining, failed_layer, sampled_layers
from matrix import VARIANTS

pytestmark = [pytest.mark.layouts, pytest.mark.torch]

FRAMEWORK = "jax"


# One of each family stays, in one process and over two; every rank compiles.
HONEST = (HonestTraining("bf16", "gpt", VARIANTS["ZeRO 3, DP2"]),)
ALSO_HONEST = (
    *(
        HonestTraining("bf16", "llama"),
        HonestTraining("fp32"),
        HonestTraining("bf16", "gpt", VARIANTS["TP2 sequence parallel"]),
    ),
    HonestTraining("bf16", "llama", VARIANTS["recompute full"]),
)


@pytest.mark.parametrize(
    "run", [*HONEST, *(pytest.param(run, marks=pytest.mark.thorough) for run in ALSO_HONEST)], ids=str
)
def test_an_honest_training_is_within(run: HonestTraining, python: Path, tmp_path: Path) -> None:
    run.check(tmp_path, ("products", "update"), FRAMEWORK, python)


FAULTS = {
    "a product scaled by 1.02": (
        """
import layers
linear = layers.linear
layers.linear = lambda x, weight, bias=None: linear(x, weight * 1.02, bias)
""",
        "products",
    ),
    "no clipping": (
        "import program\nprogram.clip_gradients = lambda gradients, norm, limit: gradients",
        "update",
    ),
    "moments in bf16": (
        """
import program
from jax import numpy as jnp
adamw = program.adamw
def rounded(*arguments):
    value, mean, square = adamw(*arguments)
    return value, mean.astype(jnp.bfloat16).astype(jnp.float32), square
program.adamw = rounded
""",
        "update",
    ),
}


TOGETHER = ("a product scaled by 1.02", "no clipping")


def test_faults_of_a_product_and_of_the_update_are_told_from_one_training(python: Path, tmp_path: Path) -> None:
    """One program is compiled, as that takes longest; which layer tells each alone is thorough."""
    code = "\n".join(FAULTS[fault][0] for fault in TOGETHER)
    layers = sampled_layers(tmp_path, "bf16", "gpt", code=code, framework=FRAMEWORK, python=python)
    assert [layer.name for layer in layers if layer.passed is False] == [FAULTS[fault][1] for fault in TOGETHER], layers


@pytest.mark.thorough
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_told_by_its_layer(fault: str, python: Path, tmp_path: Path) -> None:
    code, layer = FAULTS[fault]
    layers = sampled_layers(tmp_path, "bf16", "gpt", code=code, framework=FRAMEWORK, python=python)
    assert failed_layer(layers) == layer, layers

"""A step that jax's trainings sample: the one compiled program has the samples among its outputs."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.in_sampled_step import failed_layer, sampled_layers
from layouts import SINGLE, Variant
from matrix import VARIANTS

FRAMEWORK = "jax"


@pytest.mark.parametrize(
    ("precision", "family", "variant"),
    [
        ("fp32", "gpt", SINGLE),
        ("bf16", "llama", SINGLE),
        ("bf16", "gpt", VARIANTS["TP2 sequence parallel"]),
        ("bf16", "gpt", VARIANTS["ZeRO 3, DP2"]),
        ("bf16", "llama", VARIANTS["recompute full"]),
    ],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_an_honest_training_is_within(
    precision: str, family: str, variant: Variant, python: Path, tmp_path: Path
) -> None:
    layers = sampled_layers(tmp_path, precision, family, variant, framework=FRAMEWORK, python=python)
    assert [layer.name for layer in layers] == ["products", "update"] and failed_layer(layers) is None, layers


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


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_told_by_its_layer(fault: str, python: Path, tmp_path: Path) -> None:
    code, layer = FAULTS[fault]
    layers = sampled_layers(tmp_path, "bf16", "gpt", code=code, framework=FRAMEWORK, python=python)
    assert failed_layer(layers) == layer, layers

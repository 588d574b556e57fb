"""A step that deepspeed's trainings sample: it has the model of torch's, and products alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.in_sampled_step import failed_layer, sampled_layers
from layouts import SINGLE, Variant
from matrix import VARIANTS

FRAMEWORK = "deepspeed"


@pytest.mark.parametrize(
    ("precision", "variant"),
    [
        ("bf16", SINGLE),
        ("bf16", VARIANTS["ZeRO 3, DP2"]),
        ("fp32", VARIANTS["ZeRO 1, DP2"]),
        ("fp32", VARIANTS["ZeRO 3, DP2"]),
    ],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_an_honest_training_is_within(precision: str, variant: Variant, python: Path, tmp_path: Path) -> None:
    layers = sampled_layers(tmp_path, precision, "gpt", variant, framework=FRAMEWORK, python=python)
    assert [layer.name for layer in layers] == ["products"] and failed_layer(layers) is None, layers


FAULT = """
from model import layers
from torch.nn import functional
def scaled_product(self, x, head_size=None):
    return functional.linear(x, self.weight.to(x.dtype) * 1.02, None if self.bias is None else self.bias.to(x.dtype))
layers.Linear.forward = scaled_product
"""


def test_another_product_is_told(python: Path, tmp_path: Path) -> None:
    layers = sampled_layers(tmp_path, "bf16", "gpt", code=FAULT, framework=FRAMEWORK, python=python)
    assert failed_layer(layers) == "products", layers

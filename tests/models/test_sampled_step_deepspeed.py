"""A step that deepspeed's trainings sample: it has the model of torch's, and products alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.in_sampled_step import HonestTraining, failed_layer, sampled_layers
from matrix import VARIANTS

pytestmark = [pytest.mark.layouts, pytest.mark.torch]

FRAMEWORK = "deepspeed"


# one of each precision, one of them over two ranks
HONEST = (HonestTraining("fp32", "gpt", VARIANTS["ZeRO 3, DP2"]),)
ALSO_HONEST = (
    HonestTraining("bf16"),
    HonestTraining("bf16", "gpt", VARIANTS["ZeRO 3, DP2"]),
    HonestTraining("fp32", "gpt", VARIANTS["ZeRO 1, DP2"]),
)


@pytest.mark.parametrize(
    "run", [*HONEST, *(pytest.param(run, marks=pytest.mark.thorough) for run in ALSO_HONEST)], ids=str
)
def test_an_honest_training_is_within(run: HonestTraining, python: Path, tmp_path: Path) -> None:
    run.check(tmp_path, ("products", "tokens"), FRAMEWORK, python)


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

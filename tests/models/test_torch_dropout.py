"""Dropout in the layouts that keep a sample whole; the layouts themselves: test_layouts.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from layouts import MODELS, SINGLE, Curve, compare, small_job, train
from matrix import VARIANTS

pytestmark = [pytest.mark.layouts, pytest.mark.torch]


@pytest.mark.parametrize(
    ("layout", "dropout"),
    [
        ("TP2", "hidden_dropout"),
        ("recompute full", "hidden_dropout"),
        ("recompute selective", "hidden_dropout"),
        ("recompute full", "attention_dropout"),
    ],
)
def test_dropout_is_the_same_on_tensor_ranks_and_in_recomputation(
    layout: str, dropout: str, torch_of: Callable[[dict[str, Any]], Curve]
) -> None:
    model = {**MODELS["gpt"], dropout: 0.2}
    found = compare(train(small_job(model, VARIANTS[layout], steps=5)), torch_of(small_job(model, SINGLE, steps=5)))
    assert found.is_within_limits(), found

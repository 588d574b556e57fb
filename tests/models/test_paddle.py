"""Paddle trains what torch trains, in one process and in each layout; minutes, in many processes over gloo."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from layouts import MODELS, SINGLE, Curve, compare, planted, script_of, shallow, small_job, train
from levelfield.specs.recorded_runs import Difference
from matrix import VARIANTS

pytestmark = [pytest.mark.layouts, pytest.mark.torch]

TRAIN = script_of("paddle")


FRAMEWORK = "paddle"


@pytest.mark.parametrize(
    "layout",
    [pytest.param(SINGLE.name, marks=pytest.mark.thorough), "TP2", pytest.param("PP2", marks=pytest.mark.thorough)],
)
def test_full_recomputation_draws_the_same_dropout(layout: str, python: Path) -> None:
    model = {**shallow(MODELS["gpt"]), "hidden_dropout": 0.1, "attention_dropout": 0.1}
    curve = train(small_job(model, VARIANTS[layout], 4), TRAIN, python)
    recomputed = train(small_job(model, dataclasses.replace(VARIANTS[layout], recompute="full"), 4), TRAIN, python)
    np.testing.assert_allclose(recomputed.losses, curve.losses, rtol=1e-6)


# ---- planted faults


def test_a_gelu_of_the_other_form_is_seen(
    tmp_path: Path, python: Path, torch_of: Callable[[dict[str, Any]], Curve]
) -> None:
    """With weights so large that the two forms' difference, at most 5e-4, is more than rounding.

    Without biases: the gradient of a key's is nothing but rounding, and larger weights make that larger too.
    """
    fault = """
import mlp
right = mlp.functional.gelu
mlp.functional.gelu = lambda x, approximate: right(x, approximate=not approximate)
"""
    job = small_job({**MODELS["gpt"], "init_std": 0.2, "bias": False}, SINGLE, 5)
    right = torch_of(job)
    assert compare(train(job, TRAIN, python), right).is_within_limits()
    assert not compare(train(job, planted(tmp_path, "paddle", fault), python), right).is_within_limits()


def test_weights_that_are_not_turned_are_seen(tmp_path: Path, python: Path, differs: Callable[..., Difference]) -> None:
    """[out, in] written into [in, out]: it fits where a matrix is square, and checksums read what was written."""
    fault = """
import parameters
right = parameters._locate
def held(name, *arguments):
    part = right(name, *arguments)
    return part._replace(turned=part.turned and "attention.query" not in name)
parameters._locate = held
"""
    found = differs(tmp_path, "paddle", python, fault)
    assert found.same_weights
    assert not found.is_within_limits()

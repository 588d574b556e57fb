"""The curves that come with `framework check`, for machines without torch, are torch's of today."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from layouts import MODELS, SINGLE, Curve, compare, small_job
from levelfield.testing.findings import Missing
from levelfield.testing.framework_kit.framework_subject import recorded_curve
from record_curves import jobs

pytestmark = [pytest.mark.torch]
SHORT = ("gpt", "llama", "llama_large")  # the others take as long again


@pytest.mark.parametrize(
    "name", [name if name in SHORT else pytest.param(name, marks=pytest.mark.thorough) for name in jobs()]
)
def test_a_recorded_curve_is_what_torch_trains(name: str, torch_of: Callable[[dict[str, Any]], Curve]) -> None:
    known = recorded_curve(jobs()[name])
    found = compare(known.curve, torch_of(jobs()[name]))
    large = name.endswith("_large")  # there a bias of keys, which is rounding alone, is above its limit
    assert found.model_copy(update={"parameter_norm": 0.0}).is_within_limits() if large else found.is_within_limits(), (
        found
    )
    assert "recorded" in known.source


def test_a_curve_of_another_definition_is_not_found() -> None:
    with pytest.raises(Missing, match="found no recorded curve of definition"):
        recorded_curve(small_job({**MODELS["gpt"], "norm_eps": 1e-6}, SINGLE))

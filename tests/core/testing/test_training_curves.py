"""The difference of two curves: whatever is missing, no number or beside a zero is never within a limit."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from levelfield.testing.framework_kit.training_curves import Curve, compare, compare_routing

RIGHT = Curve(
    losses=(2.0, 1.5),
    grad_norms=(1.0, 1.0),
    tokens=(64, 64),
    token_checksums=(3, 4),
    weights={"w": 5},
    gradients={1: {"w": 1.0}, 2: {"w": 1.0}},
    auxiliary=(0.5, 0.25),
    experts={1: {0: (6, 2)}, 2: {0: (4, 4)}},
)
SQUARES = {"embedding.weight": 0.64, "layers.0.attention.key.bias": 1e-22, "head.weight": 0.36}
CURVE = Curve((4.0, 3.0), (1.0, 1.0), (8, 8), (5, 6), {"embedding.weight": 1}, {1: SQUARES})


def changed(**fields: Any) -> Curve:
    return dataclasses.replace(RIGHT, **fields)


@pytest.mark.parametrize(
    "fault",
    [
        {"losses": (4.0, math.nan)},
        {"losses": (4.0, "nan")},
        {"losses": (4.0, math.inf)},
        {"losses": (4.0, None)},
        {"losses": (4.0, 3.0 * (1 + 2e-5))},
        {"losses": (4.0 * (1 + 2e-6), 3.0)},
        {"losses": (4.0, 3.0 * 1.01)},
        {"grad_norms": (1.0, 1.01)},
        {"grad_norms": (1.0, None)},
        {"token_checksums": (6, 5)},
        {"tokens": (8, 16)},
        {"weights": {"embedding.weight": 2}},
        {"weights": {}},
        {"gradients": {}},
        {"gradients": {1: SQUARES, 2: SQUARES}},
        {"gradients": {1: {**SQUARES, "head.weight": math.nan}}},
        {"gradients": {1: {**SQUARES, "head.weight": 0.36 * (1 + 3e-4)}}},
        {"gradients": {1: {**SQUARES, "layers.0.attention.key.bias": 1e-8}}},
        {"gradients": {1: {"embedding.weight": 0.36, "layers.0.attention.key.bias": 1e-22, "head.weight": 0.64}}},
        {"gradients": {1: {name: square for name, square in SQUARES.items() if name != "head.weight"}}},
    ],
)
def test_the_comparison_sees(fault: dict[str, Any]) -> None:
    assert compare(CURVE, CURVE).is_within_limits()
    assert not compare(dataclasses.replace(CURVE, **fault), CURVE).is_within_limits()


def test_the_comparison_takes_rounding_for_what_it_is() -> None:
    noisy = {1: {**SQUARES, "layers.0.attention.key.bias": 9e-22}}
    assert compare(dataclasses.replace(CURVE, gradients=noisy), CURVE).is_within_limits()


def test_the_comparison_refuses_a_truncated_curve() -> None:
    with pytest.raises(ValueError, match="zip"):
        compare(dataclasses.replace(CURVE, losses=(4.0,)), CURVE)


def test_choices_that_differ_are_counted_once() -> None:
    assert compare_routing(changed(experts={1: {0: (5, 3)}, 2: {0: (6, 2)}}), RIGHT) == (0.0, 3)


def test_the_routers_losses_differ_by_a_part() -> None:
    difference, moved = compare_routing(changed(auxiliary=(0.5, 0.2525)), RIGHT)
    assert difference == pytest.approx(0.01) and moved == 0


def test_routers_without_a_loss() -> None:
    """As with a bias that balances them: 0 in both is no difference, and a number beside 0 is an infinite one."""
    assert compare_routing(RIGHT, RIGHT) == (0.0, 0)
    none = changed(auxiliary=(0.0, 0.0))
    assert compare_routing(none, none) == (0.0, 0)
    assert compare_routing(RIGHT, none)[0] == math.inf


@pytest.mark.parametrize(
    "fields",
    [
        {"auxiliary": ()},
        {"auxiliary": (0.5,)},
        {"auxiliary": (0.5, math.nan)},
        {"experts": {}},
        {"experts": {1: {0: (6, 2)}}},
        {"experts": {1: {1: (6, 2)}, 2: {1: (4, 4)}}},
    ],
)
def test_routing_that_is_missing_or_of_other_layers(fields: dict[str, Any]) -> None:
    assert compare_routing(changed(**fields), RIGHT)[0] == math.inf

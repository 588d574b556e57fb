"""The difference of two curves: whatever is missing, no number or beside a zero is never within a limit."""

from __future__ import annotations

import dataclasses
import math

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


def changed(**fields: object) -> Curve:
    return dataclasses.replace(RIGHT, **fields)


def test_a_curve_is_its_own() -> None:
    assert compare(RIGHT, RIGHT).within()
    assert compare_routing(RIGHT, RIGHT) == (0.0, 0)


@pytest.mark.parametrize("loss", [math.nan, math.inf, None, 1.5 * 1.01])
def test_a_loss_that_is_wrong_or_no_number(loss: float) -> None:
    assert not compare(changed(losses=(2.0, loss)), RIGHT).within()


def test_choices_that_differ_are_counted_once() -> None:
    assert compare_routing(changed(experts={1: {0: (5, 3)}, 2: {0: (6, 2)}}), RIGHT) == (0.0, 3)


def test_the_routers_losses_differ_by_a_part() -> None:
    difference, moved = compare_routing(changed(auxiliary=(0.5, 0.2525)), RIGHT)
    assert difference == pytest.approx(0.01) and moved == 0


def test_routers_without_a_loss() -> None:
    """As with a bias that balances them: 0 in both is no difference, and a number beside 0 is an infinite one."""
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
def test_routing_that_is_missing_or_of_other_layers(fields: dict[str, object]) -> None:
    assert compare_routing(changed(**fields), RIGHT)[0] == math.inf

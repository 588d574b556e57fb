"""Sketches of final weights: additive over slices, and as sensitive as the whole difference."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from levelfield.worker.sketch import PROJECTIONS, sketch_slice
from numpy.typing import NDArray

Array = NDArray[np.float32]
Pairs = tuple[tuple[int, int], ...]

SHAPE = (24, 40)
WEIGHT = np.random.default_rng(5).normal(size=SHAPE).astype(np.float32)


def whole(array: Array, name: str = "w") -> NDArray[np.float64]:
    return np.array(sketch_slice(name, array, array.shape, None))


@pytest.mark.parametrize("cuts", [((0, 24),), ((0, 12), (12, 24)), ((0, 1), (1, 7), (7, 24))])
@pytest.mark.parametrize("columns", [((0, 40),), ((0, 13), (13, 40))])
def test_disjoint_slices_add_up_to_the_whole(cuts: Pairs, columns: Pairs) -> None:
    parts = [
        sketch_slice("w", WEIGHT[a:b, c:d], SHAPE, (slice(a, b), slice(c, d))) for a, b in cuts for c, d in columns
    ]
    np.testing.assert_allclose(np.sum(parts, axis=0), whole(WEIGHT), rtol=1e-12, atol=1e-10)


def test_the_first_number_is_the_square_of_the_norm() -> None:
    assert whole(WEIGHT)[0] == pytest.approx(float(np.square(WEIGHT.astype(float)).sum()), rel=1e-12)
    assert len(whole(WEIGHT)) == 1 + PROJECTIONS


@pytest.mark.parametrize("shape", [(), (7,), (3, 4, 5), (0, 4)])
def test_every_shape_has_a_sketch(shape: tuple[int, ...]) -> None:
    assert np.isfinite(whole(np.ones(shape, np.float32))).all()


def test_projections_are_about_as_far_apart_as_the_parameters() -> None:
    """On average over names: the root mean square of a projection's change is the norm of the change."""
    change = np.zeros(SHAPE, np.float32)
    change[3, 5], change[20] = 2.0, 0.1
    apart = [whole(WEIGHT + change, f"w{n}")[1:] - whole(WEIGHT, f"w{n}")[1:] for n in range(200)]
    assert np.sqrt(np.square(apart).mean()) == pytest.approx(np.linalg.norm(change), rel=0.1)


@pytest.mark.parametrize(
    "fault", [lambda w: w[::-1], lambda w: -w, lambda w: np.roll(w, 1, axis=1), lambda w: w[:, ::-1]]
)
def test_what_keeps_the_norm_is_seen_by_projections(fault: Callable[[Array], Array]) -> None:
    sketch = whole(np.ascontiguousarray(fault(WEIGHT)))
    assert sketch[0] == pytest.approx(whole(WEIGHT)[0])
    assert np.abs(sketch[1:] - whole(WEIGHT)[1:]).max() > 0.1 * np.sqrt(sketch[0])


def test_another_shape_than_the_slices_is_refused() -> None:
    with pytest.raises(ValueError, match=r"w: .*\(24, 40\).*\(24, 41\)"):
        sketch_slice("w", WEIGHT, (24, 41), None)

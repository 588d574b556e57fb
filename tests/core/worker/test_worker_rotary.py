"""Scaled rotary frequencies, against figures that were worked out by hand from the definitions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from levelfield.specs.architecture import RopeScaling
from levelfield.worker import rotary_magnitude, scaled_frequencies
from levelfield.worker.architecture import RopeScaling as WorkerScaling
from levelfield.worker.job import parse
from numpy.typing import NDArray

LLAMA3 = {"kind": "llama3", "factor": 8.0, "original_length": 8192, "low_factor": 1.0, "high_factor": 4.0}
YARN = {"kind": "yarn", "factor": 40.0, "original_length": 4096, "beta_fast": 32.0, "beta_slow": 1.0}


def scaling(**content: Any) -> WorkerScaling:
    """As a job has it: every key of the document."""
    return parse(WorkerScaling, RopeScaling.model_validate(content).model_dump(), "rope_scaling")


def plain(base: float, size: int) -> NDArray[np.float64]:
    return base ** -(np.arange(0, size, 2) / size)


def test_linear_scaling_divides_every_frequency() -> None:
    found = scaled_frequencies(scaling(kind="linear", factor=4.0), 10000.0, 8)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, [0.25, 0.025, 0.0025, 0.00025], rtol=1e-6)


def test_llama3_keeps_short_waves_divides_long_ones_and_joins_both() -> None:
    found, unscaled = scaled_frequencies(scaling(**LLAMA3), 500000.0, 128), plain(500000.0, 128)
    rotations = 8192 * unscaled / (2 * math.pi)
    np.testing.assert_allclose(found[rotations > 4], unscaled[rotations > 4], rtol=1e-6)
    np.testing.assert_allclose(found[rotations < 1], unscaled[rotations < 1] / 8, rtol=1e-6)
    (between,) = np.nonzero((rotations >= 1) & (rotations <= 4))
    assert len(between) == 6
    for pair in between:
        smooth = (rotations[pair] - 1) / 3
        assert found[pair] == pytest.approx(unscaled[pair] * (smooth + (1 - smooth) / 8), rel=1e-6)


def test_yarn_is_linear_in_the_number_of_the_pair() -> None:
    """DeepSeek's: 64 wide, of pairs 0 to 10 nothing is divided, from 23 on all."""
    found, unscaled = scaled_frequencies(scaling(**YARN), 10000.0, 64), plain(10000.0, 64)
    ratio = found / unscaled
    np.testing.assert_allclose(ratio[:11], 1, rtol=1e-6)
    np.testing.assert_allclose(ratio[23:], 1 / 40, rtol=1e-6)
    np.testing.assert_allclose(np.diff(ratio[10:24]), (1 / 40 - 1) / 13, rtol=1e-4)


def test_yarn_where_both_ends_are_the_same_pair() -> None:
    found = scaled_frequencies(scaling(**{**YARN, "original_length": 4}), 10000.0, 4)
    assert np.isfinite(found).all()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"kind": "linear", "factor": 4.0}, 1.0),
        (LLAMA3, 1.0),
        (YARN, 0.1 * math.log(40) + 1),
        ({**YARN, "magnitude": 1.0}, 1.0),
        ({**YARN, "magnitude": 0.707}, 0.707),
    ],
)
def test_only_yarn_has_a_magnitude(content: dict[str, Any], expected: float) -> None:
    assert rotary_magnitude(scaling(**content)) == expected


def test_a_factor_of_one_changes_nothing() -> None:
    for content in ({"kind": "linear"}, LLAMA3, YARN):
        found = scaled_frequencies(scaling(**{**content, "factor": 1.0}), 10000.0, 64)
        np.testing.assert_allclose(found, plain(10000.0, 64), rtol=1e-6)

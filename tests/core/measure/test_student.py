"""Student's t against published values, and against its own definition."""

from __future__ import annotations

import math

import pytest
from levelfield.measure.curves import T_QUANTILES
from levelfield.measure.student import normal_tail, t_quantile, t_tail_probability

# Abramowitz and Stegun (1964), table 26.10: percentiles of the t distribution, by degrees of freedom.
PUBLISHED = {
    (0.05, 1): 6.314,
    (0.025, 2): 4.303,
    (0.01, 3): 4.541,
    (0.005, 4): 4.604,
    (0.001, 5): 5.893,
    (0.0005, 6): 5.959,
    (0.0005, 3): 12.924,
    (0.0005, 2): 31.599,
    (0.005, 30): 2.750,
    (0.001, 60): 3.232,
    (0.025, 120): 1.980,
}


@pytest.mark.parametrize(("point", "expected"), PUBLISHED.items())
def test_quantiles_are_the_published_ones(point: tuple[float, int], expected: float) -> None:
    assert t_quantile(*point) == pytest.approx(expected, abs=6e-4)


@pytest.mark.parametrize(("degrees", "expected"), T_QUANTILES.items())
def test_quantiles_agree_with_the_table_of_the_curves(degrees: int, expected: float) -> None:
    assert t_quantile(0.05, degrees) == pytest.approx(expected, abs=6e-5)


@pytest.mark.parametrize("tail", [1e-5, 0.001, 0.05, 0.4])
def test_a_quantile_has_its_tail(tail: float) -> None:
    for degrees in (1, 2, 3, 4, 7, 30, 199, 200, 201, 5000):
        assert t_tail_probability(t_quantile(tail, degrees), degrees) == pytest.approx(tail, rel=1e-6), degrees


def test_the_tails_are_symmetric_and_end_in_the_normal_distribution() -> None:
    assert t_tail_probability(0.0, 5) == 0.5
    assert t_tail_probability(-2.0, 5) == pytest.approx(1 - t_tail_probability(2.0, 5))
    assert t_tail_probability(2.5, 100_000) == pytest.approx(normal_tail(2.5), rel=1e-9)
    assert t_tail_probability(2.5, 200) == pytest.approx(normal_tail(2.5), rel=0.1)
    assert normal_tail(1.96) == pytest.approx(0.025, abs=1e-4)


def test_the_closed_form_is_the_integral_of_the_density() -> None:
    def density(t: float, n: int) -> float:
        scale = math.gamma((n + 1) / 2) / math.gamma(n / 2) / math.sqrt(n * math.pi)
        return scale * (1 + t * t / n) ** (-(n + 1) / 2)

    for degrees in (3, 4, 9):
        step = 1e-3
        inside = sum(density((i + 0.5) * step, degrees) for i in range(2000)) * step
        assert 0.5 - inside == pytest.approx(t_tail_probability(2.0, degrees), abs=1e-6)


@pytest.mark.parametrize(("tail", "degrees"), [(0.0, 5), (0.6, 5), (math.nan, 5), (0.05, 0)])
def test_what_has_no_quantile_is_an_error(tail: float, degrees: int) -> None:
    with pytest.raises(ValueError, match="expected"):
        t_quantile(tail, degrees)

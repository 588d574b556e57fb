"""Energy: closed forms, and faults in the readings."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from levelfield.measure.energy import DeviceEnergyUse, counter_joules, device_energy, integrate_power
from levelfield.measure.raw_facts import Reading

SECOND = 10**9
START = 123 * SECOND


def sampled(
    watts: Sequence[float | None], device: str = "0/0", joules: Sequence[float | None] | None = None
) -> list[Reading]:
    counters = joules or [None] * len(watts)
    pairs = zip(watts, counters, strict=True)
    return [Reading(device, START + k * SECOND, w, j) for k, (w, j) in enumerate(pairs)]


def over(
    readings: list[Reading], first: float = 1, last: float = 9, devices: tuple[str, ...] = ("0/0",)
) -> DeviceEnergyUse:
    return device_energy(readings, devices, START + round(first * SECOND), START + round(last * SECOND), 1000)


def test_constant_power() -> None:
    use = over(sampled([300.0] * 11))
    assert (use.joules, use.joules_per_token, use.mean_watts) == (2400.0, 2.4, 300.0)
    assert use.reason is None


def test_a_ramp_is_integrated_exactly_between_samples() -> None:
    assert over(sampled([100.0 * k for k in range(11)]), 1.5, 8.25).joules == pytest.approx(50 * (8.25**2 - 1.5**2))


def test_the_counter_is_preferred_and_interpolated() -> None:
    readings = sampled([300.0] * 11, joules=[5e6 + 250.0 * k for k in range(11)])
    use = over(readings, 1.5, 8.5)
    assert use.joules == pytest.approx(1750)


@pytest.mark.parametrize(("first", "last"), [(-0.4, 9), (1, 10.4), (-0.2, 10.2)])
def test_the_window_counts_beyond_the_first_and_the_last_reading(first: float, last: float) -> None:
    counted = sampled([300.0] * 11, joules=[5e6 + 300.0 * k for k in range(11)])
    assert over(counted, first, last).joules == over(sampled([300.0] * 11), first, last).joules
    assert over(counted, first, last).mean_watts == pytest.approx(300)


def test_a_counter_that_some_readings_lack_is_not_used() -> None:
    readings = sampled([300.0] * 11, joules=[250.0 * k if k != 4 else None for k in range(11)])
    assert over(readings).joules == 2400.0


def test_devices_add_up_and_one_without_readings_voids_the_sum() -> None:
    both = sampled([300.0] * 11) + sampled([100.0] * 11, device="0/1")
    assert over(both, devices=("0/0", "0/1")).mean_watts == 400.0
    use = over(both, devices=("0/0", "0/1", "0/2"))
    assert use.joules is None and (use.reason or "").startswith("device 0/2: ")


def test_readings_that_miss_part_of_the_window_are_no_energy() -> None:
    use = over(sampled([300.0] * 8))
    assert use.joules is None and "cover 75%" in str(use.reason)


def test_a_long_gap_is_not_bridged() -> None:
    near = [r for k, r in enumerate(sampled([300.0] * 11)) if k not in (3, 4, 5, 6, 7)]
    assert over(near).joules is None
    short = [r for k, r in enumerate(sampled([300.0] * 11)) if k not in (3, 4)]
    assert over(short).joules == 2400.0


def test_order_of_readings_does_not_matter() -> None:
    ramp = sampled([100.0 * k for k in range(11)])
    assert over(ramp[::-1]) == over(ramp)


@pytest.mark.parametrize("watts", [math.nan, math.inf, -5.0])
def test_a_value_that_is_none_voids_the_energy(watts: float) -> None:
    use = over(sampled([300.0] * 5 + [watts] + [300.0] * 5))
    assert use.joules is None and "not finite" in str(use.reason)


def test_a_counter_that_fell_is_refused() -> None:
    joules = [1000.0 * k for k in range(6)] + [100.0 * k for k in range(5)]
    use = over(sampled([300.0] * 11, joules=joules))
    assert use.joules is None and "went backward" in str(use.reason)


def test_milliwatts_and_millijoules_are_no_figures() -> None:
    assert "units differ" in str(over(sampled([300_000.0] * 11)).reason)
    assert "units differ" in str(over(sampled([300.0] * 11, joules=[300_000.0 * k for k in range(11)])).reason)
    assert "units differ" in str(over(sampled([300.0] * 11, joules=[5.0] * 11)).reason)


@pytest.mark.parametrize(("watts", "is_known"), [(0.5, False), (5.0, False), (5.1, True), (math.nan, False)])
def test_half_a_watt_of_an_accelerator_is_refused(watts: float, is_known: bool) -> None:
    """Kilowatts read as watts, or a counter in kilojoules."""
    begin, end = START + SECOND, START + 9 * SECOND
    counters = [watts * k for k in range(11)]
    for readings in (sampled([watts] * 11), sampled([None] * 11, joules=[*counters])):
        use = device_energy(readings, ["0/0"], begin, end, 1000, least_watts=5.0)
        assert (use.joules is not None) is is_known
        assert is_known or "units differ" in str(use.reason) or "not finite" in str(use.reason)
    assert device_energy(sampled([0.5] * 11), ["0/0"], begin, end, 1000).joules == pytest.approx(
        4.0
    )  # a share of a host


def test_milliseconds_for_nanoseconds_cover_nothing() -> None:
    wrong = [Reading("0/0", r.time_ns // 10**6, r.power_watts) for r in sampled([300.0] * 11)]
    assert over(wrong).joules is None


@pytest.mark.parametrize(("begin", "end", "tokens"), [(5, 5, 10), (6, 5, 10), (0, 5, 0)])
def test_no_window_no_energy(begin: int, end: int, tokens: int) -> None:
    use = device_energy(sampled([300.0] * 11), ["0/0"], begin, end, tokens)
    assert use.joules is None and use.joules_per_token is None and use.reason


@given(st.lists(st.floats(1, 1000), min_size=3, max_size=20), st.floats(0.05, 0.95))
def test_parts_of_a_window_add_up_to_it(watts: list[float], cut: float) -> None:
    points = [(START + k * SECOND, w) for k, w in enumerate(watts)]
    end = START + (len(watts) - 1) * SECOND
    middle = START + round(cut * (end - START))
    whole = integrate_power(points, START, end)
    assert integrate_power(points, START, middle) + integrate_power(points, middle, end) == pytest.approx(
        whole, rel=1e-6
    )
    counters = [(t, sum(watts[: k + 1])) for k, (t, _) in enumerate(points)]
    assert counter_joules(counters, START, end) == pytest.approx(sum(watts[1:]))


@pytest.mark.parametrize(("share", "is_figure"), [(1.0, True), (0.7, True), (1.4, True), (0.6, False), (1.6, False)])
def test_a_counter_far_from_the_power_beside_it_is_refused_with_both(share: float, is_figure: bool) -> None:
    use = over(sampled([300.0] * 11, joules=[300.0 * share * k for k in range(11)]))
    assert (use.joules is not None) is is_figure
    assert is_figure or f"gives {2400 * share:.4g} J, and the power beside it 2400 J" in str(use.reason)


def test_a_counter_without_enough_power_beside_it_stands_alone() -> None:
    few = [300.0 if k in (1, 2, 8, 9) else None for k in range(11)]
    assert over(sampled(few, joules=[100.0 * k for k in range(11)])).joules == 800

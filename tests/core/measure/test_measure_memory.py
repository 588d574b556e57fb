"""Memory figures: worst device, worst rank, and what a mix-up of units does to them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from levelfield.measure.memory import ALLOCATED, PROCESS, RESERVED, MemoryPeaks, memory_peaks, stage_peaks
from levelfield.measure.raw_facts import Reading, StepRecord

GIB = 2**30
CAPACITY: dict[str, int | None] = {"0/0": 80 * GIB, "0/1": 80 * GIB}


def steps(peaks: dict[int, list[int | None]]) -> list[StepRecord]:
    return [
        StepRecord(rank, k, k, memory={ALLOCATED: v, RESERVED: v and v + GIB, PROCESS: 2 * GIB})
        for rank, values in peaks.items()
        for k, v in enumerate(values, start=1)
    ]


def readings(used: dict[str, list[int | None]]) -> list[Reading]:
    return [Reading(d, k, memory_used_bytes=v) for d, values in used.items() for k, v in enumerate(values)]


HELD = steps({0: [50 * GIB, 60 * GIB], 1: [55 * GIB, 55 * GIB]})
SEEN = readings({"0/0": [10 * GIB, 64 * GIB, 63 * GIB], "0/1": [9 * GIB, None, 62 * GIB]})


def peaks(seen: list[Reading] = SEEN, records: list[StepRecord] = HELD) -> MemoryPeaks:
    return memory_peaks(seen, records, CAPACITY)


def test_the_headline_is_the_fullest_device() -> None:
    m = peaks()
    assert (m.used.peak_bytes, m.used.where) == (64 * GIB, "0/0")
    assert (m.allocated.peak_bytes, m.allocated.where) == (60 * GIB, "0")
    assert m.reserved.peak_bytes == 61 * GIB and m.process.peak_bytes == 2 * GIB


def test_an_unread_device_may_be_the_worst() -> None:
    m = peaks(readings({"0/0": [64 * GIB], "0/1": [None]}))
    assert m.used.peak_bytes is None
    assert (m.used.reason or "").endswith(" device 0/1")


def test_a_step_that_says_nothing_may_have_held_the_peak() -> None:
    m = peaks(records=steps({0: [50 * GIB, None]}))
    assert m.allocated.peak_bytes is None and "rank 0" in str(m.allocated.reason)
    assert m.used.peak_bytes == 64 * GIB


def test_mebibytes_for_bytes_are_no_figure() -> None:
    m = peaks(readings({"0/0": [64 * 1024], "0/1": [62 * 1024]}))
    assert m.used.peak_bytes is None and "units" in str(m.used.reason)


def test_more_than_there_is_is_no_figure() -> None:
    m = peaks(readings({"0/0": [64 * GIB * 1024], "0/1": [62 * GIB]}))
    assert m.used.peak_bytes is None and "of 85899345920" in str(m.used.reason)


@pytest.mark.parametrize(("share", "is_figure"), [(1.0, True), (0.52, True), (0.48, False)])
def test_less_than_half_of_what_a_rank_held_is_another_device(share: float, is_figure: bool) -> None:
    """Each rank holds its own part: the fullest device may show less than the sum of both, never half of one."""
    m = peaks(readings({"0/0": [int(share * 60 * GIB)], "0/1": [9 * GIB]}))
    assert (m.used.peak_bytes is not None) is is_figure
    assert is_figure or "rank 0" in str(m.used.reason)


def test_zero_and_negative_are_no_figures() -> None:
    for wrong in (0, -1):
        peak = peaks(readings({"0/0": [wrong], "0/1": [wrong]})).used
        assert peak.peak_bytes is None and str(peak.reason).endswith(" device 0/0")


SECOND = 10**9


def spread(used: Sequence[int | None], device: str = "0/0") -> list[Reading]:
    """One reading a second from the first second on."""
    return [Reading(device, k * SECOND, memory_used_bytes=v) for k, v in enumerate(used)]


def over(seen: list[Reading], first: float = 1, last: float = 9) -> MemoryPeaks:
    return memory_peaks(seen, HELD, {"0/0": 80 * GIB}, (round(first * SECOND), round(last * SECOND)))


def test_a_peak_needs_readings_over_the_window() -> None:
    assert over(spread([64 * GIB] * 11)).used.peak_bytes == 64 * GIB
    died = over(spread([64 * GIB] + [None] * 10))
    assert died.used.peak_bytes is None
    assert (died.used.reason or "").startswith("device 0/0: ")
    assert "cover 0%" in (died.used.reason or "")


def test_a_tool_that_died_within_the_window_leaves_no_peak() -> None:
    peaks = over(spread([10 * GIB] * 4 + [64 * GIB] + [None] * 6))
    assert peaks.used.peak_bytes is None and "cover 38%" in str(peaks.used.reason)


def test_one_silent_device_of_two_voids_the_peak() -> None:
    seen = spread([64 * GIB] * 11) + spread([60 * GIB] * 3 + [None] * 8, "0/1")
    peaks = memory_peaks(seen, HELD, CAPACITY, (SECOND, 9 * SECOND))
    assert peaks.used.peak_bytes is None and str(peaks.used.reason).startswith("device 0/1: ")
    assert "cover 12%" in str(peaks.used.reason)


def test_a_peak_before_the_window_counts_and_one_outside_of_readings_needs_the_window() -> None:
    assert over(spread([70 * GIB] + [64 * GIB] * 10)).used.peak_bytes == 70 * GIB
    assert memory_peaks(spread([64 * GIB]), HELD, {"0/0": 80 * GIB}).used.peak_bytes == 64 * GIB  # the run ended before


def test_unknown_capacity_leaves_the_peak() -> None:
    m = memory_peaks(SEEN, HELD, {"0/0": None, "0/1": None})
    assert m.used.peak_bytes == 64 * GIB


def test_devices_outside_the_run_do_not_count() -> None:
    assert peaks([*SEEN, Reading("0/7", 0, memory_used_bytes=79 * GIB)]).used.where == "0/0"


def test_without_any_fact_every_figure_has_a_reason() -> None:
    m = memory_peaks([], [], CAPACITY)
    assert all(p.peak_bytes is None and p.reason for p in (m.used, m.allocated, m.reserved, m.process))


@pytest.mark.parametrize(
    ("peaks", "stages", "expected"),
    [
        ((46, 45, 36, 30, 29, 28, 27, 26), 4, (46, 36, 29, 27)),  # two ranks a stage: the fuller one
        ((1, 2, 3, 9), 2, (2, 9)),
        ((1, 2, 3, 9), 1, None),
        ((1, None, 3, 9), 2, None),
        ((1, 2, 3), 2, None),  # a rank is missing
    ],
)
def test_each_stage_has_the_peak_of_its_fullest_rank(
    peaks: tuple[int | None, ...], stages: int, expected: tuple[int, ...] | None
) -> None:
    assert stage_peaks(peaks, stages, 8 if stages == 4 else 4) == expected


def test_less_than_half_of_what_a_framework_reserved_is_another_device() -> None:
    """A framework that keeps freed memory may reserve far more than it allocated, and the tool sees all of it."""
    records = [StepRecord(0, 1, 1, memory={ALLOCATED: 10 * GIB, RESERVED: 60 * GIB, PROCESS: None})]
    used = peaks(readings({"0/0": [29 * GIB], "0/1": [9 * GIB]}), records).used
    assert used.peak_bytes is None and f"rank 0 held {60 * GIB}" in str(used.reason)
    assert peaks(readings({"0/0": [31 * GIB], "0/1": [9 * GIB]}), records).used.peak_bytes == 31 * GIB

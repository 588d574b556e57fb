"""Losses against the reference, and memory by part: what is drawn is what was recorded, and nothing is made up."""

from __future__ import annotations

from typing import Any

import pytest
from compared_records import CORPUS, WORK, figure, record, with_result
from levelfield.pages.case_view import MAX_CURVE_POINTS, MemoryBar, TrainingFigures, training_figures
from levelfield.pages.content import read_content
from levelfield.pages.first_view import read_trainings
from levelfield.pages.series_history import InMemoryStore, summary_of
from levelfield.specs.record import RunRecord

GIB = 2**30
REFERENCE = [4.0, 3.0, 2.0]


def figures(run: RunRecord, losses: list[float] | None = None) -> TrainingFigures:
    results = InMemoryStore([run])
    (training,) = read_trainings(read_content(results), results)
    return training_figures(training, {(WORK, CORPUS): ("stored", losses)} if losses else {})


def test_a_loss_that_is_shifted_by_one_percent_is_one_percent_from_the_reference() -> None:
    drawn = figures(record(losses=(4.0, 3.03, 2.0)), REFERENCE)
    reference, line = drawn.loss_lines
    assert drawn.reference_name == "stored" and (reference.contender, reference.largest_difference) == (None, None)
    assert line.largest_difference == pytest.approx(0.01) and line.losses == (4.0, 3.03, 2.0)
    assert line.polyline.split()[0] == reference.polyline.split()[0], "equal losses lie on each other"


def test_the_last_run_that_counts_is_drawn_as_in_the_table_of_the_case() -> None:
    """Three repeats and a newer one that does not count: the third is the last."""
    ends = [(1, 1000), (2, 1001), (3, 1002)]
    made = [record(n, rate, memory=n * GIB, losses=(4.0, 3.0 + n)) for n, rate in ends]
    runs = [with_result(run, repeat=n) for n, run in enumerate(made, start=1)]
    worse = record(9, memory=9 * GIB, losses=(9.0, 9.0), word="oom", failure="oom")
    results = InMemoryStore([*runs, worse])
    content = read_content(results)
    (training,) = read_trainings(content, results)
    drawn = training_figures(training, {})
    (series,) = content.series.values()
    assert [bar.peak_bytes for bar in drawn.memory_bars] == [summary_of(series).latest.memory_bytes] == [3 * GIB]  # type: ignore[union-attr]
    assert [line.losses for line in drawn.loss_lines] == [(4.0, 6.0)]


def test_without_a_reference_there_is_no_difference() -> None:
    drawn = figures(record(losses=(4.0, 3.0)))
    assert drawn.reference_name is None and [line.largest_difference for line in drawn.loss_lines] == [None]


def test_a_curve_ends_at_the_first_loss_that_is_missing() -> None:
    (line,) = figures(record(losses=(4.0, None, 2.0))).loss_lines
    assert line.losses == (4.0,)


def test_a_flat_and_an_empty_curve_are_drawn_without_a_division_by_zero() -> None:
    for losses in ((2.0, 2.0), (2.0,), ()):
        (line,) = figures(record(losses=losses)).loss_lines
        assert "nan" not in line.polyline and len(line.polyline.split()) == len(losses)


def test_a_long_curve_keeps_its_ends() -> None:
    losses = tuple(9.0 - n / 1000 for n in range(5000))
    points = figures(record(losses=losses)).loss_lines[0].polyline.split()
    assert len(points) <= MAX_CURVE_POINTS + 2 and points[0].startswith("44.0,") and points[-1].startswith("360.0,")


def memory(whole: float | None, **values: Any) -> MemoryBar:
    capacity = values.pop("capacity_bytes", None)
    peaks = dict.fromkeys(("process_peak", "allocated_peak", "reserved_peak"))
    memory = {name: figure(value, "B") for name, value in {**peaks, **values}.items()}
    memory |= {"device_used_peak": figure(whole, "B", None if whole else "no reading")}
    run = with_result(record(), memory={**memory, "capacity_bytes": capacity, "expected_bytes": 1})
    (bar,) = figures(run).memory_bars
    return bar


def test_parts_add_up_to_the_peak_and_are_percent_of_the_device() -> None:
    bar = memory(60 * GIB, allocated_peak=40 * GIB, reserved_peak=50 * GIB, capacity_bytes=80 * GIB)
    assert bar.parts == (("allocated", 40 * GIB, 50.0), ("reserved", 10 * GIB, 12.5), ("device", 10 * GIB, 12.5))


@pytest.mark.parametrize(
    ("allocated", "reserved", "names"),
    [
        (None, 50 * GIB, ["reserved", "device"]),
        (40 * GIB, 30 * GIB, ["allocated", "device"]),  # swapped
        (70 * GIB, 75 * GIB, ["device"]),  # more than the whole device was seen to use
        (None, None, ["device"]),
    ],
)
def test_a_part_that_is_not_known_or_does_not_fit_is_not_drawn(allocated: Any, reserved: Any, names: list[str]) -> None:
    bar = memory(60 * GIB, allocated_peak=allocated, reserved_peak=reserved, capacity_bytes=80 * GIB)
    assert [name for name, _, _ in bar.parts] == names and sum(size for _, size, _ in bar.parts) == 60 * GIB


def test_without_a_peak_or_a_capacity_there_is_no_bar() -> None:
    assert memory(60 * GIB).parts == ()
    absent = memory(None, capacity_bytes=80 * GIB)
    assert absent.parts == () and absent.peak_bytes is None and absent.reason == "no reading"

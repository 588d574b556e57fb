"""The planner's parts beside the measured ones: sums, intervals, and what is off."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from levelfield.explain import step_difference
from levelfield.explain.step_tables import step_sheets
from levelfield.report.sheets import Sheet
from levelfield.specs.step_parts import PlannedPart, PredictedStep, StepParts

SECONDS = dict.fromkeys(("imbalance", "tensor", "context", "pipeline", "expert"), 0.0)
PLANNED = {**SECONDS, "compute": 0.1, "bubble": 0.01, "data": 0.02, "optimizer": 0.005}


def parts(half: float = 0.5, **ms: float) -> StepParts:
    """A step of 140 ms as planned, but for these parts. half: of the interval of every part."""
    times = {"mlp": 60.0, "attention core": 40.0, "all-reduce": 15.0, "all-gather": 5.0, "pipeline bubble": 10.0,
           "optimizer": 3.0, "gradient clipping": 2.0, "host": 5.0}  # fmt: skip
    times.update({name.replace("_", "-"): value for name, value in ms.items()})

    def time(mean: float) -> dict[str, Any]:
        return {"mean": mean, "low": mean - half, "high": mean + half}

    step = sum(times.values())
    overhead = {"plain_ms": time(step), "recorded_ms": time(step), "ratio": 0.0, "low": None, "high": None}
    return StepParts.model_validate(
        {
            "run_id": "a", "framework": "torch", "profiler": "k", "device": "accelerator", "recorded_steps": 3,
            "step": time(step), "overhead": overhead, "ranks": [],
            "parts": [{"part": name, "time": time(mean)} for name, mean in times.items()],
        }
    )  # fmt: skip


def compare_with_prediction(measured: StepParts, seconds: dict[str, float]) -> PredictedStep:
    return step_difference.compare_with_prediction(measured, seconds, (0.752, 1.14))


def row(name: str, measured: StepParts, seconds: dict[str, float] = PLANNED) -> PlannedPart:
    return next(part for part in compare_with_prediction(measured, seconds).parts if part.name == name)


def test_the_measured_parts_of_a_planned_one_are_added_up() -> None:
    rows = {part.name: (part.measured_ms, part.planned_ms) for part in compare_with_prediction(parts(), PLANNED).parts}
    expected = {"computation": (100.0, 100.0), "messages": (20.0, 20.0), "pipeline bubble": (10.0, 10.0),
                "optimizer": (5.0, 5.0), "step": (140.0, 135.0)}  # fmt: skip
    assert rows == {name: pytest.approx(times) for name, times in expected.items()}
    assert compare_with_prediction(parts(), PLANNED).findings == ()


def test_a_part_outside_of_its_interval_is_the_planners_finding() -> None:
    computation = row("computation", parts())
    assert (computation.low_ms, computation.high_ms) == pytest.approx((100 / 1.14, 100 / 0.752))
    (slow,) = compare_with_prediction(parts(all_reduce=45.0), PLANNED).findings
    assert slow.startswith("messages: ")
    figures = [float(figure) for figure in re.findall(r"\d+\.\d+", slow)]
    assert figures == [20.0, 17.54, 26.6, 50.0], "planned, the least and the most that is expected, and measured"
    fast = compare_with_prediction(parts(mlp=30.0), PLANNED)
    assert [finding.partition(":")[0] for finding in fast.findings] == ["computation", "step"]


def test_a_part_is_held_to_its_own_interval_and_to_a_noticeable_size() -> None:
    assert row("messages", parts(half=0.0, all_reduce=22.0)).is_off
    assert not row("messages", parts(half=1.0, all_reduce=22.0)).is_off, "27 less its interval is not above 26.6"
    assert not row("optimizer", parts(half=0.0, optimizer=5.0)).is_off, "2 ms of 142 is little"
    assert row("optimizer", parts(half=0.0, optimizer=6.0)).is_off


def test_seconds_for_milliseconds_and_no_number_are_off() -> None:
    assert len(compare_with_prediction(parts(), {name: value * 1e3 for name, value in PLANNED.items()}).findings) == 5
    with pytest.raises(ValueError, match="planned_ms"):
        compare_with_prediction(parts(), {**PLANNED, "compute": math.nan})


def planned_sheet(planned: PredictedStep) -> Sheet:
    sheets = step_sheets(parts().model_copy(update={"planned": planned}))
    return next(sheet for sheet in sheets if sheet.heading == "beside the planner")


def test_nothing_is_off_where_no_published_run_says_how_far_a_plan_may_be() -> None:
    planned = step_difference.compare_with_prediction(parts(all_reduce=45.0), PLANNED, None)
    assert planned.findings == ()
    assert {(part.low_ms, part.high_ms, part.is_off) for part in planned.parts} == {(None, None, False)}
    sheet, ordinary = planned_sheet(planned), planned_sheet(compare_with_prediction(parts(), PLANNED))
    assert {row[3] for row in sheet.rows} == {"-"}
    assert len(sheet.notes) == len(ordinary.notes) + 1, "a note says that nothing is expected"
    assert "published" in sheet.notes[-1]

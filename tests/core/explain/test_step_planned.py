"""The planner's parts beside the measured ones: sums, intervals, and what is off."""

from __future__ import annotations

import math
from typing import Any

import pytest
from levelfield.explain import step_difference
from levelfield.explain.step_tables import step_sheets
from levelfield.specs.constants import SPEED_INTERVAL, speed_interval
from levelfield.specs.step_parts import PlannedPart, StepParts, StepPlanned

SECONDS = dict.fromkeys(("imbalance", "tensor", "context", "pipeline", "expert"), 0.0)
PLANNED = {**SECONDS, "compute": 0.1, "bubble": 0.01, "data": 0.02, "optimizer": 0.005}


def parts(half: float = 0.5, **ms: float) -> StepParts:
    """A step of 140 ms as planned, but for what is given. half: of the interval of every part."""
    own = {"mlp": 60.0, "attention core": 40.0, "all-reduce": 15.0, "all-gather": 5.0, "pipeline bubble": 10.0,
           "optimizer": 3.0, "gradient clipping": 2.0, "host": 5.0}  # fmt: skip
    own.update({name.replace("_", "-"): value for name, value in ms.items()})

    def time(mean: float) -> dict[str, Any]:
        return {"mean": mean, "low": mean - half, "high": mean + half}

    step = sum(own.values())
    overhead = {"plain_ms": time(step), "recorded_ms": time(step), "ratio": 0.0, "low": None, "high": None}
    return StepParts.model_validate(
        {
            "run_id": "a", "framework": "torch", "profiler": "k", "device": "accelerator", "recorded_steps": 3,
            "step": time(step), "overhead": overhead, "ranks": [],
            "parts": [{"part": name, "time": time(mean)} for name, mean in own.items()],
        }
    )  # fmt: skip


def step_planned(found: StepParts, seconds: dict[str, float]) -> StepPlanned:
    return step_difference.step_planned(found, seconds, SPEED_INTERVAL)


def row(name: str, found: StepParts, seconds: dict[str, float] = PLANNED) -> PlannedPart:
    return next(each for each in step_planned(found, seconds).parts if each.name == name)


def test_the_measured_parts_of_a_planned_one_are_added_up() -> None:
    found = {each.name: (each.measured_ms, each.planned_ms) for each in step_planned(parts(), PLANNED).parts}
    expected = {"computation": (100.0, 100.0), "messages": (20.0, 20.0), "pipeline bubble": (10.0, 10.0),
                "optimizer": (5.0, 5.0), "step": (140.0, 135.0)}  # fmt: skip
    assert found == {name: pytest.approx(each) for name, each in expected.items()}
    assert step_planned(parts(), PLANNED).findings == ()


def test_a_part_outside_of_its_interval_is_the_planners_finding() -> None:
    computation = row("computation", parts())
    assert (computation.low_ms, computation.high_ms) == pytest.approx((100 / 1.14, 100 / 0.752))
    slow = step_planned(parts(all_reduce=45.0), PLANNED)
    assert slow.findings == ("messages: planned 20.00 ms, 17.54 to 26.60; measured 50.00 ms",)
    fast = step_planned(parts(mlp=30.0), PLANNED)
    assert [each.partition(":")[0] for each in fast.findings] == ["computation", "step"]


def test_a_part_is_held_to_its_own_interval_and_to_a_noticeable_size() -> None:
    assert row("messages", parts(half=0.0, all_reduce=22.0)).is_off
    assert not row("messages", parts(half=1.0, all_reduce=22.0)).is_off, "27 less its interval is not above 26.6"
    assert not row("optimizer", parts(half=0.0, optimizer=5.0)).is_off, "2 ms of 142 is little"
    assert row("optimizer", parts(half=0.0, optimizer=6.0)).is_off


def test_seconds_for_milliseconds_and_no_number_are_off() -> None:
    assert len(step_planned(parts(), {name: each * 1e3 for name, each in PLANNED.items()}).findings) == 5
    with pytest.raises(ValueError, match="planned_ms"):
        step_planned(parts(), {**PLANNED, "compute": math.nan})


def shown(planned: StepPlanned) -> tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]:
    sheets = step_sheets(parts().model_copy(update={"planned": planned}))
    return next((each.rows, each.notes) for each in sheets if each.heading == "beside the planner")


def test_nothing_is_off_where_no_published_run_says_how_far_a_plan_may_be() -> None:
    assert speed_interval("nvidia", is_host=False, is_mixture=False) == SPEED_INTERVAL
    for vendor, host, mixture in (("amd", False, False), ("cpu", True, False), ("nvidia", False, True)):
        assert speed_interval(vendor, host, mixture) is None
    found = step_difference.step_planned(parts(all_reduce=45.0), PLANNED, None)
    assert found.findings == () and {(each.low_ms, each.high_ms, each.is_off) for each in found.parts} == {
        (None, None, False)
    }
    rows, notes = shown(found)
    assert {row[3] for row in rows} == {"-"} and "no published run of this kind" in notes[-1]
    assert not any("no published run" in note for note in shown(step_planned(parts(), PLANNED))[1])

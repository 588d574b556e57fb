"""The time of a rank's own work, as each framework's training records it: a planted slow rank is seen in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from layouts import MODELS, Variant, events, launch, planted, small_job
from levelfield.measure.straggler import find_stragglers

pytestmark = [pytest.mark.layouts, pytest.mark.torch]

STEPS = 12
LATE_SECONDS = 0.2  # far above what a small model takes
# By a clock of the rank's processor time, which others on a busy machine do not take from it, and of what is added.
SLOW = f"""
import os, time
from levelfield.worker import OwnWork
reaches, added = OwnWork.reaches_exchange, []
def late(self):
    if os.environ["RANK"] == "1":
        added.append({LATE_SECONDS})
    reaches(self)
OwnWork.reaches_exchange = late
OwnWork.now = lambda self: time.process_time() + sum(added)
"""
REPLICAS = Variant("DP2", {"data": 2}, micro_batch=1)


def times(folder: Path) -> dict[int, dict[int, float]]:
    return {
        rank: {
            event["step"]: event["before_exchange_seconds"]
            for event in events(folder, rank)
            if event["event"] == "step" and "before_exchange_seconds" in event
        }
        for rank in (0, 1)
    }


SLOWER = (pytest.param(name, marks=pytest.mark.thorough) for name in ("deepspeed", "megatron"))


@pytest.mark.parametrize("framework", ["torch", "paddle", *SLOWER])
def test_a_rank_that_is_late_is_named(framework: str, tmp_path: Path, interpreter_of: Callable[[str], Path]) -> None:
    job = small_job({**MODELS["gpt"], "layers": 1}, REPLICAS, STEPS)
    ends = launch(job, tmp_path, planted(tmp_path, framework, SLOW), interpreter_of(framework))
    assert [end.returncode for end in ends] == [0, 0], ends[0].output[-2000:]
    found = times(tmp_path)
    assert [set(own) for own in found.values()] == [set(range(2, STEPS + 1))] * 2, (
        "the first step has no exchange before"
    )
    assert min(found[1].values()) >= LATE_SECONDS
    pace = find_stragglers(found, {})
    assert [each.name for each in pace.stragglers] == ["rank 1"]


@pytest.mark.parametrize(
    "layout", [{"data": 2, "sharding_stage": 3, "sharding_degree": 2}, {"tensor": 2}], ids=["ZeRO 3", "TP2"]
)
def test_a_layout_that_exchanges_within_its_forward_pass_records_nothing(
    layout: dict[str, int], tmp_path: Path
) -> None:
    launch(small_job({**MODELS["gpt"], "layers": 1}, Variant("", layout, micro_batch=1), 2), tmp_path)
    assert times(tmp_path) == {0: {}, 1: {}} and events(tmp_path, 1)[-1]["event"] == "end"

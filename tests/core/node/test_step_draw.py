"""A rank of the node is told to sample a step of the window, and nothing shows the step before."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from levelfield.node.step_draw import StepDraw

JOB: dict[str, Any] = {"spot_check": True, "window": {"first_step": 3, "last_step": 6}}


@pytest.fixture
def events(tmp_path: Path) -> Path:
    (tmp_path / "job.json").write_text(json.dumps(JOB))
    folder = tmp_path / "events"
    folder.mkdir()
    return folder


def finish(events: Path, step: int, ranks: tuple[int, ...] = (0,)) -> None:
    for rank in ranks:
        with (events / f"rank{rank}.jsonl").open("a") as file:
            file.write(f'{{"event":"step","step":{step},"end_ns":{step}}}\n')


def told_after(events: Path, ranks: tuple[int, ...] = (0,)) -> tuple[int, list[str]]:
    """The finished step after which somebody was told, and the files that tell it."""
    draw = StepDraw(events)
    for step in range(1, 9):
        finish(events, step, ranks)
        draw.look(ranks)
        if files := sorted(file.name for file in events.glob("*.spot_check")):
            return step, files
    return 0, []


def clear(events: Path) -> None:
    for file in events.iterdir():
        file.unlink()


def test_every_step_of_the_window_that_another_follows_is_drawn(events: Path) -> None:
    steps = Counter[int]()
    for _ in range(200):
        clear(events)
        step, files = told_after(events)
        steps[step + 1] += 1
        assert files == ["rank0.spot_check"]
    assert sorted(steps) == [3, 4, 5] and min(steps.values()) > 20, steps


def test_one_rank_of_several_is_told(events: Path) -> None:
    names = set()
    for _ in range(60):
        clear(events)
        _, files = told_after(events, (2, 3))
        assert len(files) == 1
        names.update(files)
    assert names == {"rank2.spot_check", "rank3.spot_check"}


def test_two_draws_have_other_seeds(events: Path) -> None:
    seeds = set()
    for _ in range(3):
        clear(events)
        told_after(events)
        seeds.add((events / "rank0.spot_check").read_text())
    assert len(seeds) == 3 and {len(seed) for seed in seeds} == {32}


@pytest.mark.parametrize(
    "job", [{}, {**JOB, "spot_check": False}, {**JOB, "window": None}, None, "broken"], ids=lambda job: str(job)[:20]
)
def test_no_rank_is_told_of_a_job_that_does_not_ask(job: Any, events: Path) -> None:
    path = events.parent / "job.json"
    path.unlink()
    if job is not None:
        path.write_text("{" if job == "broken" else json.dumps(job))
    assert told_after(events) == (0, [])


def test_a_node_without_ranks_or_events_is_waited_for(events: Path) -> None:
    draw = StepDraw(events)
    draw.look([])
    draw.look([0])
    finish(events, 6)
    draw.look([0])
    assert (events / "rank0.spot_check").exists()

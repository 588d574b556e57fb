"""Hangs, told from heartbeats and from events that stop growing, by a clock that the test moves."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from levelfield.contracts.execution import Request
from levelfield.run.launchers.liveness import Liveness

NOW = 1_700_000_000.0


class Clock:
    """Stands in for the module `time`."""

    def __init__(self) -> None:
        self.passed = 0.0

    def time(self) -> float:
        return NOW + self.passed

    def monotonic(self) -> float:
        return 100.0 + self.passed


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr("levelfield.run.launchers.liveness.time", found)
    return found


@pytest.fixture
def liveness(tmp_path: Path, clock: Clock) -> Liveness:
    limits = {"start_seconds": 100.0, "step_seconds": 10.0, "heartbeat_seconds": 5.0}
    return Liveness(Request("local", "process", (), str(tmp_path), **limits))


def beat(folder: Path, rank: int, at: float) -> None:
    path = folder / f"rank{rank}.alive"
    path.touch()
    os.utime(path, (NOW + at, NOW + at))


def write(folder: Path, event: str, rank: int = 0) -> None:
    with (folder / f"rank{rank}.jsonl").open("a") as file:
        file.write(f'{{"event":"{event}"}}\n')


def test_a_rank_without_a_heartbeat_is_named(tmp_path: Path, clock: Clock, liveness: Liveness) -> None:
    beat(tmp_path, 0, 5)
    beat(tmp_path, 1, 0)
    clock.passed = 5
    assert liveness.hang([0, 1]) is None
    clock.passed = 6
    assert liveness.hang([0, 1]) == "rank 1 gave no heartbeat for 6 s (limit 5 s)"


def test_a_rank_that_has_ended_needs_no_heartbeat(tmp_path: Path, clock: Clock, liveness: Liveness) -> None:
    beat(tmp_path, 1, 0)
    clock.passed = 50
    assert liveness.hang([0]) is None


def test_the_first_step_has_its_own_limit(tmp_path: Path, clock: Clock, liveness: Liveness) -> None:
    clock.passed = 100
    assert liveness.hang([0]) is None
    clock.passed = 101
    assert liveness.hang([0]) == "no first step was finished for 101 s (limit 100 s)"


def test_steps_that_stop_are_a_hang(tmp_path: Path, clock: Clock, liveness: Liveness) -> None:
    for second in range(0, 60, 6):
        clock.passed = second
        write(tmp_path, "step")
        assert liveness.hang([0]) is None
    clock.passed = 65
    assert liveness.hang([0]) == "no step was finished for 11 s (limit 10 s)"


def test_events_before_the_first_step_do_not_shorten_the_limit(
    tmp_path: Path, clock: Clock, liveness: Liveness
) -> None:
    write(tmp_path, "framework")
    assert liveness.hang([0]) is None
    clock.passed = 90
    assert liveness.hang([0]) is None


def test_any_ranks_step_counts(tmp_path: Path, clock: Clock, liveness: Liveness) -> None:
    write(tmp_path, "step", rank=0)
    liveness.hang([0, 1])
    clock.passed = 9
    write(tmp_path, "step", rank=1)
    assert liveness.hang([0, 1]) is None
    clock.passed = 18
    assert liveness.hang([0, 1]) is None

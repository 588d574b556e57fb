"""Hangs, told from heartbeats and from events that stop growing, by a clock that the test moves.

The times of files have no part in a verdict: a clock may be set while a run goes on, and a file server has its own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from levelfield.contracts.execution import NodeWork, ProcessWork, Request
from levelfield.node.heartbeat_watch import MAX_LOOK_SECONDS
from levelfield.run.launchers.liveness import Liveness
from levelfield.worker.heartbeat import _touch

NOW = 1_700_000_000.0
LIMITS = (100.0, 10.0, 5.0)  # seconds to the first step, of a step and of a heartbeat
LOOK = 0.5  # seconds between two looks of the platform


class Clock:
    """Stands in for the module `time`. It has no wall clock, so that none can be read."""

    def __init__(self) -> None:
        self.passed = 0.0

    def monotonic(self) -> float:
        return 100.0 + self.passed


def figures(verdict: str | None) -> list[str]:
    return re.findall(r"\d+", str(verdict))


class Watched:
    """The platform's watch over two ranks, in seconds that the test lets pass."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.folder, self._clock = folder, clock
        self.liveness = Liveness(Request("local", "process", (), str(folder), *LIMITS))

    def look(self, *alive: int) -> str | None:
        return self.liveness.hang_evidence(list(alive))

    def until(self, second: float, *alive: int, meanwhile: Callable[[float], None] = lambda second: None) -> str | None:
        """Look twice a second up to this second. Return the first verdict."""
        while self._clock.passed < second:
            self._clock.passed += LOOK
            meanwhile(self._clock.passed)
            if verdict := self.look(*alive):
                return verdict
        return None

    def stand_still(self, seconds: float) -> None:
        """The platform does not run for a while, as a stopped process or a virtual machine that is paused."""
        self._clock.passed += seconds

    def beat(self, rank: int, at: float) -> None:
        path = self.folder / f"rank{rank}.alive"
        path.touch()
        os.utime(path, (NOW + at, NOW + at))

    def write(self, event: str, rank: int = 0) -> None:
        with (self.folder / f"rank{rank}.jsonl").open("a") as file:
            file.write(f'{{"event":"{event}"}}\n')


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    stand_in = Clock()
    monkeypatch.setattr("levelfield.run.launchers.liveness.time", stand_in)
    return stand_in


@pytest.fixture
def watched(tmp_path: Path, clock: Clock) -> Watched:
    return Watched(tmp_path, clock)


def test_a_rank_without_a_heartbeat_is_named(watched: Watched) -> None:
    watched.beat(1, 0)
    assert watched.until(5, 0, 1, meanwhile=lambda second: watched.beat(0, second)) is None
    verdict = watched.until(7, 0, 1, meanwhile=lambda second: watched.beat(0, second))
    assert figures(verdict) == ["1", "6", "5"] and "no heartbeat" in str(verdict)


def test_a_rank_that_has_ended_needs_no_heartbeat(watched: Watched) -> None:
    watched.beat(1, 0)
    assert watched.until(50, 0) is None


@pytest.mark.parametrize("offset", [-86400.0, -60.0, -30.0, 0.0, 30.0, 60.0, 86400.0])
def test_a_file_server_with_another_clock_ends_no_run_and_hides_no_hang(watched: Watched, offset: float) -> None:
    assert watched.until(40, 0, meanwhile=lambda second: watched.beat(0, second + offset)) is None
    assert figures(watched.until(50, 0)) == ["0", "6", "5"]


@pytest.mark.parametrize("step", [-3600.0, -60.0, 60.0, 3600.0])
def test_a_clock_that_is_set_during_the_run_ends_no_run_and_hides_no_hang(watched: Watched, step: float) -> None:
    def beat(second: float) -> None:
        watched.beat(0, second + (step if second > 20 else 0.0))

    assert watched.until(40, 0, meanwhile=beat) is None
    assert figures(watched.until(50, 0)) == ["0", "6", "5"]


def test_a_count_is_a_heartbeat_where_the_clock_of_the_files_stands_still(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = watched.folder / "rank0.alive"

    def beat(second: float) -> None:
        _touch(str(path), int(second))
        os.utime(path, (NOW, NOW))

    assert watched.until(40, 0, meanwhile=beat) is None
    assert path.read_text() == "40"


def test_a_platform_that_stood_still_looks_again_before_a_verdict(watched: Watched) -> None:
    """The ranks may have stood still with it: one look at old files shows nothing."""
    watched.beat(0, 0)
    watched.write("step")
    watched.look(0)
    watched.stand_still(3600)
    assert watched.look(0) is None
    watched.beat(0, 1)
    assert watched.until(3602, 0) is None
    assert MAX_LOOK_SECONDS <= 1


def test_the_first_step_has_its_own_limit(watched: Watched) -> None:
    assert watched.until(100, 0) is None
    verdict = watched.until(101, 0)
    assert figures(verdict) == ["100", "100"] and "first step" in str(verdict)


def test_steps_that_stop_are_a_hang(watched: Watched) -> None:
    assert watched.until(60, 0, meanwhile=lambda second: watched.write("step")) is None
    verdict = watched.until(80, 0)
    assert figures(verdict) == ["10", "10"] and "no step" in str(verdict)


def test_events_before_the_first_step_do_not_shorten_the_limit(watched: Watched) -> None:
    watched.write("framework")
    assert watched.until(90, 0) is None


def test_any_ranks_step_counts(watched: Watched) -> None:
    watched.write("step", rank=0)
    assert watched.until(9, 0, 1) is None
    watched.write("step", rank=1)
    assert watched.until(18, 0, 1) is None


def test_ranks_that_never_met_are_told_with_the_address_that_they_were_given(tmp_path: Path, clock: Clock) -> None:
    def verdict(name: str, event: str = "", nodes: int = 2, address: str = "10.0.0.9") -> str:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "rank0.jsonl").write_text('{"event":"framework"}\n' + event)
        rendezvous = {"MASTER_ADDR": address, "MASTER_PORT": "23456"}
        rank = ProcessWork(rank=0, argv=(), environment=rendezvous, log="")
        work = tuple(NodeWork(node, address, (rank,), name=f"gpu{node + 1}") for node in range(nodes))
        liveness = Liveness(Request("ssh", "process", work, str(folder), *LIMITS))
        while not (evidence := liveness.hang_evidence([])):
            clock.passed += 1
        return evidence.partition("(limit 100 s)")[2]

    group = "; no process group came up: every rank was given {} of the first node, gpu1"
    assert verdict("alone") == group.format(", ".join(["10.0.0.9", "port 23456"]))
    assert verdict("slurm", address="{first_node}") == group.format("port 23456")
    assert verdict("met", '{"event":"weights"}\n') == verdict("one", nodes=1) == ""
    assert verdict("preflight", '{"event":"measured","name":"joined"}\n') == ""

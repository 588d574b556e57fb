"""Hangs, told from heartbeats and from events that stop growing, by a clock that the test moves.

The times of files have no part in a verdict: a clock may be set while a run goes on, and a file server has its own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from io import BufferedReader
from pathlib import Path

import pytest
from levelfield.catalog.registry import Registry
from levelfield.contracts.execution import NodeWork, ProcessWork, Request
from levelfield.node.heartbeat_watch import MAX_LOOK_SECONDS
from levelfield.node.regular_files import open_regular
from levelfield.run.launchers import node_records
from levelfield.run.launchers.liveness import SECONDS_PER_NODE, WATCHED_FILES, Liveness, NodePulse, Silence
from levelfield.run.launchers.node_records import NODES_PER_LOOK, UnfinishedNodes
from levelfield.rundir.follower import Follower
from levelfield.specs.site import LaunchPlan, Site
from levelfield.worker.heartbeat import _touch
from plans import make_plan

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


def many_ranks(folder: Path, nodes: int, devices: int) -> Request:
    """A request of so many nodes with so many ranks each, whose events lie in the folder."""
    numbers = ([node * devices + device for device in range(devices)] for node in range(nodes))
    works = ([ProcessWork(rank, (), {}, "") for rank in ranks] for ranks in numbers)
    nodes_work = tuple(NodeWork(node, "", tuple(processes)) for node, processes in enumerate(works))
    return Request("local", "process", nodes_work, str(folder), *LIMITS)


class Watched:
    """The platform's watch over some ranks, in seconds that the test lets pass."""

    def __init__(self, folder: Path, clock: Clock, ranks: int = 2) -> None:
        self.folder, self._clock = folder, clock
        self.liveness = Liveness(many_ranks(folder, 1, ranks))

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


# ---- a thousand nodes: a file server answers for each file that is opened


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that were opened since the list was cleared."""
    names: list[str] = []

    def opening(path: Path) -> BufferedReader:
        names.append(path.name)
        return open_regular(path)

    monkeypatch.setattr("levelfield.run.launchers.liveness.open_regular", opening)
    return names


def test_a_look_at_many_ranks_opens_few_files(tmp_path: Path, clock: Clock, opened: list[str]) -> None:
    watched = Watched(tmp_path, clock, ranks=40)
    for rank in range(40):
        watched.write("step", rank)
    watched.look()
    assert WATCHED_FILES <= len(opened) < 2 * WATCHED_FILES and "rank0.jsonl" in opened


def test_many_ranks_that_stand_still_are_a_hang_at_the_limit(tmp_path: Path, clock: Clock) -> None:
    """Also where the last step of an unwatched rank is seen later than it ended."""
    watched = Watched(tmp_path, clock, ranks=40)

    def write_all(second: float) -> None:
        for rank in range(40):
            watched.write("step", rank)

    assert watched.until(1, meanwhile=write_all) is None
    assert watched.until(11) is None
    assert figures(watched.until(20)) == ["10", "10"] and clock.passed == 11.5


def test_a_step_of_any_of_many_ranks_counts(tmp_path: Path, clock: Clock) -> None:
    watched = Watched(tmp_path, clock, ranks=40)
    watched.write("step", 0)
    assert watched.until(60, meanwhile=lambda second: watched.write("step", 39)) is None
    assert figures(watched.until(100)) == ["10", "10"] and clock.passed < 75


def end(folder: Path, node: int) -> None:
    (folder / f"nodes/node{node}.record.jsonl").write_text('{"event":"ended","cause":"exited"}\n')


def test_the_nodes_without_a_last_record_are_few_files_a_look(tmp_path: Path, opened: list[str]) -> None:
    (tmp_path / "nodes").mkdir()
    unfinished = UnfinishedNodes(many_ranks(tmp_path / "events", 50, 1))
    for node in range(50):
        (tmp_path / f"nodes/node{node}.record.jsonl").write_text('{"event":"started"}\n')
    assert len(unfinished.read()) == 50 and 0 < len(opened) <= NODES_PER_LOOK
    for node in range(49):
        end(tmp_path, node)
    looks = 0
    while len(left := unfinished.read()) > 1:
        looks += 1
    assert [node.node_rank for node in left] == [49] and looks <= 50 / NODES_PER_LOOK + 1
    end(tmp_path, 49)
    assert unfinished.read() == []


def test_all_nodes_that_end_at_once_are_seen_at_once(tmp_path: Path) -> None:
    (tmp_path / "nodes").mkdir()
    unfinished = UnfinishedNodes(many_ranks(tmp_path / "events", 50, 1))
    assert len(unfinished.read()) == 50
    for node in range(50):
        end(tmp_path, node)
    assert unfinished.read() == []


def test_an_interrupted_look_loses_no_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a job is over for its watch while its nodes go on, and they are called lost."""
    (tmp_path / "nodes").mkdir()
    unfinished = UnfinishedNodes(many_ranks(tmp_path / "events", 2, 1))
    (tmp_path / "nodes/node0.record.jsonl").write_text('{"event":"started"}\n')
    end(tmp_path, 1)
    with monkeypatch.context() as patch:
        patch.setattr(node_records, "read_last_fields", interrupt)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                unfinished.read()
    assert [node.node_rank for node in unfinished.read()] == [0]


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("nodes", [2, 200])
@pytest.mark.parametrize("sign", ["events/rank{}.alive", "telemetry/node{}.raw.jsonl", "nodes/node{}.record.jsonl"])
def test_a_node_without_any_sign_is_named_whatever_signs_the_others_give(
    tmp_path: Path, clock: Clock, nodes: int, sign: str
) -> None:
    request = many_ranks(tmp_path / "events", nodes, 1)
    for folder in ("events", "telemetry", "nodes"):
        (tmp_path / folder).mkdir()
    pulse, silences = NodePulse(request), dict[int, Silence]()
    while clock.passed < 30 and not silences:
        clock.passed += 0.5
        for node in range(nodes):
            if node != 1 or clock.passed < 5:
                with (tmp_path / sign.format(node)).open("a") as file:
                    file.write("x")
        silences = pulse.silent_nodes(list(request.nodes))
    assert silences.keys() == {1} and 5 < silences[1].seconds <= clock.passed
    assert clock.passed <= 5 + LIMITS[2] + 2 * nodes * SECONDS_PER_NODE + 0.5


def test_the_signs_of_many_nodes_are_looked_at_rarely(tmp_path: Path, clock: Clock, opened: list[str]) -> None:
    request = many_ranks(tmp_path / "events", 200, 1)
    (tmp_path / "events").mkdir()
    for rank in range(200):
        (tmp_path / f"events/rank{rank}.alive").touch()
    pulse = NodePulse(request)
    for look in range(10):  # in one second
        clock.passed = look / 10
        pulse.silent_nodes(list(request.nodes))
    assert sorted(opened) == sorted(f"rank{rank}.alive" for rank in range(200))


def test_a_run_of_a_launcher_is_followed_by_its_first_and_last_rank(registry: Registry, tmp_path: Path) -> None:
    line = '{"event":"step","step":%d,"end_ns":%d,"loss":%s,"memory":{"process_peak_bytes":%d}}\n'
    for rank, loss, peak in ((0, "null", 1), (2, "9.0", 9), (3, "2.5", 3)):
        (tmp_path / f"rank{rank}.jsonl").write_text("".join(line % (step, step * 10**9, loss, peak) for step in (1, 2)))
    plan = make_plan(registry, "gpt3_6.7B:torch:cpu:1:4")
    launched = plan.model_copy(update={"launch": LaunchPlan(launcher="slurm", site=Site())})
    steps = Follower(tmp_path, launched).read()
    assert [(progress.loss, progress.memory_bytes) for progress in steps] == [(2.5, 3), (2.5, 3)]
    follower = Follower(tmp_path, plan)
    assert [progress.memory_bytes for progress in follower.read()] == [9, 9] and follower.read() == []

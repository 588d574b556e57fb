"""Who has ended in a container, by what its first process writes and by what the engine says: no engine is needed."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from docker.errors import APIError
from levelfield.contracts.execution import NodeWork, ProcessEnd, ProcessWork, Request
from levelfield.node.rank_processes import main
from levelfield.run.launchers import container_launcher
from levelfield.run.launchers.launched_ranks import read_rank_ends
from levelfield.run.launchers.liveness import Liveness

ENDED = {"rank": 0, "exit_code": 0, "signal": None, "stopped_by_us": False}
RUNS = {"rank": 1, "exit_code": None, "signal": None, "stopped_by_us": False}


@pytest.fixture
def request_of_two(tmp_path: Path) -> Request:
    """One node with two ranks; its ends are in tmp_path/node0.ends.json."""
    ranks = tuple(ProcessWork(rank, (), {}, str(tmp_path / f"rank{rank}.log")) for rank in (0, 1))
    node = NodeWork(0, "127.0.0.1", ranks, ends=str(tmp_path / "node0.ends.json"))
    return Request("containers", "docker", (node,), str(tmp_path), 60, 60, 60)


def summary(ends: tuple[ProcessEnd, ...]) -> list[tuple[int, int | None, int | None, bool]]:
    return [(e.rank, e.exit_code, e.signal, e.stopped_by_us) for e in ends]


def test_a_rank_that_has_ended_is_not_asked_for_a_heartbeat(request_of_two: Request, tmp_path: Path) -> None:
    assert container_launcher._alive_ranks(request_of_two) == [0, 1], "nothing is written yet"
    (tmp_path / "node0.ends.json").write_text(json.dumps([ENDED, RUNS]))
    assert container_launcher._alive_ranks(request_of_two) == [1]


@pytest.mark.parametrize("damage", ["", "[", "{}", '[{"rank": 0}]', '[{"rank": 0, "other": 1}]'])
def test_a_damaged_file_is_as_none(damage: str, request_of_two: Request, tmp_path: Path) -> None:
    (tmp_path / "node0.ends.json").write_text(damage)
    assert container_launcher._alive_ranks(request_of_two) == [0, 1]


def test_of_a_killed_container_only_those_that_ran_were_killed(request_of_two: Request, tmp_path: Path) -> None:
    (tmp_path / "node0.ends.json").write_text(json.dumps([ENDED, RUNS]))
    ends = container_launcher._rank_ends(request_of_two, {0: PlantedContainer(137)})  # type: ignore[dict-item]
    assert summary(ends) == [(0, 0, None, False), (1, None, 9, False)]
    stopped = container_launcher._rank_ends(request_of_two, {0: PlantedContainer(137)}, {0})  # type: ignore[dict-item]
    assert summary(stopped)[1] == (1, None, 9, True)


def test_a_first_process_that_failed_is_no_signal(request_of_two: Request) -> None:
    ends = container_launcher._rank_ends(request_of_two, {0: PlantedContainer(1)})  # type: ignore[dict-item]
    assert summary(ends) == [(0, 1, None, False), (1, 1, None, False)]


STOPPED = {"rank": 1, "exit_code": None, "signal": 15, "stopped_by_us": True}


@pytest.mark.parametrize(
    ("ends", "cause"),
    [
        ([ENDED, STOPPED], "cancelled"),
        ([ENDED, {**ENDED, "rank": 1}], "exited"),
        ([{**ENDED, "exit_code": 3}, STOPPED], "rank-failed"),
    ],
)
def test_a_container_that_is_stopped_from_outside_is_no_training_that_ended(
    request_of_two: Request, tmp_path: Path, ends: list[dict[str, object]], cause: str
) -> None:
    """`docker stop` gives the first process a SIGTERM, and that ends the ranks, as it does for the platform."""
    (tmp_path / "node0.ends.json").write_text(json.dumps(ends))
    ended = PlantedContainer(0 if cause == "exited" else 1)
    outcome = container_launcher._supervise(request_of_two, {0: ended}, Liveness(request_of_two), lambda: None)  # type: ignore[dict-item]
    assert outcome.cause == cause
    if cause == "cancelled":
        assert str(outcome.evidence).startswith("levelfield-node0 ") and "`docker stop`" in str(outcome.evidence)


class PlantedContainer:
    """A container in this state. SIGKILL does not end it: the engine gives up after a while."""

    name = "levelfield-node0"

    def __init__(self, exit_code: int, is_running: bool = False) -> None:
        self.attrs = {"State": {"Running": is_running, "ExitCode": exit_code, "Pid": os.getpid()}}

    def reload(self) -> None:
        pass

    def stop(self, timeout: int) -> None:
        raise APIError("tried to kill container, but did not receive an exit event")


def test_a_container_that_cannot_be_ended_is_named_by_its_process(request_of_two: Request, tmp_path: Path) -> None:
    (tmp_path / "node0.ends.json").write_text(json.dumps([ENDED, RUNS]))
    planted = PlantedContainer(0, is_running=True)
    outcome = container_launcher._stop_containers(request_of_two, {0: planted}, "hang", "silent")  # type: ignore[dict-item]
    first, second = outcome.ends
    assert outcome.cause == "hang" and first.process is None
    assert (second.process, second.state, second.stopped_by_us) == (os.getpid(), "R", True)


def test_the_first_process_writes_how_its_ranks_ended(
    request_of_two: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container, but here: its standard input stays open."""
    read, write = os.pipe()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(fileno=lambda: read))
    monkeypatch.setattr("levelfield.node.rank_processes.SETTLE_SECONDS", 0.1)
    monkeypatch.setattr("signal.signal", lambda *ignored: None)
    work = tmp_path / "node0.json"
    processes = [
        {"rank": rank, "argv": ["sh", "-c", script], "environment": {}, "log": str(tmp_path / f"rank{rank}.log")}
        for rank, script in ((0, "echo $HOME; exit 3"), (1, "sleep 60"))
    ]
    work.write_text(json.dumps({"processes": processes, "ends": request_of_two.nodes[0].ends, "umask": 0o077}))
    before = os.umask(0o022)  # the engine's, whatever the user's is
    try:
        assert main(str(work)) == 1
    finally:
        os.umask(before)
    assert {stat.S_IMODE((tmp_path / f"rank{rank}.log").stat().st_mode) for rank in (0, 1)} == {0o600}
    written = read_rank_ends(request_of_two.nodes[0])
    assert summary(written) == [(0, 3, None, False), (1, None, 15, True)]
    os.close(write)

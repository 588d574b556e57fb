"""The watch over a job: what it says about the queue, whom it believes, and when it ends the job itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from levelfield.contracts.execution import NodeWork, Outcome, ProcessWork, Request
from levelfield.run.launchers.slurm import slurm_watch
from levelfield.run.launchers.slurm.slurm_commands import SlurmJob
from levelfield.run.launchers.slurm.slurm_watch import JobWatch
from planted_slurm import PlantedSlurm, ended

AWAY = (1, "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n")
RUNNING, DONE = "RUNNING|None|alpha,beta\n", "COMPLETED|None|alpha,beta\n"


def interrupt() -> None:
    raise KeyboardInterrupt


class Watched:
    """A watch that keeps what is said, and does something at each of its looks."""

    def __init__(self, run: Path, heartbeat: float = 30, limit: float = 60, **at: object) -> None:
        nodes = tuple(NodeWork(k, "", (ProcessWork(k, ("train",), {}, f"rank{k}.log"),)) for k in (0, 1))
        request = Request("slurm", "process", nodes, str(run / "events"), limit, limit, heartbeat)
        self.said: list[str] = []
        self.looks = 0
        self._at = at
        self._watch = JobWatch(request, SlurmJob("12"), self._look, self.said.append)

    def outcome(self) -> Outcome:
        return self._watch.watch_until_end()

    def _look(self) -> None:
        self.looks += 1
        action = self._at.get(f"look{self.looks}")
        if callable(action):
            action()


def good(run: Path) -> None:
    for rank in (0, 1):
        (run / f"nodes/node{rank}.record.jsonl").write_text(ended("exited", (rank, 0, None)))


def test_the_queue_is_told_once_for_each_change(node_run: Path, planted: PlantedSlurm) -> None:
    pending = "PENDING|Priority|\n"
    planted.says(
        "squeue", pending, "7|gpu\n12|gpu\n", pending, "7|gpu\n12|gpu\n", "PENDING|Resources|\n", "12|gpu\n", DONE
    )
    good(node_run)
    watched = Watched(node_run)
    assert watched.outcome().cause == "exited"
    first, second = watched.said
    assert "job 12" in first and "1 job" in first and first.endswith(": Priority")
    assert "job 12" in second and "0 jobs" in second and second.endswith(": Resources")


def test_a_controller_that_is_away_is_asked_again(node_run: Path, planted: PlantedSlurm) -> None:
    planted.says("squeue", RUNNING, AWAY, AWAY, RUNNING, DONE)
    good(node_run)
    watched = Watched(node_run)
    ended_run = watched.outcome()
    assert (ended_run.cause, ended_run.warnings) == ("exited", ())
    (sentence,) = watched.said
    assert "job 12;" in sentence


def test_a_controller_that_stays_away_leaves_what_the_nodes_recorded(
    node_run: Path, planted: PlantedSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm_watch, "CONTROLLER_WAIT_SECONDS", 0.05)
    planted.says("squeue", AWAY)
    good(node_run)
    ended_run = Watched(node_run).outcome()
    assert ended_run.cause == "exited"
    (warning,) = ended_run.warnings
    assert warning.endswith("`scancel 12`")


@pytest.mark.parametrize("reason", sorted(slurm_watch._ENDLESS_WAITS))
def test_a_job_that_waits_forever_is_cancelled(node_run: Path, planted: PlantedSlurm, reason: str) -> None:
    planted.says("squeue", f"PENDING|{reason}|\n", "12|gpu\n", "CANCELLED|None|\n")
    ended_run = Watched(node_run).outcome()
    assert ended_run.cause == "launch-error" and f"({reason}): {slurm_watch._ENDLESS_WAITS[reason]}" in str(
        ended_run.evidence
    )
    assert planted.calls("scancel") == [["12"]]


@pytest.mark.parametrize(
    ("state", "reason"), [("PENDING", "BeginTime"), ("REQUEUE_HOLD", "job requeued in held state")]
)
def test_a_job_that_waits_again_after_it_ran_is_cancelled(
    node_run: Path, planted: PlantedSlurm, state: str, reason: str
) -> None:
    planted.says("squeue", RUNNING, f"{state}|{reason}|\n", "12|gpu\n", "CANCELLED|None|\n")
    ended_run = Watched(node_run).outcome()
    assert (
        ended_run.cause == "cancelled"
        and "the queue" in str(ended_run.evidence)
        and f"({reason})" in str(ended_run.evidence)
    )
    assert planted.calls("scancel") == [["12"]]


def test_a_lost_node_is_named_though_slurm_has_it_back(node_run: Path, planted: PlantedSlurm) -> None:
    planted.says("squeue", RUNNING, "NODE_FAIL|NodeDown|alpha,beta\n")
    planted.says("sinfo", "alpha|idle|none\nbeta|down|fan\n", "alpha|idle|none\nbeta|idle|none\n")
    ended_run = Watched(node_run).outcome()
    assert (
        ended_run.cause == "node-lost"
        and "beta is" in str(ended_run.evidence)
        and "down (fan)" in str(ended_run.evidence)
    )


def test_a_job_that_is_interrupted_while_it_waits_has_no_node(node_run: Path, planted: PlantedSlurm) -> None:
    planted.says("squeue", "PENDING|Resources|\n", "12|gpu\n", "CANCELLED|None|\n")
    ended_run = Watched(node_run, look2=interrupt).outcome()
    assert (ended_run.cause, ended_run.nodes, ended_run.ends) == ("interrupted", (), ())


def test_an_interrupt_cancels_the_job_and_waits_for_its_end(node_run: Path, planted: PlantedSlurm) -> None:
    planted.says(
        "squeue", RUNNING, "COMPLETING|None|alpha,beta\n", "COMPLETING|None|alpha,beta\n", "CANCELLED|None|alpha\n"
    )
    ended_run = Watched(node_run, look2=interrupt).outcome()
    assert (ended_run.cause, ended_run.warnings) == ("interrupted", ())
    assert planted.calls("scancel") == [["12"]]
    assert len(planted.calls("squeue")) == 4


def test_a_job_that_cannot_be_cancelled_is_named(
    node_run: Path, planted: PlantedSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm_watch, "STOP_SECONDS", 0.05)
    planted.says("squeue", RUNNING)
    ended_run = Watched(node_run, look2=interrupt).outcome()
    (warning,) = ended_run.warnings
    assert warning.endswith("`scancel 12`")


class Beating(Watched):
    """Rank 0 gives a sign at each look; rank 1 and its node give one while `signs` holds."""

    def __init__(self, run: Path, signs: tuple[str, ...], heartbeat: float) -> None:
        super().__init__(run, heartbeat)
        self._run, self._signs = run, ("events/rank0.alive", *signs)

    def _look(self) -> None:
        super()._look()
        for name in self._signs:
            (self._run / name).write_text("x" * self.looks)


def limited(node_run: Path, planted: PlantedSlurm, monkeypatch: pytest.MonkeyPatch, *signs: str) -> Outcome:
    monkeypatch.setattr(slurm_watch, "STOP_SECONDS", 0.2)
    for name in ("MIN_POLL_SECONDS", "MAX_POLL_SECONDS"):  # each question is a process of its own
        monkeypatch.setattr(slurm_watch, name, 0.1)
    for rank in (0, 1):
        (node_run / f"events/rank{rank}.alive").write_text("0")
    planted.says("squeue", *[RUNNING] * 10, "CANCELLED|None|alpha,beta\n")
    planted.says("sinfo", "beta|allocated*|Not responding\n")
    return Beating(node_run, signs, heartbeat=0.4).outcome()


def test_a_node_without_any_sign_is_lost(
    node_run: Path, planted: PlantedSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended_run = limited(node_run, planted, monkeypatch)
    assert ended_run.cause == "node-lost"
    assert "of beta" in str(ended_run.evidence) and "allocated* (Not" in str(ended_run.evidence)
    assert planted.calls("scancel") == [["12"]]


@pytest.mark.parametrize("sign", ["events/rank1.alive", "telemetry/node1.raw.jsonl", "nodes/node1.record.jsonl"])
def test_a_node_with_any_sign_is_not(
    node_run: Path, planted: PlantedSlurm, monkeypatch: pytest.MonkeyPatch, sign: str
) -> None:
    ended_run = limited(node_run, planted, monkeypatch, sign)
    assert ended_run.cause == "cancelled" and str(ended_run.evidence).endswith("12: CANCELLED")


def test_no_step_in_time_is_a_hang(node_run: Path, planted: PlantedSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_watch, "STOP_SECONDS", 0.2)
    planted.says("squeue", RUNNING)
    ended_run = Watched(node_run, limit=0.2).outcome()
    assert ended_run.cause == "hang" and "first step" in str(ended_run.evidence)

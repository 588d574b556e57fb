"""The watch over a job: what it says about the queue, whom it believes, and when it ends the job itself."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from levelfield.contracts.execution import NodeWork, Outcome, ProcessWork, Request
from levelfield.run.launchers.slurm import slurm_watch
from levelfield.run.launchers.slurm.slurm_commands import SlurmJob
from levelfield.run.launchers.slurm.slurm_watch import JobWatch
from planted_slurm import PlantedSlurm, ended

AWAY = (1, "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n")
RUNNING, DONE = "12|RUNNING|None|alpha,beta\n", "12|COMPLETED|None|alpha,beta\n"


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
    pending = "12|PENDING|Priority|\n"
    planted.says(
        "squeue", pending, "7|gpu\n12|gpu\n", pending, "7|gpu\n12|gpu\n", "12|PENDING|Resources|\n", "12|gpu\n", DONE
    )
    watched = Watched(node_run)
    watched.outcome()
    first, second = watched.said
    assert "job 12" in first and "1 job" in first and first.endswith(": Priority")
    assert "job 12" in second and "0 jobs" in second and second.endswith(": Resources")


def test_a_controller_that_is_away_is_asked_again(node_run: Path, planted: PlantedSlurm) -> None:
    planted.says("squeue", RUNNING, AWAY, AWAY, RUNNING, DONE)
    watched = Watched(node_run)
    watched.outcome()
    (sentence,) = watched.said
    assert "job 12;" in sentence


def test_a_finished_training_is_judged_whatever_slurm_says_of_its_job(
    node_run: Path, planted: PlantedSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers recorded from a Slurm 22.05 with an epilog of 45 s, a slurmstepd that was killed, and a requeue."""
    monkeypatch.setattr(slurm_watch, "END_SECONDS", 0.2)
    good(node_run)
    answers: tuple[tuple[str | tuple[int, str], bool], ...] = (
        ("12|COMPLETING|None|sahost[1-2]\n", False),
        (RUNNING, True),
        ("12|PENDING|BeginTime|\n", True),
        ("*** Welcome to cluster 2026. Maintenance on Friday | 10:00 | all nodes ***\n" + DONE, False),
        ("12|HALF_DONE|None|alpha\n", True),
        (AWAY, True),
    )
    for number, (answer, is_cancelled) in enumerate(answers):
        slurm = PlantedSlurm(node_run / f"slurm{number}", monkeypatch)
        slurm.says("squeue", answer)
        began = time.monotonic()
        ended_run = Watched(node_run, look1=interrupt).outcome()
        assert (ended_run.cause, ended_run.warnings) == ("exited", ()), answer
        assert slurm.calls("scancel") == [["12"]] * is_cancelled, answer
        assert time.monotonic() - began < 10, answer


def test_a_job_that_is_put_back_after_its_nodes_have_ended_does_not_run_again(
    node_run: Path, planted: PlantedSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second answer is that of a Slurm with an epilog: nothing but the job's output has the reason."""
    cancelled = (
        "slurmstepd-alpha: error: *** STEP 12.0 ON alpha CANCELLED AT 2026-11-30T20:59:39 DUE TO JOB REQUEUE ***\n"
    )
    (node_run / "logs" / "job.log").write_text(cancelled)
    for rank in (0, 1):
        (node_run / f"nodes/node{rank}.record.jsonl").write_text(ended("stopped", (rank, None, 15)))
    completing = "12|COMPLETING|None|alpha,beta\n"
    for number, (answers, evidence) in enumerate(
        (((completing, "12|PENDING|BeginTime|\n"), "put back into the queue"), ((completing,), "DUE TO JOB REQUEUE"))
    ):
        slurm = PlantedSlurm(node_run / f"slurm{number}", monkeypatch)
        slurm.says("squeue", *answers)
        slurm.says("sacct", "12|REQUEUED|None|alpha,beta\n")
        ended_run = Watched(node_run).outcome()
        assert ended_run.cause == "cancelled" and evidence in str(ended_run.evidence), (number, ended_run)
        assert slurm.calls("scancel") == [["12"]], number


def test_a_node_that_begins_after_slurm_was_asked_is_not_put_back(node_run: Path, planted: PlantedSlurm) -> None:
    planted.says("squeue", "12|PENDING|None|\n", RUNNING, DONE)
    sign = node_run / "telemetry/node0.raw.jsonl"
    ended_run = Watched(node_run, look2=lambda: sign.write_text("{}\n")).outcome()
    assert planted.calls("scancel") == [] and "put back" not in str(ended_run.evidence)


def test_commands_that_hang_hold_no_verdict_up(
    node_run: Path, planted: PlantedSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The training ends while one of them hangs, and the job that nobody could cancel is named."""
    monkeypatch.setattr(slurm_watch, "END_SECONDS", 0.2)
    monkeypatch.setattr(slurm_watch, "END_ANSWER_SECONDS", 0.2)
    for name in ("squeue", "scancel"):
        planted.replace(name, "exec sleep 60")
    began = time.monotonic()
    ended_run = Watched(node_run, look2=lambda: good(node_run)).outcome()
    assert ended_run.cause == "exited" and time.monotonic() - began < 10
    (warning,) = ended_run.warnings
    assert warning.endswith("`scancel 12`")


@pytest.mark.parametrize("reason", sorted(slurm_watch._ENDLESS_WAITS))
def test_a_job_that_waits_forever_is_cancelled(node_run: Path, planted: PlantedSlurm, reason: str) -> None:
    planted.says("squeue", f"12|PENDING|{reason}|\n", "12|gpu\n", "12|CANCELLED|None|\n")
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
    planted.says("squeue", RUNNING, f"12|{state}|{reason}|\n", "12|gpu\n", "12|CANCELLED|None|\n")
    ended_run = Watched(node_run).outcome()
    assert (
        ended_run.cause == "cancelled"
        and "the queue" in str(ended_run.evidence)
        and f"({reason})" in str(ended_run.evidence)
    )
    assert planted.calls("scancel") == [["12"]]


def test_a_lost_node_is_named_though_slurm_has_it_back(node_run: Path, planted: PlantedSlurm) -> None:
    planted.says("squeue", RUNNING, "12|NODE_FAIL|NodeDown|alpha,beta\n")
    planted.says("sinfo", "alpha|idle|none\nbeta|down|fan\n", "alpha|idle|none\nbeta|idle|none\n")
    ended_run = Watched(node_run).outcome()
    assert (
        ended_run.cause == "node-lost"
        and "beta is" in str(ended_run.evidence)
        and "down (fan)" in str(ended_run.evidence)
    )


def test_a_job_that_is_interrupted_while_it_waits_has_no_node(node_run: Path, planted: PlantedSlurm) -> None:
    planted.says("squeue", "12|PENDING|Resources|\n", "12|gpu\n", "12|CANCELLED|None|\n")
    ended_run = Watched(node_run, look2=interrupt).outcome()
    assert (ended_run.cause, ended_run.nodes, ended_run.ends) == ("interrupted", (), ())


def test_an_interrupt_cancels_the_job_and_waits_for_its_end(node_run: Path, planted: PlantedSlurm) -> None:
    planted.says(
        "squeue",
        RUNNING,
        "12|COMPLETING|None|alpha,beta\n",
        "12|COMPLETING|None|alpha,beta\n",
        "12|CANCELLED|None|alpha\n",
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
    planted.says("squeue", *[RUNNING] * 10, "12|CANCELLED|None|alpha,beta\n")
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
    for rank in (0, 1):
        (node_run / f"events/rank{rank}.alive").write_text("1")
    ended_run = Watched(node_run, limit=0.2).outcome()
    assert ended_run.cause == "hang" and "first step" in str(ended_run.evidence)


def test_each_wait_ends_at_its_limit_and_says_what_it_waits_for(
    node_run: Path, planted: PlantedSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {"STOP": 0.2, "QUEUE": 2.0, "ANSWERLESS": 2.0, "SILENT_START": 0.1, "SILENT_WAIT": 0.0, "END": 0.1}
    for name, seconds in {**limits, "MIN_POLL": 0.2, "MAX_POLL": 0.2}.items():
        monkeypatch.setattr(slurm_watch, f"{name}_SECONDS", seconds)
    waits: tuple[tuple[str | tuple[int, str], str, str, str], ...] = (
        ("12|PENDING|Priority|\n", "waits: Priority", "launch-error", "was PENDING for"),
        ("12|SUSPENDED|None|alpha,beta\n", "as SUSPENDED", "launch-error", "was SUSPENDED for"),
        (AWAY, "does not answer", "launch-error", "did not answer about job 12 for"),
        (RUNNING, "first sign of its nodes", "node-lost", "no sign of alpha, beta for"),
    )
    for count, (answer, line, cause, evidence) in enumerate(waits):
        slurm = PlantedSlurm(node_run / f"slurm{count}", monkeypatch)
        slurm.says("squeue", answer)
        watched = Watched(node_run, limit=2.0)
        ended_run = watched.outcome()
        assert (ended_run.cause, evidence in str(ended_run.evidence)) == (cause, True), (answer, ended_run)
        assert any(line in sentence for sentence in watched.said), (answer, watched.said)
        assert len([text for text in watched.said if "which was cancelled: at most 0.2 s" in text]) == 1, watched.said
        assert slurm.calls("scancel") and "`scancel 12`" in str(ended_run.warnings), answer


def test_a_node_that_is_prepared_for_long_is_not_lost(
    node_run: Path, planted: PlantedSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prolog may take minutes, while the job is RUNNING by Slurm's word."""
    planted.says("squeue", RUNNING)
    ended_run = Watched(node_run, heartbeat=0.1, look6=lambda: good(node_run)).outcome()
    assert ended_run.cause == "exited"

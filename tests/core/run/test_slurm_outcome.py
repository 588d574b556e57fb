"""How a job's end becomes a run's: Slurm's word, the nodes' last records, and their contradictions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from levelfield.contracts.execution import DISK_IS_FULL, NodeWork, Outcome, ProcessWork, Request
from levelfield.run.launchers.slurm.slurm_commands import FORGOTTEN_STATE, JobState, SlurmJob
from levelfield.run.launchers.slurm.slurm_watch import CancelReason, job_outcome
from planted_slurm import PlantedSlurm, ended

JOB = SlurmJob("12")
NODES = ("alpha", "beta")
GOOD = (ended("exited", (0, 0, None)), ended("exited", (1, 0, None)))


def request_of(node_run: Path) -> Request:
    nodes = tuple(
        NodeWork(k, "", (ProcessWork(k, ("train",), {}, str(node_run / "logs" / f"rank{k}.log")),)) for k in (0, 1)
    )
    return Request("slurm", "process", nodes, str(node_run / "events"), 60, 60, 30)


def outcome(
    node_run: Path, word: str, *records: str | None, intent: CancelReason | None = None, **state: str
) -> Outcome:
    """Return the outcome of two nodes that wrote these records, one rank each."""
    for node, text in enumerate(records):
        if text is not None:
            (node_run / "nodes" / f"node{node}.record.jsonl").write_text(text)
    return job_outcome(request_of(node_run), JOB, JobState(word, nodes=NODES, **state), intent)


def words(ended_run: Outcome) -> list[str]:
    return [f"{node.name}: {node.word}" for node in ended_run.nodes]


def test_a_good_run(node_run: Path) -> None:
    ended_run = outcome(node_run, "COMPLETED", *GOOD)
    assert (ended_run.cause, ended_run.evidence, words(ended_run)) == ("exited", None, ["alpha: ended", "beta: ended"])
    assert [(end.rank, end.exit_code) for end in ended_run.ends] == [(0, 0), (1, 0)]


@pytest.mark.parametrize("word", ["CANCELLED", "NODE_FAIL", "TIMEOUT"])
def test_a_run_that_every_node_has_ended_is_good_whatever_slurm_says_later(node_run: Path, word: str) -> None:
    """A controller that was killed may recall an older state of the job."""
    ended_run = outcome(node_run, word, *GOOD)
    assert ended_run.cause == "exited"
    (warning,) = ended_run.warnings
    assert f"job 12 is {word}," in warning


@pytest.mark.parametrize(
    ("word", "cause", "node"),
    [
        ("CANCELLED", "cancelled", "cancelled"),
        ("PREEMPTED", "preempted", "preempted"),
        ("TIMEOUT", "time-limit", "time-limit"),
        ("DEADLINE", "time-limit", "time-limit"),
    ],
)
def test_slurm_s_own_ends(node_run: Path, word: str, cause: str, node: str) -> None:
    """Its signal may have reached a rank before the node's own part."""
    records = (ended("stopped", (0, None, 15)), ended("rank-failed", (1, None, 15)))
    ended_run = outcome(node_run, word, *records)
    assert ended_run.cause == cause and str(ended_run.evidence).endswith(f"job 12: {word}")
    assert words(ended_run) == [f"alpha: {node}", f"beta: {node}"]
    assert all(end.stopped_by_us for end in ended_run.ends)


@pytest.mark.parametrize(
    ("number", "evidence"),
    [("0", "Slurm job 12: CANCELLED by root"), ("99999", "Slurm job 12: CANCELLED by user 99999")],
)
def test_who_cancelled_is_named(node_run: Path, number: str, evidence: str) -> None:
    assert outcome(node_run, "CANCELLED", None, None, cancelled_by=number).evidence == evidence


def test_a_lost_node_is_named_with_slurm_s_reason(node_run: Path, planted: PlantedSlurm) -> None:
    planted.says("sinfo", "alpha|idle|none\nbeta|down*|silent\n")
    ended_run = outcome(node_run, "NODE_FAIL", ended("stopped", (0, None, 15)), None)
    assert ended_run.cause == "node-lost"
    assert "12: NODE_FAIL;" in str(ended_run.evidence) and str(ended_run.evidence).endswith("down* (silent)")
    assert words(ended_run) == ["alpha: stopped", "beta: lost"]
    assert ended_run.nodes[1].missing == ("last record", "facts", "telemetry")


def test_a_lost_node_that_slurm_shows_no_more_is_the_one_without_a_last_record(node_run: Path) -> None:
    ended_run = outcome(node_run, "NODE_FAIL", ended("stopped", (0, None, 15)), None)
    assert "12: NODE_FAIL;" in str(ended_run.evidence) and str(ended_run.evidence).endswith("from beta")


def test_a_failed_rank_counts_and_not_those_that_slurm_ended_after_it(node_run: Path) -> None:
    records = (ended("rank-failed", (0, None, 15)), ended("rank-failed", (1, None, 9)))
    ended_run = outcome(node_run, "FAILED", *records)
    assert ended_run.cause == "rank-failed" and str(ended_run.evidence).startswith("beta: ")
    assert "rank 1" in str(ended_run.evidence) and str(ended_run.evidence).endswith(" SIGKILL")
    assert [end.stopped_by_us for end in ended_run.ends] == [True, False]
    assert words(ended_run) == ["alpha: stopped", "beta: failed"]


@pytest.mark.parametrize(
    ("free", "is_full"), [(0, True), (2**20 - 1, True), (2**20, False), (None, False), ("0", False)]
)
def test_a_full_disk_is_said_beside_the_rank_that_failed(node_run: Path, free: object, is_full: bool) -> None:
    record = json.dumps({**json.loads(ended("rank-failed", (0, 1, None))), "disk_free_bytes": free}) + "\n"
    ended_run = outcome(node_run, "FAILED", record, GOOD[1])
    assert ended_run.cause == "rank-failed" and str(ended_run.evidence).startswith("alpha: ")
    assert "rank 0" in str(ended_run.evidence) and "code 1" in str(ended_run.evidence)
    assert (DISK_IS_FULL in str(ended_run.evidence)) == is_full


def test_a_rank_that_somebody_sent_sigterm_to_is_a_failure(node_run: Path) -> None:
    ended_run = outcome(node_run, "FAILED", ended("rank-failed", (0, None, 15)), ended("stopped", (1, None, 15)))
    assert ended_run.cause == "rank-failed" and str(ended_run.evidence).startswith("alpha: ")
    assert "rank 0" in str(ended_run.evidence) and str(ended_run.evidence).endswith(" SIGTERM")


@pytest.mark.parametrize(
    ("cause", "expected"),
    [
        ("node-differs", "node-differs"),
        ("device-taken", "device-taken"),
        ("port-taken", "launch-error"),
        ("name-unknown", "launch-error"),
        ("launch-error", "launch-error"),
        ("fault", "launch-error"),
        ("hang", "hang"),
    ],
)
def test_a_node_s_own_word_explains_the_failure_of_others(node_run: Path, cause: str, expected: str) -> None:
    records = (ended("rank-failed", (0, 1, None)), ended(cause, evidence="its reason"))
    ended_run = outcome(node_run, "FAILED", *records)
    assert (ended_run.cause, ended_run.evidence) == (expected, ": ".join(["beta", "its reason"]))


def test_a_node_without_a_last_word(node_run: Path, planted: PlantedSlurm) -> None:
    planted.says("sacct", "12|FAILED|1:0\n12.batch|FAILED|1:0\n12.0|FAILED|137:0\n")
    ended_run = outcome(node_run, "FAILED", ended("stopped", (0, None, 15)), None)
    assert ended_run.cause == "node-lost"
    steps = ("12: FAILED", "(12.batch FAILED", "1:0,", "FAILED 137:0);")
    assert all(step in str(ended_run.evidence) for step in steps) and str(ended_run.evidence).endswith("from beta")


def test_where_nothing_was_started_the_job_s_last_line_is_the_evidence(node_run: Path) -> None:
    last = "python3: can't open file 'node_agent.py'"
    (node_run / "logs" / "job.log").write_text(f"srun: error\n{last}\n\n")
    ended_run = outcome(node_run, "FAILED", None, None, reason="NonZeroExitCode")
    assert (ended_run.cause, ended_run.nodes) == ("launch-error", ())
    assert str(ended_run.evidence).endswith(f"12: FAILED; {last}")


def test_a_node_that_srun_could_not_reach_is_a_failed_launch(node_run: Path) -> None:
    """Recorded with a prolog of 25 s. srun's own cancelling, which follows, is nobody's wish."""
    launch_line = (
        "srun: error: Task launch for StepId=66.0 failed on node sfhost2: Socket timed out on send/recv operation"
    )
    (node_run / "logs" / "job.log").write_text(f"""srun: cluster configuration lacks support for cpu binding
srun: error: slurm_receive_msgs: [[sfhost2]:17812] failed: Socket timed out on send/recv operation
{launch_line}
srun: error: Application launch failed: Socket timed out on send/recv operation
srun: Job step aborted: Waiting up to 5 seconds for job step to finish.
slurmstepd-sfhost1: error: *** STEP 66.0 ON sfhost1 CANCELLED AT 2026-11-30T21:28:27 ***
srun: error: sfhost1: task 0: Killed
""")
    ended_run = outcome(node_run, "FAILED", None, None)
    assert (ended_run.cause, ended_run.evidence) == ("launch-error", f"Slurm job 12: FAILED; {launch_line}")


def test_a_job_without_any_output_asks_for_a_shared_folder(node_run: Path) -> None:
    ended_run = outcome(node_run, "FAILED", None, None, reason="JobLaunchFailure")
    log = node_run / "logs" / "job.log"
    assert "FAILED (JobLaunchFailure)" in str(ended_run.evidence) and f"{log}: " in str(ended_run.evidence)


def test_a_forgotten_job_has_the_end_that_its_nodes_recorded(node_run: Path) -> None:
    assert outcome(node_run, FORGOTTEN_STATE, *GOOD).cause == "exited"
    (node_run / "nodes" / "node1.record.jsonl").unlink()
    ended_run = outcome(node_run, FORGOTTEN_STATE, GOOD[0], None)
    assert ended_run.cause == "node-lost" and str(ended_run.evidence).endswith("from beta")


def test_out_of_memory_is_kept_as_slurm_s_evidence(node_run: Path) -> None:
    ended_run = outcome(node_run, "OUT_OF_MEMORY", GOOD[0], ended("rank-failed", (1, None, 9)))
    assert (ended_run.cause, ended_run.oom_kills) == ("rank-failed", 1)
    assert str(ended_run.oom_evidence).endswith("12: OUT_OF_MEMORY")


def test_the_platform_s_own_reason_wins(node_run: Path) -> None:
    intent: CancelReason = ("hang", "rank 1 gave no heartbeat for 31 s (limit 30 s)")
    ended_run = outcome(
        node_run, "CANCELLED", ended("stopped", (0, None, 15)), ended("hang", (1, None, 9)), intent=intent
    )
    assert (ended_run.cause, ended_run.evidence) == intent


@pytest.mark.parametrize(
    "damage",
    ["", "no json\n", "[1]\n", '{"event": "ended"}\n', '{"event": "started"}\n', ended("exited")[:40], "\x00" * 50],
)
def test_a_damaged_record_is_a_missing_one(node_run: Path, damage: str) -> None:
    ended_run = outcome(node_run, "FAILED", GOOD[0], damage)
    assert (ended_run.cause, words(ended_run)) == ("node-lost", ["alpha: ended", "beta: lost"])


def test_ends_in_a_record_that_are_none_leave_the_rank_unknown(node_run: Path) -> None:
    damage = ended("rank-failed").replace('"ends": []', '"ends": [{"rank": 1, "colour": 7}]')
    ended_run = outcome(node_run, "FAILED", GOOD[0], damage)
    assert [(end.exit_code, end.signal) for end in ended_run.ends] == [(0, None), (None, None)]


CANCELLED = "slurmstepd: error: *** STEP 12.0 ON alpha CANCELLED AT 2026-01-01T00:00:00{} ***\n"


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("", "cancelled"),
        (" DUE TO TIME LIMIT", "time-limit"),
        (" DUE TO PREEMPTION", "preempted"),
        (" DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS", "node-lost"),
        (" DUE TO JOB REQUEUE", "cancelled"),
    ],
)
@pytest.mark.parametrize("records", [(None, None), (ended("stopped"), ended("stopped"))])
@pytest.mark.parametrize("word", ["FAILED", "COMPLETING", "RUNNING"])
def test_a_step_that_slurm_ends(
    node_run: Path, planted: PlantedSlurm, word: str, reason: str, cause: str, records: tuple[str | None, ...]
) -> None:
    """The reason is in the job's output also while an epilog hides the job's state."""
    (node_run / "logs" / "job.log").write_text("begins\n" + CANCELLED.format(reason))
    ended_run = outcome(node_run, word, *records)
    assert ended_run.cause == cause and "STEP 12.0" in str(ended_run.evidence)


# What srun 22.05 printed when the agent of the second node, and of both nodes, was killed.
AGENT_KILLED = """srun: cluster configuration lacks support for cpu binding
srun: error: sahost2: task 1: Killed
srun: launch/slurm: _step_signal: Terminating StepId=4.0
slurmstepd-sahost1: error: *** STEP 4.0 ON sahost1 CANCELLED AT 2026-11-30T20:11:34 ***
srun: error: sahost1: task 0: Exited with exit code 3
srun: Force Terminated StepId=4.0
"""
BOTH_KILLED = """srun: cluster configuration lacks support for cpu binding
srun: error: sahost1: task 0: Killed
srun: launch/slurm: _step_signal: Terminating StepId=8.0
srun: error: sahost2: task 1: Killed
srun: Force Terminated StepId=8.0
"""


@pytest.mark.parametrize("word", ["FAILED", "COMPLETING"])
def test_a_node_whose_agent_was_killed_is_lost_by_srun_s_line(node_run: Path, word: str) -> None:
    """srun then cancels the step itself, which is nobody's wish."""
    (node_run / "logs" / "job.log").write_text(AGENT_KILLED)
    ended_run = outcome(node_run, word, ended("stopped", (0, None, 15), evidence="signal 15 from outside"), None)
    assert ended_run.cause == "node-lost"
    assert "(srun: sahost2: task 1: Killed); no last record from beta" in str(ended_run.evidence)
    assert words(ended_run) == ["alpha: stopped", "beta: lost"]


def test_an_srun_that_somebody_kills(node_run: Path) -> None:
    """Slurm ends the nodes then, and may kill them before they write their last records."""
    line = "/spool/job00018/slurm_script: line 16: 20757 Killed                  srun --nodes=2 --ntasks=2"
    (node_run / "logs" / "job.log").write_text(f"srun: cluster configuration lacks support for cpu binding\n{line}\n")
    for records in ((None, None), (ended("stopped"), ended("stopped"))):
        ended_run = outcome(node_run, "FAILED", *records)
        assert (ended_run.cause, ended_run.evidence) == (
            "cancelled",
            "Slurm job 12: FAILED; line 16: 20757 Killed srun",
        )


@pytest.mark.parametrize(("log", "cause"), [("AGENT_KILLED", "node-lost"), ("RANK_FAILED", "rank-failed")])
def test_the_first_task_that_failed_is_the_cause(node_run: Path, log: str, cause: str) -> None:
    """A rank that lost its peer fails before Slurm ends it; a node that Slurm ends may not write its last record."""
    rank_failed = """srun: error: sahost1: task 0: Exited with exit code 1
srun: launch/slurm: _step_signal: Terminating StepId=4.0
srun: error: sahost2: task 1: Killed
"""
    (node_run / "logs" / "job.log").write_text(AGENT_KILLED if log == "AGENT_KILLED" else rank_failed)
    assert outcome(node_run, "FAILED", ended("rank-failed", (0, 1, None)), None).cause == cause


def test_nodes_that_have_begun_are_lost_and_no_failed_launch(node_run: Path) -> None:
    (node_run / "logs" / "job.log").write_text(BOTH_KILLED)
    assert outcome(node_run, "FAILED", None, None).cause == "launch-error"
    for node, name in enumerate(NODES):
        (node_run / f"nodes/node{node}.facts.json").write_text(json.dumps({"hostname": name}))
    ended_run = outcome(node_run, "FAILED", None, None)
    assert (ended_run.cause, words(ended_run)) == ("node-lost", ["alpha: lost", "beta: lost"])
    assert "task 0: Killed; srun: sahost2: task 1: Killed); no last record from alpha, beta" in str(ended_run.evidence)
    intent: CancelReason = ("interrupted", "interrupted by the user")
    assert len(outcome(node_run, "CANCELLED", None, None, intent=intent).nodes) == 2


def test_a_node_that_somebody_ends_is_named(node_run: Path) -> None:
    """SIGTERM for the agent of the second node; srun's own cancelling is no evidence."""
    (node_run / "logs" / "job.log").write_text(AGENT_KILLED.replace("1: Killed", "1: Exited with exit code 3"))
    ended_run = outcome(node_run, "FAILED", *[ended("stopped", (k, None, 15), evidence="signal 15") for k in (0, 1)])
    assert ended_run.cause == "cancelled" and "CANCELLED AT" not in str(ended_run.evidence)


def test_a_rank_that_failed_is_the_cause_before_a_cancelled_step(node_run: Path) -> None:
    """`srun --kill-on-bad-exit` cancels its own step."""
    (node_run / "logs" / "job.log").write_text(CANCELLED.format(""))
    assert outcome(node_run, "FAILED", ended("rank-failed", (0, 1, None)), ended("stopped")).cause == "rank-failed"

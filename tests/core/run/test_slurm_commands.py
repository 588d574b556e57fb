"""What Slurm's commands say about a job, in the words of several versions, and when nobody says anything."""

from __future__ import annotations

import pytest
from levelfield.run.launchers.slurm import slurm_commands as slurm
from levelfield.run.launchers.slurm.slurm_commands import (
    FORGOTTEN_STATE,
    UNKNOWN_STATE,
    JobState,
    SlurmJob,
    SubmissionError,
)
from planted_slurm import PlantedSlurm

JOB = SlurmJob("12")
GONE = (1, "slurm_load_jobs error: Invalid job id specified\n")
AWAY = (1, "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n")


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        ("12|PENDING|Resources|\n", JobState("PENDING", "Resources")),
        ("12|PENDING|Nodes required for job are DOWN, DRAINED or reserved|\n",
         JobState("PENDING", "Nodes required for job are DOWN, DRAINED or reserved")),
        ("12|RUNNING|None|node7,node9\n", JobState("RUNNING", "None", ("node7", "node9"))),
        ("12|NODE_FAIL|NodeDown|node1\n", JobState("NODE_FAIL", "NodeDown", ("node1",))),
    ],
)  # fmt: skip
def test_states_of_the_controller(planted: PlantedSlurm, printed: str, expected: JobState) -> None:
    planted.says("squeue", printed)
    assert slurm.job_state(JOB) == expected


def test_a_list_of_nodes_is_in_the_job_s_order(planted: PlantedSlurm) -> None:
    planted.says("squeue", "12|RUNNING|None|node[2-3,11]\n")
    planted.says("scontrol", "node2\nnode3\nnode11\n")
    assert slurm.job_state(JOB).nodes == ("node2", "node3", "node11")
    assert planted.calls("scontrol") == [["show", "hostnames", "node[2-3,11]"]]


def test_a_controller_that_does_not_answer_is_unknown_and_not_ended(planted: PlantedSlurm) -> None:
    planted.says("squeue", AWAY)
    state = slurm.job_state(JOB)
    assert state == UNKNOWN_STATE and not state.is_ended
    assert planted.calls("sacct") == []


@pytest.mark.parametrize(
    ("printed", "word", "by"),
    [
        ("12|COMPLETED|None|node[1-2]\n", "COMPLETED", None),
        ("12|CANCELLED by 0|None|node1\n", "CANCELLED", "0"),
        ("12|CANCELLED+|None|None assigned\n", "CANCELLED", None),
        ("12|TIMEOUT|TimeLimit|node1\n", "TIMEOUT", None),
        ((1, "Slurm accounting storage is disabled\n"), FORGOTTEN_STATE, None),
        ("", FORGOTTEN_STATE, None),
        ((1, "sacct: error: slurmdbd: Sending PersistInit msg: Connection refused\n"), None, None),
    ],
)
def test_a_job_that_the_controller_forgot_is_looked_up_in_the_accounting(
    planted: PlantedSlurm, printed: str | tuple[int, str], word: str | None, by: str | None
) -> None:
    planted.says("squeue", GONE)
    planted.says("sacct", printed)
    planted.says("scontrol", "node1\nnode2\n")
    state = slurm.job_state(JOB)
    assert (state.word, state.cancelled_by, state.is_ended) == (word, by, word is not None)


BANNER = "*** Welcome to cluster 2026. Maintenance on Friday | 10:00 | all nodes ***\n"


def test_a_banner_is_no_answer(planted: PlantedSlurm) -> None:
    """A site's wrapper prints it before each answer."""
    planted.says("sbatch", f"{BANNER}12\n")
    assert slurm.submit(("sbatch", "x"), {}) == JOB
    planted.says("squeue", f"{BANNER}12|RUNNING|None|node1\n", BANNER, f"{BANNER}9|a\n12|levelfield.run\n")
    planted.says("sacct", f"{BANNER}12|CANCELLED by 0|None|node[1-2]\n", f"{BANNER}12.0|FAILED|9:0\n", BANNER)
    planted.says("scontrol", f"{BANNER}node1\nnode2\n")
    planted.says("sinfo", f"{BANNER}node1|down*|silent\n")
    assert slurm.job_state(JOB) == JobState("RUNNING", "None", ("node1",))
    assert slurm.job_state(JOB) == JobState("CANCELLED", "None", ("node1", "node2"), "0")
    assert slurm.find_job("levelfield.run") == JOB
    assert slurm.failed_steps(JOB) == "12.0 FAILED 9:0"
    assert slurm.node_states(("node1",)) == {"node1": "down* (silent)"}
    assert slurm.accounting_state(JOB) == UNKNOWN_STATE


@pytest.mark.parametrize("printed", ["12|HALF_DONE|None|node1\n", "13|COMPLETED|None|node1\n", BANNER, "|||\n"])
def test_a_state_that_slurm_does_not_have_is_no_answer(planted: PlantedSlurm, printed: str) -> None:
    planted.says("squeue", printed)
    assert slurm.job_state(JOB) == UNKNOWN_STATE


def test_the_position_counts_the_waiting_jobs_of_the_same_partition(planted: PlantedSlurm) -> None:
    planted.says("squeue", "7|gpu\n8|cpu\n9|gpu\n12|gpu\n13|gpu\n")
    assert slurm.queue_position(JOB) == 2
    assert slurm.queue_position(SlurmJob("99")) is None


def test_a_job_is_submitted_with_its_secrets_and_without_the_user_s_own_defaults(
    planted: PlantedSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A default of sbatch in the environment would win over the script that the dry run shows."""
    monkeypatch.setenv("SBATCH_PARTITION", "mine")
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    planted.says("sbatch", "12;alpha\n")
    assert slurm.submit(("sbatch", "--parsable", "job.sbatch"), {"HF_TOKEN": "x"}) == SlurmJob("12", "alpha")
    seen = planted.environment("sbatch").splitlines()
    assert "HF_TOKEN=x" in seen and "SLURM_CONF=/etc/slurm.conf" in seen
    assert not [line for line in seen if line.startswith(("SBATCH_", "SLURM_JOB"))]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("sbatch: error: invalid partition specified: x\nsbatch: error: Batch job submission failed: Invalid partition",
         "`sinfo -s` lists the partitions"),
        ("sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified",
         "slurm.account"),
        ("sbatch: error: Batch job submission failed: Requested time limit is invalid (missing or exceeds some limit)",
         "slurm.minutes"),
        ("sbatch: error: Batch job submission failed: Requested node configuration is not available", "`sinfo -N -l`"),
        ("sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)",
         "`scontrol ping`"),
        ("sbatch: error: something new", "sbatch: something new"),
    ],
)  # fmt: skip
def test_a_refusal_has_slurm_s_words_and_what_to_do(planted: PlantedSlurm, words: str, expected: str) -> None:
    planted.says("sbatch", (1, words))
    with pytest.raises(SubmissionError) as error:
        slurm.submit(("sbatch", "x"), {})
    assert expected in str(error.value)
    assert words.splitlines()[0].removeprefix("sbatch: error: ") in str(error.value)


@pytest.mark.parametrize("printed", ["", "Submitted batch job 12\n", "12;\n", "12 13\n", "-3\n", "12\nwords\n"])
def test_an_answer_that_is_no_job_is_refused(planted: PlantedSlurm, printed: str) -> None:
    planted.says("sbatch", printed)
    with pytest.raises(SubmissionError):
        slurm.submit(("sbatch", "x"), {})


def test_without_slurm_s_commands_the_message_says_where_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SubmissionError, match=r"^sbatch .*\bPATH\b"):
        slurm.submit(("sbatch", "x"), {})
    assert slurm.job_state(JOB) == UNKNOWN_STATE


def test_a_lost_number_is_found_by_the_job_s_name(planted: PlantedSlurm) -> None:
    planted.says("squeue", "")
    planted.says("sacct", "9|levelfield.run\n12|levelfield.run\n77|levelfield.run2\n")
    assert slurm.find_job("levelfield.run") == SlurmJob("12")
    assert any("--name=levelfield.run" in call for call in planted.calls("sacct"))


def test_states_of_nodes_keep_slurm_s_reason(planted: PlantedSlurm) -> None:
    planted.says("sinfo", "node1|idle|none\nnode2|down*|silent\n")
    assert slurm.node_states(("node1", "node2")) == {"node1": "idle", "node2": "down* (silent)"}
    assert slurm.node_states(()) == {}

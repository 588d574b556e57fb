"""Slurm's commands: they submit a job, tell its state and end it.

If the controller does not answer, the job is unknown, not ended. A site's wrapper or profile may print a banner before
an answer, so a line counts only where it has the job's number, and a state only where Slurm has that word.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from levelfield.contracts.command import run_bounded
from levelfield.contracts.execution import Say

ANSWER_SECONDS = 30.0  # a controller that is down makes its clients wait
END_ANSWER_SECONDS = 3.0  # the same for what is asked when the run's end is known: it adds detail only
SUBMIT_SECONDS = 120.0  # the time limit of sbatch
NEW_JOB_SECONDS = 3.0  # until the job of a command that was killed is in the queue
ENDED_STATES = (
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PREEMPTED", "RECONFIG_FAIL", "REVOKED", "TIMEOUT",
)  # fmt: skip
WAITING_STATES = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT")
PAUSED_STATES = ("SUSPENDED", "STOPPED")
_STATES = (
    *ENDED_STATES, *WAITING_STATES, *PAUSED_STATES, "COMPLETING", "EXPEDITING", "POWER_UP_NODE", "RESIZING", "RUNNING",
    "SIGNALING", "STAGE_OUT", "UPDATE_DB",
)  # fmt: skip
FORGOTTEN_STATE = "FORGOTTEN"  # not Slurm's: the controller has forgotten the job, and there is no accounting
# Error messages that count as an empty answer: the controller forgets a job some minutes after its end, and a site may
# have no accounting.
_EMPTY_ANSWERS = ("Invalid job id", "accounting storage is disabled")
_CONFIGURATION_VARIABLES = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_CONF_SERVER")
_SEPARATOR = "|"
_RECENT_OPTION = "--starttime=now-30days"


class SubmissionError(Exception):
    """Slurm took no job. The message has Slurm's words, and what to do."""


@dataclass(frozen=True)
class SlurmJob:
    """A job by its number, and the cluster where Slurm named one."""

    number: str
    cluster: str | None = None

    @property
    def cluster_options(self) -> tuple[str, ...]:
        return (f"--clusters={self.cluster}",) if self.cluster else ()


@dataclass(frozen=True)
class JobState:
    """What Slurm says about a job."""

    word: str | None  # Slurm's name of its state; None where Slurm does not answer
    reason: str = ""  # why it waits or how it ended
    nodes: tuple[str, ...] = ()  # their names, the first node first
    cancelled_by: str | None = None  # the number of the user who cancelled it

    @property
    def is_ended(self) -> bool:
        return self.word in (*ENDED_STATES, FORGOTTEN_STATE)


UNKNOWN_STATE = JobState(None)


def command_environment(secrets: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of Slurm's commands, without the user's defaults, which a dry run does not show."""
    default_names = re.compile(r"S(BATCH|LURM|RUN|QUEUE|ACCT)_")
    variables = {k: v for k, v in os.environ.items() if not default_names.match(k) or k in _CONFIGURATION_VARIABLES}
    return {**variables, "LC_ALL": os.environ.get("LC_ALL", "C"), **secrets}


def submit(argv: Sequence[str], secrets: Mapping[str, str]) -> SlurmJob:
    """Submit a job and return it. The secrets reach it in its environment only. Raises SubmissionError."""
    if shutil.which(argv[0]) is None:
        raise SubmissionError(f"{argv[0]} is not in PATH: start this on a machine that can submit jobs to Slurm")
    try:
        completed = run_bounded(argv, SUBMIT_SECONDS, command_environment(secrets))
    except (OSError, subprocess.SubprocessError) as error:
        raise SubmissionError(f"{argv[0]}: {error}") from None
    match = re.search(r"^(\d+)(?:;(\S+))?\Z", completed.stdout.strip(), re.MULTILINE)  # the last line
    if match and not completed.returncode:
        return SlurmJob(match[1], match[2])
    complaint = (completed.stderr or completed.stdout).splitlines()
    lines = [re.sub(r"^(sbatch: )?(error: )?", "", line).strip() for line in complaint]
    text = "; ".join(dict.fromkeys(line for line in lines if line)) or "sbatch printed no job number"
    advice = next((advice for words, advice in _ADVICE.items() if words in text.lower()), None)
    raise SubmissionError(f"sbatch: {text}" + (f". {advice}" if advice else ""))


# What to do, by words of Slurm's error message.
_ADVICE = {
    "invalid partition": "`sinfo -s` lists the partitions; name one as slurm.partition in the site's file",
    "invalid account": "`sacctmgr show associations user=$USER` lists yours; name one as slurm.account",
    "invalid qos": "`sacctmgr show qos` lists them; name one as slurm.qos",
    "time limit": "`sinfo -o '%P %l'` shows each partition's limit; set slurm.minutes to less",
    "node configuration is not available": "no node has this; `sinfo -N -l` shows them; check gres, constraint, nodes",
    "invalid generic resource": "`sinfo -o '%N %G'` shows what nodes have; check slurm.gres",
    "invalid feature": "`sinfo -o '%N %f'` shows the features; check slurm.constraint",
    "reservation": "`scontrol show reservation` lists them; check slurm.reservation",
    "unable to contact slurm controller": "the controller does not answer; `scontrol ping` shows when it does",
}


def job_state(job: SlurmJob) -> JobState:
    """Return the job's state by the controller, or by the accounting once the controller has forgotten it."""
    answer = _run_command(
        "squeue", *job.cluster_options, "--noheader", "--states=all", f"--jobs={job.number}", "--format=%i|%T|%r|%N"
    )
    if answer is None:
        return UNKNOWN_STATE
    for line in answer.splitlines():
        number, _, fields = line.partition(_SEPARATOR)
        word, _, reason_and_nodes = fields.partition(_SEPARATOR)
        if number == job.number and word in _STATES:
            reason, _, nodes = reason_and_nodes.rpartition(_SEPARATOR)
            return JobState(word, reason, _expand_node_list(nodes))
    state = accounting_state(job)
    return UNKNOWN_STATE if state.word == FORGOTTEN_STATE and answer.strip() else state


def accounting_state(job: SlurmJob, seconds: float = ANSWER_SECONDS) -> JobState:
    """Return the job's state by the accounting; FORGOTTEN where it does not have the job.

    seconds: the longest wait for the answer.
    """
    argv = (
        "sacct", *job.cluster_options, "--noheader", "--parsable2", "--allocations", f"--jobs={job.number}",
        "--format=JobIDRaw,State,Reason,NodeList",
    )  # fmt: skip
    answer = _run_command(*argv, seconds=seconds)
    if answer is None:
        return UNKNOWN_STATE
    for line in answer.splitlines():
        number, *fields = line.split(_SEPARATOR)
        words = fields[0].split() if len(fields) == 3 else []  # such as CANCELLED by 1000
        if number == job.number and words and words[0].rstrip("+") in _STATES:
            _, reason, nodes = fields
            cancelled_by = words[2] if words[1:2] == ["by"] and len(words) > 2 else None
            names = () if nodes.startswith("None") else _expand_node_list(nodes)
            return JobState(words[0].rstrip("+"), reason, names, cancelled_by)
    return UNKNOWN_STATE if answer.strip() else JobState(FORGOTTEN_STATE)


def _expand_node_list(text: str) -> tuple[str, ...]:
    """Return the nodes of a list such as node[1-3]."""
    if "[" not in text:
        return tuple(name for name in text.split(",") if name)
    lines = (_run_command("scontrol", "show", "hostnames", text) or "").splitlines()
    return tuple(line.strip() for line in lines if re.fullmatch(r"\s*[\w.-]+\s*", line))


def queue_position(job: SlurmJob) -> int | None:
    """Return how many waiting jobs of its partitions Slurm would start before this one; None where unknown."""
    answer = _run_command(
        "squeue", *job.cluster_options, "--noheader", "--states=PENDING", "--sort=-p,i", "--format=%i|%P"
    )
    jobs = dict(line.split(_SEPARATOR) for line in (answer or "").splitlines() if line.count(_SEPARATOR) == 1)
    if job.number not in jobs:
        return None
    return [number for number, partition in jobs.items() if partition == jobs[job.number]].index(job.number)


def node_states(nodes: Sequence[str]) -> dict[str, str]:
    """Return state and reason of nodes, as Slurm shows them now."""
    if not nodes:
        return {}
    argv = ("sinfo", "--noheader", "--Node", f"--nodes={','.join(nodes)}", "--format=%N|%T|%E")
    answer = _run_command(*argv, seconds=END_ANSWER_SECONDS)
    lines = [line.split(_SEPARATOR, 2) for line in (answer or "").splitlines()]
    rows = (line for line in lines if len(line) == 3 and line[0] in nodes)
    return {name: state if reason in ("", "none") else f"{state} ({reason})" for name, state, reason in rows}


def failed_steps(job: SlurmJob) -> str:
    """Return the job's steps that did not complete, by the accounting, in one line; empty without accounting."""
    argv = (
        "sacct", *job.cluster_options, "--noheader", "--parsable2", f"--jobs={job.number}",
        "--format=JobID,State,ExitCode",
    )  # fmt: skip
    answer = _run_command(*argv, seconds=END_ANSWER_SECONDS)
    rows = [line.split(_SEPARATOR) for line in (answer or "").splitlines() if line.startswith(f"{job.number}.")]
    return ", ".join(" ".join(row) for row in rows if len(row) == 3 and row[1] != "COMPLETED")


def cancel(job: SlurmJob, seconds: float = ANSWER_SECONDS) -> bool:
    """Request the end of a job. Return whether Slurm took the request within some seconds."""
    return _run_command("scancel", *job.cluster_options, job.number, seconds=seconds) is not None


def find_job(name: str) -> SlurmJob | None:
    """Return the newest job of this user with a name; None where none is known."""
    suffix = f"{_SEPARATOR}{name}"
    jobs = _run_command("squeue", "--noheader", "--states=all", "--me", f"--name={name}", "--format=%i|%j")
    if suffix not in (jobs or ""):
        argv = ("sacct", "--noheader", "--parsable2", "--allocations", f"--name={name}", "--format=JobIDRaw,JobName")
        jobs = _run_command(*argv, _RECENT_OPTION)
    lines = (jobs or "").splitlines()
    numbers = [line[: -len(suffix)] for line in lines if line.endswith(suffix) and line[: -len(suffix)].isdecimal()]
    return SlurmJob(max(numbers, key=int)) if numbers else None


def find_new_job(name: str, say: Say) -> SlurmJob | None:
    """Return the job with a name, whose sbatch or srun was killed: Slurm may still be taking it."""
    say(f"looking for the job that Slurm may have taken: at most {NEW_JOB_SECONDS + ANSWER_SECONDS:g} s")
    deadline = time.monotonic() + NEW_JOB_SECONDS
    while (job := find_job(name)) is None and time.monotonic() < deadline:
        time.sleep(0.3)
    return job


def run_job(
    options: Sequence[str], command: Sequence[str], seconds: float, say: Say
) -> subprocess.CompletedProcess[str]:
    """Run a command as a job of its own by srun, and return it after its end. Raises OSError and SubprocessError.

    An srun that an interrupt or the time limit kills leaves its job in the queue: it is cancelled and named.
    """
    name = f"levelfield.command.{uuid.uuid4().hex[:12]}"
    say(f"waiting for a node, where Slurm runs a short command: at most {seconds:g} s")
    try:
        return run_bounded(("srun", f"--job-name={name}", *options, *command), seconds, command_environment({}))
    except (KeyboardInterrupt, subprocess.SubprocessError):
        job = find_new_job(name, say)
        if job and not job_state(job).is_ended:
            ending = "was cancelled" if cancel(job) else f"may still be there: `scancel {job.number}`"
            say(f"Slurm job {job.number}, the short command, {ending}")
        raise


def _run_command(*argv: str, seconds: float = ANSWER_SECONDS) -> str | None:
    """Return what a command printed, which may be empty; None where Slurm gave no answer."""
    try:
        completed = run_bounded(argv, seconds, command_environment({}))
    except (OSError, subprocess.SubprocessError):
        return None
    if completed.returncode:
        return "" if any(words in completed.stderr for words in _EMPTY_ANSWERS) else None
    return completed.stdout

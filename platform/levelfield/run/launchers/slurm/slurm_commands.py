"""Slurm's own commands: what a job's state is, as far as anybody knows it, and its end on request.

A controller that does not answer is unknown, not ended. Nothing here raises but `submit`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from levelfield.contracts.command import run_bounded

ANSWER_SECONDS = 30.0  # a controller that is down makes its clients wait
SUBMIT_SECONDS = 120.0
ENDED = (
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PREEMPTED", "RECONFIG_FAIL", "REVOKED", "TIMEOUT",
)  # fmt: skip
WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT")
FORGOTTEN = "FORGOTTEN"  # our own word: the controller knows the job no longer, and there is no accounting
# Complaints that are an answer: the controller forgets a job some minutes after its end, and a site has no accounting.
_EMPTY_ANSWERS = ("Invalid job id", "accounting storage is disabled")
_CONFIGURATION_VARIABLES = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_CONF_SERVER")
_SEPARATOR = "|"
_SINCE_OPTION = "--starttime=now-30days"


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

    word: str | None  # its state; None: nobody knows
    reason: str = ""  # why it waits or how it ended
    nodes: tuple[str, ...] = ()  # their names, the first node first
    cancelled_by: str | None = None  # the number of the user who cancelled it

    @property
    def is_ended(self) -> bool:
        return self.word in (*ENDED, FORGOTTEN)


UNKNOWN = JobState(None)


def command_environment(secrets: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of Slurm's commands. A user's own defaults of sbatch would change what was shown."""
    defaults = re.compile(r"S(BATCH|LURM|RUN|QUEUE|ACCT)_")
    variables = {k: v for k, v in os.environ.items() if not defaults.match(k) or k in _CONFIGURATION_VARIABLES}
    return {**variables, "LC_ALL": os.environ.get("LC_ALL", "C"), **secrets}


def submit(argv: Sequence[str], secrets: Mapping[str, str]) -> SlurmJob:
    """Submit a job and return it. The secrets reach it in its environment only. Raises SubmissionError."""
    if shutil.which(argv[0]) is None:
        raise SubmissionError(f"{argv[0]} is not in PATH: start this on a machine that can submit jobs to Slurm")
    try:
        done = run_bounded(argv, SUBMIT_SECONDS, command_environment(secrets))
    except (OSError, subprocess.SubprocessError) as error:
        raise SubmissionError(f"{argv[0]}: {error}") from None
    match = re.fullmatch(r"(\d+)(?:;(\S+))?", done.stdout.strip())
    if match and not done.returncode:
        return SlurmJob(match[1], match[2])
    complaint = (done.stderr or done.stdout).splitlines()
    lines = [re.sub(r"^(sbatch: )?(error: )?", "", line).strip() for line in complaint]
    text = "; ".join(dict.fromkeys(line for line in lines if line)) or "sbatch printed no job number"
    advice = next((what for words, what in _ADVICE.items() if words in text.lower()), None)
    raise SubmissionError(f"sbatch: {text}" + (f". {advice}" if advice else ""))


# Slurm's words, and what to do about them.
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
        "squeue", *job.cluster_options, "--noheader", "--states=all", f"--jobs={job.number}", "--format=%T|%r|%N"
    )
    if answer is None:
        return UNKNOWN
    line = answer.strip().partition("\n")[0]
    if not line:
        return accounting_state(job)
    word, _, rest = line.partition(_SEPARATOR)
    reason, _, nodes = rest.rpartition(_SEPARATOR)
    return JobState(word, reason, node_names(nodes))


def accounting_state(job: SlurmJob) -> JobState:
    """Return the state by the accounting. A job that it does not have is forgotten."""
    answer = _run_command(
        "sacct", *job.cluster_options, "--noheader", "--parsable2", "--allocations", f"--jobs={job.number}",
        "--format=State,Reason,NodeList",
    )  # fmt: skip
    if answer is None:
        return UNKNOWN
    line = answer.strip().partition("\n")[0]
    if line.count(_SEPARATOR) != 2:
        return JobState(FORGOTTEN)
    state, reason, nodes = line.split(_SEPARATOR)
    words = state.split()
    cancelled_by = words[2] if words[1:2] == ["by"] and len(words) > 2 else None
    return JobState(words[0].rstrip("+"), reason, () if nodes.startswith("None") else node_names(nodes), cancelled_by)


def node_names(text: str) -> tuple[str, ...]:
    """Return the nodes of a list such as node[1-3]."""
    if "[" not in text:
        return tuple(name for name in text.split(",") if name)
    return tuple((_run_command("scontrol", "show", "hostnames", text) or "").split())


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
    answer = _run_command("sinfo", "--noheader", "--Node", f"--nodes={','.join(nodes)}", "--format=%N|%T|%E")
    lines = (line.split(_SEPARATOR, 2) for line in (answer or "").splitlines() if line.count(_SEPARATOR) >= 2)
    return {name: state if reason in ("", "none") else f"{state} ({reason})" for name, state, reason in lines}


def failed_steps(job: SlurmJob) -> str:
    """Return the ends of the job's steps by the accounting, in one line; an empty text without accounting."""
    answer = _run_command(
        "sacct", *job.cluster_options, "--noheader", "--parsable2", f"--jobs={job.number}",
        "--format=JobID,State,ExitCode",
    )  # fmt: skip
    lines = (line.split(_SEPARATOR) for line in (answer or "").splitlines())
    return ", ".join(f"{f[0]} {f[1]} {f[2]}" for f in lines if len(f) == 3 and "." in f[0] and f[1] != "COMPLETED")


def cancel(job: SlurmJob) -> bool:
    """Request the end of a job. Return whether Slurm took the request."""
    return _run_command("scancel", *job.cluster_options, job.number) is not None


def find_job(name: str) -> SlurmJob | None:
    """Return the newest job of this user with a name; None where none is known."""
    jobs = _run_command("squeue", "--noheader", "--states=all", "--me", f"--name={name}", "--format=%i")
    if not (jobs or "").split():
        jobs = _run_command(
            "sacct", "--noheader", "--parsable2", "--allocations", f"--name={name}", "--format=JobID", _SINCE_OPTION
        )
    numbers = [text for text in (jobs or "").split() if text.isdecimal()]
    return SlurmJob(max(numbers, key=int)) if numbers else None


def _run_command(*argv: str) -> str | None:
    """Return what a command printed. None: nobody answered. Where there is nothing to say, the text is empty."""
    try:
        done = run_bounded(argv, ANSWER_SECONDS, command_environment({}))
    except (OSError, subprocess.SubprocessError):
        return None
    if done.returncode:
        return "" if any(words in done.stderr for words in _EMPTY_ANSWERS) else None
    return done.stdout

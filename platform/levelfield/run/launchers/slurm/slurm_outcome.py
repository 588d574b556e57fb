"""The outcome of a Slurm job, from Slurm's state, the nodes' last records and the job's own output."""

from __future__ import annotations

import pwd
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from levelfield.contracts.execution import Cause, NodeEnd, NodeWord, Outcome, Request
from levelfield.node.regular_files import open_regular
from levelfield.run.launchers.launched_ranks import evidence_of
from levelfield.run.launchers.node_records import LastRecord, by_engine, last_records
from levelfield.run.launchers.slurm.slurm_commands import FORGOTTEN, JobState, SlurmJob, failed_steps, node_states

LOG_BYTES = 4096  # of the end of the job's output, for a line of evidence
_ENGINE_CAUSES: dict[str, Cause] = {
    "CANCELLED": "cancelled",
    "PREEMPTED": "preempted",
    "TIMEOUT": "time-limit",
    "DEADLINE": "time-limit",
    "NODE_FAIL": "node-lost",
    "BOOT_FAIL": "node-lost",
}
_ENGINE_WORDS: dict[Cause, NodeWord] = {
    "cancelled": "cancelled", "preempted": "preempted", "time-limit": "time-limit",
}  # fmt: skip
# Of the nodes' own words, in order of weight: what explains the others comes first.
_NODE_CAUSES: dict[str, Cause] = {
    "node-differs": "node-differs",
    "device-taken": "device-taken",
    "port-taken": "launch-error",
    "name-unknown": "launch-error",
    "launch-error": "launch-error",
    "fault": "launch-error",
    "hang": "hang",
}


@dataclass(frozen=True)
class Intent:
    """Why the platform itself ended the job."""

    cause: Cause
    evidence: str


def outcome_of(request: Request, job: SlurmJob, state: JobState, intent: Intent | None) -> Outcome:
    """Return how the run ended. intent: why the platform ended the job, if it did."""
    records = _attributed(last_records(request, state.nodes), by_slurm=bool(intent) or state.word in _ENGINE_CAUSES)
    lost = _down(state) if state.word in ("NODE_FAIL", "BOOT_FAIL") else {}
    cause, evidence = _cause(request, job, state, records, lost) if intent is None else (intent.cause, intent.evidence)
    ends = tuple(end for record in records for end in record.ends)
    outcome = Outcome(cause, ends, evidence, nodes=_node_ends(records, cause, lost))
    if cause == "exited" and state.word in _ENGINE_CAUSES:
        said = f"Slurm job {job.number} is {_shown(state)}, although every node has ended by itself"
        return replace(outcome, warnings=(said,))
    if state.word == "OUT_OF_MEMORY":
        return replace(outcome, oom_kills=1, oom_evidence=f"Slurm job {job.number}: OUT_OF_MEMORY")
    return outcome


def _attributed(records: Sequence[LastRecord], by_slurm: bool) -> list[LastRecord]:
    """Return the records with what Slurm's own signals did. by_slurm: the job was ended, from whatever side.

    After the failure of one node, Slurm sends SIGTERM to the processes of the others.
    """
    if by_slurm:
        return [by_engine(record, signal.SIGTERM, signal.SIGKILL) for record in records]
    signalled = [by_engine(record, signal.SIGTERM) for record in records]
    causes = {record.cause for record in signalled} - {"stopped", "exited"}
    return signalled if causes else list(records)


def _down(state: JobState) -> dict[str, str]:
    """Return the job's nodes that Slurm shows as lost, and what it says about each."""
    return {name: said for name, said in node_states(state.nodes).items() if said.startswith(("down", "unk", "fail"))}


def _cause(
    request: Request, job: SlurmJob, state: JobState, records: Sequence[LastRecord], lost: dict[str, str]
) -> tuple[Cause, str | None]:
    """Return Slurm's own word where it has one, else what the nodes wrote, else what is missing."""
    if all(record.cause == "exited" for record in records):
        return "exited", None
    if state.word in _ENGINE_CAUSES:
        return _ENGINE_CAUSES[state.word], _engine_evidence(job, state, records, lost)
    for word, cause in _NODE_CAUSES.items():
        for record in records:
            if record.cause == word:
                return cause, f"{record.name}: {record.evidence or word}"
    if failed := next((record for record in records if record.cause == "rank-failed"), None):
        rank = next((e.rank for e in failed.ends if (e.exit_code or e.signal) and not e.stopped_by_us), None)
        ends = tuple(end for record in records for end in record.ends)
        return "rank-failed", f"{failed.name}: {failed.evidence if rank is None else evidence_of(ends, rank)}"
    return _without_failure(request, job, state, records)


def _without_failure(
    request: Request, job: SlurmJob, state: JobState, records: Sequence[LastRecord]
) -> tuple[Cause, str | None]:
    silent = [record.name for record in records if record.cause is None]
    said = f"Slurm job {job.number}: {_shown(state)}"
    if len(silent) == len(records) and state.word != FORGOTTEN:
        return "launch-error", "; ".join(part for part in (said, _last_line(request)) if part)
    if silent:
        steps = failed_steps(job)
        ended = f"{said}{f' ({steps})' if steps else ''}"
        return "node-lost", f"{ended}; no last record from {', '.join(silent)}"
    return "cancelled", f"{said}; {'; '.join(f'{r.name}: {r.evidence}' for r in records if r.evidence)}"


def _engine_evidence(job: SlurmJob, state: JobState, records: Sequence[LastRecord], lost: dict[str, str]) -> str:
    said = f"Slurm job {job.number}: {_shown(state)}"
    named = [f"{name} is {shown}" for name, shown in lost.items()]
    if _ENGINE_CAUSES[state.word or ""] == "node-lost" and not named:
        named = [f"no last record from {record.name}" for record in records if record.cause is None]
    return "; ".join([said, *named])


def _shown(state: JobState) -> str:
    """Return Slurm's word with its reason, or with the user who cancelled the job."""
    if state.word == FORGOTTEN:
        return "Slurm knows it no longer"
    if state.by:
        return f"{state.word} by {_user(state.by)}"
    said = state.reason not in ("", "None", state.word, "NonZeroExitCode")
    return f"{state.word} ({state.reason})" if said else str(state.word)


def _user(number: str) -> str:
    try:
        return pwd.getpwuid(int(number)).pw_name
    except (KeyError, ValueError):
        return f"user {number}"


def _node_ends(records: Sequence[LastRecord], cause: Cause, lost: dict[str, str]) -> tuple[NodeEnd, ...]:
    """Return how each node's part ended; nothing where none was started."""
    if cause == "launch-error" and all(record.cause is None for record in records):
        return ()
    return tuple(_node_end(record, cause, lost) for record in records)


def _node_end(record: LastRecord, cause: Cause, lost: dict[str, str]) -> NodeEnd:
    """Return the end of a node's part: Slurm's word where Slurm ended it, else its own."""
    own = record.end
    if record.name in lost:
        return replace(own, word="lost", detail=f"Slurm shows it as {lost[record.name]}")
    if cause in _ENGINE_WORDS and own.word in ("lost", "stopped"):
        return replace(own, word=_ENGINE_WORDS[cause])
    return own


def _last_line(request: Request) -> str | None:
    """Return the last line that the job printed: why nothing was started."""
    path = Path(request.events_dir).parent / "logs" / "job.log"
    try:
        with open_regular(path) as file:
            file.seek(max(0, path.stat().st_size - LOG_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return f"it left no output in {path}: do the nodes see this folder?"
    return next((line.strip() for line in reversed(lines) if line.strip()), None)

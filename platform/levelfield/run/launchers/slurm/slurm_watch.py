"""Watches one job of Slurm until its end, and gives its outcome: from Slurm's state, and what the nodes recorded."""

from __future__ import annotations

import pwd
import re
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from levelfield.contracts.execution import Cause, NodeEnd, NodeWord, Outcome, Request, Say, Watch
from levelfield.node.regular_files import read_last
from levelfield.run.launchers.launched_ranks import evidence_of, first_failure
from levelfield.run.launchers.liveness import Liveness, NodePulse, pause_after, wait_for
from levelfield.run.launchers.node_records import LastRecord, OpenNodes, by_engine, last_records
from levelfield.run.launchers.slurm.slurm_commands import (
    ENDED,
    FORGOTTEN,
    UNKNOWN,
    JobState,
    SlurmJob,
    accounted,
    cancel,
    failed_steps,
    node_states,
    position,
    state_of,
)

Intent = tuple[Cause, str]  # why the platform itself ended a job: cause and evidence
INTERRUPTED: Intent = ("interrupted", "interrupted by the user")
# Where Slurm itself ended a step, such as for a failed node, the line has a reason after the time: DUE TO ...
_STEP_CANCELLED = re.compile(r"STEP \S+ ON \S+ CANCELLED AT \S+(?= \*\*\*)")
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
NODE_FAILED = ("NODE_FAIL", "BOOT_FAIL")
STEP_SECONDS = 0.3  # between two looks at a job that ends
QUICKEST, SLOWEST = 0.5, 10.0  # seconds between two questions to Slurm: the longer it takes, the fewer they are
PATIENCE_SECONDS = 300.0  # with a controller that does not answer, once every node has written its last record
STOP_SECONDS = 120.0  # for the end of a cancelled job; Slurm's own KillWait is 30 s by default
AGAIN_SECONDS = 10.0  # between two requests to cancel it
RECORD_SECONDS = 5.0  # for the nodes' last records to appear on a file server
# Reasons for which a job waits until somebody changes it or the cluster, and what to do.
_HOPELESS = {
    "PartitionTimeLimit": "the time limit is over the partition's; set slurm.minutes in the site's file to less",
    "PartitionNodeLimit": "the partition allows fewer nodes; name another one as slurm.partition",
    "BadConstraints": "no nodes fit; check slurm.constraint, slurm.gres and slurm.options",
    "InvalidAccount": "the account may not be used here; name another one as slurm.account",
    "InvalidQOS": "the quality of service may not be used here; name another one as slurm.qos",
    "AssocMaxWallDurationPerJobLimit": "your account allows less time; set slurm.minutes to less",
    "QOSMaxWallDurationPerJobLimit": "the quality of service allows less time; set slurm.minutes to less",
}


def outcome_of(
    request: Request, job: SlurmJob, state: JobState, intent: Intent | None, lost: Mapping[str, str] | None = None
) -> Outcome:
    """Return how the run ended. intent: why the platform ended the job, if it did. lost: nodes that were seen so."""
    records = _attributed(last_records(request, state.nodes), by_slurm=bool(intent) or state.word in _ENGINE_CAUSES)
    lost = lost or (_down(state) if state.word in NODE_FAILED else {})
    cause, evidence = intent or _cause(request, job, state, records, lost)
    if cause in ("launch-error", "interrupted") and all(record.cause is None for record in records):
        return Outcome(cause, (), evidence)  # nothing has started
    ends = tuple(end for record in records for end in record.ends)
    outcome = Outcome(cause, ends, evidence, nodes=tuple(_node_end(record, cause, lost) for record in records))
    if cause == "exited" and state.word in _ENGINE_CAUSES:
        said = f"Slurm job {job.number} is {_shown(state)}, although every node has ended by itself"
        return replace(outcome, warnings=(said,))
    if state.word == "OUT_OF_MEMORY":
        return replace(outcome, oom_kills=1, oom_evidence=f"Slurm job {job.number}: OUT_OF_MEMORY")
    return outcome


def _attributed(records: Sequence[LastRecord], by_slurm: bool) -> Sequence[LastRecord]:
    """Return the records with what Slurm's own signals did. by_slurm: the job was ended, from whatever side.

    After the failure of one node, Slurm sends SIGTERM to the processes of the others.
    """
    if by_slurm:
        return [by_engine(record, signal.SIGTERM, signal.SIGKILL) for record in records]
    signalled = [by_engine(record, signal.SIGTERM) for record in records]
    return signalled if {record.cause for record in signalled} - {"stopped", "exited"} else records


def _down(state: JobState) -> dict[str, str]:
    """Return the job's nodes that Slurm shows as lost, and what it says about each."""
    return {name: said for name, said in node_states(state.nodes).items() if said.startswith(("down", "unk", "fail"))}


def _cause(
    request: Request, job: SlurmJob, state: JobState, records: Sequence[LastRecord], lost: Mapping[str, str]
) -> tuple[Cause, str | None]:
    """Return Slurm's own word where it has one, else what the nodes wrote, else what is missing."""
    if all(record.cause == "exited" for record in records):
        return "exited", None
    said = f"Slurm job {job.number}: {_shown(state)}"
    silent = [record.name for record in records if record.cause is None]
    if state.word in _ENGINE_CAUSES:
        cause = _ENGINE_CAUSES[state.word]
        named = [f"{name} is {shown}" for name, shown in lost.items()]
        if cause == "node-lost" and not named:
            named = [f"no last record from {name}" for name in silent]
        return cause, "; ".join([said, *named])
    if found := _cause_by_nodes(records):
        return found
    if by := _step_cancelled(request):
        return "cancelled", f"{said}; {by}"
    if len(silent) == len(records) and state.word != FORGOTTEN:
        return "launch-error", "; ".join(part for part in (said, _last_line(request)) if part)
    if silent:
        steps = failed_steps(job)
        return "node-lost", f"{said}{f' ({steps})' if steps else ''}; no last record from {', '.join(silent)}"
    return "cancelled", f"{said}; {'; '.join(f'{r.name}: {r.evidence}' for r in records if r.evidence)}"


def _cause_by_nodes(records: Sequence[LastRecord]) -> tuple[Cause, str] | None:
    for word, cause in _NODE_CAUSES.items():
        for record in records:
            if record.cause == word:
                return cause, f"{record.name}: {record.evidence or word}"
    failed = next((record for record in records if record.cause == "rank-failed"), None)
    if failed is None:
        return None
    end = first_failure(failed.ends)
    return "rank-failed", f"{failed.name}: {evidence_of(end) + failed.disk if end else failed.evidence}"


def _shown(state: JobState) -> str:
    """Return Slurm's word with its reason, or with the user who cancelled the job."""
    if state.word == FORGOTTEN:
        return "Slurm knows it no longer"
    if state.by:
        return f"{state.word} by {_user(state.by)}"
    is_more = state.reason not in ("", "None", state.word, "NonZeroExitCode")
    return f"{state.word} ({state.reason})" if is_more else str(state.word)


def _user(number: str) -> str:
    try:
        return pwd.getpwuid(int(number)).pw_name
    except (KeyError, ValueError):
        return f"user {number}"


def _node_end(record: LastRecord, cause: Cause, lost: Mapping[str, str]) -> NodeEnd:
    own = record.end
    if record.name in lost:
        return replace(own, word="lost", detail=f"Slurm shows it as {lost[record.name]}")
    if cause in _ENGINE_WORDS and own.word in ("lost", "stopped"):
        return replace(own, word=_ENGINE_WORDS[cause])
    return own


def _last_line(request: Request) -> str | None:
    """Return the last line that the job printed: why nothing was started."""
    lines = _last_lines(request)
    if lines is None:
        return f"it left no output in {_log(request)}: do the nodes see this folder?"
    return next((line.strip() for line in reversed(lines) if line.strip()), None)


def _step_cancelled(request: Request) -> str | None:
    """Return Slurm's own line about a step that a user cancelled, as `scancel JOB.0` does: the job then has failed."""
    lines = _last_lines(request) or []
    return next((found[0] for found in map(_STEP_CANCELLED.search, lines) if found), None)


def _log(request: Request) -> Path:
    return Path(request.events_dir).parent / "logs" / "job.log"


def _last_lines(request: Request) -> list[str] | None:
    """Return the end of what the job printed; None where there is no file."""
    try:
        return read_last(_log(request), LOG_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return None


class JobWatch:
    """The watch over a job of a run. It asks Slurm more seldom the longer it takes."""

    def __init__(self, request: Request, job: SlurmJob, watch: Watch, say: Say) -> None:
        self._request, self._job, self._watch, self._say = request, job, watch, say
        self._began, self._next = time.monotonic(), 0.0
        self._state = UNKNOWN
        self._answered = self._began
        self._liveness: Liveness | None = None
        self._pulse, self._open = NodePulse(request), OpenNodes(request)
        self._said = ""
        self._was_running = False
        self._lost_nodes: dict[str, str] = {}

    def until_end(self) -> Outcome:
        """Watch until the job has ended. An interrupt cancels it."""
        try:
            intent = self._intent()
        except KeyboardInterrupt:
            intent = INTERRUPTED
        return self.stopped(intent) if intent else self._outcome(None)

    def _intent(self) -> Intent | None:
        """Return why the platform has to end the job; None once it has ended by itself."""
        while True:
            began = time.process_time()
            self._watch()
            self._look()
            if self._state.is_ended or self._is_given_up():
                return None
            if why := self._requeued() or self._hopeless() or self._hang():
                return why
            time.sleep(pause_after(time.process_time() - began))

    def _look(self) -> None:
        """Ask Slurm for the state when it is time, and say what changed about a job that waits."""
        now = time.monotonic()
        if now < self._next:
            return
        found = state_of(self._job)
        self._next = time.monotonic() + min(max(QUICKEST, (now - self._began) / 20), SLOWEST)
        if found == UNKNOWN:
            self._tell(f"Slurm does not answer about job {self._job.number}; its state is not known")
            return
        self._answered, self._state = time.monotonic(), found
        if found.word in NODE_FAILED:
            self._lost_nodes = self._lost_nodes or _down(found)  # now: Slurm may take a node back at once
        if found.is_waiting and found.reason not in ("", "None"):
            before = position(self._job)
            place = "" if before is None else f", {before} job{'' if before == 1 else 's'} before it"
            self._tell(f"Slurm job {self._job.number} waits{place}: {found.reason}")

    def _tell(self, text: str) -> None:
        if text != self._said:
            self._said = text
            self._say(text)

    def _is_given_up(self) -> bool:
        """Return whether the training is over by the nodes' records, and Slurm has not answered for long."""
        return time.monotonic() - self._answered > PATIENCE_SECONDS and not self._open.left()

    def _requeued(self) -> Intent | None:
        """Return why a job that waits again after it ran is to end: a second start would write over the first one."""
        self._was_running = self._was_running or self._state.word == "RUNNING"
        if not (self._was_running and self._state.is_waiting):
            return None
        reason = f" ({self._state.reason})" if self._state.reason not in ("", "None") else ""
        return "cancelled", f"Slurm job {self._job.number} was put back into the queue after it ran{reason}"

    def _hopeless(self) -> Intent | None:
        if not self._state.is_waiting or self._state.reason not in _HOPELESS:
            return None
        reason = self._state.reason
        return "launch-error", f"Slurm job {self._job.number} waits forever ({reason}): {_HOPELESS[reason]}"

    def _hang(self) -> Intent | None:
        """Return why the run cannot go on: a node without a sign, or no step. Limits count from the job's start.

        Each node watches the heartbeats of its own ranks, and ends them.
        """
        if self._state.word != "RUNNING":
            return None
        self._liveness = self._liveness or Liveness(self._request)
        nodes = self._open.left()
        if not nodes:
            return None
        if silent := self._pulse.silent(nodes):
            return "node-lost", self._lost(silent)
        evidence = self._liveness.hang([])
        return ("hang", evidence) if evidence else None

    def _lost(self, silent: dict[int, float]) -> str:
        """Return what is known about nodes that give no sign."""
        records = [r for r in last_records(self._request, self._state.nodes) if r.node_rank in silent]
        shown = node_states([record.name for record in records])
        named = (f"{r.name} (Slurm shows it as {shown[r.name]})" if r.name in shown else r.name for r in records)
        limit = self._request.heartbeat_seconds
        return f"no sign of {', '.join(named)} for {max(silent.values()):.0f} s (limit {limit:g} s)"

    def stopped(self, intent: Intent) -> Outcome:
        """Cancel the job, and wait until Slurm has ended all of it."""
        deadline, again = time.monotonic() + STOP_SECONDS, 0.0
        over = (*ENDED, FORGOTTEN, *(["COMPLETING"] if intent[0] == "node-lost" else []))  # what is lost cannot end
        while self._state.word not in over and time.monotonic() < deadline:
            if time.monotonic() >= again:
                cancel(self._job)
                again = time.monotonic() + AGAIN_SECONDS
            time.sleep(STEP_SECONDS)
            found = state_of(self._job)
            self._state = self._state if found == UNKNOWN else found
        return self._outcome(intent)

    def _outcome(self, intent: Intent | None) -> Outcome:
        wait_for(lambda: not self._open.left(), RECORD_SECONDS, STEP_SECONDS)
        self._watch()
        outcome = outcome_of(self._request, self._job, self._with_user(), intent, self._lost_nodes)
        if self._state.is_ended or outcome.cause == "node-lost":
            return outcome
        left = f"Slurm job {self._job.number} may still be there: Slurm did not answer; `scancel {self._job.number}`"
        return replace(outcome, warnings=(*outcome.warnings, left))

    def _with_user(self) -> JobState:
        """Return the state with the user who cancelled the job, whom only the accounting knows."""
        if self._state.word != "CANCELLED":
            return self._state
        found = accounted(self._job)
        return found if found.word == "CANCELLED" else self._state

"""Watches one job of Slurm until its end. The outcome follows from Slurm's state and from what the nodes recorded."""

from __future__ import annotations

import pwd
import re
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from levelfield.contracts.execution import Cause, NodeWord, Outcome, Request, Say, Watch
from levelfield.node.regular_files import read_last
from levelfield.run.launchers.launched_ranks import failure_evidence, first_failure
from levelfield.run.launchers.liveness import Liveness, NodePulse, pause_after, wait_until
from levelfield.run.launchers.node_records import LastRecord, UnfinishedNodes, last_records, mark_ended_by_engine
from levelfield.run.launchers.slurm.slurm_commands import (
    ENDED_STATES,
    FORGOTTEN_STATE,
    UNKNOWN_STATE,
    WAITING_STATES,
    JobState,
    SlurmJob,
    accounting_state,
    cancel,
    failed_steps,
    job_state,
    node_states,
    queue_position,
)

CancelReason = tuple[Cause, str]  # why the platform itself ends a job: cause and evidence
INTERRUPTED: CancelReason = ("interrupted", "interrupted by the user")
# Where Slurm itself ended a step, such as for a failed node, the line has a reason after the time: DUE TO ...
_STEP_CANCELLED = re.compile(r"STEP \S+ ON \S+ CANCELLED AT \S+(?= \*\*\*)")
LOG_BYTES = 4096  # of the end of the job's output that are read for a line of evidence
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
# By the cause in a node's last record: the cause of the run. A cause that explains others comes before them.
_NODE_CAUSES: dict[str, Cause] = {
    "node-differs": "node-differs",
    "device-taken": "device-taken",
    "port-taken": "launch-error",
    "name-unknown": "launch-error",
    "launch-error": "launch-error",
    "fault": "launch-error",
    "hang": "hang",
}
NODE_FAILURE_STATES = ("NODE_FAIL", "BOOT_FAIL")
END_POLL_SECONDS = 0.3  # between two looks at a job that ends
# between two questions to Slurm; the pause grows with the age of the job
MIN_POLL_SECONDS, MAX_POLL_SECONDS = 0.5, 10.0
CONTROLLER_WAIT_SECONDS = 300.0  # with a controller that does not answer, once every node has written its last record
STOP_SECONDS = 120.0  # for the end of a cancelled job; Slurm's own KillWait is 30 s by default
CANCEL_RETRY_SECONDS = 10.0  # between two requests to cancel it
RECORD_WAIT_SECONDS = 5.0  # for the nodes' last records to appear on a file server
# What to do, by the reasons for which a job waits until somebody changes it or the cluster.
_ENDLESS_WAITS = {
    "PartitionTimeLimit": "the time limit is over the partition's; set slurm.minutes in the site's file to less",
    "PartitionNodeLimit": "the partition allows fewer nodes; name another one as slurm.partition",
    "BadConstraints": "no nodes fit; check slurm.constraint, slurm.gres and slurm.options",
    "InvalidAccount": "the account may not be used here; name another one as slurm.account",
    "InvalidQOS": "the quality of service may not be used here; name another one as slurm.qos",
    "AssocMaxWallDurationPerJobLimit": "your account allows less time; set slurm.minutes to less",
    "QOSMaxWallDurationPerJobLimit": "the quality of service allows less time; set slurm.minutes to less",
}


def job_outcome(
    request: Request,
    job: SlurmJob,
    state: JobState,
    cancel_reason: CancelReason | None,
    lost_nodes: Mapping[str, str] | None = None,
) -> Outcome:
    """Return how the run ended. cancel_reason: why the platform ended the job, if it did. lost_nodes: what Slurm showed
    about nodes that it lost during the run."""
    records: Sequence[LastRecord] = last_records(request, state.nodes)
    terminated_records = [mark_ended_by_engine(record, signal.SIGTERM) for record in records]
    if cancel_reason or state.word in _ENGINE_CAUSES:  # the whole job was ended, from whatever side
        records = [mark_ended_by_engine(record, signal.SIGTERM, signal.SIGKILL) for record in records]
    elif any(record.cause not in ("stopped", "exited") for record in terminated_records):
        # after the failure of one node, Slurm sends SIGTERM to the processes of the others
        records = terminated_records
    lost_nodes = lost_nodes or (_down_nodes(state) if state.word in NODE_FAILURE_STATES else {})
    cause, evidence = cancel_reason or _cause(request, job, state, records, lost_nodes)
    if cause in ("launch-error", "interrupted") and all(record.cause is None for record in records):
        return Outcome(cause, (), evidence)  # nothing has started
    nodes = []
    for record in records:
        end = record.end
        if record.name in lost_nodes:
            end = replace(end, word="lost", detail=f"Slurm shows it as {lost_nodes[record.name]}")
        elif cause in _ENGINE_WORDS and end.word in ("lost", "stopped"):
            end = replace(end, word=_ENGINE_WORDS[cause])
        nodes.append(end)
    outcome = Outcome(cause, tuple(end for record in records for end in record.ends), evidence, nodes=tuple(nodes))
    if cause == "exited" and state.word in _ENGINE_CAUSES:
        warning = f"Slurm job {job.number} is {_describe_state(state)}, although every node has ended by itself"
        return replace(outcome, warnings=(warning,))
    if state.word == "OUT_OF_MEMORY":
        return replace(outcome, oom_kills=1, oom_evidence=f"Slurm job {job.number}: OUT_OF_MEMORY")
    return outcome


def _down_nodes(state: JobState) -> dict[str, str]:
    """Return the job's nodes that Slurm shows as lost, and what it says about each."""
    return {name: word for name, word in node_states(state.nodes).items() if word.startswith(("down", "unk", "fail"))}


def _cause(
    request: Request, job: SlurmJob, state: JobState, records: Sequence[LastRecord], lost_nodes: Mapping[str, str]
) -> tuple[Cause, str | None]:
    """Return cause and evidence: by Slurm's state where it explains the end, else by the nodes' records, else by what
    is missing."""
    if all(record.cause == "exited" for record in records):
        return "exited", None
    summary = f"Slurm job {job.number}: {_describe_state(state)}"
    silent = [record.name for record in records if record.cause is None]
    if state.word in _ENGINE_CAUSES:
        cause = _ENGINE_CAUSES[state.word]
        node_texts = [f"{name} is {word}" for name, word in lost_nodes.items()]
        if cause == "node-lost" and not node_texts:
            node_texts = [f"no last record from {name}" for name in silent]
        return cause, "; ".join([summary, *node_texts])
    if cause_and_evidence := _node_cause(records):
        return cause_and_evidence
    log, lines = Path(request.events_dir).parent / "logs" / "job.log", None
    with suppress(OSError):
        lines = read_last(log, LOG_BYTES).decode(errors="replace").splitlines()
    if match := next(filter(None, map(_STEP_CANCELLED.search, lines or [])), None):  # as `scancel JOB.0` does
        return "cancelled", f"{summary}; {match[0]}"
    if len(silent) == len(records) and state.word != FORGOTTEN_STATE:
        if lines is None:
            last_line = f"it left no output in {log}: do the nodes see this folder?"
        else:
            last_line = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return "launch-error", "; ".join(filter(None, (summary, last_line)))
    if silent:
        steps = failed_steps(job)
        return "node-lost", f"{summary}{f' ({steps})' if steps else ''}; no last record from {', '.join(silent)}"
    return "cancelled", f"{summary}; {'; '.join(f'{r.name}: {r.evidence}' for r in records if r.evidence)}"


def _node_cause(records: Sequence[LastRecord]) -> tuple[Cause, str] | None:
    """Return the cause that explains the nodes' records, and its evidence; None where no record has a failure."""
    for word, cause in _NODE_CAUSES.items():
        for record in records:
            if record.cause == word:
                return cause, f"{record.name}: {record.evidence or word}"
    failed = next((record for record in records if record.cause == "rank-failed"), None)
    if failed is None:
        return None
    end = first_failure(failed.ends)
    return "rank-failed", f"{failed.name}: {failure_evidence(end) + failed.disk_suffix if end else failed.evidence}"


def _describe_state(state: JobState) -> str:
    """Return Slurm's state with its reason, or with the user who cancelled the job."""
    if state.word == FORGOTTEN_STATE:
        return "Slurm knows it no longer"
    if state.cancelled_by:
        try:
            return f"{state.word} by {pwd.getpwuid(int(state.cancelled_by)).pw_name}"
        except (KeyError, ValueError):
            return f"{state.word} by user {state.cancelled_by}"
    has_reason = state.reason not in ("", "None", state.word, "NonZeroExitCode")
    return f"{state.word} ({state.reason})" if has_reason else str(state.word)


class JobWatch:
    """Watches the job of a run. It asks Slurm less often the longer the job takes."""

    def __init__(self, request: Request, job: SlurmJob, watch: Watch, say: Say) -> None:
        self._request, self._job, self._watch, self._say = request, job, watch, say
        self._began, self._next_poll = time.monotonic(), 0.0
        self._state = UNKNOWN_STATE
        self._last_answer = self._began
        self._liveness: Liveness | None = None
        self._pulse, self._unfinished_nodes = NodePulse(request), UnfinishedNodes(request)
        self._last_sentence = ""
        self._was_running = False
        self._lost_nodes: dict[str, str] = {}

    def watch_until_end(self) -> Outcome:
        """Watch until the job has ended. An interrupt cancels it."""
        cancel_reason: CancelReason | None = None
        try:
            while cancel_reason is None:
                began = time.process_time()
                self._watch()
                self._poll()
                # the training is over by the nodes' records, and Slurm has not answered for long
                is_given_up = (
                    time.monotonic() - self._last_answer > CONTROLLER_WAIT_SECONDS and not self._unfinished_nodes.read()
                )
                if self._state.is_ended or is_given_up:
                    break
                if (cancel_reason := self._cancel_reason()) is None:
                    time.sleep(pause_after(time.process_time() - began))
        except KeyboardInterrupt:
            cancel_reason = INTERRUPTED
        return self.cancel_and_wait(cancel_reason) if cancel_reason else self._outcome(None)

    def _poll(self) -> None:
        """Ask Slurm for the state when it is time, and report why a job waits when that changed."""
        now = time.monotonic()
        if now < self._next_poll:
            return
        state = job_state(self._job)
        self._next_poll = time.monotonic() + min(max(MIN_POLL_SECONDS, (now - self._began) / 20), MAX_POLL_SECONDS)
        if state == UNKNOWN_STATE:
            self._say_once(f"Slurm does not answer about job {self._job.number}; its state is not known")
            return
        self._last_answer, self._state = time.monotonic(), state
        if state.word in NODE_FAILURE_STATES:
            self._lost_nodes = self._lost_nodes or _down_nodes(state)  # now: Slurm may take a node back at once
        if state.word in WAITING_STATES and state.reason not in ("", "None"):
            jobs_before = queue_position(self._job)
            position_text = (
                "" if jobs_before is None else f", {jobs_before} job{'' if jobs_before == 1 else 's'} before it"
            )
            self._say_once(f"Slurm job {self._job.number} waits{position_text}: {state.reason}")

    def _say_once(self, text: str) -> None:
        if text != self._last_sentence:
            self._last_sentence = text
            self._say(text)

    def _cancel_reason(self) -> CancelReason | None:
        """Return why the job is to end; None while it may go on.

        A waiting job is ended where nothing will start it, or where it ran before: a second start would write over the
        files of the first. A running job is ended without a sign of a node, or without a step. Limits count from the
        job's start. Each node watches the heartbeats of its own ranks, and ends them.
        """
        self._was_running = self._was_running or self._state.word == "RUNNING"
        reason = self._state.reason
        if self._state.word in WAITING_STATES:
            if self._was_running:
                requeued = f"Slurm job {self._job.number} was put back into the queue after it ran"
                return "cancelled", requeued if reason in ("", "None") else f"{requeued} ({reason})"
            if reason in _ENDLESS_WAITS:
                endless = f"Slurm job {self._job.number} waits forever ({reason}): {_ENDLESS_WAITS[reason]}"
                return "launch-error", endless
        if self._state.word != "RUNNING":
            return None
        self._liveness = self._liveness or Liveness(self._request)
        unfinished = self._unfinished_nodes.read()
        if not unfinished:
            return None
        silent_nodes = self._pulse.silent_nodes(unfinished)
        if not silent_nodes:
            evidence = self._liveness.hang_evidence([])
            return ("hang", evidence) if evidence else None
        records = [r for r in last_records(self._request, self._state.nodes) if r.node_rank in silent_nodes]
        states = node_states([record.name for record in records])
        names = (f"{r.name} (Slurm shows it as {states[r.name]})" if r.name in states else r.name for r in records)
        limit = self._request.heartbeat_seconds
        return "node-lost", f"no sign of {', '.join(names)} for {max(silent_nodes.values()):.0f} s (limit {limit:g} s)"

    def cancel_and_wait(self, cancel_reason: CancelReason) -> Outcome:
        """Cancel the job, and wait until Slurm has ended all of it."""
        deadline, next_cancel = time.monotonic() + STOP_SECONDS, 0.0
        # the job of a lost node may stay COMPLETING for ever
        final_words = (*ENDED_STATES, FORGOTTEN_STATE, *(["COMPLETING"] if cancel_reason[0] == "node-lost" else []))
        while self._state.word not in final_words and time.monotonic() < deadline:
            if time.monotonic() >= next_cancel:
                cancel(self._job)
                next_cancel = time.monotonic() + CANCEL_RETRY_SECONDS
            time.sleep(END_POLL_SECONDS)
            state = job_state(self._job)
            self._state = self._state if state == UNKNOWN_STATE else state
        return self._outcome(cancel_reason)

    def _outcome(self, cancel_reason: CancelReason | None) -> Outcome:
        wait_until(lambda: not self._unfinished_nodes.read(), RECORD_WAIT_SECONDS, END_POLL_SECONDS)
        self._watch()
        state = self._state
        if state.word == "CANCELLED" and (accounting := accounting_state(self._job)).word == "CANCELLED":
            state = accounting  # only the accounting names the user who cancelled the job
        outcome = job_outcome(self._request, self._job, state, cancel_reason, self._lost_nodes)
        if self._state.is_ended or outcome.cause == "node-lost":
            return outcome
        warning = f"Slurm job {self._job.number} may still be there: Slurm did not answer; `scancel {self._job.number}`"
        return replace(outcome, warnings=(*outcome.warnings, warning))

"""Watches one job of Slurm until its end. The outcome follows from Slurm's state and from what the nodes recorded."""

from __future__ import annotations

import math
import pwd
import queue
import re
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from levelfield.contracts.execution import Cause, NodeWord, Outcome, Request, Say, Watch
from levelfield.node.node_duty import STOP_FILE
from levelfield.node.regular_files import read_last
from levelfield.run.launchers.liveness import Liveness, NodePulse, pause_after
from levelfield.run.launchers.node_records import (
    LastRecord,
    UnfinishedNodes,
    last_records,
    mark_ended_by_engine,
    recorded_failure,
)
from levelfield.run.launchers.slurm.slurm_commands import (
    END_ANSWER_SECONDS,
    ENDED_STATES,
    FORGOTTEN_STATE,
    PAUSED_STATES,
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
# The job's output has a line of slurmstepd where Slurm ends a step or the job, with a reason where that was its own
# decision, and a line of srun for each task that fails. After a failed task srun cancels the step itself. The shell of
# the job's script has a line where srun was killed.
_CANCELLED_LINE = re.compile(
    r"(?:STEP|JOB) \S+ ON \S+ CANCELLED AT \S+(?: DUE TO (?P<reason>[A-Z ]*[A-Z]))?|line \d+: +\d+ Killed +srun\b"
)
_TASK_LINE = re.compile(r"srun: error: (?P<nodes>\S+): tasks? (?P<tasks>(?P<first>\d+)[\d,-]*): (?P<end>.+)")
# srun could not start a node's part, such as on a node whose prolog takes too long
_LAUNCH_LINE = re.compile(r"srun: error: (?:Task launch for|Application launch failed|task \d+ launch failed).+")
_REASON_CAUSES: dict[str, Cause] = {
    "TIME LIMIT": "time-limit", "PREEMPTION": "preempted", "NODE FAILURE": "node-lost", "JOB REQUEUE": "cancelled",
}  # fmt: skip
LOG_BYTES = 65536  # of the end of the job's output that are read for a line of evidence
MAX_TASK_LINES = 3  # in a line of evidence
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
NODE_FAILURE_STATES = ("NODE_FAIL", "BOOT_FAIL")
END_POLL_SECONDS = 0.3  # between two looks at a job that ends
# between two questions to Slurm; the pause grows with the age of the job
MIN_POLL_SECONDS, MAX_POLL_SECONDS = 0.5, 10.0
# Limits of the waits. Each of them has a line that says what it waits for.
QUEUE_SECONDS = 7 * 86400.0  # in the queue, or suspended by Slurm
ANSWERLESS_SECONDS = 3600.0  # without an answer of Slurm about a job of which no node has begun
END_SECONDS = 3.0  # for Slurm's word about a job whose nodes have all written their last records
STOP_SECONDS = 120.0  # for the end of a cancelled job; Slurm's own KillWait is 30 s by default
RECORD_WAIT_SECONDS = 5.0  # for the nodes' last records to appear on a file server
CANCEL_RETRY_SECONDS = 10.0  # between two requests to cancel a job
SILENT_WAIT_SECONDS = 2.0  # a wait that is over before has no line
SILENT_START_SECONDS = 10.0  # the same for the start of the nodes of a job that runs
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


@dataclass(frozen=True)
class _JobLog:
    """What the end of the job's output says about its end."""

    path: Path
    last_line: str | None = None  # None where there is no file; srun's words where it could not start a task
    failed_tasks: str = ""  # srun's words about the tasks that failed before Slurm ended any; a task is a node's part
    first_failed_task: int | None = None  # which is a node rank
    cancelled_line: str | None = None  # Slurm's words, where it ended a step or the job before any task failed
    cause: Cause | None = None  # of the run, where Slurm's words have a reason


def _read_job_log(request: Request) -> _JobLog:
    path = Path(request.events_dir).parent / "logs" / "job.log"
    try:
        lines = read_last(path, LOG_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return _JobLog(path)
    last_line = next((line.strip() for line in reversed(lines) if line.strip()), "")
    failed_tasks: list[str] = []
    first_failed_task, cancelled_line, cause = None, None, None
    for line in lines:
        if match := _CANCELLED_LINE.search(line):
            cause = _REASON_CAUSES.get(match["reason"])
            cancelled_line = None if failed_tasks and not cause else " ".join(match[0].split())
            break
        if match := _TASK_LINE.search(line):
            failed_tasks.append(f"srun: {match['nodes']}: task {match['tasks']}: {match['end'].strip()}")
            if first_failed_task is None:
                first_failed_task = int(match["first"])
        elif match := _LAUNCH_LINE.search(line):
            last_line = match[0] if not failed_tasks else last_line
            failed_tasks.append(match[0])
    tasks_text = "; ".join(failed_tasks[:MAX_TASK_LINES])
    return _JobLog(path, last_line, tasks_text, first_failed_task, cancelled_line, cause)


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
    if all(record.cause == "exited" for record in records):  # a finished training, whatever Slurm says
        cancel_reason = None
    log = _read_job_log(request)
    engine_cause = _ENGINE_CAUSES.get(str(state.word)) or log.cause
    terminated_records = [mark_ended_by_engine(record, signal.SIGTERM) for record in records]
    if cancel_reason or engine_cause:  # the whole job was ended, from whatever side
        records = [mark_ended_by_engine(record, signal.SIGTERM, signal.SIGKILL) for record in records]
    elif any(record.cause not in ("stopped", "exited") for record in terminated_records):
        # after the failure of one node, Slurm sends SIGTERM to the processes of the others
        records = terminated_records
    lost_nodes = lost_nodes or (_down_nodes(state) if engine_cause == "node-lost" else {})
    cause, evidence = cancel_reason or _cause(job, state, records, lost_nodes, log, engine_cause)
    if cause in ("launch-error", "interrupted") and not any(record.has_begun for record in records):
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
    job: SlurmJob,
    state: JobState,
    records: Sequence[LastRecord],
    lost_nodes: Mapping[str, str],
    log: _JobLog,
    engine_cause: Cause | None,
) -> tuple[Cause, str | None]:
    """Return cause and evidence: by Slurm's words where they explain the end, else by the nodes' records, else by what
    is missing. engine_cause: by Slurm's words."""
    if all(record.cause == "exited" for record in records):
        return "exited", None
    summary = f"Slurm job {job.number}: {_describe_state(state)}"
    silent = [record.name for record in records if record.cause is None]
    missing_text = f"no last record from {', '.join(silent)}"
    if engine_cause:
        texts = [f"{name} is {word}" for name, word in lost_nodes.items()]
        if engine_cause == "node-lost" and not texts:
            texts = [missing_text]
        if state.word not in _ENGINE_CAUSES:
            texts.insert(0, str(log.cancelled_line))
        return engine_cause, "; ".join([summary, *texts])
    # ranks of other nodes fail after a node's agent was killed, and may do so before Slurm ends them
    is_node_first = any(record.node_rank == log.first_failed_task and record.cause is None for record in records)
    if not is_node_first and (cause_and_evidence := recorded_failure(records)):
        return cause_and_evidence
    if log.cancelled_line:  # as `scancel JOB.0` does
        return "cancelled", f"{summary}; {log.cancelled_line}"
    if not any(record.has_begun for record in records) and state.word != FORGOTTEN_STATE:
        no_output = f"it left no output in {log.path}: do the nodes see this folder?"
        return "launch-error", "; ".join(filter(None, (summary, no_output if log.last_line is None else log.last_line)))
    if silent:
        steps = log.failed_tasks or failed_steps(job)
        return "node-lost", f"{summary}{f' ({steps})' if steps else ''}; {missing_text}"
    return "cancelled", f"{summary}; {'; '.join(f'{r.name}: {r.evidence}' for r in records if r.evidence)}"


def _describe_state(state: JobState) -> str:
    """Return Slurm's state with its reason, or with the user who cancelled the job."""
    if state.word == FORGOTTEN_STATE:
        return "Slurm knows it no longer"
    if state == UNKNOWN_STATE:
        return "Slurm did not answer"
    if state.cancelled_by:
        try:
            return f"{state.word} by {pwd.getpwuid(int(state.cancelled_by)).pw_name}"
        except (KeyError, ValueError):
            return f"{state.word} by user {state.cancelled_by}"
    has_reason = state.reason not in ("", "None", state.word, "NonZeroExitCode")
    return f"{state.word} ({state.reason})" if has_reason else str(state.word)


@dataclass(frozen=True)
class _Answer:
    """What Slurm said about a job at one time."""

    state: JobState
    asked_at: float  # before the question: monotonic
    jobs_before: int | None = None  # waiting jobs that Slurm would start before it
    lost_nodes: Mapping[str, str] = field(default_factory=dict)  # Slurm's words by name, where a node ended the job


class JobWatch:
    """Watches the job of a run. It asks Slurm less often the longer the job takes.

    A thread asks, because Slurm may take long to answer: the nodes' files are read meanwhile.
    """

    def __init__(self, request: Request, job: SlurmJob, watch: Watch, say: Say) -> None:
        self._request, self._job, self._watch, self._say = request, job, watch, say
        self._began = self._last_answer = self._last_active = time.monotonic()
        self._last_poll, self._next_cancel = -math.inf, self._began
        self._last_asked = -math.inf  # when the question of the state was asked
        self._first_run: float | None = None  # when Slurm first showed the job as RUNNING
        self._first_sign: float | None = None  # when the first node had given a sign
        self._state = UNKNOWN_STATE
        self._lost_nodes: Mapping[str, str] = {}
        self._asker: threading.Thread | None = None
        self._answers: queue.SimpleQueue[_Answer] = queue.SimpleQueue()
        self._liveness: Liveness | None = None
        self._pulse, self._unfinished_nodes = NodePulse(request), UnfinishedNodes(request)
        self._last_sentence, self._has_start_line = "", False

    def watch_until_end(self) -> Outcome:
        """Watch until the job has ended, or all its nodes have. An interrupt before that cancels it."""
        cancel_reason: CancelReason | None = None
        try:
            while cancel_reason is None and not self._state.is_ended and self._unfinished_nodes.read():
                began = time.process_time()
                self._watch()
                self._poll(min(max(MIN_POLL_SECONDS, (time.monotonic() - self._began) / 20), MAX_POLL_SECONDS))
                if (cancel_reason := self._cancel_reason()) is None:
                    self._pause(pause_after(time.process_time() - began))
            if cancel_reason is None:
                return self._outcome(None)
        except KeyboardInterrupt:
            if not self._unfinished_nodes.read():
                return self._outcome(None)  # the training was over
            cancel_reason = INTERRUPTED
        return self.cancel_and_wait(cancel_reason)

    def cancel_and_wait(self, cancel_reason: CancelReason) -> Outcome:
        """Cancel the job, and wait until Slurm or every node has ended its part."""
        self._end_unreachable_nodes()
        # the job of a lost node may stay COMPLETING for ever
        final_words = (*ENDED_STATES, FORGOTTEN_STATE, *(["COMPLETING"] if cancel_reason[0] == "node-lost" else []))
        self._wait(
            lambda: self._state.word in final_words or not self._unfinished_nodes.read(),
            STOP_SECONDS, f"the end of Slurm job {self._job.number}, which was cancelled", cancels=True,
        )  # fmt: skip
        return self._outcome(cancel_reason)

    def _end_unreachable_nodes(self) -> None:
        """Ask the nodes that no signal of Slurm reaches to end: a slurmstepd that was killed leaves the node's part."""
        with suppress(OSError):
            (Path(self._request.events_dir).parent / STOP_FILE).touch()

    def _wait(self, is_over: Callable[[], bool], seconds: float, subject: str, cancels: bool = False) -> None:
        """Wait with a time limit, and ask Slurm meanwhile. subject: what it waits for. cancels: whether to cancel the
        job."""
        began, has_line = time.monotonic(), False
        while not is_over() and (waited_seconds := time.monotonic() - began) < seconds:
            if waited_seconds > SILENT_WAIT_SECONDS and not has_line:
                has_line = True
                self._say(f"waiting for {subject}: at most {seconds:g} s")
            self._poll(END_POLL_SECONDS, cancels)
            self._pause(END_POLL_SECONDS)

    def _poll(self, pause_seconds: float, cancels: bool = False) -> None:
        """Ask Slurm for the state in a thread, some seconds after the last answer. cancels: whether to cancel the job
        first."""
        now = time.monotonic()
        if self._asker and self._asker.is_alive():
            return
        is_cancelling = cancels and now >= self._next_cancel
        if is_cancelling or now >= self._last_poll + pause_seconds:
            if is_cancelling:
                self._next_cancel = now + CANCEL_RETRY_SECONDS
            self._asker = threading.Thread(target=self._ask, args=(is_cancelling,), daemon=True, name="slurm")
            self._asker.start()

    def _ask(self, is_cancelling: bool) -> None:
        """Ask Slurm, and put the answer where the watching thread finds it."""
        asked_at = time.monotonic()
        answer = _Answer(UNKNOWN_STATE, asked_at)
        try:
            if is_cancelling:
                cancel(self._job)
            state = job_state(self._job)
            is_waiting = state.word in WAITING_STATES and state.reason not in ("", "None")
            answer = _Answer(
                state,
                asked_at,
                queue_position(self._job) if is_waiting else None,
                _down_nodes(state) if state.word in NODE_FAILURE_STATES else {},  # Slurm may take a node back at once
            )
        finally:
            self._answers.put(answer)

    def _pause(self, seconds: float) -> None:
        """Wait some seconds, or until Slurm answers. Keep its answer, and say what it means where that changed."""
        try:
            answer = self._answers.get(timeout=seconds)
        except queue.Empty:
            return
        previous, state, number = self._state, answer.state, self._job.number
        self._last_poll = time.monotonic()
        if state == UNKNOWN_STATE:
            self._say_change(f"Slurm does not answer about job {number}; its state is not known")
            return
        self._last_answer, self._last_asked, self._state = self._last_poll, answer.asked_at, state
        self._lost_nodes = self._lost_nodes or answer.lost_nodes
        if state.word in WAITING_STATES and state.reason not in ("", "None"):
            count = answer.jobs_before
            jobs = "" if count is None else f", {count} job{'' if count == 1 else 's'} before it"
            self._say_change(f"Slurm job {number} waits{jobs}: {state.reason}")
        elif state.word == previous.word and state.word != "RUNNING" and not state.is_ended:
            self._say_change(f"Slurm shows job {number} as {_describe_state(state)}")

    def _say_change(self, text: str) -> None:
        """Say what Slurm shows, unless it was the last such sentence."""
        if text != self._last_sentence:
            self._last_sentence = text
            self._say(text)

    def _is_requeued(self) -> bool:
        """Return whether the job waits though it ran. A node may begin after Slurm was last asked."""
        if self._first_sign is None and self._pulse.has_sign(self._request.nodes[:1]):
            self._first_sign = time.monotonic()
        has_run = self._first_run is not None or (self._first_sign is not None and self._first_sign < self._last_asked)
        return has_run and self._state.word in WAITING_STATES

    def _cancel_reason(self) -> CancelReason | None:
        """Return why the job is to end; None while it may go on.

        A waiting job is ended where nothing will start it, or where it ran before: a second start would write over the
        files of the first. A running job is ended without a sign of a node, or without a step. Limits count from the
        job's start. Each node watches the heartbeats of its own ranks, and ends them. The nodes' signs count also where
        Slurm does not answer.
        """
        now, word, reason, number = time.monotonic(), self._state.word, self._state.reason, self._job.number
        if word == "RUNNING" and self._first_run is None:
            self._first_run = now
        if self._is_requeued():
            requeued = f"Slurm job {number} was put back into the queue after it ran"
            return "cancelled", requeued if reason in ("", "None") else f"{requeued} ({reason})"
        if word in WAITING_STATES and reason in _ENDLESS_WAITS:
            return "launch-error", f"Slurm job {number} waits forever ({reason}): {_ENDLESS_WAITS[reason]}"
        if word in (*WAITING_STATES, *PAUSED_STATES):
            waited_text = f"{now - self._last_active:.0f} s (limit {QUEUE_SECONDS:g} s)"
            is_too_long = now - self._last_active > QUEUE_SECONDS
            return ("launch-error", f"Slurm job {number} was {word} for {waited_text}") if is_too_long else None
        self._last_active = now
        unfinished = self._unfinished_nodes.read()
        if not self._pulse.has_sign(unfinished):
            if self._first_run is None:
                silent_text = f"{now - self._last_answer:.0f} s (limit {ANSWERLESS_SECONDS:g} s)"
                is_too_long = now - self._last_answer > ANSWERLESS_SECONDS
                sentence = f"Slurm did not answer about job {number} for {silent_text}"
                return ("launch-error", sentence) if is_too_long else None
            if now - self._first_run > SILENT_START_SECONDS and not self._has_start_line:
                self._has_start_line = True
                limit = f"at most {self._request.start_seconds:g} s"
                self._say(f"Slurm job {number} runs; waiting for the first sign of its nodes: {limit}")
        self._liveness = self._liveness or Liveness(self._request)
        silent_nodes = self._pulse.silent_nodes(unfinished)
        if not silent_nodes:
            evidence = self._liveness.hang_evidence([])
            return ("hang", evidence) if evidence else None
        records = [r for r in last_records(self._request, self._state.nodes) if r.node_rank in silent_nodes]
        states = node_states([record.name for record in records])
        names = (f"{r.name} (Slurm shows it as {states[r.name]})" if r.name in states else r.name for r in records)
        silence = max(silent_nodes.values(), key=lambda silence: silence.seconds)
        limit = f"limit {silence.limit_seconds:g} s"
        return "node-lost", f"no sign of {', '.join(names)} for {silence.seconds:.0f} s ({limit})"

    def _outcome(self, cancel_reason: CancelReason | None) -> Outcome:
        """Return how the run ended. The nodes' records count where Slurm is late to end the job."""
        number = self._job.number
        if self._state.is_ended and self._unfinished_nodes.read():
            self._end_unreachable_nodes()
            self._wait(lambda: not self._unfinished_nodes.read(), RECORD_WAIT_SECONDS, "the nodes' last records")
        has_finished = all(record.cause == "exited" for record in last_records(self._request))
        # where not all has gone well, the job may be put back into the queue
        self._wait(
            lambda: self._state.is_ended
            or (self._state.word == "COMPLETING" if has_finished else self._is_requeued()),
            END_SECONDS, f"Slurm to end job {number}",
        )  # fmt: skip
        self._watch()
        state, reason = self._state, cancel_reason
        if not has_finished and self._is_requeued():
            reason = cancel_reason or self._cancel_reason()
        if state.word in ("CANCELLED", "COMPLETING") and not has_finished:
            # only the accounting names the user who cancelled the job, and knows the end of one that is cleaned up
            accounting = accounting_state(self._job, END_ANSWER_SECONDS)
            state = accounting if accounting.word in ENDED_STATES else state
        outcome = job_outcome(self._request, self._job, state, reason, self._lost_nodes)
        if state.is_ended or (state.word == "COMPLETING" and (has_finished or cancel_reason)):
            return outcome
        # it would hold its nodes up to its time limit, or run again
        if cancel_reason is None and cancel(self._job, END_ANSWER_SECONDS):
            self._say(f"Slurm job {number} was cancelled: its nodes had ended, and it was {state.word or 'unknown'}")
            return outcome
        warning = f"Slurm job {number} may still be there ({_describe_state(state)}): `scancel {number}`"
        return replace(outcome, warnings=(*outcome.warnings, warning))

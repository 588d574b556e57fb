"""Watches one job of Slurm until its end: its place in the queue, its ranks' heartbeats, its state."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from levelfield.contracts.execution import Outcome, Request, Watch
from levelfield.run.launchers.liveness import Liveness
from levelfield.run.launchers.look_pace import pause_after
from levelfield.run.launchers.node_pulse import NodePulse
from levelfield.run.launchers.node_records import OpenNodes, last_records
from levelfield.run.launchers.slurm.slurm_commands import (
    ENDED,
    FORGOTTEN,
    UNKNOWN,
    JobState,
    SlurmJob,
    accounted,
    cancel,
    node_states,
    position,
    state_of,
)
from levelfield.run.launchers.slurm.slurm_outcome import Intent, outcome_of

STEP_SECONDS = 0.3  # between two looks at a job that ends
QUICKEST, SLOWEST = 0.5, 10.0  # seconds between two questions to Slurm: the longer it takes, the fewer they are
PATIENCE_SECONDS = 300.0  # with a controller that does not answer, once every node has written its last record
STOP_SECONDS = 120.0  # for the end of a cancelled job; Slurm's own KillWait is 30 s by default
AGAIN_SECONDS = 10.0  # between two requests to cancel it
RECORD_SECONDS = 5.0  # for the nodes' last records to appear on a file server
INTERRUPTED = Intent("interrupted", "interrupted by the user")
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


class JobWatch:
    """The watch over a job of a run. It asks Slurm more seldom the longer it takes."""

    def __init__(self, request: Request, job: SlurmJob, watch: Watch, say: Callable[[str], None]) -> None:
        self._request, self._job, self._watch, self._say = request, job, watch, say
        self._began, self._next = time.monotonic(), 0.0
        self._state = UNKNOWN
        self._answered = self._began
        self._liveness: Liveness | None = None
        self._pulse, self._open = NodePulse(request), OpenNodes(request)
        self._said = ""

    def until_end(self) -> Outcome:
        """Watch until the job has ended. An interrupt cancels it."""
        try:
            intent = self._intent()
        except KeyboardInterrupt:
            intent = INTERRUPTED
        return self._stopped(intent) if intent else self._outcome(None)

    def cancelled(self) -> Outcome:
        """Cancel the job for the user, and wait for its end."""
        return self._stopped(INTERRUPTED)

    def _intent(self) -> Intent | None:
        """Return why the platform has to end the job; None once it has ended by itself."""
        while True:
            began = time.process_time()
            self._watch()
            self._look()
            if self._state.is_ended or self._is_given_up():
                return None
            if why := self._hopeless() or self._hang():
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
        if found.is_waiting and found.reason not in ("", "None"):
            self._tell(self._waiting(found))

    def _waiting(self, state: JobState) -> str:
        before = position(self._job)
        place = "" if before is None else f", {before} job{'' if before == 1 else 's'} before it"
        return f"Slurm job {self._job.number} waits{place}: {state.reason}"

    def _tell(self, text: str) -> None:
        if text != self._said:
            self._said = text
            self._say(text)

    def _is_given_up(self) -> bool:
        """Return whether the training is over by the nodes' records, and Slurm has not answered for long."""
        return time.monotonic() - self._answered > PATIENCE_SECONDS and not self._open.left()

    def _hopeless(self) -> Intent | None:
        if not self._state.is_waiting or self._state.reason not in _HOPELESS:
            return None
        reason = self._state.reason
        return Intent("launch-error", f"Slurm job {self._job.number} waits forever ({reason}): {_HOPELESS[reason]}")

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
            return Intent("node-lost", self._lost(silent))
        evidence = self._liveness.hang([])
        return Intent("hang", evidence) if evidence else None

    def _lost(self, silent: dict[int, float]) -> str:
        """Return what is known about nodes that give no sign."""
        records = [r for r in last_records(self._request, self._state.nodes) if r.node_rank in silent]
        shown = node_states([record.name for record in records])
        named = (f"{r.name} (Slurm shows it as {shown[r.name]})" if r.name in shown else r.name for r in records)
        limit = self._request.heartbeat_seconds
        return f"no sign of {', '.join(named)} for {max(silent.values()):.0f} s (limit {limit:g} s)"

    def _stopped(self, intent: Intent) -> Outcome:
        """Cancel the job, and wait until Slurm has ended all of it."""
        deadline, again = time.monotonic() + STOP_SECONDS, 0.0
        over = (*ENDED, FORGOTTEN, *(["COMPLETING"] if intent.cause == "node-lost" else []))  # what is lost cannot end
        while self._state.word not in over and time.monotonic() < deadline:
            if time.monotonic() >= again:
                cancel(self._job)
                again = time.monotonic() + AGAIN_SECONDS
            time.sleep(STEP_SECONDS)
            found = state_of(self._job)
            self._state = self._state if found == UNKNOWN else found
        return self._outcome(intent)

    def _outcome(self, intent: Intent | None) -> Outcome:
        deadline = time.monotonic() + RECORD_SECONDS
        while self._open.left() and time.monotonic() < deadline:
            time.sleep(STEP_SECONDS)
        self._watch()
        outcome = outcome_of(self._request, self._job, self._with_user(), intent)
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

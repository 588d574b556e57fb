"""One night: runs a suite's entries, the most informative first, within a budget, and records each once.

The state is written before and after each run. So a killed nightly continues where it was, and no run that has ended
is made again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import ClassVar, Literal

from pydantic import Field

from levelfield.errors import DocumentError, UsageError
from levelfield.nights.night_code import NightCode
from levelfield.run.scheduler import Job
from levelfield.rundir.directory import write_atomically
from levelfield.specs.base import Document, Value, dump, load
from levelfield.specs.paths import RunPaths
from levelfield.specs.record import Point, Subject
from levelfield.specs.result import Result

OVER_BUDGET = "the budget of the night holds no more"
MAX_NIGHTS_READ = 10
EntryState = Literal["waiting", "started", "done", "left out"]

NO_ENVIRONMENT = "failed (environment)"
UNKNOWN_SECONDS = 120.0  # expected of an entry when no entry has run before
CONFIRMATION_SHARE = 0.3  # of the budget, kept for the pairs that confirm a suspicion
MAX_NIGHTS_UNSEEN = 7  # more nights without a run of the entry count as these


class NightEntry(Value):
    """One entry of the suite."""

    name: str
    series: str | None = None
    state: EntryState = "waiting"
    run_id: str | None = None
    seconds: float | None = None  # expected; of a done entry measured
    reason: str | None = None  # why it was left out, or is not valid


class PairRun(Value):
    """One run of a confirmation. arm: `a` is the accepted build, `b` tonight's."""

    series: str
    arm: Literal["a", "b"]
    run_id: str


class NightState(Document):
    """A nightly of one suite. began: UTC, ISO 8601. used_seconds: of the budget, by earlier starts.

    code: what the first start ran, and each later one has to; null in a state of an earlier version.
    """

    KIND: ClassVar[str] = "night"

    night: str
    suite: str
    began: str
    used_seconds: float = 0.0
    entries: tuple[NightEntry, ...]
    confirmations: tuple[PairRun, ...] = Field(default=())
    code: NightCode | None = None

    @property
    def is_complete(self) -> bool:
        """Whether no entry has to run any more."""
        return all(entry.state in ("done", "left out") for entry in self.entries)

    def with_entry(self, name: str, **change: object) -> NightState:
        """Return the state with changed fields of one entry."""
        entries = tuple(e.model_copy(update=change) if e.name == name else e for e in self.entries)
        return self.model_copy(update={"entries": entries})


def state_path(runs: Path, night: str, suite: str) -> Path:
    """Return the file of a nightly's state, beside its runs."""
    return runs / f"nightly_{suite}_{night}.json"


def nights_by_run(runs: Path) -> dict[str, str]:
    """Return the night of each run that a nightly's state in this folder names. Raises UsageError like read_state."""
    states = [state for path in sorted(runs.glob("nightly_*.json")) if (state := read_state(path))]
    return {entry.run_id: state.night for state in states for entry in state.entries if entry.run_id}


def read_state(path: Path) -> NightState | None:
    """Return the state; None without a file. Raises UsageError for a damaged one, which names what to do."""
    if not path.exists():
        return None
    try:
        return load(NightState, path)
    except DocumentError as error:
        raise UsageError(f"{error}\nremove {path} to begin this night again; its finished runs are kept") from None


def write_state(path: Path, state: NightState) -> None:
    """Replace the state in one step. Raises OSError with the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, dump(state))


def entry_durations(runs: Path, suite: str) -> dict[str, list[float]]:
    """Return the seconds of each entry's runs in the newest nights of the suite. A damaged state counts for nothing."""
    seconds_of_entries: dict[str, list[float]] = {}
    for path in sorted(runs.glob(f"nightly_{suite}_[0-9][0-9][0-9][0-9]-*.json"))[-MAX_NIGHTS_READ:]:
        with suppress(DocumentError):
            for entry in load(NightState, path).entries:
                if entry.state == "done" and entry.seconds:
                    seconds_of_entries.setdefault(entry.name, []).append(entry.seconds)
    return seconds_of_entries


@dataclass(frozen=True)
class Candidate:
    """An entry that may run tonight."""

    name: str
    expected_seconds: float
    is_new_build: bool  # its code, environment or commit differs from the last night's
    # the least change that one night of its series shows, as a cost; None for a young series
    detectable_excess: float | None
    nights_unseen: int | None  # since its last run; None when it never ran

    @property
    def information(self) -> float:
        """Return how much a run tells: a new build, a long absence and wide limits count for more."""
        unseen = MAX_NIGHTS_UNSEEN if self.nights_unseen is None else min(self.nights_unseen, MAX_NIGHTS_UNSEEN)
        width = 5.0 if self.detectable_excess is None else min(100 * self.detectable_excess, 5.0)
        return 1.0 + 3.0 * self.is_new_build + unseen + width


def most_informative_first(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates by information per expected second, the highest first; equal ones keep their order."""
    return sorted(candidates, key=lambda c: -c.information / max(c.expected_seconds, 1.0))


def split_by_budget(
    candidates: Sequence[Candidate], budget_seconds: float | None, at_once: int = 1
) -> tuple[list[Candidate], list[Candidate]]:
    """Return the candidates that fit into the budget, and the others, both in order. The first one always fits.

    at_once: how many run side by side.
    """
    if budget_seconds is None:
        return list(candidates), []
    entries_seconds = budget_seconds * (1 - CONFIRMATION_SHARE)
    remaining_seconds = entries_seconds * at_once
    chosen: list[Candidate] = []
    left_out: list[Candidate] = []
    for candidate in candidates:
        if not chosen or candidate.expected_seconds <= min(remaining_seconds, entries_seconds):
            chosen.append(candidate)
            remaining_seconds -= candidate.expected_seconds
        else:
            left_out.append(candidate)
    return chosen, left_out


def expected_seconds(durations_by_entry: Mapping[str, Sequence[float]], name: str) -> float:
    """Return the median duration of an entry's earlier runs, else of all entries' runs."""
    all_seconds = [seconds for runs in durations_by_entry.values() for seconds in runs]
    return median(durations_by_entry.get(name) or all_seconds or [UNKNOWN_SECONDS])


def nights_unseen(points: Sequence[Point], nights: Sequence[str]) -> int | None:
    """Return how many of the nights, in order, lie after the entry's last one; None when it has none."""
    seen = {point.night for point in points if point.night in nights}
    return None if not seen else len(nights) - 1 - max(nights.index(night) for night in seen if night)


def is_other_build(previous: Subject | None, current: Subject) -> bool:
    """Return whether tonight's build differs from the last one in code, software or commit. Unknown counts as other."""
    if previous is None or current.is_dirty or previous.is_dirty:
        return True
    if current.commit is not None and None in (current.is_dirty, previous.is_dirty):
        return True
    kinds = ("environment", "image", "implementation", "commit", "platform_version")
    return any(getattr(previous, kind) != getattr(current, kind) for kind in kinds)


@dataclass(frozen=True)
class NightRun:
    """An entry of the suite with its planned run."""

    name: str
    series: str  # the digest of its series
    job: Job
    candidate: Candidate


RunSideBySide = Callable[[Sequence[Job], Callable[[Job], bool], Callable[[Job, "Result | None"], None]], None]


@dataclass(frozen=True)
class NightTools:
    """The functions by which a night runs its entries; tests replace them."""

    run_job: Callable[[Job], Result]  # runs a job to its result
    record: Callable[[RunPaths], None]  # stores a run directory
    find_folder: Callable[[str], RunPaths]  # returns the directory of a run by its id
    clock: Callable[[], float]  # a monotonic clock
    save: Callable[[NightState], None]  # writes the state
    say: Callable[[str], None]
    has_code: Callable[[], bool] = lambda: True  # whether the checkout still has the night's code
    # runs jobs side by side. It calls the first function before a job, and starts none after it returned False; and the
    # second one after a job, with its result; None for a job that has none
    run_side_by_side: RunSideBySide | None = None
    at_once: int = 1  # jobs side by side


def first_state(
    night: str, suite: str, began: str, night_runs: Sequence[NightRun], code: NightCode | None = None
) -> NightState:
    """Return the first state of a night: every entry waits."""
    entries = (
        NightEntry(name=run.name, series=run.series, seconds=run.candidate.expected_seconds) for run in night_runs
    )
    return NightState(night=night, suite=suite, began=began, entries=tuple(entries), code=code)


def _resume(state: NightState, tools: NightTools) -> NightState:
    """Return the state after an earlier start: an entry whose run has a result is done, and any other one waits.

    So does one whose environment could not be made: a package index may be back, or a version corrected.
    """
    for stored_entry in state.entries:
        if stored_entry.state == "done" and (stored_entry.reason or "").startswith(NO_ENVIRONMENT):
            state = state.with_entry(stored_entry.name, state="waiting", run_id=None, reason=None)
        elif stored_entry.state == "started" and stored_entry.run_id is not None:
            paths = tools.find_folder(stored_entry.run_id)
            has_result = paths.result.exists()
            if has_result:
                tools.record(paths)
            change = {"state": "done"} if has_result else {"state": "waiting", "run_id": None}
            state = state.with_entry(stored_entry.name, **change)
    return state


def run_entries(
    state: NightState, night_runs: Sequence[NightRun], budget_seconds: float | None, tools: NightTools
) -> NightState:
    """Run what waits and return the state after it.

    An interrupted run waits again, and no other one begins after it. So does a run during which the checkout got other
    code, and a run that left no result.
    """
    state = _resume(state, tools)
    by_name = {run.name: run for run in night_runs}
    waiting = [by_name[e.name].candidate for e in state.entries if e.state == "waiting" and e.name in by_name]
    remaining_seconds = None if budget_seconds is None else max(0.0, budget_seconds - state.used_seconds)
    chosen, left_out = split_by_budget(most_informative_first(waiting), remaining_seconds, tools.at_once)
    for candidate in left_out:
        state = state.with_entry(candidate.name, state="left out", reason=OVER_BUDGET)
    tools.save(state)
    jobs = [by_name[candidate.name].job for candidate in chosen]
    names = {job.plan.run_id: candidate.name for job, candidate in zip(jobs, chosen, strict=True)}
    began_at = dict[str, float]()  # by name
    first_start, used_before = tools.clock(), state.used_seconds

    def begin(job: Job) -> bool:
        """Mark the job's entry as started. Return False where the checkout has other code."""
        nonlocal state
        if not tools.has_code():
            return False
        name, run_id = names[job.plan.run_id], job.plan.run_id
        expected = by_name[name].candidate.expected_seconds
        tools.say(f"entry {len(began_at) + 1} of {len(chosen)}: {name}, about {expected:.0f} s")
        state = state.with_entry(name, state="started", run_id=run_id)
        tools.save(state)
        began_at[name] = tools.clock()
        return True

    def end(job: Job, result: Result | None) -> None:
        """Record the job's result."""
        nonlocal state
        name, now = names[job.plan.run_id], tools.clock()
        if result is None or result.status.is_interrupted or not tools.has_code():
            state = state.with_entry(name, state="waiting", run_id=None)
        else:
            tools.record(tools.find_folder(result.run_id))
            word = NO_ENVIRONMENT if result.status.failure == "environment" else result.status.word
            reason = None if result.status.word == "valid" else f"{word}: {result.status.evidence or ''}"
            state = state.with_entry(name, state="done", seconds=now - began_at[name], reason=reason)
        state = state.model_copy(update={"used_seconds": used_before + now - first_start})
        tools.save(state)

    if tools.run_side_by_side:
        tools.run_side_by_side(jobs, begin, end)
        return state
    for job in jobs:
        if not begin(job):
            break
        result = tools.run_job(job)
        end(job, result)
        if result.status.is_interrupted:
            break
    return state

"""One night: a suite's entries within a budget, in the order of what they tell, each recorded once.

The state is written before and after each run. So a killed nightly continues where it was, and no run that has ended
is made again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from levelfield.nights.night_state import Candidate, NightEntry, NightState, ordered, within
from levelfield.run.scheduler import Job
from levelfield.specs.paths import RunPaths
from levelfield.specs.result import Result

OVER_BUDGET = "the budget of the night holds no more"
Save = Callable[[NightState], None]


@dataclass(frozen=True)
class NightRun:
    """An entry of the suite with its planned run. series: the digest of its series."""

    name: str
    series: str
    job: Job
    candidate: Candidate


@dataclass(frozen=True)
class NightTools:
    """What a night does with a run. start: runs a job to its result. record: stores a run directory.

    folder: the directory of a run by its id. seconds: a monotonic clock. save: keeps the state.
    """

    start: Callable[[Job], Result]
    record: Callable[[RunPaths], None]
    folder: Callable[[str], RunPaths]
    seconds: Callable[[], float]
    save: Save
    say: Callable[[str], None]


def fresh_state(night: str, suite: str, began: str, work: Sequence[NightRun]) -> NightState:
    """Return the state of a night that begins: every entry waits."""
    entries = tuple(
        NightEntry(name=run.name, series=run.series, seconds=run.candidate.expected_seconds) for run in work
    )
    return NightState(night=night, suite=suite, began=began, entries=entries)


def run_entries(
    state: NightState, work: Sequence[NightRun], budget_seconds: float | None, tools: NightTools
) -> Iterator[NightState]:
    """Yield the state before the first waiting entry, and after each. An interrupted run is the last one."""
    state = _settled(state, tools)
    by_name = {run.name: run for run in work}
    waiting = [by_name[e.name].candidate for e in state.entries if e.state == "waiting" and e.name in by_name]
    left = None if budget_seconds is None else max(0.0, budget_seconds - state.used_seconds)
    kept, out = within(ordered(waiting), left)
    for each in out:
        state = state.with_entry(each.name, state="left out", reason=OVER_BUDGET)
    tools.save(state)
    yield state
    for number, each in enumerate(kept, 1):
        tools.say(f"entry {number} of {len(kept)}: {each.name}, about {each.expected_seconds:.0f} s")
        state, interrupted = _ran(state, by_name[each.name], tools)
        yield state
        if interrupted:
            return


def _ran(state: NightState, run: NightRun, tools: NightTools) -> tuple[NightState, bool]:
    """Run one entry. Return the state after it, and whether the user interrupted it; then it waits again."""
    state = state.with_entry(run.name, state="started", run_id=run.job.plan.run_id)
    tools.save(state)
    began = tools.seconds()
    result = tools.start(run.job)
    lasted = tools.seconds() - began
    used = state.used_seconds + lasted
    if result.status.is_interrupted:
        state = state.with_entry(run.name, state="waiting", run_id=None)
    else:
        tools.record(tools.folder(result.run_id))
        reason = None if result.status.word == "valid" else f"{result.status.word}: {result.status.evidence or ''}"
        state = state.with_entry(run.name, state="done", seconds=lasted, reason=reason)
    state = state.model_copy(update={"used_seconds": used})
    tools.save(state)
    return state, result.status.is_interrupted


def _settled(state: NightState, tools: NightTools) -> NightState:
    """Return the state after a killed start: an entry whose run has a result is done, any other one waits again."""
    for entry in state.entries:
        if entry.state != "started" or entry.run_id is None:
            continue
        paths = tools.folder(entry.run_id)
        if paths.result.exists():
            tools.record(paths)
            state = state.with_entry(entry.name, state="done")
        else:
            state = state.with_entry(entry.name, state="waiting", run_id=None)
    return state

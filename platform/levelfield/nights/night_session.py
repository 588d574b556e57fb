"""A nightly at work: its suite, store, state and machine, joined for the command."""

from __future__ import annotations

import fcntl
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal, Protocol

from levelfield import environment_folder
from levelfield.catalog.lookup import find_reference
from levelfield.catalog.registry import Registry
from levelfield.checkout import checkout
from levelfield.errors import RunFailed, UsageError
from levelfield.nights.build_pairs import (
    WEEKLY_PAIRS,
    Arm,
    ArmFailed,
    arms_of,
    null_arms,
    paired_records,
    shared_python,
    weekly_series,
    why_slower,
)
from levelfield.nights.gate import (
    MAX_PAIRS_OF_A_NIGHT,
    Confirmation,
    GateReport,
    PairRuns,
    RecordPair,
    Suspect,
    judge_night,
    new_findings,
    suspects,
)
from levelfield.nights.gate_input import GateInput, set_back_finding
from levelfield.nights.machine_control import slow_machine
from levelfield.nights.night_code import code_here, require_commit, require_trainings
from levelfield.nights.nightly import (
    Candidate,
    NightRun,
    NightState,
    NightTools,
    PairRun,
    durations,
    expected_seconds,
    fresh_state,
    is_other_build,
    nights_unseen,
    read_state,
    run_entries,
    state_path,
    write_state,
)
from levelfield.nights.stored_nights import gate_input, judged_points
from levelfield.plan.request import UserRequest
from levelfield.run import certificate_maker, scheduler
from levelfield.run.builds import CommitBuild, checkout_build
from levelfield.run.provenance import source
from levelfield.run.runner import Listener
from levelfield.run.turns import PairProgress
from levelfield.rundir.directory import utc_now
from levelfield.series.finding_forms import finding_line
from levelfield.series.findings import SPEED, Finding
from levelfield.series.level import level_of
from levelfield.series.pairs import MAX_NULLS_OF_A_NIGHT, MAX_PAIRS, MIN_PAIRS
from levelfield.series.segments import level_points, night_of, observations
from levelfield.series.trigger import detectable
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan
from levelfield.specs.record import Point, Purpose, RunRecord, Subject, branch_of, purpose_of
from levelfield.specs.result import Result
from levelfield.specs.short_names import short_digest
from levelfield.store.database import Store
from levelfield.store.run_record import record_of, series_of

_ANOTHER_BUILD = "`nightly accept` names another build"
PURPOSES: dict[tuple[str, str], Purpose] = {
    ("confirm", "a"): "confirm-a", ("confirm", "b"): "confirm-b", ("null", "a"): "null-a", ("null", "b"): "null-b",
}  # fmt: skip


class NightOutput(Protocol):
    """What shows a night while it runs: its sentences, its steps, and the progress of its pages."""

    def say(self, text: str) -> None: ...
    def note(self, text: str) -> None: ...  # a sentence that has to be read in the morning, too
    def listener(self) -> Listener: ...
    def announced(self, jobs: Iterator[scheduler.Job]) -> Iterator[scheduler.Job]: ...
    def show_status(self, result: Result) -> None: ...
    def bytes_progress(self, label: str) -> AbstractContextManager[Callable[[int, int], None]]: ...


@dataclass(frozen=True)
class NightRequest:
    """What the user wants of a night."""

    suite: str  # a name or a file
    night: str  # with its branch where that is not the default one
    runs: Path
    store: str | None
    request: UserRequest  # how its entries run
    plugins: tuple[Path, ...] = ()
    budget: float | None = None  # in seconds
    has_control: bool = True
    has_pairs: bool = True
    most_pairs: int = MAX_PAIRS_OF_A_NIGHT  # of runs, for suspicions; the likeliest first


@dataclass
class NightSession:
    """One night of one suite."""

    request: NightRequest
    suite: str
    store: Store
    registry: Registry
    output: NightOutput
    work: tuple[NightRun, ...]
    state: NightState
    arms: dict[str, tuple[Arm, Arm]] = field(default_factory=dict)  # of pairs, by series
    is_interrupted: bool = False  # by the user, during the last entry
    counted_until: float = field(default_factory=time.monotonic)  # up to when the judgement's time is in used_seconds

    @classmethod
    @contextmanager
    def opened(cls, request: NightRequest, registry: Registry, output: NightOutput) -> Iterator[NightSession]:
        """Open the store and the state, and hold the suite's lock for the block.

        Raises UsageError, and CheckoutMoved where an earlier start of the night had other code.
        """
        suite = Path(request.suite).stem
        with _only_one(request.runs, suite), Store.open(request.store) as store:
            state = read_state(state_path(request.runs, request.night, suite))
            if state is not None:
                require_commit(state.code, state.is_whole, request.night, output.say)
            work = _work(registry, store, request, output)
            code = code_here(run.job.plan for run in work)
            if state is not None:
                require_trainings(state.code, code, state.is_whole, request.night)
            state = state or fresh_state(request.night, suite, utc_now(), work, code)
            session = cls(request, suite, store, registry, output, work, state)
            session.save(state)
            newest = store.newest_run_night()
            is_of_branch = branch_of(request.night) is not None
            if newest and not is_of_branch and request.night[:10] < newest[:10] and request.night not in store.nights():
                store.add_finding(request.night, set_back_finding(request.night, newest).model_dump(mode="json"))
            store.add_expected_entries(request.night, suite, {run.name: run.series for run in work})
            yield session

    def save(self, state: NightState) -> None:
        self.state = state
        write_state(state_path(self.request.runs, self.request.night, self.suite), state)

    def run_entries(self) -> bool:
        """Run what waits. Return whether the night is whole; False: the user interrupted it.

        Raises CheckoutMoved where the checkout got other code meanwhile.
        """
        waits = any(entry.state == "waiting" for entry in self.state.entries)
        slow = slow_machine() if waits and self.request.has_control else None
        tools = NightTools(
            self._start,
            lambda paths: self._record(paths, slow),
            lambda run_id: RunPaths(self.request.runs.absolute() / run_id),
            time.monotonic,
            self.save,
            self.output.say,
            lambda: self.state.code is None or self.state.code.is_here(),
        )
        run_entries(self.state, self.work, self.request.budget, tools)
        if self.is_interrupted:
            return False
        self._require_code()
        return True

    def _require_code(self) -> None:
        """Raise CheckoutMoved where the checkout got other code, and UsageError where that of the night is lost."""
        require_commit(self.state.code, self.state.is_whole, self.request.night, self.output.say)

    def judge(self) -> GateReport:
        """Return the findings of the night, after pairs for what is suspicious, and store what changed.

        One pair more of the builds that confirmed a slower series gives the reason.
        """
        self.counted_until = time.monotonic()
        inputs = gate_input(self.store, self.request.night, self.suite)
        report = self._confirmed(inputs) if self.request.has_pairs else judge_night(inputs)
        if self.request.has_pairs:
            self._require_code()  # pairs that a moved checkout ended go on from the night's own
        findings = []
        for finding in report.findings:
            arms, is_slower = self.arms.get(finding.series), finding.word == "regression" and finding.figure == SPEED
            is_explained = bool(finding.named or finding.explanation)
            if arms and is_slower and not is_explained and self._holds_pair(finding.series):
                self.output.say(f"why {finding.label} is slower: each build runs once more, and records steps")
                try:
                    finding = finding.model_copy(update={"explanation": why_slower(arms, self.request.runs)})
                except ArmFailed as error:
                    self.output.note(f"why {finding.label} is slower is not known: {error}")
            findings.append(finding)
        for finding in new_findings(findings, inputs):
            self.store.add_finding(self.request.night, finding.model_dump(mode="json"))
        self._count_time()
        return replace(report, findings=tuple(findings))

    def _confirmed(self, inputs: GateInput) -> GateReport:
        """Return the findings after pairs, and the null pairs of the week, within the budgets."""
        seconds = {entry.series: entry.seconds for entry in self.state.entries if entry.series and entry.seconds}
        series = weekly_series(inputs, seconds)
        if series and not isinstance(self._build_here(series), str):
            weekly = partial(self._null_pairs, WEEKLY_PAIRS, WEEKLY_PAIRS)
            deque(PairRuns(weekly, self._holds_pair, self.output.note, "A/A pairs").of(series), 0)
            inputs = gate_input(self.store, self.request.night, self.suite)  # with these pairs
        suspicions = suspects(inputs)
        first = {suspect.series: suspect for suspect in reversed(suspicions)}  # of a series' figures the likeliest
        pairs = PairRuns(lambda series: self._pairs(first[series]), self._holds_pair, self.output.note)
        more = partial(self._null_pairs, MIN_PAIRS, MAX_NULLS_OF_A_NIGHT)
        nulls = PairRuns(more, self._holds_pair, self.output.note, "A/A pairs")
        by_name = {(suspect.series, suspect.figure): suspect for suspect in suspicions}
        return judge_night(
            inputs,
            Confirmation(by_name, pairs),
            lambda series, figure: ((getattr(a, figure), getattr(b, figure)) for a, b in nulls.of(series)),
            self.request.most_pairs,
            lambda finding: self.output.say(finding_line(finding)),
        )

    def _start(self, job: scheduler.Job) -> Result:
        listener, reference = self.output.listener(), partial(find_reference, self.registry)
        maker = certificate_maker.CertificateMaker(self.registry, self.request.runs, listener)
        (result,) = scheduler.run_all(
            self.output.announced(iter([job])), self.request.runs, listener, reference, maker.certify
        )
        self.output.show_status(result)
        self.is_interrupted = result.status.is_interrupted
        return result

    def _record(self, paths: RunPaths, slow: str | None) -> None:
        """Store a run. slow: what the control found of this machine; the gate names it."""
        night = self.request.night
        record = record_of(paths, purpose_of(night), night)
        self.store.add([record])
        if slow:
            node, label = record.node, f"node {short_digest(record.node)}"
            bad = Finding(series="", label=label, figure=None, word="bad night", detail=slow, night=night, node=node)
            self.store.add_finding(night, bad.model_dump(mode="json"))

    def _count_time(self, **more: object) -> None:
        """Save the state with the time since the judgement began: builds, pairs, and all that runs beside them."""
        now = time.monotonic()
        used = self.state.used_seconds + now - self.counted_until
        self.counted_until = now
        self.save(self.state.model_copy(update={"used_seconds": used, **more}))

    def _holds_pair(self, series: str) -> bool:
        if self.request.budget is None:
            return True
        self._count_time()
        seconds = next((e.seconds or 0.0 for e in self.state.entries if e.series == series), 0.0)
        return self.state.used_seconds + 2 * seconds <= self.request.budget

    def _pairs(self, suspect: Suspect) -> Iterator[RecordPair] | str:
        """Return the pairs of a series, one after another, or why its accepted build cannot run."""
        run = next((run for run in self.work if run.series == suspect.series), None)
        points, examination = self.store.points([suspect.series]).get(suspect.series, ()), suspect.examination
        by_run = {point.run_id: point for point in points}
        accepted = by_run.get(examination.baseline_run)
        if run is None or accepted is None:
            return "tonight's suite has no entry of the series, or the accepted run is not in the store"
        before = self.store.subject(accepted.subject)
        if before.commit is None or before.is_dirty is not False:
            reason = f"the baseline build of {run.name} had files that no commit has, or git could not tell"
            return f"{reason}; {_ANOTHER_BUILD}"
        subject = self._build_here(suspect.series)
        if isinstance(subject, str):
            return subject
        try:
            build = checkout_build(before.commit, say=self.output.say)
        except RunFailed as error:
            return f"{error}; {_ANOTHER_BUILD}"
        plan, tonight = run.job.plan, CommitBuild(subject.commit or "", checkout())
        arms = arms_of(plan, build, tonight, shared_python(plan, before, subject), self.request.plugins)
        self.arms[suspect.series] = arms
        figure = suspect.figure.replace("_", " ")
        self.output.say(f"confirming {run.name}, {figure}: pairs of {before.commit[:12]} and tonight's build")
        done = [
            self.store.record(pair_run.run_id)
            for pair_run in self.state.confirmations
            if pair_run.series == suspect.series
        ]
        store_arm = partial(self._keep_arm, suspect.series, "confirm")
        keep = PairProgress(suspect.figure, self.output.say).reporting(store_arm, done)
        return paired_records(arms, MAX_PAIRS, self.request.runs, series_of(plan), keep, done)

    def _null_pairs(self, fewest: int, most: int, series: str) -> Iterator[RecordPair] | str:
        """Return pairs of tonight's build and itself, one after another, or why there are none."""
        run = next(run for run in self.work if run.series == series)
        subject = self._build_here(series)
        if isinstance(subject, str):
            return subject
        plan = run.job.plan
        arms = null_arms(plan, subject, self.request.plugins, self.output.say)
        if isinstance(arms, str):
            return arms
        self.output.say(f"A/A pairs of {run.name}: tonight's build on both sides")
        sides = {"a": "first side", "b": "second side"}
        progress = PairProgress(SPEED, self.output.say, fewest, most, sides)
        keep = progress.reporting(partial(self._keep_arm, series, "null"))
        return paired_records(arms, most, self.request.runs, series_of(plan), keep)

    def _build_here(self, series: str) -> Subject | str:
        """Return the build that ran a series in this night, or why this checkout is not that build."""
        judged = judged_points(self.store.points([series])[series], self.request.night)
        points = (point for point in reversed(judged) if point.is_of_trend)
        tonight = next((point for point in points if night_of(point) == self.request.night), None)
        if tonight is None:
            return "the series has no run of this night"
        subject, current = self.store.subject(tonight.subject), source(checkout()).get("commit")
        if subject.commit and current and subject.commit != current:
            return f"the checkout has moved since the night ran, from {subject.commit[:12]} to {current[:12]}"
        return subject

    def _keep_arm(self, series: str, kind: Literal["confirm", "null"], arm: str, paths: RunPaths) -> RunRecord:
        record = record_of(paths, PURPOSES[kind, arm], self.request.night)
        self.store.add([record])
        more: dict[str, object] = {}
        if kind == "confirm":  # a night that goes on finds null pairs in the store
            run = PairRun.model_validate({"series": series, "arm": arm, "run_id": record.run_id})
            more["confirmations"] = (*self.state.confirmations, run)
        self._count_time(**more)
        return record


def _work(registry: Registry, store: Store, request: NightRequest, output: NightOutput) -> tuple[NightRun, ...]:
    """Return the suite's entries that this machine can run, with what a run of each would tell."""
    jobs = scheduler.jobs(registry, scheduler.entries(registry, [], [request.suite], request.request), None)
    planned = {}
    for job in jobs:
        if job.plan.refusal:
            output.note(f"not expected here: {_name(job.plan)}: {' '.join(job.plan.refusal.split())}")
        else:
            planned[_name(job.plan)] = job
    if not planned:
        raise UsageError(f"--suite {request.suite}: found no entry that this machine can run; see `show suites`")
    series = {name: series_of(job.plan).fingerprint() for name, job in planned.items()}
    points, nights = store.points(list(series.values())), [night for night in store.nights() if night != request.night]
    lasted = durations(request.runs, Path(request.suite).stem)
    work = []
    for name, job in planned.items():
        history, expected = points.get(series[name], ()), expected_seconds(lasted, name)
        is_new, unseen = _is_new(store, history, job.plan), nights_unseen(history, nights)
        costs = observations(level_points(history), SPEED)
        level = level_of(costs, costs[-1].node) if costs else None
        candidate = Candidate(name, expected, is_new, detectable(level) if level else None, unseen)
        work.append(NightRun(name, series[name], job, candidate))
    return tuple(work)


def _name(plan: Plan) -> str:
    name = plan.entry.name if plan.entry else plan.asked
    return name if plan.repeats == 1 else f"{name} ({plan.repeat})"


def _is_new(store: Store, points: Sequence[Point], plan: Plan) -> bool:
    checkout_source = source(checkout())
    changed = checkout_source.get("changed_files")
    now = Subject(
        framework_version=plan.implementation.version,
        environment=plan.environment.digest or None,
        packages=None,
        image=None,
        implementation=plan.implementation.digest,
        commit=checkout_source.get("commit"),
        is_dirty=None if changed is None else bool(changed),
        platform_version=plan.platform_version,
        formulas=(),
    )
    last = next((p for p in reversed(points) if p.is_of_trend), None)
    before = store.subject(last.subject) if last else None
    return is_other_build(before, now)


@contextmanager
def _only_one(runs: Path, suite: str) -> Iterator[None]:
    """Hold the suite's lock. Raises UsageError where another nightly of it runs, or the folder cannot be written."""
    path = runs / f".nightly_{suite}.lock"
    try:
        runs.mkdir(parents=True, exist_ok=True)
        file = environment_folder.lock_file(path)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}; name another folder with --runs") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"another nightly of the suite {suite} runs with {runs}; wait for its end") from None
        yield

"""Runs and judges one night of a suite: joins its store, state and machine for the command."""

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
from levelfield.errors import INTERRUPTED, RunFailed, UsageError
from levelfield.nights.build_pairs import (
    WEEKLY_NULL_PAIRS,
    Arm,
    ArmFailed,
    explain_slower_build,
    make_arms,
    null_arms,
    paired_records,
    shared_python,
    weekly_null_series,
)
from levelfield.nights.gate import (
    MAX_PAIRS_PER_NIGHT,
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
from levelfield.nights.machine_control import slow_machine_reason
from levelfield.nights.night_code import checkout_code, require_commit, require_trainings
from levelfield.nights.nightly import (
    Candidate,
    NightRun,
    NightState,
    NightTools,
    PairRun,
    entry_durations,
    expected_seconds,
    first_state,
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
from levelfield.run.provenance import source_state
from levelfield.run.runner import Listener
from levelfield.run.side_by_side import group_by_entry, require_separate_places, run_groups
from levelfield.run.turns import PairProgress
from levelfield.rundir.directory import utc_now
from levelfield.series.finding_forms import finding_line
from levelfield.series.findings import SPEED_FIGURE, Finding
from levelfield.series.level import level_of
from levelfield.series.pairs import MAX_NULL_PAIRS_PER_NIGHT, MAX_PAIRS, MIN_PAIRS
from levelfield.series.segments import level_points, night_of, observations
from levelfield.series.trigger import detectable_excess
from levelfield.specs.base import load
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
    """The output of a night while it runs: sentences, steps, and the progress of its pages."""

    def say(self, text: str) -> None: ...
    def note(self, text: str) -> None: ...  # a sentence that has to be read in the morning, too
    def listener(self) -> Listener: ...
    def announce_jobs(self, jobs: Iterator[scheduler.Job]) -> Iterator[scheduler.Job]: ...
    def show_status(self, result: Result) -> None: ...
    def run_entry(self, name: str, run: Callable[[NightOutput], int]) -> int: ...  # in a process of its own
    def show_entry_line(self, line: str) -> None: ...  # of such a process
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
    runs_control: bool = True  # measure whether the machine is slow
    runs_pairs: bool = True  # run pairs for suspicions
    max_pairs: int = MAX_PAIRS_PER_NIGHT  # for the most suspicious figures first
    at_once: int = 1  # entries side by side


@dataclass
class NightSession:
    """One night of one suite."""

    request: NightRequest
    suite: str
    store: Store
    registry: Registry
    output: NightOutput
    night_runs: tuple[NightRun, ...]
    state: NightState
    arms: dict[str, tuple[Arm, Arm]] = field(default_factory=dict)  # of pairs, by series
    is_interrupted: bool = False  # by the user, during the last entry
    # the time of the judgement up to this moment is in the state's used_seconds
    counted_until: float = field(default_factory=time.monotonic)

    @classmethod
    @contextmanager
    def open(cls, request: NightRequest, registry: Registry, output: NightOutput) -> Iterator[NightSession]:
        """Open the store and the state, and hold the suite's lock for the block.

        Raises UsageError, and CheckoutMoved where an earlier start of the night had other code.
        """
        suite = Path(request.suite).stem
        with _suite_lock(request.runs, suite), Store.open(request.store) as store:
            state = read_state(state_path(request.runs, request.night, suite))
            if state is not None:
                require_commit(state.code, state.is_complete, request.night, output.say)
            night_runs = _plan_night_runs(registry, store, request, output)
            if request.at_once > 1:
                require_separate_places(group_by_entry([run.job for run in night_runs]))
            code = checkout_code(run.job.plan for run in night_runs)
            if state is not None:
                require_trainings(state.code, code, state.is_complete, request.night)
            state = state or first_state(request.night, suite, utc_now(), night_runs, code)
            session = cls(request, suite, store, registry, output, night_runs, state)
            session.save(state)
            newest = store.newest_run_night()
            is_of_branch = branch_of(request.night) is not None
            if newest and not is_of_branch and request.night[:10] < newest[:10] and request.night not in store.nights():
                store.add_finding(request.night, set_back_finding(request.night, newest).model_dump(mode="json"))
            store.add_expected_entries(request.night, suite, {run.name: run.series for run in night_runs})
            yield session

    def save(self, state: NightState) -> None:
        self.state = state
        write_state(state_path(self.request.runs, self.request.night, self.suite), state)

    def run_entries(self) -> bool:
        """Run what waits. Return whether the night is complete; False: the user interrupted it.

        Raises CheckoutMoved where the checkout got other code meanwhile.
        """
        waits = any(entry.state == "waiting" for entry in self.state.entries)
        slow_reason = slow_machine_reason() if waits and self.request.runs_control else None
        tools = NightTools(
            self._run_job,
            lambda paths: self._record(paths, slow_reason),
            lambda run_id: RunPaths(self.request.runs.absolute() / run_id),
            time.monotonic,
            self.save,
            self.output.say,
            lambda: self.state.code is None or self.state.code.is_checked_out(),
            self._run_side_by_side if self.request.at_once > 1 else None,
            self.request.at_once,
        )
        run_entries(self.state, self.night_runs, self.request.budget, tools)
        if self.is_interrupted:
            return False
        self._require_code()
        return True

    def _require_code(self) -> None:
        """Raise CheckoutMoved where the checkout got other code, and UsageError where that of the night is lost."""
        require_commit(self.state.code, self.state.is_complete, self.request.night, self.output.say)

    def judge(self) -> GateReport:
        """Return the findings of the night, after pairs for suspicious figures, and store what changed.

        One more run of each build explains a slower series.
        """
        self.counted_until = time.monotonic()
        inputs = gate_input(self.store, self.request.night, self.suite)
        report = self._judge_with_pairs(inputs) if self.request.runs_pairs else judge_night(inputs)
        if self.request.runs_pairs:
            self._require_code()  # where a moved checkout ended the pairs, the night goes on from its own code
        findings = []
        for finding in report.findings:
            arms, is_slower = (
                self.arms.get(finding.series),
                finding.word == "regression" and finding.figure == SPEED_FIGURE,
            )
            is_explained = bool(finding.named or finding.explanation)
            if arms and is_slower and not is_explained and self._has_budget_for_pair(finding.series):
                self.output.say(f"why {finding.label} is slower: each build runs once more, and records steps")
                try:
                    finding = finding.model_copy(update={"explanation": explain_slower_build(arms, self.request.runs)})
                except ArmFailed as error:
                    self.output.note(f"why {finding.label} is slower is not known: {error}")
            findings.append(finding)
        for finding in new_findings(findings, inputs):
            self.store.add_finding(self.request.night, finding.model_dump(mode="json"))
        self._count_time()
        return replace(report, findings=tuple(findings))

    def _judge_with_pairs(self, inputs: GateInput) -> GateReport:
        """Return the findings after pairs, and the null pairs of the week, within the budgets."""
        seconds = {entry.series: entry.seconds for entry in self.state.entries if entry.series and entry.seconds}
        series = weekly_null_series(inputs, seconds)
        if series and not isinstance(self._build_here(series), str):
            weekly = partial(self._null_pairs, WEEKLY_NULL_PAIRS, WEEKLY_NULL_PAIRS)
            deque(PairRuns(weekly, self._has_budget_for_pair, self.output.note, "A/A pairs").pairs(series), 0)
            inputs = gate_input(self.store, self.request.night, self.suite)  # with these pairs
        suspicions = suspects(inputs)
        # the most suspicious figure of each series
        suspect_by_series = {suspect.series: suspect for suspect in reversed(suspicions)}
        pairs = PairRuns(
            lambda series: self._pairs(suspect_by_series[series]), self._has_budget_for_pair, self.output.note
        )
        more_null_pairs = partial(self._null_pairs, MIN_PAIRS, MAX_NULL_PAIRS_PER_NIGHT)
        null_pairs = PairRuns(more_null_pairs, self._has_budget_for_pair, self.output.note, "A/A pairs")
        suspect_by_figure = {(suspect.series, suspect.figure): suspect for suspect in suspicions}
        return judge_night(
            inputs,
            Confirmation(suspect_by_figure, pairs),
            lambda series, figure: ((getattr(a, figure), getattr(b, figure)) for a, b in null_pairs.pairs(series)),
            self.request.max_pairs,
            lambda finding: self.output.say(finding_line(finding)),
        )

    def _run_job(self, job: scheduler.Job) -> Result:
        listener, reference = self.output.listener(), partial(find_reference, self.registry)
        maker = certificate_maker.CertificateMaker(self.registry, self.request.runs, listener)
        (result,) = scheduler.run_jobs(
            self.output.announce_jobs(iter([job])), self.request.runs, listener, reference, maker.certify
        )
        self.output.show_status(result)
        self.is_interrupted = result.status.is_interrupted
        return result

    def _run_side_by_side(
        self,
        jobs: Sequence[scheduler.Job],
        begin: Callable[[scheduler.Job], bool],
        end: Callable[[scheduler.Job, Result | None], None],
    ) -> None:
        """Run entries side by side, after the certificates that they share.

        Raises RunFailed for an entry that has no result, once the others have theirs.
        """
        maker = certificate_maker.CertificateMaker(self.registry, self.request.runs, self.output.listener())
        certified_jobs = []
        for job in jobs:
            attempt = maker.certify(scheduler.add_stored_certificate(job, self.output.say))
            if attempt.interrupted_result:
                self.is_interrupted = True
                return
            certified_jobs.append(attempt.job)
        groups, without_result = group_by_entry(certified_jobs), list[str]()

        def run_group(name: str, jobs: Sequence[scheduler.Job]) -> int:
            def run(output: NightOutput) -> int:
                reference = partial(find_reference, self.registry)
                announced = output.announce_jobs(iter(jobs))
                results = scheduler.run_jobs(announced, self.request.runs, output.listener(), reference)
                return INTERRUPTED if [result for result in results if result.status.is_interrupted] else 0

            return self.output.run_entry(name, run)

        def begin_group(name: str) -> bool:
            return all([begin(job) for job in groups[name]])

        def end_group(name: str) -> None:
            for job in groups[name]:
                path = RunPaths(self.request.runs / job.plan.run_id).result
                result = load(Result, path) if path.exists() else None
                if result:
                    self.output.show_status(result)
                else:
                    without_result.append(name)
                end(job, result)

        codes = run_groups(groups, self.request.at_once, run_group, self.output.show_entry_line, begin_group, end_group)
        self.is_interrupted = INTERRUPTED in codes.values()
        if without_result and not self.is_interrupted:
            raise RunFailed(
                f"no result: {', '.join(dict.fromkeys(without_result))}; the same command in the same night runs what "
                "is missing"
            )

    def _record(self, paths: RunPaths, slow_reason: str | None) -> None:
        """Store a run. slow_reason: why the control found this machine slow; the gate names it."""
        night = self.request.night
        record = record_of(paths, purpose_of(night), night)
        self.store.add([record])
        if slow_reason:
            node, label = record.node, f"node {short_digest(record.node)}"
            bad = Finding(
                series="", label=label, figure=None, word="bad night", detail=slow_reason, night=night, node=node
            )
            self.store.add_finding(night, bad.model_dump(mode="json"))

    def _count_time(self, **changes: object) -> None:
        """Save the state with the time since the last call, or since the judgement began. changes: further fields."""
        now = time.monotonic()
        used = self.state.used_seconds + now - self.counted_until
        self.counted_until = now
        self.save(self.state.model_copy(update={"used_seconds": used, **changes}))

    def _has_budget_for_pair(self, series: str) -> bool:
        if self.request.budget is None:
            return True
        self._count_time()
        seconds = next((e.seconds or 0.0 for e in self.state.entries if e.series == series), 0.0)
        return self.state.used_seconds + 2 * seconds <= self.request.budget

    def _pairs(self, suspect: Suspect) -> Iterator[RecordPair] | str:
        """Return the pairs of a series, one after another, or why its accepted build cannot run."""
        run = next((run for run in self.night_runs if run.series == suspect.series), None)
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
        arms = make_arms(plan, build, tonight, shared_python(plan, before, subject), self.request.plugins)
        self.arms[suspect.series] = arms
        figure = suspect.figure.replace("_", " ")
        self.output.say(f"confirming {run.name}, {figure}: pairs of {before.commit[:12]} and tonight's build")
        earlier_records = [
            self.store.record(pair_run.run_id)
            for pair_run in self.state.confirmations
            if pair_run.series == suspect.series
        ]
        store_arm = partial(self._record_arm, suspect.series, "confirm")
        store_run = PairProgress(suspect.figure, self.output.say).wrap_store_run(store_arm, earlier_records)
        return paired_records(arms, MAX_PAIRS, self.request.runs, series_of(plan), store_run, earlier_records)

    def _null_pairs(self, min_pairs: int, max_pairs: int, series: str) -> Iterator[RecordPair] | str:
        """Return pairs of tonight's build and itself, one after another, or why there are none."""
        run = next(run for run in self.night_runs if run.series == series)
        subject = self._build_here(series)
        if isinstance(subject, str):
            return subject
        plan = run.job.plan
        arms = null_arms(plan, subject, self.request.plugins, self.output.say)
        if isinstance(arms, str):
            return arms
        self.output.say(f"A/A pairs of {run.name}: tonight's build on both sides")
        sides = {"a": "first side", "b": "second side"}
        progress = PairProgress(SPEED_FIGURE, self.output.say, min_pairs, max_pairs, sides)
        store_run = progress.wrap_store_run(partial(self._record_arm, series, "null"))
        return paired_records(arms, max_pairs, self.request.runs, series_of(plan), store_run)

    def _build_here(self, series: str) -> Subject | str:
        """Return the build that ran a series in this night, or why this checkout is not that build."""
        judged = judged_points(self.store.points([series])[series], self.request.night)
        points = (point for point in reversed(judged) if point.is_trend_point)
        tonight = next((point for point in points if night_of(point) == self.request.night), None)
        if tonight is None:
            return "the series has no run of this night"
        subject, current = self.store.subject(tonight.subject), source_state(checkout()).get("commit")
        if subject.commit and current and subject.commit != current:
            return f"the checkout has moved since the night ran, from {subject.commit[:12]} to {current[:12]}"
        return subject

    def _record_arm(self, series: str, kind: Literal["confirm", "null"], arm: str, paths: RunPaths) -> RunRecord:
        record = record_of(paths, PURPOSES[kind, arm], self.request.night)
        self.store.add([record])
        changes: dict[str, object] = {}
        if kind == "confirm":  # a night that goes on finds null pairs in the store
            run = PairRun.model_validate({"series": series, "arm": arm, "run_id": record.run_id})
            changes["confirmations"] = (*self.state.confirmations, run)
        self._count_time(**changes)
        return record


def _plan_night_runs(
    registry: Registry, store: Store, request: NightRequest, output: NightOutput
) -> tuple[NightRun, ...]:
    """Return the planned runs of the suite's entries that this machine can run, with how much each would tell."""
    jobs = scheduler.plan_jobs(registry, scheduler.list_entries(registry, [], [request.suite], request.request), None)
    planned = {}
    for job in jobs:
        if job.plan.refusal:
            output.note(f"not expected here: {_entry_name(job.plan)}: {' '.join(job.plan.refusal.split())}")
        else:
            planned[_entry_name(job.plan)] = job
    if not planned:
        raise UsageError(f"--suite {request.suite}: found no entry that this machine can run; see `show suites`")
    series = {name: series_of(job.plan).fingerprint() for name, job in planned.items()}
    points, nights = store.points(list(series.values())), [night for night in store.nights() if night != request.night]
    durations_by_entry = entry_durations(request.runs, Path(request.suite).stem)
    work = []
    for name, job in planned.items():
        history, expected = points.get(series[name], ()), expected_seconds(durations_by_entry, name)
        is_new, unseen = _is_new_build(store, history, job.plan), nights_unseen(history, nights)
        costs = observations(level_points(history), SPEED_FIGURE)
        level = level_of(costs, costs[-1].node) if costs else None
        candidate = Candidate(name, expected, is_new, detectable_excess(level) if level else None, unseen)
        work.append(NightRun(name, series[name], job, candidate))
    return tuple(work)


def _entry_name(plan: Plan) -> str:
    name = plan.entry.name if plan.entry else plan.asked
    return name if plan.repeats == 1 else f"{name} ({plan.repeat})"


def _is_new_build(store: Store, points: Sequence[Point], plan: Plan) -> bool:
    checkout_source = source_state(checkout())
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
    last = next((p for p in reversed(points) if p.is_trend_point), None)
    before = store.subject(last.subject) if last else None
    return is_other_build(before, now)


@contextmanager
def _suite_lock(runs: Path, suite: str) -> Iterator[None]:
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

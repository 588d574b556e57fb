"""Pairs of runs of the accepted build and of tonight's, interleaved in ABBA order on the same machine.

Both arms have the same free fields. They share one environment where the builds do, so that only code differs.

Null pairs have tonight's build in both arms, so that only the arms can differ. They run for a series whose pairs found
a regression, as far as it has too few of the last weeks, and once a week on each machine for the shortest series: a
bias that makes the new side faster hides regressions and shows in none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from levelfield.checkout import checkout
from levelfield.errors import RunFailed, UsageError
from levelfield.explain.explanation import compute_step_parts
from levelfield.explain.step_difference import step_difference
from levelfield.nights.gate_input import GateInput
from levelfield.run.builds import CommitBuild, checkout_build, run_with_build
from levelfield.run.provenance import checkout_commit
from levelfield.run.turns import StoreRun, run_alternating_pairs
from levelfield.rundir.directory import PAIRS_FOLDER
from levelfield.series.level import MIN_LEVEL_NIGHTS
from levelfield.series.segments import days_between, is_evidence, night_of
from levelfield.specs.plan import Plan
from levelfield.specs.record import RunRecord, Series, Subject
from levelfield.specs.vendor import FROM_USER

MAX_RUN_SECONDS = 6 * 3600.0
DAYS_BETWEEN_NULL_PAIRS = 7  # between weekly null pairs on one machine
WEEKLY_NULL_PAIRS = 4
EXPLAINED_STEPS = "10"  # of --explain-step


class ArmFailed(RunFailed):
    """A run of a pair gives no figure. The message names the build.

    arm: the name of its arm.
    """

    def __init__(self, arm: Arm, reason: str) -> None:
        super().__init__(f"{arm.build}: {reason}")
        self.arm = arm.name


@dataclass(frozen=True)
class Arm:
    """One build of a pair."""

    name: str  # `a` for the accepted build, `b` for tonight's
    build: CommitBuild
    arguments: tuple[str, ...]  # of the command that runs it


def make_arms(
    plan: Plan, build_a: CommitBuild, build_b: CommitBuild, python: str | None, plugins: Sequence[Path]
) -> tuple[Arm, Arm]:
    """Return both arms of a planned run. python: of both; None: each build makes its own environment.

    plugins: folders given to this command.
    """
    shared_arguments = (*case_arguments(plan), *(("--python", python) if python else ()))
    arguments: list[list[str]] = []
    for build in (build_a, build_b):
        arguments.append([*shared_arguments])
        for folder in (path.absolute() for path in plugins):  # of one inside the checkout, the build has its own
            inside = folder.is_relative_to(checkout())
            build_folder = build.folder / folder.relative_to(checkout()) if inside else folder
            arguments[-1] += ["--plugins", str(build_folder)]
    return Arm("a", build_a, tuple(arguments[0])), Arm("b", build_b, tuple(arguments[1]))


def shared_python(plan: Plan, accepted: Subject, tonight: Subject) -> str | None:
    """Return tonight's Python where the accepted build pins the same packages; None where each needs its own."""
    is_by_user = not plan.environment.requirements  # by --python: the user vouches for it
    has_same_packages = accepted.environment == tonight.environment and accepted.environment is not None
    return plan.environment.python if plan.runtime == "process" and (has_same_packages or is_by_user) else None


def case_arguments(plan: Plan) -> tuple[str, ...]:
    """Return options that plan the same work and free fields again, also with another commit's command line."""
    image = plan.container.image if plan.container else None
    options = [
        *("--case", plan.asked, "--scale", plan.scale, "--repeat", "1", "--no-certificate"),
        *plan.tuning.options,
        *(("--runtime", plan.runtime) if plan.runtime != "process" else ()),
        *(("--base-image", image.base.image) if image and image.base.source == FROM_USER else ()),
    ]
    for name, text in sorted(plan.tuning.environment.items()):
        options += ["--env", f"{name}={text}"]
    return tuple(options)


def paired_records(
    arms: Sequence[Arm], pairs: int, runs: Path, series: Series, store_run: StoreRun, finished: Sequence[RunRecord] = ()
) -> Iterator[tuple[RunRecord, RunRecord]]:
    """Run and yield one pair after another, the accepted build's record first. The runs are in a folder of `runs`.

    finished: records of an earlier start, in the order in which they ran; they do not run again. Raises ArmFailed if a
    run is not valid, or is of another series or commit.
    """
    by_name, remaining = {arm.name: arm for arm in arms}, list(finished)
    for pair in run_alternating_pairs(
        pairs, lambda name: remaining.pop(0) if remaining else _run_arm(by_name[name], runs, store_run)
    ):
        for arm, record in zip((by_name["a"], by_name["b"]), pair, strict=True):
            if record.word != "valid":
                raise ArmFailed(arm, f"{record.run_id} is {record.word}: {record.reason or 'no reason'}")
            if record.series.fingerprint() != series.fingerprint():
                raise ArmFailed(arm, f"{record.run_id} is of another series: {record.series.label}")
            _require_commit(arm, record.run_id, record.subject.commit)
        yield pair


def _require_commit(arm: Arm, run: str, commit: str | None) -> None:
    """Raise ArmFailed where the run is of another commit: the checkout was moved since the night ran."""
    if commit and arm.build.commit and commit != arm.build.commit:
        raise ArmFailed(
            arm, f"{run} is of commit {commit[:12]}, expected {arm.build.commit[:12]}: the checkout has moved"
        )


def explain_slower_build(arms: Sequence[Arm], runs: Path) -> tuple[str, ...]:
    """Run each build once more with recorded steps. Return why a step of the second takes longer, in sentences.

    No figure of the night rests on these runs. Raises ArmFailed where a build records no steps.
    """
    steps = []
    for arm in arms:
        try:
            paths = run_with_build(
                arm.build, (*arm.arguments, "--explain-step", EXPLAINED_STEPS), runs / PAIRS_FOLDER, MAX_RUN_SECONDS
            )
            steps.append(compute_step_parts(paths))
        except (RunFailed, UsageError) as error:
            raise ArmFailed(arm, str(error)) from None
    change = step_difference(*steps)
    if change.whole.ms <= (change.whole.half_interval_ms or 0.0):
        return (
            f"the recorded steps do not show why: {change.whole.before_ms:.2f} ms with {arms[0].build}, "
            f"{change.whole.after_ms:.2f} ms with {arms[1].build}",
        )
    return change.sentences


def _run_arm(arm: Arm, runs: Path, store_run: StoreRun) -> RunRecord:
    try:
        paths = run_with_build(arm.build, arm.arguments, runs / PAIRS_FOLDER, MAX_RUN_SECONDS)
    except RunFailed as error:
        raise ArmFailed(arm, str(error)) from None
    _require_commit(arm, "the run", checkout_commit(arm.build.folder))  # before it is stored as one of the arm
    return store_run(arm.name, paths)


def null_arms(
    plan: Plan, subject: Subject, plugins: Sequence[Path], say: Callable[[str], None]
) -> tuple[Arm, Arm] | str:
    """Return both arms with tonight's build, one from the cache like an accepted build, one from here; or why not."""
    if subject.commit is None or subject.is_dirty is not False:
        return "tonight's build has files that no commit has"
    try:
        first = checkout_build(subject.commit, say=say)
    except RunFailed as error:
        return str(error)
    second = CommitBuild(subject.commit, checkout())
    return make_arms(plan, first, second, shared_python(plan, subject, subject), plugins)


def weekly_null_series(inputs: GateInput, seconds: Mapping[str, float]) -> str | None:
    """Return the series for this week's null pairs: the fastest to run that is old enough for a level and ran tonight.

    None where a series of the same node had some within a week. seconds: how long the run of each took.
    """
    nodes = {point.node for series in seconds for point in inputs.points_tonight.get(series, ())}
    nulls = [point for (_, node), points in inputs.null_runs.items() if node in nodes for point in points]
    ages = [days_between(night_of(point), inputs.night) for point in nulls]
    if any(age is not None and age < DAYS_BETWEEN_NULL_PAIRS for age in ages):
        return None
    ran = [
        series
        for series, points in inputs.points_tonight.items()
        if series in seconds and any(map(is_evidence, points))
    ]
    old_enough = [s for s in ran if len({night_of(p) for p in inputs.points[s] if is_evidence(p)}) > MIN_LEVEL_NIGHTS]
    return min(old_enough, key=lambda series: seconds[series], default=None)

"""Pairs of runs of the accepted build and of tonight's, interleaved in ABBA order on the same machine.

Both arms have the same free fields. They share one environment where the builds do, so that only code differs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from levelfield.checkout import checkout
from levelfield.errors import RunFailed
from levelfield.run.builds import CommitBuild, run_of
from levelfield.run.turns import Keep, in_turns
from levelfield.rundir.directory import PAIRS
from levelfield.specs.plan import Plan
from levelfield.specs.record import RunRecord, Series, Subject
from levelfield.specs.vendor import GIVEN

MOST_SECONDS = 6 * 3600.0


class ArmFailed(RunFailed):
    """A run of a pair gives no figure. The message names the build; arm: the name of its arm."""

    def __init__(self, arm: Arm, why: str) -> None:
        super().__init__(f"{arm.build}: {why}")
        self.arm = arm.name


@dataclass(frozen=True)
class Arm:
    """One build of a pair. name: `a` for the accepted build, `b` for tonight's."""

    name: str
    build: CommitBuild
    arguments: tuple[str, ...]


def arms_of(
    plan: Plan, first: CommitBuild, second: CommitBuild, python: str | None, plugins: Sequence[Path]
) -> tuple[Arm, Arm]:
    """Return both arms of a planned run. python: of both; None: each build makes its own environment.

    plugins: folders given to this command.
    """
    own = ("--python", python) if python else ()
    a, b = ((*case_arguments(plan), *own, *_plugins(plugins, build)) for build in (first, second))
    return Arm("a", first, a), Arm("b", second, b)


def shared_python(plan: Plan, before: Subject, now: Subject) -> str | None:
    """Return tonight's Python where the accepted build pins the same packages; None where each needs its own."""
    is_given = not plan.environment.requirements  # by --python: the user answers for it
    same = before.environment == now.environment and before.environment is not None
    return plan.environment.python if plan.runtime == "process" and (same or is_given) else None


def case_arguments(plan: Plan) -> tuple[str, ...]:
    """Return options that plan the same work and free fields again, also with another commit's command line."""
    tuning, image = plan.tuning, plan.container.image if plan.container else None
    options = [
        *("--case", plan.asked, "--scale", plan.scale, "--repeat", "1", "--no-certificate"),
        *("--layout", str(tuning.layout), "--micro-batch", str(tuning.micro_batch)),
        *("--virtual-pipeline", str(tuning.virtual_pipeline), "--recompute", tuning.recompute),
        *("--attention", tuning.attention, "--compile" if tuning.compile else "--no-compile"),
        *(("--threads", str(tuning.threads)) if tuning.threads else ()),
        *(("--runtime", plan.runtime) if plan.runtime != "process" else ()),
        *(("--base-image", image.base.image) if image and image.base.source == GIVEN else ()),
    ]
    for name, text in sorted(tuning.environment.items()):
        options += ["--env", f"{name}={text}"]
    return tuple(options)


def _plugins(folders: Sequence[Path], build: CommitBuild) -> Iterator[str]:
    """Return --plugins for a build. A folder inside of the checkout is taken from the build's own."""
    for folder in (each.absolute() for each in folders):
        inside = folder.is_relative_to(checkout())
        yield from ("--plugins", str(build.folder / folder.relative_to(checkout()) if inside else folder))


def paired_records(
    arms: Sequence[Arm], pairs: int, runs: Path, series: Series, keep: Keep, done: Sequence[RunRecord] = ()
) -> Iterator[tuple[RunRecord, RunRecord]]:
    """Run and return one pair after another: the accepted build's record first. The runs are in a folder of `runs`.

    done: records of an earlier start, in the order in which they ran; they are not run again. Raises ArmFailed where a
    run is not valid or is of another series.
    """
    by_name, left = {arm.name: arm for arm in arms}, list(done)
    for a, b in in_turns(pairs, lambda name: left.pop(0) if left else _record(by_name[name], runs, keep)):
        _check(by_name["a"], a, series)
        _check(by_name["b"], b, series)
        yield a, b


def _record(arm: Arm, runs: Path, keep: Keep) -> RunRecord:
    try:
        paths = run_of(arm.build, arm.arguments, runs / PAIRS, MOST_SECONDS)
    except RunFailed as error:
        raise ArmFailed(arm, str(error)) from None
    return keep(arm.name, paths)


def _check(arm: Arm, record: RunRecord, series: Series) -> None:
    if record.word != "valid":
        raise ArmFailed(arm, f"{record.run_id} is {record.word}: {record.reason or 'no reason'}")
    if record.series.fingerprint() != series.fingerprint():
        raise ArmFailed(arm, f"{record.run_id} is of another series: {record.series.label}")

"""Pairs of runs of the accepted build and of tonight's, interleaved in ABBA order on the same machine.

Both arms have the same free fields. They share one environment where the builds do, so that only code differs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from statistics import fmean

from levelfield.checkout import checkout
from levelfield.errors import RunFailed
from levelfield.report.words import duration
from levelfield.run.builds import CommitBuild, run_of
from levelfield.rundir.directory import PAIRS
from levelfield.series.findings import FIGURES, figure_value, percent_change
from levelfield.series.pairs import FEWEST_PAIRS, MOST_PAIRS
from levelfield.series.segments import change_of, cost_of
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan
from levelfield.specs.record import Gated, RunRecord, Series, Subject
from levelfield.specs.vendor import GIVEN

Keep = Callable[[str, RunPaths], RunRecord]  # arm and run directory -> the record, stored with its purpose
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


def abba(pairs: int) -> Iterator[tuple[str, str]]:
    """Return the order of the arms of each pair: a b, b a, a b, ... A drift of the machine hits both alike."""
    for number in range(pairs):
        yield ("a", "b") if number % 2 == 0 else ("b", "a")


@dataclass
class PairProgress:
    """Says after each run of pairs: how many are done, its figure, the mean difference so far, and the time left.

    fewest, most: pairs. words: of the arms.
    """

    figure: Gated
    say: Callable[[str], None]
    fewest: int = FEWEST_PAIRS
    most: int = MOST_PAIRS
    words: Mapping[str, str] = field(default_factory=lambda: {"a": "accepted build", "b": "tonight's build"})
    clock: Callable[[], float] = time.monotonic
    _costs: dict[str, list[float | None]] = field(default_factory=lambda: {"a": [], "b": []})
    _began: float | None = None
    _timed: int = 0

    def keeping(self, keep: Keep, done: Sequence[RunRecord] = ()) -> Keep:
        """Return what keeps a run and then says it. done: runs of an earlier start."""
        for record, arm in zip(done, chain.from_iterable(abba(self.most)), strict=False):
            self._add(arm, record)
        self._began = self.clock()

        def kept(arm: str, paths: RunPaths) -> RunRecord:
            record = keep(arm, paths)
            self._add(arm, record)
            self._timed += 1
            self.say(self._line(arm, record))
            return record

        return kept

    def _add(self, arm: str, record: RunRecord) -> None:
        self._costs[arm].append(cost_of(getattr(record, self.figure), self.figure))

    def _line(self, arm: str, record: RunRecord) -> str:
        done = sum(map(len, self._costs.values()))
        value = f"{figure_value(getattr(record, self.figure), self.figure)} {FIGURES[self.figure]}"
        said = value if record.word == "valid" else record.word
        pairs = zip(self._costs["a"], self._costs["b"], strict=False)
        differences = [b - a for a, b in pairs if a is not None and b is not None]
        mean = percent_change(change_of(fmean(differences), self.figure)) if differences else None
        so_far = f"; mean difference {mean} of {len(differences)} pair{'s' * (len(differences) > 1)}" if mean else ""
        return (
            f"run {done} of {2 * self.fewest} to {2 * self.most}, {self.words[arm]}: {said}{so_far}{self._left(done)}"
        )

    def _left(self, done: int) -> str:
        """Return how long the further runs last, each as long as those before: of the fewest and of the most pairs."""
        each = (self.clock() - (self._began or 0.0)) / self._timed
        least, most = (max(0, 2 * pairs - done) * each for pairs in (self.fewest, self.most))
        if most <= 0:
            return ""
        return f"; {duration(least)} to {duration(most)} left" if least else f"; at most {duration(most)} left"


def paired_records(
    arms: Sequence[Arm], pairs: int, runs: Path, series: Series, keep: Keep, done: Sequence[RunRecord] = ()
) -> Iterator[tuple[RunRecord, RunRecord]]:
    """Run and return one pair after another: the accepted build's record first. The runs are in a folder of `runs`.

    done: records of an earlier start, in the order in which they ran; they are not run again. Raises ArmFailed where a
    run is not valid or is of another series.
    """
    by_name, left = {arm.name: arm for arm in arms}, list(done)
    for order in abba(pairs):
        found = {name: left.pop(0) if left else _record(by_name[name], runs, keep) for name in order}
        for name, record in found.items():
            _check(by_name[name], record, series)
        yield found["a"], found["b"]


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

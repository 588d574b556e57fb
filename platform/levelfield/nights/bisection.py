"""Searches the first slower build: halves a list of builds, and compares each with the good one by pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from levelfield.errors import DocumentError, RunFailed
from levelfield.nights.build_pairs import ArmFailed, make_arms, paired_records
from levelfield.plan.environment import plan_environment
from levelfield.run.builds import CommitBuild
from levelfield.run.runtimes.environments import use_environment
from levelfield.run.turns import PairProgress
from levelfield.series.pairs import (
    MAX_PAIRS,
    MIN_BISECTION_PAIRS,
    MIN_PAIRS,
    BuildVerdict,
    Pair,
    halfway_verdict,
    pairs_so_far,
)
from levelfield.specs.base import load
from levelfield.specs.implementation import ImplementationFile
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan
from levelfield.specs.record import GatedFigure, RunRecord
from levelfield.store.run_record import record_of, series_of

T = TypeVar("T")


@dataclass(frozen=True)
class Trial:
    """A build that was tried: its index in the list, and whether its pairs show it to be good or bad."""

    index: int
    verdict: BuildVerdict


@dataclass(frozen=True)
class BuildSearch:
    """The result of a search: the indices of the last good and the first bad build, and every trial in order.

    Builds between the two could not be decided.
    """

    last_good: int
    first_bad: int
    trials: tuple[Trial, ...]

    @property
    def undecided(self) -> tuple[int, ...]:
        return tuple(range(self.last_good + 1, self.first_bad))


def find_first_bad(builds: Sequence[T], judge_build: Callable[[T], BuildVerdict]) -> BuildSearch:
    """Return the first bad build of a list whose first is good and whose last is bad.

    The last one is tried first: without a difference between both ends there is nothing to find. A build that cannot be
    decided is left out, and its nearest neighbour is tried. Raises RunFailed where the last build is not bad.
    """
    trials = [Trial(len(builds) - 1, judge_build(builds[-1]))]
    if trials[0].verdict != "bad":
        raise RunFailed(
            f"bisect: the last build is {trials[0].verdict} in pairs with the first; expected it to be worse. "
            "Another case, or an idle machine, may show the difference"
        )
    good, bad = 0, len(builds) - 1
    while untried := [index for index in range(good + 1, bad) if index not in {trial.index for trial in trials}]:
        index = min(untried, key=lambda index: abs(2 * index - good - bad))  # nearest to the middle
        trials.append(Trial(index, judge_build(builds[index])))
        good = index if trials[-1].verdict == "good" else good
        bad = index if trials[-1].verdict == "bad" else bad
    return BuildSearch(good, bad, tuple(trials))


@dataclass
class BuildComparison:
    """Compares builds with a good one, by pairs of one planned case."""

    plan: Plan
    good: CommitBuild
    figure: GatedFigure
    runs: Path  # the folder of run directories
    plugins: Sequence[Path]  # the folders of --plugins
    say: Callable[[str], None]
    effect: float | None = None  # how much worse the last build is, as a cost; None until it was tried
    # by commit, the runs of its pairs; a record has every figure, so a search of another figure uses them again
    records: dict[str, list[RunRecord]] = field(default_factory=dict)

    def judge(self, build: CommitBuild) -> BuildVerdict:
        """Return whether the build is good or bad. `unknown`: the pairs do not show it, or it does not run.

        The last build of the list is tried first: its difference is the measure for the others.
        Raises RunFailed where the good build itself does not run.
        """
        try:
            pairs: list[Pair] = []
            for pair in self._pairs(build):
                pairs.append(pair)
                if self.effect is not None:
                    if (verdict := halfway_verdict(pairs, self.figure, self.effect)) != "unknown":
                        return verdict
                    continue
                ruling = pairs_so_far(pairs, self.figure)
                if ruling.word == "regression":
                    self.effect = ruling.excess
                    return "bad"
                if ruling.word != "more pairs":
                    return "good" if ruling.word == "no change" else "unknown"
            return "unknown"
        except ArmFailed as error:
            if error.arm == "a":
                raise RunFailed(
                    f"bisect: the first build does not run, so nothing can be held against it. {error}"
                ) from None
            self.say(str(error))
            return "unknown"

    def _pairs(self, build: CommitBuild) -> Iterator[Pair]:
        arms = make_arms(self.plan, self.good, build, self._shared_python(build), self.plugins)
        series, arm_names = series_of(self.plan), {"a": f"good build {self.good}", "b": f"build {build}"}
        min_pairs = MIN_PAIRS if self.effect is None else MIN_BISECTION_PAIRS
        progress = PairProgress(self.figure, self.say, min_pairs, arm_names=arm_names)
        records = self.records.setdefault(build.commit, [])

        def add_record(arm: str, paths: RunPaths) -> RunRecord:
            records.append(record_of(paths))
            return records[-1]

        earlier_records = tuple(records)
        for a, b in paired_records(
            arms, MAX_PAIRS, self.runs, series, progress.wrap_store_run(add_record, earlier_records), earlier_records
        ):
            yield getattr(a, self.figure), getattr(b, self.figure)

    def _shared_python(self, build: CommitBuild) -> str | None:
        """Return this checkout's Python where both builds pin its packages; None: each makes its own environment."""
        environment = self.plan.environment
        if not environment.requirements:
            return environment.python
        if self.plan.runtime != "process":
            return None
        kind, framework = self.plan.hardware.device_kind, self.plan.implementation.framework
        for folder in (self.good.folder, build.folder):
            try:
                manifest = load(ImplementationFile, folder / "models" / framework / "implementation.yaml")
                environment_plan = plan_environment(
                    manifest, kind, manifest.requirements[kind].environment_packages(), None, "process"
                )
            except (DocumentError, KeyError):
                return None
            if environment_plan.digest != environment.digest:
                return None
        with use_environment(environment, self.say):
            return environment.python

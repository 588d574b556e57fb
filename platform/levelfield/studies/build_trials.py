"""Whether a build is worse than a good one, by pairs of runs on this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from levelfield.compare.pairs import MOST_PAIRS, PairedTest
from levelfield.errors import DocumentError, RunFailed
from levelfield.plan.environment import environment_of
from levelfield.run.builds import Build
from levelfield.run.runtimes.environments import environment_in_use
from levelfield.specs.base import load
from levelfield.specs.implementation import ImplementationFile
from levelfield.specs.plan import Plan
from levelfield.specs.record import Gated
from levelfield.store.run_record import record_of, series_of
from levelfield.studies.bisection import Answer
from levelfield.studies.build_pairs import arms_of, paired_records

Say = Callable[[str], None]
ANSWERS: dict[str, Answer] = {"regression": "bad", "no change": "good"}


@dataclass(frozen=True)
class BuildTrials:
    """Pairs of one planned case with a good build. plugins: folders that were given to the command."""

    plan: Plan
    good: Build
    figure: Gated
    runs: Path
    plugins: Sequence[Path]
    say: Say

    def answer(self, build: Build) -> Answer:
        """Return whether the build is good or bad; `unknown` where the pairs do not show it, or it does not run."""
        test = PairedTest(self.figure)
        arms = arms_of(self.plan, self.good, build, self._python(build), self.plugins)
        pairs = paired_records(arms, MOST_PAIRS, self.runs, series_of(self.plan), lambda arm, paths: record_of(paths))
        word = "more pairs"
        try:
            for a, b in pairs:
                ruling = test.add(getattr(a, self.figure), getattr(b, self.figure))
                word = ruling.word
                if ruling.is_final:
                    break
        except RunFailed as error:
            self.say(f"{build}: {error}")
        return ANSWERS.get(word, "unknown")

    def _python(self, build: Build) -> str | None:
        """Return this checkout's Python where both builds pin its packages; None where each makes its own."""
        environment = self.plan.environment
        if not environment.requirements:
            return environment.python
        if self.plan.runtime != "process" or {self._pins(b) for b in (self.good, build)} != {environment.digest}:
            return None
        with environment_in_use(environment, self.say):
            return environment.python

    def _pins(self, build: Build) -> str | None:
        """Return the digest of the environment that a build would make; None where its manifest cannot be read."""
        kind, framework = self.plan.hardware.device_kind, self.plan.implementation.framework
        try:
            manifest = load(ImplementationFile, build.folder / "models" / framework / "implementation.yaml")
            return environment_of(manifest, kind, manifest.requirements[kind].packages, None, "process").digest
        except (DocumentError, KeyError):
            return None

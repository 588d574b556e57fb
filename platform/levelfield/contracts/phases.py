"""What a feature does in each run: before the training, and with the files of a run that has its result.

`run/runner.py` lists the features and calls their phases; it knows nothing else of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from levelfield.contracts.execution import Launcher, Outcome, ReadyRuntime, Say
from levelfield.contracts.vendor import Vendor
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan


@dataclass(frozen=True)
class PreparedRun:
    """A run before its training: its environment is ready, and its devices are locked."""

    plan: Plan
    vendor: Vendor
    paths: RunPaths
    runtime: ReadyRuntime
    launcher: Launcher
    say: Say


class RunFeature:
    """The phases of a feature. A phase that a feature does not define does nothing."""

    def before_training(self, run: PreparedRun) -> Outcome | None:
        """Do what comes before the training. Return an outcome where the training must not start.

        Raises KeyboardInterrupt where the user ended it.
        """
        return None

    def after_run(self, plan: Plan, paths: RunPaths) -> None:
        """Write the feature's file from the raw files of a run that has its result, now or by `evidence collect`."""

    def hint(self, paths: RunPaths) -> str | None:
        """Return a sentence for the user at the end of a run; None without one."""
        return None

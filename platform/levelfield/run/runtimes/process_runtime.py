"""Runtimes `process` and `inside`: a rank is a process of this machine, in the framework's own Python environment.

`inside` is for a machine that is already a container: the vendor's image has the framework, and no environment is
created.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from levelfield.checkout import checkout
from levelfield.contracts.command import completed
from levelfield.contracts.execution import NodeWork
from levelfield.run.runtimes.environments import environment_in_use
from levelfield.run.runtimes.rank_work import LISTING, packages, rank_work, ranks_of, worker_path
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan

LISTING_SECONDS = 60.0


class ProcessRuntime:
    """The runtime of processes: it builds argv and variables of each rank. `environments` creates the environment."""

    name = "process"

    @contextmanager
    def in_use(self, plan: Plan, say: Callable[[str], None]) -> Iterator[ProcessRuntime]:
        with environment_in_use(plan.environment, say):
            yield self

    def node(self, plan: Plan, paths: RunPaths, node_rank: int) -> NodeWork:
        ranks = ranks_of(plan, node_rank)
        work = (rank_work(plan, paths, rank, "127.0.0.1", plan.hardware.visible) for rank in ranks)
        return NodeWork(node_rank, "127.0.0.1", tuple(work))

    def output(self, plan: Plan, argv: Sequence[str], environment: dict[str, str], seconds: float) -> str:
        done = completed(argv, seconds, {**inherited(), **worker_path(checkout()), **environment})
        done.check_returncode()
        return done.stdout

    def keep(self, plan: Plan, paths: RunPaths) -> None:
        """Write nothing: a process has no further files."""

    def identity(self, plan: Plan) -> dict[str, Any]:
        try:
            listed = packages(self.output(plan, [plan.environment.python, *LISTING], {}, LISTING_SECONDS))
        except (OSError, subprocess.SubprocessError, ValueError):
            return {"environment_packages": None}
        return {"environment_packages": listed}


class InsideRuntime(ProcessRuntime):
    """The runtime of processes on a machine that is already a container."""

    name = "inside"

    def identity(self, plan: Plan) -> dict[str, Any]:
        """Return the packages, and the files that identify this machine as a container."""
        signs = [path for path in ("/.dockerenv", "/run/.containerenv") if Path(path).exists()]
        return {**super().identity(plan), "container": {"signs": signs}}


def inherited(environment: dict[str, str] | None = None) -> dict[str, str]:
    """Return the user's variables, without those that would change the training's Python or imitate a launcher."""
    given = dict(os.environ) if environment is None else environment
    return {key: value for key, value in given.items() if key not in REMOVED_VARIABLES}


REMOVED_VARIABLES = (
    "PYTHONPATH",
    "PYTHONHOME",
    "VIRTUAL_ENV",
    "__PYVENV_LAUNCHER__",
    "LEVELFIELD_BOOTSTRAPPED",
    "GROUP_RANK",
    "TORCHELASTIC_RUN_ID",
)

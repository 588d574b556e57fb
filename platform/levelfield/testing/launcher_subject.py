"""The checked launcher: its plans, requests and runs of the simulated training, and what a run left behind."""

from __future__ import annotations

import json
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from levelfield.catalog.registry import Registry
from levelfield.contracts.execution import Request
from levelfield.errors import LevelfieldError
from levelfield.plan.request import Entry, UserRequest
from levelfield.run import runner, scheduler
from levelfield.run.launchers import means
from levelfield.run.runner import Listener
from levelfield.rundir.directory import new_run_id
from levelfield.rundir.follower import Progress
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan
from levelfield.specs.result import Result
from levelfield.specs.site import LaunchPlan
from levelfield.specs.tuning import TuningChoice
from levelfield.testing.findings import Fails
from levelfield.testing.rehearsal import DRILL

SECRET = "a-conformance-value-that-no-file-may-hold"
MARK = "DRILL_MARK"
PATIENCE_SECONDS = 10.0  # for processes that were ended and have not gone yet
Left = Callable[[str], Sequence[str]]


@dataclass(frozen=True)
class LaunchedRun:
    """A run that has ended. outcome: the content of outcome.json. left: processes that still run."""

    result: Result
    paths: RunPaths
    outcome: dict[str, Any]
    left: tuple[str, ...]

    @property
    def nodes(self) -> list[dict[str, Any]]:
        return list(self.outcome.get("nodes", ()))


@dataclass
class LauncherSubject:
    """The state that all checks of one launcher share. nodes: 2 or more. runs: a folder that the nodes see, if they
    must. left: returns the processes on the nodes whose variable DRILL_MARK has a value.
    held: what exists as long as the subject, such as a temporary folder."""

    launch: LaunchPlan
    runs: Path
    plugins: tuple[Path, ...] = ()
    nodes: int = 2
    left: Left = field(default=lambda mark: processes_here(mark))
    held: object = None
    kept: dict[str, LaunchedRun] = field(default_factory=dict)

    def plan(self, fault: str = "none", mark: str = "none") -> Plan:
        """Return the plan of the simulated training. Raises Fails where the platform refuses it."""
        variables = {"DRILL_FAULT": fault, MARK: mark, "DRILL_TOKEN": SECRET}
        python = self.launch.site.python or sys.executable
        choice = TuningChoice(environment=variables)
        request = UserRequest("smoke", choice, python=python, launch=self.launch, preflight=False)
        registry = Registry([DRILL, DRILL / "hosts", *self.plugins])
        try:
            (job,) = scheduler.jobs(registry, [Entry(f"drill:drill:drill:{self.nodes}:1", request)], None)
        except LevelfieldError as error:
            raise Fails(f"the platform refused the plan: {error}", "correct the site's file or the hosts") from None
        self._vendor = job.vendor
        return job.plan

    def request(self) -> Request:
        """Return a request of a plan that is always the same."""
        plan = self.plan().model_copy(update={"run_id": "20260102T030405Z_drill_drill_drill_abcdef"})
        runtime, launcher = means(plan)
        return launcher.request(plan, RunPaths(self.runs / plan.run_id), runtime)

    def run(self, fault: str, interrupted_at: int | None = None) -> LaunchedRun:
        """Run once for each fault. interrupted_at: the step after which the user interrupts."""
        if fault not in self.kept:
            self.kept[fault] = self._run(fault, interrupted_at)
        return self.kept[fault]

    def _run(self, fault: str, interrupted_at: int | None) -> LaunchedRun:
        mark = uuid.uuid4().hex
        plan = self.plan(fault, mark)
        plan = plan.model_copy(update={"run_id": new_run_id("drill", "drill", f"{plan.hardware.vendor}-{fault}")})
        done: list[int] = []

        def step(plan: Plan, progress: Progress) -> None:
            if interrupted_at is not None and not done and progress.step >= interrupted_at:
                done.append(progress.step)
                raise KeyboardInterrupt

        listener = Listener(lambda said: None, step)
        result = runner.run(plan, self._vendor, self.runs, listener, "conformance")
        paths = RunPaths(self.runs / plan.run_id)
        outcome = json.loads(paths.outcome.read_text(encoding="utf-8"))
        return LaunchedRun(result, paths, outcome, tuple(self._left(mark)))

    def _left(self, mark: str) -> Sequence[str]:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (found := self.left(mark)) and time.monotonic() < deadline:
            time.sleep(0.1)
        return found


def processes_here(mark: str) -> Sequence[str]:
    """Return the processes of this machine with a mark."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == mark:
                found.append(f"process {process.pid} ({process.name()})")
    return found

"""Nights of `nightly run` in which the training alone is replaced: a replay writes what the ranks would have written.

The command line, plans, states, the store, judgement, pairs, tickets, words and exit codes are the platform's own.
Replaced are the run of a plan (raw files by the worker's recorder and a made-up clock, from which the platform computes
the result), the subprocess of a pair's build, the measured control of the machine, and the checkout: a small repository
has one commit for each change. Each night has its own date, which the replayed provenance states.
"""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from levelfield.cli import levels_command
from levelfield.cli.main import main
from levelfield.errors import RunFailed
from levelfield.judge.promotion import add_noise, make_reference
from levelfield.nights import build_pairs, machine_control, night_code, night_session
from levelfield.run import builds, runner
from levelfield.run.builds import CommitBuild
from levelfield.run.runner import finish
from levelfield.rundir.directory import write_json
from levelfield.specs.base import dump
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan
from levelfield.specs.reference import Reference
from levelfield.specs.result import Result
from plans import PLUGINS
from recorded_runs import seal_again, write_run

STEP_NS = 500_000_000
QUIET = {"copy": 100.0, "product": 50.0}  # the rates of the control
NOISE = 0.003


class Killed(BaseException):
    """The machine is switched off."""


@dataclass
class Machine:
    """The machine and its builds, as events change them. cost: of a step, as a factor, by the build's commit."""

    costs: dict[str, float] = field(default_factory=dict)
    driver: str = "550"
    driver_cost: float = 1.0
    load_cost: float = 1.0  # of what others run
    loss_factor: float = 1.0
    pair_noise: float = NOISE  # of each run of a pair
    killed_at: int | None = None  # the entry of the night, from 1


@dataclass
class ReplayedNights:
    """A repository, a store and runs in one folder. runs_made: how many trainings were replayed."""

    folder: Path
    patch: pytest.MonkeyPatch
    machine: Machine = field(default_factory=Machine)
    now: datetime = datetime(2026, 3, 2, 1, tzinfo=timezone.utc)
    runs_made: int = 0
    references: dict[str, Reference] = field(default_factory=dict)  # by the digest of the work
    plugins: Path = PLUGINS
    # of all nights: a night that goes on after it was killed makes pairs of a plan that it does not run again
    _plans: list[Plan] = field(default_factory=list)
    _source: random.Random = field(default_factory=lambda: random.Random(56))
    _entry: int = 0

    def __post_init__(self) -> None:
        self.code.mkdir()
        (self.code / "run_benchmarks.py").write_text("# the checkout of a build is known by this file\n")
        self._git("init", "-q")
        for module in (night_session, night_code, builds, build_pairs):
            self.patch.setattr(module, "checkout", lambda: self.code)
        self.patch.setattr(runner, "run", self._run)
        self.patch.setattr(build_pairs, "run_with_build", self._run_of_pair)
        self.patch.setattr(machine_control, "measure_control_rates", self._control_rates)
        self.patch.setattr(machine_control, "PAUSE_SECONDS", 0.0)
        for module in (levels_command, night_session):
            self.patch.setattr(module, "utc_now", lambda: self.now.isoformat())
        for name, value in {
            "FAKE_DEVICES": "1", "XDG_CACHE_HOME": str(self.folder / "cache"),
            "LEVELFIELD_STORE": str(self.folder / "results.sqlite"), "LEVELFIELD_RUNS": str(self.folder / "runs"),
        }.items():  # fmt: skip
            self.patch.setenv(name, value)

    @property
    def code(self) -> Path:
        return self.folder / "code"

    def _git(self, *words: str) -> str:
        who = ("-c", "user.name=Ann", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        argv = ["git", *who, "-C", str(self.code), *words]
        return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()

    def commit(self, subject: str, cost: float | None = None) -> str:
        """Commit a build. cost: of its steps, as a factor; None: that of the build before."""
        costs = self.machine.costs
        before = next(reversed(costs.values())) if costs else 1.0
        self._git("add", "-A")
        self._git("commit", "-q", "--allow-empty", "-m", subject)
        commit = self._git("rev-parse", "HEAD")
        costs[commit] = before if cost is None else cost
        return commit

    def command(self, capture: Callable[[], Any], *arguments: str) -> tuple[int, str]:
        """Run a command line in this process. Return its exit code and what it printed."""
        capture()
        code = main([*arguments])
        out, err = capture()
        return code, str(out) + str(err)

    def night(self, capture: Callable[[], Any], date: str, suite: Path, *more: str) -> tuple[int, str]:
        """Run a night as a timer starts it; return the exit code and the mail."""
        self._entry, self.now = 0, datetime.fromisoformat(f"{date}T01:00:00+00:00")
        how = ("--plugins", str(self.plugins), *more)
        return self.command(capture, "nightly", "run", "--suite", str(suite), "--night", date, *how)

    def _control_rates(self) -> dict[str, float]:
        return {name: rate / self.machine.load_cost * (1 + self._source.gauss(0, 1e-3)) for name, rate in QUIET.items()}

    def _run(self, plan: Plan, vendor: object, runs: Path, listener: object, *more: object) -> Result:
        self._entry += 1
        paths = RunPaths(runs.absolute() / plan.run_id)
        if self._entry == self.machine.killed_at:
            paths.events.mkdir(parents=True)
            raise Killed
        self._plans.append(plan)
        return self._replay(paths, plan, next(reversed(self.machine.costs)), NOISE)

    def _run_of_pair(self, build: CommitBuild, arguments: Any, runs: Path, limit_seconds: float) -> RunPaths:
        if "--explain-step" in arguments:
            raise RunFailed("a replay records no steps")
        options = {build_pairs.case_arguments(plan): plan for plan in self._plans}
        plan = next(plan for words, plan in options.items() if arguments[: len(words)] == words)
        paths = RunPaths(runs.absolute() / f"{plan.run_id}_pair{self.runs_made:04d}")
        plan = plan.model_copy(update={"run_id": paths.root.name, "entry": None})
        self._replay(paths, plan, build.commit, self.machine.pair_noise)
        return paths

    def _replay(self, paths: RunPaths, plan: Plan, commit: str, noise: float) -> Result:
        machine = self.machine
        self.runs_made += 1
        self.now += timedelta(minutes=2)
        cost = machine.costs[commit] * machine.driver_cost * machine.load_cost * (1 + self._source.gauss(0, noise))
        write_run(paths, plan, round(STEP_NS * cost), machine.loss_factor)
        provenance = {
            "time": self.now.isoformat(),
            "source": {"commit": commit, "changed_files": []},
            "machine": {"name": "node", "identity": "node", "usable_cores": 2, "memory_bytes": 2**34},
            "vendor_software": {"driver": machine.driver},
            "environment_packages": {"fake": "1.2.3"},
        }
        write_json(paths.provenance, provenance)
        if reference := self.references.get(plan.work_digest):
            paths.reference.write_text(dump(reference))
        seal_again(paths)
        return finish(paths)

    def promote(self, runs: list[str]) -> None:
        """Make the reference of the later nights from a run, with the noise of another one."""
        first, twin = (RunPaths(self.folder / "runs" / run) for run in runs)
        reference = add_noise(make_reference(first, "a test"), twin)
        self.references[json.loads(first.plan.read_text())["work_digest"]] = reference

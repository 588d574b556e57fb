"""What is shown as the latest of a series is tonight's own run, in each place, whatever ran after it in the night.

Pairs end with the older build after an even number of them, a bisection ends with any build, and a killed night leaves
a run without a result. Tonight's run is half as fast as the nights before, so a wrong one shows in every place.
"""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from levelfield.cli.main import main
from levelfield.nights.nightly import NightState, PairRun, state_path, write_state
from levelfield.pages.content import read_content
from levelfield.pages.first_view import read_trainings
from levelfield.pages.series_history import summary_of
from levelfield.run.runner import finish
from levelfield.rundir.directory import PAIRS_FOLDER
from levelfield.specs.paths import RunPaths
from levelfield.specs.record import Purpose, RunRecord
from levelfield.store.database import Store
from levelfield.store.run_record import record_of
from recorded_runs import BEGIN_NS, change_steps, seal_again

FIRST = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
NIGHT, QUIET = "2026-01-04", 2
ABBA = "abbaabba"


@dataclass
class Machine:
    """A folder of runs and a store, as a night leaves them. Runs begin a minute after one another.

    fast, slow: finished runs, of which the others are copies.
    """

    fast: RunPaths
    slow: RunPaths
    runs: Path
    store: str
    minutes: int = 0
    records: list[RunRecord] = field(default_factory=list)
    confirmations: list[PairRun] = field(default_factory=list)

    def run(self, night: int, of: RunPaths, into: str = "", is_killed: bool = False) -> RunPaths:
        self.minutes += 1
        began = FIRST + timedelta(days=night, minutes=self.minutes)
        run_id = f"{began:%Y%m%dT%H%M%SZ}_tiny_fake_fake_{self.minutes:06x}"
        paths = RunPaths(Path(shutil.copytree(of.root, self.runs / into / run_id)))
        for path in (paths.plan, paths.job, paths.result):
            path.write_text(path.read_text().replace(self.fast.root.name, run_id))
        seal_again(paths)
        if is_killed:
            paths.result.unlink()
            paths.outcome.unlink()
        os.utime(paths.plan, (began.timestamp(), began.timestamp()))
        return paths

    def keep(self, paths: RunPaths, purpose: Purpose, night: str) -> None:
        self.records.append(record_of(paths, purpose, night))

    def stored(self) -> Store:
        store = Store.open(self.store)
        store.add(self.records)
        return store

    def quiet_nights(self) -> None:
        for night in range(QUIET):
            self.keep(self.run(night, self.fast), "nightly", f"{FIRST + timedelta(days=night):%Y-%m-%d}")

    def nights(self) -> str:
        """Quiet nights, then tonight's run, of half their speed. Return its id."""
        self.quiet_nights()
        tonight = self.run(QUIET, self.slow)
        self.keep(tonight, "nightly", NIGHT)
        return tonight.root.name

    def pairs(self, count: int = 4) -> None:
        """The pairs of tonight: A is the older, faster build, and runs last."""
        for arm in ABBA[: 2 * count]:
            paths = self.run(QUIET, self.slow if arm == "b" else self.fast, PAIRS_FOLDER)
            self.keep(paths, "confirm-a" if arm == "a" else "confirm-b", NIGHT)
            run = PairRun.model_validate({"series": "s", "arm": arm, "run_id": paths.root.name})
            self.confirmations.append(run)
        state = NightState(night=NIGHT, suite="x", began=FIRST.isoformat(), entries=())
        state = state.model_copy(update={"confirmations": tuple(self.confirmations)})
        write_state(state_path(self.runs, NIGHT, "x"), state)


def after_pairs(machine: Machine) -> str:
    tonight = machine.nights()
    machine.pairs()
    return tonight


def after_a_bisection(machine: Machine) -> str:
    """Its runs are in no store."""
    tonight = after_pairs(machine)
    for of in (machine.fast, machine.slow, machine.slow, machine.fast):
        machine.run(QUIET, of, into=PAIRS_FOLDER)
    return tonight


def after_a_killed_night(machine: Machine) -> str:
    """A run was killed, and tonight's was made by the second start; that was killed among its pairs."""
    machine.quiet_nights()
    machine.run(QUIET, machine.fast, is_killed=True)
    tonight = machine.run(QUIET, machine.slow)
    machine.keep(tonight, "nightly", NIGHT)
    machine.pairs(count=1)
    machine.run(QUIET, machine.fast, PAIRS_FOLDER, is_killed=True)
    return tonight.root.name


@dataclass
class Places:
    """What each place shows: its name, with the id or the tokens/s of the run."""

    machine: Machine
    command: Callable[..., str]

    def all(self) -> dict[str, Any]:
        exported = list(csv.DictReader(io.StringIO(self.command("store", "export", "--format", "csv"))))
        history = json.loads(self.command("nightly", "history", "tiny", "--json"))
        with Store.open(self.machine.store) as store:
            content = read_content(store)
            (runs,) = content.series.values()
            summary = summary_of(runs)
            (training,) = read_trainings(content, store)
            ((last,),) = store.read(lambda c: c.exec_driver_sql("SELECT last_began FROM v_series").all())
            return {
                "overview page": training.contenders[0].side.first.run_id if training.contenders else None,
                "case page": summary.latest.run_id if summary.latest else None,
                "compare --matrix": self.matrix("--runs", str(self.machine.runs)),
                "compare --matrix of the store": self.matrix("--store", self.machine.store),
                "store export": exported[-1]["run_id"],
                "report latest": json.loads(self.command("report", "latest", "--json"))[0]["run_id"],
                "latest of the store": store.find("latest"),
                "nightly history": history[0]["figures"][0]["nights"][-1][2],
                "v_series": next(p.run_id for p in runs.points if p.began == last),
            }

    def matrix(self, *where: str) -> str:
        (row,) = json.loads(self.command("compare", "--matrix", "framework", *where, "--json"))["rows"]
        (run_id,) = row["cells"]["fake peak"]["runs"]
        return str(run_id)


@pytest.fixture
def places(
    run: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Places:
    slow = RunPaths(Path(shutil.copytree(run.root, tmp_path / "slow" / run.root.name)))
    for rank in (0, 1):
        change_steps(slow, lambda event: event.update(end_ns=2 * event["end_ns"] - BEGIN_NS), rank)
    finish(run)
    finish(slow)
    machine = Machine(run, slow, tmp_path / "machine", str(tmp_path / "results.sqlite"))
    monkeypatch.setenv("LEVELFIELD_STORE", machine.store)
    monkeypatch.setenv("LEVELFIELD_RUNS", str(machine.runs))

    def command(*arguments: str) -> str:
        capsys.readouterr()
        assert main([*arguments]) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    return Places(machine, command)


@pytest.mark.parametrize("subject", [after_pairs, after_a_bisection, after_a_killed_night])
def test_the_latest_is_tonights_run_in_each_place(subject: Callable[[Machine], str], places: Places) -> None:
    tonight = subject(places.machine)
    with places.machine.stored() as store:
        rate = store.record(tonight).tokens_per_second_per_device
    for place, output in places.all().items():
        assert output in (tonight, rate), (place, output, tonight, rate)

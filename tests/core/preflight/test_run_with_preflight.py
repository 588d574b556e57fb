"""A run that begins with a preflight: what it keeps and shows, and when it trains nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from levelfield.cli.main import main
from levelfield.judge.collector import collect
from levelfield.plan.request import UserRequest
from levelfield.plan.resolution import plan_preflight
from levelfield.preflight import preflight_run
from levelfield.rundir.seal import seal_finding
from levelfield.specs.base import dump
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import PreflightPlan
from levelfield.specs.preflight_report import NodeReport, PreflightFinding, PreflightReport
from levelfield.specs.site import Host, LaunchPlan, Site
from plans import PLUGINS

BUSY = PreflightFinding(kind="others", nodes=("node0",), figure="load", sentence="node0: other programs used 3 cores")
SLOW = PreflightFinding(
    kind="slow", nodes=("node0",), figure="matmul", sentence="node0: matmul is 40% below the median"
)
Run = Callable[..., tuple[int, Any]]


def report(**fields: Any) -> PreflightReport:
    head = {"run_id": "p", "at": "2026-11-22T00:00:00+00:00", "launcher": "local", "framework": "fake 1", "short": True}
    return PreflightReport(**{**head, "word": "in line", "nodes": (NodeReport(node_rank=0, name="node0"),), **fields})


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """run(report, *arguments): the exit code and the result of a run whose preflight gives this report."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("FAKE_DEVICES", "1")

    def start(report: PreflightReport, *arguments: str) -> tuple[int, Any]:
        monkeypatch.setattr(preflight_run, "run_preflight", lambda *inputs: report)
        case = ["--case", "tiny:fake:F1", "--scale", "smoke", "--python", sys.executable, "--json"]
        code = main([*case, "--plugins", str(PLUGINS), "--runs", str(tmp_path / "runs"), *arguments])
        return code, json.loads(capsys.readouterr().out)[0]

    return start


def only(tmp_path: Path) -> RunPaths:
    [folder] = (tmp_path / "runs").iterdir()
    return RunPaths(folder)


def test_a_run_keeps_its_preflight_under_the_seal_and_shows_it(run: Run, tmp_path: Path) -> None:
    preflight = report(word="out of line", findings=(SLOW,))
    code, result = run(preflight, "--preflight")
    assert code == 0 and result["status"]["word"] == "valid"  # a slow node is named and stops nothing
    assert result["preflight"] == preflight.sentence
    paths = only(tmp_path)
    assert f"| preflight | {preflight.sentence} |" in paths.report.read_text()
    assert seal_finding(paths).word == "sealed"
    paths.preflight.write_text(dump(report()))
    assert seal_finding(paths).word == "tampered"
    assert "preflight.json differs" in str(seal_finding(paths).reason)
    paths.preflight.write_text("{")
    assert "damaged" in str(collect(paths).preflight)


def test_without_the_option_a_run_of_this_machine_has_none(run: Run, tmp_path: Path) -> None:
    _, result = run(report())
    assert result["preflight"] is None and not only(tmp_path).preflight.exists()


def test_others_refuse_a_run_that_wants_a_quiet_machine(run: Run, tmp_path: Path) -> None:
    code, result = run(report(findings=(BUSY,)), "--quiet-machine")
    assert (code, result["status"]["word"], result["steps_done"]) == (3, "not-run", 0)
    assert BUSY.sentence in result["status"]["evidence"] and "quiet machine" in result["status"]["evidence"]
    assert only(tmp_path).preflight.exists() and seal_finding(only(tmp_path)).word == "sealed"


@pytest.mark.parametrize("option", ["--preflight", pytest.param("--quiet-machine", marks=pytest.mark.thorough)])
def test_others_are_a_remark_elsewhere_and_a_slow_node_refuses_nothing(run: Run, option: str) -> None:
    preflight = report(findings=(BUSY,) if option == "--preflight" else (SLOW,))
    assert run(preflight, option)[1]["status"]["word"] == "valid"


def test_an_interrupted_preflight_interrupts_the_run(run: Run) -> None:
    code, result = run(report(word="failed", evidence="interrupted; interrupted by the user"), "--preflight")
    assert code == 130 and result["status"]["failure"] == "interrupted" and result["steps_done"] == 0


def test_a_failed_preflight_stops_the_run_before_the_training(run: Run, tmp_path: Path) -> None:
    failed = report(word="failed", evidence="rank-failed; rank 0: no module")
    code, result = run(failed, "--preflight")
    assert (code, result["steps_done"]) == (3, 0) and not list(only(tmp_path).events.glob("*"))
    status = result["status"]
    assert (status["word"], status["failure"]) == ("not-run", "preflight")
    assert str(failed.evidence) in status["evidence"] and "--no-preflight" in status["reasons"][0]
    assert result["preflight"] == f"failed: {failed.evidence}"


SSH = LaunchPlan(launcher="ssh", site=Site(), hosts=(Host(name="a"), Host(name="b")))
SLURM = LaunchPlan(launcher="slurm", site=Site())


@pytest.mark.parametrize(
    ("request_", "nodes", "chosen"),
    [
        (UserRequest(launch=SSH), 2, PreflightPlan()),
        (UserRequest(launch=SSH), 1, None),
        (UserRequest(launch=SSH, preflight=False), 2, None),
        (UserRequest(launch=SLURM), 2, None),
        (UserRequest(launch=SLURM, preflight=True), 2, PreflightPlan()),
        (UserRequest(), 1, None),
        (UserRequest(runtime="docker"), 2, None),
        (UserRequest(preflight=True), 1, PreflightPlan()),
        (UserRequest(quiet_machine=True), 1, PreflightPlan(quiet=True)),
        (UserRequest(quiet_machine=True, preflight=False), 1, PreflightPlan(quiet=True)),
    ],
)
def test_which_runs_begin_with_a_preflight(request_: UserRequest, nodes: int, chosen: PreflightPlan | None) -> None:
    assert plan_preflight(request_, nodes) == chosen


def test_a_dry_run_shows_the_program_of_the_preflight(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--case", "tiny:fake:F1:1:2", "--dry-run", "--plugins", str(PLUGINS), "--runs", str(tmp_path)]
    command = (sys.executable, "-m", "levelfield.worker.preflight", "--short")
    assert main([*arguments, "--preflight", "--python", sys.executable]) == 0
    assert f"1 x 2 ranks: {' '.join(command)}" in " ".join(capsys.readouterr().out.split())
    assert main(arguments) == 0
    assert command[2] not in capsys.readouterr().out

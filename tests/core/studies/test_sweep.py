"""`plan sweep`: the plan's best rows are run, and each prediction stands beside its own run."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import NoReturn

import pytest
from fuzzing import commands
from levelfield.cli.main import main
from levelfield.run.measurement import parse_host_rates
from levelfield.specs.host_rates import HostRates
from plans import PLUGINS

CONSTANTS = """
schema: levelfield.constants/1
framework: fake
pace: {matmul_efficiency: 0.5, communication_efficiency: 0.5, overlap: 0}
"""
CHIPS = """
schema: levelfield.chips/1
vendors:
  fake:
    - name: F1
      memory_bandwidth_bytes_per_second: 1.0e+12
      bandwidth_source: made for the tests
      interconnect: {description: a switch, each_way_bytes_per_second: 1.0e+11, source: made for the tests}
      peaks: {fp32: {tflops: 10, source: made for the tests}}
"""
SHARE = {"matmul": {"fp32": {"64": 1e10, "1024": 5e10}}, "triad": {"65536": 4e10, "67108864": 1e10}, "copy": 1e10}
RATES = {
    "torch": "2.13.0",
    "cores": 2,
    "shares": [
        {"processes": 1, "threads": 2, **SHARE, "operation": 5e-6, "collectives": {}},
        {
            **{"processes": 2, "threads": 1, **SHARE, "operation": 5e-6},
            "collectives": {
                name: {"1024": 2e-4, "16777216": 2e-2}
                for name in ("all_reduce", "all_gather", "reduce_scatter", "send_recv")
            },
        },
    ],
}


def is_dry_run_of_trainings(parser: argparse.ArgumentParser) -> bool:
    return "--dry-run" in parser._option_string_actions and bool(parser.get_default("trains"))


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = Path(shutil.copytree(PLUGINS, tmp_path / "plugins"))
    (folder / "configs/planner").mkdir()
    (folder / "configs/planner/fake.yaml").write_text(CONSTANTS)
    (tmp_path / "chips.yaml").write_text(CHIPS)
    monkeypatch.setenv("FAKE_DEVICES", "2")
    monkeypatch.setenv("LEVELFIELD_LOCKS", str(tmp_path / "locks"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("levelfield.node.rank_processes.SETTLE_SECONDS", 0.5)
    return folder


def sweep(plugins: Path, *arguments: str) -> int:
    beside = plugins.parent
    words = ["plan", "sweep", "tiny:fake:F1", "--scale", "smoke", "--python", sys.executable, "--plugins", str(plugins)]
    return main([*words, "--runs", str(beside / "runs"), "--chips", str(beside / "chips.yaml"), *arguments])


def test_each_prediction_stands_beside_its_own_run(plugins: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep(plugins, "--top", "2", "--json") == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert len(rows) == 2
    for row in rows:
        plan = json.loads((plugins.parent / "runs" / row["run"] / "plan.json").read_text())
        result = json.loads((plugins.parent / "runs" / row["run"] / "result.json").read_text())
        assert (plan["tuning"]["micro_batch"], plan["tuning"]["recompute"]) == (row["micro_batch"], row["recompute"])
        measured = result["throughput"]["tokens_per_second_per_device"]
        assert row["measured_tokens_per_second_per_device"] == measured
        assert plan["expected_memory"]["total_bytes"] == row["predicted_memory_bytes"]
    first, second = (row["predicted_tokens_per_second_per_device"] for row in rows)
    assert first >= second


def test_a_dry_run_shows_the_rows_and_runs_nothing(plugins: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep(plugins, "--dry-run", "--top", "4") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6 and all(len(line) <= 80 for line in lines)
    assert not (plugins.parent / "runs").exists()


def test_a_run_that_fails_is_a_row_with_its_reason(plugins: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (plugins / "models/fake/train.py").write_text("raise SystemExit('untrained')\n")
    assert sweep(plugins, "--top", "1") == 3
    assert "untrained" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("case", "arguments", "says"),
    [
        ("tiny:fake:TP2PP1F1", (), "sweep chooses layouts"),
        ("tiny:fake:F1:2", (), "on one node"),
        ("tiny:fake:F1", ("--top", "0"), "--top: found 0"),
        ("tiny:fake:F2", (), "no published"),
    ],
)
def test_wrong_sweeps(
    plugins: Path, capsys: pytest.CaptureFixture[str], case: str, arguments: tuple[str, ...], says: str
) -> None:
    words = ["plan", "sweep", case, "--plugins", str(plugins), "--scale", "smoke", *arguments]
    assert main(words) == 2
    assert says in capsys.readouterr().err


def rates() -> HostRates:
    return parse_host_rates(json.dumps(RATES))


DRY_RUNS = {
    (): ("--case", "gpt3_6.7B:torch:cpu:1:1", "--scale", "smoke"),
    ("plan", "sweep"): ("gpt3_6.7B:torch:cpu", "--scale", "smoke"),
}


@pytest.mark.parametrize("words", [words for words, parser in commands().items() if is_dry_run_of_trainings(parser)])
def test_no_dry_run_measures(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(*arguments: object) -> NoReturn:
        raise AssertionError(f"measured in a dry run: {arguments}")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # where nothing of this machine is known
    for name in ("command_output", "measure_peaks", "measure_host_rates"):
        monkeypatch.setattr(f"levelfield.run.measurement.{name}", measured)
    code = main([*words, *DRY_RUNS[words], "--dry-run", "--runs", str(tmp_path / "runs")])
    assert code == (2 if words == ("plan", "sweep") else 0)
    assert code == 0 or "`plan gpt3_6.7B --chip cpu` measures them" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("age", "cores", "words"),
    [
        (timedelta(days=9, hours=1), 0.0, "9 days ago, while other programs used 0.00 of 2 cores"),
        (timedelta(minutes=65), 1.4, "1 hour ago, while other programs used 1.40 of 2 cores (limit: 0.2)"),
        (timedelta(0), None, "less than an hour ago, while what other programs used is not known"),
        (None, None, "it recorded neither date nor load"),
    ],
)
def test_a_plan_on_this_host_says_how_old_and_how_quiet_its_rates_are(
    age: timedelta | None,
    cores: float | None,
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured_at = None if age is None else datetime.now(timezone.utc) - age
    stored = rates().model_copy(update={"measured_at": measured_at, "other_cores": cores})
    monkeypatch.setattr("levelfield.run.measurement.load_host_rates", lambda registry: stored)
    monkeypatch.setattr("levelfield.predict.questions.usable_cores", lambda: 2)
    assert main(["plan", "gpt3_6.7B", "--scale", "smoke", "--chip", "cpu", "--devices", "1"]) == 0
    assert words in " ".join(capsys.readouterr().out.split())


def test_the_host_is_planned_on_by_what_was_measured_of_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("levelfield.run.measurement.load_host_rates", lambda registry: rates())
    monkeypatch.setattr("levelfield.predict.questions.usable_cores", lambda: 2)
    words = ["plan", "gpt3_6.7B", "--scale", "smoke", "--chip", "cpu", "--json", "--top", "999"]
    assert main([*words, "--devices", "1"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert main([*words, "--devices", "2"]) == 0
    half = json.loads(capsys.readouterr().out)
    alone, shared = whole["rows"], half["rows"]
    assert half["capacity_bytes"] == whole["capacity_bytes"] // 2
    assert {row["layout"] for row in alone} == {"DP1TP1PP1"}
    assert any("TP2" in row["layout"] for row in shared) and shared[0]["step_parts_seconds"]["data"] > 0
    assert main([*words, "--devices", "4"]) == 2
    assert "was not measured as 4 processes" in capsys.readouterr().err

"""A run beside a planted load of the host: it says so before its first step, and its status has the word everywhere."""

from __future__ import annotations

import csv
import io
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from levelfield.cli.main import main
from levelfield.run import run_devices
from levelfield.run.runner import describe_host_load
from levelfield.rundir.directory import read_plan
from levelfield.specs.paths import RunPaths
from levelfield.specs.result import DISTURBED
from plans import PLUGINS
from recorded_runs import Event, edit

Start = Callable[..., str]  # words of the command line -> what it printed, in one line


def one_line(text: str) -> str:
    return " ".join(text.split())


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """load(cores): other programs keep so many of two cores busy."""

    def plant(cores: float) -> None:
        def counters(ranks_are_children: bool = True) -> Event:
            now = time.monotonic_ns()
            return {"time_ns": now, "busy_seconds": cores * now / 1e9, "own_seconds": 0.0, "cores": 2}

        monkeypatch.setattr(run_devices, "host_counters", counters)

    return plant


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Start:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("FAKE_DEVICES", "1")

    def run(*words: str) -> str:
        options = ["--python", sys.executable, "--plugins", str(PLUGINS), "--runs", str(tmp_path / "runs")]
        assert main(["--case", "tiny:fake:F1", "--scale", "smoke", *options, *words]) == 0
        printed = capsys.readouterr()
        return one_line(printed.err + printed.out)

    return run


def test_a_load_is_said_before_the_first_step_and_stays_with_the_status(
    load: Callable[[float], None], train: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load(1.72)
    printed = train()
    before, _, after = printed.partition("step 1/12")
    assert all(part in before for part in ("1.72 of 2 cores", "limit: 0.2", DISTURBED, "Ctrl-C"))
    assert f"result {DISTURBED}" in after
    runs = tmp_path / "runs"
    (folder,) = runs.iterdir()
    paths = RunPaths(folder)
    stored = [json.loads(path.read_text()) for path in (paths.result, paths.status)]
    assert (stored[0]["status"]["word"], stored[1]["state"]) == ("valid", "valid")
    assert DISTURBED in paths.report.read_text()

    def printed_by(*words: str) -> str:
        assert main([*words, "--runs", str(runs)]) == 0
        return capsys.readouterr().out

    assert f"{folder.name} done: {DISTURBED}" in one_line(printed_by("show", "runs"))
    assert f"{folder.name}: {DISTURBED}" in printed_by("evidence", "collect", folder.name)
    for form in ("table", "markdown"):
        assert DISTURBED in one_line(printed_by("report", "latest", "--format", form))
    (row,) = csv.DictReader(io.StringIO(printed_by("report", "latest", "--format", "csv")))
    assert row["status"] == "valid"


def test_nothing_is_said_on_a_quiet_machine(load: Callable[[float], None], train: Start) -> None:
    load(0.05)
    printed = train()
    assert "machine is busy" not in printed and "result valid" in printed and DISTURBED not in printed


def with_load(run: RunPaths, busy: float, **device: object) -> RunPaths:
    """Return the run as it was before its first step: two readings within 0.3 s."""
    run.outcome.unlink()
    for path in run.events.iterdir():
        path.write_text("")

    def before(lines: list[Event]) -> list[Event]:
        first = lines[0]["time_ns"]
        samples = [{**sample, **device} for sample in lines[0]["samples"]]
        return [
            {
                **{"time_ns": first + ns, "before": True, "samples": samples},
                "host": {"time_ns": first + ns, "busy_seconds": busy * ns / 1e9, "own_seconds": 0.0, "cores": 8},
            }
            for ns in (0, 300_000_000)
        ]

    edit(run.telemetry, before)
    return run


@pytest.mark.parametrize(
    ("busy", "device", "says"),
    [(7.5, {}, "7.50 of 8 cores (limit: 0.8)"), (0.81, {}, "0.81 of 8"), (0.79, {}, None), (0.0, {}, None),
     (0.0, {"utilisation": 0.5}, "a device"), (0.0, {"utilisation": 0.01, "memory_used_bytes": 0}, None)],
)  # fmt: skip
def test_the_sentence_has_the_figures_of_the_result(
    run: RunPaths, busy: float, device: dict[str, object], says: str | None
) -> None:
    with_load(run, busy, **{"memory_used_bytes": 0, **device})
    plan = read_plan(run)
    sentence = describe_host_load(plan, run)
    assert (sentence is not None) == (says is not None)
    assert says is None or says in (sentence or "")
    away = plan.model_copy(update={"launch": object()})  # other nodes write their telemetry later
    assert describe_host_load(away, run) is None

"""`compare` on run directories, from raw files to the exit code: repeats, tampering, and one truth with `report`."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from levelfield.cli.main import main
from levelfield.rundir.directory import write_json
from levelfield.specs.paths import RunPaths
from recorded_runs import BEGIN_NS, Event, edit, rename, tamper

STEP_TIMES = {"fake": (1.0, 1.004, 0.996), "other": (0.8, 0.803, 0.797)}  # times of a step, by framework
Command = Callable[..., tuple[int, str]]


@pytest.fixture
def folder(run: RunPaths, tmp_path: Path) -> Path:
    """Three repeats of each of two frameworks. Each step of the second takes a fifth less."""
    runs = tmp_path / "six-runs"
    for framework, factors in STEP_TIMES.items():
        for number, factor in enumerate(factors, start=1):
            paths = RunPaths(runs / f"2026010{number}T030405Z_tiny_{framework}_fake_{number:06}")
            shutil.copytree(run.root, paths.root)
            _rename(paths, framework, number)
            for rank in (0, 1):
                edit(paths.events / f"rank{rank}.jsonl", partial(_stretched, factor=factor))
    return runs


def _rename(paths: RunPaths, framework: str, number: int) -> None:
    plan = json.loads(paths.plan.read_text())
    implementation = {**plan["implementation"], "framework": framework}
    rename(paths, implementation=implementation, repeat=number, repeats=3)


def _stretched(events: list[Event], factor: float) -> list[Event]:
    return [
        {**e, "end_ns": BEGIN_NS + round((e["end_ns"] - BEGIN_NS) * factor)} if "end_ns" in e else e for e in events
    ]


@pytest.fixture
def command(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """command(words...): exit code and output of a command on the folder, without a store."""
    monkeypatch.setenv("LEVELFIELD_STORE", "none")

    def call(*words: str) -> tuple[int, str]:
        code = main([words[0], "--runs", str(folder), *words[1:]])
        return code, capsys.readouterr().out

    return call


def test_steps_that_take_a_fifth_less_are_a_quarter_faster(command: Command) -> None:
    code, text = command("compare", "*_fake_fake_*", "*_other_fake_*", "--json")
    speed, memory, energy, *_ = json.loads(text)["figures"]
    assert code == 0 and speed["ratios"]["B"]["standing"] == "higher"
    assert speed["ratios"]["B"]["value"] == pytest.approx(1.25, rel=1e-3)
    assert memory["ratios"]["B"]["standing"] == "within noise"
    assert energy["ratios"]["B"]["standing"] == "lower"


def test_repeats_of_a_command_are_one_side(command: Command) -> None:
    by_repeats, by_pattern = (
        command("compare", *words, "--json")[1]
        for words in (("--repeats", "fake_fake_000002", "other_fake_000001"), ("*_fake_fake_*", "*_other_fake_*"))
    )
    assert json.loads(by_repeats) == json.loads(by_pattern)


def test_report_and_compare_have_the_same_median_and_interval(command: Command, folder: Path) -> None:
    ids = [path.name for path in sorted(folder.glob("*_other_fake_*"))]
    *_, repeats = json.loads(command("report", *ids, "--format", "json")[1])
    compared = json.loads(command("compare", "*_fake_fake_*", "*_other_fake_*", "--json")[1])
    measured = [figure for figure in compared["figures"] if figure["name"] != "seconds_to_loss"]  # none is aligned
    for figure in measured:
        side, reported = figure["sides"]["B"], repeats["figures"][figure["name"]]
        assert [side[key] for key in ("n", "median", "low", "high")] == [
            reported[key] for key in ("n", "median", "low", "high")
        ]
    text, markdown = (command("report", *ids, "--format", form)[1] for form in ("table", "markdown"))
    cells = command("compare", "*_fake_fake_*", "*_other_fake_*")[1]
    median = f"{repeats['figures']['tokens_per_second_per_device']['median']:,.1f}"
    assert all(median in output for output in (text, markdown, cells))


def test_a_clock_that_was_edited_stops_the_comparison(command: Command, folder: Path) -> None:
    """Timestamps divided by four: the run would have four times the speed."""
    run = RunPaths(folder / "20260101T030405Z_tiny_other_fake_000001")
    for rank in (0, 1):
        tamper(run.events / f"rank{rank}.jsonl", lambda events: _stretched(events, 0.25))
    code, text = command("compare", "*_fake_fake_000001", "*_other_fake_000001")
    assert code == 4 and "tampered" in text and "B/A" not in text
    code, text = command("compare", "*_fake_fake_*", "*_other_fake_*")
    assert code == 0 and "tampered" in text
    sides = json.loads(command("compare", "*_fake_fake_*", "*_other_fake_*", "--json")[1])["sides"]
    assert [(len(side["runs"]), len(side["left_out"])) for side in sides] == [(3, 0), (2, 1)]
    assert "tampered" in command("report", run.root.name, "20260102T030405Z_tiny_other")[1]


def test_a_run_without_a_seal_is_in_no_comparison(command: Command, folder: Path) -> None:
    for path in folder.glob("*_other_fake_*/outcome.json"):
        write_json(path, {key: value for key, value in json.loads(path.read_text()).items() if key != "seal"})
    code, text = command("compare", "*_fake_fake_*", "*_other_fake_*")
    assert code == 4 and "unsealed" in text
    sides = json.loads(command("compare", "*_fake_fake_*", "*_other_fake_*", "--json")[1])["sides"]
    assert [len(side["runs"]) for side in sides] == [3, 0]
    code, text = command("compare", "--matrix", "framework")
    assert code == 0 and "unsealed" in text
    assert "unsealed" in command("report", "20260102T030405Z_tiny_other", "20260102T030405Z_tiny_fake")[1]


def test_the_matrix_has_the_newest_repeats_of_each(command: Command) -> None:
    code, text = command("compare", "--matrix", "framework", "--json")
    (row,) = json.loads(text)["rows"]
    assert code == 0 and [len(cell["runs"]) for cell in row["cells"].values()] == [3, 3]
    other, fake = (row["cells"][f"{name} peak"]["tokens_per_second_per_device"] for name in ("other", "fake"))
    assert other / fake == pytest.approx(1.25, rel=1e-3)


def test_one_of_the_repeats_of_a_command_is_told(command: Command, folder: Path) -> None:
    for number, path in enumerate(sorted(folder.glob("*_fake_fake_*")), start=1):  # the ids of one command
        new = path.rename(path.with_name(f"20260101T030405Z_{path.name.split('_', 1)[1]}"))
        _rename(RunPaths(new), "fake", number)
    for chosen, expected in (("fake_fake_000002", "1"), ("fake_fake_000001,fake_fake_000003", "2")):
        code, text = command("compare", chosen, "other_fake_000001", "--json")
        field = json.loads(text)["with_caution"].get("repeats", {})
        assert code == 0 and re.findall(r"\d+", field["A"][0]) == [expected, "3"]
    assert "repeats" not in json.loads(command("compare", "*_fake_fake_*", "*_other_*", "--json")[1])["with_caution"]

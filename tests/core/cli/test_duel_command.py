"""`compare duel` with trainings that pretend, of planted speeds: from the command line to the exit code."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from levelfield.cli.main import main
from levelfield.measure import clocks
from levelfield.measure.other_use import HostUse
from levelfield.run import quiet
from levelfield.store.database import Store
from plans import PLUGINS

Duel = Callable[..., int]


@pytest.fixture
def duel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Duel:
    """duel(words..., pace of the framework `quick`): the exit code of a duel of `fake` and `quick`.

    Both are the same training, with a clock that shows 10 ms a step, and for `quick` the given time.
    """
    plugins = Path(shutil.copytree(PLUGINS, tmp_path / "plugins"))
    quick = Path(shutil.copytree(plugins / "models" / "fake", plugins / "models" / "quick"))
    manifest = (quick / "implementation.yaml").read_text()
    (quick / "implementation.yaml").write_text(manifest.replace("framework: fake", "framework: quick"))
    vendor = plugins / "vendors" / "fake" / "vendor.yaml"
    reached = "  fake: {device: cpu, backend: gloo, preload: [json]}\n"
    vendor.write_text(vendor.read_text().replace(reached, reached + reached.replace("fake:", "quick:")))
    monkeypatch.setenv("FAKE_DEVICES", "1")
    monkeypatch.setenv("FAKE_PACE", "0.01")
    monkeypatch.setattr(clocks, "SLACK_SECONDS", 10.0)  # this clock shows its pace, however late a busy machine is
    monkeypatch.setattr(quiet, "measure_host_load", lambda: HostUse(0.0, 2))  # nor is a busy one waited for
    training = (quick / "train.py").read_text()

    def call(*words: str, pace: float = 0.01, fault: str = "") -> int:
        planted = f'import os\nos.environ.update(FAKE_PACE="{pace}"{fault})\n'
        (quick / "train.py").write_text(training.replace("import itertools\n", planted + "import itertools\n", 1))
        cases = ["tiny:fake", "tiny:quick"]
        options = ["--plugins", str(plugins), "--runs", str(tmp_path / "runs"), "--python", sys.executable]
        return main(["compare", "duel", *cases, *options, *words])

    return call


def test_the_slower_one_is_named_all_runs_stay_and_the_conclusion_is_stored_with_them(
    duel: Duel, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    address = str(tmp_path / "results.sqlite")
    assert duel("--store", address, pace=0.0105) == 0
    printed = capsys.readouterr()
    verdict = " ".join(printed.out.split())
    for part in ("tiny:quick (B)", "slower than tiny:fake (A):", "0.952 of", "3 pairs"):
        assert part in verdict
    *_, after = " ".join(printed.err.split()).partition("run 3 of 6 to 14, ")
    assert after.startswith("B (tiny:quick): ")
    assert len(list((tmp_path / "runs").glob("*/result.json"))) == 6
    assert main(["compare", "tiny:fake", "tiny:quick", "--runs", str(tmp_path / "runs")]) == 0
    assert "0.9524" in capsys.readouterr().out
    with Store.open(address) as store:
        (event,) = store.events()
        assert event.kind == "duel" and set(event.runs) == set(store.run_ids())
    assert event.data["word"] == "slower" and "tiny:quick" in event.why


def test_a_busy_machine_is_waited_for_and_said(
    duel: Duel, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    loads = iter([1.72, 1.72, 0.0])
    monkeypatch.setattr(quiet, "measure_host_load", lambda: HostUse(next(loads, 0.0), 2))
    assert duel(fault=', FAKE_FAULT="oom"') == 3  # which ends it early
    before, _, _ = " ".join(capsys.readouterr().err.split()).partition("run 1 of")
    assert "waiting for a quiet machine" in before and "1.72 of 2 cores" in before


def test_equal_ones_as_json(duel: Duel, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    address = tmp_path / "results.sqlite"
    assert duel("--json", "--repeat", "3", "--store", str(address), "--no-store") == 0
    assert not address.exists(), "by --no-store"
    printed = capsys.readouterr()
    comparison = json.loads(printed.out)
    assert comparison["schema"] == "levelfield.comparison/1" and printed.err == ""
    assert comparison["duel"]["word"] == "no difference" and len(comparison["duel"]["pairs"]) == 3
    assert comparison["duel"]["value"] == pytest.approx(1.0)


def test_each_side_has_its_own_free_options(duel: Duel, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert duel("--repeat", "3", "--a=--base", "--b=--micro-batch 1 --threads 2 --env X=1", pace=0.0105) == 0
    slower, _, faster = " ".join(capsys.readouterr().out.split()).partition(" slower than ")
    assert "--micro-batch 1 --threads 2 --env X=1 (B) is " in slower and faster.startswith("tiny:fake --base (A):")
    plans = [json.loads(path.read_text()) for path in sorted((tmp_path / "runs").glob("*/plan.json"))]
    chosen = {
        p["asked"]: (p["tuning"]["threads"], p["tuning"]["micro_batch"], "X" in p["tuning"]["environment"])
        for p in plans
    }
    assert len(plans) == 6 and chosen["tiny:quick"] == (2, 1, True)
    assert chosen["tiny:fake"][0] != 2 and not chosen["tiny:fake"][2]


def test_a_side_that_fails_is_named(duel: Duel, capsys: pytest.CaptureFixture[str]) -> None:
    assert duel(fault=', FAKE_FAULT="oom"') == 3
    message = " ".join(capsys.readouterr().err.split())
    assert "error: tiny:quick:" in message and "is oom" in message


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["tiny:fake", "tiny:nothing"], 2, "unknown framework 'nothing'"),
        (["tiny:fake", "gpt3_6.7B:fake"], 4, "not comparable: found work"),
        (["tiny:fake", "tiny:fake", "--repeat", "2"], 2, "expected 3 to 100"),
        (["tiny:fake", "tiny:fake", "--a=--layout TP3"], 2, "found 1 x F1 (vendor fake), expected 3"),
        (
            ["tiny:fake", "tiny:fake", "--a=--steps 9"],
            2,
            "--a: found --steps 9, expected free options of a run: --layout",
        ),
        (["tiny:fake", "tiny:fake", "--b=--micro-batch x"], 2, "--b: argument --micro-batch: invalid int value: 'x'"),
        (["tiny:fake", "tiny:fake", "--b=--base --threads 2"], 2, "--base: found threads as well"),
        (["tiny:fake", "tiny:fake", "--b=--env 'X=1"], 2, "--b: No closing quotation"),
        (["tiny:fake", "tiny:fake", "--min-effect", "0"], 2, "expected a percentage"),
        (["tiny:fake", "tiny:fake", "--prices", "none.yaml"], 2, "none.yaml: cannot be read"),
    ],
)
def test_impossible_duels_run_nothing(
    words: list[str],
    code: int,
    says: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FAKE_DEVICES", "1")
    runs = tmp_path / "runs"
    assert main(["compare", "duel", *words, "--plugins", str(PLUGINS), "--runs", str(runs)]) == code
    assert says in " ".join(capsys.readouterr().err.split()) and not runs.exists()

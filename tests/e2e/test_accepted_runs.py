"""Acceptance by runs of the training that pretends: one 6 % too slow, one slow node of four, and the days that end it.

The training's clock shows its own pace, so equal runs are equal also on a busy machine.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from driving import PRETENDING, Benchmark
from levelfield.cli import acceptance_command
from levelfield.cli.main import main
from planted_pbs import example, planted, stand_ins

pytestmark = pytest.mark.e2e
SMOKE = ("--scale", "smoke", *PRETENDING, "--python", sys.executable)
SLOWER = 0.1 / 0.94  # seconds of a step: 6 % fewer tokens/s


class Delivery:
    """Runs of a baseline, of a machine as fast, of one 6 % slower, and of four nodes with a slow one."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.folder, self.cache = folder, cache
        stand_ins(folder / "bin", 4)
        planted(folder / "plugins", example())
        six = self.train("base", 0.1, "1:1:6")
        self.base, self.good = six[:3], six[3:]
        self.slow = self.train("slow", SLOWER, "1:1:3")
        four = ("--launcher", "pbs", "--plugins", str(folder / "plugins"))
        self.four = self.train("four", 0.1, "4:1", *four, PATH=f"{folder / 'bin'}:/usr/bin:/bin", FAKE_SLOW="2")

    def train(self, name: str, seconds: float, target: str, *more: str, **variables: str) -> list[str]:
        own = {"FAKE_DEVICES": "1", "FAKE_PACE": str(seconds), "LEVELFIELD_STORE": "none", **variables}
        runs = Benchmark(self.folder / name, self.cache, **own)
        done = runs.run("--case", f"tiny:fake:F1:{target}", *SMOKE, *more)
        assert done.returncode == 0, done.stdout + done.stderr
        return sorted(str(path.parent) for path in runs.runs.glob("*/plan.json"))

    def criteria(self, nodes: int = 1, **changes: Any) -> Path:
        content = {
            "schema": "levelfield.acceptance/1",
            "title": "A delivery",
            "valid_until": "2099-12-31",
            "accepted_days": 90,
            "of": {"case": "tiny", "framework": "fake", "chip": "F1", "scale": "smoke", "nodes": nodes, "devices": 1},
            "criteria": {"speed": {"at_least": 0.95, "baseline": [Path(run).name for run in self.base]}},
            **changes,
        }
        path = self.folder / "criteria.yaml"
        path.write_text(yaml.safe_dump(content))
        return path


@pytest.fixture(scope="module")
def delivery(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Delivery:
    return Delivery(tmp_path_factory.mktemp("delivery"), cache)


@pytest.fixture
def judged(delivery: Delivery, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """judged(words...): the exit code, stdout and stderr of `evidence acceptance` beside the baseline."""
    monkeypatch.setenv("LEVELFIELD_STORE", "none")

    def call(*words: object) -> tuple[int, str, str]:
        code = main(["evidence", "acceptance", *map(str, words), "--runs", str(delivery.folder / "base")])
        return code, *capsys.readouterr()

    return call


def test_a_machine_as_fast_as_its_baseline_is_accepted_and_one_6_percent_slower_refused(
    delivery: Delivery, judged: Any
) -> None:
    code, out, err = judged(delivery.criteria(), *delivery.good, "--json")
    assert code == 0, out + err
    assert json.loads(out)["findings"][0]["value"] == pytest.approx(1.0)
    code, out, _ = judged(delivery.criteria(), *delivery.slow)
    assert code == 4 and "REFUSED" in out and "0.9400 [" in out and max(map(len, out.splitlines())) <= 80


def test_the_slow_one_of_four_nodes_is_named(delivery: Delivery, judged: Any) -> None:
    path = delivery.criteria(4, criteria={"node_spread": {"at_most": 0.05, "nodes": 4}})
    code, out, _ = judged(path, *delivery.four, "--json")
    [finding] = json.loads(out)["findings"]
    assert code == 4 and [name.split()[0] for name in finding["nodes"]] == ["node2"], finding


def test_criteria_and_dossier_end_on_their_day(
    delivery: Delivery, judged: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, err = judged(delivery.criteria(valid_until="2026-01-31"), *delivery.good)
    assert code == 4 and "criteria.yaml: expired after 2026-01-31" in err
    dossier = tmp_path / "dossier.json"
    assert judged(delivery.criteria(), *delivery.good, "--json", "--output", dossier)[0] == 0
    content = json.loads(dossier.read_text())
    assert judged(dossier)[0] == 0
    dossier.write_text(json.dumps({**content, "word": "refused"}))
    code, _, err = judged(dossier)
    assert code == 4 and "word does not follow from its runs: found refused, recomputed accepted" in err
    dossier.write_text(json.dumps(content))
    monkeypatch.setattr(acceptance_command, "today", lambda: "2099-01-01")
    code, _, err = judged(dossier)
    assert code == 4 and f"dossier.json: expired after {content['expires']}" in err


def test_a_changed_run_is_no_evidence(delivery: Delivery, judged: Any) -> None:
    events = Path(delivery.good[0]) / "events" / "rank0.jsonl"
    before = events.read_text()
    try:
        events.write_text(before.replace('"step":12', '"step":13'))
        code, out, _ = judged(delivery.criteria(), *delivery.good, "--json")
    finally:
        events.write_text(before)
    found = json.loads(out)
    assert code == 3 and found["findings"][0]["word"] == "not decided" and len(found["runs"]) == 2
    assert "tampered" in found["left_out"][0]["reason"] and "1 more run(s)" in found["findings"][0]["sentence"]

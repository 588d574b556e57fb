"""Whole numbers far above what exists: each is refused where it is read, with its key, and no reader counts to it."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from changed_documents import written
from levelfield.cli.main import main
from levelfield.errors import DocumentError, UsageError
from levelfield.specs.base import MAX_RANKS, MAX_STEPS, load
from levelfield.specs.case import Case
from levelfield.specs.layout import parse_layout
from levelfield.specs.paths import RunPaths
from levelfield.specs.selector import parse_selector
from plans import PLUGINS
from recorded_runs import seal_again

SECONDS = 20.0
FAR = 10**15
OF_A_PLAN = {
    "work.training.steps": FAR,
    "work.training.sequence_length": FAR,
    "work.training.global_batch": FAR,
    "work.model.layers": 10**6,
    "work.model.hidden_size": FAR,
    "work.model.vocab_size": FAR,
    "work.evidence.gradient_steps": [1] * 10**5,
    "hardware.nodes": 10**7,
    "hardware.devices_per_node": 10**6,
    "tuning.layout.data": 10**9,
    "tuning.threads": 10**5,
    "accumulation": FAR,
    "repeat": FAR,
    "repeats": FAR,
}


def changed(path: Path, changes: dict[str, Any]) -> None:
    content = json.loads(path.read_text())
    for name, value in changes.items():
        *outer, last = name.split(".")
        place = content
        for key in outer:
            place = place[key]
        place[last] = value
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("key", OF_A_PLAN)
def test_a_number_of_a_foreign_plan_is_refused_with_its_key(
    run: RunPaths, capsys: pytest.CaptureFixture[str], key: str
) -> None:
    changed(run.plan, {key: OF_A_PLAN[key]})
    for words in (["report"], ["evidence", "collect"], ["compare"]):
        assert main([*words, str(run.root)]) == 2
        error = capsys.readouterr().err
        assert re.search(rf"plan\.json: .*'{re.escape(key)}': found.*expected", error), words


def test_a_plan_of_many_ranks_is_refused(run: RunPaths, capsys: pytest.CaptureFixture[str]) -> None:
    changed(run.plan, {"hardware.nodes": 10**5, "hardware.devices_per_node": 1000})
    assert main(["report", str(run.root)]) == 2
    assert re.search(r"nodes x devices_per_node: .*\b100,000,000\b.*\b1,048,576\b", capsys.readouterr().err)


@pytest.mark.parametrize(
    "changes",
    [
        {"work.training.steps": MAX_STEPS, "work.window.last_step": MAX_STEPS},
        {"hardware.nodes": 1024, "hardware.devices_per_node": 1024, "tuning.layout.data": MAX_RANKS},
        {"work.training.steps": MAX_STEPS, "tuning.layout.data": MAX_RANKS},
    ],
    ids=lambda changes: " ".join(changes),
)
def test_the_largest_numbers_are_read_in_seconds(
    run: RunPaths, capsys: pytest.CaptureFixture[str], changes: dict[str, Any]
) -> None:
    changed(run.plan, changes)
    seal_again(run)
    begun = time.process_time()
    assert main(["report", str(run.root)]) == 0
    report = capsys.readouterr().out
    assert time.process_time() - begun < SECONDS and len(report) < 2**20
    assert "invalid" in report and "missing" in report


@pytest.mark.parametrize("key", ["layers", "hidden_size", "ffn_hidden_size", "heads", "kv_heads", "vocab_size"])
def test_a_number_of_a_case_is_refused_with_its_key(tmp_path: Path, key: str) -> None:
    with pytest.raises(DocumentError, match=rf"case\.yaml:.*'model\.{key}':.*\b{FAR},.*\bmost\b"):
        load(Case, written(tmp_path, {f"model.{key}": FAR}))


def test_steps_and_batches_of_the_command_line_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--case", "tiny:fake:F1:1:1", "--dry-run", "--plugins", str(PLUGINS)]
    for option in ("--steps", "--sequence-length", "--global-batch"):
        assert main([*words, option, str(FAR)]) == 2
        assert str(FAR) in capsys.readouterr().err


def test_ranks_are_bounded_together() -> None:
    with pytest.raises(UsageError, match=r"\b102,400,000 devices,.*\b1,048,576\b"):
        parse_selector("tiny:fake:F1:100000:1024")
    with pytest.raises(UsageError, match=r"\b1,099,511,627,776 ranks,.*\b1,048,576\b"):
        parse_layout(f"DP{MAX_RANKS}TP{MAX_RANKS}PP1")

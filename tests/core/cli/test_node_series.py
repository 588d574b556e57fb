"""`--nodes 1,2,4`: which runs it makes, and the table of scaling that follows them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from levelfield.cli.main import main
from levelfield.compare.scaling import Scaling
from levelfield.errors import UsageError
from levelfield.judge.collector import collect
from levelfield.plan.request import Entry, UserRequest
from levelfield.rundir.directory import read_plan
from levelfield.specs.base import dump
from levelfield.specs.derivation import Derivation
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import job_content
from levelfield.specs.suite import EntryUsed
from levelfield.studies.node_series import node_counts, series_entries, series_scaling
from recorded_runs import seal_again


def dry(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    arguments = ("--case", "gpt3_6.7B:torch:A100:1:8", "--scale", "full", "--dry-run", "--json", "--no-certificate")
    assert main([*arguments, *words]) == 0
    return [entry["plan"] for entry in json.loads(capsys.readouterr().out)]


def test_strong_scaling_has_one_plan_for_each_number(capsys: pytest.CaptureFixture[str]) -> None:
    plans = dry(capsys, "--nodes", "4,1,2")
    assert [plan["hardware"]["nodes"] for plan in plans] == [1, 2, 4]
    assert len({plan["work_digest"] for plan in plans}) == 1
    assert all(plan["predicted"] for plan in plans)


def test_weak_scaling_grows_the_batch(capsys: pytest.CaptureFixture[str]) -> None:
    plans = dry(capsys, "--nodes", "2,4", "--weak", "--global-batch", "64")
    batches = [plan["work"]["training"]["global_batch"] for plan in plans]
    assert [plan["hardware"]["nodes"] for plan in plans] == [2, 4] and batches == [64, 128]
    assert [plan["case"] for plan in plans] == ["gpt3_6.7B+batch64", "gpt3_6.7B+batch128"]


@pytest.mark.parametrize("text", ["", "1", "0,2", "1,1", "1,,2", "a,b", "1;2", "-1,2", "1.5,2", "1,99999999999", "①,2"])
def test_what_is_no_series_ends_with_the_form(text: str) -> None:
    with pytest.raises(UsageError, match="as 1,2,4"):
        node_counts(text)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--case", "gpt3_6.7B:torch", "--nodes", "1,2"], "names no chip"),
        (["--suite", "smoke", "--nodes", "1,2"], "a suite says itself"),
        (["--case", "gpt3_6.7B:torch:A100:1:8", "--nodes", "1,2", "--weak"], "found no --global-batch"),
        (["--case", "gpt3_6.7B:torch:A100:1:8", "--weak"], "found no --nodes"),
        (["--case", "gpt3_6.7B:torch:A100:1:8", "--nodes", "two,four"], "--nodes: found 'two,four'"),
    ],
)
def test_wrong_usage_ends_with_2(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--dry-run"]) == 2
    assert says in " ".join(capsys.readouterr().err.split())


def test_an_entry_keeps_its_other_parts() -> None:
    request = UserRequest(derivation=Derivation(global_batch=6, steps=20))
    entries = series_entries([Entry("c:torch:F1:1:8:3", request), Entry("c:torch:F1", request)], (1, 2), True)
    assert [entry.text for entry in entries] == ["c:torch:F1:1:8:3", "c:torch:F1:2:8:3", "c:torch:F1:1", "c:torch:F1:2"]
    assert [entry.request.derivation.global_batch for entry in entries] == [6, 12, 6, 12]
    assert entries[1].request.derivation.steps == 20
    with pytest.raises(UsageError, match="whole number"):
        series_entries([Entry("c:torch:F1", request)], (4, 5), True)
    with pytest.raises(UsageError, match="a suite"):
        series_entries([Entry("c:torch:F1", suite_entry=EntryUsed(suite="s", name="n"))], (1, 2), False)


def test_runs_of_one_number_only_give_a_sentence(run: RunPaths) -> None:
    (sentence,) = series_scaling([collect(run)], run.root.parent)
    assert isinstance(sentence, str) and sentence.split()[:3] == ["tiny", "with", "fake:"] and "least two" in sentence


def test_the_runs_of_a_series_are_scaled(run: RunPaths, recorded: Path) -> None:
    """The recorded run of two dies, beside the same run as if it had had four; neither is sealed as another."""
    other = RunPaths(Path(shutil.copytree(recorded, run.root.parent / run.root.name.replace("abcdef", "fedcba"))))
    plan = read_plan(other)
    hardware = plan.hardware.model_copy(update={"nodes": 2})
    plan = plan.model_copy(update={"run_id": other.root.name, "hardware": hardware})
    other.plan.write_text(dump(plan))
    other.job.write_text(json.dumps(job_content(plan, other)))
    seal_again(other)
    (scaling,) = series_scaling([collect(run), collect(other)], run.root.parent)
    assert isinstance(scaling, Scaling) and [row.devices for row in scaling.rows] == [2, 4]
    reason = scaling.rows[1].reason  # ranks 2 and 3 are missing
    assert reason and "invalid" in reason

"""A run that is not valid is never aligned: in the result, the terminal, the report, the store and `align`."""

from __future__ import annotations

import json

import pytest
from levelfield.cli.main import main
from levelfield.judge.collector import collect
from levelfield.judge.promotion import make_reference
from levelfield.judge.verdict import verdict_under_status
from levelfield.report.tables import format_text
from levelfield.rundir.directory import read_plan, write_atomically
from levelfield.specs.base import dump, load
from levelfield.specs.paths import RunPaths
from levelfield.specs.reference import Reference
from levelfield.specs.result import Alignment, Result, Status
from levelfield.store.run_record import record_of
from recorded_runs import change_all_steps, insert_event, seal_again
from report_rows import report_rows, terminal_rows

UNCOUNTED = "the run is invalid, so no verdict on it counts (by its layers alone: aligned)"


@pytest.fixture(autouse=True)
def aligned(run: RunPaths) -> None:
    """The run has gradients, and is held against a reference with noise that was made from it."""
    plan = read_plan(run)
    names = [row[0] for row in json.loads((run.events / "rank0.jsonl").read_text().splitlines()[1])["parameters"]]
    for rank in range(2):
        event = {"event": "gradients", "step": 1, "squares": {name: 0.5 / len(names) for name in names}}
        insert_event(run, rank, event)
    reference = make_reference(run, "the test's")
    assert plan.needs_certificate is False
    row = {
        "changed": "fake 1.2.3, 2 threads", "run_id": "another", "first_step": 1e-6, "gradient": 1e-4, "curve": 1e-5,
    }  # fmt: skip
    with_row = type(reference).model_validate({**reference.model_dump(), "noise": [row], "weights": {}})
    write_atomically(run.reference, dump(with_row))
    seal_again(run)


def invalid(run: RunPaths) -> Result:
    """Give every step another learning rate: no layer looks at it."""
    change_all_steps(run, lambda event: event.update(learning_rate=1.0))
    return collect(run)


def test_the_same_run_is_aligned_while_it_is_valid(run: RunPaths) -> None:
    result = collect(run)
    assert (result.status.word, result.alignment.verdict) == ("valid", "aligned"), result.alignment.reason


def test_no_output_calls_an_invalid_run_aligned(run: RunPaths) -> None:
    result = invalid(run)
    assert result.status.word == "invalid"
    assert (result.alignment.verdict, result.alignment.reason) == ("unchecked", UNCOUNTED)
    assert all(layer.passed for layer in result.alignment.layers) and result.alignment.layers, "what was compared stays"
    assert terminal_rows(result)["verdict"].startswith(f"unchecked: {UNCOUNTED}")
    assert report_rows(run, result)["alignment"][:2] == ["unchecked", UNCOUNTED]
    assert "aligned" not in format_text([result, result])
    write_atomically(run.result, dump(result))
    assert json.loads(run.result.read_text())["alignment"]["verdict"] == "unchecked"


def test_the_store_keeps_no_aligned_run_that_is_invalid(run: RunPaths) -> None:
    invalid(run)
    record = record_of(run, result=collect(run))
    assert (record.word, record.verdict) == ("invalid", "unchecked")


def test_align_says_so_and_ends_with_4(
    run: RunPaths, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    invalid(run)
    reference = load(Reference, run.reference)
    monkeypatch.setattr("levelfield.catalog.lookup.find_reference", lambda registry, plan: reference)
    assert main(["align", run.root.name, "--runs", str(run.root.parent)]) == 4
    assert f"unchecked: {UNCOUNTED}" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("word", ["invalid", "failed", "oom", "timeout"])
@pytest.mark.parametrize(
    ("verdict", "expected", "reason"),
    [
        ("aligned", "unchecked", "the run is {}, so no verdict on it counts (by its layers alone: aligned)"),
        ("consistent", "unchecked", "the run is {}, so no verdict on it counts (by its layers alone: consistent)"),
        ("different", "different", "why; the run is {}"),
        ("diverged", "diverged", "why; the run is {}"),
        ("inconclusive", "inconclusive", "why; the run is {}"),
        ("not comparable", "not comparable", "why"),
        ("unchecked", "unchecked", "why"),
    ],
)
def test_a_verdict_that_shows_nothing_right_stays(word: str, verdict: str, expected: str, reason: str) -> None:
    alignment = Alignment.model_validate({"verdict": verdict, "reason": "why"})
    status = Status.model_validate({"word": word, "reasons": ["why not"]})
    under = verdict_under_status(alignment, status)
    assert (under.verdict, under.reason) == (expected, reason.format(word))
    assert verdict_under_status(alignment, Status(word="valid")) == alignment
    assert verdict_under_status(alignment, Status(word="unsealed")) == alignment


def test_an_aligned_run_has_a_time_to_the_references_loss(run: RunPaths) -> None:
    """By hand: the level is the mean of steps 8 and 9, rounded up; the window begins with step 3; steps take 0.5 s."""
    result = collect(run)
    to_loss = result.to_loss
    assert to_loss is not None
    assert (to_loss.level, to_loss.averaged_steps, to_loss.uncounted_steps) == (1.64, 2, 2)
    before, at_level = (4.0 * (0.9 ** (step - 1) + 0.9**step) / 2 for step in (8, 9))
    step = 8 + (before - 1.64) / (before - at_level)
    assert to_loss.step == pytest.approx(step)
    assert to_loss.seconds == pytest.approx(0.5 * (step - 2))
    assert to_loss.tokens == pytest.approx(step * 8 * 8)
    (row,) = (cells for name, cells in report_rows(run, result).items() if name.endswith(" loss of 1.64"))
    assert row[0] == "3.49 s"


def test_only_an_aligned_run_has_a_time_to_a_loss(run: RunPaths) -> None:
    to_loss = invalid(run).to_loss
    assert to_loss is not None
    assert to_loss.seconds is None
    assert "unchecked" in (to_loss.reason or "")
    run.reference.unlink()
    alone = collect(run).to_loss
    assert alone and alone.level is None and alone.seconds is None and alone.source is None

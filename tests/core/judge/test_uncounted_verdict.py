"""A run that is not valid is never aligned: in the result, the terminal, the report, the store and `align`."""

from __future__ import annotations

import json

import pytest
from levelfield.cli.main import main
from levelfield.judge.collector import collect
from levelfield.judge.promotion import reference_from
from levelfield.judge.verdict import under_status
from levelfield.report.one_run import result_lines, run_report
from levelfield.report.tables import as_text
from levelfield.rundir.directory import read_plan, write_atomically
from levelfield.specs.base import dump, load
from levelfield.specs.paths import RunPaths
from levelfield.specs.reference import Reference
from levelfield.specs.result import Alignment, Result, Status
from levelfield.store.run_record import record_of
from recorded_runs import change_all_steps, edit, seal_again

SAID = "the run is invalid, so no verdict on it counts (by its layers alone: aligned)"


@pytest.fixture(autouse=True)
def aligned(run: RunPaths) -> None:
    """The run has gradients, and is held against a reference with noise that was made from it."""
    plan = read_plan(run)
    names = [row[0] for row in json.loads((run.events / "rank0.jsonl").read_text().splitlines()[1])["parameters"]]
    for rank in range(2):
        event = {"event": "gradients", "step": 1, "squares": {name: 0.5 / len(names) for name in names}}
        edit(run.events / f"rank{rank}.jsonl", lambda events, event=event: [*events[:3], event, *events[3:]])
    reference = reference_from(run, "the test's")
    assert plan.needs_certificate is False
    row = {
        "changed": "fake 1.2.3, 2 threads", "run_id": "another", "first_step": 1e-6, "gradient": 1e-4, "curve": 1e-5,
    }  # fmt: skip
    known = type(reference).model_validate({**reference.model_dump(), "noise": [row], "weights": {}})
    write_atomically(run.reference, dump(known))
    seal_again(run)


def invalid(run: RunPaths) -> Result:
    """Give every step another learning rate: no layer looks at it."""
    change_all_steps(run, lambda event: event.update(learning_rate=1.0))
    return collect(run)


def test_the_same_run_is_aligned_while_it_is_valid(run: RunPaths) -> None:
    found = collect(run)
    assert (found.status.word, found.alignment.verdict) == ("valid", "aligned"), found.alignment.reason


def test_no_output_calls_an_invalid_run_aligned(run: RunPaths) -> None:
    found = invalid(run)
    assert found.status.word == "invalid"
    assert (found.alignment.verdict, found.alignment.reason) == ("unchecked", SAID)
    assert all(layer.passed for layer in found.alignment.layers) and found.alignment.layers  # what was compared stays
    shown = " ".join("\n".join(result_lines(found)).split())
    assert f"verdict unchecked: {SAID}" in shown
    assert f"| alignment | unchecked | {SAID} |" in run_report(found, read_plan(run))
    assert "aligned" not in as_text([found, found])
    write_atomically(run.result, dump(found))
    assert json.loads(run.result.read_text())["alignment"]["verdict"] == "unchecked"


def test_the_store_keeps_no_aligned_run_that_is_invalid(run: RunPaths) -> None:
    invalid(run)
    kept = record_of(run, result=collect(run))
    assert (kept.word, kept.verdict) == ("invalid", "unchecked")


def test_align_says_so_and_ends_with_4(
    run: RunPaths, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    invalid(run)
    reference = load(Reference, run.reference)
    monkeypatch.setattr("levelfield.catalog.lookup.reference_of", lambda registry, plan: reference)
    assert main(["align", run.root.name, "--runs", str(run.root.parent)]) == 4
    assert f"unchecked: {SAID}" in " ".join(capsys.readouterr().out.split())


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
    found = Alignment.model_validate({"verdict": verdict, "reason": "why"})
    status = Status.model_validate({"word": word, "reasons": ["why not"]})
    assert under_status(found, status).model_dump(include={"verdict", "reason"}) == {
        "verdict": expected, "reason": reason.format(word),
    }  # fmt: skip
    assert under_status(found, Status(word="valid")) == found == under_status(found, Status(word="unsealed"))


def test_an_aligned_run_has_a_time_to_the_references_loss(run: RunPaths) -> None:
    """By hand: the level is the mean of steps 8 and 9, rounded up; the window begins with step 3; steps take 0.5 s."""
    found = collect(run).to_loss
    assert found and found.level == 1.64 and found.averaged_steps == 2 and found.uncounted_steps == 2
    before, at_level = (4.0 * (0.9 ** (step - 1) + 0.9**step) / 2 for step in (8, 9))
    step = 8 + (before - 1.64) / (before - at_level)
    assert found.step == pytest.approx(step) and found.seconds == pytest.approx(0.5 * (step - 2))
    assert found.tokens == pytest.approx(step * 8 * 8)
    shown = " ".join("\n".join(result_lines(collect(run))).split())
    assert "tokens to a loss of 1.64" in shown and "do not count start, compilation and steps 1 to 2" in shown
    assert "| time to a loss of 1.64 | 3.49 s |" in run_report(collect(run), read_plan(run))


def test_only_an_aligned_run_has_a_time_to_a_loss(run: RunPaths) -> None:
    found = invalid(run).to_loss
    assert found and found.seconds is None and found.reason == "the training is unchecked, expected aligned"
    run.reference.unlink()
    alone = collect(run).to_loss
    assert alone and alone.level is None and alone.seconds is None and alone.source is None

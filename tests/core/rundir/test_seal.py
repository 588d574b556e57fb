"""The seal: every later change of a raw file is found, and nothing that is written rightly after it is."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from levelfield.cli.main import main
from levelfield.compare.published_rows import measured_row
from levelfield.contracts.execution import Outcome, ProcessEnd
from levelfield.errors import RunFailed, UsageError
from levelfield.judge.collector import collect
from levelfield.judge.promotion import add_noise, make_reference
from levelfield.publish.foreign_tables import ExportedRun, row_notes
from levelfield.report import repeats
from levelfield.report.costs import format_results
from levelfield.report.tables import format_json, format_markdown, format_text
from levelfield.run import runner
from levelfield.rundir import directory, run_state
from levelfield.rundir.directory import read_plan, write_json, write_status
from levelfield.rundir.seal import add_seal, seal_finding
from levelfield.specs.base import json_digest
from levelfield.specs.paths import RunPaths
from levelfield.specs.result import Result
from recorded_runs import Event, break_off, fail, seal_again, tamper


def faster(run: RunPaths) -> None:
    """Divide every time of the events by four, and leave the seal."""

    def divide(events: list[Event]) -> list[Event]:
        return [{**e, "end_ns": e["end_ns"] // 4} if "end_ns" in e else e for e in events]

    for rank in range(2):
        tamper(run.events / f"rank{rank}.jsonl", divide)


def unseal(run: RunPaths) -> None:
    """Make the run one of an earlier version."""
    outcome = json.loads(run.outcome.read_text())
    write_json(run.outcome, {key: value for key, value in outcome.items() if key != "seal"})


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_recorded_run_is_sealed_and_valid(run: RunPaths) -> None:
    result = collect(run)
    assert (result.status.word, result.seal.word, result.seal.reason) == ("valid", "sealed", None)  # type: ignore[union-attr]


def test_a_run_of_an_unpacked_bundle_is_named_as_one(run: RunPaths, tmp_path: Path) -> None:
    """Its files differ from the sealed ones, as names were replaced; whoever unpacked it learns why."""
    bundle, folder = tmp_path / "run.zip", tmp_path / "unpacked"
    assert main(["evidence", "bundle", str(run.root), "--output", str(bundle)]) == 0
    shutil.unpack_archive(bundle, folder)
    unpacked = RunPaths(folder / "runs" / run.root.name)
    finding = seal_finding(unpacked)
    assert finding.word == "tampered" and "FILE.zip" in (finding.reason or "")

    def reason() -> str:
        changed = seal_finding(unpacked)
        assert changed.word == "tampered"
        return changed.reason or ""

    content = (unpacked.events / "rank0.jsonl").read_bytes()
    faster(unpacked)
    assert "bundle" not in reason(), "a change after it was unpacked is no replaced name"
    (unpacked.events / "rank0.jsonl").write_bytes(content)
    (folder / "manifest.json").write_text('{"name": "an application of the web"}')
    assert "bundle" not in reason()
    (folder / "manifest.json").unlink()
    assert "bundle" not in reason()


def test_times_divided_by_four_are_found(run: RunPaths) -> None:
    """Without the seal the run is valid with four times the speed: the fault that the seal is for."""
    before = collect(run).throughput
    faster(run)
    result = collect(run)
    assert result.status.word == "tampered" and result.throughput is None and result.utilisation == ()
    assert all(f"events/rank{rank}.jsonl differs" in result.status.reasons[0] for rank in (0, 1))
    unseal(run)
    after = collect(run).throughput
    assert before and after and after.tokens_per_second == pytest.approx(4 * before.tokens_per_second)


def add_recipe(run: RunPaths) -> None:
    run.image.mkdir()
    (run.image / "Dockerfile").write_text("FROM x")


CHANGES: dict[str, tuple[Callable[[RunPaths], object], str]] = {
    "plan": (lambda run: flip(run.plan), "plan.json differs"),
    "job": (lambda run: flip(run.job), "job.json differs"),
    "telemetry": (lambda run: flip(run.telemetry), "telemetry.jsonl differs"),
    "log": (lambda run: (run.logs / "rank0.log").write_text("x"), "logs/rank0.log was added"),
    "reference": (lambda run: run.reference.write_text("{}"), "reference.json was added"),
    "certificate": (lambda run: run.certificate.write_text("{}"), "certificate.json was added"),
    "rank added": (lambda run: (run.events / "rank2.jsonl").write_text(""), "events/rank2.jsonl was added"),
    "rank removed": (lambda run: (run.events / "rank1.jsonl").unlink(), "events/rank1.jsonl is missing"),
    "rank truncated": (lambda run: os.truncate(run.events / "rank1.jsonl", 100), "events/rank1.jsonl differs"),
    "outcome": (
        lambda run: write_json(run.outcome, {**json.loads(run.outcome.read_text()), "evidence": "x"}),
        "outcome.json differs",
    ),
    "a file of the image": (add_recipe, "image/Dockerfile was added"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_after_the_end_is_named(run: RunPaths, name: str) -> None:
    change, words = CHANGES[name]
    change(run)
    finding = seal_finding(run)
    assert finding.word == "tampered" and words in (finding.reason or "")


@pytest.mark.parametrize("seal", [None, {}, [], "x", {"files": {}, "digest": "sha256:" + "0" * 64}, {"version": 1}])
def test_a_damaged_seal_is_no_seal(run: RunPaths, seal: object) -> None:
    write_json(run.outcome, {**json.loads(run.outcome.read_text()), "seal": seal})
    assert seal_finding(run).word == "tampered"


def test_a_file_and_its_digest_changed_together_do_not_agree_with_the_digest_of_all(run: RunPaths) -> None:
    faster(run)
    outcome, outer = json.loads(run.outcome.read_text()), json.loads(run.outcome.read_text())["seal"]["digest"]
    seal_again(run)
    inner = json.loads(run.outcome.read_text())["seal"]
    write_json(run.outcome, {**outcome, "seal": {**inner, "digest": outer}})
    finding = seal_finding(run)
    assert finding.word == "tampered" and "outcome.json" in (finding.reason or "")


def test_what_is_written_after_the_end_changes_nothing(run: RunPaths) -> None:
    digest = seal_finding(run).digest
    for name in ("result.json", "report.md", "status.json", "notes.txt", "events/rank0.alive"):
        (run.root / name).write_text("later")
    for folder in (run.capture, run.weights):
        folder.mkdir()
        (folder / "tensor.npy").write_bytes(b"0")
    finding = seal_finding(run)
    assert (finding.word, finding.digest) == ("sealed", digest)


@pytest.mark.parametrize("change", [{"left_out": []}, {"left_out": ["weights"]}, {"version": 2}, {"version": 9}])
def test_no_word_of_a_seal_can_be_changed(run: RunPaths, change: dict[str, object]) -> None:
    run.capture.mkdir()
    seal_again(run)
    outcome = json.loads(run.outcome.read_text())
    write_json(run.outcome, {**outcome, "seal": {**outcome["seal"], **change}})
    assert seal_finding(run).word == "tampered"


def test_a_seal_of_version_2_still_holds(run: RunPaths) -> None:
    outcome = json.loads(run.outcome.read_text())
    before = {**outcome["seal"], "version": 2, "digest": json_digest(outcome["seal"]["files"])}
    write_json(run.outcome, {**outcome, "seal": before})
    assert seal_finding(run).word == "sealed"


def test_what_is_not_sealed_is_listed(run: RunPaths) -> None:
    run.capture.mkdir()
    run.status.write_text("{}")
    seal_again(run)
    assert json.loads(run.outcome.read_text())["seal"]["left_out"] == ["capture", "status.json"]
    shutil.rmtree(run.capture)
    assert seal_finding(run).word == "sealed"


def test_a_run_of_an_earlier_version_keeps_its_figures_and_is_called_unsealed(run: RunPaths) -> None:
    unseal(run)
    result = collect(run)
    assert result.status.word == "unsealed" and "earlier version" in result.status.reasons[0]
    assert result.throughput and result.memory.expectation and result.memory.expectation.ratio
    assert main(["evidence", "collect", str(run.root)]) == 0


def test_a_run_whose_platform_was_killed_is_unsealed_and_failed(run: RunPaths) -> None:
    run.outcome.unlink()
    result = collect(run)
    assert result.status.failure == "platform" and result.seal and result.seal.word == "unsealed"
    assert (result.seal.reason or "").startswith("outcome.json ")


def test_a_rank_that_may_still_write_leaves_the_run_without_a_seal(run: RunPaths) -> None:
    fail(run, process=4711, state="D", signal=9, exit_code=None)
    finding = seal_finding(run)
    assert finding.word == "unsealed" and "still write" in (finding.reason or "")


@pytest.mark.parametrize("make", [os.symlink, lambda target, path: os.mkfifo(path)], ids=["link", "pipe"])
def test_a_link_or_a_pipe_is_neither_followed_nor_sealed(
    run: RunPaths, tmp_path: Path, make: Callable[[Path, Path], None]
) -> None:
    (tmp_path / "secret").write_text("of somebody else")
    make(tmp_path / "secret", run.logs / "rank0.log")
    seal_again(run)
    finding = seal_finding(run)
    assert finding.word == "unsealed" and "logs/rank0.log:" in (finding.reason or "")
    assert main(["evidence", "bundle", str(run.root), "--output", str(tmp_path / "b.zip")]) == 2


def test_a_file_exchanged_for_a_link_to_a_copy_is_found(run: RunPaths, tmp_path: Path) -> None:
    run.telemetry.rename(tmp_path / "copy")
    run.telemetry.symlink_to(tmp_path / "copy")
    assert "telemetry.jsonl is" in (seal_finding(run).reason or "")


def test_a_name_that_is_no_text_is_sealed_too(run: RunPaths) -> None:
    (run.logs / os.fsdecode(b"\xff.log")).write_text("x")
    seal_again(run)
    assert seal_finding(run).word == "sealed"


@pytest.mark.parametrize("levels", [400, 900])
def test_a_deep_document_is_sealed_too(levels: int, run: RunPaths) -> None:
    """JSON of some hundred levels is read, and what walks through it has fewer at hand."""
    deep = run.logs / "rank0.imported.json"
    deep.write_text('{"files": ' + "[" * levels + "]" * levels + "}")
    seal_again(run)
    assert seal_finding(run).word == "sealed"
    deep.write_text('{"files": ' + "[" * levels + " ]" * levels + "}")
    assert seal_finding(run).word == "tampered"


def test_another_word_keeps_its_reasons_and_gets_a_warning(run: RunPaths) -> None:
    break_off(run, 7)
    assert collect(run).warnings == ()
    faster(run)
    result = collect(run)
    assert result.status.word == "invalid" and "is tampered:" in result.warnings[0]
    assert result.alignment.verdict == "unchecked"


# -- where the words are shown, and what such a run may not do


@pytest.fixture(params=["unsealed", "tampered"])
def doubtful(request: pytest.FixtureRequest, run: RunPaths) -> RunPaths:
    (unseal if request.param == "unsealed" else faster)(run)
    return run


def test_every_table_shows_the_word_in_place_of_valid(doubtful: RunPaths) -> None:
    result = collect(doubtful)
    word = result.status.word
    for text in (
        format_text([result, result]),
        format_markdown([result]),
        format_results("csv", [result], [None]),
        format_json([result], [None]),
    ):
        assert word in text and "valid" not in text.replace("invalid", "")
    assert row_notes([ExportedRun(result, read_plan(doubtful), {})])[1].endswith(f": {word}")


def test_it_is_in_no_median_and_beside_no_published_row(doubtful: RunPaths, recorded: Path) -> None:
    good, bad = collect(RunPaths(recorded)), collect(doubtful)
    (group,) = repeats.group_repeats([good, bad.model_copy(update={"repeat": 2})], ["one plan"] * 2)
    assert group.valid_count == 1 and group.figures == ()
    line = measured_row(bad)
    assert line.tokens_per_second_per_device is line.mfu_high is line.memory_bytes is None


def test_it_becomes_no_reference_no_noise_and_no_certificate(doubtful: RunPaths, recorded: Path) -> None:
    word = collect(doubtful).status.word
    reference = make_reference(RunPaths(recorded), "the test's")
    for attempt in (lambda: make_reference(doubtful, "why"), lambda: add_noise(reference, doubtful, "why")):
        with pytest.raises(UsageError, match=f"is {word} \\(.*valid run"):
            attempt()


def test_collect_says_tampered_with_code_4(run: RunPaths, capsys: pytest.CaptureFixture[str]) -> None:
    faster(run)
    assert main(["evidence", "collect", str(run.root)]) == 4
    out, err = capsys.readouterr()
    assert out.endswith(": tampered\n") and "events/rank0.jsonl differs" in err
    assert json.loads(run.result.read_text())["status"]["word"] == "tampered"
    assert "tampered" in run.report.read_text()


def test_the_list_of_runs_shows_it(doubtful: RunPaths) -> None:
    write_status(doubtful, "done", "valid")
    assert run_state.state_text(doubtful) == f"done: {collect(doubtful).status.word}"


# -- at the end of a run


def test_an_interrupt_while_the_files_are_sealed_keeps_the_outcome(
    run: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[RunPaths] = []

    def interrupted(paths: RunPaths, outcome: Event) -> Event:
        calls.append(paths)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return add_seal(paths, outcome)

    monkeypatch.setattr(runner, "add_seal", interrupted)
    run.outcome.unlink()
    with pytest.raises(KeyboardInterrupt):
        runner._store_and_finish(run, Outcome("exited", tuple(ProcessEnd(r, 0, None, False) for r in (0, 1))))
    assert collect(run).status.word == "valid"


def test_a_folder_that_was_removed_keeps_no_steps(run: RunPaths) -> None:
    shutil.rmtree(run.root)
    with pytest.raises(RunFailed, match="the folder was removed while the run wrote to it, and its steps are lost"):
        runner._store_and_finish(run, Outcome("exited", ()))


def test_after_a_full_disk_collect_finds_the_seal(run: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    """The outcome was written; the result was not."""

    def full(*_: object) -> Result:
        raise OSError(28, "No space left on device", str(run.result))

    with (
        monkeypatch.context() as patch,
        pytest.raises(RunFailed, match="a result"),
        directory.status_ended_on_error(run),
    ):
        patch.setattr(runner, "finish", full)
        runner._store_and_finish(run, Outcome("exited", tuple(ProcessEnd(r, 0, None, False) for r in (0, 1))))
    assert main(["evidence", "collect", str(run.root)]) == 0 and collect(run).status.word == "valid"


def test_align_gives_a_tampered_run_no_verdict(
    run: RunPaths, recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    faster(run)
    assert main(["align", str(run.root), "--reference", str(recorded)]) == 4
    out = capsys.readouterr().out
    assert out.startswith("unchecked: ") and "is tampered" in out

"""References: made from valid runs only, stale when their case changes, and what runs are held against."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from levelfield.catalog import lookup
from levelfield.catalog.registry import Registry
from levelfield.cli.main import main
from levelfield.errors import GateFailed, UsageError
from levelfield.judge.admission import check_ceiling, first_calibration
from levelfield.judge.collector import collect
from levelfield.judge.noise import limits_from
from levelfield.judge.promotion import add_noise, make_reference, promoted_reference
from levelfield.measure.parameter_counts import parameter_shapes
from levelfield.run import scheduler
from levelfield.rundir.directory import read_plan, write_atomically
from levelfield.specs.base import dump, load
from levelfield.specs.paths import RunPaths
from levelfield.specs.reference import NoiseRow, Reference
from levelfield.specs.result import Alignment
from levelfield.studies import variations
from plans import PLUGINS, ROOT
from recorded_runs import Event, change_all_steps, edit, insert_event, seal_again


@pytest.fixture(autouse=True)
def with_gradients(run: RunPaths) -> None:
    """Both ranks report half of each parameter's square at step 1, as data-parallel replicas do."""
    plan = read_plan(run)
    names = list(parameter_shapes(plan.work.model, plan.work.training.sequence_length))
    for rank in range(2):
        event = {"event": "gradients", "step": 1, "squares": {name: 0.5 / len(names) for name in names}}
        insert_event(run, rank, event)


@pytest.fixture
def reference(run: RunPaths, twin: RunPaths) -> Reference:
    """The run as a reference that knows the noise of another run."""
    return add_noise(make_reference(run, "the test's"), twin)


@pytest.fixture
def twin(run: RunPaths, tmp_path: Path) -> RunPaths:
    """Another run of the same, a millionth apart."""
    return copied(run, tmp_path, "20260102T030406Z_tiny_fake_fake_twin00", 1 + 1e-6)


def copied(
    run: RunPaths,
    folder: Path,
    name: str,
    factor: float = 1.0,
    micro_batch: int | None = None,
    framework: str | None = None,
) -> RunPaths:
    """A copy of the run under another name, with its losses times `factor` and changes of its plan."""
    other = RunPaths(Path(shutil.copytree(run.root, folder / "runs" / name)))
    plan = read_plan(other).model_copy(update={"run_id": name})
    if micro_batch:
        plan = plan.model_copy(update={"tuning": plan.tuning.model_copy(update={"micro_batch": micro_batch})})
    if framework:
        used = plan.implementation.model_copy(update={"framework": framework})
        plan = plan.model_copy(update={"implementation": used})
    write_atomically(other.plan, dump(plan))
    scale_losses(other, factor)
    return other


def scale_losses(run: RunPaths, factor: float, first: int = 1) -> None:
    def scale(event: Event) -> None:
        event["loss"] *= factor if event["step"] >= first else 1

    change_all_steps(run, scale)


def alignment(run: RunPaths, reference: Reference) -> Alignment:
    """The alignment of the run with a reference, which is put into its directory."""
    write_atomically(run.reference, dump(reference))
    seal_again(run)
    return collect(run).alignment


def rows_of_noise(run: RunPaths, reference: Reference) -> str:
    """The rows that the limits of the run's alignment come from, as the result counts them."""
    counted = re.search(r"limit of (\d+ rows? \(.*?\))", alignment(run, reference).limits or "")
    return counted[1] if counted else ""


def test_a_run_is_aligned_with_itself_and_within_the_noise(run: RunPaths, twin: RunPaths, reference: Reference) -> None:
    assert alignment(run, reference).verdict == "aligned"
    assert alignment(twin, reference).verdict == "aligned"
    assert len(alignment(twin, reference).layers) == 6
    assert rows_of_noise(twin, reference) == "1 row (1 repeat)"


@pytest.mark.parametrize(("factor", "first", "word"), [(1.003, 1, "different"), (1.003, 8, "diverged")])
def test_a_bias_is_caught(twin: RunPaths, reference: Reference, factor: float, first: int, word: str) -> None:
    scale_losses(twin, factor, first)
    assert alignment(twin, reference).verdict == word


def test_doubled_gradients_are_caught_where_the_loss_is_blind(twin: RunPaths, reference: Reference) -> None:
    def double(events: list[Event]) -> list[Event]:
        for event in events:
            if event["event"] == "gradients":
                event["squares"] = {name: 4 * square for name, square in event["squares"].items()}
            if event["event"] == "step":
                event["grad_norm"] *= 2
        return events

    for rank in range(2):
        edit(twin.events / f"rank{rank}.jsonl", double)
    assert collect(twin).status.word == "valid"
    different = alignment(twin, reference)
    assert different.verdict == "different" and different.reason.startswith("gradients")


@pytest.mark.parametrize("name", ["tokens", "initial_weights"])
def test_other_tokens_and_weights_of_the_same_work_are_different(
    run: RunPaths, reference: Reference, name: str
) -> None:
    """The run is valid: it says itself that it did other work than the one that it was given."""
    digest = getattr(reference.identity, name)
    changed = reference.identity.model_copy(update={name: "0" * 16})
    different = alignment(run, reference.model_copy(update={"identity": changed}))
    assert collect(run).status.word == "valid" and different.verdict == "different"
    assert f"({name}: found {digest[:19]}, expected {'0' * 16})" in different.reason
    assert [layer.name for layer in different.layers] == ["identity"]


def test_another_corpus_is_unchecked(run: RunPaths, reference: Reference) -> None:
    changed = reference.identity.model_copy(update={"corpus": "sha256:other"})
    assert alignment(run, reference.model_copy(update={"identity": changed})).verdict == "unchecked"


def test_a_reference_older_than_its_case_is_stale(run: RunPaths, reference: Reference) -> None:
    changed = reference.identity.model_copy(update={"work": "sha256:older"})
    stale = alignment(run, reference.model_copy(update={"identity": changed}))
    assert stale.verdict == "not comparable" and "stale" in stale.reason


def test_without_a_reference_a_run_is_unchecked_and_collect_writes_the_same_bytes(
    run: RunPaths, reference: Reference
) -> None:
    assert collect(run).alignment.verdict == "unchecked"
    write_atomically(run.reference, dump(reference))
    seal_again(run)
    assert dump(collect(run)) == dump(collect(run))


def test_only_a_valid_run_becomes_a_reference_or_noise(twin: RunPaths, reference: Reference) -> None:
    scale_losses(twin, 2.0, first=10)
    (twin.events / "rank1.jsonl").unlink()
    with pytest.raises(UsageError, match="twin00 is invalid"):
        make_reference(twin, "why")
    with pytest.raises(UsageError, match="twin00 is invalid"):
        add_noise(reference, twin)


def test_noise_of_other_work_is_refused(twin: RunPaths, reference: Reference) -> None:
    changed = reference.identity.model_copy(update={"initial_weights": "sha256:other"})
    with pytest.raises(UsageError, match="initial_weights differ"):
        add_noise(reference.model_copy(update={"identity": changed}), twin)


# ---- what may become noise


@pytest.fixture
def five_rows(run: RunPaths, reference: Reference, tmp_path: Path) -> Reference:
    """A reference with five rows, each a millionth away at most."""
    for size in range(3, 7):
        name = f"20260102T03040{size}Z_tiny_fake_fake_known{size}"
        other = copied(run, tmp_path, name, 1 + size * 1.5e-7, micro_batch=size)
        reference = add_noise(reference, other)
    return reference


def test_a_run_that_differs_does_not_make_itself_aligned(twin: RunPaths, five_rows: Reference) -> None:
    scale_losses(twin, 1.003, first=8)
    with pytest.raises(GateFailed) as refusal:
        add_noise(five_rows, twin)
    for words in (
        "twin00 is diverged from tiny_smoke_fp32: curve 3.0e-03, limit ",
        "loss of step",
        "--replace --reason",
        "align diagnose",
    ):
        assert words in str(refusal.value)
    assert alignment(twin, five_rows).verdict == "diverged"
    reason = "a new kernel"
    forced = add_noise(five_rows, twin, reason=reason)
    assert [row.why for row in forced.noise if row.why] == [reason]
    assert alignment(twin, forced).verdict == "aligned"
    assert re.search(r"1 of .* --replace", alignment(twin, forced).limits or "")


# ---- many small steps


def limit_of(reference: Reference, layer: str) -> float:
    limits = getattr(limits_from(reference), layer)
    return max(limits.values())


def widening_row(reference: Reference, layer: str, number: int) -> NoiseRow:
    """A row of another framework whose differences are nine tenths of the limits of its day."""
    sizes = {name: 0.9 * limit_of(reference, name) for name in ("first_step", "gradient", "curve", "weights")}
    row = {name: size if name == layer else 0.01 * size for name, size in sizes.items()}
    return NoiseRow(
        changed=f"other{number} 1.0, DP1TP1PP1, micro-batch {number}",
        run_id=f"2027010{number}T000000Z_other",
        first_step=row["first_step"],
        curve=row["curve"],
        gradients={1: {"mlp.up.weight": row["gradient"]}},
        weights={"mlp.up.weight": {"norm": row["weights"]}},
        recorded=f"2027-01-0{number}T00:00:00+00:00",
    )


@pytest.mark.parametrize(
    ("layer", "name"),
    [
        ("first_step", "first step"),
        pytest.param("gradient", "gradients", marks=pytest.mark.thorough),
        ("curve", "curve"),
        pytest.param("weights", "final weights", marks=pytest.mark.thorough),
    ],
)
def test_rows_within_the_limits_of_their_days_do_not_widen_them_without_end(
    five_rows: Reference, layer: str, name: str
) -> None:
    """Four rows widened the limit of the gradients 23 times, each one admitted."""
    first, reference = limit_of(five_rows, layer), five_rows
    with pytest.raises(GateFailed, match=rf"widen .* tiny_smoke_fp32 for {name} to [\d.]+ times"):
        for number in range(1, 5):
            row = widening_row(reference, layer, number)
            after = reference.model_copy(update={"noise": (*reference.noise, row)})
            check_ceiling(reference, after, row.run_id)
            reference = after
    assert limit_of(reference, layer) <= 8 * first


def test_a_ratchet_of_runs_stops_at_the_ceiling_and_goes_on_with_a_reason(
    run: RunPaths, five_rows: Reference, tmp_path: Path
) -> None:
    reference, admitted = five_rows, []
    for number in range(1, 6):
        size = 0.9 * limit_of(reference, "curve")
        other = copied(run, tmp_path, f"2027010{number}T030405Z_tiny_fake_fake_step0{number}", micro_batch=8 + number)
        scale_losses(other, 1 + size, first=2)
        try:
            reference = add_noise(reference, other)
        except GateFailed as error:
            assert "most 4 times" in str(error)
            assert "--replace --reason" in str(error)
            break
        admitted.append(other)
    assert len(admitted) < 5 and limit_of(reference, "curve") <= 4 * limit_of(five_rows, "curve")
    forced = add_noise(reference, other, reason="a new kernel")
    assert limit_of(forced, "curve") > limit_of(reference, "curve")
    small = copied(run, tmp_path, "20270109T030405Z_tiny_fake_fake_small0", 1 + 1e-7, micro_batch=20)
    assert len(add_noise(forced, small).noise) == len(forced.noise) + 1, "what was widened with a reason may stay"


def test_a_recorded_row_does_not_grow(run: RunPaths, five_rows: Reference, tmp_path: Path) -> None:
    """Else the first calibration, which the ceiling is of, would move."""
    row = min(five_rows.noise, key=lambda row: row.run_id)
    again = copied(run, tmp_path / "again", row.run_id, 1 + 1.2e-6, micro_batch=3)
    with pytest.raises(GateFailed, match=rf"{row.run_id} .* tiny_smoke_fp32 .* smaller"):
        add_noise(five_rows, again)
    same = add_noise(five_rows, RunPaths(tmp_path / "runs" / row.run_id))
    assert sorted(same.noise, key=str) == sorted(five_rows.noise, key=str)


def test_no_shipped_reference_is_beyond_its_ceiling() -> None:
    registry = Registry([])
    for name in registry.references:
        reference = registry.reference(name)
        first = first_calibration(reference)
        if first is not None:
            check_ceiling(first, reference, name)


@pytest.mark.parametrize(("factor", "holds"), [(1 + 1e-6, True), (1 + 1e-5, False), (1.003, False), (0.997, False)])
def test_the_first_noise_has_a_ceiling(run: RunPaths, factor: float, holds: bool, tmp_path: Path) -> None:
    first, other = make_reference(run, "the test's"), copied(run, tmp_path, "other", factor)
    if holds:
        assert len(add_noise(first, other).noise) == 1
        return
    with pytest.raises(GateFailed, match=r"first step .*limit 2.0e-06.* 5 rows"):
        add_noise(first, other)


def test_the_first_noise_is_of_the_references_own_framework(
    run: RunPaths, five_rows: Reference, tmp_path: Path
) -> None:
    other = copied(run, tmp_path, "other", 1 + 1e-7, framework="elsewhere")
    with pytest.raises(GateFailed, match=r"with elsewhere, .* with fake\..*\(found 0\)"):
        add_noise(make_reference(run, "the test's"), other)
    assert "1 framework" in rows_of_noise(other, add_noise(five_rows, other))


def test_a_reference_is_no_noise_of_its_own(run: RunPaths, reference: Reference) -> None:
    with pytest.raises(UsageError, match="made from"):
        add_noise(reference, run)


def test_a_row_keeps_who_and_what_varied_and_every_difference(run: RunPaths, five_rows: Reference) -> None:
    row = next(row for row in five_rows.noise if "micro-batch 5" in row.changed)
    assert len(row.losses) == read_plan(run).work.training.steps and max(row.losses) == pytest.approx(
        row.curve, rel=0.01
    )
    assert set(row.gradients) == {1} and "mlp.up.weight" in row.gradients[1]
    assert row.by and row.recorded and row.hardware and row.why is None
    assert rows_of_noise(run, five_rows) == "5 rows (4 micro-batch, 1 repeat)"


def test_a_run_recorded_twice_has_one_row(twin: RunPaths, reference: Reference) -> None:
    assert len(add_noise(reference, twin).noise) == len(reference.noise) == 1


def test_rows_of_older_references_are_read_as_maxima(run: RunPaths, reference: Reference) -> None:
    content = json.loads(dump(reference))
    row = content["noise"][0]
    for key in ("losses", "gradients", "weights", "hardware", "by", "recorded", "why"):
        del row[key]
    del content["weights"], content["settings"]
    write_atomically(run.reference, json.dumps(content))
    seal_again(run)
    older = collect(run).alignment
    assert older.verdict == "aligned"
    assert "(1 threads or " in (older.limits or "")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--replace"], 2, "give the reason"),
        (["--replace", "--reason", " "], 2, "found an empty value after `--reason`"),
        (["--reason", "x"], 2, "--reason gives the reason of --replace"),
        ([], 4, "is different from tiny_smoke_fp32"),
        (["--replace", "--reason", "new kernels"], 0, ""),
    ],
)
def test_references_noise_refuses_and_keeps_the_file(
    twin: RunPaths,
    reference: Reference,
    arguments: list[str],
    code: int,
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = plugin_reference(tmp_path, reference.model_copy(update={"noise": ()}))
    before = path.read_text()
    scale_losses(twin, 1.003)
    plugins = ["--plugins", str(tmp_path / "plugins")]
    assert main(["align", "references", "noise", reference.name, str(twin.root), *plugins, *arguments]) == code
    assert words in " ".join(capsys.readouterr().err.split())
    assert (path.read_text() == before) == (code != 0)
    if code == 0:
        assert main(["align", "references", "list", *plugins]) == 0
        assert "new kernels" in capsys.readouterr().out


@pytest.mark.parametrize(("arguments", "code", "rows"), [([], 4, 6), (["--replace", "--reason", "new kernels"], 0, 7)])
def test_calibrate_records_what_holds_and_refuses_the_rest(
    run: RunPaths,
    five_rows: Reference,
    arguments: list[str],
    code: int,
    rows: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One variation differs, the next one holds: the second is recorded although the first was refused."""
    wrong = copied(run, tmp_path, "20260102T030408Z_tiny_fake_fake_wrong0", 1.003, micro_batch=8)
    right = copied(run, tmp_path, "20260102T030409Z_tiny_fake_fake_right0", 1 + 3e-7, micro_batch=9)
    path = plugin_reference(tmp_path, five_rows)
    monkeypatch.setattr(lookup, "find_reference", lambda registry, plan: five_rows)
    monkeypatch.setattr(variations, "variation_entries", lambda registry, plan: [])
    monkeypatch.setattr(scheduler, "plan_jobs", lambda registry, entries, corpus: [None])
    monkeypatch.setattr(scheduler, "plan_with_stored_peak", lambda job: read_plan(run))
    monkeypatch.setattr(scheduler, "run_jobs", lambda *arguments: [collect(other) for other in (wrong, right)])
    folders = ["--plugins", str(tmp_path / "plugins"), "--runs", str(tmp_path / "runs")]
    assert main(["align", "calibrate", "tiny:fake", *folders, *arguments]) == code
    assert len(load(Reference, path).noise) == rows
    message = " ".join(capsys.readouterr().err.split())
    assert bool(re.search(r"wrong0 is different from tiny_smoke_fp32: .* 3\.0e-03, limit", message)) == (code == 4)


@pytest.mark.parametrize("option", [["--replace"], ["--reason", "x"]])
def test_align_of_a_run_records_nothing(run: RunPaths, option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["align", str(run.root), *option])
    assert ended.value.code == 2 and "unrecognized arguments" in capsys.readouterr().err


def plugin_reference(folder: Path, reference: Reference) -> Path:
    path = folder / "plugins" / "configs" / "references" / f"{reference.name}.json"
    path.parent.mkdir(parents=True)
    path.write_text(dump(reference))
    return path


def test_a_run_that_fails_against_the_present_reference_is_promoted_only_with_replace(
    twin: RunPaths, reference: Reference
) -> None:
    scale_losses(twin, 1.003)
    write_atomically(twin.reference, dump(reference))
    seal_again(twin)
    with pytest.raises(GateFailed, match="--replace"):
        promoted_reference(twin, "better", reference, is_forced=False)
    (row,) = reference.noise
    assert row.run_id == read_plan(twin).run_id
    other = row.model_copy(update={"run_id": "another run"})
    made = promoted_reference(twin, "better", reference.model_copy(update={"noise": (row, other)}), is_forced=True)
    assert (made.why, made.run_id, made.noise) == ("better", row.run_id, (other,))


def test_a_damaged_reference_is_named(run: RunPaths, reference: Reference, capsys: pytest.CaptureFixture[str]) -> None:
    content = json.loads(dump(reference))
    content["losses"].pop()
    run.reference.write_text(json.dumps(content))
    assert main(["evidence", "collect", str(run.root)]) == 2
    assert "reference.json" in capsys.readouterr().err


def test_align_shows_each_layer_and_exits_4_unless_aligned(
    run: RunPaths, twin: RunPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["align", str(twin.root), "--reference", str(run.root), "--json"]) == 4
    content = json.loads(capsys.readouterr().out)
    assert content["verdict"] == "inconclusive"
    assert [layer["passed"] for layer in content["layers"]] == [None, None, None, True, None]
    scale_losses(twin, float("nan"), first=30 if read_plan(run).work.training.steps >= 30 else 3)
    assert main(["align", str(twin.root), "--reference", str(run.root)]) == 4
    assert capsys.readouterr().out.startswith("diverged: ")


@pytest.mark.parametrize("behind", [True, False])
def test_the_runs_folder_may_be_named_before_the_action_and_after_it(
    behind: bool, run: RunPaths, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = ["--runs", str(tmp_path / "nowhere")]
    promote = ["promote", run.root.name, "--reason", "x"]
    assert main(["align", "references", *promote, *runs] if behind else ["align", "references", *runs, *promote]) == 2
    assert str(tmp_path / "nowhere") in " ".join(capsys.readouterr().err.split())


def test_calibrate_without_a_case_and_promote_without_a_run_are_wrong_usage(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["align", "calibrate"])
    assert ended.value.code == 2 and "required: CASE" in capsys.readouterr().err
    assert main(["align", "references", "promote", "no-such-run", "--reason", "x"]) == 2


# ---- where a reference is written


def test_a_new_reference_is_written_beside_its_case_in_a_folder_of_plugins(
    run: RunPaths, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And its place is printed. Nothing is written into the checkout."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    (second / "configs/cases").mkdir(parents=True)
    shutil.copy(PLUGINS / "configs/cases/tiny.yaml", second / "configs/cases")
    before = set((ROOT / "configs/references").iterdir())
    place = ["--plugins", str(first), "--plugins", str(second)]
    assert main(["align", "references", "promote", str(run.root), "--reason", "x", *place]) == 0
    written = second / "configs/references/tiny_smoke_fp32.json"
    assert load(Reference, written).why == "x" and str(written) in capsys.readouterr().out.replace("\n  ", "")
    assert main(["align", "references", "promote", str(run.root), "--reason", "y", "--plugins", str(second)]) == 0
    assert load(Reference, written).why == "y", "a stored one stays where it is"
    shutil.rmtree(second / "configs")
    assert main(["align", "references", "promote", str(run.root), "--reason", "z", *place]) == 0
    assert load(Reference, first / "configs/references/tiny_smoke_fp32.json").why == "z"
    assert set((ROOT / "configs/references").iterdir()) == before


def test_a_run_that_leaves_out_steps_of_a_window_that_it_was_to_record_is_invalid(run: RunPaths) -> None:
    plan = read_plan(run)
    assert collect(run).status.word == "valid"
    write_atomically(run.plan, dump(plan.model_copy(update={"window_gradients": True})))
    seal_again(run)
    status = collect(run).status
    assert status.word == "invalid"
    assert status.reasons[0].startswith(f"gradients: step {plan.work.window.first_step}: ")

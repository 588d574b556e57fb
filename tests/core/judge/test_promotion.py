"""References: made from valid runs only, stale when their case changes, and what runs are held against."""

from __future__ import annotations

import json
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
from levelfield.judge.promotion import promoted, reference_from, with_noise
from levelfield.measure.parameter_counts import parameter_shapes
from levelfield.run import scheduler
from levelfield.rundir.directory import read_plan, write_atomically
from levelfield.specs.base import dump, load
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan
from levelfield.specs.reference import NoiseRow, Reference
from levelfield.studies import variations
from plans import PLUGINS, ROOT
from recorded_runs import change_all_steps, edit, seal_again


@pytest.fixture(autouse=True)
def with_gradients(run: RunPaths) -> None:
    """Both ranks report half of each parameter's square at step 1, as data-parallel replicas do."""
    plan = read_plan(run)
    names = list(parameter_shapes(plan.work.model, plan.work.training.sequence_length))
    for rank in range(2):
        event = {"event": "gradients", "step": 1, "squares": {name: 0.5 / len(names) for name in names}}
        edit(run.events / f"rank{rank}.jsonl", lambda events, event=event: [*events[:3], event, *events[3:]])


@pytest.fixture
def reference(run: RunPaths, twin: RunPaths) -> Reference:
    """The run as a reference that knows the noise of another run."""
    return with_noise(reference_from(run, "the test's"), twin)


@pytest.fixture
def twin(run: RunPaths, tmp_path: Path) -> RunPaths:
    """Another run of the same, a millionth apart."""
    return copied(run, tmp_path, "20260102T030406Z_tiny_fake_fake_twin00", 1 + 1e-6)


def copied(run: RunPaths, folder: Path, name: str, factor: float = 1.0, **plan: object) -> RunPaths:
    """A copy of the run under another name, with its losses times `factor` and changes of its plan."""
    other = RunPaths(Path(shutil.copytree(run.root, folder / "runs" / name)))
    found = read_plan(other).model_copy(update={"run_id": name})
    write_atomically(other.plan, dump(changed_plan(found, **plan)))
    scale_losses(other, factor)
    return other


def changed_plan(plan: Plan, micro_batch: int | None = None, framework: str | None = None) -> Plan:
    if micro_batch:
        plan = plan.model_copy(update={"tuning": plan.tuning.model_copy(update={"micro_batch": micro_batch})})
    if framework:
        used = plan.implementation.model_copy(update={"framework": framework})
        plan = plan.model_copy(update={"implementation": used})
    return plan


def scale_losses(run: RunPaths, factor: float, first: int = 1) -> None:
    def scale(event):
        event["loss"] *= factor if event["step"] >= first else 1

    change_all_steps(run, scale)


def verdict(run: RunPaths, reference: Reference):
    write_atomically(run.reference, dump(reference))
    seal_again(run)
    return collect(run).alignment


def test_a_run_is_aligned_with_itself_and_within_the_noise(run, twin, reference):
    assert verdict(run, reference).verdict == "aligned"
    found = verdict(twin, reference)
    assert (found.verdict, len(found.layers)) == ("aligned", 6)
    assert "tolerance limit of 1 row (1 repeat)" in found.limits


@pytest.mark.parametrize(("factor", "first", "word"), [(1.003, 1, "different"), (1.003, 8, "diverged")])
def test_a_bias_is_caught(twin, reference, factor, first, word):
    scale_losses(twin, factor, first)
    assert verdict(twin, reference).verdict == word


def test_doubled_gradients_are_caught_where_the_loss_is_blind(twin, reference):
    def double(events):
        for event in events:
            if event["event"] == "gradients":
                event["squares"] = {name: 4 * square for name, square in event["squares"].items()}
            if event["event"] == "step":
                event["grad_norm"] *= 2
        return events

    for rank in range(2):
        edit(twin.events / f"rank{rank}.jsonl", double)
    assert collect(twin).status.word == "valid"
    found = verdict(twin, reference)
    assert found.verdict == "different" and found.reason.startswith("gradients")


@pytest.mark.parametrize("name", ["tokens", "initial_weights"])
def test_other_tokens_and_weights_of_the_same_work_are_different(run, reference, name):
    """The run is valid: it says itself that it did other work than the one that it was given."""
    own = getattr(reference.identity, name)
    changed = reference.identity.model_copy(update={name: "0" * 16})
    found = verdict(run, reference.model_copy(update={"identity": changed}))
    assert collect(run).status.word == "valid" and found.verdict == "different"
    assert f"({name}: found {own[:19]}, expected {'0' * 16})" in found.reason
    assert [layer.name for layer in found.layers] == ["identity"]


def test_another_corpus_is_unchecked(run, reference):
    changed = reference.identity.model_copy(update={"corpus": "sha256:other"})
    assert verdict(run, reference.model_copy(update={"identity": changed})).verdict == "unchecked"


def test_a_reference_older_than_its_case_is_stale(run, reference):
    changed = reference.identity.model_copy(update={"work": "sha256:older"})
    found = verdict(run, reference.model_copy(update={"identity": changed}))
    assert found.verdict == "not comparable" and "stale" in found.reason


def test_without_a_reference_a_run_is_unchecked_and_collect_writes_the_same_bytes(run, reference):
    assert collect(run).alignment.verdict == "unchecked"
    write_atomically(run.reference, dump(reference))
    seal_again(run)
    assert dump(collect(run)) == dump(collect(run))


def test_only_a_valid_run_becomes_a_reference_or_noise(run, twin, reference):
    scale_losses(twin, 2.0, first=10)
    (twin.events / "rank1.jsonl").unlink()
    for make in (lambda: reference_from(twin, "why"), lambda: with_noise(reference, twin)):
        with pytest.raises(UsageError, match="need a valid run"):
            make()


def test_noise_of_other_work_is_refused(twin, reference):
    changed = reference.identity.model_copy(update={"initial_weights": "sha256:other"})
    with pytest.raises(UsageError, match="initial_weights differ"):
        with_noise(reference.model_copy(update={"identity": changed}), twin)


# ---- what may become noise


@pytest.fixture
def known(run, reference, tmp_path) -> Reference:
    """A reference with five rows, each a millionth away at most."""
    for size in range(3, 7):
        name = f"20260102T03040{size}Z_tiny_fake_fake_known{size}"
        other = copied(run, tmp_path, name, 1 + size * 1.5e-7, micro_batch=size)
        reference = with_noise(reference, other)
    return reference


def test_a_run_that_differs_does_not_make_itself_aligned(run, twin, known, tmp_path):
    scale_losses(twin, 1.003, first=8)
    with pytest.raises(GateFailed) as caught:
        with_noise(known, twin)
    for words in (
        "twin00 is diverged from tiny_smoke_fp32: curve 3.0e-03, limit ",
        "loss of step",
        "--replace --why",
        "align diagnose",
    ):
        assert words in str(caught.value)
    assert verdict(twin, known).verdict == "diverged"
    forced = with_noise(known, twin, reason="a new kernel")
    assert [row.why for row in forced.noise if row.why] == ["a new kernel"]
    found = verdict(twin, forced)
    assert found.verdict == "aligned" and "1 of them recorded with --replace" in found.limits


# ---- many small steps


def limit_of(reference: Reference, layer: str) -> float:
    found = getattr(limits_from(reference), layer)
    return max(found.values())


def widening_row(reference: Reference, layer: str, number: int) -> NoiseRow:
    """A row of another framework whose differences are nine tenths of the limits of its day."""
    sizes = {name: 0.9 * limit_of(reference, name) for name in ("first_step", "gradient", "curve", "weights")}
    kept = {name: size if name == layer else 0.01 * size for name, size in sizes.items()}
    return NoiseRow(
        changed=f"other{number} 1.0, DP1TP1PP1, micro-batch {number}",
        run_id=f"2027010{number}T000000Z_other",
        first_step=kept["first_step"],
        curve=kept["curve"],
        gradients={1: {"mlp.up.weight": kept["gradient"]}},
        weights={"mlp.up.weight": {"norm": kept["weights"]}},
        recorded=f"2027-01-0{number}T00:00:00+00:00",
    )


@pytest.mark.parametrize(
    ("layer", "said"),
    [("first_step", "first step"), ("gradient", "gradients"), ("curve", "curve"), ("weights", "final weights")],
)
def test_rows_within_the_limits_of_their_days_do_not_widen_them_without_end(known, layer, said):
    """Four rows widened the limit of the gradients 23 times, each one admitted."""
    first, reference = limit_of(known, layer), known
    with pytest.raises(GateFailed, match=rf"would widen the limit of tiny_smoke_fp32 for {said} to .* times that of"):
        for number in range(1, 5):
            row = widening_row(reference, layer, number)
            after = reference.model_copy(update={"noise": (*reference.noise, row)})
            check_ceiling(reference, after, row.run_id)
            reference = after
    assert limit_of(reference, layer) <= 8 * first


def test_a_ratchet_of_runs_stops_at_the_ceiling_and_goes_on_with_a_reason(run, known, tmp_path):
    reference, admitted = known, []
    for number in range(1, 6):
        size = 0.9 * limit_of(reference, "curve")
        other = copied(run, tmp_path, f"2027010{number}T030405Z_tiny_fake_fake_step0{number}", micro_batch=8 + number)
        scale_losses(other, 1 + size, first=2)
        try:
            reference = with_noise(reference, other)
        except GateFailed as error:
            assert "expected at most 4 times" in str(error) and "--replace --why" in str(error)
            break
        admitted.append(other)
    assert len(admitted) < 5 and limit_of(reference, "curve") <= 4 * limit_of(known, "curve")
    forced = with_noise(reference, other, reason="a new kernel")
    assert limit_of(forced, "curve") > limit_of(reference, "curve")
    small = copied(run, tmp_path, "20270109T030405Z_tiny_fake_fake_small0", 1 + 1e-7, micro_batch=20)
    assert len(with_noise(forced, small).noise) == len(forced.noise) + 1, "what was widened with a reason may stay"


def test_a_recorded_row_does_not_grow(run, known, tmp_path):
    """Else the first calibration, which the ceiling is of, would move."""
    row = min(known.noise, key=lambda row: row.run_id)
    again = copied(run, tmp_path / "again", row.run_id, 1 + 1.2e-6, micro_batch=3)
    with pytest.raises(GateFailed, match="is recorded in tiny_smoke_fp32 with smaller differences"):
        with_noise(known, again)
    same = with_noise(known, RunPaths(tmp_path / "runs" / row.run_id))
    assert sorted(same.noise, key=str) == sorted(known.noise, key=str)


def test_no_shipped_reference_is_beyond_its_ceiling():
    registry = Registry([])
    for name in registry.references:
        reference = registry.reference(name)
        first = first_calibration(reference)
        if first is not None:
            check_ceiling(first, reference, name)


@pytest.mark.parametrize(("factor", "holds"), [(1 + 1e-6, True), (1 + 1e-5, False), (1.003, False), (0.997, False)])
def test_the_first_noise_has_a_ceiling(run, factor, holds, tmp_path):
    first, other = reference_from(run, "the test's"), copied(run, tmp_path, "other", factor)
    if holds:
        assert len(with_noise(first, other).noise) == 1
        return
    with pytest.raises(GateFailed, match=r"first step .*limit 2.0e-06.*fewer than 5 rows of noise"):
        with_noise(first, other)


def test_the_first_noise_is_of_the_references_own_framework(run, known, tmp_path):
    other = copied(run, tmp_path, "other", 1 + 1e-7, framework="elsewhere")
    with pytest.raises(GateFailed, match=r"with elsewhere.*must be of the reference's own framework \(found 0\)"):
        with_noise(reference_from(run, "the test's"), other)
    assert "1 framework" in verdict(other, with_noise(known, other)).limits


def test_a_reference_is_no_noise_of_its_own(run, reference):
    with pytest.raises(UsageError, match="made from"):
        with_noise(reference, run)


def test_a_row_keeps_who_and_what_varied_and_every_difference(run, known):
    row = next(row for row in known.noise if "micro-batch 5" in row.changed)
    assert len(row.losses) == read_plan(run).work.training.steps and max(row.losses) == pytest.approx(
        row.curve, rel=0.01
    )
    assert set(row.gradients) == {1} and "mlp.up.weight" in row.gradients[1]
    assert row.by and row.recorded and row.hardware and row.why is None
    assert "5 rows (4 micro-batch, 1 repeat)" in verdict(run, known).limits


def test_a_run_recorded_twice_has_one_row(twin, reference):
    assert len(with_noise(reference, twin).noise) == len(reference.noise) == 1


def test_rows_of_older_references_are_read_as_maxima(twin, run, reference):
    content = json.loads(dump(reference))
    row = content["noise"][0]
    for key in ("losses", "gradients", "weights", "hardware", "by", "recorded", "why"):
        del row[key]
    del content["weights"], content["settings"]
    write_atomically(run.reference, json.dumps(content))
    seal_again(run)
    found = collect(run).alignment
    assert found.verdict == "aligned" and "1 row (1 threads or micro-batch)" in found.limits


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--replace"], 2, "give the reason"),
        (["--replace", "--why", " "], 2, "found an empty value after `--why`"),
        (["--why", "x"], 2, "--why gives the reason of --replace"),
        ([], 4, "is different from tiny_smoke_fp32"),
        (["--replace", "--why", "new kernels"], 0, ""),
    ],
)
def test_references_noise_refuses_and_keeps_the_file(twin, reference, arguments, code, words, tmp_path, capsys):
    path = plugin_reference(tmp_path, reference.model_copy(update={"noise": ()}))
    before = path.read_text()
    scale_losses(twin, 1.003)
    asked = [
        "align",
        "references",
        "noise",
        reference.name,
        str(twin.root),
        "--plugins",
        str(tmp_path / "plugins"),
        *arguments,
    ]
    assert main(asked) == code
    assert words in " ".join(capsys.readouterr().err.split())
    assert (path.read_text() == before) == (code != 0)
    if code == 0:
        assert main(["align", "references", "list", "--plugins", str(tmp_path / "plugins")]) == 0
        assert "new kernels" in capsys.readouterr().out


@pytest.mark.parametrize(("arguments", "code", "rows"), [([], 4, 6), (["--replace", "--why", "new kernels"], 0, 7)])
def test_calibrate_records_what_holds_and_refuses_the_rest(
    run, twin, known, arguments, code, rows, tmp_path, monkeypatch, capsys
):
    """One variation differs, the next one holds: the second is recorded although the first was refused."""
    wrong = copied(run, tmp_path, "20260102T030408Z_tiny_fake_fake_wrong0", 1.003, micro_batch=8)
    right = copied(run, tmp_path, "20260102T030409Z_tiny_fake_fake_right0", 1 + 3e-7, micro_batch=9)
    path = plugin_reference(tmp_path, known)
    monkeypatch.setattr(lookup, "reference_of", lambda registry, plan: known)
    monkeypatch.setattr(variations, "variations", lambda registry, plan: [])
    monkeypatch.setattr(scheduler, "jobs", lambda registry, entries, corpus: [None])
    monkeypatch.setattr(scheduler, "planned", lambda job: read_plan(run))
    monkeypatch.setattr(scheduler, "run_all", lambda *arguments: [collect(found) for found in (wrong, right)])
    asked = [
        "align",
        "calibrate",
        "tiny:fake",
        "--plugins",
        str(tmp_path / "plugins"),
        "--runs",
        str(tmp_path / "runs"),
    ]
    assert main([*asked, *arguments]) == code
    assert len(load(Reference, path).noise) == rows
    said = " ".join(capsys.readouterr().err.split())
    assert ("wrong0 is different from tiny_smoke_fp32: first step 3.0e-03, limit" in said) == (code == 4)


@pytest.mark.parametrize("option", [["--replace"], ["--why", "x"]])
def test_align_of_a_run_records_nothing(run, option, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["align", str(run.root), *option])
    assert ended.value.code == 2 and "unrecognized arguments" in capsys.readouterr().err


def plugin_reference(folder: Path, reference: Reference) -> Path:
    path = folder / "plugins" / "configs" / "references" / f"{reference.name}.json"
    path.parent.mkdir(parents=True)
    path.write_text(dump(reference))
    return path


def test_a_run_that_fails_against_the_present_reference_is_not_promoted_unless_told(twin, reference):
    scale_losses(twin, 1.003)
    write_atomically(twin.reference, dump(reference))
    seal_again(twin)
    with pytest.raises(GateFailed, match="--replace"):
        promoted(twin, "better", reference, replace=False)
    (own,) = reference.noise
    assert own.run_id == read_plan(twin).run_id
    other = own.model_copy(update={"run_id": "another run"})
    made = promoted(twin, "better", reference.model_copy(update={"noise": (own, other)}), replace=True)
    assert (made.why, made.run_id, made.noise) == ("better", own.run_id, (other,))


def test_a_damaged_reference_is_named(run, reference, monkeypatch, capsys):
    content = json.loads(dump(reference))
    content["losses"].pop()
    run.reference.write_text(json.dumps(content))
    assert main(["evidence", "collect", str(run.root)]) == 2
    assert "reference.json" in capsys.readouterr().err


def test_align_says_each_layer_and_exits_4_unless_aligned(run, twin, capsys):
    assert main(["align", str(twin.root), "--reference", str(run.root), "--json"]) == 4
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "inconclusive"
    assert [x["passed"] for x in found["layers"]] == [None, None, None, True, None]
    scale_losses(twin, float("nan"), first=30 if read_plan(run).work.training.steps >= 30 else 3)
    assert main(["align", str(twin.root), "--reference", str(run.root)]) == 4
    assert capsys.readouterr().out.startswith("diverged: first at step")


@pytest.mark.parametrize("behind", [True, False])
def test_the_runs_folder_may_be_named_before_the_action_and_after_it(behind, run, tmp_path, capsys):
    runs = ["--runs", str(tmp_path / "nowhere")]
    promote = ["promote", run.root.name, "--why", "x"]
    assert main(["align", "references", *promote, *runs] if behind else ["align", "references", *runs, *promote]) == 2
    assert str(tmp_path / "nowhere") in " ".join(capsys.readouterr().err.split())


def test_calibrate_without_a_case_and_promote_without_a_run_are_wrong_usage(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["align", "calibrate"])
    assert ended.value.code == 2 and "required: CASE" in capsys.readouterr().err
    assert main(["align", "references", "promote", "no-such-run", "--why", "x"]) == 2


# ---- where a reference is written


def test_a_new_reference_is_written_beside_its_case_in_a_folder_of_plugins(run, tmp_path, capsys):
    """And its place is printed. Nothing is written into the checkout."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    (second / "configs/cases").mkdir(parents=True)
    shutil.copy(PLUGINS / "configs/cases/tiny.yaml", second / "configs/cases")
    before = set((ROOT / "configs/references").iterdir())
    place = ["--plugins", str(first), "--plugins", str(second)]
    assert main(["align", "references", "promote", str(run.root), "--why", "x", *place]) == 0
    written = second / "configs/references/tiny_smoke_fp32.json"
    assert load(Reference, written).why == "x" and str(written) in capsys.readouterr().out.replace("\n  ", "")
    assert main(["align", "references", "promote", str(run.root), "--why", "y", "--plugins", str(second)]) == 0
    assert load(Reference, written).why == "y", "a stored one stays where it is"
    shutil.rmtree(second / "configs")
    assert main(["align", "references", "promote", str(run.root), "--why", "z", *place]) == 0
    assert load(Reference, first / "configs/references/tiny_smoke_fp32.json").why == "z"
    assert set((ROOT / "configs/references").iterdir()) == before


def test_a_run_that_leaves_out_steps_of_a_window_that_it_was_to_record_is_invalid(run: RunPaths) -> None:
    plan = read_plan(run)
    assert collect(run).status.word == "valid"
    write_atomically(run.plan, dump(plan.model_copy(update={"window_gradients": True})))
    seal_again(run)
    status = collect(run).status
    assert status.word == "invalid"
    assert f"gradients: step {plan.work.window.first_step}: no norms by parameter" in status.reasons[0]

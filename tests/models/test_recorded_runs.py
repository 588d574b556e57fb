"""Recorded runs: which changes make a run stale, which references a change of torch's code trains again."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import layouts
import matrix
import pytest
from layouts import SINGLE, Curve, compare
from levelfield.catalog.code_basis import training_code_digest
from levelfield.catalog.registry import Registry
from levelfield.catalog.support import REFERENCES_FILE, ReferenceState, run_faults
from levelfield.errors import DocumentError
from levelfield.specs.base import dump, load
from levelfield.specs.recorded_runs import (
    Difference,
    LayoutRuns,
    MatrixRun,
    ReferenceCurve,
    ReferenceCurves,
    ReferenceNoise,
)
from levelfield.testing.framework_kit.layout_checks import row_provenance
from matrix import VARIANTS, PlannedRun, RunRecord
from trainings import references
from trainings.references import confirms, curve_of, figures_of, train_references

RIGHT = Difference(
    first_loss=0.0, loss=0.0, grad_norm=0.0, parameter_norm=0.0, total_norm=0.0, same_weights=True, same_tokens=True
)
NOISE = ReferenceNoise(first_loss=1e-9, loss=1e-7, grad_norm=1e-7, parameter_norm=1e-6)
CHANGED = "its code has changed since "
IGNORED = shutil.ignore_patterns("__pycache__", "tested*.json", ".*")


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """The folders of torch, deepspeed and paddle as plugins, with a recorded curve of torch."""
    for name in ("torch", "deepspeed", "paddle"):
        shutil.copytree(layouts.ROOT / "models" / name, tmp_path / "models" / name, ignore=IGNORED)
    record_reference(tmp_path, _curve())
    return tmp_path


def only(models: Path) -> Registry:
    """A registry of these folders in the place of the checkout's."""
    registry = Registry()
    registry.roots = (models,)
    return registry


def code_of(models: Path, framework: str, kind: str = "cpu") -> str:
    return training_code_digest(*only(models).implementation(framework), kind)


def _curve(loss: float = 5.0) -> Curve:
    return Curve((loss, 4.0), (1.0, 1.0), (8, 8), (1, 2), {"a": 3}, {1: {"a": 1.0}})


def record_reference(models: Path, curve: Curve) -> None:
    row = ReferenceCurve(
        **row_provenance(code_of(models, "torch")),
        family="gpt",
        figures=figures_of(curve),
        noise=NOISE,
        difference=RIGHT,
        machine=references.machine(),
    )
    (models / "models" / "torch" / REFERENCES_FILE).write_text(dump(ReferenceCurves(curves=(row,))))


def record(models: Path, framework: str = "paddle") -> Path:
    """The framework's tested.json of one run by its code as it is."""
    implementation, folder = only(models).implementation(framework)
    written = RunRecord(folder / "tested.json", implementation, folder)
    run = MatrixRun(
        **row_provenance(code_of(models, framework)),
        **{"name": SINGLE.name, "family": "gpt", "precision": "fp32", "layout": {}, "steps": 2},
        difference=RIGHT,
        reference=figures_of(_curve()).digest_key,
    )
    written.runs = {f"{framework} gpt fp32 {SINGLE.name}": run}
    written.write(written.runs)
    return written.path


def fault(models: Path, framework: str = "paddle") -> str | None:
    registry = only(models)
    implementation, folder = registry.implementation(framework)
    tested = load(LayoutRuns, folder / "tested.json")
    return run_faults(tested, implementation, folder, ReferenceState(registry))[0]


def change(path: Path) -> None:
    path.open("a").write("CHANGED = True\n")


# ---- which runs a change makes stale


@pytest.mark.parametrize("name", ["decoder.py", "another.py", "table.json", "parts/deep.py"])
def test_a_changed_or_new_file_of_the_framework_makes_its_runs_stale(name: str, models: Path) -> None:
    folder = record(models).parent
    assert fault(models) is None
    (folder / name).parent.mkdir(exist_ok=True)
    change(folder / name)
    run = load(LayoutRuns, folder / "tested.json").runs[0]
    assert run.commit is not None
    assert fault(models) == f"{CHANGED}{run.commit[:12]} of {run.date}"


def test_a_deleted_and_a_renamed_file_make_a_run_stale(models: Path) -> None:
    folder = record(models).parent
    (folder / "decoder.py").rename(folder / "decoders.py")
    assert CHANGED in str(fault(models))
    (folder / "decoders.py").unlink()
    assert CHANGED in str(fault(models))


def test_torch_s_code_counts_for_the_frameworks_that_import_it_and_what_was_measured_for_none(models: Path) -> None:
    before = {name: code_of(models, name) for name in ("torch", "deepspeed", "paddle")}
    assert len(set(before.values())) == 3
    for path in (models / "models").glob("*/implementation.yaml"):
        path.with_name("tested-9.json").write_text("{}")
    assert {name: code_of(models, name) for name in before} == before
    change(models / "models" / "torch" / "model" / "decoder.py")
    assert [name for name in before if code_of(models, name) != before[name]] == ["torch", "deepspeed"]


def test_the_worker_s_code_counts_and_that_of_a_rehearsal_where_it_is_named(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    implementation, folder = only(models).implementation("paddle")
    before = training_code_digest(implementation, folder, "cpu")
    assert training_code_digest(implementation, folder, "cpu", folder) != before
    worker = models / "platform" / "levelfield" / "worker"
    shutil.copytree(layouts.ROOT / "platform" / "levelfield" / "worker", worker, ignore=IGNORED)
    monkeypatch.setattr("levelfield.catalog.code_basis.checkout", lambda: models)
    assert training_code_digest(implementation, folder, "cpu") == before
    change(worker / "loop.py")
    assert training_code_digest(implementation, folder, "cpu") != before


@pytest.mark.parametrize(
    ("old", "new", "stale"),
    [
        ("paddlepaddle==3.3.1", "paddlepaddle==3.3.0", True),
        ("numpy==2.4.6", "numpy==2.4.5", True),
        ('"{folder}/train.py"', '"{folder}/train.py", "--more"', True),
        ("cpu: {device: cpu, backend: gloo}", "cpu: {device: cpu, backend: mpi}", True),
        ("paddlepaddle-gpu==3.3.1", "paddlepaddle-gpu==3.3.0", False),
        ("title: PaddlePaddle", "title: Paddle", False),
        ("flash_attn: Paddle has it", "flash_attn: it has it", False),
        ("the tests of tests/models ran on it", "nothing ran on it", False),
        ("nvidia: [fp32, bf16, fp16]", "nvidia: [fp32, bf16]", False),
    ],
)
def test_a_manifest_counts_by_what_a_training_on_a_processor_follows_from(
    old: str, new: str, stale: bool, models: Path
) -> None:
    path = record(models).with_name("implementation.yaml")
    text = path.read_text()
    assert old in text
    where = text.index("requirements:") if old.startswith("numpy") else 0
    path.write_text(text[:where] + text[where:].replace(old, new, 1))
    assert (fault(models) is not None) == stale


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("code", "sha256:12", "expected"),
        ("code", 12, "found 12"),
        ("commit", "main", "expected"),
        ("date", "yesterday", "expected"),
        *((key, ..., f"{key}': missing; it is required") for key in ("code", "commit", "date")),
    ],
)
def test_a_damaged_or_missing_value_is_named(key: str, value: object, says: str, models: Path) -> None:
    path = record(models)
    content = json.loads(path.read_text())
    content["runs"][0].pop(key)
    content["runs"][0] |= {} if value is ... else {key: value}
    path.write_text(json.dumps(content))
    with pytest.raises(DocumentError, match=rf"tested\.json: key 'runs\.0\.{key}") as error:
        fault(models)
    assert says in str(error.value)


def test_a_run_of_unknown_code_does_not_count_and_one_from_outside_of_git_does(models: Path) -> None:
    path = record(models)
    content = json.loads(path.read_text())
    content["runs"][0]["commit"] = None
    path.write_text(json.dumps(content))
    assert fault(models) is None
    content["runs"][0]["code"] = None
    path.write_text(json.dumps(content))
    assert fault(models) == CHANGED + content["runs"][0]["date"]


# ---- code that changes while it trains


def test_a_run_whose_code_was_edited_while_it_trained_is_not_recorded_as_passed(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, python = PlannedRun("paddle", "gpt", "fp32", SINGLE), Path("python")
    reference = load(ReferenceCurves, models / "models" / "torch" / REFERENCES_FILE).curves[0]
    monkeypatch.setattr(matrix, "train", lambda *_: _curve())
    assert matrix._run(asked, python, reference, lambda: code_of(models, "paddle")).passed

    def edit(*_: object) -> Curve:
        change(models / "models" / "paddle" / "decoder.py")
        return _curve()

    monkeypatch.setattr(matrix, "train", edit)
    run = matrix._run(asked, python, reference, lambda: code_of(models, "paddle"))
    assert not run.passed and run.difference is None and "changed while it trained" in str(run.failure)


def test_a_reference_whose_code_was_edited_while_it_trained_is_not_recorded(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = models / "models" / "torch" / REFERENCES_FILE
    change(models / "models" / "torch" / "model" / "decoder.py")
    before = path.read_text()

    def edit(job: dict[str, Any]) -> Curve:
        change(models / "models" / "torch" / "model" / "decoder.py")
        return _curve()

    monkeypatch.setattr(references, "train", edit)
    with pytest.raises(SystemExit, match="reference gpt: its code was changed while it trained"):
        train_references(only(models), ["gpt"])
    assert path.read_text() == before


# ---- torch's curve


def test_another_curve_of_the_reference_makes_a_run_stale(models: Path) -> None:
    record(models)
    record_reference(models, _curve(5.01))
    assert fault(models) == "torch's reference of gpt is another curve now"
    (models / "models" / "torch" / REFERENCES_FILE).unlink()
    assert fault(models) == "torch's reference of gpt is not recorded"


@pytest.mark.parametrize(("loss", "counts"), [(5.0, True), (5.0 * (1 + 5e-10), True), (5.001, False)])
def test_only_the_reference_is_trained_again_where_torch_s_code_changed(
    loss: float, counts: bool, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same curve, or one within its noise, leaves the runs of others; another one makes them stale."""
    record(models)
    trained: list[dict[str, Any]] = []

    def record_job(job: dict[str, Any]) -> Curve:
        trained.append(job)
        return _curve(loss)

    monkeypatch.setattr(references, "train", record_job)
    monkeypatch.setattr(references, "honest_noise", lambda *_: NOISE)
    registry = only(models)  # one for all, as in a matrix: no document of it may be an old one
    train_references(registry, ["gpt"])
    assert trained == [] and fault(models) is None
    change(models / "models" / "torch" / "model" / "decoder.py")
    assert str(fault(models)).startswith(f"torch's reference of gpt: {CHANGED}")
    train_references(registry, ["gpt"])
    assert len(trained) == 1 and (fault(models) is None) == counts
    key = load(LayoutRuns, models / "models" / "paddle" / "tested.json").runs[0].reference
    assert (ReferenceState(registry).fault("gpt", str(key)) is None) == counts


def test_small_changes_of_the_reference_do_not_add_up(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each new curve is compared with the recorded figures, not with the last one that confirmed them."""
    record(models)
    monkeypatch.setattr(references, "honest_noise", lambda *_: NOISE)
    for turn in (1, 2, 3):
        curve = dataclasses.replace(_curve(), losses=(5.0, 4.0 * (1 + turn * 6e-8)))
        monkeypatch.setattr(references, "train", lambda job, curve=curve: curve)
        change(models / "models" / "torch" / "model" / "decoder.py")
        train_references(only(models), ["gpt"])
        assert (fault(models) is None) == (turn == 1)


@pytest.mark.parametrize("name", [*ReferenceNoise.model_fields, "same_weights", "same_tokens"])
def test_a_curve_beyond_the_noise_in_one_figure_confirms_nothing(name: str) -> None:
    assert confirms(RIGHT, NOISE)
    wrong = [False] if name.startswith("same") else [1e-5, None, float("nan")]
    for value in wrong:
        assert not confirms(RIGHT.model_copy(update={name: value}), NOISE)


def test_figures_make_the_same_curve_again() -> None:
    assert compare(curve_of(figures_of(_curve())), _curve()) == RIGHT
    other = dataclasses.replace(_curve(), weights={"a": 4})
    assert figures_of(other).digest_key != figures_of(_curve()).digest_key


# ---- a matrix that goes on


@pytest.mark.parametrize("other", ["", "version", "machine", "code", "failed"])
def test_a_matrix_goes_on_with_what_is_recorded_of_the_same_code(other: str, models: Path) -> None:
    """A run that failed, and each run of other code, of another version or processor, is trained again."""
    path = record(models)
    content = json.loads(path.read_text())
    if other == "failed":
        content["runs"][0] |= {"difference": None, "failure": "killed"}
    elif other == "code":
        change(path.parent / "train.py")
    elif other:
        content[other] = "another"
    path.write_text(json.dumps(content))
    registry = only(models)
    written = RunRecord(path, *registry.implementation("paddle"))
    current = written.current(ReferenceState(registry))
    name = f"paddle gpt fp32 {SINGLE.name}"
    assert current == (set() if other else {name})
    assert (name in written.runs) == (other not in ("version", "machine"))  # a stale run stays until it is trained


def test_runs_of_two_states_of_the_code_stand_in_one_file(models: Path) -> None:
    path = record(models)
    change(path.parent / "train.py")
    registry = only(models)
    implementation, folder = registry.implementation("paddle")
    written = RunRecord(path, implementation, folder)
    written.current(ReferenceState(registry))
    (old,) = written.runs.values()
    name = str(PlannedRun("paddle", "gpt", "fp32", VARIANTS["DP2"]))
    written.runs[name] = old.model_copy(update={"name": "DP2", **row_provenance(code_of(models, "paddle"))})
    written.write([*written.runs])
    faults = run_faults(load(LayoutRuns, path), implementation, folder, ReferenceState(registry))
    assert [each is None for each in faults] == [False, True]

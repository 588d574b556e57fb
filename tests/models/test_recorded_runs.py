"""What recorded runs rest on: which runs a change makes stale, in a real matrix of a small framework and by hand."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sys
import time
from pathlib import Path

import layouts
import pytest
import references
from layouts import MODELS, SINGLE, Curve, compare, job_of, script_of, trained
from levelfield.catalog.code_basis import CodeBasis, rests_on
from levelfield.catalog.registry import Registry
from levelfield.catalog.support import REFERENCES, ReferenceState, RunCurrency
from levelfield.errors import DocumentError
from levelfield.specs.base import dump, load
from levelfield.specs.recorded_runs import Difference, LayoutRuns, MatrixRun, OwnNoise, ReferenceCurves
from levelfield.testing.framework_kit.layout_checks import edited_since
from matrix import VARIANTS, Asked, RunRecord
from references import confirms, curve_of, figures_of, train_references

pytestmark = [pytest.mark.layouts, pytest.mark.torch]
RIGHT = Difference(
    first_loss=0.0, loss=0.0, grad_norm=0.0, parameter_norm=0.0, total_norm=0.0, same_weights=True, same_tokens=True
)
NOISE = OwnNoise(first_loss=1e-9, loss=1e-7, grad_norm=1e-7, parameter_norm=1e-6)


# ---- what a rank reports


LAYOUTS = [
    (SINGLE.name, (), ("tensor_parallel", "pipeline")),
    ("TP2", ("tensor_parallel",), ("pipeline",)),
    ("PP2", ("pipeline",), ("tensor_parallel",)),
]


@pytest.mark.parametrize(("name", "has", "lacks"), LAYOUTS)
def test_a_training_reports_the_modules_of_its_own_layout(name, has, lacks):
    """Those that another layout, precision or model needs are imported by it alone."""
    _curve, imported = trained(job_of(layouts.shallow(MODELS["gpt"]), VARIANTS[name], 1))
    here = {Path(path).stem for path in imported if script_of("torch").parent in Path(path).parents}
    assert here >= {"train", "training", "decoder", "attention", *has}
    assert not here & {*lacks, "context_parallel", "expert_parallel", "mixture", "experts", "routing", "latent", "fp8"}
    worker = layouts.ROOT / "platform" / "levelfield" / "worker"
    assert {worker / "loop.py", worker / "process.py"} <= set(map(Path, imported))
    implementation, folder = Registry().implementation("torch")
    rests_on_those = CodeBasis(implementation, folder).of_training(imported, "cpu")
    assert {path.rsplit("/", 1)[0] for path in rests_on_those} == {
        "models/torch", "models/torch/model", "models/torch/parallelism", "models/torch/step",
        "platform/levelfield", "platform/levelfield/worker",
    }  # fmt: skip
    assert not [path for path in imported if "site-packages" in path or path.startswith(sys.base_prefix)]


def test_a_mixture_reports_its_own_modules():
    _curve, imported = trained(job_of(layouts.shallow(MODELS["mixture"]), SINGLE, 1))
    here = {Path(path).stem for path in imported if script_of("torch").parent in Path(path).parents}
    assert here >= {"mixture", "experts", "routing"} and "tensor_parallel" not in here


def test_a_file_that_was_written_while_it_trained_is_said(tmp_path):
    path = tmp_path / "module.py"
    path.write_text("")
    assert edited_since([str(path)], time.time() + 5) is None
    os.utime(path, (time.time() + 10, time.time() + 10))
    assert f"{path} was changed while it trained" in str(edited_since([str(path)], time.time()))


# ---- which runs a change makes stale


@pytest.fixture
def models(tmp_path, monkeypatch):
    """The folders of torch and paddle as plugins, with runs that rest on some of their files."""
    ignored = shutil.ignore_patterns("__pycache__", "tested*.json")
    for name in ("torch", "paddle"):
        shutil.copytree(layouts.ROOT / "models" / name, tmp_path / "models" / name, ignore=ignored)
    recorded = ReferenceCurves(**_references(only(tmp_path), _curve()))
    (tmp_path / "models" / "torch" / REFERENCES).write_text(dump(recorded))
    return tmp_path


def only(models: Path) -> Registry:
    """A registry of these folders in the place of the checkout's."""
    registry = Registry()
    registry.roots = (models,)
    return registry


def _curve(loss: float = 5.0) -> Curve:
    return Curve((loss, 4.0), (1.0, 1.0), (8, 8), (1, 2), {"a": 3}, {1: {"a": 1.0}})


def _references(registry: Registry, curve: Curve) -> dict:
    implementation, folder = registry.implementation("torch")
    digests = CodeBasis(implementation, folder).of_training([str(folder / "model" / "decoder.py")], "cpu")
    figures = figures_of(curve)
    own = {"family": "gpt", "key": figures.key, "figures": figures, "noise": NOISE, "difference": RIGHT}
    own |= {"date": "2026-01-01", "machine": references.machine(), "rests_on": references.key_of(digests)}
    return {"basis": references.basis_of([digests]), "curves": (own,)}


def _recorded(models: Path, *imported: str) -> Path:
    """paddle's tested.json of one run that imported these files of its folder."""
    registry = only(models)
    implementation, folder = registry.implementation("paddle")
    path = folder / "tested.json"
    record = RunRecord(path, implementation, folder)
    asked = Asked("paddle", "gpt", "fp32", SINGLE)
    key = figures_of(_curve()).key
    run = MatrixRun(
        name=SINGLE.name, family="gpt", precision="fp32", layout={}, steps=2, difference=RIGHT, reference=key
    )
    record.add(asked, run, frozenset(str(folder / name) for name in imported))
    record.write([str(asked)])
    return path


def _fault(models: Path) -> str | None:
    registry = only(models)
    implementation, folder = registry.implementation("paddle")
    tested = load(LayoutRuns, folder / "tested.json")
    return RunCurrency(tested, implementation, folder, ReferenceState(registry)).fault(tested.runs[0])


def _edit(path: Path, old: str, new: str) -> None:
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def test_a_changed_byte_of_an_imported_module_makes_a_run_stale_and_of_another_does_not(models):
    folder = _recorded(models, "train.py", "decoder.py").parent
    assert _fault(models) is None
    (folder / "sharding.py").open("a").write("# changed\n")
    (folder / "another.py").write_text("")
    assert _fault(models) is None
    (folder / "decoder.py").open("a").write("# changed\n")
    assert _fault(models) == "its code has changed (models/paddle/decoder.py)"


def test_a_deleted_file_makes_a_run_stale(models):
    folder = _recorded(models, "train.py", "decoder.py").parent
    (folder / "decoder.py").unlink()
    assert "models/paddle/decoder.py" in str(_fault(models))


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
def test_a_manifest_counts_by_what_a_training_on_a_processor_follows_from(old, new, stale, models):
    path = _recorded(models, "train.py").with_name("implementation.yaml")
    text = path.read_text()
    assert old in text
    where = text.index("requirements:") if old.startswith("numpy") else 0
    path.write_text(text[:where] + text[where:].replace(old, new, 1))
    assert (_fault(models) is not None) == stale
    assert not stale or "implementation.yaml#cpu" in str(_fault(models))


def test_a_forged_digest_is_refused(models):
    path = _recorded(models, "train.py", "decoder.py")
    (path.parent / "decoder.py").open("a").write("# changed\n")
    implementation, folder = only(models).implementation("paddle")
    now = CodeBasis(implementation, folder).digest("models/paddle/decoder.py")
    content = json.loads(path.read_text())
    key = next(key for key, line in content["basis"]["files"].items() if line.endswith("  models/paddle/decoder.py"))
    content["basis"]["files"][key] = f"{now}  models/paddle/decoder.py"
    path.write_text(json.dumps(content))
    with pytest.raises(DocumentError, match=f"{key}: its content has another key; it was edited"):
        _fault(models)


@pytest.mark.parametrize("fault", ["set", "lost file", "lost set", "no set"])
def test_a_damaged_basis_is_refused(fault, models):
    path = _recorded(models, "train.py", "decoder.py")
    content = json.loads(path.read_text())
    (key, names), *_ = content["basis"]["sets"].items()
    if fault == "set":
        content["basis"]["sets"][key] = names.split(" ", 1)[1]
    elif fault == "lost file":
        content["basis"]["files"].pop(names.split()[0])
    else:
        content["runs"][0]["rests_on"] = "0" * 12 if fault == "lost set" else None
    path.write_text(json.dumps(content))
    with pytest.raises(DocumentError, match="Train the runs again"):
        _fault(models)


def test_a_file_from_before_the_basis_rests_on_the_whole_folder(models):
    path = _recorded(models, "train.py")
    implementation, folder = only(models).implementation("paddle")
    content = json.loads(path.read_text())
    content.pop("basis")
    content["runs"][0] |= {"rests_on": None, "reference": None}
    path.write_text(json.dumps({**content, "rests_on": rests_on(implementation, folder)}))
    assert _fault(models) is None
    (folder / "sharding.py").open("a").write("# changed\n")
    assert _fault(models) == "its code has changed"


# ---- torch's curve


def test_another_curve_of_the_reference_makes_a_run_stale(models):
    _recorded(models, "train.py")
    path = models / "models" / "torch" / REFERENCES
    path.write_text(dump(ReferenceCurves(**_references(only(models), _curve(5.01)))))
    assert _fault(models) == "torch's reference of gpt is another curve now"
    path.unlink()
    assert _fault(models) == "torch's reference of gpt is not recorded"


def test_figures_edited_by_hand_are_refused(models):
    _recorded(models, "train.py")
    path = models / "models" / "torch" / REFERENCES
    content = json.loads(path.read_text())
    content["curves"][0]["figures"]["losses"][0] = 5.01
    path.write_text(json.dumps(content))
    with pytest.raises(DocumentError, match="of its figures"):
        _fault(models)


@pytest.mark.parametrize(("loss", "counts"), [(5.0, True), (5.0 * (1 + 5e-10), True), (5.001, False)])
def test_only_the_reference_is_trained_again_where_torch_s_code_changed(loss, counts, models, monkeypatch):
    """The same curve, or one within its noise, leaves the runs of others; another one makes them stale."""
    _recorded(models, "train.py")
    asked = []
    monkeypatch.setattr(references, "trained", lambda job: (asked.append(job) or _curve(loss), _imports(models)))
    monkeypatch.setattr(references, "honest_noise", lambda *_: NOISE)
    registry = only(models)  # one for all, as in a matrix: no document of it may be an old one
    train_references(registry, ["gpt"])
    assert asked == [] and _fault(models) is None
    (models / "models" / "torch" / "parallelism" / "pipeline.py").open("a").write("# changed\n")
    assert _fault(models) is None
    (models / "models" / "torch" / "model" / "decoder.py").open("a").write("# changed\n")
    assert _fault(models) == "torch's reference of gpt rests on changed code (models/torch/model/decoder.py)"
    train_references(registry, ["gpt"])
    assert len(asked) == 1 and (_fault(models) is None) == counts
    key = load(LayoutRuns, models / "models" / "paddle" / "tested.json").runs[0].reference
    assert (ReferenceState(registry).fault("gpt", str(key)) is None) == counts


def _imports(models: Path) -> frozenset[str]:
    past = time.time() - 60
    path = models / "models" / "torch" / "model" / "decoder.py"
    os.utime(path, (past, past))
    return frozenset([str(path)])


def test_small_changes_of_the_reference_do_not_add_up(models, monkeypatch):
    """Each new curve is compared with the recorded figures, not with the last one that confirmed them."""
    _recorded(models, "train.py")
    monkeypatch.setattr(references, "honest_noise", lambda *_: NOISE)
    for turn in (1, 2, 3):
        curve = dataclasses.replace(_curve(), losses=(5.0, 4.0 * (1 + turn * 6e-8)))
        monkeypatch.setattr(references, "trained", lambda job, curve=curve: (curve, _imports(models)))
        (models / "models" / "torch" / "model" / "decoder.py").open("a").write("# changed\n")
        train_references(only(models), ["gpt"])
        assert (_fault(models) is None) == (turn == 1)


@pytest.mark.parametrize("name", [*OwnNoise.model_fields, "same_weights", "same_tokens"])
def test_a_curve_beyond_the_noise_in_one_figure_confirms_nothing(name):
    assert confirms(RIGHT, NOISE)
    wrong = [False] if name.startswith("same") else [1e-5, None, float("nan")]
    for value in wrong:
        assert not confirms(RIGHT.model_copy(update={name: value}), NOISE)


def test_figures_make_the_same_curve_again():
    assert compare(curve_of(figures_of(_curve())), _curve()) == RIGHT
    other = dataclasses.replace(_curve(), weights={"a": 4})
    assert figures_of(other).key != figures_of(_curve()).key


# ---- a matrix that goes on


@pytest.mark.parametrize("other", ["", "version", "machine", "code", "failed"])
def test_a_matrix_goes_on_with_what_is_recorded_of_the_same_code(other, models, monkeypatch):
    """A run that failed, and each run of other code, of another version or processor, is trained again."""
    path = _recorded(models, "train.py")
    content = json.loads(path.read_text())
    if other == "failed":
        content["runs"][0] |= {"difference": None, "failure": "killed"}
    elif other == "code":
        (path.parent / "train.py").open("a").write("# changed\n")
    elif other:
        content[other] = "another"
    path.write_text(json.dumps(content))
    registry = only(models)
    record = RunRecord(path, *registry.implementation("paddle"))
    current = record.current(ReferenceState(registry))
    name = f"paddle gpt fp32 {SINGLE.name}"
    assert current == (set() if other else {name})
    assert (name in record.runs) == (other not in ("version", "machine"))  # a stale run stays until it is trained


def test_runs_of_two_states_of_the_code_stand_in_one_file(models):
    """A run that was trained again has the new digest of a file, the other one keeps the old."""
    path = _recorded(models, "train.py")
    (path.parent / "train.py").open("a").write("# changed\n")
    registry = only(models)
    record = RunRecord(path, *registry.implementation("paddle"))
    record.current(ReferenceState(registry))
    (old,) = record.runs.values()
    asked = Asked("paddle", "gpt", "fp32", VARIANTS["DP2"])
    record.add(asked, old.model_copy(update={"name": "DP2"}), frozenset([str(path.parent / "train.py")]))
    record.write([*record.runs])
    tested = load(LayoutRuns, path)
    currency = RunCurrency(tested, *registry.implementation("paddle"), ReferenceState(registry))
    assert [currency.fault(run) is None for run in tested.runs] == [False, True]


def test_a_run_whose_imports_are_unknown_rests_on_all_code(models):
    path = _recorded(models)
    for change in ("sharding.py", "peak.py"):
        digests = load(LayoutRuns, path).basis.of(load(LayoutRuns, path).runs[0].rests_on)
        assert f"models/paddle/{change}" in digests and "platform/levelfield/worker/loop.py" in digests

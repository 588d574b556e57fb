"""`framework new` and `framework check`: a new folder passes, and each planted fault fails in its own check."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import pytest
import tomllib
from levelfield.catalog.registry import Registry
from levelfield.checkout import checkout
from levelfield.cli.main import main
from levelfield.errors import UnknownName, UsageError
from levelfield.specs.architecture import Model
from levelfield.specs.base import load
from levelfield.specs.case import Precision
from levelfield.specs.recorded_runs import LayoutRuns
from levelfield.testing.findings import Check, Fails
from levelfield.testing.framework_kit import fault_checks, framework_suite, layout_checks, small_jobs
from levelfield.testing.framework_kit.framework_subject import FrameworkSubject, recorded_curve, torch_curve
from levelfield.testing.framework_kit.framework_suite import CHECKS, check_framework, run_one_check, write_tested
from levelfield.testing.framework_kit.layout_checks import OfferedRun, offered_runs, train_offered_run
from levelfield.testing.framework_kit.small_jobs import (
    MODELS,
    SINGLE,
    Variant,
    offered_variants,
    refusal_reason,
    small_job,
)
from levelfield.testing.framework_kit.training_curves import Curve, compare, first_steps
from levelfield.testing.scaffold import create_plugin_folder

Captured = pytest.CaptureFixture[str]


def subject_of(folder: Path, name: str = "acme") -> FrameworkSubject:
    """The new folder's framework by this Python, compared with the recorded curves."""
    subject = FrameworkSubject(name, [folder], python=PYTHON)
    subject.shared["torch"] = None
    return subject


@pytest.fixture
def only_gpt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the families of small models one: `make thorough` trains all of a new folder."""
    monkeypatch.setattr(FrameworkSubject, "models", {"gpt": MODELS["gpt"]})


PYTHON = sys.executable


@pytest.fixture
def acme(tmp_path: Path) -> Path:
    create_plugin_folder("framework", "acme", tmp_path, Registry())
    return tmp_path


def plant(folder: Path, file: str, right: str, wrong: str) -> FrameworkSubject:
    path = folder / "models" / "acme" / file
    text = path.read_text()
    assert text.count(right) == 1, f"{file} has no single {right!r}"
    path.write_text(text.replace(right, wrong))
    return subject_of(folder)


def counts(message: str) -> tuple[int, int]:
    """Return both numbers of the first `2 of 6` in a message."""
    match = re.search(r"(\d+) of (?:its )?(\d+)\b", message)
    assert match is not None, message
    return int(match[1]), int(match[2])


def run_check(subject: FrameworkSubject, name: str) -> tuple[str, str]:
    finding = run_one_check(subject, next(item for item in CHECKS if item.name == name))
    return finding.status, finding.says


def test_a_new_folder_passes_in_one_process(acme: Path, only_gpt: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for the slowest of the fast checks, whose faults are planted below: `make thorough` has them all."""
    few = tuple(item for item in CHECKS if item.name not in ("refusals", "large-tensors"))
    monkeypatch.setattr(framework_suite, "CHECKS", few)
    findings = list(check_framework(subject_of(acme), fast=True))
    assert [f"{item.check}: {item.says}" for item in findings if not item.is_good] == []
    assert "recorded curve" in next(item.says for item in findings if item.check == "one-process")
    assert not (acme / "models/acme/tested.json").exists()


@pytest.mark.thorough
def test_a_new_folder_passes_every_check_and_writes_what_it_rests_on(acme: Path) -> None:
    subject = subject_of(acme)
    assert [finding for finding in check_framework(subject) if not finding.is_good] == []
    path = write_tested(subject)
    assert path is not None and all(run.passed for run in load(LayoutRuns, path).runs)


# ---- planted faults: each fails its own check, in its own words

FAULTS: dict[str, tuple[str, str, str, str, str]] = {
    "tokens not counted": ("training.py", '"tokens": batch.tokens', '"tokens": 0', "one-process", "differ"),
    "no memory": ("training.py", "process_memory(),", "{},", "events", "memory {}, expected the fields"),
    "a rate of its own": ("training.py", '"learning_rate": self.rate', '"learning_rate": 1e-3', "events", "expected"),
    "a name of its own": ("training.py", "recorder.framework(NAME", 'recorder.framework("else"', "events", "says else"),
    "a version of its own": ("training.py", "NAME, np.__version__", 'NAME, "9.9"', "events",
        "version 9.9, expected 2.2.6"),
    "squares added up one by one in float32": ("training.py", "float(np.square(gradient, dtype=np.float64).sum())",
        "float(np.cumsum(np.square(gradient))[-1])", "large-tensors", "differs from torch's by"),
    "captured after clipping": ("training.py", 'keep(f"gradient.{name}", gradient)',
        'keep(f"gradient.{name}", gradient / 2)', "capture", "squared norm"),
    "no logits": ("decoder.py", 'keep("logits", logits)', "pass", "capture", "no tensor `logits`"),
    "half of the weights saved": ("training.py", 'np.save(Path(folder) / f"{name}.npy", values)',
        'name.endswith("bias") or np.save(Path(folder) / f"{name}.npy", values)', "weights", "save() did not write"),
    "other weights saved": ("training.py", 'f"{name}.npy", values)', 'f"{name}.npy", values * np.float32(1.01))',
        "weights", "squared norm"),
    "no refusal": ("train.py", "    check(job)  #", "    # check(job)", "refusals", "is not offered, and the training"),
    "nan hidden": ("training.py", '"loss": self.loss', '"loss": float(np.nan_to_num(self.loss))', "nan", "ended with"),
    "unseeded dropout": ("training.py", "default_rng(seed)", "default_rng()", "dropout",
        "differs when the same job runs"),
    "the platform imported": ("training.py", "import math", "import levelfield.specs", "sources", "imports levelfield"),
    "a device that nothing reaches": ("implementation.yaml", "reaches:\n  cpu: {device: cpu, backend: gloo}\n", "",
        "reaches", "nothing says how acme reaches"),
    "an unknown key": ("implementation.yaml", "recompute: [none]", "recomputes: [none]", "schema", "recomputes"),
}  # fmt: skip


# Of each check a fault; further ones of a kind are thorough.
FURTHER = ("a rate of its own", "a version of its own", "a name of its own", "no logits", "half of the weights saved")
FURTHER_TRAININGS = (
    "decay on norms and biases",
    "a scale of attention left out",
    "gradients doubled",
    "the epsilon inside the root",
)


def selected(names: Iterable[str], thorough: Collection[str]) -> list[Any]:
    """Parameters of which these are thorough."""
    return [pytest.param(name, marks=[pytest.mark.thorough] if name in thorough else []) for name in sorted(names)]


@pytest.mark.parametrize("fault", selected(FAULTS, FURTHER))
def test_a_planted_fault_fails_its_check(fault: str, acme: Path) -> None:
    file, right, wrong, name, words = FAULTS[fault]
    subject = plant(acme, file, right, wrong)
    if name == "one-process":
        run = train_offered_run(subject, OfferedRun("gpt", "fp32", SINGLE))
        assert run.difference is not None and not run.difference.same_tokens and not run.passed
        return
    status, message = run_check(subject, name)
    assert status in ("fails", "missing")
    assert words in message


# What the curve shows: lines of the new folder that are wrong in ways that frameworks have been wrong.
WRONG_TRAININGS = {
    "decay on norms and biases": ("optimizer.py", "if values.ndim > 1:", "if True:"),
    "the epsilon inside the root": ("optimizer.py",
        "root = np.sqrt(second) / np.float32(np.sqrt(1 - settings.beta2**self.count))",
        "root = np.sqrt(second / np.float32(1 - settings.beta2**self.count) + np.float32(settings.eps))"),
    "gradients doubled": ("training.py", "1 / count, keep_micro)", "2 / count, keep_micro) / 2"),
    "a scale of attention left out": ("attention.py", "np.float32(self.size**-0.5)", "np.float32(1)"),
    "a mask that shows the next token": ("attention.py", "scores.shape[-1], dtype", "scores.shape[-1], 1, dtype"),
}  # fmt: skip


def test_a_finding_names_the_figures_that_are_beyond_their_limits_and_the_section(acme: Path, only_gpt: None) -> None:
    wrong = plant(acme, "training.py", "recorder.weights(trainer.weights())", "recorder.weights(doubled(trainer))")
    path = acme / "models" / "acme" / "training.py"
    path.write_text(
        path.read_text() + "\n\ndef doubled(t):\n    return [(n, s, i, 2 * v) for n, s, i, v in t.weights()]\n"
    )
    finding = run_one_check(wrong, Check("one-process", lambda subject: layout_checks.check_training(subject, True)))
    assert counts(finding.says) == (2, 2)
    assert "gpt fp32" in finding.says
    assert "section 4" in finding.do and "docs/writing-a-framework.md" in finding.do
    right = torch_curve(wrong, "gpt").curve
    losses = (*right.losses[:-1], 1.001 * right.losses[-1])
    beyond = compare(dataclasses.replace(right, losses=losses), right).exceeded_limits()
    assert list(beyond) == ["loss"] and beyond["loss"] == pytest.approx((1e-3, 1e-5))


def test_a_choice_that_the_training_alone_refuses_is_named_with_its_cure(
    acme: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variant = Variant("recompute full of 1 layer", recompute="full", recompute_layers=1)
    monkeypatch.setattr(layout_checks, "offered_runs", lambda subject: [OfferedRun("gpt", "fp32", variant)])
    finding = run_one_check(subject_of(acme), Check("one-process", layout_checks.check_training))
    assert "gpt fp32 recompute full of 1 layer: rank 0 ended" in finding.says
    assert finding.do.endswith("under `refuses` of implementation.yaml: recomputation of some layers")


@pytest.mark.parametrize(
    ("precision", "factor", "fault"),
    [("fp32", 1 + 5e-5, None), ("fp32", 1 + 2e-4, "2.0e-04, expected 0.0001"), ("fp32", 1.01, "1.0e-02"),
     ("bf16", 1 + 5e-3, None), ("bf16", 1.02, "2.0e-02, expected 0.01"), ("fp16", 0.0, "1.0e+00")],
)  # fmt: skip
def test_the_routers_losses_of_a_mixture_are_compared(precision: Precision, factor: float, fault: str | None) -> None:
    right = recorded_curve(small_job(MODELS["mixture"], SINGLE)).curve
    other = dataclasses.replace(right, auxiliary=tuple(factor * value for value in right.auxiliary))
    message = layout_checks.routing_fault(MODELS["mixture"], precision, other, right)
    assert message is None if fault is None else fault in str(message), message
    assert "inf" in str(layout_checks.routing_fault(MODELS["mixture"], precision, unrouted(right), right))
    assert layout_checks.routing_fault(MODELS["gpt"], precision, unrouted(right), unrouted(right)) is None


def unrouted(curve: Curve) -> Curve:
    return dataclasses.replace(curve, auxiliary=(), experts={})


@pytest.mark.parametrize("fault", selected(WRONG_TRAININGS, FURTHER_TRAININGS))
def test_a_wrong_training_differs_from_the_recorded_curve(fault: str, acme: Path) -> None:
    subject = plant(acme, *WRONG_TRAININGS[fault])
    run = train_offered_run(subject, OfferedRun("gpt", "fp32", SINGLE))
    assert run.difference is not None and run.difference.same_weights and not run.passed


@pytest.mark.parametrize(
    "line",
    [
        ("layers.py", "0.044715", "0.0443"),  # 1 % off
        ("layers.py", "x - x.mean(axis=-1, keepdims=True)", "x - np.float32(0.999) * x.mean(axis=-1, keepdims=True)"),
    ],
)
def test_a_wrong_constant_differs_with_large_weights(line: tuple[str, str, str], acme: Path) -> None:
    status, message = run_check(plant(acme, *line), "large-weights")
    assert status == "fails"
    assert message.startswith("gpt with")


PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16")


def test_a_run_with_the_bits_of_fp32_is_not_in_16_bits(acme: Path) -> None:
    """Paddle's auto_cast does nothing on a processor, without a word."""
    plant(acme, "implementation.yaml", "cpu: [fp32]", "cpu: [fp32, bf16]")
    subject = plant(acme, "refusals.py", 'job.training.precision != "fp32"', "False")
    fp32, bf16 = (train_offered_run(subject, OfferedRun("gpt", word, SINGLE)) for word in PRECISIONS)
    assert fp32.passed and not bf16.passed and str(bf16.failure).endswith("in bf16")
    right, run = torch_curve(subject, "gpt").curve, OfferedRun("gpt", "fp16", SINGLE)
    subject.shared["fp32 curves"] = {("gpt", SINGLE.name): right}
    same = "its losses and gradient norms have the bits of the fp32 run, so it was not computed in fp16"
    assert layout_checks.precision_fault(subject, run, right) == same
    losses = tuple(1.00002 * value for value in right.losses)
    other_losses = dataclasses.replace(right, losses=losses)
    message = layout_checks.precision_fault(subject, run, other_losses)
    assert message is not None and "gradient norms" in message and "losses" not in message
    other = dataclasses.replace(other_losses, grad_norms=losses)
    assert layout_checks.precision_fault(subject, run, other) is None


def test_a_declared_part_that_is_not_computed_fails(acme: Path) -> None:
    assert run_check(subject_of(acme), "parts")[0] == "ok"
    declare = "  dropout, gelu, sliding_window, head_dim, router_groups]"
    plant(acme, "implementation.yaml", "  dropout]", declare)
    subject = plant(acme, "refusals.py", "check_parts(job)  #", "check_parts(job, 'sliding_window', 'head_dim')  #")
    status, message = run_check(subject, "parts")
    assert status == "fails"
    assert message.startswith("3 declared")
    assert all(f"{part}: " in message for part in ("gelu", "sliding_window", "head_dim")) and "router" not in message
    plant(acme, "implementation.yaml", declare, "  dropout, router_groups]")
    status, message = run_check(subject_of(acme), "parts")
    assert status == "warns"
    assert message.partition(";")[0].endswith(": router_groups")


def test_a_curve_is_recorded_of_each_part_that_the_check_trains() -> None:
    for part, model in small_jobs.PART_MODELS.items():
        assert part in Model.model_validate(model).parts
        job = small_job(small_jobs.enlarge_weights(model), SINGLE, layout_checks.FEW_STEPS)
        assert len(recorded_curve(job).curve.losses) == layout_checks.FEW_STEPS


@pytest.mark.parametrize("name", ["__init__.py", "numpy.py", "acme.py", "json.py"])
def test_a_file_that_shadows_a_package_fails(name: str, acme: Path) -> None:
    (acme / "models/acme" / name).write_text("")
    status, message = run_check(subject_of(acme), "sources")
    assert status == "fails" and name in message


def test_a_training_that_does_not_read_its_job_fails(acme: Path) -> None:
    subject = plant(acme, "optimizer.py", "np.float32(settings.eps)", "np.float32(1e-8)")
    planted = next(item for item in fault_checks.PLANTED_FAULTS if "epsilon 1e-5" in item.name)
    right = first_steps(recorded_curve(small_job(MODELS["gpt"], SINGLE)).curve, fault_checks.STEPS)
    job = planted.applied(small_job(MODELS["gpt"], SINGLE, fault_checks.STEPS))
    assert job is not None
    with pytest.raises(Fails) as failure:
        fault_checks._check_detected(subject, f"gpt: {planted.name}", right, job)
    assert failure.value.says == f"gpt: {planted.name}: the training does not change"


@pytest.mark.thorough
def test_every_planted_job_changes_the_training(acme: Path) -> None:
    status, message = run_check(subject_of(acme), "faults")
    assert status == "ok"
    assert int(message.split()[0]) >= len(fault_checks.PLANTED_FAULTS)


def test_a_killed_rank_leaves_its_steps_and_no_process(acme: Path) -> None:
    assert run_check(subject_of(acme), "killed")[0] == "ok"


def test_a_process_that_outlives_its_rank_fails(acme: Path) -> None:
    child = 'import subprocess\nsubprocess.Popen(["sleep", "600"])\nimport math'
    status, message = run_check(plant(acme, "training.py", "import math", child), "killed")
    assert status == "fails" and "outlived" in message


# ---- what is offered


def test_layouts_follow_from_the_manifest() -> None:
    registry = Registry()
    files = {name: registry.implementation(name)[0] for name in ("deepspeed", "oneflow", "torch")}
    variants = {name: offered_variants(file, "cpu", MODELS["gpt"], "fp32") for name, file in files.items()}
    names = {name: [variant.name for variant in items] for name, items in variants.items()}
    assert any("ZeRO 3" in name for name in names["deepspeed"])
    assert not any("TP" in name for name in names["deepspeed"])
    assert not any(" over " in name for name in names["deepspeed"])  # it refuses partial sharding
    assert "compile" not in names["oneflow"] and "compile" in names["torch"]
    on_chip = {variant.name for variant in offered_variants(files["torch"], "nvidia", MODELS["gpt"], "fp32")}
    assert "graph" in on_chip and not any("graph" in items for items in names.values())
    assert "PP4" in names["oneflow"] and not any("ZeRO" in name for name in names["oneflow"])


def test_a_layout_that_the_sizes_exclude_is_not_tried() -> None:
    torch = Registry().implementation("torch")[0]
    assert refusal_reason(torch, "cpu", small_job(MODELS["gpt"], SINGLE)) is None
    three = small_job(MODELS["gpt"], Variant("TP3", {"tensor": 3}))
    assert "heads" in (refusal_reason(torch, "cpu", three) or "")


def test_a_new_folder_offers_one_process(acme: Path) -> None:
    assert {run.variant.ranks for run in offered_runs(subject_of(acme))} == {1}


# ---- the record


def state(folder: Path, capsys: Captured) -> tuple[str, str]:
    """The cell of one process of GPT in the table of `show frameworks`, and the note below it."""
    assert main(["show", "frameworks", "--plugins", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    row = next(line.split() for line in lines if line.split()[:3] == ["acme", "gpt", "fp32"])
    return row[3], next((line.strip() for line in lines if line.strip().startswith("acme:")), "")


def test_a_tested_layout_is_new_again_after_a_change_of_its_code(acme: Path, capsys: Captured) -> None:
    subject = subject_of(acme)
    subject.shared["runs"] = (train_offered_run(subject, OfferedRun("gpt", "fp32", SINGLE)),)
    assert write_tested(subject) == acme / "models/acme/tested.json"
    assert state(acme, capsys) == ("yes", "")
    (acme / "models/acme/layers.py").open("a").write("CHANGED = True\n")
    word, note = state(acme, capsys)
    assert word == "new"
    assert counts(note) == (1, 1)
    assert "code has changed" in note
    path = acme / "models/acme/tested.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": "0.0.9"}))
    word, note = state(acme, capsys)
    assert word == "new"
    assert "version 0.0.9" in note


def test_a_training_whose_code_was_edited_meanwhile_does_not_pass(acme: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subject, train = subject_of(acme), FrameworkSubject.train

    def edit(self: FrameworkSubject, job: dict[str, Any]) -> Curve:
        (acme / "models/acme/layers.py").open("a").write("CHANGED = True\n")
        return train(self, job)

    monkeypatch.setattr(FrameworkSubject, "train", edit)
    run = train_offered_run(subject, OfferedRun("gpt", "fp32", SINGLE))
    assert not run.passed
    assert run.failure == "its code was changed while it trained; train again"


@pytest.mark.thorough
def test_the_runs_of_a_further_version_have_a_file_of_their_own(acme: Path, capsys: Captured) -> None:
    manifest = acme / "models/acme/implementation.yaml"
    pins = "{packages: [acme-tensors==2.0.3, numpy==2.4.6], verified: none}"
    manifest.write_text(manifest.read_text() + f'versions:\n  "2.0.3":\n    requirements: {{cpu: {pins}}}\n')
    subject = subject_of(acme, "acme_2.0.3")
    assert (subject.name, subject.manifest.version) == ("acme", "2.0.3")
    assert run_check(subject, "launch")[0] == "ok"
    subject.shared["runs"] = (train_offered_run(subject, OfferedRun("gpt", "fp32", SINGLE)),)
    path = acme / "models/acme/tested-2.0.3.json"
    assert write_tested(subject) == path and load(LayoutRuns, path).version == "2.0.3"
    assert state(acme, capsys) == ("new", "")  # the default has none
    assert main(["show", "frameworks", "--plugins", str(acme), "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["frameworks"]}
    assert rows["acme_2.0.3"]["layouts"][0]["cells"]["one"] == "tested"
    assert rows["acme_2.0.3"]["says"].startswith("2.0.3  ")
    with pytest.raises(UsageError, match=r"2\.0\.4, expected .*2\.0\.3"):
        _ = FrameworkSubject("acme_2.0.4", [acme]).manifest


def test_nothing_is_recorded_of_a_suite_that_trained_nothing(acme: Path) -> None:
    assert write_tested(subject_of(acme)) is None


# ---- the command


def test_new_in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["framework", "new", "acme"]) == 0
    output = capsys.readouterr().out
    program = f"python {checkout() / 'run_benchmarks.py'}"  # a path has any length
    assert f"{program} framework check acme --plugins . --fast" in output.replace(" \\\n           ", " ")
    assert all(len(line) <= 80 for line in output.replace(program, "").splitlines())
    assert main(["show", "frameworks", "--plugins", "."]) == 0
    assert "not run yet" in capsys.readouterr().out
    for name, words in (("acme", "exists"), ("torch", "'torch' exists"), ("Bad_Name", "lower-case")):
        assert main(["framework", "new", name]) == 2
        assert words in capsys.readouterr().err


def test_new_as_a_package(tmp_path: Path) -> None:
    assert main(["framework", "new", "acme", str(tmp_path), "--package"]) == 0
    root = tmp_path / "levelfield-acme"
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    assert {"acme": "levelfield_acme"} in project["entry-points"].values()
    assert 'framework = "acme"' in (root / "tests/test_acme.py").read_text()
    assert "acme" in Registry([root / "levelfield_acme"]).frameworks


def test_check_prints_findings_and_ends_with_4(acme: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    few = [item for item in CHECKS if item.name in ("schema", "sources", "reaches")]
    monkeypatch.setattr(framework_suite, "CHECKS", tuple(few))
    command = ["framework", "check", "acme", "--plugins", str(acme), "--python", PYTHON]
    assert main(command) == 0
    assert f"all {len(few)}" in capsys.readouterr().out
    (acme / "models/acme/__init__.py").write_text("")
    assert main(command) == 4
    output = capsys.readouterr().out
    assert "FAILS    sources" in output
    assert counts(output) == (1, len(few))
    assert main([*command, "--json"]) == 4
    report = json.loads(capsys.readouterr().out)
    assert report["passes"] is False
    assert [check["status"] for check in report["checks"]] == ["ok", "fails", "ok"]


def test_an_unknown_framework_and_a_kind_that_is_not_here(acme: Path, capsys: Captured) -> None:
    with pytest.raises(UnknownName, match=r"nothing.*`framework new"):
        FrameworkSubject("nothing", [acme])
    assert main(["framework", "check", "acme", "--plugins", str(acme), "--device", "nvidia", "--fast"]) == 4
    assert "'nvidia'" in capsys.readouterr().out
    with pytest.raises(UsageError):
        FrameworkSubject("acme", [acme / "missing"])

"""Planted faults: each is caught by the layer of the alignment that should, and found by `diagnose`."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from faults import FAULTS, Fault
from layouts import MODELS, ROOT, SINGLE, Curve, Variant, job_of, planted, script_of, train
from levelfield.catalog.registry import Registry
from levelfield.contracts.execution import Outcome, ProcessEnd, Request, Watch
from levelfield.measure import alignment as rules
from levelfield.measure.calibration import limits_of, noise_between
from levelfield.run import launchers
from levelfield.run.launchers.local import LocalLauncher, free_port, with_port
from levelfield.run.runner import Listener
from levelfield.run.runtimes.process_runtime import inherited
from levelfield.specs.tuning import TuningChoice
from levelfield.studies.diagnosis import ComparedTraining, Diagnosis, first_difference
from warm import run_ranks

pytestmark = pytest.mark.torch

# what changes arithmetic only: the limits come from these. Ranks take as much as they can at once: they cost the most.
NUMERICS = (
    Variant("", micro_batch=4),
    Variant("", {"data": 2}, micro_batch=4),
    Variant("", {"tensor": 2}, micro_batch=8),
)


WIDE = rules.AlignmentLimits(1e-6, 1e-3, 1e-5, "wide")


def training_of(curve: Curve) -> rules.TrainingCurve:
    norms = {s: {n: max(v, 0.0) ** 0.5 for n, v in squares.items()} for s, squares in curve.gradients.items()}
    identity = {"weights": str(sorted(curve.weights.items())), "tokens": str(curve.token_checksums)}
    steps = range(1, len(curve.losses) + 1)
    losses, global_norms = dict(zip(steps, curve.losses, strict=True)), dict(zip(steps, curve.grad_norms, strict=True))
    return rules.TrainingCurve(len(losses), losses, global_norms, norms, identity, curve.final)


STEPS = 10  # the last step whose gradients are recorded


@pytest.fixture(scope="module")
def expected(torch_of) -> Callable[[dict[str, Any]], tuple[rules.TrainingCurve, rules.AlignmentLimits]]:
    """The right training of a model, and the limits that its numerics-only variations give."""

    def of(model):
        right, *runs = (training_of(torch_of(job_of(model, variant, STEPS))) for variant in (SINGLE, *NUMERICS))
        assert all(rules.align(run, right, WIDE).verdict == "aligned" for run in runs)
        return right, limits_of([noise_between(run, right) for run in runs], "three variations")

    return of


@pytest.mark.layouts
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_caught_by_its_layer(fault: Fault, tmp_path, expected):
    model = {**MODELS[fault.family], **fault.model}
    right, limits = expected(model)
    run = training_of(train(job_of(model, fault.variant, STEPS), planted(tmp_path, "torch", fault.code)))
    found = rules.align(run, right, limits)
    failed = [layer.name for layer in found.layers if layer.passed is False]
    assert failed[:1] == [fault.layer], found
    assert found.verdict in ("different", "diverged", "not comparable")


def test_the_documents_table_names_every_fault_and_its_layer():
    rows = [line for line in (ROOT / "docs" / "alignment.md").read_text().splitlines() if line.startswith("| ")]
    for fault in FAULTS:
        assert f"| {fault.name} | {fault.layer} | {fault.tensor or 'all agree in one process'} |" in rows


# ---- diagnose


def plugins(folder: Path, fault: Fault) -> Path:
    """A framework `faulty`, torch's implementation with the fault in it; a vendor and a small case to run it."""
    home, vendor = folder / "models" / "faulty", folder / "vendors" / "processor"
    home.mkdir(parents=True)
    shutil.copy(planted(home, "torch", fault.code), home / "train.py")
    rewrite(script_of("torch").with_name("implementation.yaml"), home / "implementation.yaml", framework="faulty")
    shutil.copytree(ROOT / "vendors" / "cpu", vendor, ignore=shutil.ignore_patterns("tuning"))
    access = {"device": "cpu", "backend": "gloo"}
    chips = [{"name": "processor", "device_is": "host share", "peaks": {}}]
    frameworks = {"torch": access, "faulty": access}
    rewrite(vendor / "vendor.yaml", name="processor", chips=chips, frameworks=frameworks)
    cases = folder / "configs" / "cases"
    cases.mkdir(parents=True)
    case = ROOT / "tests" / "core" / "plugins" / "configs" / "cases" / "tiny.yaml"
    rewrite(
        case,
        cases / "small.yaml",
        name="small",
        model={**MODELS[fault.family], **fault.model},
        smoke={"training": {"steps": 20}, "window": {"last_step": 20}},
    )
    return folder


def rewrite(source: Path, target: Path | None = None, **changes: object) -> None:
    (target or source).write_text(yaml.safe_dump({**yaml.safe_load(source.read_text()), **changes}, sort_keys=False))


def question(folder: Path, fault: Fault) -> Diagnosis:
    registry = Registry([plugins(folder / "plugins", fault)])
    choice = TuningChoice(micro_batch=4, threads=1, layout="DP1TP1PP1")
    sides = [ComparedTraining(f"small:{name}:processor:1:1", choice, sys.executable) for name in ("faulty", "torch")]
    quiet = Listener(say=lambda text: None, step=lambda plan, progress: None)
    return Diagnosis(registry, *sides, "smoke", None, folder / "runs", quiet)


class WarmLauncher(LocalLauncher):
    """Forks the ranks from a process that has torch imported; all else of a run is the platform's own."""

    def execute(self, request: Request, watch: Watch) -> Outcome:
        processes, port = request.nodes[0].processes, free_port()
        environments = [{**inherited(), **with_port(process, port)} for process in processes]
        python, script = processes[0].argv
        ends = run_ranks(python, script, environments, Path(request.events_dir))
        watch()
        codes = [end.returncode for end in ends]
        ended = (ProcessEnd(p.rank, code, None, False) for p, code in zip(processes, codes, strict=True))
        return Outcome("rank-failed" if any(codes) else "exited", tuple(ended), ends[0].output[-500:])


@pytest.fixture
def warm_ranks(monkeypatch) -> None:
    monkeypatch.setattr(launchers, "LocalLauncher", WarmLauncher)


def assert_found(fault: Fault, folder: Path) -> None:
    """`diagnose` names the fault's step and tensor, by halves and not one step after another."""
    asked = question(folder, fault)
    found = first_difference(asked, 10)
    assert found is not None and found.step == fault.step
    first = found.inputs[0] if found.inputs else next(t.name for t in found.tensors if t.differs)
    assert first == fault.tensor
    assert len(asked.probes) <= 5


DIAGNOSED = [fault for fault in FAULTS if fault.tensor]


@pytest.mark.layouts
@pytest.mark.usefixtures("warm_ranks")
@pytest.mark.parametrize("fault", DIAGNOSED, ids=lambda fault: fault.name)
def test_diagnose_names_the_step_and_the_first_tensor(fault: Fault, tmp_path):
    assert_found(fault, tmp_path)


@pytest.mark.layouts
def test_diagnose_in_processes_as_a_user_starts_them(tmp_path):
    assert_found(next(fault for fault in DIAGNOSED if fault.tensor == "layers.2"), tmp_path)


@pytest.mark.usefixtures("warm_ranks")
def test_diagnose_finds_nothing_where_nothing_differs(tmp_path):
    asked = question(tmp_path, Fault("none", "pass", "", None))
    assert first_difference(asked, 3) is None
    assert sorted(asked.probes) == [1, 3]
    assert all(tensor.value == 0 for tensor in asked.probes[3].tensors)

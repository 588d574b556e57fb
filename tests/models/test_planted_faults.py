"""Planted faults: each is caught by the layer of the alignment that should, and found by `align diagnose`."""

from __future__ import annotations

import functools
import shutil
import sys
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import yaml
from faults.elsewhere import ELSEWHERE
from faults.fault import Fault
from faults.in_torch import FAULTS
from faults.judging import STEPS, Trainings, Yardstick, judge, training_of, yardstick
from layouts import MODELS, ROOT, SINGLE, Curve, Variant, planted, script_of, small_job
from levelfield.catalog.registry import Registry
from levelfield.contracts.execution import Outcome, ProcessEnd, Request, Watch
from levelfield.measure import alignment as rules
from levelfield.run.launchers import local
from levelfield.run.launchers.launched_ranks import fill_in_port, find_free_port
from levelfield.run.launchers.local import LocalLauncher
from levelfield.run.runner import Listener
from levelfield.run.runtimes.process_runtime import inherited_variables
from levelfield.specs.tuning import TuningChoice
from levelfield.studies.diagnosis import ComparedTraining, Diagnosis, first_difference
from trainings.warm import run_ranks

pytestmark = pytest.mark.torch

# What changes arithmetic only: the limits come from these. Ranks take as much as they can at once: they cost the most.
NUMERICS = (
    ("micro-batch", Variant("micro-batch 4", micro_batch=4)),
    ("layout", Variant("DP2", {"data": 2}, micro_batch=4)),
    ("layout", Variant("TP2", {"tensor": 2}, micro_batch=8)),
)


@pytest.fixture(scope="module")
def expected(torch_of: Callable[[dict[str, Any]], Curve]) -> Callable[[str], Yardstick]:
    """The right training of a family's small model, and the limits that its numerics-only variations give."""
    return functools.cache(
        lambda family: yardstick(lambda variant: torch_of(small_job(MODELS[family], variant, STEPS)), "fp32", NUMERICS)
    )


# left to `make thorough`: three of four of those that one process of torch trains, and of the fourth what is like
# another; those under sequence parallelism, which take eight seconds of a processor, as test_megatron_mixture.py leaves
# out the same sum; those of jax, which compiles each; weight decay on norms, but paddle's
SIMILAR = (
    *("query's heads interleaved with their parts", "attention's softmax in bf16", "RoPE's angles in bf16"),
    *("a bias that never trains", "gradients not clipped", "RMSNorm in bf16"),
    "keys dealt out to the query heads by turns",
    *("one parameter left out of the data-parallel all-reduce", "weights perturbed after they were reported"),
)
LATER = [fault for number, fault in enumerate(f for f in FAULTS if f.variant == SINGLE) if number % 4]
LATER += [fault for fault in (*FAULTS, *ELSEWHERE) if fault.name in SIMILAR]
LATER += [fault for fault in (*FAULTS, *ELSEWHERE) if fault.variant.layout.get("sequence_parallel")]
LATER += [fault for fault in ELSEWHERE if fault.framework == "jax"]
DECAY = "weight decay on norms and biases"
LATER += [fault for fault in ELSEWHERE if fault.name == DECAY and fault.framework != "paddle"]


@pytest.mark.layouts
@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(f, id=f"{f.framework} {f.name}", marks=[pytest.mark.thorough] if f in LATER else [])
        for f in (*FAULTS, *ELSEWHERE)
    ],
)
def test_a_fault_is_caught_by_its_layer(
    fault: Fault, expected: Callable[[str], Yardstick], interpreter_of: Callable[[str], Path]
) -> None:
    training = functools.partial(Trainings(interpreter_of).curve, fault, fault.family, "fp32")
    judged = judge(fault, fault.family, training, expected(fault.family), "fp32")
    assert fault.layer in judged.failed, judged
    assert judged.verdict in ("different", "diverged", "not comparable")


@pytest.mark.layouts
def test_weight_decay_on_biases_stands_out_in_the_final_weights(expected: Callable[[str], Yardstick]) -> None:
    fault, by = next(fault for fault in FAULTS if fault.name == "weight decay on biases"), expected("gpt")
    run = training_of(Trainings(None).curve(fault, "gpt", "fp32"))  # type: ignore[arg-type]
    layer = rules.final_weight_layer(run, by.training, by.limits)
    assert layer.value is not None and layer.limit is not None
    assert layer.passed is False and layer.value > 20 * layer.limit and "bias" in layer.detail


def test_there_are_enough_faults() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 45
    assert {framework: len(list(of)) for framework, of in groupby(ELSEWHERE, lambda fault: fault.framework)} == {
        "megatron": 3, "paddle": 3, "deepspeed": 3, "oneflow": 3, "jax": 3
    }  # fmt: skip


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
    faulty, right = (
        ComparedTraining(f"small:{name}:processor:1:1", choice, sys.executable) for name in ("faulty", "torch")
    )
    quiet = Listener(say=lambda text: None, report_step=lambda plan, progress: None)
    return Diagnosis(registry, faulty, right, "smoke", None, folder / "runs", quiet)


class WarmLauncher(LocalLauncher):
    """Forks the ranks from a process that has torch imported; all else of a run is the platform's own."""

    def execute(self, request: Request, watch: Watch) -> Outcome:
        processes, port = request.nodes[0].processes, find_free_port()
        environments = [{**inherited_variables(), **fill_in_port(process, port)} for process in processes]
        python, script = processes[0].argv
        ends = run_ranks(python, script, environments, Path(request.events_dir))
        watch()
        codes = [end.returncode for end in ends]
        ended = (ProcessEnd(p.rank, code, None, False) for p, code in zip(processes, codes, strict=True))
        return Outcome("rank-failed" if any(codes) else "exited", tuple(ended), ends[0].output[-500:])


@pytest.fixture
def warm_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "LocalLauncher", WarmLauncher)


def assert_found(fault: Fault, folder: Path) -> None:
    """`align diagnose` names the fault's step and tensor, by halves and not one step after another."""
    asked = question(folder, fault)
    difference = first_difference(asked, 10)
    assert difference is not None and difference.step == fault.step
    first = difference.inputs[0] if difference.inputs else next(t.name for t in difference.tensors if t.differs)
    assert first == fault.tensor
    assert len(asked.probes) <= 6  # the first step, the tenth, and halves of what lies between


DIAGNOSED = [fault for fault in FAULTS if fault.tensor]


def place(fault: Fault) -> tuple[str, bool]:
    """What kind of tensor differs first, and whether that is in a later step."""
    assert fault.tensor is not None
    return fault.tensor.split(".")[0], fault.step > 1


# `make test` diagnoses one fault of most kinds of place; each diagnosis is several trainings. The search for a later
# step is in tests/core/studies; an embedding is told as a layer is, and initial weights as tokens are.
RARE = (
    *(("updated", True), ("the tokens of step 3", True)),
    *(("embedding", False), ("the initial weights of layers", False)),
)
ALWAYS = {place(fault): fault for fault in reversed(DIAGNOSED) if place(fault) not in RARE}.values()


@pytest.mark.layouts
@pytest.mark.usefixtures("warm_ranks")
@pytest.mark.parametrize(
    "fault",
    [pytest.param(f, id=f.name, marks=[] if f in ALWAYS else [pytest.mark.thorough]) for f in DIAGNOSED],
)
def test_diagnose_names_the_step_and_the_first_tensor(fault: Fault, tmp_path: Path) -> None:
    assert_found(fault, tmp_path)


@pytest.mark.thorough  # what warm_ranks leaves out, the start of processes, tests/e2e has of every run
@pytest.mark.layouts
def test_diagnose_in_processes_as_a_user_starts_them(tmp_path: Path) -> None:
    name = "weights perturbed after they were reported"
    assert_found(next(fault for fault in DIAGNOSED if fault.name == name), tmp_path)


@pytest.mark.usefixtures("warm_ranks")
def test_diagnose_finds_nothing_where_nothing_differs(tmp_path: Path) -> None:
    asked = question(tmp_path, Fault("none", "pass", "", None))
    assert first_difference(asked, 3) is None
    assert sorted(asked.probes) == [1, 3]
    assert all(tensor.value == 0 for tensor in asked.probes[3].tensors)

"""The search for the first step that differs, what `align diagnose` says, wrong usage. Real trainings: tests/models."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from levelfield.catalog.registry import Registry
from levelfield.cli.diagnose_command import _create_diagnosis, _lines
from levelfield.cli.main import main
from levelfield.cli.terminal import Terminal
from levelfield.measure.tensors import TensorDifference
from levelfield.run.runner import Listener
from levelfield.rundir.directory import read_plan
from levelfield.specs.base import dump, parse
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan
from levelfield.specs.result import Alignment
from levelfield.specs.tuning import TuningChoice
from levelfield.studies.diagnosis import ComparedTraining, Diagnosis, StepComparison, first_difference, shorten_plan
from plans import PLUGINS, make_plan

VERDICT = Alignment(verdict="diverged", reason="first at step 9")
NAMES = ["embedding", "layers.0", "layers.1", "logits", "gradient.head.weight", "updated.head.weight"]


def probe(step: int, first: str | None = None, inputs: tuple[str, ...] = ()) -> StepComparison:
    """A step in which `first` and all that follows differ."""
    start = NAMES.index(first) if first else len(NAMES)
    values = [0.5 if number >= start else 1e-8 for number in range(len(NAMES))]
    tensors = [TensorDifference(n, v, 1e-6, "at [0]: 1, expected 2") for n, v in zip(NAMES, values, strict=True)]
    return StepComparison(step, inputs, tuple(tensors))


@dataclass(frozen=True)
class PlantedSteps(Diagnosis):
    """Probes of two trainings that part at step `parting`."""

    parting: int = 1

    def probe(self, step: int) -> StepComparison:
        self.probes[step] = probe(step, "layers.1" if step >= self.parting else None)
        return self.probes[step]


def parting_at(step: int) -> PlantedSteps:
    training = ComparedTraining("case:framework:vendor:1:1", TuningChoice())
    listener = Listener(print, lambda plan, progress: None)
    return PlantedSteps(Registry(), training, training, "smoke", None, Path("runs"), listener, parting=step)


@pytest.mark.parametrize("parting", [1, 2, 3, 7, 16, 31, 32])
def test_the_first_step_is_found_by_halves(parting: int) -> None:
    steps = parting_at(parting)
    difference = first_difference(steps, 32)
    assert difference is not None and difference.step == parting
    assert len(steps.probes) <= 2 + 5


def test_nothing_is_found_where_all_agrees_up_to_the_suspect() -> None:
    steps = parting_at(20)
    assert first_difference(steps, 19) is None
    assert sorted(steps.probes) == [1, 19]


def test_a_difference_that_is_not_a_number_differs() -> None:
    assert TensorDifference("logits", float("nan"), 1e-6, "").differs
    assert TensorDifference("logits", float("inf"), 1e-6, "").differs


@pytest.mark.parametrize(
    ("first", "words"),
    [
        ("layers.1", "block 1"),
        ("embedding", "embeddings"),
        ("logits", "the head"),
        ("gradient.head.weight", "backward pass"),
        ("updated.head.weight", "weight decay"),
    ],
)
def test_the_answer_names_step_and_tensor_and_where_to_look(first: str, words: str, run: RunPaths) -> None:
    plan = read_plan(run)
    text = "\n".join(_lines(plan, parting_at(1), VERDICT, 9, probe(4, first)))
    assert f"step 4: {first} " in text
    assert words in text
    assert f"DIFFERS {first}" in text


def test_inputs_that_differ_come_before_everything(run: RunPaths) -> None:
    difference = probe(1, "embedding", ("tokens 1",))
    text = "\n".join(_lines(read_plan(run), parting_at(1), VERDICT, 9, difference))
    assert "differ: tokens 1" in text


def test_agreement_in_one_process_points_to_the_layout(run: RunPaths) -> None:
    """This answer is held word for word; it names every step that was compared."""
    steps = parting_at(99)
    first_difference(steps, 5)
    text = "\n".join(_lines(read_plan(run), steps, VERDICT, 5, None))
    assert "agree in every tensor of steps 1, 5" in text
    assert "the layout DP2TP1PP1 causes the difference" in text


def test_a_shortened_plan_is_a_valid_plan_of_the_same_work(run: RunPaths) -> None:
    plan = read_plan(run)
    short = shorten_plan(plan, 1)
    body = {"schema": Plan.schema_name(), **short.model_dump(mode="json")}
    assert dump(parse(Plan, body, "the plan")) == dump(short)
    assert short.work.training.steps == 2
    assert short.work.model == plan.work.model and short.work.training.schedule == plan.work.training.schedule


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["--against", "fake"], "--against FRAMEWORK"),
        (["--against", "torch", "--step", "0"], "expected 1 to 11"),
        (["--against", "torch", "--step", "12"], "expected 1 to 11"),
    ],
)
def test_wrong_usage_is_said_before_anything_is_trained(
    words: list[str], fault: str, run: RunPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["align", "diagnose", str(run.root), "--plugins", str(PLUGINS), *words]) == 2
    assert fault in capsys.readouterr().err
    assert not (run.root / "diagnosis").exists()


def test_the_diagnosed_side_is_trained_with_the_run_s_own_choices(tmp_path: Path) -> None:
    """A graph is one of them: torch refuses it beside captured tensors, and nothing else is diagnosed in its place."""
    registry = Registry()
    plan = make_plan(
        registry, "gpt3_6.7B:torch:H100:1:1", scale="smoke", may_lack_hardware=True, graph=True, compile=True
    )
    diagnosis = _create_diagnosis(registry, RunPaths(tmp_path), plan, "jax", None, Terminal(quiet=True))
    assert (diagnosis.diagnosed_training.choice.graph, diagnosis.diagnosed_training.choice.compile) == (True, True)
    assert (diagnosis.expected_training.choice.graph, diagnosis.expected_training.choice.compile) == (None, None)


def test_an_unknown_run_is_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["align", "diagnose", "none", "--runs", str(tmp_path)]) == 2
    assert "none" in capsys.readouterr().err

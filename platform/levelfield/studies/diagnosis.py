"""Finds where two frameworks differ: the first step, and in it the first tensor that differs by more than rounding.

A probe trains both up to a step, in one process each, and compares the tensors of that step (measure/tensors.py). A
binary search finds the step, between a step where all tensors agree and one where a tensor differs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from levelfield.catalog.registry import Registry
from levelfield.corpus.facts import CorpusFacts
from levelfield.errors import RunFailed
from levelfield.measure.tensors import TensorDifference, compare_step
from levelfield.plan.request import Entry, UserRequest
from levelfield.run import scheduler
from levelfield.run.runner import Listener
from levelfield.rundir.raw_files import RawRecords, read_raw
from levelfield.specs.case import Scale
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan
from levelfield.specs.tuning import TuningChoice
from levelfield.worker.architecture import Model
from levelfield.worker.job import parse
from levelfield.worker.parameters import list_parameters


@dataclass(frozen=True)
class ComparedTraining:
    """One of the two trainings."""

    case_string: str  # a case string for one process
    choice: TuningChoice
    python: str | None = None  # the interpreter, where the user named one


@dataclass(frozen=True)
class StepComparison:
    """One step of both trainings."""

    step: int
    inputs: tuple[str, ...]  # sentences about initial weights and tokens that differ
    tensors: tuple[TensorDifference, ...]  # in the order of the computation

    @property
    def agrees(self) -> bool:
        return not self.inputs and not any(tensor.differs for tensor in self.tensors)


@dataclass(frozen=True)
class Diagnosis:
    """The two trainings and the folder of their short runs. Raises RunFailed when a run does not reach its step."""

    registry: Registry
    diagnosed_training: ComparedTraining
    expected_training: ComparedTraining
    scale: Scale
    corpus: CorpusFacts | None
    folder: Path
    listener: Listener
    probes: dict[int, StepComparison] = field(default_factory=dict)

    def probe(self, step: int) -> StepComparison:
        if step not in self.probes:
            self.listener.say(
                f"step {step}: training {self.diagnosed_training.case_string} and {self.expected_training.case_string}"
            )
            plan, ours = self._train(self.diagnosed_training, step)
            _, theirs = self._train(self.expected_training, step)
            training = plan.work.training
            model = parse(Model, plan.work.model.model_dump(), "model")
            names = list(list_parameters(model, training.sequence_length))
            tensors = compare_step(ours.capture, theirs.capture, names, training.precision)
            self.probes[step] = StepComparison(
                step, tuple(_input_differences(read_raw(ours), read_raw(theirs), step)), tuple(tensors)
            )
        return self.probes[step]

    def _train(self, side: ComparedTraining, step: int) -> tuple[Plan, RunPaths]:
        request = UserRequest(self.scale, side.choice, repeats=1, python=side.python, capture_step=step)
        (job,) = scheduler.plan_jobs(self.registry, [Entry(side.case_string, request)], self.corpus)
        short_job = scheduler.Job(shorten_plan(job.plan, step), job.vendor)
        (result,) = scheduler.run_jobs(iter([short_job]), self.folder, self.listener, lambda plan: None)
        paths = RunPaths(self.folder.absolute() / result.run_id)
        if result.status.word in ("failed", "unsupported", "not-run"):
            raise RunFailed(f"{side.case_string} up to step {step}: {result.status.word}: {result.status.evidence}")
        return short_job.plan, paths


def shorten_plan(plan: Plan, step: int) -> Plan:
    """Return the plan with one step after `step`, because a window needs a warm-up of at least one step."""
    work = plan.work
    end = step + 1
    short = work.model_copy(
        update={
            "training": work.training.model_copy(update={"steps": end}),
            "window": work.window.model_copy(update={"first_step": end, "last_step": end}),
            "acceptance": work.acceptance.model_copy(update={"tail_steps": 1}),
            "evidence": work.evidence.model_copy(update={"gradient_steps": ()}),
        }
    )
    return plan.model_copy(update={"work": short, "work_digest": short.fingerprint()})


def first_difference(diagnosis: Diagnosis, last_step: int) -> StepComparison | None:
    """Return the first step of 1 to `last_step` in which something differs; None when step `last_step` agrees.

    The search expects that a difference stays in all later steps, as it does in training.
    """
    agreeing_step, differing = 0, diagnosis.probe(1)
    if not differing.agrees:
        return differing
    agreeing_step, differing = 1, diagnosis.probe(last_step)
    if differing.agrees:
        return None
    while differing.step - agreeing_step > 1:
        middle = diagnosis.probe((agreeing_step + differing.step) // 2)
        if middle.agrees:
            agreeing_step = middle.step
        else:
            differing = middle
    return differing


def _input_differences(actual: RawRecords, expected: RawRecords, step: int) -> Iterator[str]:
    """Return sentences about initial weights and tokens with different checksums."""
    ours = {w.name: w.checksum for w in actual.weights}
    theirs = {w.name: w.checksum for w in expected.weights}
    for name in sorted({*ours, *theirs}, key=list({**theirs, **ours}).index):
        if ours.get(name) != theirs.get(name):
            yield f"the initial weights of {name}"
    actual_read, expected_read = ({r.step: r.tokens_checksum for r in raw.steps} for raw in (actual, expected))
    for number in range(1, step + 1):
        if actual_read.get(number) != expected_read.get(number):
            yield f"the tokens of step {number}"

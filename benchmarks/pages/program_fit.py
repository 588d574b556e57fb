"""The fit of the constants of others' programs, on half of the runs of benchmarks/data/unseen_runs.json.

Each fit moves its constants one after another, within the ranges given here, to the least mean of absolute logarithms
of predicted over published rates. An error above CUT counts as CUT, so that one odd row moves nothing.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from levelfield.predict.machines import MachineRates
from levelfield.predict.setup import TrainingSetup, setup_of
from levelfield.predict.timing import step_time
from levelfield.specs.constants import Constants, Pace
from pages.unseen import Questions, Run

ROOT = Path(__file__).resolve().parents[2]
CUT = 0.5
# Runs that stay out of every fit, by group, with the reason.
LEFT_OUT = {
    "aa_13B_2048_64|flash_attention2": (
        "from micro-batch 1 to 8 its rows of two stages lose 39 %, as with a global batch of 256; 2048 was inferred"
    ),
}


@dataclass(frozen=True)
class Knob:
    """A constant of a fit. owner: a program, or the anchor of a chip's attention rates in vendor.yaml."""

    owner: str
    name: str
    low: float
    high: float

    @property
    def of_chip(self) -> bool:
        return self.owner.endswith("_attention")


@dataclass(frozen=True)
class Fit:
    """Programs that share constants. file: of the framework in configs/planner."""

    file: str
    programs: tuple[str, ...]
    knobs: tuple[Knob, ...]


FITS = (
    Fit(
        "megatron",
        ("aleph_alpha_rms", "aleph_alpha_flash2", "aleph_alpha_flash1"),
        (
            Knob("aleph_alpha_rms", "matmul_efficiency", 0.6, 1.15),
            Knob("aleph_alpha_rms", "product_traffic", 1, 8),
            Knob("aleph_alpha_rms", "elementwise_traffic", 0.5, 4),
            Knob("aleph_alpha_flash2", "elementwise_traffic", 1, 8),
            Knob("aleph_alpha_rms", "communication_efficiency", 0.2, 1),
            Knob("aleph_alpha_rms", "network_efficiency", 0.2, 1),
            Knob("aleph_alpha_rms", "tensor_overlap", 0.001, 0.6),
            Knob("aleph_alpha_rms", "bucket_bytes", 1e6, 1e8),
            Knob("a100_attention", "flash1", 78, 140),
            Knob("a100_attention", "flash2", 140, 228),
        ),
    ),
    Fit(
        "torch",
        ("llm_foundry", "llm_foundry_pure"),
        (
            Knob("llm_foundry", "matmul_efficiency", 0.6, 1.15),
            Knob("llm_foundry", "product_traffic", 1, 8),
            Knob("llm_foundry", "elementwise_traffic", 0.5, 4),
            Knob("llm_foundry", "communication_efficiency", 0.3, 1),
            Knob("llm_foundry", "fp8_efficiency", 0.5, 1.15),
            Knob("a100_attention", "triton", 50, 140),
            Knob("hopper_attention", "triton", 80, 300),
        ),
    ),
    Fit("torch", ("torchtitan",), (Knob("torchtitan", "matmul_efficiency", 0.4, 1.15),)),
    Fit(
        "megatron",
        ("megatron_2021",),
        (
            Knob("megatron_2021", "matmul_efficiency", 0.6, 1.15),
            Knob("megatron_2021", "product_traffic", 1, 8),
        ),
    ),
    Fit(
        "megatron",
        ("nemo",),
        (Knob("nemo", "fp8_efficiency", 0.5, 1.15), Knob("nemo", "elementwise_traffic", 0.5, 2)),
    ),
    Fit("deepspeed", ("megatron_deepspeed",), (Knob("megatron_deepspeed", "matmul_efficiency", 0.5, 1.15),)),
)


@dataclass(frozen=True)
class _Case:
    """A run in a fit, with what does not change."""

    run: Run
    setup: TrainingSetup
    machine: MachineRates
    pace: Pace
    tokens: float
    chip: str
    lineage: list[str]


Values = dict[Knob, float]


def fitted_values(fit: Fit, runs: Iterable[Run], questions: Questions, settled: Values) -> Values:
    """Return the best value of each constant. The search starts in the middle of each range, so that it always ends
    at the same place. settled: the values of earlier fits, whose rates of chips hold here."""
    cases = [_case(run, questions) for run in runs if run.fitted and run.program in fit.programs and _usable(run)]
    values = {knob: float(f"{math.sqrt(knob.low * knob.high):.3g}") for knob in fit.knobs}
    chips = {knob: value for knob, value in settled.items() if knob.of_chip}

    def loss(tried: Values) -> float:
        return statistics.mean(min(CUT, abs(_off(case, {**chips, **tried}))) for case in cases)

    return _descended(fit, values, loss)


def _usable(run: Run) -> bool:
    return run.rate is not None and run.speed_stated and run.group not in LEFT_OUT


def _case(run: Run, questions: Questions) -> _Case:
    question = questions.question(run)
    setup = setup_of(question.work, run.tuning, False, question.constants.keeping)
    tokens = question.work.training.tokens_per_step / run.devices
    lineage = _lineage(questions.registry_constants(run.framework), run.program or "")
    chip = "hopper_attention" if run.row["chip"].startswith("H") else "a100_attention"
    return _Case(run, setup, question.machine, question.constants.pace, tokens, chip, lineage)


def _lineage(constants: Constants, program: str) -> list[str]:
    names = [program]
    while (like := constants.programs[names[-1]].like) is not None:
        names.append(like)
    return names


def _off(case: _Case, values: Values) -> float:
    """Return the logarithm of the predicted over the published rate."""
    attention = dict(case.machine.attention)
    attention |= {k.name: v * 1e12 for k, v in values.items() if k.owner == case.chip}  # type: ignore[misc]
    paces: dict[str, float] = {}
    for owner in reversed(case.lineage):  # a program's own constant comes after that of the one it is like
        paces |= {k.name: v for k, v in values.items() if k.owner == owner}
    time = step_time(case.setup, replace(case.machine, attention=attention), case.pace.model_copy(update=paces)).total
    assert case.run.rate is not None
    return math.log(case.tokens / time / case.run.rate)


def _descended(fit: Fit, values: Values, loss: Callable[[Values], float]) -> Values:
    """Move one constant at a time by a step that halves when no move helps. Steps are shares of the range's ratio."""
    best, step = loss(values), 0.25
    while step > 0.004:
        before = best
        for knob in fit.knobs:
            for sign in (1, -1):
                values, best = _moved(knob, sign * step, values, best, loss)
        if best > before - 1e-6:
            step /= 2
    return values


def _moved(
    knob: Knob, step: float, values: Values, best: float, loss: Callable[[Values], float]
) -> tuple[Values, float]:
    while True:
        value = min(knob.high, max(knob.low, values[knob] * (knob.high / knob.low) ** (step / 2)))
        tried = {**values, knob: float(f"{value:.3g}")}
        if tried[knob] == values[knob] or not (found := loss(tried)) < best - 1e-6:
            return values, best
        values, best = tried, found


def written(fit: Fit, values: Values, texts: dict[Path, str]) -> dict[Path, str]:
    """Return the texts of configs/planner and vendor.yaml with the values in them. All other words stay."""
    for knob, value in values.items():
        path, pattern = _path(knob, fit), _chip_pattern(knob) if knob.of_chip else _program_pattern(knob)
        number = f"{value:.0f}" if value > 1000 else f"{value:g}"
        text, count = pattern.subn(rf"\g<1>{number}\g<3>", texts.get(path) or path.read_text(), count=1)
        if count != 1:
            raise SystemExit(f"{path.name}: found no {knob.name} of {knob.owner}")
        texts = {**texts, path: text}
    return texts


def _path(knob: Knob, fit: Fit) -> Path:
    return ROOT / ("vendors/nvidia/vendor.yaml" if knob.of_chip else f"configs/planner/{fit.file}.yaml")


def _chip_pattern(knob: Knob) -> re.Pattern[str]:
    return re.compile(rf"(&{knob.owner}\n(?: +\w+: .*\n)*? +{knob.name}: {{tflops: )([\d.]+)(,)")


def _program_pattern(knob: Knob) -> re.Pattern[str]:
    return re.compile(rf"(\n  {knob.owner}:\n(?:    .*\n)*?    pace: {{(?:.*?, )??{knob.name}: )([\d.e+-]+)([,}}])")

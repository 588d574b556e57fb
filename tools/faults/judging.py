"""The platform's verdicts on trainings of the small models: on every planted fault and on every honest run."""

from __future__ import annotations

import functools
import os
import pickle
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

from faults.elsewhere import ELSEWHERE
from faults.fault import Fault
from faults.in_torch import FAULTS
from layouts import COMMON_MODELS, MODELS, SINGLE, Curve, Variant, planted, script_of, small_job, train
from levelfield.catalog.registry import Registry
from levelfield.measure import alignment as rules
from levelfield.measure.calibration import noise_between, tolerance_limits
from matrix import VARIANTS

REGISTRY = Registry()
STEPS = 10  # the last step whose gradients are recorded
PRECISIONS = ("fp32", "bf16")

# The variations of `align calibrate`, by what they vary, from one process with one thread and micro-batches of 2.
LEARNT = (
    ("micro-batch", Variant("half the micro-batch", micro_batch=1)),
    ("micro-batch", VARIANTS["accumulation 1"]),
    *(("layout", VARIANTS[name]) for name in ("DP2", "TP2", "PP2", "ZeRO 1, DP2")),
)


@dataclass(frozen=True)
class HonestRun:
    """A run that differs from the reference in arithmetic only, and gave no limit."""

    name: str
    variant: Variant = SINGLE
    code: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    framework: str = "torch"


def fewer_instructions(onednn: str, aten: str) -> dict[str, str]:
    """Environment of a run that stands for one on another processor: torch and oneDNN use fewer instructions."""
    return {"ONEDNN_MAX_CPU_ISA": onednn, "ATEN_CPU_CAPABILITY": aten}


HONEST = (
    HonestRun("micro-batch 4", Variant("twice the micro-batch", micro_batch=4)),
    *(
        HonestRun(name, VARIANTS[name])
        for name in (
            "recompute selective", "recompute full", "TP2 sequence parallel", "ZeRO 2, DP2", "ZeRO 3, DP2", "PP4",
            "DP2 x TP2", "TP2 x PP2",
        )
    ),
    HonestRun("held to AVX2", environment=fewer_instructions("AVX2", "avx2")),
    HonestRun("held to SSE4.1", environment=fewer_instructions("SSE41", "default")),
    HonestRun("MKL in its compatible mode", environment={"MKL_CBWR": "COMPATIBLE"}),
    *(HonestRun(framework, framework=framework) for framework in REGISTRY.frameworks if framework != "torch"),
    HonestRun("two threads", code="import torch; torch.set_num_threads(2)"),
)  # fmt: skip


@dataclass(frozen=True)
class Judgement:
    """The verdict on one run. failed: the layers that failed, of which the first one decides."""

    name: str
    fault: bool
    framework: str
    family: str
    precision: str
    verdict: str
    failed: tuple[str, ...] = ()
    reason: str = ""

    @property
    def title(self) -> str:
        return self.name if self.framework == "torch" else f"{self.framework}: {self.name}"

    @property
    def layer(self) -> str:
        return self.failed[0] if self.failed else self.verdict


@dataclass(frozen=True)
class Yardstick:
    """The training that others are compared with, and the limits that its variations give."""

    training: rules.TrainingCurve
    limits: rules.AlignmentLimits


def training_of(curve: Curve) -> rules.TrainingCurve:
    norms = {s: {n: max(v, 0.0) ** 0.5 for n, v in squares.items()} for s, squares in curve.gradients.items()}
    identity = {"weights": str(sorted(curve.weights.items())), "tokens": str(curve.token_checksums)}
    steps = range(1, len(curve.losses) + 1)
    losses, global_norms = dict(zip(steps, curve.losses, strict=True)), dict(zip(steps, curve.grad_norms, strict=True))
    return rules.TrainingCurve(len(losses), losses, global_norms, norms, identity, curve.final, curve.experts)


def yardstick(
    curve_of: Callable[[Variant], Curve], precision: str, learnt: Sequence[tuple[str, Variant]] = LEARNT
) -> Yardstick:
    """The reference, and the limits from the rows of noise that its variations give."""
    right = training_of(curve_of(SINGLE))
    rows = [
        noise_between(training_of(curve_of(variant)), right)._replace(kind=kind, setting=variant.name)
        for kind, variant in learnt
    ]
    return Yardstick(right, tolerance_limits(rows, "the small model's noise", precision))


def judge(
    run: Fault | HonestRun, family: str, trained: Callable[[], Curve], by: Yardstick, precision: str
) -> Judgement:
    """Return the platform's verdict on the curve that `trained` returns; a training that raises is `failed`."""
    about = (run.name, isinstance(run, Fault), run.framework, family, precision)
    try:
        alignment = rules.align(training_of(trained()), by.training, by.limits)
    except RuntimeError as error:
        return Judgement(*about, "failed", reason=str(error).strip().splitlines()[-1][:200])
    failed = tuple(layer.name for layer in alignment.layers if layer.passed is False)
    return Judgement(*about, alignment.verdict, failed, alignment.reason)


def curve_of(run: Fault | HonestRun, family: str, precision: str, python: Path | None = None) -> Curve:
    environment = getattr(run, "environment", {})
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, environment):
        script = planted(Path(folder), run.framework, run.code) if run.code else script_of(run.framework)
        return train(small_job(MODELS[family], run.variant, STEPS, precision=precision), script, python)


class Trainings:
    """Trains each run once. With a folder its curve is kept there: rules may change without new trainings."""

    def __init__(self, interpreter_of: Callable[[str], Path], folder: Path | None = None) -> None:
        self.interpreter_of, self.folder = interpreter_of, folder

    def curve(self, run: Fault | HonestRun, family: str, precision: str) -> Curve:
        path = self.folder and self.folder / f"{precision} {family} {run.framework} {run.name}".replace("/", " ")
        if path is None or not path.exists():
            python = None if run.framework == "torch" else self.interpreter_of(run.framework)
            trained = curve_of(run, family, precision, python)
            if path is None:
                return trained
            path.write_bytes(pickle.dumps(trained))
        return pickle.loads(path.read_bytes())


def judgements(precision: str, trainings: Trainings) -> Iterator[Judgement]:
    """Every fault in its family and every honest run in both families, of the frameworks that have the precision."""

    def yardstick_of(family: str) -> Yardstick:
        return yardstick(
            lambda variant: trainings.curve(HonestRun(variant.name, variant), family, precision), precision
        )

    yardsticks = {family: yardstick_of(family) for family in COMMON_MODELS}
    runs: list[tuple[Fault | HonestRun, str]] = [(fault, fault.family) for fault in (*FAULTS, *ELSEWHERE)]
    runs += [(run, family) for run in HONEST for family in COMMON_MODELS]
    for run, family in runs:
        if precision in REGISTRY.implementation(run.framework)[0].precisions["cpu"]:
            trained = functools.partial(trainings.curve, run, family, precision)
            yield judge(run, family, trained, yardsticks[family], precision)


# ---- what the verdicts amount to


_LOSSES = ("integrity", "identity", "first step", "curve", "spikes")
LAYER_SETS = {
    "losses": _LOSSES,
    "losses, gradients": (*_LOSSES, "gradients"),
    "losses, final weights": (*_LOSSES, "final weights"),
    "all": (*_LOSSES, "gradients", "final weights"),
}


def certified(judged_runs: Iterable[Judgement]) -> dict[tuple[str, str, str], str]:
    """Return the verdict on each run below fp32 with its certificate, by (framework, name, family).

    `aligned` needs the same code and layout aligned in fp32; it is `consistent` otherwise.
    """
    all_judgements = list(judged_runs)
    aligned = {key_of(j) for j in all_judgements if j.precision == "fp32" and j.verdict == "aligned"}
    return {
        key_of(j): "consistent" if j.verdict == "aligned" and key_of(j) not in aligned else j.verdict
        for j in all_judgements
        if j.precision != "fp32"
    }


def key_of(judgement: Judgement) -> tuple[str, str, str]:
    return judgement.framework, judgement.name, judgement.family


def missed(judged_runs: Iterable[Judgement], precision: str, layers: Sequence[str]) -> list[str]:
    """Return the faults that none of `layers` finds."""
    faults = [j for j in judged_runs if j.fault and j.precision == precision and j.verdict != "failed"]
    return [j.title for j in faults if not set(j.failed) & set(layers)]

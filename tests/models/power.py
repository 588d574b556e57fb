"""The power of the alignment: its verdict on every planted fault and on every honest run.

    PYTHONPATH=platform python tests/models/power.py [--docs] [--json FILE] [--precision fp32]

trains the small GPT and Llama of layouts.py in float32 and in bf16. The limits are learned from the variations of
`align calibrate`, by the platform's own rules; every fault and every other honest run is judged by them. `--docs`
writes the tables into docs/alignment.md.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from fault import Fault
from faults import FAULTS
from faults_elsewhere import ELSEWHERE
from interpreters import interpreters
from layouts import MODELS, ROOT, SINGLE, Curve, Variant, job_of, planted, script_of, train
from levelfield.measure import alignment as rules
from levelfield.measure.calibration import limits_of, noise_between
from matrix import VARIANTS, processor

STEPS = 10  # the last step whose gradients are recorded
PAGE = ROOT / "docs" / "alignment.md"
BEGIN, END = "<!-- written by tests/models/power.py: begin -->", "<!-- end -->"
PRECISIONS = ("fp32", "bf16")

# The variations of `align calibrate`, by what they vary, from one process with one thread and micro-batches of 2.
LEARNT = (
    ("micro-batch", Variant("half the micro-batch", micro_batch=1)),
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
    HonestRun("two threads", code="import torch; torch.set_num_threads(2)"),
    HonestRun("micro-batch 8", VARIANTS["accumulation 1"]),
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
    *(HonestRun(framework, framework=framework) for framework in ("megatron", "paddle", "deepspeed", "oneflow")),
)  # fmt: skip
SIXTEEN_BITS = ("torch", "megatron", "deepspeed")  # the frameworks that train in bf16 on a processor


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
    return rules.TrainingCurve(len(losses), losses, global_norms, norms, identity, curve.final)


def yardstick(curve_of: Callable[[Variant], Curve], learnt: Sequence[tuple[str, Variant]] = LEARNT) -> Yardstick:
    """The reference, and the limits from the rows of noise that its variations give."""
    right = training_of(curve_of(SINGLE))
    rows = [
        noise_between(training_of(curve_of(variant)), right)._replace(kind=kind, setting=variant.name)
        for kind, variant in learnt
    ]
    return Yardstick(right, limits_of(rows, "the small model's noise"))


def judge(run: Fault | HonestRun, family: str, precision: str, by: Yardstick, python: Path | None = None) -> Judgement:
    """Train once and return the platform's verdict; a training that ends with an error is `failed`."""
    about = (run.name, isinstance(run, Fault), run.framework, family, precision)
    try:
        found = rules.align(train_of(run, family, precision, python), by.training, by.limits)
    except RuntimeError as error:
        return Judgement(*about, "failed", reason=str(error).strip().splitlines()[-1][:200])
    failed = tuple(layer.name for layer in found.layers if layer.passed is False)
    return Judgement(*about, found.verdict, failed, found.reason)


def train_of(run: Fault | HonestRun, family: str, precision: str, python: Path | None = None) -> rules.TrainingCurve:
    environment = getattr(run, "environment", {})
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, environment):
        script = planted(Path(folder), run.framework, run.code) if run.code else script_of(run.framework)
        job = job_of(MODELS[family], run.variant, STEPS, precision=precision)
        return training_of(train(job, script, python))


def judgements(precision: str, interpreter_of: Any) -> Iterator[Judgement]:
    """Every fault in its family and every honest run in both families, of the frameworks that have the precision."""
    by = {
        family: yardstick(lambda variant, m=model: train(job_of(m, variant, STEPS, precision=precision)))
        for family, model in sorted(MODELS.items())
    }
    runs = [(run, family) for run in HONEST for family in sorted(MODELS)]
    runs += [(fault, fault.family) for fault in (*FAULTS, *ELSEWHERE)]
    for run, family in runs:
        if precision == "fp32" or run.framework in SIXTEEN_BITS:
            python = None if run.framework == "torch" else interpreter_of(run.framework)
            yield judge(run, family, precision, by[family], python)


# ---- what the verdicts amount to


_LOSSES = ("integrity", "identity", "first step", "curve", "spikes")
LAYER_SETS = {
    "losses": _LOSSES,
    "losses, gradients": (*_LOSSES, "gradients"),
    "losses, final weights": (*_LOSSES, "final weights"),
    "all": (*_LOSSES, "gradients", "final weights"),
}


def certified(judged: Iterable[Judgement]) -> dict[tuple[str, str, str], str]:
    """Return the verdict of each run in bf16, by (framework, name, family). `aligned` needs it aligned in fp32 too."""
    listed = list(judged)
    aligned = {_key(j) for j in listed if j.precision == "fp32" and j.verdict == "aligned"}
    return {
        _key(j): j.verdict if j.verdict != "aligned" or _key(j) in aligned else "no certificate"
        for j in listed
        if j.precision == "bf16"
    }


def _key(judged: Judgement) -> tuple[str, str, str]:
    return judged.framework, judged.name, judged.family


def missed(judged: Iterable[Judgement], precision: str, layers: Sequence[str]) -> list[str]:
    """The faults that no one of `layers` finds."""
    faults = [j for j in judged if j.fault and j.precision == precision and j.verdict != "failed"]
    return [j.name for j in faults if not set(j.failed) & set(layers)]


def set_of_layers(found: Iterable[Judgement], precision: str) -> list[str]:
    """Rows of a table: by each set of layers, how many faults were missed, and which."""
    listed = list(found)
    rows = []
    for title, layers in LAYER_SETS.items():
        names = missed(listed, precision, layers)
        rows.append(f"| {precision}, {title} | {len(names)} | {'; '.join(names) or '-'} |")
    return rows


# ---- the tables


def fault_table(found: Sequence[Judgement]) -> list[str]:
    """The faults with the layer that decides: in fp32, and in bf16 by its own limits alone."""
    by_key = {(j.precision, *_key(j)): j for j in found}
    lines = ["| fault | family | fp32 | bf16 alone | first difference |", "|---|---|---|---|---|"]
    for fault in FAULTS:
        cells = [_cell(by_key.get((precision, "torch", fault.name, fault.family))) for precision in PRECISIONS]
        tensor = fault.tensor or "all agree in one process"
        lines.append(f"| {' | '.join([fault.name, _trained_as(fault), *cells, tensor])} |")
    return lines


def elsewhere_table(found: Sequence[Judgement]) -> list[str]:
    by_key = {(j.precision, *_key(j)): j for j in found}
    lines = ["| framework | fault | family | fp32 | bf16 alone |", "|---|---|---|---|---|"]
    for fault in ELSEWHERE:
        cells = [_cell(by_key.get((p, fault.framework, fault.name, fault.family))) for p in PRECISIONS]
        lines.append(f"| {' | '.join([fault.framework, fault.name, _trained_as(fault), *cells])} |")
    return lines


def honest_table(found: Sequence[Judgement]) -> list[str]:
    by_key = {(j.precision, *_key(j)): j for j in found}
    lines = ["| honest run | fp32: gpt, llama | bf16: gpt, llama |", "|---|---|---|"]
    for run in HONEST:
        cells = [
            ", ".join(_cell(by_key.get((p, run.framework, run.name, family)), run=True) for family in sorted(MODELS))
            for p in PRECISIONS
        ]
        lines.append(f"| {run.name} | {' | '.join(cells)} |")
    return lines


def _trained_as(fault: Fault) -> str:
    return fault.family if fault.variant == SINGLE else f"{fault.family}, {fault.variant.name}"


def _cell(judged: Judgement | None, run: bool = False) -> str:
    if judged is None:
        return "-"
    if judged.verdict == "aligned":
        return "aligned" if run else "**missed**"
    return judged.layer


def summary(found: Sequence[Judgement]) -> list[str]:
    """What each set of layers misses."""
    lines = ["| layers | faults missed | which |", "|---|---|---|"]
    for precision in PRECISIONS:
        lines += set_of_layers(found, precision)
    laundered = [key for key, verdict in certified(found).items() if verdict == "aligned" and _is_fault(key, found)]
    lines.append(
        f"| bf16 with the certificate | {len(laundered)} | {'; '.join(name for _, name, _ in laundered) or '-'} |"
    )
    return lines


def _is_fault(key: tuple[str, str, str], found: Sequence[Judgement]) -> bool:
    return any(j.fault and _key(j) == key for j in found)


def section(found: Sequence[Judgement]) -> str:
    """What stands between the marks of docs/alignment.md."""
    tables = (fault_table(found), elsewhere_table(found), summary(found), honest_table(found))
    return "\n\n".join("\n".join(table) for table in tables)


def documented(page: str, text: str) -> str:
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.split(END, 1)[1]}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Judge every planted fault and every honest run")
    parser.add_argument("--docs", action="store_true", help="write the tables into docs/alignment.md")
    parser.add_argument("--json", type=Path, help="write every judgement to this file")
    parser.add_argument("--precision", choices=PRECISIONS, action="append", help="one of them; both if none is given")
    options = parser.parse_args()
    with interpreters() as interpreter_of:
        found = []
        for precision in options.precision or PRECISIONS:
            for judged in judgements(precision, interpreter_of):
                found.append(judged)
                print(f"{precision} {judged.family:5} {judged.framework:9} {judged.name}: {judged.layer}", flush=True)
    if options.json:
        options.json.write_text(
            json.dumps({"processor": processor(), "judgements": [asdict(j) for j in found]}, indent=1)
        )
    print(section(found))
    if options.docs:
        PAGE.write_text(documented(PAGE.read_text(), section(found)))


if __name__ == "__main__":
    main()

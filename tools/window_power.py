"""What the window's gradient norms show of a training in bf16 that computes products in 8 bits from some step on.

    .venvs/dev/bin/python tools/window_power.py [--docs] [--case NAME ...]

trains each case in bf16 at smoke scale as it is, in other frameworks and layouts, and by copies of models/torch with
a few lines more: from a step on, the products of the MLPs, of attention, or of both are those of fp8. A case in fp8 is
trained by a copy that leaves its products in bf16. Each is judged by the case's reference. `--docs` writes every
verdict into docs/data/window_power.json, and a summary of it into docs/alignment.md. It takes about a quarter of an
hour on two cores.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layouts import ROOT
from levelfield.judge.noise import limits_from
from levelfield.judge.verdict import reference_curve, run_curve
from levelfield.measure.alignment import limit_of_place, window_differences
from levelfield.rundir.directory import read_plan
from levelfield.rundir.raw_files import read_raw
from levelfield.specs.base import load
from levelfield.specs.paths import RunPaths
from levelfield.specs.reference import Reference, reference_name
from levelfield.specs.result import Result
from power import PAGE, documented_between, write_data

DATA = ROOT / "docs" / "data" / "window_power.json"
BEGIN = "<!-- written by tools/window_power.py: begin -->"
IN_BF16, IN_FP8 = ("gpt3_6.7B_bf16", "llama3_8b_bf16"), "llama3_8b_fp8"
COPY = "latetorch"  # the name of the copied framework

LINEAR = "    step_linear = None"
LATE_LINEAR = f"""\
    late = range(0)  # the steps whose products are in 8 bits
    step = 0
{LINEAR}"""
PRODUCT = "        if self.step_linear is not None:\n"
LATE_PRODUCT = f"""\
        if Linear.step in self.late:
            from step.fp8_rounded import _Products

            return _Products.apply(x, self.cast("weight", x.dtype), self.cast("bias", x.dtype))
{PRODUCT}"""
JOINT = '    linear = getattr(layers[0], "step_linear", None)'
LATE_JOINT = f"    if Linear.step in layers[0].late:\n        return None\n{JOINT}"
LAUNCH = "        if self.has_dropout:\n            torch.manual_seed"
BUILT = "        self.casts = StepCasts("


@dataclass(frozen=True)
class LateFault:
    """Products in 8 bits from step `first` on, in these parts of each block."""

    name: str
    parts: tuple[str, ...]
    first: int


FAULTS = (
    LateFault("MLPs, from step 11 on", ("mlp",), 11),
    LateFault("attention, from step 11 on", ("attention",), 11),
    LateFault("both, from step 11 on", ("mlp", "attention"), 11),
    LateFault("MLPs, from step 25 on", ("mlp",), 25),
)
HONEST = {
    "torch": (),
    "torch, tensor parallel": ("--layout", "TP2", "--threads", "1"),
    "torch, micro-batch 4": ("--micro-batch", "4"),
    "jax": (),
    "megatron": (),
    "deepspeed": (),
}


def copied(folder: Path) -> Path:
    """Return models/latetorch of a folder of plugins, a copy of models/torch."""
    copy = folder / "models" / COPY
    shutil.copytree(ROOT / "models" / "torch", copy, ignore=shutil.ignore_patterns("__pycache__", "tested*.json"))
    replace(copy / "implementation.yaml", "framework: torch\n", f"framework: {COPY}\n")
    return copy


def plant(fault: LateFault, copy: Path) -> None:
    late = (
        "        from model.layers import Linear\n\n"
        "        for block in self.model.layers.values():\n"
        f"            for part in {fault.parts}:\n"
        "                for layer in getattr(block, part).modules():\n"
        f"                    layer.late = range({fault.first}, job.training.steps + 1)\n"
    )
    step = "        from model.layers import Linear\n\n        Linear.step = batch.step\n"
    replace(copy / "model" / "layers.py", LINEAR, LATE_LINEAR)
    replace(copy / "model" / "layers.py", PRODUCT, LATE_PRODUCT)
    replace(copy / "model" / "layers.py", JOINT, LATE_JOINT)
    replace(copy / "training.py", BUILT, late + BUILT)
    replace(copy / "training.py", LAUNCH, step + LAUNCH)


def plant_bf16(copy: Path) -> None:
    """Leave the products of a training in fp8 as they are in bf16."""
    replace(copy / "step" / "fp8.py", "    library.replace_linears(model, job)\n", "")


def replace(path: Path, old: str, new: str) -> None:
    """Replace what stands once in the file, so that a changed framework is seen here."""
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{path}: found {text.count(old)} times, expected once: {old}"
    path.write_text(text.replace(old, new), encoding="utf-8")


def trained(case: str, framework: str, runs: Path, options: Sequence[str] = ()) -> RunPaths:
    """Train the case at smoke scale and return its run. A verdict that finds a difference ends with exit code 4."""
    argv = [sys.executable, str(ROOT / "run_benchmarks.py"), "--runs", str(runs), *options]
    devices = ":cpu:1:2" if "--layout" in options else ""
    argv += ["--case", f"{case}:{framework}{devices}", "--scale", "smoke", "--no-certificate", "--no-store", "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=1200)
    assert done.returncode in (0, 4), done.stderr[-2000:]
    (result,) = json.loads(done.stdout)
    return RunPaths(runs / result["run_id"])


def trained_copy(case: str, copy: Path) -> RunPaths:
    """Train the case by the copy, in the environment that models/torch has."""
    folder, python = copy.parents[1], ROOT / ".venvs" / "torch-cpu" / "bin" / "python"
    return trained(case, COPY, folder / "runs", ("--plugins", str(folder), "--python", str(python)))


def judge_run(case: str, name: str, kind: str, run: RunPaths) -> dict[str, Any]:
    """Return the verdict, and the place of the window that is the largest part of its limit; None in fp8."""
    plan, result = read_plan(run), load(Result, run.result)
    name_of = reference_name(case, "smoke", plan.work.training.precision)
    reference = load(Reference, ROOT / "configs" / "references" / f"{name_of}.json")
    limits, training = limits_from(reference), run_curve(plan.work, read_raw(run), result.identity)
    differences = window_differences(training, reference_curve(reference))
    parts = [(d.value / limit_of_place(limits.window, d.place), d.detail) for d in differences if limits.window]
    times, place = max(parts, default=(None, None))
    return {
        "case": case,
        "run": name,
        "kind": kind,
        "verdict": result.alignment.verdict,
        "beyond": [layer.name for layer in result.alignment.layers if layer.passed is False],
        "times_limit": None if times is None else float(f"{times:.2g}"),
        "place": place,
    }


def rows_of(case: str) -> Iterator[dict[str, Any]]:
    for name, options in HONEST.items() if case != IN_FP8 else ():
        with tempfile.TemporaryDirectory() as folder:
            yield judge_run(case, name, "honest", trained(case, name.partition(",")[0], Path(folder) / "runs", options))
    for fault in FAULTS if case != IN_FP8 else ():
        with tempfile.TemporaryDirectory() as folder:
            copy = copied(Path(folder))
            plant(fault, copy)
            yield judge_run(case, fault.name, "fault", trained_copy(case, copy))
    if case == IN_FP8:
        with tempfile.TemporaryDirectory() as folder:
            copy = copied(Path(folder))
            plant_bf16(copy)
            yield judge_run(case, "none: all are in bf16", "fault", trained_copy(case, copy))


def section(rows: Sequence[dict[str, Any]]) -> str:
    """Return what stands between the marks of docs/alignment.md: each fault by case, and honest runs."""
    cases = list(dict.fromkeys(row["case"] for row in rows))
    lines = [f"| matmuls in 8 bits | {' | '.join(cases)} |", "|---" * (len(cases) + 1) + "|"]
    for name in dict.fromkeys(row["run"] for row in rows if row["kind"] == "fault"):
        lines.append(f"| {name} | {' | '.join(_cell(rows, case, name) for case in cases)} |")
    honest = [[row for row in rows if row["kind"] == "honest" and row["case"] == case] for case in cases]
    counts = [f"{sum(not row['beyond'] for row in some)} of {len(some)}" if some else "-" for some in honest]
    return "\n".join([*lines, f"| none: honest runs within every limit | {' | '.join(counts)} |"])


def _cell(rows: Sequence[dict[str, Any]], case: str, name: str) -> str:
    """Return the verdict on a fault, and how many times its limit the window's largest number is."""
    row = next((row for row in rows if (row["kind"], row["case"], row["run"]) == ("fault", case, name)), None)
    if row is None:
        return "-"
    return row["verdict"] + ("" if row["times_limit"] is None else f", {row['times_limit']:.2g} times")


def main() -> None:
    parser = argparse.ArgumentParser(description="What the window shows of products in 8 bits")
    parser.add_argument("--case", action="append", choices=(*IN_BF16, IN_FP8), help="only this case; may be repeated")
    parser.add_argument("--docs", action="store_true", help="write the data and the table in docs/")
    arguments = parser.parse_args()
    rows = []
    for case in arguments.case or (*IN_BF16, IN_FP8):
        for row in rows_of(case):
            print(json.dumps(row), flush=True)
            rows.append(row)
    if arguments.docs:
        write_data(DATA, {"runs": rows})
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(documented_between(BEGIN, page, section(rows)), encoding="utf-8")


if __name__ == "__main__":
    main()

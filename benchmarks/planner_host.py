#!/usr/bin/env python3
"""The planner against this project's own runs on a host: the same model, with the host's measured rates.

    python benchmarks/planner_host.py            fit, write configs/planner/torch.yaml and docs/data/planner_host.csv
    python benchmarks/planner_host.py --check    the same without writing; exit 4 when what is written is not this
    python benchmarks/planner_host.py --quick    the fit of a few runs, without writing

Reads configs/planner/host_runs.json (`make host-runs` makes it on a machine of your own). Torch's shares of the host's
matrix and memory rates, and the memory of its process, are fitted on every second run; the others are predictions.
"""

from __future__ import annotations

import argparse
import functools
import math
import re
import statistics
import sys
from pathlib import Path

from levelfield.catalog.registry import Registry
from levelfield.predict import layout_search, machines
from levelfield.specs.base import load
from levelfield.specs.case import Work
from levelfield.specs.constants import Constants, Pace
from levelfield.specs.host_rates import HostRun, HostRuns
from levelfield.specs.tuning import Tuning

ROOT = Path(__file__).resolve().parents[1]
CONSTANTS = ROOT / "configs" / "planner" / "torch.yaml"
HOST_RUNS = ROOT / "configs" / "planner" / "host_runs.json"
ROWS = ROOT / "docs" / "data" / "planner_host.csv"
MATMUL = [n / 100 for n in range(60, 121, 2)]
MEMORY = [n / 100 for n in range(5, 61)]
MIB = 2**20
PROCESS = range(200, 801, 5)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 4 when the files differ")
    parser.add_argument("--quick", action="store_true", help="fit a few runs, write nothing: for tests")
    options = parser.parse_args()
    measured = load(HostRuns, HOST_RUNS)
    runs = [run for run in measured.runs if run.status == "valid"]
    before = Registry().planner_constants("torch")
    if before is None:
        raise SystemExit(f"{CONSTANTS} is missing")
    if options.quick:
        runs = runs[:: len(runs) // 4]
    fitted = _fitted(before, runs, measured)
    files = {CONSTANTS: _written(fitted), ROWS: _rows(runs, measured, fitted)}
    stale = [path for path, text in files.items() if not path.exists() or path.read_text() != text]
    if options.quick:
        stale = []
    for path in stale:
        if not options.check:
            path.write_text(files[path])
        print(f"{'differs' if options.check else 'written'}: {path.relative_to(ROOT)}")
    print("\n".join(line.replace("|", " ").strip() for line in _medians(runs, measured, fitted)[2:]))
    return 4 if options.check and stale else 0


def predicted(run: HostRun, measured: HostRuns, constants: Constants) -> layout_search.LayoutEstimate:
    """What the planner says of a run, before it."""
    share = measured.rates.share(run.layout.world_size, run.threads)
    if share is None:
        raise SystemExit(f"{run.name}: the host was not measured with {run.threads} thread(s) a process")
    model = {"model": run.model, "training": run.training}
    work = _work().model_copy(update=model)
    question = layout_search.LayoutQuestion(
        work=work,
        machine=machines.host_machine(share, run.training.precision),
        constants=constants,
        supported=layout_search.SupportedParallelism(frozenset(), ("none",)),
        on_host=True,
        devices=run.layout.world_size,
        capacity_bytes=None,
    )
    return layout_search.predict(question, Tuning(layout=run.layout, micro_batch=run.micro_batch, threads=run.threads))


@functools.cache
def _work() -> Work:
    """Some case's work, of which a run has the model and the training."""
    return Registry().case("gpt3_6.7B").work("smoke")


def time_off(run: HostRun, measured: HostRuns, constants: Constants) -> float:
    """Logarithm of predicted over measured seconds of a step."""
    return math.log(predicted(run, measured, constants).time.total / (run.step_seconds or math.nan))


def memory_off(run: HostRun, measured: HostRuns, constants: Constants) -> float:
    """Logarithm of predicted over measured bytes of the largest process."""
    return math.log(predicted(run, measured, constants).memory.total / (run.process_peak_bytes or math.nan))


def _fitted(before: Constants, runs: list[HostRun], measured: HostRuns) -> Constants:
    half = runs[::2]
    candidates = [
        Pace(matmul_efficiency=m, communication_efficiency=1, memory_efficiency=share, launch_seconds=0, overlap=0)
        for m in MATMUL
        for share in MEMORY
    ]
    pace = min(
        candidates,
        key=lambda pace: sum(
            abs(time_off(run, measured, before.model_copy(update={"host_pace": pace}))) for run in half
        ),
    )
    without = {r.name: predicted(r, measured, before).memory.total - before.keeping.host_process_bytes for r in half}
    size = min(
        (n * MIB for n in PROCESS),
        key=lambda size: sum(
            abs(math.log((without[r.name] + size) / (r.process_peak_bytes or math.nan))) for r in half
        ),
    )
    keeping = before.keeping.model_copy(update={"host_process_bytes": size})
    return before.model_copy(update={"host_pace": pace, "keeping": keeping})


def _written(constants: Constants) -> str:
    """The file with the fitted numbers put in; all else in it is somebody's words."""
    pace = constants.host_pace or constants.pace
    line = (
        f"host_pace: {{matmul_efficiency: {pace.matmul_efficiency}, "
        f"communication_efficiency: 1, memory_efficiency: {pace.memory_efficiency}, launch_seconds: 0, overlap: 0}}"
    )
    text = re.sub(r"^host_pace:.*$", line, CONSTANTS.read_text(), flags=re.MULTILINE)
    return re.sub(r"\bhost_process_bytes: \d+", f"host_process_bytes: {constants.keeping.host_process_bytes}", text)


def accuracy(registry: Registry) -> list[str]:
    """Return the section of docs/planner-accuracy.md, by the committed constants."""
    measured, constants = load(HostRuns, HOST_RUNS), registry.planner_constants("torch")
    assert constants is not None
    runs = [run for run in measured.runs if run.status == "valid"]
    pace = constants.host_pace or constants.pace
    return [
        "## Runs on a host",
        "",
        f"Small models by torch {measured.rates.torch}, {measured.date}, {measured.processor}, {measured.rates.cores}",
        "cores ([runs](data/planner_host.csv); `python benchmarks/planner_host.py`). Torch reaches",
        f"{pace.matmul_efficiency:.2f} of the measured matmul rate (a shared machine, faster in the runs) and",
        f"{pace.memory_efficiency:.2f} of the memory rate. Tensor parallelism is predicted a fifth too fast.",
        "",
        *_medians(runs, measured, constants),
    ]


def _rows(runs: list[HostRun], measured: HostRuns, fitted: Constants) -> str:
    half = {run.name for run in runs[::2]}
    lines = ["run,fitted,step_ms,predicted_step_ms,off_percent,process_mib,predicted_mib,mib_off_percent"]
    for run in runs:
        estimate = predicted(run, measured, fitted)
        time = 100 * (math.exp(time_off(run, measured, fitted)) - 1)
        memory = 100 * (math.exp(memory_off(run, measured, fitted)) - 1)
        lines.append(
            f"{run.name},{'yes' if run.name in half else 'no'},"
            f"{(run.step_seconds or 0) * 1e3:.1f},{estimate.time.total * 1e3:.1f},{time:+.0f},"
            f"{(run.process_peak_bytes or 0) / MIB:.0f},{estimate.memory.total / MIB:.0f},{memory:+.0f}"
        )
    return "\n".join(lines) + "\n"


def _medians(runs: list[HostRun], measured: HostRuns, fitted: Constants) -> list[str]:
    lines = ["| runs | time: median, largest | memory: median, largest |", "|---|---|---|"]
    for name, some in (("held out", runs[1::2]), ("fitted", runs[::2])):
        cells = []
        for off in (time_off, memory_off):
            errors = [100 * abs(math.exp(off(run, measured, fitted)) - 1) for run in some]
            cells.append(f"{statistics.median(errors):.1f} %, {max(errors):.1f} %")
        lines.append(f"| {len(some)} {name} | {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    sys.exit(main())

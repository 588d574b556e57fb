#!/usr/bin/env python3
"""What it costs a mixture to follow its reference's choices of experts, and to judge its own.

Training: the bare loop (platform_overhead.py) of one real run's job, with its choices and without any, turn by turn.
Quoted: the ratio of the medians of all steps in the window, without over with; 1.00 means that following costs nothing.
Judging: processor time of `evidence collect` on that run, with its other parts.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from platform_overhead import ROOT, bare_run, command, entry

CASES = ("mixtral_8x7b:torch", "qwen3_30b_a3b:torch")
QUICK = ("mixtral_8x7b+steps4+seq16+batch8:torch",)  # other work has no reference: its own choices are recorded


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3, help="trainings of each kind (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="run all the code once, on little: for tests")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    cases, turns = (QUICK, 1) if arguments.quick else (CASES, arguments.turns)
    with tempfile.TemporaryDirectory() as folder:
        rows = [measure(case, turns, Path(folder)) for case in cases]
    print(json.dumps(rows, indent=2) if arguments.json else "\n".join(map(text, rows)))


def measure(case: str, turns: int, folder: Path) -> dict[str, Any]:
    """Medians in milliseconds, their ratio, and seconds of processor time of the collection."""
    environment = {**os.environ, "LEVELFIELD_RUNS": str(folder)}
    (result,) = json.loads(command([*entry(case), "--json"], environment))
    (planned,) = json.loads(command([*entry(case), "--dry-run", "--json"], environment))
    run = folder / result["run_id"]
    job = json.loads((run / "job.json").read_text()) | {"events_dir": str(folder)}
    steps: dict[str, list[float]] = {"without": [], "with": []}
    for _ in range(turns):
        steps["without"] += bare_run({**planned, "job": job | {"choices": None}}, folder)
        steps["with"] += bare_run({**planned, "job": job}, folder)
    without, with_choices = (statistics.median(times) for times in steps.values())
    return {
        "case": case,
        "follows": bool(job["choices"]["known"]),
        "without_ms": without,
        "with_ms": with_choices,
        "ratio": without / with_choices,
        "collected_seconds": collected(run, environment),
    }


def collected(run: Path, environment: dict[str, str]) -> float:
    """Return the processor time of one collection, in seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command([sys.executable, str(ROOT / "run_benchmarks.py"), "evidence", "collect", str(run)], environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def text(row: dict[str, Any]) -> str:
    return (
        f"{row['case']}: {'follows its reference' if row['follows'] else 'records its own choices'}\n"
        f"  without choices  {row['without_ms']:8.1f} ms a step (median)\n"
        f"  with choices     {row['with_ms']:8.1f} ms a step (median)\n"
        f"  ratio            {row['ratio']:8.3f}\n"
        f"  collected in     {row['collected_seconds']:8.2f} s of processor time"
    )


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""What it costs to sample one step of the window, which the platform computes again.

One real run's job is trained again and again, by turns with a sampled step, the window's last one, and without. Quoted:
the ratio of the window's median times, without over with (1.00 means that sampling costs nothing), and what the sampled
step takes beyond the median step.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

from platform_overhead import command, entry
from window_gradients import trained

CASES = ("gpt3_6.7B_bf16:torch", "llama3_8b_fp8:torch", "gpt3_6.7B_bf16:deepspeed")
QUICK = ("llama3_8b_bf16+steps6+seq16+batch8:torch",)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", choices=CASES, help="only this one; may be repeated")
    parser.add_argument("--turns", type=int, default=5, help="trainings of each kind (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="run all the code once, on little: for tests")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    cases, turns = (QUICK, 1) if arguments.quick else (arguments.case or CASES, arguments.turns)
    with tempfile.TemporaryDirectory() as folder:
        rows = []
        for case in cases:
            rows.append(measure(case, turns, Path(folder)))
            if not arguments.json:
                print(text(rows[-1]), flush=True)
    if arguments.json:
        print(json.dumps(rows, indent=2))


def measure(case: str, turns: int, folder: Path) -> dict[str, Any]:
    """Milliseconds, and the ratio of the windows. A run before them makes the environment and is not counted."""
    environment = {**os.environ, "LEVELFIELD_RUNS": str(folder)}
    command([*entry(case), "--no-certificate"], environment)
    (planned,) = json.loads(command([*entry(case), "--no-certificate", "--dry-run", "--json"], environment))
    windows: dict[bool, list[float]] = {False: [], True: []}
    beyond: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(turns):
        for samples in windows:
            steps = trained(planned, planned["job"] | {"spot_check": samples}, folder)
            windows[samples].append(sum(steps))
            beyond[samples].append(steps[-1] - statistics.median(steps))
    without, with_sample = (statistics.median(windows[samples]) for samples in (False, True))
    extra = statistics.median(beyond[True]) - statistics.median(beyond[False])
    return {
        "case": case,
        "without_ms": without,
        "with_ms": with_sample,
        "ratio": without / with_sample,
        "step_ms": extra,
    }


def text(row: dict[str, Any]) -> str:
    return (
        f"{row['case']}\n"
        f"  without a sampled step  {row['without_ms']:8.1f} ms for the window (median)\n"
        f"  with one                {row['with_ms']:8.1f} ms for the window (median)\n"
        f"  ratio                   {row['ratio']:8.3f}; the sampled step takes {row['step_ms']:.1f} ms more"
    )


if __name__ == "__main__":
    main()

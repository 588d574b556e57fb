#!/usr/bin/env python3
"""What it costs to sample one step of the window, which the platform computes again.

One real run's job is trained again and again, by turns with a sampled step, the window's last one, and without. Quoted:
the ratio of the window's median times, without over with (1.00 means that sampling costs nothing), and what the sampled
step takes beyond the median step.
"""

from __future__ import annotations

import json
import os
import statistics
from pathlib import Path

from platform_overhead import command, entry
from window_gradients import Row, print_rows, trained

CASES = ("gpt3_6.7B_bf16:torch", "llama3_8b_fp8:torch", "gpt3_6.7B_bf16:deepspeed")


def main() -> None:
    print_rows(__doc__, CASES, measure, text, turns=5)


def measure(case: str, turns: int, folder: Path) -> Row:
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


def text(row: Row) -> str:
    return (
        f"{row['case']}\n"
        f"  without a sampled step  {row['without_ms']:8.1f} ms for the window (median)\n"
        f"  with one                {row['with_ms']:8.1f} ms for the window (median)\n"
        f"  ratio                   {row['ratio']:8.3f}; the sampled step takes {row['step_ms']:.1f} ms more"
    )


if __name__ == "__main__":
    main()

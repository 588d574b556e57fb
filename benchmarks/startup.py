#!/usr/bin/env python3
"""CPU time of commands that only show something: nobody waits for a framework to be imported.

Against `python -c pass`, turn by turn; quoted are medians of user plus system seconds, and ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENTRY = str(ROOT / "run_benchmarks.py")
COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "--help": [ENTRY, "--help"],
    "show": [ENTRY, "show"],
    "show gpt3_6.7B": [ENTRY, "show", "gpt3_6.7B"],
    "--dry-run": [ENTRY, "--case", "gpt3_6.7B:torch", "--dry-run"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=7, help="runs of each (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="run all the code once, on little: for tests")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    names = [*COMMANDS][:2] if arguments.quick else [*COMMANDS]
    figures = measure(names, 1 if arguments.quick else arguments.turns)
    print(json.dumps(figures, indent=2) if arguments.json else text(figures))


def measure(names: list[str], turns: int) -> dict[str, float]:
    """Median CPU seconds by command; a first turn fills the file cache and is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(turns + 1):
        for name in names:
            spent = cpu_seconds([sys.executable, *COMMANDS[name]])
            if turn:
                seconds[name].append(spent)
    return {name: statistics.median(times) for name, times in seconds.items()}


def cpu_seconds(argv: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "LEVELFIELD_NO_BOOTSTRAP": "1"}
    subprocess.run(argv, env=environment, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def text(figures: dict[str, float]) -> str:
    base = figures["python -c pass"]
    rows = [f"{name:<16} {spent:6.3f} s CPU  {spent / base:5.1f} x bare python" for name, spent in figures.items()]
    return "\n".join([*rows, "aim: --help and show under 0.4 s"])


if __name__ == "__main__":
    main()

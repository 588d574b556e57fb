#!/usr/bin/env python3
"""Seconds from the command to the first finished step: two nodes by a launcher, against one node without one.

    launch_cost.py --site site.yaml          a site whose launcher reaches two machines; their environments are made

Both train the same case at smoke scale, turn by turn; quoted are medians in seconds of the clock, and their ratio.
Without --site only the one node is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIMIT_SECONDS = 600


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--site", help="a site's file")
    parser.add_argument("--case", default="gpt3_6.7B:torch:cpu", help="case:framework:chip (default %(default)s)")
    parser.add_argument("--plugins", action="append", default=[], help="a folder with more cases")
    parser.add_argument("--turns", type=int, default=5, help="runs of each (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="run all the code once, on little: for tests")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.quick:
        folders = ("tests/core/plugins", "tests/containers/plugins")  # a training that pretends
        options.turns, options.case, options.plugins = 1, "long:fake:fake", [str(ROOT / folder) for folder in folders]
    figures = measure(options)
    print(json.dumps(figures, indent=2) if options.json else text(figures))


def measure(options: argparse.Namespace) -> dict[str, float]:
    more = [word for folder in options.plugins for word in ("--plugins", folder)]
    commands = {"one node": ["--case", f"{options.case}:1:1", *more]}
    if options.quick:
        commands["one node"] += ["--python", sys.executable]
    if options.site:
        commands["two nodes"] = ["--case", f"{options.case}:2:1", "--site", options.site, *more]
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(options.turns + (not options.quick)):  # the first turn makes environments and fills caches
        for name, arguments in commands.items():
            spent = until_first_step(arguments)
            if turn or options.quick:
                seconds[name].append(spent)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    return {**medians, **({"ratio": medians["two nodes"] / medians["one node"]} if options.site else {})}


def until_first_step(arguments: list[str]) -> float:
    """Return the seconds from the start of the command to its first step. The run is interrupted then."""
    with tempfile.TemporaryDirectory() as runs:
        started = time.monotonic()
        with command([*arguments, "--runs", runs, "--quiet"]) as process:
            while not has_step(Path(runs)):
                if process.poll() is not None or time.monotonic() - started > LIMIT_SECONDS:
                    raise SystemExit(f"{' '.join(arguments)}: there was no step")
                time.sleep(0.02)
            return time.monotonic() - started


@contextmanager
def command(arguments: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, "LEVELFIELD_STORE": "none", "FAKE_DEVICES": "1"}
    argv = [sys.executable, str(ROOT / "run_benchmarks.py"), *arguments]
    process = subprocess.Popen(argv, env=environment, stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def has_step(runs: Path) -> bool:
    return any(b'"event":"step"' in path.read_bytes() for path in runs.glob("*/events/rank0.jsonl"))


def text(figures: dict[str, float]) -> str:
    return "\n".join(f"{name:<12}{value:>8.2f}{'' if name == 'ratio' else ' s'}" for name, value in figures.items())


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""One training step under the platform (events, heartbeat, monitor, supervision) against the bare loop.

Both train the same smoke case with the same code, turn by turn. The bare loop is the framework's
training with a recorder that only notes the time. Quoted: the ratio of the medians of all steps in
the window, bare time over platform time; 1.00 means that the platform costs nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CASE, QUICK = "gpt3_6.7B:torch", "gpt3_6.7B+steps4+seq16+batch8:torch"
BARE = """
import json, sys, time
sys.path[:0] = [{models!r}, {platform!r}]
from levelfield.worker import load_job
from training import train

class Clock:
    times = []
    def begin(self): self.times.append(time.monotonic_ns())
    def step(self, step, **facts): self.times.append(time.monotonic_ns())
    def __getattr__(self, name): return lambda *a, **k: None  # all else that a recorder takes, by whatever name

train(load_job(), Clock())
print(json.dumps(Clock.times))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", default=CASE, help="default %(default)s, at smoke scale")
    parser.add_argument("--turns", type=int, default=3, help="runs of each (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="run all the code once, on little: for tests")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.quick and arguments.case == CASE:
        arguments.case = QUICK
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(arguments.case, 1 if arguments.quick else arguments.turns, arguments.quick, Path(folder))
    print(json.dumps(figures, indent=2) if arguments.json else text(figures))


def measure(case: str, turns: int, quick: bool, folder: Path) -> dict[str, float]:
    """Medians in milliseconds and their ratio; the first run makes the environment and is not counted."""
    environment = {**os.environ, "LEVELFIELD_RUNS": str(folder)}
    if not quick:
        platform_run(case, environment)
    plan = json.loads(command([*entry(case), "--dry-run", "--json"], environment))[0]
    bare, under = [], []
    for _ in range(turns):
        under += platform_run(case, environment)
        bare += bare_run(plan, folder)
    ratio = statistics.median(bare) / statistics.median(under)
    return {"bare_ms": statistics.median(bare), "platform_ms": statistics.median(under), "ratio": ratio}


def entry(case: str) -> list[str]:
    return [sys.executable, str(ROOT / "run_benchmarks.py"), "--case", case, "--scale", "smoke", "--no-store"]


def platform_run(case: str, environment: dict[str, str]) -> list[float]:
    """Step times of the window in milliseconds, from the events of a real run."""
    (result,) = json.loads(command([*entry(case), "--json"], environment))
    events = Path(environment["LEVELFIELD_RUNS"]) / result["run_id"] / "events" / "rank0.jsonl"
    recorded = (json.loads(line) for line in events.read_text().splitlines())
    ends = [event["end_ns"] for event in recorded if event["event"] in ("begin", "step")]
    return window(ends, result["window"][0])


def bare_run(plan: dict[str, Any], folder: Path) -> list[float]:
    job = folder / "job.json"
    job.write_text(json.dumps(plan["job"] | {"events_dir": str(folder)}))  # for what a rank writes beside its events
    script = BARE.format(models=plan["plan"]["implementation"]["folder"], platform=str(ROOT / "platform"))
    process = plan["request"]["nodes"][0]["processes"][0]
    environment = {**os.environ, **process["environment"], "LEVELFIELD_JOB": str(job)}
    out = command([plan["plan"]["environment"]["python"], "-c", script], environment)
    return window(json.loads(out.splitlines()[-1]), plan["job"]["window"]["first_step"])


def window(ends: list[int], first_step: int) -> list[float]:
    return [(b - a) / 1e6 for a, b in zip(ends[first_step - 1 :], ends[first_step:], strict=False)]


def command(argv: list[str], environment: dict[str, str]) -> str:
    return subprocess.run(argv, env=environment, capture_output=True, text=True, check=True).stdout


def text(figures: dict[str, float]) -> str:
    return (
        f"bare loop       {figures['bare_ms']:8.1f} ms a step (median)\n"
        f"under platform  {figures['platform_ms']:8.1f} ms a step (median)\n"
        f"ratio           {figures['ratio']:8.3f}   (aim: at least 0.99)"
    )


if __name__ == "__main__":
    main()

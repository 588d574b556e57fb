#!/usr/bin/env python3
"""What it costs to record the gradients' norms in every step of the window, as runs below fp32 do at smoke scale.

One real run's job is trained again and again, by turns with these steps and with the case's alone. Quoted: the ratio of
the medians of all steps in the window, without over with; 1.00 means that recording costs nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from platform_overhead import command, entry, window

CASES = tuple(f"llama3_8b_bf16:{framework}" for framework in ("torch", "megatron", "deepspeed", "jax"))
QUICK = ("llama3_8b_bf16+steps6+seq16+batch8:torch",)


Row = dict[str, Any]


def main() -> None:
    print_rows(__doc__, CASES, measure, text, turns=3)


def print_rows(
    description: str | None,
    case_choices: Sequence[str],
    measure: Callable[[str, int, Path], Row],
    text: Callable[[Row], str],
    turns: int,
) -> None:
    """Measure the cases that the arguments of this process name, and print a row of each. turns: by default."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", choices=case_choices, help="only this one; may be repeated")
    parser.add_argument("--turns", type=int, default=turns, help="trainings of each kind (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="run all the code once, on little: for tests")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    cases, turns = (QUICK, 1) if arguments.quick else (arguments.case or case_choices, arguments.turns)
    with tempfile.TemporaryDirectory() as folder:
        rows = []
        for case in cases:
            rows.append(measure(case, turns, Path(folder)))
            if not arguments.json:
                print(text(rows[-1]), flush=True)
    if arguments.json:
        print(json.dumps(rows, indent=2))


def measure(case: str, turns: int, folder: Path) -> Row:
    """Medians in milliseconds, and their ratio. A run before them makes the environment and is not counted."""
    environment = {**os.environ, "LEVELFIELD_RUNS": str(folder)}
    command([*entry(case), "--no-certificate"], environment)
    (planned,) = json.loads(command([*entry(case), "--no-certificate", "--dry-run", "--json"], environment))
    job, first = planned["job"], planned["job"]["window"]["first_step"]
    steps = {"without": [step for step in job["gradient_steps"] if step < first], "with": job["gradient_steps"]}
    times: dict[str, list[float]] = {"without": [], "with": []}
    for _ in range(turns):
        for kind in times:
            times[kind] += trained(planned, job | {"gradient_steps": steps[kind]}, folder)
    without, with_window = (statistics.median(milliseconds) for milliseconds in times.values())
    return {"case": case, "without_ms": without, "with_ms": with_window, "ratio": without / with_window}


def trained(planned: dict[str, Any], job: dict[str, Any], folder: Path) -> list[float]:
    """Train the job by the framework's own program. Return the step times of the window in milliseconds."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        events, path = Path(scratch) / "events", Path(scratch) / "job.json"
        events.mkdir()
        path.write_text(json.dumps(job | {"events_dir": str(events)}))
        process = planned["request"]["nodes"][0]["processes"][0]
        environment = {
            name: value.replace("{port}", str(free_port())) for name, value in process["environment"].items()
        }
        command(process["argv"], {**os.environ, **environment, "LEVELFIELD_JOB": str(path)})
        recorded = map(json.loads, (events / "rank0.jsonl").read_text().splitlines())
        ends = [event["end_ns"] for event in recorded if event["event"] in ("begin", "step")]
    return window(ends, job["window"]["first_step"])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def text(row: Row) -> str:
    return (
        f"{row['case']}\n"
        f"  without the window  {row['without_ms']:8.1f} ms a step (median)\n"
        f"  with the window     {row['with_ms']:8.1f} ms a step (median)\n"
        f"  ratio               {row['ratio']:8.3f}"
    )


if __name__ == "__main__":
    main()

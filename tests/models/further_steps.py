"""What the further steps of `--explain-step` cost: nothing in the window before them, and the recorder in each of them.

    PYTHONPATH=platform python tests/models/further_steps.py [--frameworks torch jax] [--pairs 10] [--docs]

trains a model in turns without further steps and with them, while a process of its own keeps one core busy. `--docs`
writes each pair into docs/data/further_steps.json, and a table into docs/explain.md.
"""

from __future__ import annotations

import argparse
import functools
import json
import tempfile
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from interpreters import interpreters
from layouts import MODELS, ROOT, SINGLE, events, job_of, launch, launch_explained, script_of, shallow
from levelfield.measure.step_parts import milliseconds
from power import documented_between, write_data
from told_plants import FRAMEWORKS, PAGE, Row, busy_core

DATA = ROOT / "docs" / "data" / "further_steps.json"
BEGIN = "<!-- written by tests/models/further_steps.py: begin -->"
MODEL = {**shallow(MODELS["llama"]), "hidden_size": 256, "ffn_hidden_size": 768}  # operations of more than microseconds
TOKENS, STEPS, FIRST, FURTHER = 64, 40, 6, 12  # FIRST: of the window


def pair(framework: str, number: int, python: Path) -> Row:
    """Train without further steps and with them, in turns first. Return the shortest step of both windows, and the
    shortest further step with and without the recorder. What others do to a busy machine makes no step shorter."""
    job = job_of(MODEL, SINGLE, STEPS, sequence_length=TOKENS, seed=number)
    found: Row = {"framework": framework, "pair": number}
    with_further = functools.partial(launch_explained, steps=FURTHER)
    kinds = [("plain", launch), ("explained", with_further)]
    for name, train in kinds if number % 2 else reversed(kinds):
        with tempfile.TemporaryDirectory() as folder:
            ends = train(job, Path(folder), script=script_of(framework), python=python)
            if ends[0].returncode:
                raise RuntimeError(ends[0].output[-2000:])
            own = events(Path(folder), 0)
        found[f"{name}_window_ms"] = round(window_ms(own), 3)
        if name == "explained":
            found |= further_ms(own)
    return found


def window_ms(own: Sequence[dict[str, Any]]) -> float:
    ends = [event["end_ns"] for event in own if event["event"] == "step" and event["step"] >= FIRST - 1]
    return min(after - before for before, after in pairwise(ends)) / 1e6


def further_ms(own: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return the shortest further step without the recorder, and with it."""
    steps = [event["values"] for event in own if event.get("name") == "profiled_step" and event["values"]["counted"]]
    times = {kind: [s["end_ns"] - s["begin_ns"] for s in steps if s["recorded"] == kind] for kind in (False, True)}
    return {"further_ms": round(min(times[False]) / 1e6, 3), "recorded_ms": round(min(times[True]) / 1e6, 3)}


def section(rows: Sequence[Row]) -> str:
    """Return what stands between the marks of docs/explain.md."""
    lines = ["| framework | pairs | window with further steps | recorded steps |", "|---|---|---|---|"]
    for framework in [each for each in FRAMEWORKS if any(row["framework"] == each for row in rows)]:
        own = [row for row in rows if row["framework"] == framework]
        window = change([row["explained_window_ms"] / row["plain_window_ms"] for row in own])
        lines.append(f"| {framework} | {len(own)} | {window} | {change(list(recording(own)))} |")
    return "\n".join(lines)


def recording(rows: Sequence[Row]) -> Iterator[float]:
    return (row["recorded_ms"] / row["further_ms"] for row in rows)


def change(ratios: Sequence[float]) -> str:
    """Return the mean change with its 95 % interval."""
    found = milliseconds(ratios)
    ends = "" if found.low is None or found.high is None else f" ({found.low - 1:+.1%} to {found.high - 1:+.1%})"
    return f"{found.mean - 1:+.1%}{ends}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what the further steps of --explain-step cost")
    parser.add_argument("--frameworks", nargs="+", choices=FRAMEWORKS, default=FRAMEWORKS)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--docs", action="store_true", help="write docs/data/further_steps.json and its table")
    options = parser.parse_args()
    kept = json.loads(DATA.read_text())["pairs"] if DATA.exists() else []
    rows = [row for row in kept if row["framework"] not in options.frameworks]
    with interpreters() as interpreter_of, busy_core():
        for number in range(options.pairs):
            for framework in options.frameworks:
                rows.append(pair(framework, number, interpreter_of(framework)))
                print(json.dumps(rows[-1]), flush=True)
            if options.docs:
                write_data(DATA, {"pairs": sorted(rows, key=lambda row: FRAMEWORKS.index(row["framework"]))})
                PAGE.write_text(documented_between(BEGIN, PAGE.read_text(), section(rows)))
    print(section(rows))


if __name__ == "__main__":
    main()

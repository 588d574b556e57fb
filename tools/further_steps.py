"""What the further steps of `--explain-step` cost: nothing in the window before them, and the recorder in each of them.

    .venvs/dev/bin/python tools/further_steps.py [--frameworks torch jax] [--pairs 10] [--docs]

trains a model in turns without further steps and with them, while a process of its own keeps one core busy. `--docs`
writes each pair into docs/data/further_steps.json, and a table into docs/explain.md.
"""

from __future__ import annotations

import argparse
import functools
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median

from layouts import MODELS, ROOT, SINGLE, launch, launch_explained, planted, shallow, small_job
from levelfield.explain.step_division import milliseconds
from power import documented_between, write_data
from told_plants import FRAMEWORKS, PAGE, Row, busy_core
from trainings.interpreters import interpreters
from trainings.warm import End

DATA = ROOT / "docs" / "data" / "further_steps.json"
BEGIN = "<!-- written by tools/further_steps.py: begin -->"
# A step takes a third of a second, as at smoke scale: its operations take more than microseconds.
MODEL = {**shallow(MODELS["llama"]), "hidden_size": 512, "ffn_hidden_size": 1536}
TOKENS, STEPS, FIRST, FURTHER = 128, 20, 6, 10  # FIRST: of the window


# Notes the processor time of a rank whenever it has a batch, and before and after each further step.
CLOCKED = """
import os, time
from levelfield.worker import Batches, step_profile as further
def note(*words):
    with open(os.path.join(job.events_dir, "clocked"), "a") as file:
        print(*words, time.process_time_ns(), file=file)
read, own = Batches.batch, further._step
def batch(self, step):
    note("batch", step)
    return read(self, step)
def step(batches, batch, trainer, profile):
    note("begin", profile is not None)
    found = own(batches, batch, trainer, profile)
    note("end", profile is not None)
    return found
Batches.batch, further._step = batch, step
"""


def pair(framework: str, number: int, python: Path) -> Row:
    """Train without further steps and with them, in turns first. Return the processor time of a step of both windows,
    and of a further step with and without the recorder. What others do to a busy machine changes it little."""
    job = small_job(MODEL, SINGLE, STEPS, sequence_length=TOKENS, seed=number)
    row: Row = {"framework": framework, "pair": number}
    with_further = functools.partial(launch_explained, steps=FURTHER)
    kinds: list[tuple[str, Callable[..., list[End]]]] = [("plain", launch), ("explained", with_further)]
    for name, train in kinds if number % 2 else reversed(kinds):
        with tempfile.TemporaryDirectory() as folder:
            ends = train(job, Path(folder), script=planted(Path(folder), framework, CLOCKED), python=python)
            if ends[0].returncode:
                raise RuntimeError(ends[0].output[-2000:])
            lines = (Path(folder) / "clocked").read_text().splitlines()
        row[f"{name}_window_ms"] = round(window_ms(lines), 3)
        if name == "explained":
            row |= further_ms(lines)
    return row


def window_ms(lines: Sequence[str]) -> float:
    """Return the mean from the window's first batch to that of its last step."""
    at = {int(words[1]): int(words[2]) for words in map(str.split, lines) if words[0] == "batch"}
    return (at[STEPS] - at[FIRST]) / 1e6 / (STEPS - FIRST)


def further_ms(lines: Sequence[str]) -> dict[str, float]:
    """Return the median further step without the recorder, and with it; the first of each is a warm-up."""
    ends = [line.split() for line in lines if not line.startswith("batch")]
    took: dict[str, list[int]] = {"False": [], "True": []}
    for before, after in zip(ends[::2], ends[1::2], strict=True):
        took[before[1]].append(int(after[2]) - int(before[2]))
    medians = {name: median(times[1:]) / 1e6 for name, times in took.items()}
    return {"further_ms": round(medians["False"], 3), "recorded_ms": round(medians["True"], 3)}


def section(rows: Sequence[Row]) -> str:
    """Return what stands between the marks of docs/explain.md."""
    lines = ["| framework | pairs | window with further steps | recorded steps |", "|---|---|---|---|"]
    for framework in [name for name in FRAMEWORKS if any(row["framework"] == name for row in rows)]:
        pairs = [row for row in rows if row["framework"] == framework]
        window = change([row["explained_window_ms"] / row["plain_window_ms"] for row in pairs])
        lines.append(f"| {framework} | {len(pairs)} | {window} | {change(list(recording(pairs)))} |")
    return "\n".join(lines)


def recording(rows: Sequence[Row]) -> Iterator[float]:
    return (row["recorded_ms"] / row["further_ms"] for row in rows)


def change(ratios: Sequence[float]) -> str:
    """Return the mean change with its 95 % interval."""
    mean = milliseconds(ratios)
    ends = "" if mean.low is None or mean.high is None else f" ({mean.low - 1:+.1%} to {mean.high - 1:+.1%})"
    return f"{mean.mean - 1:+.1%}{ends}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what the further steps of --explain-step cost")
    parser.add_argument("--frameworks", nargs="+", choices=FRAMEWORKS, default=FRAMEWORKS)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--docs", action="store_true", help="write docs/data/further_steps.json and its table")
    options = parser.parse_args()
    recorded = json.loads(DATA.read_text())["pairs"] if DATA.exists() else []
    rows = [row for row in recorded if row["framework"] not in options.frameworks]
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

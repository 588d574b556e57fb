"""The power of the alignment: its verdict on every planted fault and on every honest run.

    .venvs/dev/bin/python tools/power.py [--docs] [--json FILE] [--curves FOLDER]

trains the small GPT and Llama of layouts.py in float32 and in bf16. The limits are learned from the variations of
`align calibrate`, by the platform's own rules; every fault and every other honest run is judged by them. `--docs`
writes every verdict into docs/data/power.json, and a summary of it into docs/alignment.md.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from faults.elsewhere import ELSEWHERE
from faults.fault import Fault
from faults.in_torch import FAULTS
from faults.judging import (
    HONEST,
    LAYER_SETS,
    PRECISIONS,
    HonestRun,
    Judgement,
    Trainings,
    certified,
    judgements,
    missed,
)
from layouts import COMMON_MODELS, ROOT, SINGLE
from trainings.interpreters import interpreters
from trainings.references import processor

PAGE = ROOT / "docs" / "alignment.md"
DATA = ROOT / "docs" / "data" / "power.json"
# What may decide, in the order of the layers.
ORDER = (
    *("identity", "integrity", "first step", "gradients", "curve", "norms", "window", "routing", "spikes"),
    *("final weights", "different", "diverged", "failed", "inconclusive", "not comparable", "aligned", "not trained"),
)
BEGIN, END = "<!-- written by tools/power.py: begin -->", "<!-- end -->"


Rows = list[dict[str, Any]]


def fault_rows(judged_runs: Sequence[Judgement]) -> Rows:
    """Return the faults with the layer that decides in fp32, and in bf16 by its own limits alone."""
    return [
        {
            "framework": fault.framework,
            "fault": fault.name,
            "family": fault.family,
            "layout": None if fault.variant == SINGLE else fault.variant.name,
            **_layers(judged_runs, fault, fault.family),
            "first_difference": fault.tensor or None,
        }
        for fault in (*FAULTS, *ELSEWHERE)
    ]


def honest_rows(judged_runs: Sequence[Judgement]) -> Rows:
    return [
        {"run": run.name, "family": family, **_layers(judged_runs, run, family)}
        for run in HONEST
        for family in COMMON_MODELS
    ]


def _layers(judged_runs: Sequence[Judgement], run: Fault | HonestRun, family: str) -> dict[str, str | None]:
    """Return the deciding layer in each precision; None where the framework was not trained in it."""
    about = (run.framework, run.name, family)
    by_precision = {j.precision: j.layer for j in judged_runs if (j.framework, j.name, j.family) == about}
    return {precision: by_precision.get(precision) for precision in PRECISIONS}


def missed_rows(judged_runs: Sequence[Judgement]) -> Rows:
    """Return how many faults each set of layers misses, and which ones all layers miss."""
    rows = []
    for precision in PRECISIONS:
        count = sum(j.fault and j.precision == precision for j in judged_runs)
        for title, layers in LAYER_SETS.items():
            names = missed(judged_runs, precision, layers)
            which = names if title == "all" else []
            rows.append({"layers": f"{precision}: {title}", "missed": len(names), "of": count, "which": which})
    left = [name for (_, name, _), word in certified(j for j in judged_runs if j.fault).items() if word == "aligned"]
    return [*rows, {"layers": "bf16: all, with the certificate", "missed": len(left), "of": count, "which": left}]


def measured(judged_runs: Sequence[Judgement]) -> dict[str, Rows]:
    """Return what docs/data/power.json holds."""
    return {"faults": fault_rows(judged_runs), "missed": missed_rows(judged_runs), "honest": honest_rows(judged_runs)}


def section(data: Mapping[str, Rows]) -> str:
    """Return what stands between the marks of docs/alignment.md: the data, counted."""
    counts = {p: Counter(row[p] or "not trained" for row in data["faults"]) for p in PRECISIONS}
    layers = sorted({word for counter in counts.values() for word in counter}, key=ORDER.index)
    deciding = ["| what decides | faults in fp32 | faults in bf16 alone |", "|---|---|---|"]
    deciding += [f"| {word} | {' | '.join(str(counts[p][word]) for p in PRECISIONS)} |" for word in layers]
    trained = {p: [row[p] for row in data["honest"] if row[p]] for p in PRECISIONS}
    honest = [f"{trained[p].count('aligned')} of {len(trained[p])}" for p in PRECISIONS]
    deciding += [f"| honest runs that are aligned | {' | '.join(honest)} |"]
    missing = ["| layers | faults missed | of |", "|---|---|---|"]
    for row in data["missed"]:
        missing.append(f"| {row['layers']} | {row['missed']} | {row['of']} |")
    return "\n".join([*deciding, "", *missing])


def write_data(path: Path, data: Mapping[str, Rows | str]) -> None:
    """Write one row a line, so that a change shows the rows that changed."""
    values = [f"{json.dumps(name)}: {_lines(value)}" for name, value in data.items()]
    path.write_text("{\n " + ",\n ".join(values) + "\n}\n")


def _lines(value: Rows | str) -> str:
    if isinstance(value, str):
        return json.dumps(value)
    return "[\n" + ",\n".join(f"  {json.dumps(row)}" for row in value) + "\n ]"


def documented(page: str, text: str) -> str:
    return documented_between(BEGIN, page, text)


def documented_between(begin: str, page: str, text: str) -> str:
    """Return the page with `text` in place of what stands between the mark `begin` and the next END."""
    before, rest = page.split(begin)
    return f"{before}{begin}\n\n{text}\n\n{END}{rest.split(END, 1)[1]}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Judge every planted fault and every honest run")
    parser.add_argument("--docs", action="store_true", help="write docs/data/power.json and its summary")
    parser.add_argument("--json", type=Path, help="write every judgement to this file")
    parser.add_argument("--curves", type=Path, help="keep every training's curve in this folder, and judge those there")
    options = parser.parse_args()
    judged_runs = []
    with interpreters() as interpreter_of:
        trainings = Trainings(interpreter_of, options.curves)
        for precision in PRECISIONS:
            for judgement in judgements(precision, trainings):
                judged_runs.append(judgement)
                print(
                    f"{precision} {judgement.family:5} {judgement.framework:9} {judgement.name}: {judgement.layer}",
                    flush=True,
                )
    if options.json:
        options.json.write_text(
            json.dumps({"processor": processor(), "judgements": [asdict(j) for j in judged_runs]}, indent=1)
        )
    data = measured(judged_runs)
    print(section(data))
    if options.docs:
        write_data(DATA, data)
        PAGE.write_text(documented(PAGE.read_text(), section(data)))


if __name__ == "__main__":
    main()

"""What one sampled step shows of faults that are planted in 16 and 8 bits, and of honest trainings.

    .venvs/dev/bin/python tools/sampled_power.py [--docs]

trains the small GPT and Llama of layouts.py for a few steps, by torch, with each fault and without any. `--docs` writes
which layer tells of each into docs/data/sampled_step.json, and a summary of it into docs/alignment.md. It takes about
five minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from faults.in_sampled_step import FAULTS, HONEST, failed_layer, sampled_layers
from layouts import ROOT
from power import PAGE, documented_between, write_data

DATA = ROOT / "docs" / "data" / "sampled_step.json"
BEGIN = "<!-- written by tools/sampled_power.py: begin -->"

Row = dict[str, Any]


def fault_rows() -> list[Row]:
    rows = []
    for fault in FAULTS:
        with tempfile.TemporaryDirectory() as folder:
            layers = sampled_layers(Path(folder), fault.precision, fault.family, fault.variant, fault.code)
        told = failed_layer(layers)
        detail = next((layer.detail for layer in layers if layer.passed is False), None)
        rows.append({"fault": fault.name, "precision": fault.precision, "layer": told, "detail": detail})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def honest_rows() -> list[Row]:
    rows = []
    for run in HONEST:
        with tempfile.TemporaryDirectory() as folder:
            layers = sampled_layers(Path(folder), run.precision, run.family, run.variant)
        values = {layer.name: layer.value for layer in layers}
        name = f"{run.family}, {run.variant.name}"
        rows.append({"run": name, "precision": run.precision, "layer": failed_layer(layers), **values})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def section(faults: Sequence[Row], honest: Sequence[Row]) -> str:
    """Return what stands between the marks of docs/alignment.md: each fault by the layer that tells of it."""
    precisions = list(dict.fromkeys(row["precision"] for row in faults))
    lines = [f"| fault | {' | '.join(precisions)} |", "|---" * (len(precisions) + 1) + "|"]
    for name in dict.fromkeys(row["fault"] for row in faults):
        cells = [_cell([row for row in faults if (row["fault"], row["precision"]) == (name, p)]) for p in precisions]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    right = sum(row["layer"] is None for row in honest)
    return "\n".join([*lines, "", f"{right} of {len(honest)} honest trainings are within every limit."])


def _cell(rows: Sequence[Row]) -> str:
    return "-" if not rows else rows[0]["layer"] or "not seen"


def main() -> None:
    parser = argparse.ArgumentParser(description="What a sampled step shows of planted faults")
    parser.add_argument("--docs", action="store_true", help="write the data and the table in docs/")
    arguments = parser.parse_args()
    data = {"faults": fault_rows(), "honest": honest_rows()}
    print(section(**data))
    if arguments.docs:
        write_data(DATA, data)
        PAGE.write_text(documented_between(BEGIN, PAGE.read_text(encoding="utf-8"), section(**data)), encoding="utf-8")


if __name__ == "__main__":
    main()

"""What one sampled step shows of faults that are planted in 16 and 8 bits, and of honest trainings.

    .venvs/dev/bin/python tools/sampled_power.py [--docs]

trains the small GPT and Llama of layouts.py for a few steps, by torch, with each fault and without any. `--docs` writes
which layer tells of each, and how much the fault changes, into docs/data/sampled_step.json, and a summary of it into
docs/alignment.md. It takes about ten minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from faults.by_a_stranger import FAULTS as STRANGERS_FAULTS
from faults.by_a_stranger import UNSEEN
from faults.in_sampled_step import FAULTS, HONEST, failed_layer, sampled_layers
from layouts import ROOT, Curve, Variant, events, read_curve
from levelfield.specs.result import AlignmentLayer
from power import PAGE, documented_between, write_data

DATA = ROOT / "docs" / "data" / "sampled_step.json"
BEGIN = "<!-- written by tools/sampled_power.py: begin -->"

Row = dict[str, Any]


def fault_rows() -> list[Row]:
    rows, honest = [], {}  # of a precision, family and layout: the curve without a fault
    for fault in (*FAULTS, *STRANGERS_FAULTS):
        settings = fault.precision, fault.family, fault.variant
        key = fault.precision, fault.family, fault.variant.name
        if key not in honest:
            honest[key] = trained(*settings)[1]
        layers, curve = trained(*settings, fault.code)
        row = {
            "by": "ours" if fault in FAULTS else "stranger",
            "fault": fault.name,
            "precision": fault.precision,
            "layer": failed_layer(layers),
            "detail": next((layer.detail for layer in layers if layer.passed is False), None),
        }
        rows.append({**row, **changes(curve, honest[key])})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def trained(precision: str, family: str, variant: Variant, code: str = "") -> tuple[Sequence[AlignmentLayer], Curve]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        layers = sampled_layers(folder, precision, family, variant, code)
        return layers, read_curve([events(folder / "events", rank) for rank in range(variant.ranks)])


def changes(curve: Curve, honest: Curve) -> Row:
    """Return how much the last loss and the norm that differs most are off the honest training's, relatively.

    Biases begin at 0, and some have hardly a gradient: what rounding changes there, AdamW makes as large as a step.
    """
    norms = {name: values[0] for name, values in honest.final.items() if not name.endswith("bias")}
    norm = max(abs(curve.final[name][0] / value - 1) for name, value in norms.items())
    return {"loss": _short(curve.losses[-1] / honest.losses[-1] - 1), "norm": _short(norm)}


def _short(value: float) -> float:
    return float(f"{value:.1e}")


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
    ours = [row for row in faults if row["by"] == "ours"]
    precisions = list(dict.fromkeys(row["precision"] for row in ours))
    lines = [f"| fault | {' | '.join(precisions)} |", "|---" * (len(precisions) + 1) + "|"]
    for name in dict.fromkeys(row["fault"] for row in ours):
        cells = [_cell([row for row in ours if (row["fault"], row["precision"]) == (name, p)]) for p in precisions]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    right = sum(row["layer"] is None for row in honest)
    lines += ["", f"{right} of {len(honest)} honest trainings are within every limit."]
    return "\n".join([*lines, "", *stranger_lines([row for row in faults if row["by"] == "stranger"])])


def stranger_lines(faults: Sequence[Row]) -> list[str]:
    """Return how many faults each layer tells of, and the others with the difference of their last loss."""
    precisions = list(dict.fromkeys(row["precision"] for row in faults))
    count = Counter((row["layer"], row["precision"]) for row in faults)
    reader = "somebody who had not read the checks, judged without a reference"
    lines = [f"{len(faults)} other faults, by {reader}:", ""]
    lines += [f"| told by | {' | '.join(precisions)} |", "|---" * (len(precisions) + 1) + "|"]
    for layer in ("products", "update", None):
        lines.append(f"| {layer or 'not seen'} | {' | '.join(str(count[layer, p]) for p in precisions)} |")
    lines += ["", "| a check would need | not seen; the last of 8 losses differs by |", "|---|---|"]
    for need, names in UNSEEN.items():
        rows = [row for row in faults if row["fault"] in names]
        lines.append(f"| {need} | {'; '.join(_unseen(row) for row in rows)} |")
    return lines


def _unseen(row: Row) -> str:
    loss = f"{abs(row['loss']):.0e}" if row["loss"] else "0"
    return f"{row['fault'].removesuffix(', late')} ({row['precision']}, {loss})"


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

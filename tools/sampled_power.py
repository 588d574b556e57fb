"""What sampled steps show of planted faults, and of honest trainings.

    .venvs/dev/bin/python tools/sampled_power.py [--docs]

trains the small GPT and Llama of layouts.py for a few steps, by torch, with each fault and without any. `--docs` writes
which layer tells of each, and how much the fault changes, into docs/data/sampled_step.json, and a summary of it into
docs/alignment.md. A fault that no sampled step tells of is also judged by a reference and, below fp32, a certificate.
It takes about five minutes on two cores.
"""

from __future__ import annotations

import argparse
import functools
import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from faults.by_a_second_stranger import FAULTS as SECOND_STRANGERS_FAULTS
from faults.by_a_stranger import FAULTS as STRANGERS_FAULTS
from faults.by_an_insider import FAULTS as INSIDERS_FAULTS
from faults.fault import Fault
from faults.in_sampled_step import FAULTS, HONEST, SampledFault, failed_layer, sampled_layers
from faults.judging import LEARNT, HonestRun, Yardstick, certified, curve_of, judge, key_of, yardstick
from layouts import ROOT, Curve, Variant, events, read_curve
from levelfield.specs.result import AlignmentLayer
from power import PAGE, documented_between, write_data

DATA = ROOT / "docs" / "data" / "sampled_step.json"
BEGIN = "<!-- written by tools/sampled_power.py: begin -->"

# The others had read none of the checks when they wrote their faults. No check was written for those of the last.
AUTHORS = {"ours": "ours", "stranger": "a stranger's", "second stranger": "a second stranger's"}
# What a check would need to see those that no layer tells of.
UNSEEN = {
    "gradients of several ranks, before and after their sum": (
        "keys and values without the gradients of other ranks' queries, late",
        "a tied table's gradient not summed over the pipeline's ends, late",
        "norms' gradients not summed over the sequence's parts, late",
        "gradients reduced in bf16 at each micro-batch",
        "norms and biases left out of the all-reduce",
        "keys and values gathered without the other ranks' gradients",
        "the last MLP's input gradient not summed over tensor-parallel ranks",
        "data-parallel ranks exchange no gradients, late",
        "layer 1 keeps the last micro-batch's gradient only, late",
    ),
    "what a pipeline's stages send and receive": ("gradients between pipeline stages sent in 8 bits without a scale",),
    "the gradient of learned positions": ("the positions' gradient is that of each micro-batch's first sequence",),
    "outputs and losses of tensor parallel ranks after their sum": (
        "the sum of exponentials of a rank's own vocabulary, late",
        "the MLP's last bias added by each rank, late",
        "each rank of a divided vocabulary subtracts its own largest logit",
    ),
    "a rank's part of a weight beside the whole that it gathers": ("weights gathered in E4M3, late",),
    "steps long before the sampled ones": (
        "moments zero at step 5, as after a restart",
        "one rank loses its shards' moments before step 5",
    ),
    "nothing: the gradients' squares do not add up to the norm, and the run is invalid": (
        "a gradient norm that leaves out the embedding",
    ),
}

Row = dict[str, Any]


def all_faults() -> Iterator[tuple[str, SampledFault]]:
    """Yield (author, fault)."""
    for fault in (*FAULTS, *INSIDERS_FAULTS):
        yield "ours", fault
    for fault in STRANGERS_FAULTS:
        yield "stranger", fault
    for fault in SECOND_STRANGERS_FAULTS:
        yield "second stranger", fault


def fault_rows() -> list[Row]:
    rows, honest = [], {}  # of a precision, family and layout: the curve without a fault
    for author, fault in all_faults():
        settings = fault.precision, fault.family, fault.variant
        key = fault.precision, fault.family, fault.variant.name
        if key not in honest:
            honest[key] = trained(*settings)[1]
        layers, curve = trained(*settings, fault.code)
        row = {
            "by": author,
            "fault": fault.name,
            "precision": fault.precision,
            "layer": failed_layer(layers),
            "detail": next((layer.detail for layer in layers if layer.passed is False), None),
        }
        rows.append({**row, **changes(curve, honest[key])})
        if row["layer"] is None:
            rows[-1].update(reference_verdict(fault))
        print(json.dumps(rows[-1]), flush=True)
    return rows


def reference_verdict(fault: SampledFault) -> Row:
    """Return the verdict on ten steps by a reference and, below fp32, by a certificate: the same code in fp32."""
    run = Fault(fault.name, fault.code, "", None, fault.family, fault.variant)
    judgements = []
    for precision in dict.fromkeys(("fp32", fault.precision)):
        curve = functools.partial(curve_of, run, fault.family, precision)
        judgements.append(judge(run, fault.family, curve, small_yardstick(fault.family, precision), precision))
    in_its_precision = judgements[-1]
    verdict = certified(judgements).get(key_of(in_its_precision), in_its_precision.verdict)
    return {"verdict": verdict, "reference_layer": next(iter(in_its_precision.failed), None)}


@functools.cache
def small_yardstick(family: str, precision: str) -> Yardstick:
    # fp8 with tensor parallelism is not written
    learnt = [row for row in LEARNT if precision != "fp8" or row[1].layout.get("tensor", 1) == 1]
    return yardstick(lambda v: curve_of(HonestRun(v.name, v), family, precision), precision, learnt)


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


def section(faults: Sequence[Row], honest: Sequence[Row], day: str) -> str:
    """Return what stands between the marks of docs/alignment.md: how many each layer tells of, and the others."""
    precisions = list(dict.fromkeys(row["precision"] for row in faults))
    columns = [(author, precision) for author in AUTHORS for precision in precisions]
    count = Counter((row["layer"], row["by"], row["precision"]) for row in faults)
    lines = [f"| told by | {' | '.join(f'{AUTHORS[author]}, {precision}' for author, precision in columns)} |"]
    lines.append("|---" * (len(columns) + 1) + "|")
    for layer in ("products", "tokens", "update", None):
        cells = [str(count[layer, author, precision]) for author, precision in columns]
        lines.append(f"| {layer or 'not seen'} | {' | '.join(cells)} |")
    lines += ["", "| a check would need | not seen: the last of 8 losses differs by, with a reference |", "|---|---|"]
    for need, names in UNSEEN.items():
        rows = [row for row in faults if row["fault"] in names]
        lines.append(f"| {need} | {'; '.join(_unseen(row) for row in rows)} |")
    unseen = [row for row in faults if row["layer"] is None]
    remaining = sum(row["verdict"] == "aligned" for row in unseen)
    lines += ["", f"With a reference and a certificate {remaining} of these {len(unseen)} are aligned."]
    right = sum(row["layer"] is None for row in honest)
    return "\n".join([*lines, "", f"{right} of {len(honest)} honest trainings are within every limit. Run on {day}."])


def _unseen(row: Row) -> str:
    loss = f"{abs(row['loss']):.0e}" if row["loss"] else "0"
    return f"{row['fault'].removesuffix(', late')} ({row['precision']}: {loss}, {row['verdict']})"


def main() -> None:
    parser = argparse.ArgumentParser(description="What a sampled step shows of planted faults")
    parser.add_argument("--docs", action="store_true", help="write the data and the table in docs/")
    arguments = parser.parse_args()
    data: dict[str, Any] = {"faults": fault_rows(), "honest": honest_rows(), "day": date.today().isoformat()}
    print(section(**data))
    if arguments.docs:
        write_data(DATA, data)
        PAGE.write_text(documented_between(BEGIN, PAGE.read_text(encoding="utf-8"), section(**data)), encoding="utf-8")


if __name__ == "__main__":
    main()

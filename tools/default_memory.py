#!/usr/bin/env python3
"""The planned memory of every default plan: each shipped case by torch, megatron and deepspeed on 1, 8, 16 and 64 of
four chips, into docs/data/default_memory.csv.

    .venvs/dev/bin/python tools/default_memory.py

It starts no training, and takes some minutes. Exit code 4 where a combination gives neither a plan that fits nor a
refusal. The tests plan a part of the same list.
"""

from __future__ import annotations

import csv
import itertools
import multiprocessing
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from levelfield.catalog.registry import Registry
from levelfield.errors import LayoutError, NotHere
from levelfield.plan.placement import place
from levelfield.plan.request import Decision, Entry, UserRequest
from levelfield.plan.resolution import resolve
from levelfield.specs.plan import Plan

FILE = Path(__file__).resolve().parents[1] / "docs" / "data" / "default_memory.csv"
FRAMEWORKS = ("torch", "megatron", "deepspeed")
CHIPS = ("H100-SXM5-80GB", "H200-SXM-141GB", "A100-SXM4-40GB", "V100-SXM2-16GB")
PLACES = ((1, 1), (1, 8), (2, 8), (8, 8))  # nodes, devices of each
GIB = 2**30
COLUMNS = [
    "case",
    "framework",
    "chip",
    "nodes",
    "devices",
    "outcome",
    "layout",
    "micro_batch",
    "virtual_pipeline",
    "recompute",
    "tensors_gib",
    "planned_gib",
    "device_gib",
    "margin_gib",
]
FULL, SMOKE, REFUSED, FAULT = "full", "smoke: full scale does not fit", "refused", "fault"


def combinations(registry: Registry) -> Iterator[str]:
    """Return every combination as a case string."""
    for case, framework, chip, (nodes, devices) in itertools.product(sorted(registry.cases), FRAMEWORKS, CHIPS, PLACES):
        yield f"{case}:{framework}:{chip}:{nodes}:{devices}"


def row_of(registry: Registry, text: str) -> dict[str, str]:
    """Return a row of the table. outcome: `full`, `smoke`, `refused: ` and why, or `fault: ` and what is wrong.

    tensors_gib: the planned memory without the reserve. margin_gib: what has to stay free, which is the planner's
    uncertainty; empty where no layout leaves so much.
    """
    row = dict.fromkeys(COLUMNS, "") | dict(zip(COLUMNS[:5], text.split(":"), strict=True))
    try:
        plan, decision = planned(registry, text)
    except (NotHere, LayoutError) as error:
        return row | {"outcome": f"{REFUSED}: {str(error).splitlines()[0].rstrip(':')}"}
    return row | facts_of(plan, decision)


def planned(registry: Registry, text: str) -> tuple[Plan, Decision]:
    decision = place(registry, Entry(text, UserRequest(may_lack_hardware=True)))
    return resolve(decision, "default"), decision


def facts_of(plan: Plan, decision: Decision) -> dict[str, str]:
    expected, capacity = plan.expected_memory, plan.hardware.memory_bytes_per_device
    constants = decision.selection.constants
    if constants is None or capacity is None:
        return {"outcome": f"{FAULT}: nothing is known of the memory"}
    total, margin = expected.total_bytes, constants.keeping.uncertainty * capacity
    outcome = FULL if plan.scale == "full" else SMOKE
    if not total <= capacity:
        outcome = f"{FAULT}: {total} bytes of {capacity}"
    elif plan.scale == "smoke" and " GiB on " not in plan.scale_reason:
        outcome = f"{FAULT}: smoke scale without numbers: {plan.scale_reason}"
    return {
        "outcome": outcome,
        "layout": str(plan.tuning.layout),
        "micro_batch": str(plan.tuning.micro_batch),
        "virtual_pipeline": str(plan.tuning.virtual_pipeline),
        "recompute": plan.tuning.recomputation,
        "tensors_gib": f"{(total - expected.parts['reserve']) / GIB:.2f}",
        "planned_gib": f"{total / GIB:.2f}",
        "device_gib": f"{capacity / GIB:.2f}",
        "margin_gib": f"{margin / GIB:.2f}" if total <= capacity - margin else "",
    }


@cache
def _registry() -> Registry:
    return Registry()


def _row(text: str) -> dict[str, str]:
    return row_of(_registry(), text)


def main() -> int:
    with multiprocessing.Pool() as pool:
        rows = pool.map(_row, list(combinations(_registry())), chunksize=16)
    with FILE.open("w", newline="") as file:
        table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
    faults = [row for row in rows if row["outcome"].startswith(FAULT)]
    print("\n".join(" ".join(row.values()) for row in faults) or f"{len(rows)} combinations without a fault")
    return 4 if faults else 0


if __name__ == "__main__":
    ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter).parse_args()
    sys.exit(main())

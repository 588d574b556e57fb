"""Records the differences of honest and of faulty small trainings into tools/data/noise_rows.json.

    .venvs/dev/bin/python tools/record_noise.py

About twenty minutes on two cores. tools/limit_rates.py prints what follows from them.
"""

from __future__ import annotations

import json
import tempfile
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterator
from pathlib import Path

from faults.in_torch import FAULTS
from faults.judging import training_of
from layouts import COMMON_MODELS, MODELS, ROOT, SINGLE, Curve, Variant, planted, script_of, small_job, train
from levelfield.catalog.registry import Registry
from levelfield.judge.noise import noise_row
from levelfield.measure.alignment import TrainingCurve
from levelfield.measure.calibration import noise_between
from matrix import VARIANTS

TARGET = ROOT / "tools" / "data" / "noise_rows.json"
LAYOUTS = (
    "recompute full", "DP2", "ZeRO 1, DP2", "ZeRO 2, DP2", "ZeRO 3, DP2", "TP2", "TP2 sequence parallel", "PP2",
)  # fmt: skip
INPUTS = ("weights of one layer perturbed by 1e-3", "two samples swapped between steps")  # seen by digests


def trainings(family: str, folder: Path) -> Iterator[tuple[str, str, bool, Curve]]:
    """Yield name, kind, whether it is a fault, and the curve."""
    model = MODELS[family]
    for size in (1, 4, 8):
        yield f"micro-batch {size}", "micro-batch", False, train(small_job(model, Variant("", micro_batch=size)))
    for name in LAYOUTS:
        kind = "recompute" if name.startswith("recompute") else "layout"
        yield name, kind, False, train(small_job(model, VARIANTS[name]))
    for framework in Registry().frameworks:
        if framework == "torch":
            continue
        python = ROOT / ".venvs" / f"{framework}-cpu" / "bin" / "python"
        yield framework, "framework", False, train(small_job(model, SINGLE), script_of(framework), python)
    for fault in FAULTS:
        if fault.family == family and fault.name not in INPUTS:
            yield (
                fault.name,
                "fault",
                True,
                train(small_job(model, fault.variant), planted(folder, "torch", fault.code)),
            )


def main() -> None:
    rows = []
    for family in COMMON_MODELS:
        right = training_of(train(small_job(MODELS[family], SINGLE)))
        with tempfile.TemporaryDirectory() as folder:
            for name, kind, is_fault, curve in trainings(family, Path(folder)):
                rows.append(entry(family, name, kind, is_fault, curve, right))
                print(family, name, flush=True)
    TARGET.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


def entry(family: str, name: str, kind: str, is_fault: bool, curve: Curve, right: TrainingCurve) -> dict[str, object]:
    row = noise_row(noise_between(training_of(curve), right), name, name, "", None, {})
    differences = row.model_dump(mode="json", include={"first_step", "losses", "gradients", "weights"})
    return {"family": family, "name": name, "kind": kind, "fault": is_fault, **differences}


if __name__ == "__main__":
    ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter).parse_args()
    main()

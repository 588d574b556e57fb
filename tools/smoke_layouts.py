#!/usr/bin/env python3
"""Every parallel layout on the real smoke cases, through the command line: the tables of docs/torch-layouts.md.

    .venvs/dev/bin/python tools/smoke_layouts.py > table.md      (about half an hour on two cores)

Each run is compared with one process: the largest relative difference of the loss at step 1 and over all steps, of the
gradient norm, and whether initial weights and tokens have the same checksums.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CASES = ("gpt3_6.7B", "llama3_8b")
SINGLE = ("1 process", "DP1TP1PP1", ())
VARIANTS = (
    ("1 process again", "DP1TP1PP1", ()),
    ("accumulation 1 instead of 4", "DP1TP1PP1", ("--micro-batch", "32")),
    ("recomputation selective", "DP1TP1PP1", ("--recompute", "selective")),
    ("recomputation full", "DP1TP1PP1", ("--recompute", "full")),
    ("DP2", "DP2TP1PP1", ()),
    ("DP4", "DP4TP1PP1", ()),
    ("ZeRO 1", "DP2TP1PP1SH1SP2", ()),
    ("ZeRO 2", "DP2TP1PP1SH2SP2", ()),
    ("ZeRO 3", "DP2TP1PP1SH3SP2", ()),
    ("TP2", "DP1TP2PP1", ()),
    ("TP2, sequence parallel", "DP1TP2PP1+seq", ()),
    ("PP2", "DP1TP1PP2", ()),
    ("PP2, two chunks", "DP1TP1PP2", ("--virtual-pipeline", "2")),
    ("TP2 x PP2", "DP1TP2PP2", ()),
    ("DP2 x TP2", "DP2TP2PP1", ()),
)


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LEVELFIELD_RUNS"] = folder
        for case in CASES:
            print("\n".join(table(case)), flush=True)


def table(case: str) -> list[str]:
    reference = run(case, *SINGLE[1:])
    lines = [
        f"\n### {case}, smoke scale, fp32, {len(reference['losses'])} steps\n",
        "| layout | processes | loss, step 1 | loss, all steps | gradient norm | weights | tokens |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, layout, more in VARIANTS:
        figures = run(case, layout, more)
        same = [("same" if figures[key] == reference[key] else "DIFFERENT") for key in ("initial_weights", "tokens")]
        losses = differences(figures["losses"], reference["losses"])
        norms = differences(figures["norms"], reference["norms"])
        cells = (name, figures["devices"], f"{losses[0]:.1e}", f"{max(losses):.1e}", f"{max(norms):.1e}", *same)
        lines.append(f"| {' | '.join(map(str, cells))} |")
        print(lines[-1], file=sys.stderr, flush=True)
    return lines


def run(case: str, layout: str, more: tuple[str, ...]) -> dict[str, Any]:
    """One run's curve and identity; ends with what the command said when the run is not valid."""
    argv = [
        sys.executable,
        str(ROOT / "run_benchmarks.py"),
        "--case",
        f"{case}:torch:cpu",
        "--scale",
        "smoke",
        "--threads",
        "1",
    ]
    done = subprocess.run([*argv, "--layout", layout, *more, "--json"], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{case} {layout}: exit code {done.returncode}\n{done.stderr}{done.stdout}")
    (result,) = json.loads(done.stdout)
    events = Path(os.environ["LEVELFIELD_RUNS"]) / result["run_id"] / "events" / "rank0.jsonl"
    steps = [e for e in map(json.loads, events.read_text().splitlines()) if e["event"] == "step"]
    curve = {"losses": [e["loss"] for e in steps], "norms": [e["grad_norm"] for e in steps]}
    return {**curve, "devices": result["devices"], **result["identity"]}


def differences(values: list[float], reference: list[float]) -> list[float]:
    return [abs(a - b) / abs(b) for a, b in zip(values, reference, strict=True)]


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""The planner against every published figure: fit the reserve of memory on half of the rows, report on all.

    python benchmarks/planner_fit.py            fit, write configs/planner/*.yaml and the rows in docs/data
    python benchmarks/planner_fit.py --check    the same without writing; exit 4 when what is written is not this
    python benchmarks/planner_fit.py --quick    the fit of one framework, without writing

For each framework the reserve and the fragmentation, from every second row that has a memory. Least absolute error of
logarithms, by a grid, so that one odd row moves little. All other rows are predictions. `planner_unseen.py --fit` sets
the rates, which are the same for all programs.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from itertools import product
from pathlib import Path

from levelfield.catalog.registry import Registry
from levelfield.specs.constants import Constants, MemoryModel
from pages.points import Point, halves, memory, points_of, spearman
from pages.residuals import left_out, medians_table, rows, scatter

ROOT = Path(__file__).resolve().parents[1]
GIB = 2**30
RESERVES = [round(n * GIB / 10) for n in range(5, 61)]
FRAGMENTATIONS = [n / 100 for n in range(0, 11)]
QUICK = "paddle"  # the framework with the fewest rows that has a speed and a memory
ABLATION, ABLATION_CHIP = "flagperf_llama3", "A800-SXM4-80GB"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 4 when the files differ")
    parser.add_argument("--quick", action="store_true", help="fit one framework, write nothing: for tests")
    options = parser.parse_args()
    registry = Registry()
    points, skipped = points_of(registry)
    if options.quick:
        some = [p for p in points if p.framework == QUICK]
        print(_summary(some, {QUICK: _fitted(registry, QUICK, some)}))
        return 0
    fitted = {name: _fitted(registry, name, points) for name in sorted({p.framework for p in points})}
    files = {ROOT / "configs" / "planner" / f"{n}.yaml": _written(n, c) for n, c in fitted.items()}
    files[ROOT / "docs" / "data" / "planner_left_out.csv"] = left_out(points, skipped)
    files[ROOT / "docs" / "data" / "planner_residuals.csv"] = rows(points, fitted)
    files[ROOT / "docs" / "planner-residuals.svg"] = scatter(points, fitted)
    stale = [path for path, text in files.items() if not path.exists() or path.read_text() != text]
    for path in stale if not options.check else ():
        path.write_text(files[path])
    for path in stale:
        print(f"{'differs' if options.check else 'written'}: {path.relative_to(ROOT)}")
    print(_summary(points, fitted))
    return 4 if options.check and stale else 0


def _fitted(registry: Registry, framework: str, points: list[Point]) -> Constants:
    before = registry.planner_constants(framework)
    assert before is not None
    weighed = halves(points, framework, memory)
    return before.model_copy(
        update={
            "keeping": _best_keeping(before, weighed),
            "fitted": {
                "reserve_bytes": f"{len(weighed)} rows with a memory",
                "fragmentation": "the same rows",
            },
        }
    )


def _best_keeping(before: Constants, weighed: list[Point]) -> MemoryModel:
    """Return the memory model with the reserve and the fragmentation that fit the rows best."""
    bare = before.keeping.model_copy(update={"reserve_bytes": 0, "fragmentation": 0})
    tensors = [(p.predicted(before.model_copy(update={"keeping": bare})).memory, memory(p) or 1) for p in weighed]

    def off(pair: tuple[int, float]) -> float:
        reserve, share = pair
        return sum(
            abs(math.log((m.total + reserve + share * (m.activations + m.logits + m.buffers)) / size))
            for m, size in tensors
        )

    reserve, share = min(product(RESERVES, FRAGMENTATIONS), key=off)
    return before.keeping.model_copy(update={"reserve_bytes": reserve, "fragmentation": share})


def _written(framework: str, constants: Constants) -> str:
    """The file with the fitted numbers put in; all else in it is somebody's words."""
    text = (ROOT / "configs" / "planner" / f"{framework}.yaml").read_text()
    for name, value in (
        ("reserve_bytes", constants.keeping.reserve_bytes),
        ("fragmentation", constants.keeping.fragmentation),
    ):
        text = re.sub(rf"\b{name}: [\d.]+", f"{name}: {value}", text, count=1)
    lines = "".join(f"  {name}: {json.dumps(how)}\n" for name, how in constants.fitted.items())
    return re.sub(r"^fitted:\n(?:  .*\n)*", f"fitted:\n{lines}", text, flags=re.MULTILINE)


def _summary(points: list[Point], fitted: dict[str, Constants]) -> str:
    lines = [line.replace("|", " ").strip() for line in medians_table(points, fitted)[2:]]
    ablation = [p for p in points if p.set_name == ABLATION and p.row.setting.chip == ABLATION_CHIP]
    ablation = [p for p in ablation if p.tokens_per_second]
    pairs = [(p.predicted(fitted[p.framework]).tokens_per_second, p.tokens_per_second or 0.0) for p in ablation]
    fits = sum(p.predicted(fitted[p.framework]).fits == (p.row.status != "oom") for p in points)
    if pairs:
        lines.append(f"rank correlation over the ablation's {len(pairs)} rows: {spearman(pairs):.3f}")
    lines.append(f"fits or not, as published: {fits} of {len(points)}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())

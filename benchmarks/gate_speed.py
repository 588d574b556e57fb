#!/usr/bin/env python3
"""CPU seconds of `nightly gate` and of `nightly history` on a store of seeded runs, with all that the commands do.

Default: 300 series of 61 nights, three figures each. Aims: the gate under 2 s, a history under 1 s, also with --nights
334, which are 100,200 results. On SQLite, or on PostgreSQL where `--url` names an empty database.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from contextlib import redirect_stdout
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "platform"), str(ROOT / "tests" / "core")]

from levelfield.cli.main import main as command  # noqa: E402
from levelfield.store.database import Store  # noqa: E402
from seeded_nights import SeededNights  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--series", type=int, default=300, help="series (default %(default)s)")
    parser.add_argument("--nights", type=int, default=61, help="nights of each (default %(default)s)")
    parser.add_argument("--url", help="an empty database (default: a file of SQLite in a temporary folder)")
    parser.add_argument("--quick", action="store_true", help="run all the code once, on little: for tests")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    plan = SeededNights(3, 10) if options.quick else SeededNights(options.series, options.nights)
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(plan, options.url or str(Path(folder) / "results.sqlite"))
    print(json.dumps(figures, indent=2) if options.json else text(figures))


def measure(plan: SeededNights, store: str) -> dict[str, float]:
    records = list(plan.records())
    with Store.open(store) as opened:
        opened.add(records)
    last = records[-1]
    return {
        "results": len(records),
        "series": plan.series,
        "gate_cpu_seconds": cpu_seconds("nightly", "gate", "--night", last.night or last.began[:10], "--store", store),
        "history_cpu_seconds": cpu_seconds("nightly", "history", last.series.label, "--store", store),
    }


def cpu_seconds(*arguments: str) -> float:
    """CPU seconds of a command, whose output goes nowhere. Raises SystemExit where it fails by itself."""
    start = time.process_time()
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        code = command(arguments)
    if code in (2, 5):
        raise SystemExit(f"{arguments[0]} ended with {code}")
    return time.process_time() - start


def text(figures: dict[str, float]) -> str:
    return (
        f"{figures['results']:,.0f} results of {figures['series']:.0f} series: "
        f"gate {figures['gate_cpu_seconds']:.2f} s, history {figures['history_cpu_seconds']:.2f} s of processor time"
    )


if __name__ == "__main__":
    main()

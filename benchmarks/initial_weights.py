#!/usr/bin/env python3
"""Initial weights: values per second, and what an eighth of a parameter costs against all of it.

Medians over repeats of one run; the pieces are timed in turn, so that a disturbance meets all of them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "platform"))

import numpy as np
from levelfield.worker import checksum_slice
from levelfield.worker.init import normal_array
from levelfield.worker.normal import standard_normal_table

QUICK = {"rows": 256, "columns": 256, "repeats": 1}


def main() -> None:
    arguments = parse()
    start = time.perf_counter()
    standard_normal_table()
    table_seconds = time.perf_counter() - start
    figures = measure(arguments.rows, arguments.columns, arguments.repeats)
    figures["table_once_seconds"] = table_seconds
    print(json.dumps(figures, indent=2) if arguments.json else text(figures, arguments))


def parse() -> SimpleNamespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4096, help="of the whole parameter (default %(default)s)")
    parser.add_argument("--columns", type=int, default=4096, help="likewise; both divisible by 8 (default %(default)s)")
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--quick", action="store_true", help="run all the code once, on little: for tests")
    parser.add_argument("--json", action="store_true")
    arguments = SimpleNamespace(**vars(parser.parse_args()))
    return SimpleNamespace(**{**vars(arguments), **QUICK}) if arguments.quick else arguments


def measure(rows: int, columns: int, repeats: int) -> dict[str, float]:
    """Values per second, and ratios of the medians."""
    seconds = medians(pieces(rows, columns), repeats)
    values = rows * columns
    return {
        "whole_values_per_second": values / seconds["whole"],
        "slice_values_per_second": values / 8 / seconds["rows"],
        "rows_eighth_over_whole": seconds["rows"] / seconds["whole"],
        "columns_eighth_over_whole": seconds["columns"] / seconds["whole"],
        "numpy_values_per_second": values / seconds["numpy"],
        "speed_over_numpy": seconds["numpy"] / seconds["whole"],
        "checksum_values_per_second": values / seconds["checksum"],
    }


def pieces(rows: int, columns: int) -> dict[str, Callable[[], Any]]:
    """What is timed: all of a parameter, two eighths of it, numpy's own generator, and the checksum."""
    shape, generator = (rows, columns), np.random.Generator(np.random.PCG64(1))
    array = normal_array(1, shape, None, 0.02)
    return {
        "whole": lambda: normal_array(1, shape, None, 0.02),
        "rows": lambda: normal_array(1, shape, (slice(rows // 8, rows // 4), None), 0.02),
        "columns": lambda: normal_array(1, shape, (None, slice(columns // 8, columns // 4)), 0.02),
        "numpy": lambda: generator.standard_normal(shape, dtype=np.float32) * np.float32(0.02),
        "checksum": lambda: checksum_slice("w", array, shape, None),
    }


def medians(timed: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Seconds of each, the median over `repeats` rounds."""
    seconds_by_piece: dict[str, list[float]] = {name: [] for name in timed}
    for _ in range(repeats):
        for name, call in timed.items():
            start = time.perf_counter()
            call()
            seconds_by_piece[name].append(time.perf_counter() - start)
    return {name: statistics.median(seconds) for name, seconds in seconds_by_piece.items()}


def text(figures: dict[str, float], arguments: SimpleNamespace) -> str:
    million = {name: value / 1e6 for name, value in figures.items()}
    return "\n".join(
        [
            f"initial weights, {arguments.rows} x {arguments.columns} float32, one thread, {arguments.repeats} repeats",
            f"  whole parameter                 {million['whole_values_per_second']:8.0f} million values/s",
            f"  an eighth (rows)                {million['slice_values_per_second']:8.0f} million values/s",
            f"  checksum                        {million['checksum_values_per_second']:8.0f} million values/s",
            f"  an eighth of the rows costs     {figures['rows_eighth_over_whole']:8.3f} of the whole (0.125)",
            f"  an eighth of the columns costs  {figures['columns_eighth_over_whole']:8.3f} of the whole (0.125)",
            f"  speed over numpy's generator    {figures['speed_over_numpy']:8.2f} times",
            f"  the table, once per process     {figures['table_once_seconds'] * 1e3:8.1f} ms",
        ]
    )


if __name__ == "__main__":
    main()

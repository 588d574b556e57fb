"""A suite of machines that are not here: its entries run scaled, what cannot run is said, and one table ends it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from driving import Benchmark

PLUGINS = Path(__file__).parent / "plugins"

# Training that pretends runs suites in tests/core; tests of plans scale layouts, tests/models trains in them.
pytestmark = [pytest.mark.e2e, pytest.mark.thorough]


def test_entries_run_scaled_to_what_is_here_and_one_that_cannot_hinders_none(benchmark: Benchmark) -> None:
    done = benchmark.run("--suite", "elsewhere", "--plugins", str(PLUGINS), "--threads", "1")
    results = {r["entry"]["name"]: r for r in (json.loads(p.read_text()) for p in benchmark.runs.glob("*/result.json"))}
    assert done.returncode == 3, done.stderr
    words = {name: (r["status"]["word"], r["scale"], r["devices"]) for name, r in results.items()}
    assert words["impossible"][0] == "unsupported" and not list(benchmark.runs.glob("*deepspeed*/job.json"))
    for name, (word, scale, devices) in words.items():
        assert name == "impossible" or ((word, scale) == ("valid", "smoke") and devices <= 8), results[name]["status"]
    # by the cores there are: DP8SH2 becomes DP2SH2 on two, DP2TP2PP2 becomes PP2
    for name, before in (("sharded", "DP8TP1PP1SH2SP8"), ("pipelined", "DP2TP2PP2")):
        (deviation,) = [d for d in results[name]["deviations"] if before in d] or [""]
        assert "1x8 V100-SXM2-16GB" in deviation or results[name]["devices"] == 8
    table = [line for line in done.stdout.splitlines() if not line.startswith("run ")]
    assert table[0] == "suite elsewhere" and max(map(len, table)) <= 80 and "[possible]" in table
    (row,) = [line for line in table if line.startswith("sharded ")]
    cells = row.replace(" (disturbed)", "").split()  # by others, while the tests run
    assert cells[1] == "valid" and float(cells[3].replace(",", "")) > 0
    assert any(line.startswith("impossible ") and "unsupported" in line for line in table)

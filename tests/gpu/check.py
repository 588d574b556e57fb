#!/usr/bin/env python3
"""What only a chip can show: run by `make gpu-check` on a machine with an accelerator, by hand, never by CI.

Trains each family at smoke scale and GPT-2 small at full scale with the chip's own precision, measures the matmul peak
beside the published one, and leaves every result and report in gpu-check/ to be read and committed.
Exits 2 where there is no accelerator, 3 when a run was not valid.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
OUTPUT = ROOT / "gpu-check"
RUNS = (
    ("gpt-smoke", "--case", "gpt3_6.7B:torch:{vendor}:1:1", "--scale", "smoke"),
    ("llama-smoke", "--case", "llama3_8b:torch:{vendor}:1:1", "--scale", "smoke"),
    ("gpt2-small", "--case", "gpt2_small:torch:{vendor}:1:1", "--scale", "full", "--probe"),
    ("gpt2-small-compiled", "--case", "gpt2_small:torch:{vendor}:1:1", "--scale", "full", "--compile"),
)


def main() -> int:
    vendor = accelerator()
    if vendor is None:
        print("gpu-check: no accelerator here; `run_benchmarks.py list vendors` shows what is", file=sys.stderr)
        return 2
    OUTPUT.mkdir(exist_ok=True)
    words = {name: run(name, [a.format(vendor=vendor) for a in arguments]) for name, *arguments in RUNS}
    for name, word in words.items():
        print(f"{name:<22} {word}")
    return 0 if set(words.values()) == {"valid"} else 3


def accelerator() -> str | None:
    """The first vendor but the cpu that has a device here."""
    vendors: list[dict[str, Any]] = json.loads(benchmark("list", "vendors", "--json").stdout)["vendors"]
    return next((v["name"] for v in vendors if v["devices"] and v["name"] != "cpu"), None)


def run(name: str, arguments: list[str]) -> str:
    """Run once, keep result.json and report.md under this name; the result's word."""
    done = benchmark(*arguments, "--json")
    print(done.stderr, file=sys.stderr, end="")
    if not done.stdout:
        return "not-run"
    (result,) = json.loads(done.stdout)
    for kind, suffix in (("result", "json"), ("report", "md")):
        shutil.copy2(ROOT / "runs" / result["run_id"] / f"{kind}.{suffix}", OUTPUT / f"{name}.{suffix}")
    return str(result["status"]["word"])


def benchmark(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(ROOT / "run_benchmarks.py"), *arguments]
    environment = {k: v for k, v in os.environ.items() if k not in ("LEVELFIELD_RUNS", "PYTHONPATH")}
    environment["LEVELFIELD_STORE"] = "none"
    return subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True)


if __name__ == "__main__":
    sys.exit(main())

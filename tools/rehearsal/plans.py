"""The plan of a case for pretended devices, as `run_benchmarks.py --dry-run` makes it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]
# the stand-in's devices, by the catalog's chips
CHIPS = {
    "H100-SXM5-80GB": "H100-80",
    "H200-SXM-141GB": "H200",
    "A100-SXM4-40GB": "A100-40",
    "A100-SXM4-80GB": "A100-80",
    "V100-SXM2-16GB": "V100-16",
}
DEFAULTS = ("torch", "H100", "1", "8")


class RehearsalError(Exception):
    """A rehearsal cannot begin; the message says why and what to do."""


def case_string(case: str) -> str:
    """The case string with the framework, chip, nodes and devices that it leaves out."""
    parts = case.split(":")
    if not 1 <= len(parts) <= 5 or not all(parts):
        raise RehearsalError(f"{case!r}: expected CASE[:framework[:chip[:nodes[:devices]]]]")
    return ":".join(parts + list(DEFAULTS[len(parts) - 1 :]))


def framework_of(case: str) -> str:
    """The framework of a case string, without its version."""
    return case_string(case).split(":")[1].partition("_")[0]


def make_plan(case: str, options: list[str], checkout: Path = CHECKOUT) -> dict[str, Any]:
    """The entry of `--dry-run --json`: plan, request and job."""
    argv = [sys.executable, str(checkout / "run_benchmarks.py"), "--case", case_string(case)]
    variables = {"LEVELFIELD_NO_BOOTSTRAP": "1", "LEVELFIELD_STORE": "none", "PYTHONPATH": str(checkout / "platform")}
    done = subprocess.run(
        [*argv, "--dry-run", "--json", *options],
        capture_output=True,
        text=True,
        cwd=checkout,
        env={**os.environ, **variables},
    )
    if done.returncode:
        raise RehearsalError(f"{case}: no plan: {done.stderr.strip() or done.stdout.strip()[:500]}")
    entry: dict[str, Any] = json.loads(done.stdout)[0]
    if entry.get("job") is None:
        raise RehearsalError(f"{case}: the plan has no job: {entry['plan'].get('refusal')}")
    return entry


def chip_of(entry: dict[str, Any]) -> str:
    """The stand-in's name of the plan's chip."""
    return standin_chip(entry["plan"]["hardware"]["chip"]["name"])


def standin_chip(name: str) -> str:
    """The stand-in's name of a chip of the catalog."""
    if name not in CHIPS:
        raise RehearsalError(f"chip {name}: the stand-in pretends to be one of {', '.join(CHIPS)}; name one of these")
    return CHIPS[name]


def world_size(job: dict[str, Any]) -> int:
    layout = job["layout"]
    return int(layout["data"] * layout["tensor"] * layout["pipeline"] * layout.get("context", 1))


def telling_ranks(job: dict[str, Any]) -> list[int]:
    """The first rank of the first, the middle and the last stage; without a pipeline the first and the last rank.

    Of ZeRO 3 the first one: deepspeed compares lists with rank 0's, which no other rank hears of alone, and all ranks
    do the same.
    """
    world, stages = world_size(job), job["layout"]["pipeline"]
    if stages == 1:
        return [0] if job["layout"].get("sharding_stage") == 3 else sorted({0, world - 1})
    return sorted({stage * (world // stages) for stage in (0, stages // 2, stages - 1)})


def planned_bytes(entry: dict[str, Any]) -> int | None:
    """What the plan expects a device to hold, without the reserve."""
    expected = entry["plan"].get("expected_memory")
    if not expected:
        return None
    return sum(size for part, size in expected["parts"].items() if part != "reserve")

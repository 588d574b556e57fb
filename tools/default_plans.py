#!/usr/bin/env python3
"""The first command on every box: each shipped case by each framework on each chip of known memory, without options.

    .venvs/dev/bin/python tools/default_plans.py

plans all combinations, which takes minutes, prints what is an error, and writes tools/data/default_plans.json.
docs/frameworks.md shows its counts. The tests plan a part of the same list.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import re
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from levelfield.catalog.registry import Registry
from levelfield.errors import LayoutError, NotHere, UsageError
from levelfield.plan.placement import place
from levelfield.plan.request import Entry, UserRequest
from levelfield.plan.resolution import resolve
from levelfield.specs.plan import Plan

FILE = Path(__file__).parent / "data" / "default_plans.json"
PARALLELISM = r"(data|tensor|pipeline|interleaved|sequence|context|zero\d|recomputation)\b"
DEVICES, NODES = (1, 2, 4, 8), (1, 2, 4)
IMPOSSIBLE = "no layout of"  # devices is possible: the sizes of the case do not divide


def combinations(registry: Registry) -> Iterator[str]:
    """Return every combination as a case string."""
    files = [registry.vendor_file(name) for name in sorted(registry.vendors)]
    chips = [chip.name for file in files if not file.is_host for chip in file.chips if chip.memory_bytes]
    for parts in itertools.product(sorted(registry.all_cases), sorted(registry.frameworks), chips, NODES, DEVICES):
        yield ":".join(map(str, parts))


def outcome(registry: Registry, text: str) -> str:
    """Return `full`, `smoke` or `refused`, or `error: ...` for what the defaults must not cause."""
    try:
        plan = resolve(place(registry, Entry(text, UserRequest(may_lack_hardware=True))), "default")
    except NotHere as error:
        return f"error: {error}" if re.search(PARALLELISM, str(error)) else "refused: the framework does not offer it"
    except LayoutError as error:
        return "refused: nothing divides" if str(error).startswith(IMPOSSIBLE) else f"error: {error}"
    except UsageError as error:
        return f"error: {error}"
    return _checked(plan)


@cache
def _registry() -> Registry:
    return Registry()


def _outcome(text: str) -> str:
    return outcome(_registry(), text)


def _checked(plan: Plan) -> str:
    """Return the scale of a plan that fits and says why it has this scale."""
    memory = plan.expected_memory
    if memory.available_bytes is None or memory.total_bytes > memory.available_bytes:
        return f"error: {memory.total_bytes} bytes of {memory.available_bytes}"
    if plan.scale == "smoke" and " GiB on " not in plan.scale_reason:
        return f"error: smoke scale without numbers: {plan.scale_reason}"
    return plan.scale


def main() -> int:
    counts = Counter[tuple[str, str]]()
    every = list(combinations(_registry()))
    with multiprocessing.Pool() as pool:
        outcomes = pool.map(_outcome, every, chunksize=200)
    for text, plan_kind in zip(every, outcomes, strict=True):
        if plan_kind.startswith("error"):
            print(f"{text}: {plan_kind}", flush=True)
        counts[text.split(":")[1], plan_kind if not plan_kind.startswith("error") else "error"] += 1
    content = {name: {kind: n for (owner, kind), n in sorted(counts.items()) if owner == name} for name, _ in counts}
    FILE.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
    print(FILE.read_text())
    return 1 if any("error" in kinds for kinds in content.values()) else 0


if __name__ == "__main__":
    ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter).parse_args()
    sys.exit(main())

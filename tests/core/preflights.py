"""Preflights as ranks record them: good ones, to be broken."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from typing import Any

from levelfield.specs.paths import RunPaths

FACTS: dict[str, dict[str, Any]] = {
    "load": {"other_cores": 0.0, "cores": 8},
    "memory": {"total_bytes": 2**36, "available_bytes": 2**35, "transparent_huge_pages": "madvise"},
    "limits": {"open_files": 1024, "locked_memory": "unlimited", "hostname": "here", "usable_cores": 8},
}
Values = dict[str, Any]


def node_values(number: int) -> Values:
    """The values of a node's event."""
    return {"node": number, "checks": {name: {"facts": dict(facts)} for name, facts in FACTS.items()}}


def changed(values: Values, check: str, **facts: object) -> Values:
    """The same with other facts of a check."""
    changed = copy.deepcopy(values)
    changed["checks"][check]["facts"].update(facts)
    return changed


def write_preflight(
    paths: RunPaths,
    nodes: Sequence[Values],
    ranks: int,
    products_of_each: bool = False,
    products: Sequence[float | None] = (),
    pairs: Sequence[tuple[list[int], int, float]] = (),
    collective_factor: float = 1.0,
) -> None:
    """Write the events of a preflight. ranks: of all nodes together.

    products: TFLOP/s by node, None for no event. collective_factor: of the seconds of each collective.
    """
    paths.events.mkdir(exist_ok=True)
    per_node = ranks // len(nodes)
    for rank in range(ranks):
        node = rank // per_node
        events: list[tuple[str, Values]] = []
        if rank % per_node == 0:
            events.append(("node", nodes[node]))
        best = products[node] if products else 1 + node / 1000
        if best is not None and (products_of_each or rank % per_node == 0):
            events.append(("matmul", {"precision": "fp32", "tflops": best, "median": best * 0.98, "repeats": 9}))
        if ranks > 1:
            events += _group_events(rank, ranks, collective_factor)
        events += [
            ("pair", {"ranks": both, "bytes": size, "seconds": [seconds], "wrong": None})
            for both, size, seconds in pairs
            if both[0] == rank
        ]
        lines = [json.dumps({"event": "measured", "name": name, "values": values}) for name, values in events]
        (paths.events / f"rank{rank}.jsonl").write_text("\n".join([*lines, '{"event": "end"}']) + "\n")


def _group_events(rank: int, ranks: int, factor: float) -> list[tuple[str, Values]]:
    seconds = [factor * s for s in ((0.001, 0.002, 0.003) if rank == 0 else (0.002, 0.002, 0.002))]
    operations = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
    rows = [{"operation": name, "bytes": 2**20, "seconds": seconds, "wrong": None} for name in operations]
    joined = ("joined", {"backend": "gloo", "ranks": ranks})
    return [joined, ("barrier", {"seconds": [1e-4] * 3}), *(("collective", row) for row in rows)]

"""Who waited for whom: the ranks' own work over the steps of the window."""

from __future__ import annotations

from levelfield.measure.straggler import stragglers
from levelfield.rundir.raw_files import RawRecords
from levelfield.specs.plan import Plan
from levelfield.specs.result import RankPace


def rank_pace(plan: Plan, raw: RawRecords) -> RankPace | None:
    """Return the nodes and ranks that the others waited for; None where no rank recorded its own work."""
    window, times = plan.work.window, _times(raw)
    if not times:
        return None
    whole = range(plan.world_size)
    inside = {
        rank: {s: t for s, t in times.get(rank, {}).items() if window.first_step <= s <= window.last_step}
        for rank in whole
    }
    size, nodes = plan.hardware.devices_per_node, plan.hardware.nodes
    members = {f"node{node}": range(node * size, (node + 1) * size) for node in range(nodes)}
    return stragglers(inside, members if nodes > 1 else {})


def _times(raw: RawRecords) -> dict[int, dict[int, float]]:
    found: dict[int, dict[int, float]] = {}
    for record in raw.steps:
        if record.before_exchange_seconds is not None:
            found.setdefault(record.rank, {})[record.step] = record.before_exchange_seconds
    return found

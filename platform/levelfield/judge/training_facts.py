"""What the ranks reported beside their steps: the kernel of attention, what is recomputed, who waited for whom."""

from __future__ import annotations

from collections.abc import Mapping

from levelfield.measure.flops import Recomputation
from levelfield.measure.straggler import stragglers
from levelfield.rundir.event_lines import Event, mapping
from levelfield.rundir.raw_files import RawRecords
from levelfield.specs.plan import Plan
from levelfield.specs.result import KERNELS, AttentionKernelFound, RankPace
from levelfield.specs.tuning import Recompute

# What each choice may mean in a framework; the first is meant where the training reports nothing.
MEANINGS: dict[Recompute, tuple[Recomputation, ...]] = {
    "none": ("none",),
    "selective": ("selective", "selective-attention"),
    "full": ("full", "full-except-down"),
}


def attention_kernel(frameworks: Mapping[int, Event]) -> AttentionKernelFound | None:
    """Return the kernel that all ranks name, or why it is not known; None where no rank reported one.

    frameworks: each rank's event of that name.
    """
    said = {rank: mapping(event.get("details")).get("attention_kernel") for rank, event in sorted(frameworks.items())}
    names = list(dict.fromkeys(map(_shown, said.values())))
    if all(name is None for name in said.values()):
        return None
    if len(names) > 1:
        first = {_shown(name): rank for rank, name in reversed(said.items())}
        told = ", ".join(f"{name} by rank {first[name]}" for name in names)
        return AttentionKernelFound(name=None, reason=f"the ranks reported different kernels: {told}")
    name = said[min(said)]
    known = next((kernel for kernel in KERNELS if kernel == name), None)
    if known is None:
        reason = f"the training reported {names[0]}, expected one of {', '.join(KERNELS)}"
        return AttentionKernelFound(name=None, reason=reason)
    return AttentionKernelFound(name=known)


def _shown(name: object) -> str:
    return "none" if name is None else repr(name)[:40]


def repeated(chosen: Recompute, framework: Event | None) -> Recomputation:
    """Return what is repeated. framework: the training's event of that name; `details.repeats` has the kind.

    A report that contradicts the choice counts as none.
    """
    said = mapping(mapping(framework).get("details")).get("repeats")
    return next((kind for kind in MEANINGS[chosen] if kind == said), MEANINGS[chosen][0])


def rank_pace(plan: Plan, raw: RawRecords) -> RankPace | None:
    """Return the nodes and ranks that the others waited for; None where no rank recorded its own work."""
    window, times = plan.work.window, dict[int, dict[int, float]]()
    for record in raw.steps:
        if record.before_exchange_seconds is not None:
            times.setdefault(record.rank, {})[record.step] = record.before_exchange_seconds
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

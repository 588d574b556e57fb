"""What each node of a run was, how its part ended, and which of its evidence is missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from levelfield.rundir.event_lines import Event
from levelfield.rundir.node_parts import NodePart
from levelfield.rundir.raw_files import RawRecords
from levelfield.rundir.system_facts import clipped, clipped_texts
from levelfield.specs.plan import Plan
from levelfield.specs.result import NodeResult

GOOD = ("ended", "stopped")  # what shows nothing about a cause
_SHOWN = 3  # nodes in a line of evidence


def node_results(plan: Plan, raw: RawRecords, parts: Sequence[NodePart]) -> tuple[NodeResult, ...]:
    """Return one entry for each node; none for a run on the platform's machine alone."""
    if not raw.node_ends and (parts[0].name is None or not raw.node_facts):
        return ()
    silent = {part.name for part in parts if part.why_silent}
    return tuple(_node(raw, node, f"node{node}" in silent) for node in range(plan.hardware.nodes))


def _node(raw: RawRecords, node: int, is_silent: bool) -> NodeResult:
    facts, end = raw.node_facts.get(node, {}), raw.node_ends.get(node, {})
    listed = end.get("missing")
    missing = [text for each in listed if (text := clipped(each))] if isinstance(listed, list) else []
    missing += [what for what, lacks in (("facts", not facts), ("telemetry", is_silent)) if lacks]
    return NodeResult(
        node=node,
        name=_name(raw, node),
        word=clipped(end.get("word")),
        detail=clipped(end.get("detail")),
        missing=tuple(dict.fromkeys(missing)),
        kernel=clipped(facts.get("kernel")),
        software=clipped_texts(raw.node_software.get(node)),
        cores=_count(facts, "usable_cores"),
        memory_bytes=_count(facts, "memory_bytes"),
    )


def _name(raw: RawRecords, node: int) -> str | None:
    return clipped(raw.node_ends.get(node, {}).get("name")) or clipped(raw.node_facts.get(node, {}).get("hostname"))


def _count(facts: Mapping[str, Any], name: str) -> int | None:
    found = facts.get(name)
    return found if isinstance(found, int) and not isinstance(found, bool) and 0 < found < 2**63 else None


def missing_warnings(nodes: Sequence[NodeResult]) -> Iterator[str]:
    """Return a sentence for each node of which evidence is missing."""
    for each in nodes:
        if each.missing:
            yield f"{_called(each.node, each.name)}: its {', '.join(each.missing)} did not arrive"


def rank_named(plan: Plan, raw: RawRecords, rank: int) -> str:
    """Return a rank for a sentence, with its node in a run over several machines."""
    if not raw.node_ends:
        return f"rank {rank}"
    node = rank // plan.hardware.devices_per_node
    return f"rank {rank} on {_called(node, _name(raw, node))}"


def node_evidence(raw: RawRecords, known: str) -> str | None:
    """Return which nodes ended badly, and what `known` does not already say about it; None when there is nothing."""
    bad = {node: end for node, end in sorted(raw.node_ends.items()) if end.get("word") not in GOOD}
    bad = {node: end for node, end in bad.items() if not (end.get("detail") and str(end["detail"]) in known)}
    said = [_ended(node, _name(raw, node), end) for node, end in list(bad.items())[:_SHOWN]]
    more = [f"and {len(bad) - _SHOWN} more nodes"] if len(bad) > _SHOWN else []
    return "; ".join([*said, *more]) or None


def _ended(node: int, name: str | None, end: Event) -> str:
    parts = (_called(node, name), clipped(end.get("word")), clipped(end.get("detail")))
    return ": ".join(part for part in parts if part)


def _called(node: int, name: str | None) -> str:
    return f"node{node}" if name in (None, f"node{node}") else f"node{node} ({name})"

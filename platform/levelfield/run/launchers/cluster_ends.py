"""How each node and rank of a run ended, from the pods' states and the records that the nodes left."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from levelfield.contracts.execution import NodeEnd, NodeWord, NodeWork, ProcessEnd, Request
from levelfield.run.launchers.pod_states import PodState

_END_KEYS = {"rank", "exit_code", "signal", "stopped_by_us", "process", "state"}
_LAST_BYTES = 256 * 1024  # of a record: its last line has the ends of at most some hundred ranks


def node_ends(
    request: Request, states: Mapping[int, PodState], others: NodeWord, root: Path | None
) -> tuple[NodeEnd, ...]:
    """Return the end of each node. others: the word of a node that has none of its own."""
    return tuple(_node_end(node, states.get(node.node_rank), others, root) for node in request.nodes)


def ends_of_nodes(request: Request, root: Path) -> tuple[ProcessEnd, ...]:
    """Return how each rank ended, as its node's last word says. A rank without one has no end that is known."""
    found = []
    for node in request.nodes:
        own = {work.rank for work in node.processes}
        ends = {end.rank: end for end in _ends(last_record(root, node.node_rank)) if end.rank in own}
        found += [ends.get(rank) or ProcessEnd(rank, None, None, True) for rank in sorted(own)]
    return tuple(found)


def last_record(root: Path, node_rank: int) -> Mapping[str, Any]:
    """Return the last line of a node's record where it is its last word; else an empty object."""
    try:
        with (root / f"nodes/node{node_rank}.record.jsonl").open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _LAST_BYTES))
            last = json.loads(file.read().rstrip().rpartition(b"\n")[2])
    except (OSError, ValueError, RecursionError):
        return {}
    return last if isinstance(last, dict) and last.get("event") == "ended" else {}


def missing_evidence(root: Path, node: NodeWork) -> tuple[str, ...]:
    """Return which evidence of a node is not here."""
    rank = node.node_rank
    expected = {f"nodes/node{rank}.facts.json": "facts", f"telemetry/node{rank}.raw.jsonl": "telemetry"}
    expected |= {f"events/rank{work.rank}.jsonl": f"events of rank {work.rank}" for work in node.processes}
    absent = [what for name, what in expected.items() if not (root / name).is_file()]
    return (*absent, *(() if last_record(root, rank) else ("last word",)))


def _node_end(node: NodeWork, state: PodState | None, others: NodeWord, root: Path | None) -> NodeEnd:
    name = node.name or f"node{node.node_rank}"
    missing = missing_evidence(root, node) if root else ()
    if state is None:
        return NodeEnd(node.node_rank, name, "unreachable", "no pod was created", missing)
    where = f"{state.says} (pod {state.pod}{f' on {state.machine}' if state.machine else ''})"
    pending: NodeWord = "unreachable" if others == "stopped" else others
    own = None if state.word == "cancelled" else state.word  # a deleted pod: its job says why
    word = own or (pending if state.phase == "pending" else others)
    return NodeEnd(node.node_rank, name, word, where, missing)


def _ends(record: Mapping[str, Any]) -> list[ProcessEnd]:
    """Return the ends of a record. A node is another machine: what is no end is left out."""
    listed = record.get("ends")
    found = []
    for end in listed if isinstance(listed, list) else []:
        if isinstance(end, dict) and {"rank", "exit_code", "signal", "stopped_by_us"} <= end.keys() <= _END_KEYS:
            numbers = (end["rank"], end["exit_code"], end["signal"])
            if all(isinstance(each, int) or each is None for each in numbers) and isinstance(end["rank"], int):
                found.append(ProcessEnd(**end))
    return found

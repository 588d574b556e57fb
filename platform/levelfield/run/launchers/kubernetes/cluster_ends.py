"""How each node of a run on a cluster ended, from the pods' states and the records that the nodes left."""

from __future__ import annotations

from collections.abc import Mapping

from levelfield.contracts.execution import NodeEnd, NodeWord, ProcessEnd, Request
from levelfield.run.launchers.kubernetes.pod_states import PodState
from levelfield.run.launchers.node_records import LastRecord, by_engine, last_records


def node_ends(
    request: Request, states: Mapping[int, PodState], others: NodeWord
) -> tuple[tuple[NodeEnd, ...], tuple[ProcessEnd, ...]]:
    """Return the ends of the nodes and of their ranks. others: the word of a node that has none of its own."""
    records = [_by_us(record, states.get(record.node_rank)) for record in last_records(request)]
    nodes = tuple(_node_end(record, states.get(record.node_rank), others) for record in records)
    return nodes, tuple(end for record in records for end in record.ends)


def _by_us(record: LastRecord, state: PodState | None) -> LastRecord:
    """Return the record with its unknown ends as ours, where no failure of the pod itself explains them."""
    return record if state and state.has_failed and state.word != "cancelled" else by_engine(record)


def _node_end(record: LastRecord, state: PodState | None, others: NodeWord) -> NodeEnd:
    if state is None:
        return NodeEnd(record.node_rank, record.name, "unreachable", "no pod was created", record.missing)
    where = f"{state.says} (pod {state.pod}{f' on {state.machine}' if state.machine else ''})"
    pending: NodeWord = "unreachable" if others == "stopped" else others
    own = None if state.word == "cancelled" else state.word  # a deleted pod: its job says why
    word = own or (pending if state.phase == "pending" else others)
    return NodeEnd(record.node_rank, record.name, word, where, record.missing)

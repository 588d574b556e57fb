"""What each node's agent wrote about its end, in the files of a run directory."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from levelfield.contracts.execution import DISK_IS_FULL, Cause, NodeEnd, NodeWord, NodeWork, ProcessEnd, Request
from levelfield.node.regular_files import read_regular
from levelfield.run.launchers.launched_ranks import failure_evidence, first_failure, parse_rank_ends
from levelfield.run.launchers.liveness import file_state
from levelfield.rundir.event_lines import object_or_none
from levelfield.rundir.raw_files import clipped_text

NODES_PER_LOOK = 8
_RECORD_PATH = "nodes/node{}.record.jsonl"  # by the node's rank
FULL_DISK_BYTES = 2**20  # a disk with less free space is full
MAX_RESENT_SHARE = 0.01  # of TCP's segments; a sound network of a cluster is below a thousandth
MIN_RESENT_SEGMENTS = 20  # fewer give no remark
_STATUSES: dict[str, NodeWord] = {  # by cause; all others: failed
    "exited": "ended", "stopped": "stopped", "node-differs": "differs", "device-taken": "device-taken",
}  # fmt: skip


_NODE_CAUSES: dict[str, Cause] = {
    "node-differs": "node-differs",
    "device-taken": "device-taken",
    "port-taken": "launch-error",
    "name-unknown": "launch-error",
    "launch-error": "launch-error",
    "fault": "launch-error",
    "hang": "hang",
}


@dataclass(frozen=True)
class LastRecord:
    """The last record of a node."""

    node_rank: int
    name: str  # the host name that the node wrote, else the engine's name for it
    cause: str | None  # None where the record is missing
    evidence: str | None
    ends: tuple[ProcessEnd, ...]  # of all its ranks; an unknown end has no values
    missing: tuple[str, ...]  # what the run directory lacks of the node's evidence
    disk_suffix: str = ""  # for the end of a sentence, where the node's disk was full; `evidence` has it already

    @property
    def has_begun(self) -> bool:
        """Whether the node's agent did any work: it writes the node's facts just before it starts the ranks."""
        return self.cause is not None or "facts" not in self.missing

    @property
    def end(self) -> NodeEnd:
        """How the node ended, by its own record alone."""
        word = "lost" if self.cause is None else _STATUSES.get(self.cause, "failed")
        detail = self.evidence or ("it wrote no last record" if self.cause is None else None)
        return NodeEnd(self.node_rank, self.name, word, detail, self.missing)


def last_records(request: Request, names: Sequence[str] = ()) -> list[LastRecord]:
    """Return the last record of each node. names: the engine's names of the hosts, by node rank."""
    root, records = Path(request.events_dir).parent, []
    for node in request.nodes:
        node_rank = node.node_rank
        fields = read_last_fields(root, node_rank) or {}
        hostname = (object_or_none(_read_text(root / f"nodes/node{node_rank}.facts.json")) or {}).get("hostname")
        files = {"facts": f"nodes/node{node_rank}.facts.json", "telemetry": f"telemetry/node{node_rank}.raw.jsonl"}
        absent = [name for name, file in files.items() if not (root / file).is_file()]
        record = LastRecord(
            node_rank=node_rank,
            name=str(hostname or (names[node_rank] if node_rank < len(names) else node.name or f"node{node_rank}")),
            cause=str(fields["cause"]) if fields else None,
            evidence=f"{fields['evidence']}{full_disk_suffix(fields)}" if fields.get("evidence") else None,
            disk_suffix=full_disk_suffix(fields),
            ends=parse_rank_ends(node, fields.get("ends", ())),
            missing=(*([] if fields else ["last record"]), *absent),
        )
        records.append(record)
    return records


def recorded_failure(records: Sequence[LastRecord]) -> tuple[Cause, str] | None:
    """Return the cause that explains the nodes' records, and its evidence; None where no record has a failure."""
    for word, cause in _NODE_CAUSES.items():
        for record in records:
            if record.cause == word:
                return cause, f"{record.name}: {record.evidence or word}"
    failed = next((record for record in records if record.cause == "rank-failed"), None)
    if failed is None:
        return None
    end = first_failure(failed.ends)
    return "rank-failed", f"{failed.name}: {failure_evidence(end) + failed.disk_suffix if end else failed.evidence}"


class UnfinishedNodes:
    """The nodes without a last record. A record file that did not change is not read again.

    A look opens few files of nodes that go on, in turn: a file server answers for each.
    """

    def __init__(self, request: Request) -> None:
        self._root, self._nodes = Path(request.events_dir).parent, deque(request.nodes)
        self._states: dict[int, tuple[int, int]] = {}

    def read(self) -> list[NodeWork]:
        """Read records that have changed, and return the nodes that still have no last one."""
        unfinished = deque(self._nodes)  # in its place at the end: an interrupt on the way loses no node
        turn = NODES_PER_LOOK
        for node in self._nodes:
            unfinished.popleft()
            if not self._has_ended(node):
                unfinished.append(node)
                turn -= 1
            if not turn:
                break
        self._nodes = unfinished
        return list(unfinished)

    def _has_ended(self, node: NodeWork) -> bool:
        state = file_state(self._root / _RECORD_PATH.format(node.node_rank))
        if self._states.get(node.node_rank) == state:
            return False
        has_ended = read_last_fields(self._root, node.node_rank) is not None
        self._states[node.node_rank] = state
        return has_ended


def mark_ended_by_engine(record: LastRecord, *signals: int) -> LastRecord:
    """Return the record of a node that the engine ended: so did the ranks with an unknown end, or one by these signals.

    An engine signals every process of a node, so that a rank may end before the node's agent does.
    """
    ends = tuple(
        replace(end, stopped_by_us=True) if end.exit_code is None and end.signal in (None, *signals) else end
        for end in record.ends
    )
    marked = replace(record, ends=ends)
    if record.cause != "rank-failed" or first_failure(ends):
        return marked
    return replace(marked, cause="stopped", evidence="the engine ended its ranks")


def node_remarks(root: Path, node_count: int, has_accelerators: bool) -> list[str]:
    """Return the warnings of the result about its nodes, which follow from what the nodes wrote."""
    facts = {
        f"node{node}": object_or_none(_read_text(root / f"nodes/node{node}.facts.json")) or {}
        for node in range(node_count)
    }
    machines: dict[str, list[str]] = {}
    for name, fields in facts.items():
        if boot_id := fields.get("boot_id"):  # it identifies one start of one kernel
            machines.setdefault(str(boot_id), []).append(name)
    remarks = [
        f"{', '.join(names)} are one machine: they have the same boot id, so no figure is one of {node_count} machines"
        for names in machines.values()
        if len(names) > 1
    ]
    for name, fields in facts.items():
        binding, memory = fields.get("binding"), fields.get("locked_memory_bytes")
        if isinstance(binding, dict) and (reason := binding.get("reason")):
            remarks.append(
                f"{name}: its ranks are not bound to the NUMA domains of their devices: {clipped_text(reason)}"
            )
        if has_accelerators and node_count > 1 and isinstance(memory, int):
            remarks.append(
                f"{name}: a rank may lock {memory >> 10} KiB of memory, which RDMA's libraries need without a limit; "
                "set memlock in the node's limits.conf, or LimitMEMLOCK=infinity of its slurmd"
            )
    for node, name in enumerate(facts):
        network = (read_last_fields(root, node) or {}).get("network")
        growth = {k: v for k, v in network.items() if isinstance(v, int) and v > 0} if isinstance(network, dict) else {}
        links = sorted(key for key in growth if key.startswith("link "))
        remarks += [f"{name}: its {clipped_text(link)} was lost {growth[link]} times during the run" for link in links]
        resent, sent = growth.get("resent", 0), growth.get("sent", 0)
        if resent >= MIN_RESENT_SEGMENTS and not resent <= MAX_RESENT_SHARE * sent:
            remarks.append(
                f"{name}: {resent} of {sent} TCP segments were sent again (limit: {MAX_RESENT_SHARE:.0%}): the network "
                "loses packets"
            )
    return remarks


def read_last_fields(root: Path, node_rank: int) -> dict[str, Any] | None:
    """Return the fields of the last line `ended` in a node's record; None where there is none, or it is damaged.

    root: the run directory. The record is of another machine, so its content is not trusted.
    """
    for line in reversed(_read_text(root / _RECORD_PATH.format(node_rank)).splitlines()):
        event = object_or_none(line) or {}
        if event.get("event") == "ended" and "cause" in event:
            return event
    return None


def full_disk_suffix(fields: Mapping[str, Any]) -> str:
    """Return the end of a sentence, with its semicolon, where the node's disk was full at its end."""
    free = fields.get("disk_free_bytes")
    return f"; {DISK_IS_FULL} ({free} bytes free)" if isinstance(free, int) and free < FULL_DISK_BYTES else ""


def _read_text(path: Path) -> str:
    """Return a file's text, or an empty one. Opening it makes the client of a file server ask for the newest state."""
    try:
        return read_regular(path, "node").decode(errors="replace")
    except OSError:
        return ""

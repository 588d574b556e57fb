"""What each node's own part wrote about its end, in the files of a run directory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from levelfield.contracts.execution import DISK_IS_FULL, NodeEnd, NodeWord, NodeWork, ProcessEnd, Request
from levelfield.node.regular_files import read_regular
from levelfield.run.launchers.launched_ranks import first_failure, rank_ends
from levelfield.run.launchers.liveness import file_state
from levelfield.rundir.event_lines import event_or_none
from levelfield.rundir.raw_files import clipped_text

_RECORD = "nodes/node{}.record.jsonl"  # by the node's rank
FULL_DISK_BYTES = 2**20  # a disk with less free space is full
MAX_RESENT_SHARE = 0.01  # of TCP's segments; a sound network of a cluster is below a thousandth
MIN_RESENT = 20  # segments; fewer give no remark
_STATUSES: dict[str, NodeWord] = {  # by cause; all others: failed
    "exited": "ended", "stopped": "stopped", "node-differs": "differs", "device-taken": "device-taken",
}  # fmt: skip


@dataclass(frozen=True)
class LastRecord:
    """The last record of a node."""

    node_rank: int
    name: str  # the host's own, where the node wrote it
    cause: str | None  # None where the record is missing
    evidence: str | None
    ends: tuple[ProcessEnd, ...]  # of all its ranks; an unknown end has no values
    missing: tuple[str, ...]  # names of the node's evidence that is not there
    disk: str = ""  # a remark where the node's disk was full

    @property
    def end(self) -> NodeEnd:
        """The end of the node's part, by its own record alone."""
        word = "lost" if self.cause is None else _STATUSES.get(self.cause, "failed")
        detail = self.evidence or ("it wrote no last record" if self.cause is None else None)
        return NodeEnd(self.node_rank, self.name, word, detail, self.missing)


def last_records(request: Request, names: Sequence[str] = ()) -> list[LastRecord]:
    """Return the last record of each node. names: of the hosts by node rank, as the engine knows them."""
    root, records = Path(request.events_dir).parent, []
    for node in request.nodes:
        rank = node.node_rank
        last = last_fields(root, rank) or {}
        hostname = (event_or_none(_text(root / f"nodes/node{rank}.facts.json")) or {}).get("hostname")
        files = {"facts": f"nodes/node{rank}.facts.json", "telemetry": f"telemetry/node{rank}.raw.jsonl"}
        absent = [name for name, file in files.items() if not (root / file).is_file()]
        record = LastRecord(
            node_rank=rank,
            name=str(hostname or (names[rank] if rank < len(names) else node.name or f"node{rank}")),
            cause=str(last["cause"]) if last else None,
            evidence=f"{last['evidence']}{disk_remark(last)}" if last.get("evidence") else None,
            disk=disk_remark(last),
            ends=rank_ends(node, last.get("ends", ())),
            missing=(*([] if last else ["last record"]), *absent),
        )
        records.append(record)
    return records


class OpenNodes:
    """The nodes without a last record. A record file that did not change is not read again."""

    def __init__(self, request: Request) -> None:
        self._root, self._nodes = Path(request.events_dir).parent, list(request.nodes)
        self._states: dict[int, tuple[int, int]] = {}

    def read(self) -> list[NodeWork]:
        """Read the records that have changed, and return the nodes that still have no last one."""
        for node in list(self._nodes):
            state = file_state(self._root / _RECORD.format(node.node_rank))
            if self._states.get(node.node_rank) != state:
                self._states[node.node_rank] = state
                if last_fields(self._root, node.node_rank) is not None:
                    self._nodes.remove(node)
        return self._nodes


def by_engine(record: LastRecord, *signals: int) -> LastRecord:
    """Return the record of a node that the engine ended. It ended the ranks without a known end, or with these signals.

    An engine signals every process of a node, so that a rank may end before the node's own part does.
    """
    ends = tuple(
        replace(end, stopped_by_us=True) if end.exit_code is None and end.signal in (None, *signals) else end
        for end in record.ends
    )
    ended = replace(record, ends=ends)
    if record.cause != "rank-failed" or first_failure(ends):
        return ended
    return replace(ended, cause="stopped", evidence="the engine ended its ranks")


def node_remarks(root: Path, nodes: int, has_accelerators: bool) -> list[str]:
    """Return the warnings of the result about its nodes, which follow from what the nodes wrote."""
    facts = {f"node{node}": event_or_none(_text(root / f"nodes/node{node}.facts.json")) or {} for node in range(nodes)}
    machines: dict[str, list[str]] = {}
    for name, fields in facts.items():
        if boot := fields.get("boot_id"):  # it identifies one start of one kernel
            machines.setdefault(str(boot), []).append(name)
    remarks = [
        f"{', '.join(names)} are one machine: they have the same boot id, so no figure is one of {nodes} machines"
        for names in machines.values()
        if len(names) > 1
    ]
    for name, fields in facts.items():
        binding, memory = fields.get("binding"), fields.get("locked_memory_bytes")
        if isinstance(binding, dict) and (reason := binding.get("reason")):
            remarks.append(
                f"{name}: its ranks are not bound to the NUMA domains of their devices: {clipped_text(reason)}"
            )
        if has_accelerators and nodes > 1 and isinstance(memory, int):
            remarks.append(
                f"{name}: a rank may lock {memory >> 10} KiB of memory, which RDMA's libraries need without a limit; "
                "set memlock in the node's limits.conf, or LimitMEMLOCK=infinity of its slurmd"
            )
    for node, name in enumerate(facts):
        network = (last_fields(root, node) or {}).get("network")
        grown = {k: v for k, v in network.items() if isinstance(v, int) and v > 0} if isinstance(network, dict) else {}
        links = sorted(key for key in grown if key.startswith("link "))
        remarks += [f"{name}: its {clipped_text(link)} was lost {grown[link]} times during the run" for link in links]
        resent, sent = grown.get("resent", 0), grown.get("sent", 0)
        if resent >= MIN_RESENT and not resent <= MAX_RESENT_SHARE * sent:
            remarks.append(
                f"{name}: {resent} of {sent} TCP segments were sent again (limit: {MAX_RESENT_SHARE:.0%}): the network "
                "loses packets"
            )
    return remarks


def last_fields(root: Path, node_rank: int) -> dict[str, Any] | None:
    """Return all that the last line `ended` of a node's record says; None where there is none, or it is damaged.

    root: the run directory. The record is of another machine, so its content is not trusted.
    """
    for line in reversed(_text(root / _RECORD.format(node_rank)).splitlines()):
        event = event_or_none(line) or {}
        if event.get("event") == "ended" and "cause" in event:
            return event
    return None


def disk_remark(last: Mapping[str, Any]) -> str:
    """Return a remark where the node's disk was full at its end."""
    free = last.get("disk_free_bytes")
    return f"; {DISK_IS_FULL} ({free} bytes free)" if isinstance(free, int) and free < FULL_DISK_BYTES else ""


def _text(path: Path) -> str:
    """Return a file's text, or an empty one. It is opened each time: a client of a file server then asks for news."""
    try:
        return read_regular(path, "node").decode(errors="replace")
    except OSError:
        return ""

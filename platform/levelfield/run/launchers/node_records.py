"""What each node's own part wrote about its end, in the files of a run directory."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from levelfield.contracts.execution import NodeEnd, NodeWord, NodeWork, ProcessEnd, Request
from levelfield.node.regular_files import open_regular, read_regular
from levelfield.run.launchers.launched_ranks import ends_of

MOST_BYTES = 4 * 2**20  # of a record; the longest real one is some kilobytes
_WORDS: dict[str, NodeWord] = {
    "exited": "ended", "stopped": "stopped", "node-differs": "differs", "device-taken": "device-taken",
}  # fmt: skip


@dataclass(frozen=True)
class LastRecord:
    """The last record of a node. cause: None where it is missing. name: the host's own, where the node wrote it.

    missing: which evidence of the node is not there. ends: of all its ranks; what is unknown has no values.
    """

    node_rank: int
    name: str
    cause: str | None
    evidence: str | None
    ends: tuple[ProcessEnd, ...]
    missing: tuple[str, ...]

    @property
    def end(self) -> NodeEnd:
        """The end of the node's part, by its own record alone."""
        word = "lost" if self.cause is None else _WORDS.get(self.cause, "failed")
        detail = self.evidence or ("it wrote no last record" if self.cause is None else None)
        return NodeEnd(self.node_rank, self.name, word, detail, self.missing)


def last_records(request: Request, names: Sequence[str] = ()) -> list[LastRecord]:
    """Return the last record of each node. names: of the hosts by node rank, as the engine knows them."""
    root = Path(request.events_dir).parent
    return [_last_record(root, node, names) for node in request.nodes]


class OpenNodes:
    """The nodes that have not written their last record. A record that did not grow is not read again."""

    def __init__(self, request: Request) -> None:
        self._root, self._nodes = Path(request.events_dir).parent, list(request.nodes)
        self._sizes: dict[int, int] = {}

    def left(self) -> list[NodeWork]:
        """Return the nodes that are still open."""
        self._nodes = [node for node in self._nodes if not self._has_ended(node)]
        return self._nodes

    def _has_ended(self, node: NodeWork) -> bool:
        file = _record_file(self._root, node.node_rank)
        size = _size(file)
        if size == self._sizes.get(node.node_rank, 0):
            return False
        self._sizes[node.node_rank] = size
        return _ended(file) is not None


def by_engine(record: LastRecord, *signals: int) -> LastRecord:
    """Return the record of a node that the engine ended: an unknown end of a rank, or one by these, is its doing.

    An engine sends its signals to every process of a node, so that a rank may end before the node's own part does.
    """
    own = [e.rank for e in record.ends if e.exit_code is None and e.signal in (None, *signals)]
    ends = (replace(e, stopped_by_us=True) if e.rank in own else e for e in record.ends)
    ended = replace(record, ends=tuple(ends))
    if record.cause != "rank-failed" or any((e.exit_code or e.signal) and not e.stopped_by_us for e in ended.ends):
        return ended
    return replace(ended, cause="stopped", evidence="the engine ended its ranks")


def _last_record(root: Path, node: NodeWork, names: Sequence[str]) -> LastRecord:
    rank = node.node_rank
    last = last_fields(root, rank)
    known = names[rank] if rank < len(names) else node.name or f"node{rank}"
    return LastRecord(
        node_rank=rank,
        name=_hostname(root / "nodes" / f"node{rank}.facts.json") or known,
        cause=str(last["cause"]) if last else None,
        evidence=str(last["evidence"]) if last and last.get("evidence") else None,
        ends=_ends(node, last.get("ends") if last else None),
        missing=_missing(root, rank, last is None),
    )


def _size(path: Path) -> int:
    """Return a file's size. It is opened: a client of a file server then asks for the newest one."""
    try:
        with open_regular(path) as file:
            return file.seek(0, os.SEEK_END)
    except OSError:
        return 0


def _record_file(root: Path, node_rank: int) -> Path:
    return root / "nodes" / f"node{node_rank}.record.jsonl"


def last_fields(root: Path, node_rank: int) -> dict[str, Any] | None:
    """Return all that the last record of a node says; None where there is none. root: of the run."""
    return _ended(_record_file(root, node_rank))


def _ended(path: Path) -> dict[str, Any] | None:
    """Return the last line `ended` of a record; None where there is none, or where it is damaged."""
    for line in reversed(_text(path).splitlines()):
        with suppress(ValueError):
            found = json.loads(line)
            if isinstance(found, dict) and found.get("event") == "ended" and "cause" in found:
                return found
    return None


def _hostname(path: Path) -> str | None:
    with suppress(ValueError):
        found = json.loads(_text(path))
        return str(found["hostname"]) if isinstance(found, dict) and found.get("hostname") else None
    return None


def _ends(node: NodeWork, listed: Any) -> tuple[ProcessEnd, ...]:
    """Return how each rank of the node ended. A rank that did not start, or whose end is unknown, has no values."""
    known: dict[int, ProcessEnd] = {}
    with suppress(TypeError):
        known = {end.rank: end for end in ends_of(listed or [])}
    return tuple(known.get(p.rank, ProcessEnd(p.rank, None, None, False)) for p in node.processes)


def _missing(root: Path, rank: int, no_record: bool) -> tuple[str, ...]:
    files = {"facts": f"nodes/node{rank}.facts.json", "telemetry": f"telemetry/node{rank}.raw.jsonl"}
    absent = [name for name, file in files.items() if not (root / file).is_file()]
    return tuple(["last record"] * no_record + absent)


def _text(path: Path) -> str:
    """Return a file's text, or an empty one. It is opened each time: a client of a file server then asks for news."""
    try:
        return read_regular(path, MOST_BYTES).decode(errors="replace")
    except OSError:
        return ""

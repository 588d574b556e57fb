"""The work of one node, from the JSON object that the platform sends or writes."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Mapping, Sequence

SCHEMA = "levelfield.node/1"
PORT, FIRST_NODE = "{port}", "{first_node}"
_LIMITS = ("start_seconds", "step_seconds", "heartbeat_seconds")
_OWN = ("LEVELFIELD_NODE_RANK",)


class AssignmentError(Exception):
    """The work cannot be read. The message names the key, what was found and what was expected."""


@dataclass(frozen=True)
class Assignment:
    """What one node does. `content` is the whole object; the fields are what every part needs.

    files: texts that the node writes below its root before the start, by name.
    """

    run_id: str
    node_rank: int
    nodes: int
    name: str
    root: Path
    events: Path
    processes: Sequence[Mapping[str, Any]]
    heartbeat_seconds: float
    content: Mapping[str, Any]

    def ranks(self) -> list[int]:
        return [process["rank"] for process in self.processes]

    def part(self, name: str) -> Mapping[str, Any]:
        """Return an optional part of the work, such as `locks`; empty where it is absent."""
        return self.content.get(name) or {}

    def environment(self, process: Mapping[str, Any], inherited: Mapping[str, str]) -> dict[str, str]:
        """Return all variables of a rank. inherited: those of this process."""
        removed = {*self.content.get("removed", ()), *_OWN}
        known = {**inherited, **self.part("secrets")}
        secrets = {name: known[name] for name in self.content.get("inherit", ()) if name in known}
        base = {name: value for name, value in inherited.items() if name not in removed}
        own = {name: self._filled(value) for name, value in process["environment"].items() if name not in secrets}
        return {**base, **own, **secrets}

    def _filled(self, value: str) -> str:
        port, first = self.content.get("port"), self.content.get("first_node")
        value = value if port is None else value.replace(PORT, str(port))
        return value if first is None else value.replace(FIRST_NODE, str(first))


def assignment_of(text: str, node_rank: int | None = None, first_node: str | None = None) -> Assignment:
    """Return the work in a text. The arguments replace what the engine knows better. Raises AssignmentError."""
    content = _object(text)
    if content.get("schema") != SCHEMA:
        raise AssignmentError(f"key 'schema': found {content.get('schema')!r}, expected '{SCHEMA}'")
    content.update({} if node_rank is None else {"node_rank": node_rank})
    content.update({} if first_node is None else {"first_node": first_node})
    limits = _of(content, "limits", dict)
    for name in _LIMITS:
        _of(limits, name, (int, float))
    processes = _of(content, "processes", list)
    for process in processes:
        if not isinstance(process, dict):
            raise AssignmentError(f"key 'processes': found {type(process).__name__}, expected objects")
        for key, kind in (("rank", int), ("argv", list), ("environment", dict), ("log", str)):
            _of(process, key, kind)
    found = Assignment(
        run_id=_of(content, "run_id", str),
        node_rank=_of(content, "node_rank", int),
        nodes=_of(content, "nodes", int),
        name=_of(content, "name", str),
        root=Path(_of(content, "root", str)),
        events=Path(_of(content, "events_dir", str)),
        processes=processes,
        heartbeat_seconds=limits["heartbeat_seconds"],
        content=content,
    )
    _refuse_unfilled(found)
    _refuse_names(found.part("files"))
    return found


def _object(text: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except ValueError as error:
        raise AssignmentError(f"the node's work is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise AssignmentError(f"the node's work: found {type(content).__name__}, expected a JSON object")
    return content


def _of(content: Mapping[str, Any], key: str, kind: Any) -> Any:
    found = content.get(key)
    if not isinstance(found, kind) or isinstance(found, bool):
        expected = kind.__name__ if isinstance(kind, type) else "a number"
        raise AssignmentError(f"key '{key}': found {type(found).__name__}, expected {expected}")
    return found


def _refuse_unfilled(assignment: Assignment) -> None:
    """Raises AssignmentError for a port or an address that has no value: a rank would wait for it."""
    for process in assignment.processes:
        for name, value in assignment.environment(process, {}).items():
            if PORT in value or FIRST_NODE in value:
                raise AssignmentError(f"variable {name} of rank {process['rank']}: no value is given for '{value}'")


def _refuse_names(files: Mapping[str, str]) -> None:
    for name in files:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not isinstance(files[name], str):
            raise AssignmentError(f"key 'files': found '{name}', expected a name below the run's folder")


def node_rank_here() -> int | None:
    """Return this node's rank as the engine's variables say it; None without one."""
    for name in ("SLURM_NODEID", "JOB_COMPLETION_INDEX", *_OWN):
        if os.environ.get(name, "").isdecimal():
            return int(os.environ[name])
    return None

"""The work of one node, from the JSON object that the platform sends or writes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Mapping, Sequence

SCHEMA = "levelfield.node/1"
PORT, FIRST_NODE = "{port}", "{first_node}"
_LIMITS = ("start_seconds", "step_seconds", "heartbeat_seconds")
NODE_RANK = "LEVELFIELD_NODE_RANK"


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
    ranks: Sequence[int]
    heartbeat_seconds: float
    content: Mapping[str, Any]

    def part(self, name: str) -> Mapping[str, Any]:
        """Return an optional part of the work, such as `locks`; empty where it is absent."""
        return self.content.get(name) or {}

    def environment(self, process: Mapping[str, Any], inherited: Mapping[str, str]) -> dict[str, str]:
        """Return all variables of a rank. inherited: those of this process."""
        removed = {*self.content.get("removed", ()), NODE_RANK}
        variables = {**inherited, **self.part("secrets")}
        secrets = {name: variables[name] for name in self.content.get("inherit", ()) if name in variables}
        base = {name: value for name, value in inherited.items() if name not in removed}
        declared = {name: value for name, value in process["environment"].items() if name not in secrets}
        for place, key in ((PORT, "port"), (FIRST_NODE, "first_node")):
            if (content := self.content.get(key)) is not None:
                declared = {name: value.replace(place, str(content)) for name, value in declared.items()}
        return {**base, **declared, **secrets}


def assignment_of(text: str, node_rank: int | None = None, first_node: str | None = None) -> Assignment:
    """Return the work in a text. The arguments replace what the engine knows better. Raises AssignmentError."""
    content = _object(text)
    if content.get("schema") != SCHEMA:
        raise AssignmentError(f"key 'schema': found {content.get('schema')!r}, expected '{SCHEMA}'")
    content.update({} if node_rank is None else {"node_rank": node_rank})
    content.update({} if first_node is None else {"first_node": first_node})
    limits = _value(content, "limits", dict)
    for name in _LIMITS:
        _value(limits, name, (int, float))
    processes = _value(content, "processes", list)
    for process in processes:
        if not isinstance(process, dict):
            raise AssignmentError(f"key 'processes': found {type(process).__name__}, expected objects")
        for key, kind in (("rank", int), ("argv", list), ("environment", dict), ("log", str)):
            _value(process, key, kind)
    assignment = Assignment(
        run_id=_value(content, "run_id", str),
        node_rank=_value(content, "node_rank", int),
        nodes=_value(content, "nodes", int),
        name=_value(content, "name", str),
        root=Path(_value(content, "root", str)),
        events=Path(_value(content, "events_dir", str)),
        processes=processes,
        ranks=[process["rank"] for process in processes],
        heartbeat_seconds=limits["heartbeat_seconds"],
        content=content,
    )
    for process in processes:  # a rank would wait for a port or an address that has no value
        for name, value in assignment.environment(process, {}).items():
            if PORT in value or FIRST_NODE in value:
                raise AssignmentError(f"variable {name} of rank {process['rank']}: no value is given for '{value}'")
    for name, file_text in assignment.part("files").items():
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not isinstance(file_text, str):
            raise AssignmentError(f"key 'files': found '{name}', expected a name below the run's folder")
    return assignment


def _object(text: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except ValueError as error:
        raise AssignmentError(f"the node's work is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise AssignmentError(f"the node's work: found {type(content).__name__}, expected a JSON object")
    return content


def _value(content: Mapping[str, Any], key: str, kind: Any) -> Any:
    value = content.get(key)
    if not isinstance(value, kind) or isinstance(value, bool):
        expected = kind.__name__ if isinstance(kind, type) else "a number"
        raise AssignmentError(f"key '{key}': found {type(value).__name__}, expected {expected}")
    return value

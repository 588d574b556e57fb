"""The work of one node, from the JSON object that the platform sends or writes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Callable, Mapping, Sequence

from levelfield.node.common_work import COMMON_KEY, join_work

SCHEMA = "levelfield.node/1"
PORT_PLACEHOLDER, FIRST_NODE_PLACEHOLDER = "{port}", "{first_node}"
_LIMITS = ("start_seconds", "step_seconds", "heartbeat_seconds")
NODE_RANK_VARIABLE = "LEVELFIELD_NODE_RANK"


class AssignmentError(Exception):
    """The work cannot be read. The message names the key, what was found and what was expected."""


@dataclass(frozen=True)
class Assignment:
    """The work of one node: the fields that most of its code needs, and the whole object."""

    run_id: str
    node_rank: int
    nodes: int  # of the run
    name: str  # of this node
    root: Path  # the run directory as this node sees it
    events: Path  # the folder of the events
    processes: Sequence[Mapping[str, Any]]  # the ranks to start, each with `rank`, `argv`, `environment` and `log`
    ranks: Sequence[int]  # the numbers of these ranks
    heartbeat_seconds: float  # the limit without a rank's heartbeat
    content: Mapping[str, Any]  # the whole object

    def part(self, name: str) -> Mapping[str, Any]:
        """Return an optional part of the work, such as `locks`; empty where it is absent."""
        return self.content.get(name) or {}

    def rank_environment(self, process: Mapping[str, Any], inherited: Mapping[str, str]) -> dict[str, str]:
        """Return all variables of a rank. process: the rank's entry. inherited: the variables of this process."""
        removed = {*self.content.get("removed", ()), NODE_RANK_VARIABLE}
        variables = {**inherited, **self.part("secrets")}
        secrets = {name: variables[name] for name in self.content.get("inherit", ()) if name in variables}
        base = {name: value for name, value in inherited.items() if name not in removed}
        declared = {name: value for name, value in process["environment"].items() if name not in secrets}
        for placeholder, key in ((PORT_PLACEHOLDER, "port"), (FIRST_NODE_PLACEHOLDER, "first_node")):
            if (replacement := self.content.get(key)) is not None:
                declared = {name: value.replace(placeholder, str(replacement)) for name, value in declared.items()}
        return {**base, **declared, **secrets}


def parse_assignment(
    text: str,
    read_common: Callable[[str], str],
    node_rank: int | None = None,
    first_node: str | None = None,
) -> Assignment:
    """Return the work that a text describes. Raises AssignmentError, and OSError.

    read_common: returns what all nodes have in common, by the name that the text gives it. node_rank, first_node:
    replace the values of the text where the engine assigns them.
    """
    content = _whole_work(text, read_common)
    if content.get("schema") != SCHEMA:
        raise AssignmentError(f"key 'schema': found {content.get('schema')!r}, expected '{SCHEMA}'")
    content.update({} if node_rank is None else {"node_rank": node_rank})
    content.update({} if first_node is None else {"first_node": first_node})
    limits = _typed_value(content, "limits", dict)
    for name in _LIMITS:
        _typed_value(limits, name, (int, float))
    processes = _typed_value(content, "processes", list)
    for process in processes:
        if not isinstance(process, dict):
            raise AssignmentError(f"key 'processes': found {type(process).__name__}, expected objects")
        for key, expected_type in (("rank", int), ("argv", list), ("environment", dict), ("log", str)):
            _typed_value(process, key, expected_type)
    assignment = Assignment(
        run_id=_typed_value(content, "run_id", str),
        node_rank=_typed_value(content, "node_rank", int),
        nodes=_typed_value(content, "nodes", int),
        name=_typed_value(content, "name", str),
        root=Path(_typed_value(content, "root", str)),
        events=Path(_typed_value(content, "events_dir", str)),
        processes=processes,
        ranks=[process["rank"] for process in processes],
        heartbeat_seconds=limits["heartbeat_seconds"],
        content=content,
    )
    for process in processes:  # a rank would wait for a port or an address that has no value
        for name, value in assignment.rank_environment(process, {}).items():
            if PORT_PLACEHOLDER in value or FIRST_NODE_PLACEHOLDER in value:
                raise AssignmentError(f"variable {name} of rank {process['rank']}: no value is given for '{value}'")
    for name, file_text in assignment.part("files").items():
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not isinstance(file_text, str):
            raise AssignmentError(f"key 'files': found '{name}', expected a name below the run's folder")
    return assignment


def _whole_work(text: str, read_common: Callable[[str], str]) -> dict[str, Any]:
    """Return the work of a text, with what all nodes have in common where the text names it."""
    content = _json_object(text)
    if COMMON_KEY not in content:
        return content
    name = str(content.pop(COMMON_KEY))
    common = _json_object(read_common(name))
    try:
        return join_work(common, content)
    except (KeyError, TypeError, AttributeError) as error:
        raise AssignmentError(f"{name}: its part of the node's work does not fit the rest: {error!r}") from None


def _json_object(text: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except ValueError as error:
        raise AssignmentError(f"the node's work is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise AssignmentError(f"the node's work: found {type(content).__name__}, expected a JSON object")
    return content


def _typed_value(content: Mapping[str, Any], key: str, expected_type: Any) -> Any:
    value = content.get(key)
    if not isinstance(value, expected_type) or isinstance(value, bool):
        expected = expected_type.__name__ if isinstance(expected_type, type) else "a number"
        raise AssignmentError(f"key '{key}': found {type(value).__name__}, expected {expected}")
    return value

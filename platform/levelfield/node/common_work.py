"""What the works of all nodes have in common, once: eight thousand ranks differ in their numbers alone."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Sequence

COMMON_FILE = "common.json"  # beside the files of the nodes
COMMON_KEY = "common"  # in a node's own work: the name of that file
Fields = Dict[str, Any]


def divide_works(works: Sequence[Fields]) -> tuple[Fields, list[Fields]]:
    """Return what all nodes have in common, and the rest of each: `join_work` gives the same work again.

    works: of several nodes, each with its `processes`, which have an `environment`.
    """
    processes = [process for work in works for process in work["processes"]]
    environment = _common_items([process["environment"] for process in processes])
    common_process = {**_common_items(processes), "environment": environment}
    common_items = _common_items([{**work, "processes": None} for work in works])
    rests = []
    for work in works:
        rest = _without(work, common_items)
        rest["processes"] = [
            {**_without(process, common_process), "environment": _without(process["environment"], environment)}
            for process in work["processes"]
        ]
        rests.append(rest)
    return {**common_items, "processes": common_process}, rests


def join_work(common: Mapping[str, Any], rest: Mapping[str, Any]) -> Fields:
    """Return the work of a node. Raises KeyError, TypeError or AttributeError for anything but parts of works."""
    common_process = common["processes"]
    processes = [
        {**common_process, **process, "environment": {**common_process["environment"], **process["environment"]}}
        for process in rest["processes"]
    ]
    return {**common, **rest, "processes": processes}


def _common_items(values: Sequence[Mapping[str, Any]]) -> Fields:
    first, others = values[0], values[1:]
    return {key: value for key, value in first.items() if all(key in o and o[key] == value for o in others)}


def _without(fields: Mapping[str, Any], common: Mapping[str, Any]) -> Fields:
    return {key: value for key, value in fields.items() if key not in common}

"""What the works of all nodes have in common, once: eight thousand ranks differ in their numbers alone."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Sequence

COMMON_FILE = "common.json"  # beside the files of the nodes
# in a node's own work: the name of that file, or NEXT_LINE where the common part is the next line of standard input
COMMON_KEY, NEXT_LINE = "common", "-"
NUMBERED_KEY = "numbered"  # in the common part: the texts with placeholders
# of texts, or of their part after the last slash. No others: a name or an address of a machine is never taken apart,
# as a bundle could not replace it then.
_FORMS = ("{rank}", "{local_rank}", "{node_rank}", "rank{rank}.log", "node{node_rank}")
Fields = Dict[str, Any]
Numbers = Dict[str, int]  # by the name of a placeholder, such as {"node_rank": 1}


def divide_works(works: Sequence[Fields]) -> tuple[Fields, list[Fields]]:
    """Return what all nodes have in common, and the rest of each: `join_work` gives the same work again.

    Texts that differ in the numbers of nodes and ranks alone are `numbered` in the common part, such as
    `logs/rank{rank}.log`. Ranks that follow each other from node to node are in no rest.

    works: of several nodes, each with its `node_rank` and its `processes`, which have a `rank` and an `environment`.
    """
    processes = [process for work in works for process in work["processes"]]
    environments = [process["environment"] for process in processes]
    work_numbers = [{"node_rank": work["node_rank"]} for work in works]
    rank_numbers = [numbers for work in works for numbers in _rank_numbers(work["node_rank"], work["processes"])]
    count = len(works[0]["processes"])
    is_regular = rank_numbers == [
        numbers for work in works for numbers in _rank_numbers(work["node_rank"], [{}] * count)
    ]
    common_environment, numbered_environment = _common_items(environments, rank_numbers)
    common_process, numbered_process = _common_items(processes, rank_numbers)
    common_work, numbered_work = _common_items([{**work, "processes": None} for work in works], work_numbers)
    environment_keys = {*common_environment, *numbered_environment}
    process_keys = {*common_process, *numbered_process, "environment", *(["rank"] if is_regular else [])}
    rests = []
    for work in works:
        process_rests = []
        for process in work["processes"]:
            rest = _without(process, process_keys)
            if environment := _without(process["environment"], environment_keys):
                rest["environment"] = environment
            process_rests.append(rest)
        rest = _without(work, {*common_work, *numbered_work, "processes"})
        rests.append(rest if is_regular and not any(process_rests) else {**rest, "processes": process_rests})
    numbered = {"work": numbered_work, "processes": numbered_process, "environment": numbered_environment}
    common_process["environment"] = common_environment
    return {**common_work, "processes": common_process, "process_count": count, NUMBERED_KEY: numbered}, rests


def join_work(common: Mapping[str, Any], rest: Mapping[str, Any]) -> Fields:
    """Return the work of a node. Raises KeyError, TypeError or AttributeError for anything but parts of works."""
    work = {**common, **rest}
    numbered, count, common_process = work.pop(NUMBERED_KEY), work.pop("process_count"), common["processes"]
    rests = rest.get("processes", [{}] * count)
    processes = [{**common_process, **process} for process in rests]
    for process, process_rest, numbers in zip(processes, rests, _rank_numbers(work["node_rank"], processes)):
        process.update(_filled(numbered["processes"], numbers), rank=numbers["rank"])
        process["environment"] = {
            **common_process["environment"],
            **_filled(numbered["environment"], numbers),
            **process_rest.get("environment", {}),
        }
    return {**work, **_filled(numbered["work"], {"node_rank": work["node_rank"]}), "processes": processes}


def _rank_numbers(node_rank: int, processes: Sequence[Mapping[str, Any]]) -> list[Numbers]:
    """Return the numbers of each rank of a node. Without a rank of its own it has the one by its place."""
    first_rank = node_rank * len(processes)
    return [
        {"rank": process.get("rank", first_rank + index), "node_rank": node_rank, "local_rank": index}
        for index, process in enumerate(processes)
    ]


def _common_items(values: Sequence[Mapping[str, Any]], numbers: Sequence[Numbers]) -> tuple[Fields, dict[str, str]]:
    """Return the items that all have, and the texts that all have but for a number, with placeholders."""
    common: Fields = {}
    numbered: dict[str, str] = {}
    for key, first in values[0].items() if values else ():
        items = [value[key] for value in values if key in value]
        if len(items) < len(values):
            continue
        if all(item == first for item in items):
            common[key] = first
        elif all(isinstance(item, str) for item in items) and (template := _template(items, numbers)):
            numbered[key] = template
    return common, numbered


def _template(texts: Sequence[str], numbers: Sequence[Numbers]) -> str | None:
    """Return the text with a placeholder that gives each text by its numbers; None where there is none."""
    folder, separator, _ = texts[0].rpartition("/")
    templates = (f"{folder}{separator}{form}" for form in _FORMS)
    return next((t for t in templates if all(_fill(t, n) == text for text, n in zip(texts, numbers))), None)


def _filled(templates: Mapping[str, str], numbers: Numbers) -> Fields:
    return {key: _fill(template, numbers) for key, template in templates.items()}


def _fill(template: str, numbers: Numbers) -> str:
    for name, number in numbers.items():
        template = template.replace(f"{{{name}}}", str(number))
    return template


def _without(fields: Mapping[str, Any], keys: set[str]) -> Fields:
    return {key: value for key, value in fields.items() if key not in keys}

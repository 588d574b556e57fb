"""What the ranks of a preflight recorded, read without trust: figures of nodes, collectives and pairs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeGuard

from levelfield.measure.collectives import bus_factor, middle_and_best, slowest_blocks
from levelfield.rundir.event_lines import DAMAGED, Event, MeasuredEvents, mapping, measured_events, sequence, whole
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan
from levelfield.specs.preflight_report import CollectiveReport, Fact, NodeReport, PairReport, Rate

CHECKS = ("load", "memory", "limits")
PRODUCT = "matmul"
MOST_TEXT = 200
_TERA = 1e12


class PreflightFacts(NamedTuple):
    """What a preflight measured. joined: whether the process group came up."""

    nodes: tuple[NodeReport, ...]
    backend: str | None
    joined: bool
    barrier_seconds: float | None
    collectives: tuple[CollectiveReport, ...]
    pairs: tuple[PairReport, ...]


def read_preflight(paths: RunPaths, plan: Plan) -> PreflightFacts:
    """Return what the ranks recorded. What is damaged or missing is missing here; nothing raises."""
    ranks = {rank: measured_events(paths.events / f"rank{rank}.jsonl") for rank in range(plan.world_size)}
    nodes = node_reports(plan, ranks)
    each = {rank: nodes[rank // plan.hardware.devices_per_node].name for rank in ranks}
    names = each if len(nodes) > 1 else {rank: f"{name} device {rank}" for rank, name in each.items()}
    joined = [event for measured in ranks.values() for event in measured.get("joined", ())]
    return PreflightFacts(
        nodes=nodes,
        backend=str(joined[0].get("backend"))[:MOST_TEXT] if joined else None,
        joined=len(joined) == plan.world_size,
        barrier_seconds=_barrier(ranks),
        collectives=tuple(_collectives(ranks)),
        pairs=tuple(_pairs(ranks, names)),
    )


def _barrier(ranks: Mapping[int, MeasuredEvents]) -> float | None:
    each = {rank: _seconds(values[-1]) for rank, found in ranks.items() if (values := found.get("barrier"))}
    return _slowest(each)[0] if each and len(each) == len(ranks) and all(each.values()) else None


def _seconds(values: Event) -> list[float]:
    """Return the seconds of an event's blocks; none where one cannot be right."""
    given = sequence(values.get("seconds"))
    return given if all(map(is_rate, given)) else []


def _slowest(each: Mapping[int, Sequence[float]]) -> tuple[float, float]:
    fewest = min(len(seconds) for seconds in each.values())
    return middle_and_best(slowest_blocks({rank: seconds[:fewest] for rank, seconds in each.items()}))


def _collectives(ranks: Mapping[int, MeasuredEvents]) -> Iterable[CollectiveReport]:
    """Return each collective that every rank has timed."""
    timed: dict[tuple[str, int], dict[int, Event]] = {}
    for rank, found in ranks.items():
        for values in found.get("collective", ()):
            with suppress(*DAMAGED):
                timed.setdefault((str(values["operation"]), whole(values["bytes"])), {})[rank] = values
    for (operation, size), by_rank in timed.items():
        each = {rank: _seconds(values) for rank, values in by_rank.items()}
        if len(each) < len(ranks) or not all(each.values()):
            continue
        with suppress(*DAMAGED):
            yield _collective(operation, size, each, _wrong(by_rank))


def _collective(operation: str, size: int, each: Mapping[int, list[float]], wrong: str | None) -> CollectiveReport:
    middle, best = _slowest(each)
    rate = size / middle
    return CollectiveReport(
        operation=operation,
        bytes=size,
        ranks=len(each),
        seconds=middle,
        best_seconds=best,
        algorithm_bytes_per_second=rate,
        bus_bytes_per_second=rate * bus_factor(operation, len(each)),
        wrong=wrong,
    )


def _wrong(by_rank: Mapping[int, Event]) -> str | None:
    """Return the first rank's wrong value. A rank that does not say that its values are right has wrong ones."""
    for rank, values in sorted(by_rank.items()):
        if values.get("wrong", "it was not checked") is not None:
            return f"rank {rank}: {str(values.get('wrong', 'it was not checked'))[:MOST_TEXT]}"
    return None


def _pairs(ranks: Mapping[int, MeasuredEvents], names: Mapping[int, str]) -> Iterable[PairReport]:
    for found in ranks.values():
        for values in found.get("pair", ()):
            with suppress(*DAMAGED):
                first, second = (whole(rank) for rank in values["ranks"])
                middle, _ = middle_and_best(_seconds(values))
                size = whole(values["bytes"])
                yield PairReport(
                    ranks=(first, second),
                    members=(names[first], names[second]),
                    bytes=size,
                    seconds=middle,
                    bytes_per_second=size / middle,
                    wrong=_wrong({first: values}),
                )


def node_reports(plan: Plan, ranks: Mapping[int, MeasuredEvents]) -> tuple[NodeReport, ...]:
    """Return the report of each node, from what its ranks recorded."""
    names = enumerate(_names(plan, ranks))
    return tuple(_node(number, name, ranks, plan.ranks_of(number)) for number, name in names)


def is_rate(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf


def _names(plan: Plan, ranks: Mapping[int, MeasuredEvents]) -> list[str]:
    """Return the nodes' names: those of the hosts file; where an engine chose the nodes, what they call themselves."""
    hosts = plan.launch.hosts if plan.launch else ()
    names = []
    for number in range(plan.hardware.nodes):
        own = _hostname(ranks[plan.ranks_of(number)[0]]) if plan.launch else None
        name = hosts[number].name if number < len(hosts) else own or f"node{number}"
        names.append(name if name not in names else f"{name} (node{number})")
    return names


def _hostname(measured: MeasuredEvents) -> str | None:
    with suppress(*DAMAGED):
        found = measured["node"][0]["checks"]["limits"]["facts"]["hostname"]
        return str(found)[:MOST_TEXT] if found else None
    return None


def _node(number: int, name: str, ranks: Mapping[int, MeasuredEvents], own: range) -> NodeReport:
    """Return the report of a node, from its first rank's checks and its ranks' products."""
    found = next(iter(ranks[own[0]].get("node", ())), {})
    missing: dict[str, str] = {}
    if not isinstance(checks := found.get("checks"), dict):
        missing["node"] = str(found.get("reason", "the checks gave no answer"))[:MOST_TEXT]
        checks = {}
    for check in CHECKS if "node" not in missing else ():
        answer = checks.get(check)
        answer = answer if isinstance(answer, dict) else {"reason": "it gave no answer"}
        if "reason" in answer:
            missing[check] = str(answer["reason"])[:MOST_TEXT]
    facts = {check: _facts(answer) for check, answer in checks.items() if check in CHECKS}
    return NodeReport(
        node_rank=number,
        name=name,
        rates=_products(ranks, own),
        facts={check: kept for check, kept in facts.items() if kept},
        missing=missing,
    )


def _facts(answer: Any) -> dict[str, Fact]:
    """Return facts of plain types: a text is cut, and a number that is not finite is left out."""
    kept: dict[str, Fact] = {}
    for name, value in mapping(mapping(answer).get("facts")).items():
        if isinstance(value, str):
            kept[str(name)[:MOST_TEXT]] = value[:MOST_TEXT]
        elif value is None or (isinstance(value, (int, float)) and math.isfinite(value)):
            kept[str(name)[:MOST_TEXT]] = value
    return kept


def _products(ranks: Mapping[int, MeasuredEvents], own: range) -> dict[str, Rate]:
    """Return the rate of matrix products of each device of a node, or of its processors as a whole."""
    found = {rank: values[-1] for rank in own if (values := ranks[rank].get(PRODUCT))}
    alone = list(found) == [own[0]]
    return {PRODUCT if alone else f"{PRODUCT} {rank - own[0]}": _product(values) for rank, values in found.items()}


def _product(values: Event) -> Rate:
    best, middle = values.get("tflops"), values.get("median")
    if not is_rate(best) or not is_rate(middle) or middle > best:
        return Rate(unit="FLOP/s", reason="the probe gave no finite rate")
    repeats = values.get("repeats")
    return Rate(
        unit="FLOP/s",
        value=middle * _TERA,
        best=best * _TERA,
        spread=(best - middle) / middle,
        repeats=repeats if isinstance(repeats, int) and repeats > 0 else 1,
    )

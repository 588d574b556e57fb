"""What the ranks of a preflight recorded, read without trust: figures of nodes, collectives and pairs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from statistics import median
from typing import Any, NamedTuple, TypeGuard

from levelfield.measure.collectives import bus_factor
from levelfield.rundir.event_lines import (
    DAMAGE_ERRORS,
    JsonObject,
    MeasuredEvents,
    mapping,
    measured_events,
    sequence,
    truncated_number,
)
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan
from levelfield.specs.preflight_report import CollectiveReport, Fact, NodeReport, PairReport, Rate

CHECKS = ("load", "memory", "limits")  # of a node
PRODUCT_FIGURE = "matmul"  # the rate of matrix products
MAX_TEXT = 200  # characters of a text that a rank recorded
_TERA = 1e12


class PreflightFacts(NamedTuple):
    """What a preflight measured."""

    nodes: tuple[NodeReport, ...]
    backend: str | None
    is_group_joined: bool  # whether every rank joined the process group
    barrier_seconds: float | None
    collectives: tuple[CollectiveReport, ...]
    pairs: tuple[PairReport, ...]


def read_preflight(paths: RunPaths, plan: Plan) -> PreflightFacts:
    """Return what the ranks recorded. What is damaged or missing is missing here; nothing raises."""
    ranks = {rank: measured_events(paths.events / f"rank{rank}.jsonl") for rank in range(plan.world_size)}
    nodes = tuple(
        _node_report(number, name, ranks, plan.ranks_of(number)) for number, name in enumerate(_node_names(plan, ranks))
    )
    names = {rank: nodes[rank // plan.hardware.devices_per_node].name for rank in ranks}
    if len(nodes) == 1:
        names = {rank: f"{name} device {rank}" for rank, name in names.items()}
    barriers = {rank: _block_seconds(values[-1]) for rank, events in ranks.items() if (values := events.get("barrier"))}
    join_events = [event for events in ranks.values() for event in events.get("joined", ())]
    return PreflightFacts(
        nodes=nodes,
        backend=str(join_events[0].get("backend"))[:MAX_TEXT] if join_events else None,
        is_group_joined=len(join_events) == plan.world_size,
        barrier_seconds=_slowest_rank_seconds(barriers)[0]
        if len(barriers) == len(ranks) and all(barriers.values())
        else None,
        collectives=tuple(_collective_reports(ranks)),
        pairs=tuple(_pair_reports(ranks, names)),
    )


def _block_seconds(values: JsonObject) -> list[float]:
    """Return the seconds of an event's blocks; none where one cannot be right."""
    seconds = sequence(values.get("seconds"))
    return seconds if all(map(is_rate, seconds)) else []


def _slowest_rank_seconds(blocks: Mapping[int, Sequence[float]]) -> tuple[float, float]:
    """Return the median and the best seconds of the blocks, each by its slowest rank: the last rank ends a collective.

    blocks: the seconds of each block, by rank. Where a rank has fewer blocks, only so many count.
    """
    slowest = [max(block) for block in zip(*blocks.values(), strict=False)]
    return median(slowest), min(slowest)


def _collective_reports(ranks: Mapping[int, MeasuredEvents]) -> Iterable[CollectiveReport]:
    """Return each collective that every rank has timed."""
    timed: dict[tuple[str, int], dict[int, JsonObject]] = {}
    for rank, events in ranks.items():
        for values in events.get("collective", ()):
            with suppress(*DAMAGE_ERRORS):
                timed.setdefault((str(values["operation"]), truncated_number(values["bytes"])), {})[rank] = values
    for (operation, size), calls in timed.items():
        blocks = {rank: _block_seconds(values) for rank, values in calls.items()}
        if len(blocks) < len(ranks) or not all(blocks.values()):
            continue
        with suppress(*DAMAGE_ERRORS):
            middle, best = _slowest_rank_seconds(blocks)
            rate = size / middle
            yield CollectiveReport(
                operation=operation,
                bytes=size,
                ranks=len(blocks),
                seconds=middle,
                best_seconds=best,
                algorithm_bytes_per_second=rate,
                bus_bytes_per_second=rate * bus_factor(operation, len(blocks)),
                wrong=_first_wrong_value(calls),
            )


def _first_wrong_value(calls: Mapping[int, JsonObject]) -> str | None:
    """Return the first rank's wrong value. A rank that does not say that its values are right has wrong ones.

    calls: the event of each rank.
    """
    for rank, values in sorted(calls.items()):
        if values.get("wrong", "it was not checked") is not None:
            return f"rank {rank}: {str(values.get('wrong', 'it was not checked'))[:MAX_TEXT]}"
    return None


def _pair_reports(ranks: Mapping[int, MeasuredEvents], names: Mapping[int, str]) -> Iterable[PairReport]:
    """Yield each pair of ranks that has timed a message. names: of the ranks' nodes or devices."""
    for events in ranks.values():
        for values in events.get("pair", ()):
            with suppress(*DAMAGE_ERRORS):
                first, second = (truncated_number(rank) for rank in values["ranks"])
                middle = median(_block_seconds(values))
                size = truncated_number(values["bytes"])
                yield PairReport(
                    ranks=(first, second),
                    members=(names[first], names[second]),
                    bytes=size,
                    seconds=middle,
                    bytes_per_second=size / middle,
                    wrong=_first_wrong_value({first: values}),
                )


def is_rate(value: Any) -> TypeGuard[float]:
    """Return whether a value is a finite number above zero."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf


def _node_names(plan: Plan, ranks: Mapping[int, MeasuredEvents]) -> list[str]:
    """Return the nodes' names: those of the hosts file; where an engine chose the nodes, what they call themselves."""
    hosts = plan.launch.hosts if plan.launch else ()
    names = []
    for number in range(plan.hardware.nodes):
        name = f"node{number}"
        if number < len(hosts):
            name = hosts[number].name
        elif plan.launch:
            with suppress(*DAMAGE_ERRORS):
                hostname = ranks[plan.ranks_of(number)[0]]["node"][0]["checks"]["limits"]["facts"]["hostname"]
                name = str(hostname)[:MAX_TEXT] if hostname else name
        names.append(name if name not in names else f"{name} (node{number})")
    return names


def _node_report(number: int, name: str, ranks: Mapping[int, MeasuredEvents], node_ranks: range) -> NodeReport:
    """Return the report of a node, from its first rank's checks and its ranks' products."""
    event = next(iter(ranks[node_ranks[0]].get("node", ())), {})
    missing: dict[str, str] = {}
    if not isinstance(checks := event.get("checks"), dict):
        missing["node"] = str(event.get("reason", "the checks gave no answer"))[:MAX_TEXT]
        checks = {}
    for check in CHECKS if "node" not in missing else ():
        answer = checks.get(check)
        answer = answer if isinstance(answer, dict) else {"reason": "it gave no answer"}
        if "reason" in answer:
            missing[check] = str(answer["reason"])[:MAX_TEXT]
    facts: dict[str, dict[str, Fact]] = {}  # of plain types: a text is cut, and a number that is not finite is left out
    for check in filter(CHECKS.__contains__, checks):
        values = mapping(mapping(checks[check]).get("facts")).items()
        facts[check] = {
            str(name)[:MAX_TEXT]: value[:MAX_TEXT] if isinstance(value, str) else value
            for name, value in values
            if value is None or isinstance(value, str) or (isinstance(value, (int, float)) and math.isfinite(value))
        }
    return NodeReport(
        node_rank=number,
        name=name,
        rates=_product_rates(ranks, node_ranks),
        facts={check: values for check, values in facts.items() if values},
        missing=missing,
    )


def _product_rates(ranks: Mapping[int, MeasuredEvents], node_ranks: range) -> dict[str, Rate]:
    """Return the rate of matrix products of each device of a node, or of its processors as a whole."""
    first = node_ranks[0]
    last_events = {rank: events[-1] for rank in node_ranks if (events := ranks[rank].get(PRODUCT_FIGURE))}
    has_one_rate = list(last_events) == [first]
    rates = {}
    for rank, event in last_events.items():
        best, middle, repeats = event.get("tflops"), event.get("median"), event.get("repeats")
        rate = Rate(unit="FLOP/s", reason="the probe gave no finite rate")
        if is_rate(best) and is_rate(middle) and middle <= best:
            rate = Rate(
                unit="FLOP/s",
                value=middle * _TERA,
                best=best * _TERA,
                spread=(best - middle) / middle,
                repeats=repeats if isinstance(repeats, int) and repeats > 0 else 1,
            )
        rates[PRODUCT_FIGURE if has_one_rate else f"{PRODUCT_FIGURE} {rank - first}"] = rate
    return rates

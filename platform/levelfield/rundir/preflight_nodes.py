"""What the checks of each node of a preflight gave, read without trust: rates, facts, and what is missing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TypeGuard

from levelfield.measure.preflight import middle_and_best, spread_of
from levelfield.rundir.event_lines import DAMAGED, Event, whole
from levelfield.specs.plan import Plan
from levelfield.specs.preflight_report import Fact, NodeReport, Rate

UNITS = {"memory copy": "B/s", "integer loop": "1/s", "hash": "B/s", "disk write": "B/s", "disk read": "B/s"}
CHECKS = {
    "clock": (), "load": (), "memory": (), "limits": (), "copy": ("memory copy",), "integers": ("integer loop",),
    "hashes": ("hash",), "disk": ("disk write", "disk read"),
}  # fmt: skip
PRODUCT = "matmul"
MOST_TEXT = 200
_TERA = 1e12
Measured = dict[str, list[Event]]  # the values of each measured event by its name, in order


def node_reports(plan: Plan, ranks: Mapping[int, Measured]) -> tuple[NodeReport, ...]:
    """Return the report of each node, from what its ranks recorded."""
    per_node = plan.hardware.devices_per_node
    return tuple(
        _node(number, name, ranks, range(number * per_node, (number + 1) * per_node))
        for number, name in enumerate(_names(plan, ranks))
    )


def rate_of(values: Any, unit: Any, expected: str) -> Rate:
    """Return the rate of repeats; without a value and with the reason where one of them cannot be right."""
    if unit != expected:
        return Rate(unit=expected, reason=f"found the unit {str(unit)[:20]!r}, expected {expected!r}")
    numbers = values if isinstance(values, list) else []
    if not numbers or not all(is_rate(value) for value in numbers):
        return Rate(unit=expected, reason="the repeats are not all finite numbers above zero")
    middle, best = middle_and_best([-float(value) for value in numbers])
    return Rate(unit=expected, value=-middle, best=-best, spread=spread_of(numbers), repeats=len(numbers))


def is_rate(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf


def _names(plan: Plan, ranks: Mapping[int, Measured]) -> list[str]:
    """Return the nodes' names: those of the hosts file; where an engine chose the nodes, what they call themselves."""
    hosts = plan.launch.hosts if plan.launch else ()
    names = []
    for number in range(plan.hardware.nodes):
        own = _hostname(ranks[number * plan.hardware.devices_per_node]) if plan.launch else None
        name = hosts[number].name if number < len(hosts) else own or f"node{number}"
        names.append(name if name not in names else f"{name} (node{number})")
    return names


def _hostname(measured: Measured) -> str | None:
    with suppress(*DAMAGED):
        found = measured["node"][0]["checks"]["limits"]["facts"]["hostname"]
        return str(found)[:MOST_TEXT] if found else None
    return None


def _node(number: int, name: str, ranks: Mapping[int, Measured], own: range) -> NodeReport:
    """Return the report of a node, from its first rank's checks and its ranks' products."""
    found = next(iter(ranks[own[0]].get("node", ())), {})
    missing: dict[str, str] = {}
    if not isinstance(checks := found.get("checks"), dict):
        missing["node"] = str(found.get("reason", "the checks gave no answer"))[:MOST_TEXT]
        checks = {}
    rates: dict[str, Rate] = {}
    for check, figures in CHECKS.items():
        answer = checks.get(check)
        answer = answer if isinstance(answer, dict) else {"reason": "it gave no answer"}
        if checks and "reason" in answer:
            missing[check] = str(answer["reason"])[:MOST_TEXT]
        given = answer.get("rates")
        given = given if isinstance(given, dict) else {}
        rates |= {figure: _rate(given[figure], UNITS[figure]) for figure in figures if figure in given}
    facts = {check: _facts(answer) for check, answer in checks.items() if check in CHECKS}
    rates |= _products(ranks, own)
    wall = found.get("wall_ns")
    return NodeReport(
        node_rank=number,
        name=name,
        rates=rates,
        facts={check: kept for check, kept in facts.items() if kept},
        missing=missing,
        wall_ns=_wall(wall),
    )


def _wall(given: Any) -> tuple[int, int] | None:
    with suppress(*DAMAGED):
        first, last = given
        return whole(first), whole(last)
    return None


def _rate(given: Any, unit: str) -> Rate:
    given = given if isinstance(given, dict) else {}
    return rate_of(given.get("values"), given.get("unit"), unit)


def _facts(answer: Any) -> dict[str, Fact]:
    """Return facts of plain types: a text is cut, and a number that is not finite is left out."""
    given = answer.get("facts") if isinstance(answer, dict) else None
    kept: dict[str, Fact] = {}
    for name, value in (given if isinstance(given, dict) else {}).items():
        if isinstance(value, str):
            kept[str(name)[:MOST_TEXT]] = value[:MOST_TEXT]
        elif value is None or (isinstance(value, (int, float)) and math.isfinite(value)):
            kept[str(name)[:MOST_TEXT]] = value
    return kept


def _products(ranks: Mapping[int, Measured], own: range) -> dict[str, Rate]:
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

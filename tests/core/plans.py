"""Plans from case strings, with the tests' own framework, vendor and case."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from levelfield.catalog import lookup
from levelfield.catalog.registry import Registry
from levelfield.plan.peak import MeasuredPeaks, set_measured_peak
from levelfield.plan.request import Decision, UserRequest
from levelfield.plan.resolution import resolve
from levelfield.specs.plan import Plan
from levelfield.specs.selector import parse_selector
from levelfield.specs.tuning import TuningChoice

ROOT = Path(__file__).resolve().parents[2]
PLUGINS = Path(__file__).parent / "plugins"


def make_plan(registry: Registry, text: str, measured: MeasuredPeaks | None = None, **values: object) -> Plan:
    """The plan of a case string; keywords are those of UserRequest, of TuningChoice, of Decision and of resolve."""
    choice = TuningChoice.model_validate(taken(values, TuningChoice.model_fields))
    request = UserRequest(choice=choice, **taken(values, [f.name for f in fields(UserRequest)]))
    selector = parse_selector(text)
    settled = {"request": request, "scale": request.scale, **taken(values, [f.name for f in fields(Decision)])}
    decision = Decision(text, selector, lookup.find_selection(registry, selector), **settled)
    return set_measured_peak(resolve(decision, "run-id", **values), measured or MeasuredPeaks())  # type: ignore[arg-type]


def taken(values: dict[str, object], names: Iterable[str]) -> dict[str, Any]:
    """The keywords of these names, taken out of `values`."""
    return {name: values.pop(name) for name in names if name in values}

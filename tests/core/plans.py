"""Plans from case strings, with the tests' own framework, vendor and case."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from levelfield.catalog import lookup
from levelfield.catalog.registry import Registry
from levelfield.plan.resolve import Asked, resolve
from levelfield.specs.plan import Plan
from levelfield.specs.selector import parse_selector
from levelfield.specs.tuning import TuningChoice

ROOT = Path(__file__).resolve().parents[2]
PLUGINS = Path(__file__).parent / "plugins"


def make_plan(registry: Registry, text: str, **given: object) -> Plan:
    """The plan of a case string; keywords are those of Asked, of TuningChoice and of resolve."""
    names = {f.name for f in fields(Asked)}
    choice = TuningChoice.model_validate({k: given.pop(k) for k in TuningChoice.model_fields if k in given})
    asked = Asked(choice=choice, **{k: given.pop(k) for k in names if k in given})  # type: ignore[arg-type]
    selector = parse_selector(text)
    found = lookup.find(registry, selector)
    return resolve(found, selector, text, asked, "run-id", **given)  # type: ignore[arg-type]

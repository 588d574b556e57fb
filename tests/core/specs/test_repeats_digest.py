"""Every field of a plan either parts two runs that are no repeats, or has a reason for which it does not."""

from __future__ import annotations

import types
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass, replace
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from levelfield.judge.collector import collect
from levelfield.report.repeats import group_repeats
from levelfield.rundir.directory import read_plan
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import KEYS_OF_ONE_RUN, PeakMeasurement, Plan
from pydantic import BaseModel, JsonValue

NAME = "NAME"  # of a mapping's value; one like `key` would be masked as a secret
_OTHER = {str: "other", int: 7, float: 7.5, bool: True}
_PLAIN: dict[Any, Any] = {kind: kind() for kind in _OTHER} | {JsonValue: ""}


def kinds_of(kind: Any) -> dict[str, Any]:
    """Return the fields of a model or a dataclass with their annotations; of another kind none."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return {name: field.annotation for name, field in kind.model_fields.items()}
    return get_type_hints(kind) if is_dataclass(kind) else {}


def filled(kind: Any, is_other: bool = False) -> Any:
    """Return a value of an annotation, with all that may be null there. is_other: another one, for a plain value."""
    origin, parts = get_origin(kind), get_args(kind)
    if fields := kinds_of(kind):
        values = {name: filled(field) for name, field in fields.items()}
        return kind(**values) if isinstance(kind, type) and is_dataclass(kind) else kind.model_construct(**values)
    if kind in _PLAIN:
        return _OTHER.get(kind, "other") if is_other else _PLAIN[kind]
    if origin is Literal:
        return parts[-1] if is_other else parts[0]
    if origin in (Union, types.UnionType):
        return filled(next(part for part in parts if part is not type(None)), is_other)
    if origin is tuple:
        items = parts[:1] if parts[-1] is Ellipsis else parts
        return tuple(filled(part, is_other) for part in items)
    if origin in (dict, Mapping):
        return {NAME: filled(parts[1], is_other)}
    return filled(parts[0], is_other)  # an annotated kind


def changes(kind: Any, value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path of every plain field below a value, and the value with another one there."""
    if fields := kinds_of(type(value)):
        for name, field in fields.items():
            for where, other in changes(field, getattr(value, name), f"{path}.{name}".strip(".")):
                is_data = is_dataclass(value)
                yield where, replace(value, **{name: other}) if is_data else value.model_copy(update={name: other})
    elif isinstance(value, tuple) and value and kinds_of(type(value[0])):
        yield from ((where, (other, *value[1:])) for where, other in changes(None, value[0], path))
    elif isinstance(value, dict) and kinds_of(type(value.get(NAME))):
        yield from ((where, {NAME: other}) for where, other in changes(None, value[NAME], path))
    elif (other := filled(kind, is_other=True)) != value:  # a closed list of one word has no other
        yield path, other


def is_reasoned(path: str) -> bool:
    return any(path == key or path.startswith(f"{key}.") for key in KEYS_OF_ONE_RUN)


@pytest.fixture
def whole() -> Plan:
    """A plan in which nothing is null and no list is empty, so that every field can change."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a text in place of a date, for example
        plan: Plan = filled(Plan)
    environment = plan.environment.model_copy(update={"digest": "sha256:1"})
    return plan.model_copy(update={"environment": environment})


def test_each_field_of_a_plan_parts_repeats_or_has_its_reason(whole: Plan, recorded: Any) -> None:
    result = collect(RunPaths(recorded))
    again = result.model_copy(update={"run_id": "again", "repeat": 2})
    seen, joined = set(), set()
    for path, changed in changes(Plan, whole):
        seen.add(path)
        if group_repeats([result, again], [whole.repeats_digest, changed.repeats_digest]):
            joined.add(path)
    assert len(seen) > 300
    assert sorted(path for path in joined if not is_reasoned(path)) == [], "joins two trainings as repeats"
    stale = [key for key in KEYS_OF_ONE_RUN if not any(p == key or p.startswith(f"{key}.") for p in joined)]
    assert stale == [] and all(len(reason) > 10 for reason in KEYS_OF_ONE_RUN.values())


def test_the_library_of_products_counts_though_the_measured_peak_does_not(run: RunPaths) -> None:
    plan = read_plan(run)

    def measured(ratio: float | None, tflops: float) -> str:
        measurement = PeakMeasurement(at="2026-11-28T21:06:30+00:00", onednn_over_mkl=ratio)
        peak = plan.peak.model_copy(update={"tflops": tflops, "measurement": measurement})
        return plan.model_copy(update={"peak": peak}).repeats_digest

    assert measured(2.0, 0.4) == measured(1.9, 0.5) != measured(0.5, 0.4)


def test_a_python_that_the_user_gave_counts_by_its_place(run: RunPaths) -> None:
    plan = read_plan(run)

    def at(python: str, digest: str) -> str:
        environment = plan.environment.model_copy(update={"python": python, "digest": digest})
        return plan.model_copy(update={"environment": environment}).repeats_digest

    assert at("/a/python", "sha256:1") == at("/b/python", "sha256:1")
    assert at("/a/python", "") != at("/b/python", "")

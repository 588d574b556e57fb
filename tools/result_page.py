"""docs/result.md: every field of result.json with its type, unit and meaning, from the model that writes the file.

    .venvs/dev/bin/python tools/result_page.py

writes the page again. tests/core/test_result_page.py fails when the page is not what the model says.
"""

from __future__ import annotations

import json
import types
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from levelfield.specs.base import Value
from levelfield.specs.result import Figure, Result
from pydantic import BaseModel
from pydantic.fields import FieldInfo

PAGE = Path(__file__).resolve().parents[1] / "docs" / "result.md"
NUMBERS = (int, float)
_WORDS = {
    dict[str, str]: "texts by name",
    str: "text",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
}

# Values that other documents hold too are described here, by model and field: (unit, meaning).
SHARED: dict[str, dict[str, tuple[str, str]]] = {
    "Layout": {
        "data": ("count", "Data-parallel size."),
        "tensor": ("count", "Tensor-parallel size."),
        "pipeline": ("count", "Pipeline stages."),
        "sequence_parallel": ("", "Whether tensor ranks also divide the sequence."),
        "sharding_stage": ("ZeRO stage", "From 0 (nothing is sharded) to 3."),
        "sharding_degree": ("count", "Ranks that share one set of states, of data x context."),
        "context": ("count", "Context-parallel size; left out where 1."),
        "expert": ("count", "Expert-parallel size, a part of data x context; left out where 1."),
    },
    "EntryUsed": {
        "suite": ("", "Name of the suite."),
        "name": ("", "Name of the entry; the published row where it is one."),
        "group": ("", "Heading that the entry stands under."),
        "note": ("", "What a reader of the row has to know."),
    },
}

INTRODUCTION = """# result.json, field by field

Made by `.venvs/dev/bin/python tools/result_page.py` from the model that writes the file; do not edit.

    python run_benchmarks.py evidence collect RUN --check
    python run_benchmarks.py report RUN --format json

`result.json` of a run directory is computed from its raw files alone ([formulas](measurement.md),
[words](glossary.md)).

- The first key is `schema`: `{schema}`. Refuse a file with another one. Unknown keys are an error.
- An unknown figure is null, with a sentence beside it; zero never means unknown.
- Units are SI without prefixes unless the name says otherwise; `1` is a ratio; B is a byte.
- A type with `?` may be null. In results of an earlier version, later fields are null or have their default.
- Keys are in the order of this page: name, type, unit, meaning."""


def page() -> str:
    """The whole page."""
    parts = [INTRODUCTION.format(schema=Result.schema_name()), *_section("Top level", "", Result)]
    for path, model in _nested(Result, ""):
        parts += _section(f"`{path}`", _opening(model), model)
    parts += _section(
        "A figure",
        "A number, or the reason why there is none. The type of every field that is called a figure.\n\n",
        Figure,
    )
    return "\n".join(parts)


def fields(model: type[BaseModel], before: str = "") -> Iterator[tuple[str, type[BaseModel], str, FieldInfo]]:
    """Every field below the model, once: its path, the model that holds it, its name, and what pydantic knows of it."""
    for name, field in model.model_fields.items():
        yield f"{before}{name}", model, name, field
        if inner := model_of(field.annotation):
            yield from fields(inner, f"{before}{name}{'[]' if _is_list(field.annotation) else ''}.")


def meaning(model: type[BaseModel], name: str) -> str:
    """What the field says; empty when nobody described it."""
    shared = SHARED.get(model.__name__, {})
    return shared[name][1] if name in shared else model.model_fields[name].description or ""


def unit(model: type[BaseModel], name: str) -> str:
    """The unit of a number; empty for what is none."""
    shared = SHARED.get(model.__name__, {})
    extra = model.model_fields[name].json_schema_extra
    return shared[name][0] if name in shared else str(extra.get("unit", "")) if isinstance(extra, dict) else ""


def is_number(annotation: Any) -> bool:
    """Whether the type holds int or float, alone, beside null or in a list."""
    return annotation in NUMBERS or any(is_number(part) for part in get_args(annotation))


def model_of(annotation: Any) -> type[Value] | None:
    """The model within a type; None where there is none."""
    if isinstance(annotation, type) and issubclass(annotation, Value):
        return annotation
    return next(filter(None, map(model_of, get_args(annotation))), None)


def _nested(model: type[BaseModel], before: str) -> Iterator[tuple[str, type[BaseModel]]]:
    """The models below, each with its path; figures have a section of their own."""
    for name, field in model.model_fields.items():
        inner = model_of(field.annotation)
        if inner is None or inner is Figure:
            continue
        path = f"{before}{name}{'[]' if _is_list(field.annotation) else ''}"
        yield path, inner
        yield from _nested(inner, f"{path}.")


def _section(title: str, opening: str, model: type[BaseModel]) -> list[str]:
    rows = [_row(model, name, field) for name, field in model.model_fields.items()]
    return [f"\n## {title}\n\n{opening}{rows[0]}", *rows[1:]]


def _row(model: type[BaseModel], name: str, field: FieldInfo) -> str:
    plain = field.is_required() or field.default is None
    description = meaning(model, name) + ("" if plain else f" Default: {_json(field.default)}.")
    kind = _type(field.annotation)
    kind = f"{kind.removesuffix(' or null')}?" if kind.endswith(" or null") else kind
    return f"- `{name}`, {', '.join(filter(None, (kind, unit(model, name))))}: {description}"


def _json(value: Any) -> str:
    return "`[]`" if value == () else f"`{json.dumps(value)}`"


def _type(annotation: Any) -> str:
    """The type in words."""
    if get_origin(annotation) is Literal:
        return "one of " + ", ".join(f"`{word}`" for word in get_args(annotation))
    if get_origin(annotation) in (Union, types.UnionType):
        return " or ".join(_type(part) for part in get_args(annotation))
    if get_origin(annotation) is tuple:
        return _list(get_args(annotation))
    if annotation is Figure:
        return "[figure](#a-figure)"
    return "object" if model_of(annotation) else _WORDS[annotation]


def _list(parts: tuple[Any, ...]) -> str:
    if len(parts) == 2 and parts[1] is Ellipsis:
        return f"list of {'objects' if model_of(parts[0]) else 'texts'}"
    return f"list of {len(parts)} {_type(parts[0])}s"


def _is_list(annotation: Any) -> bool:
    return get_origin(annotation) is tuple


def _opening(model: type[BaseModel]) -> str:
    """Return what a model's first line says beyond its first sentence, which the field above has said."""
    first_line = (model.__doc__ or "").strip().splitlines()[0]
    _, _, more = first_line.partition(". ")
    return f"{more}\n\n" if more and model.__name__ not in SHARED else ""


if __name__ == "__main__":
    ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter).parse_args()
    PAGE.write_text(page(), encoding="utf-8")

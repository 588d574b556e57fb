"""Values that validation changed into another type: pydantic takes `true` as 1, and the text `yes` as true."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

Place = tuple[int | str, ...]
_KINDS = {bool: "true or false", int: "a whole number", float: "a number"}


def changed_types(content: Any, value: Any, place: Place = ()) -> Iterator[tuple[Place, str]]:
    """Return where `content` has a text, or true or false, and `value`, its validated form, has a number, or reverse.

    Each comes with what was found and expected. A whole number as a float, or 3.0 as a whole number, is no change.
    """
    if isinstance(content, dict):
        fields = vars(value) if isinstance(value, BaseModel) else value if isinstance(value, dict) else {}
        for name in content.keys() & fields.keys():
            yield from changed_types(content[name], fields[name], (*place, name))
    elif isinstance(content, (list, tuple)) and isinstance(value, (list, tuple)):
        for index, (each, validated) in enumerate(zip(content, value, strict=False)):
            yield from changed_types(each, validated, (*place, index))
    elif type(value) in _KINDS and _kind(content) is not _kind(value):
        yield place, f"found {content!r}, expected {_KINDS[type(value)]}"


def _kind(value: Any) -> type:
    """Return the type, with one for all numbers. True and false are numbers to isinstance."""
    return float if isinstance(value, (int, float)) and not isinstance(value, bool) else type(value)

"""One line of a raw file, read without trust: another process, or a failing disk, may have written it."""

from __future__ import annotations

import json
from typing import Any

from pydantic_core import from_json

Event = dict[str, Any]
# What a wrong type, a missing key or a number without bounds raises in code that expects an event.
DAMAGED = (LookupError, TypeError, ValueError, ArithmeticError, AttributeError)
LARGEST = 2**64  # of a whole number: times in ns, bytes, checksums


def event_of(line: bytes | str) -> Event:
    """Return the JSON object of a line. Raises ValueError for anything else.

    pydantic's parser takes half the time of json's, and refuses more. What it refuses is left to json's.
    """
    try:
        found = from_json(line)
    except (TypeError, ValueError):  # TypeError: of half a pair of characters
        found = _by_json(line)
    if not isinstance(found, dict):
        raise ValueError(f"found {type(found).__name__}, expected an object")
    return found


def _by_json(line: bytes | str) -> Any:
    try:
        return json.loads(line)
    except RecursionError:
        raise ValueError("nested too deep") from None


def event_or_none(content: bytes | str) -> Event | None:
    """Return the JSON object of a file; None for anything else."""
    try:
        return event_of(content)
    except ValueError:
        return None


def whole(value: Any) -> int:
    """Return a whole number. Raises TypeError for a text, ValueError for a number beyond 2**64."""
    if isinstance(value, str):
        raise TypeError("found a text, expected a number")
    number = int(value)
    if not -LARGEST <= number <= LARGEST:
        raise ValueError("found a number beyond 2**64")
    return number


def count(value: Any) -> int:
    """Return a count. Raises TypeError for anything but a whole number, ValueError for one beyond 2**64."""
    if type(value) is not int:
        raise TypeError(f"found {type(value).__name__}, expected a whole number")
    return whole(value)

"""JSON of raw files, read without trust: another process, or a failing disk, may have written it.

JSON from elsewhere is read by `strict_json`, so that two readers cannot understand it differently. It refuses NaN,
infinities and numbers that become one, a key twice in one object, deep nesting, and endless digits.
"""

from __future__ import annotations

import json
import math
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from levelfield.node.regular_files import read_regular
from levelfield.specs.bounded_reading import MAX_PLAIN_LEVELS, bounded_integer, plain_json, unique_keys

JsonObject = dict[str, Any]
MeasuredEvents = dict[str, list[JsonObject]]
# Code that expects an event raises one of these for a wrong type, a missing key or a number without bounds.
DAMAGE_ERRORS = (LookupError, TypeError, ValueError, ArithmeticError, AttributeError)
MAX_WHOLE_NUMBER = 2**64  # times in ns, bytes, checksums
MAX_LINE_BYTES = 2**20  # of a .jsonl file


def parse_object(line: bytes | str) -> JsonObject:
    """Return the JSON object of a line or of a file. Raises ValueError for anything else.

    pydantic's parser takes half the time of json's, and refuses more. What it refuses is left to json's.
    """
    try:
        value = from_json(line)
    except (TypeError, ValueError):  # TypeError: of half a pair of characters
        try:
            value = json.loads(line)
        except RecursionError:
            raise ValueError("nested too deep") from None
    if not isinstance(value, dict):
        raise ValueError(f"found {type(value).__name__}, expected an object")
    return value


def object_or_none(content: bytes | str) -> JsonObject | None:
    """Return the JSON object of a file; None for anything else."""
    try:
        return parse_object(content)
    except ValueError:
        return None


def mapping(value: Any) -> JsonObject:
    """Return an object; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def sequence(value: Any) -> list[Any]:
    """Return a list; an empty one for anything else."""
    return value if isinstance(value, list) else []


def truncated_number(value: Any) -> int:
    """Return a number without its fraction. Raises TypeError for a text, ValueError for a number beyond 2**64."""
    if isinstance(value, str):
        raise TypeError("found a text, expected a number")
    number = int(value)
    if not -MAX_WHOLE_NUMBER <= number <= MAX_WHOLE_NUMBER:
        raise ValueError("found a number beyond 2**64")
    return number


def strict_whole_number(value: Any) -> int:
    """Return a whole number as it is. Raises TypeError for another type, ValueError for one beyond 2**64."""
    if type(value) is not int:
        raise TypeError(f"found {type(value).__name__}, expected a whole number")
    return truncated_number(value)


def strict_json(content: bytes | str) -> Any:
    """Return the value of a JSON text. Raises ValueError, with what was found, for what is refused."""
    if isinstance(content, bytes):
        with suppress(ValueError):  # the slower parser says what it refuses; it accepts some that this one does not
            return plain_json(content)
    try:
        value = json.loads(
            content,
            object_pairs_hook=unique_keys,
            parse_constant=_finite,
            parse_float=_finite,
            parse_int=bounded_integer,
        )
    except RecursionError:
        raise ValueError(f"found more than {MAX_PLAIN_LEVELS} nested levels") from None
    level, layer = 0, [value]
    while layer := [item for item in layer if isinstance(item, (dict, list))]:
        level += 1
        layer = [inner for item in layer for inner in (item.values() if isinstance(item, dict) else item)]
    if level > MAX_PLAIN_LEVELS:
        raise ValueError(f"found more than {MAX_PLAIN_LEVELS} nested levels")
    return value


def check_strict_lines(content: bytes) -> None:
    """Check every line of a .jsonl file that is JSON. Raises ValueError with the number of the line.

    A line that is no JSON at all is left to the reader of raw files, which makes the run invalid.
    """
    for number, line in enumerate(content.split(b"\n"), start=1):
        if len(line) > MAX_LINE_BYTES:
            raise ValueError(f"line {number}: found {len(line):,} bytes, expected at most {MAX_LINE_BYTES:,}")
        try:
            if line.strip():
                strict_json(line)
        except ValueError as error:
            try:
                with suppress(RecursionError):
                    json.loads(line)
            except ValueError:  # no JSON at all
                continue
            raise ValueError(f"line {number}: {error}") from None


def _finite(text: str) -> float:
    """Return the number. JSON's parser also passes its constants: NaN, Infinity and -Infinity."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"found {text[:40]}, expected a finite number")
    return value


def measured_events(path: Path) -> MeasuredEvents:
    """Return the values of a rank's measured events by their names, in order. Other lines count for nothing."""
    try:
        lines = read_regular(path, "measured").split(b"\n")
    except OSError:
        return {}
    measured: MeasuredEvents = {}
    for line in lines:
        with suppress(*DAMAGE_ERRORS):
            event = parse_object(line)
            if event.get("event") == "measured" and isinstance(event.get("values"), dict):
                measured.setdefault(str(event["name"]), []).append(event["values"])
    return measured

"""Damaged copies of a tool's output. All functions are pure: text in, texts out."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

from levelfield.testing.recordings import Recording

MAX_COPIES = 80
MAX_NUMBERS = 400
_UNIT = re.compile(r'\s?(%|(?:[muk]?Wh?|[CFK]|[mukM]?J|(?:[KMGT]i|[kMGT])?B)\b)|"?,\s*"unit":\s*"([^"]*)"')
IMPOSSIBLE_UNITS = {
    "power_watts": "kW",
    "energy_joules": "kWh",
    "memory_used_bytes": "TiB",
    "memory_bytes": "TiB",
    "utilisation": "ppm",
    "temperature_celsius": "F",
}


class NumberPlace(NamedTuple):
    """A number in a text: its place, and the place of the unit after it, if there is one."""

    start: int
    end: int
    unit: tuple[int, int] | None
    field: str = ""  # of the sample or the device whose value depends on it; empty before that is known


def truncated_copies(recording: Recording) -> Iterator[str]:
    """Return copies that end early: at evenly spaced places, and at each of the last characters."""
    text = recording.text
    stride = max(1, len(text) // MAX_COPIES)
    places = {*range(0, len(text), stride), *range(max(0, len(text) - 20), len(text))}
    return (text[:place] for place in sorted(places))


def reordered_copies(recording: Recording) -> Iterator[str]:
    """Return copies with whole records, or other parts without a fixed order, in another order."""
    text, tool = recording.text, recording.tool
    if tool is None or tool.format in ("csv", "json_lines"):
        is_lines = tool is not None or recording.path.suffix == ".csv"
    else:
        is_lines = len(tool.patterns) == 1 and "\\n" not in tool.patterns[0]  # each line belongs to one device
    if tool.format == "json" if tool else recording.path.suffix == ".json":
        try:
            document = inner = json.loads(text)
            yield json.dumps(_reverse_keys(document))
            for key in tool.records if tool else ():
                inner = inner[key]
        except (ValueError, LookupError, TypeError):
            return
        if isinstance(inner, list):
            inner.reverse()
            yield json.dumps(document)
    elif is_lines:
        lines = text.splitlines(keepends=True)
        yield "".join(reversed(lines))
        yield from ("".join([*lines[:at], *reversed(lines[at : at + 2]), *lines[at + 2 :]]) for at in range(len(lines)))
    elif tool:
        starts = [match.start() for match in re.finditer(tool.patterns[0], text, re.MULTILINE)]
        if starts:  # the check `devices` reports a recording without a record
            blocks = [text[a:b] for a, b in zip(starts, [*starts[1:], len(text)], strict=True)]
            yield text[: starts[0]] + "".join(reversed(blocks))


def _reverse_keys(value: Any) -> Any:
    """Return the value with the keys of every object reversed. Lists stay, because their order may have a meaning."""
    if isinstance(value, dict):
        return {key: _reverse_keys(value[key]) for key in reversed(value)}
    return [_reverse_keys(item) for item in value] if isinstance(value, list) else value


def repeated_copies(recording: Recording) -> Iterator[str]:
    """Return copies with the whole output twice, with each line twice, and without each line."""
    text = recording.text
    yield text + text
    lines = text.splitlines(keepends=True)
    stride = max(1, len(lines) // MAX_COPIES)
    yield from ("".join([*lines[: at + 1], *lines[at:]]) for at in range(0, len(lines), stride))
    yield from ("".join([*lines[:at], *lines[at + 1 :]]) for at in range(0, len(lines), stride))


def find_numbers(text: str) -> list[NumberPlace]:
    """Return the first numbers of a text, each with the unit after it, if there is one."""
    places: list[NumberPlace] = []
    for match in islice(re.finditer(r"-?[0-9]+(?:\.[0-9]+)?", text), MAX_NUMBERS):
        unit = _UNIT.match(text, match.end())
        span = (unit.span(1) if unit[1] else unit.span(2)) if unit else None
        places.append(NumberPlace(match.start(), match.end(), span))
    return places


def change_digit(text: str, number: NumberPlace) -> str:
    """Return the text with another number of the same form in this place."""
    old = text[number.start : number.end]
    digit = next(i for i, char in enumerate(old) if char.isdigit())
    new = old[:digit] + str(int(old[digit]) % 9 + 1) + old[digit + 1 :]
    return text[: number.start] + new + text[number.end :]


def use_decimal_comma(text: str, number: NumberPlace) -> str:
    """Return the text with a decimal comma, as another locale prints it. The decimals are not zero, so a loss shows."""
    integer_part = text[number.start : number.end].partition(".")[0]
    return f"{text[: number.start]}{integer_part},93{text[number.end :]}"


def replace_with_na(text: str, number: NumberPlace) -> str:
    """Return the text with NA instead of the number and its unit."""
    end = number.unit[1] if number.unit and text[number.end : number.unit[0]].strip() == "" else number.end
    return text[: number.start] + _quote_in_json("NA", text, number) + text[end:]


def replace_unit(text: str, number: NumberPlace) -> str:
    """Return the text with an impossible unit, instead of the printed unit or after a number without one."""
    if number.unit:
        return text[: number.unit[0]] + IMPOSSIBLE_UNITS[number.field] + text[number.unit[1] :]
    quantity = f"{text[number.start : number.end]} {IMPOSSIBLE_UNITS[number.field]}"
    return text[: number.start] + _quote_in_json(quantity, text, number) + text[number.end :]


def remove_unit(text: str, number: NumberPlace) -> str:
    """Return the text without the unit after the number."""
    if number.unit is None:
        return text
    stands_behind = text[number.end : number.unit[0]].strip() == ""
    return text[: number.end if stands_behind else number.unit[0]] + text[number.unit[1] :]


def _quote_in_json(word: str, text: str, number: NumberPlace) -> str:
    """Return the word in quotes where the number that it replaces is a JSON value without quotes."""
    return f'"{word}"' if re.search(r'":\s*$', text[: number.start]) else word

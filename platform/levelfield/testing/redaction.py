"""Redacts a tool's output: each identity is replaced everywhere by one mask of the same form."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator, Mapping

from levelfield.contracts.tool_records import parse
from levelfield.errors import UsageError
from levelfield.specs.tool import Tool

_UUID = re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b")
_MAC = re.compile(r"\b[0-9a-fA-F]{2}(?:([:-])[0-9a-fA-F]{2})(?:\1[0-9a-fA-F]{2}){4}\b")
# What --redact replaces, in the words of its help and of docs/writing-a-vendor.md, by the label before the value: in
# `Serial Number : X`, in `"serial_no": "X"`, in `<serial>X`, or as the heading of a column.
LABELS = {
    "serial numbers": r"serial(?:[ _-]?(?:no|num(?:ber)?))?|sn|s/n",
    "UUIDs": r"uuid|guid",
    "MAC addresses": r"mac(?:[ _-]?addr(?:ess)?)?",
    "board ids": r"board[ _-]?id",
    "asset tags": r"asset[ _-]?tag",
    "host names": r"host[ _-]?name",
    "IP addresses": r"ip(?:v[46])?(?:[ _-]?addr(?:ess)?)?",
}
_LABEL = "|".join(LABELS.values())
_WORD = r"[A-Za-z0-9][A-Za-z0-9:._-]{3,}"
_LABELLED = re.compile(rf"(?i)(?<![A-Za-z0-9])(?:{_LABEL})\b\.?[\"']?\s*[:=>]\s*[\"']?({_WORD})")
_HEADING = re.compile(rf"(?i)(?:\w+[ _.-])*(?:{_LABEL})\.?")
_SEPARATORS = (",", ";", "\t", "|")
_BUS = re.compile(r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F]")
_PREFIX = re.compile(r"[A-Za-z]+[-_ ]|")


def replacements(texts: Mapping[str, str], tools: Mapping[str, Tool]) -> dict[str, str]:
    """Return the mask of each identity. Raises UsageError when two identities would get the same mask."""
    found = dict.fromkeys(word for name, text in texts.items() for word in identities(text, tools.get(name)))
    masks = {word: _mask(word, number) for number, word in enumerate(found, 1)}
    if len(set(masks.values())) < len(masks):
        raise UsageError("--redact: found identities too short for unique masks; record without it, and replace them")
    return masks


def redacted(texts: Mapping[str, str], tools: Mapping[str, Tool]) -> dict[str, str]:
    """Return the texts without identities, by file. Raises UsageError when other values would then be read."""
    masks = replacements(texts, tools)
    made = {name: _replaced(text, masks) for name, text in texts.items()}
    for name, tool in tools.items():
        if name in texts and _meaning(tool, texts[name]) != _meaning(tool, made[name]):
            raise UsageError(
                f"--redact: {name} gives other values without its identities; record without --redact, and replace "
                "them by hand"
            )
    return made


def identities(text: str, tool: Tool | None) -> Iterator[str]:
    """Return what LABELS name, UUIDs and MAC addresses without a label, identities by vendor.yaml, and this machine's
    name. Bus addresses are not identities, because they are the same on every machine of a kind."""
    yield from (match.group() for pattern in (_UUID, _MAC) for match in pattern.finditer(text))
    found = (*(match[1] for match in _LABELLED.finditer(text)), *_in_columns(text))
    yield from (word for word in found if not _UUID.search(word))
    words = [r.word("identity") for r in parse(tool, text).records.values()] if tool else []
    yield from (word for word in words if word and not _BUS.fullmatch(word) and not _UUID.search(word))
    if len(platform.node()) > 3 and platform.node() in text:
        yield platform.node()


def _in_columns(text: str) -> Iterator[str]:
    """Return the words of every column whose heading is a label, in a table of any separator."""
    lines = [line for line in text.splitlines() if line.strip()]
    for separator in _SEPARATORS:
        rows = [[cell.strip(" \"'") for cell in line.split(separator)] for line in lines]
        for number, heading in enumerate(rows[0] if rows else []):
            if len(rows[0]) > 1 and _HEADING.fullmatch(heading):
                cells = (row[number] for row in rows[1:] if len(row) == len(rows[0]))
                yield from (cell for cell in cells if re.fullmatch(_WORD, cell))


def _mask(word: str, number: int) -> str:
    """Return `number` in the form of the word: digits in the places of digits, a to f in those of letters.

    The prefix of a word like GPU-4711 stays, so that a pattern with the prefix still matches.
    """
    prefix = _PREFIX.match(word)
    made: list[str] = []
    for char in reversed(word[prefix.end() if prefix else 0 :]):
        digits = "0123456789" if char.isdigit() else "abcdef" if char.islower() else "ABCDEF"
        if char.isalnum():
            number, digit = divmod(number, len(digits))
            char = digits[digit]
        made.append(char)
    return (prefix.group() if prefix else "") + "".join(reversed(made))


def _replaced(text: str, masks: Mapping[str, str]) -> str:
    """Replace all identities in one pass, so that no mask is replaced again."""
    if not masks:
        return text
    words = sorted(masks, key=len, reverse=True)
    return re.sub("|".join(map(re.escape, words)), lambda match: masks[match.group()], text)


def _meaning(tool: Tool, text: str) -> list[object]:
    """Return the values that the tool's rules read from the text, without identities."""
    quantities = [name for name in tool.fields if name != "identity"]
    found = parse(tool, text).records
    return [(index, [record.texts.found.get(name) for name in quantities]) for index, record in sorted(found.items())]

"""Redacts a tool's output: each identity is replaced everywhere by one mask of the same form."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator, Mapping

from levelfield.contracts.tool_records import parse
from levelfield.errors import UsageError
from levelfield.specs.tool import Tool

_UUID = re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b")
_LABELLED = re.compile(
    r"(?i)\b(?:serial(?:[ _-]?(?:no|num(?:ber)?))?|uuid|guid|board[ _-]?id|asset[ _-]?tag|mac(?:[ _-]?address)?|"
    r"host[ _-]?name|sn)\b\.?[\"']?\s*[:=]\s*[\"']?([A-Za-z0-9][A-Za-z0-9:._-]{3,})"
)
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
    """Return UUIDs, texts after a label such as Serial Number, identities by vendor.yaml, and this machine's name.
    Bus addresses are not identities, because they are the same on every machine of a kind."""
    yield from (match.group() for match in _UUID.finditer(text))
    yield from (match[1] for match in _LABELLED.finditer(text) if not _UUID.search(match[1]))
    words = [r.word("identity") for r in parse(tool, text).records.values()] if tool else []
    yield from (word for word in words if word and not _BUS.fullmatch(word) and not _UUID.search(word))
    if len(platform.node()) > 3 and platform.node() in text:
        yield platform.node()


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

"""Identities out of a tool's output: each replaced by another of the same form, the same one everywhere."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator, Mapping

from levelfield.contracts.records import parse
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
    """What is to stand in the place of each identity. Raises UsageError when two would become one."""
    found = dict.fromkeys(word for name, text in texts.items() for word in identities(text, tools.get(name)))
    masks = {word: _mask(word, number) for number, word in enumerate(found, 1)}
    if len(set(masks.values())) < len(masks):
        raise UsageError("--redact: some identities are too short to stay apart; record without it, and replace them")
    return masks


def redacted(texts: Mapping[str, str], tools: Mapping[str, Tool]) -> dict[str, str]:
    """The texts by file without identities. Raises UsageError when one would then be read in another way."""
    masks = replacements(texts, tools)
    made = {name: _replaced(text, masks) for name, text in texts.items()}
    for name, tool in tools.items():
        if name in texts and _meaning(tool, texts[name]) != _meaning(tool, made[name]):
            raise UsageError(
                f"--redact: without its identities {name} would be read in another way; record without it, and replace "
                "them by hand"
            )
    return made


def identities(text: str, tool: Tool | None) -> Iterator[str]:
    """UUIDs, what stands behind a label such as Serial Number, identities by vendor.yaml, and this machine's name.
    Places on the bus are no identities: they are the same on every machine of a kind."""
    yield from (match.group() for match in _UUID.finditer(text))
    yield from (match[1] for match in _LABELLED.finditer(text) if not _UUID.search(match[1]))
    words = [r.word("identity") for r in parse(tool, text).records.values()] if tool else []
    yield from (word for word in words if word and not _BUS.fullmatch(word) and not _UUID.search(word))
    if len(platform.node()) > 3 and platform.node() in text:
        yield platform.node()


def _mask(word: str, number: int) -> str:
    """The same form with other content: `number`, in digits where digits were and in a to f where letters were.

    Of a word like GPU-4711 the prefix stays, so that a pattern that asks for it still matches.
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
    """All at once, so that no mask is taken for another identity."""
    if not masks:
        return text
    words = sorted(masks, key=len, reverse=True)
    return re.sub("|".join(map(re.escape, words)), lambda match: masks[match.group()], text)


def _meaning(tool: Tool, text: str) -> list[object]:
    """What is read from the text, but for identities."""
    quantities = [name for name in tool.fields if name != "identity"]
    found = parse(tool, text).records
    return [(index, [record.texts.found.get(name) for name in quantities]) for index, record in sorted(found.items())]

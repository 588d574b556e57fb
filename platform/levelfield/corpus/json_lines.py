"""Documents in files of JSON lines: one object for each line, one of whose fields holds the text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from levelfield.errors import CorpusError
from levelfield.node.regular_files import open_regular

LONGEST_LINE = 1 << 28


class Line(NamedTuple):
    """The text of one line as UTF-8, and the bytes of the whole line."""

    content: bytes
    size: int


def read_lines(path: Path, field: str) -> Iterator[Line]:
    """Return the text of each line. Blank lines are left out. Raises CorpusError with file, line and reason."""
    try:
        with open_regular(path) as file:
            number = 0
            while line := file.readline(LONGEST_LINE + 1):
                number += 1
                if len(line) > LONGEST_LINE:
                    raise CorpusError(f"{path}:{number}: found a line above {LONGEST_LINE:,} bytes; split the file")
                if line.strip():
                    yield Line(_text(line, field, f"{path}:{number}"), len(line))
    except OSError as error:
        raise CorpusError(f"{path}: cannot be read: {error.strerror}") from None


def _text(line: bytes, field: str, place: str) -> bytes:
    expected = f"expected a JSON object with the text in '{field}'"
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        found = repr(line[:40].decode(errors="replace"))
        raise CorpusError(f"{place}: found no JSON: {found}; {expected}. Without --field a file is a text") from None
    if not isinstance(content, dict):
        raise CorpusError(f"{place}: found {type(content).__name__}, {expected}")
    if field not in content:
        known = ", ".join(map(str, content)) or "none"
        raise CorpusError(f"{place}: found no field '{field}', {expected}; its fields: {known[:200]}")
    text = content[field]
    if not isinstance(text, str):
        raise CorpusError(f"{place}: field '{field}': found {type(text).__name__}, expected a text")
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise CorpusError(f"{place}: field '{field}': found half of a surrogate pair, expected Unicode text") from None

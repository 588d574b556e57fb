"""Finds text files, in an order that does not depend on the machine, and reads their contents in pieces."""

from __future__ import annotations

import codecs
import json
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from levelfield.corpus.facts import open_corpus_file
from levelfield.errors import CorpusError

TEXT_SUFFIXES = (
    *(".txt", ".text", ".md", ".rst", ".tex", ".org", ".adoc"),
    *(".py", ".pyi", ".c", ".h", ".cc", ".cpp", ".hpp", ".cu", ".rs", ".go", ".java", ".kt", ".swift", ".js", ".ts"),
    *(".rb", ".php", ".pl", ".sh", ".lua", ".r", ".jl", ".scala", ".hs", ".ml", ".lisp", ".el", ".sql"),
)
PIECE_BYTES = 1 << 24
_PROBE_BYTES = 8192

MAX_LINE_BYTES = 1 << 28


class Piece(NamedTuple):
    """A part of a document, cut at the end of a line if there is one."""

    content: bytes
    is_last: bool  # the document ends with it


def find_texts(inputs: Sequence[str | Path], suffixes: Sequence[str] | None = None) -> list[Path]:
    """Return the files to read: each named file, and all files with one of `suffixes` below each directory.

    They are sorted by name within each directory. Names that begin with a dot are left out. Links are followed,
    each directory only once. suffixes: TEXT_SUFFIXES by default, ("*",) for all. Raises CorpusError if one is missing.
    """
    lower_suffixes = tuple(suffix.lower() for suffix in suffixes or TEXT_SUFFIXES)
    texts: list[Path] = []
    for path in map(Path, inputs):
        if path.is_dir():
            texts.extend(_find_files(path, lower_suffixes, set()))
        elif path.is_file():
            texts.append(path)
        else:
            raise CorpusError(f"{path}: found nothing, expected a file or a directory of texts")
    if not texts:
        raise CorpusError(
            f"{', '.join(map(str, inputs))}: found no file with one of the suffixes {' '.join(lower_suffixes)}; "
            "--suffix '*' takes every file, and --field NAME reads every file as JSON lines"
        )
    return texts


def is_text(path: Path) -> bool:
    """Return whether the whole file is UTF-8, without a zero byte near its beginning. Raises CorpusError."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    with open_corpus_file(path) as file:
        if b"\0" in file.read(_PROBE_BYTES):
            return False
        file.seek(0)
        try:
            while block := file.read(PIECE_BYTES):
                decoder.decode(block)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return False
    return True


def split_text(content: bytes, piece_bytes: int = PIECE_BYTES) -> Iterator[Piece]:
    """Return a document's content in pieces of at most `piece_bytes`."""
    start = 0
    while len(content) - start > piece_bytes:
        stop = start + _cut_position(content[start : start + piece_bytes])
        yield Piece(content[start:stop], is_last=False)
        start = stop
    yield Piece(content[start:], is_last=True)


def read_pieces(path: Path, piece_bytes: int = PIECE_BYTES) -> Iterator[Piece]:
    """Return the file's content in pieces of at most `piece_bytes`, so memory is bounded. Raises CorpusError."""
    with open_corpus_file(path) as file:
        buffer = b""
        while block := file.read(piece_bytes - len(buffer)):
            buffer += block
            if len(buffer) == piece_bytes and file.peek(1):
                cut = _cut_position(buffer)
                yield Piece(buffer[:cut], is_last=False)
                buffer = buffer[cut:]
        yield Piece(buffer, is_last=True)


def _cut_position(content: bytes) -> int:
    """Return the place after the last line, or before the last character of a single line: it may be incomplete."""
    position = content.rfind(b"\n") + 1
    if position:
        return position
    position = len(content) - 1
    while position > 1 and content[position] & 0xC0 == 0x80:  # the second and later bytes of a character
        position -= 1
    return position


def _find_files(directory: Path, suffixes: tuple[str, ...], seen: set[tuple[int, int]]) -> Iterator[Path]:
    status = directory.stat()
    if (status.st_dev, status.st_ino) in seen:
        return
    seen.add((status.st_dev, status.st_ino))
    try:
        names = sorted(os.listdir(directory))  # noqa: PTH208 - names, to sort
    except OSError as error:
        raise CorpusError(f"{directory}: cannot be read: {error.strerror}") from None
    for name in names:
        path = directory / name
        try:
            mode = 0 if name.startswith(".") else path.stat().st_mode
        except OSError:  # a broken link, or a link to itself
            continue
        if stat.S_ISDIR(mode):
            yield from _find_files(path, suffixes, seen)
        elif stat.S_ISREG(mode) and ("*" in suffixes or name.lower().endswith(suffixes)):
            yield path


class TextLine(NamedTuple):
    """The text of one line as UTF-8, and the bytes of the whole line."""

    content: bytes
    size: int


def read_lines(path: Path, field: str) -> Iterator[TextLine]:
    """Return the text of each line. Blank lines are left out. Raises CorpusError with file, line and reason."""
    with open_corpus_file(path) as file:
        expected, line_number = f"expected a JSON object with the text in '{field}'", 0
        while line := file.readline(MAX_LINE_BYTES + 1):
            line_number += 1
            if len(line) > MAX_LINE_BYTES:
                raise CorpusError(f"{path}:{line_number}: found a line above {MAX_LINE_BYTES:,} bytes; split the file")
            if not line.strip():
                continue
            location = f"{path}:{line_number}"
            try:
                content = json.loads(line)
            except (ValueError, RecursionError):
                beginning = repr(line[:40].decode(errors="replace"))
                raise CorpusError(
                    f"{location}: found no JSON: {beginning}; {expected}. Without --field a file is a text"
                ) from None
            if not isinstance(content, dict):
                raise CorpusError(f"{location}: found {type(content).__name__}, {expected}")
            if field not in content:
                fields = ", ".join(map(str, content)) or "none"
                raise CorpusError(f"{location}: found no field '{field}', {expected}; its fields: {fields[:200]}")
            text, location = content[field], f"{location}: field '{field}'"
            if not isinstance(text, str):
                raise CorpusError(f"{location}: found {type(text).__name__}, expected a text")
            try:
                encoded = text.encode()
            except UnicodeEncodeError:
                raise CorpusError(f"{location}: found half of a surrogate pair, expected Unicode text") from None
            yield TextLine(encoded, len(line))

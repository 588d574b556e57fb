"""One full read of a corpus's files: their joint digest and the largest token."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from levelfield.corpus.facts import Progress
from levelfield.errors import CorpusError
from levelfield.node.regular_files import open_regular

_BLOCK_BYTES = 1 << 24


class Scan(NamedTuple):
    """A read's findings. digest: sha256 over the hexadecimal sha256 of both files, tokens first, one per line."""

    digest: str
    max_token: int


def scan(paths: tuple[Path, Path], dtype: Any, tokens: int, progress: Progress) -> Scan:
    """Read tokens and index. Raises CorpusError with the place of a negative token; OSError for unreadable files."""
    sizes = [path.stat().st_size for path in paths]
    largest = Largest(paths[0], dtype)
    header_bytes = sizes[0] - tokens * dtype.itemsize
    first = _digest(paths[0], header_bytes, largest.add, lambda done: progress(done, sum(sizes)))
    second = _digest(paths[1], 0, lambda block: None, lambda done: progress(sizes[0] + done, sum(sizes)))
    return Scan("sha256:" + hashlib.sha256(f"{first}\n{second}\n".encode()).hexdigest(), largest.value)


class Largest:
    """The largest token of the blocks added so far."""

    def __init__(self, path: Path, dtype: Any) -> None:
        self._path, self._dtype, self._seen, self.value = path, dtype, 0, 0

    def add(self, block: bytes) -> None:
        tokens = np.frombuffer(block, dtype=self._dtype)
        if int(tokens.min()) < 0:
            at = int(np.argmax(tokens < 0))
            raise CorpusError(f"{self._path}: token {self._seen + at} is {tokens[at]}, expected 0 or more")
        self.value = max(self.value, int(tokens.max()))
        self._seen += len(tokens)


def _digest(path: Path, header_bytes: int, visit: Callable[[bytes], None], progress: Callable[[int], None]) -> str:
    done = 0
    with open_regular(path) as file:
        hasher = hashlib.sha256(file.read(header_bytes))
        while block := file.read(_BLOCK_BYTES):
            hasher.update(block)
            visit(block)
            done += len(block)
            progress(header_bytes + done)
    return hasher.hexdigest()

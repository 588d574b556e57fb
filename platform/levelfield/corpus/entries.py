"""Checks every entry of a corpus's index. Memory is bounded: a million entries at a time."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from levelfield.corpus.facts import Kind
from levelfield.errors import CorpusError
from levelfield.worker.megatron import Index, open_index

_ENTRIES = 1 << 20


def check_entries(kind: Kind, path: Path, tokens: int) -> None:
    """Check the index at `path` of a corpus with `tokens` tokens. Raises CorpusError at the first wrong entry."""
    if kind == "paddle":
        _check_lens(path, tokens)
        return
    index = open_index(str(path))
    _check_sequences(index)
    _check_documents(index)


def _check_sequences(index: Index) -> None:
    end = 0  # the byte where the sequences so far end
    for start in range(0, len(index.lengths), _ENTRIES):
        lengths = index.lengths[start : start + _ENTRIES].astype(np.int64)
        _check_lengths(f"{index.path}: sequence", lengths, start)
        ends = end + np.cumsum(lengths) * index.dtype.itemsize
        expected = np.concatenate([[end], ends[:-1]])
        pointers = index.pointers[start : start + _ENTRIES]
        at = _first(pointers != expected)
        if at is not None:
            raise CorpusError(
                f"{index.path}: sequence {start + at} starts at byte {pointers[at]}, expected {expected[at]}, "
                f"where the sequences before it end"
            )
        end = int(ends[-1])


def _check_lengths(what: str, lengths: Any, start: int) -> None:
    at = _first(lengths < 1)
    if at is not None:
        raise CorpusError(f"{what} {start + at} has length {lengths[at]}, expected at least 1")


def _check_documents(index: Index) -> None:
    before, most = 0, len(index.lengths)
    if int(index.documents[0]) != 0:
        raise CorpusError(f"{index.path}: document 0 starts at sequence {index.documents[0]}, expected 0")
    for start in range(0, len(index.documents), _ENTRIES):
        part = index.documents[start : start + _ENTRIES]
        least = np.concatenate([[before], part[:-1]])
        at = _first((part < least) | (part > most))
        if at is not None:
            raise CorpusError(
                f"{index.path}: document index {start + at} is {part[at]}, expected {least[at]} (the one before it) "
                f"to {most} (the number of sequences)"
            )
        before = int(part[-1])


def _check_lens(path: Path, tokens: int) -> None:
    try:
        with np.load(path, allow_pickle=False) as archive:
            lens = archive["lens"].astype(np.int64)
    except (zipfile.BadZipFile, ValueError, EOFError) as error:
        raise CorpusError(f"{path}: lens cannot be read whole: {error}") from None
    _check_lengths(f"{path}: document", lens, 0)
    total = int(lens.sum())
    if total != tokens:
        raise CorpusError(f"{path}: the {len(lens)} lens sum to {total}, expected {tokens}, the number of tokens")


def _first(wrong: Any) -> int | None:
    return int(np.argmax(wrong)) if wrong.any() else None

"""Writes Megatron's pair of files: both complete, or none."""

from __future__ import annotations

import contextlib
import fcntl
import os
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from levelfield.corpus.facts import paths_of
from levelfield.errors import CorpusError
from levelfield.worker.megatron import DTYPES, HEADER, MAGIC

_LONGEST = 2**31 - 1  # a length is an int32 in the index
_ENTRIES = 1 << 20


class MegatronWriter:
    """Appends documents to a .bin and writes its index. Memory: four bytes for each document."""

    def __init__(self, file: IO[bytes], dtype: str) -> None:
        self._file, self._dtype = file, np.dtype(dtype)
        self._lengths = array("i")
        self._open_length = 0

    def add(self, tokens: Any) -> None:
        """Append tokens to the open document."""
        self._file.write(tokens.astype(self._dtype).tobytes())
        self._open_length += len(tokens)

    def end_document(self) -> None:
        """End the open document. Raises CorpusError when it is longer than the format allows."""
        if self._open_length > _LONGEST:
            raise CorpusError(
                f"document {len(self._lengths)} has {self._open_length} tokens, expected at most {_LONGEST}"
            )
        self._lengths.append(self._open_length)
        self._open_length = 0

    def write_index(self, file: IO[bytes]) -> None:
        """Write the index of all documents, one sequence for each."""
        lengths = np.frombuffer(self._lengths, dtype=np.int32)
        code = next(code for code, name in DTYPES.items() if np.dtype(name) == self._dtype)
        file.write(HEADER.pack(MAGIC, 1, code, len(lengths), len(lengths) + 1))
        file.write(lengths.astype("<i4").tobytes())
        for pointers in _pointers(lengths, self._dtype.itemsize):
            file.write(pointers.astype("<i8").tobytes())
        for start in range(0, len(lengths) + 1, _ENTRIES):
            file.write(np.arange(start, min(start + _ENTRIES, len(lengths) + 1), dtype="<i8").tobytes())


@contextlib.contextmanager
def new_corpus(prefix: Path, dtype: str, force: bool) -> Iterator[MegatronWriter]:
    """Give a writer whose files get their names when the block succeeds. Otherwise they are removed.

    force: replace an existing corpus. Raises CorpusError for an existing corpus without `force`, for another
    process that writes the same corpus, and when the files cannot be written.
    """
    tokens, index = paths_of("megatron", prefix)
    _refuse_existing((tokens, index), force)
    partial = [path.with_name(path.name + ".partial") for path in (tokens, index)]
    try:
        tokens.parent.mkdir(parents=True, exist_ok=True)
        with _exclusive(partial[0]) as file:
            try:
                writer = MegatronWriter(file, dtype)
                yield writer
                with partial[1].open("wb") as index_file:
                    writer.write_index(index_file)
                    _sync(index_file)
                _sync(file)
                index.unlink(missing_ok=True)  # so that a new .bin never stands beside an old .idx
                partial[0].replace(tokens)
                partial[1].replace(index)
            finally:
                for path in partial:
                    path.unlink(missing_ok=True)
    except OSError as error:
        raise CorpusError(f"{prefix}: cannot be written: {error.strerror}; the partial files are removed") from None


@contextlib.contextmanager
def _exclusive(path: Path) -> Iterator[IO[bytes]]:
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CorpusError(
                f"{path}: another process is writing it; wait for that process, or name another output"
            ) from None
        file.truncate(0)  # a killed process may have left content
        yield file


def _refuse_existing(paths: tuple[Path, ...], force: bool) -> None:
    there = [str(path) for path in paths if path.exists()]
    if there and not force:
        raise CorpusError(f"{' and '.join(there)}: exists; name another output, or replace it with --force")


def _pointers(lengths: Any, itemsize: int) -> Iterator[Any]:
    end = 0
    for start in range(0, len(lengths), _ENTRIES):
        part = lengths[start : start + _ENTRIES].astype(np.int64) * itemsize
        ends = end + np.cumsum(part)
        yield ends - part
        end = int(ends[-1])


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())

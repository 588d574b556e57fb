"""Megatron's indexed format: PREFIX.bin holds the tokens, PREFIX.idx the starts of sequences and documents.

The index, little-endian: magic, uint64 version, uint8 dtype code, uint64 number of sequences S, uint64
number of document indices D; then int32 lengths[S] in tokens, int64 pointers[S] in bytes, int64 documents[D].
`documents` holds the first sequence of each document and ends with S.
(Megatron-LM, core/datasets/indexed_dataset.py.)
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .faults import CorpusError
from .file_array import FileArray

MAGIC = b"MMIDIDX\x00\x00"
HEADER = struct.Struct("<9sQBQQ")
DTYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_FRACTIONAL = {6: "float64", 7: "float32"}


class Index(NamedTuple):
    """The parts of an index; `dtype` is the tokens' type."""

    path: str
    dtype: Any
    lengths: FileArray
    pointers: FileArray
    documents: FileArray


def open_megatron(prefix: str) -> tuple[FileArray, int]:
    """Return the tokens and the number of documents, at the same cost for every size. Raises CorpusError."""
    index = open_index(prefix + ".idx")
    size = file_size(prefix + ".bin")
    check_ends(index, prefix + ".bin", size)
    return _open_tokens(prefix + ".bin", index.dtype), len(index.documents) - 1


def open_index(path: str) -> Index:
    """Open the parts of the index at `path`. Raises CorpusError for a wrong header or size."""
    size = file_size(path)
    dtype, sequences, documents = _read_header(path, size)
    expected = HEADER.size + 12 * sequences + 8 * documents
    if size != expected:
        raise CorpusError(
            f"{path}: found {size} bytes, expected {expected} for {sequences} sequences and {documents} document "
            f"indices (its header, bytes 18 to 33)"
        )
    if sequences < 1 or documents < 2:
        raise CorpusError(
            f"{path}: found {sequences} sequences and {documents} document indices, expected at least 1 and 2"
        )
    return _parts(path, dtype, sequences, documents)


def check_ends(index: Index, bin_path: str, bin_size: int) -> None:
    """Check the index's first and last entries against the size of the tokens. Raises CorpusError."""
    last, itemsize = len(index.lengths) - 1, index.dtype.itemsize
    if int(index.pointers[0]) != 0:
        raise CorpusError(f"{index.path}: sequence 0 starts at byte {int(index.pointers[0])} of {bin_path}, expected 0")
    if int(index.documents[-1]) != last + 1:
        raise CorpusError(
            f"{index.path}: the last document index is {int(index.documents[-1])}, expected {last + 1}, "
            f"the number of sequences"
        )
    end = int(index.pointers[last]) + int(index.lengths[last]) * itemsize
    if end != bin_size:
        raise CorpusError(
            f"{bin_path}: found {bin_size} bytes, expected {end}, where sequence {last} ends by {index.path}"
        )


def _open_tokens(path: str, dtype: Any) -> FileArray:
    """Open the whole file as tokens of `dtype`. Raises CorpusError when the last token is cut off."""
    size = file_size(path)
    if size == 0 or size % dtype.itemsize:
        raise CorpusError(
            f"{path}: found {size} bytes, expected a positive multiple of {dtype.itemsize} ({dtype.name})"
        )
    return FileArray(path, dtype, 0, size // dtype.itemsize)


def file_size(path: str) -> int:
    """Return the size of the file in bytes. Raises CorpusError when it is missing or not a file."""
    try:
        if Path(path).is_file():
            return Path(path).stat().st_size
    except OSError as error:
        raise CorpusError(f"{path}: cannot be read: {error.strerror}") from None
    raise CorpusError(f"{path}: found nothing, expected a file of the corpus")


def _read_header(path: str, size: int) -> tuple[Any, int, int]:
    if size < HEADER.size:
        raise CorpusError(f"{path}: found {size} bytes, expected a header of {HEADER.size} at least")
    try:
        with Path(path).open("rb") as file:
            magic, version, code, sequences, documents = HEADER.unpack(file.read(HEADER.size))
    except OSError as error:
        raise CorpusError(f"{path}: cannot be read: {error.strerror}") from None
    if magic != MAGIC:
        raise CorpusError(f"{path}: found {magic!r} at byte 0, expected {MAGIC!r} (Megatron's index)")
    if version != 1:
        raise CorpusError(f"{path}: found version {version} at byte 9, expected 1")
    return _dtype(path, code), sequences, documents


def _dtype(path: str, code: int) -> Any:
    if code not in DTYPES:
        codes = ", ".join(f"{number} {np.dtype(name).name}" for number, name in sorted(DTYPES.items()))
        also = f" ({_FRACTIONAL[code]}, which holds no tokens)" if code in _FRACTIONAL else ""
        raise CorpusError(f"{path}: found dtype code {code}{also} at byte 17, expected one of {codes}")
    return np.dtype(DTYPES[code])


def _parts(path: str, dtype: Any, sequences: int, documents: int) -> Index:
    pointers = HEADER.size + 4 * sequences
    ends = pointers + 8 * sequences
    return Index(
        path,
        dtype,
        FileArray(path, "<i4", HEADER.size, sequences),
        FileArray(path, "<i8", pointers, sequences),
        FileArray(path, "<i8", ends, documents),
    )

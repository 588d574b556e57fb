"""Paddle's pair of files: PREFIX_ids.npy, one flat array of tokens, and PREFIX_idx.npz with the documents' `lens`.

This module reads only headers, so the cost of opening does not depend on the size.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .faults import CorpusError
from .file_array import FileArray
from .megatron import file_size

DTYPES = ("uint16", "int32", "int64")


class NpyHeader(NamedTuple):
    """The header of an .npy file. `start` is the byte where the values begin."""

    shape: tuple[int, ...]
    dtype: Any
    start: int


def open_paddle(prefix: str) -> tuple[FileArray, int]:
    """Return the tokens and the number of documents, at the same cost for every size. Raises CorpusError."""
    documents = read_lens_header(prefix + "_idx.npz").shape[0]
    path = prefix + "_ids.npy"
    header = _read_ids_header(path)
    return FileArray(path, header.dtype, header.start, header.shape[0]), documents


def read_lens_header(path: str) -> NpyHeader:
    """Return the header of `lens` in the index at `path`. Raises CorpusError for a damaged zip or wrong `lens`."""
    file_size(path)
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            if "lens.npy" not in names:
                arrays = ", ".join(name[: -len(".npy")] for name in names if name.endswith(".npy")) or "nothing"
                raise CorpusError(f"{path}: found {arrays}, expected an array named lens")
            with archive.open("lens.npy") as file:
                header = _read_header(file)
    except (zipfile.BadZipFile, ValueError, OSError, EOFError) as error:
        raise CorpusError(f"{path}: not a whole .npz file: {error}") from None
    if len(header.shape) != 1 or header.shape[0] < 1 or header.dtype.kind not in "iu":
        raise CorpusError(f"{path}: lens is {header.dtype.name} {header.shape}, expected one dimension of integers")
    return header


def _read_ids_header(path: str) -> NpyHeader:
    size = file_size(path)
    try:
        with Path(path).open("rb") as file:
            header = _read_header(file)
    except (ValueError, OSError) as error:
        raise CorpusError(f"{path}: not an .npy file: {error}") from None
    if len(header.shape) != 1 or header.shape[0] < 1 or header.dtype.name not in DTYPES:
        raise CorpusError(
            f"{path}: found {header.dtype.name} {header.shape}, expected one dimension of {', '.join(DTYPES)}"
        )
    expected = header.start + header.shape[0] * header.dtype.itemsize
    if size != expected:
        raise CorpusError(
            f"{path}: found {size} bytes, expected {expected} for {header.shape[0]} tokens of {header.dtype.name}"
        )
    return header


def _read_header(file: Any) -> NpyHeader:
    version = np.lib.format.read_magic(file)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"found .npy version {version}, expected (1, 0) or (2, 0)")
    shape, _, dtype = readers[version](file)
    return NpyHeader(shape, dtype, file.tell())

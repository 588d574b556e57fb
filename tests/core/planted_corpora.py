"""Corpora made by the letter of their formats, independently of the code under test, whole or with a planted fault."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np

CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "uint16": 8}


def write_megatron(prefix: Path, lengths: list[int], tokens: Any = None, dtype: str = "uint16", **faults: Any) -> Any:
    """Write PREFIX.bin and .idx, with faults: magic, version, code, pointers, index_lengths, documents."""
    tokens = np.arange(sum(lengths)) % 500 if tokens is None else tokens
    tokens = np.asarray(tokens).astype(dtype)
    starts = (np.cumsum([0, *lengths[:-1]]) * tokens.itemsize).tolist()
    pointers = faults.get("pointers", starts)
    documents = faults.get("documents", list(range(len(lengths) + 1)))
    header = faults.get("magic", b"MMIDIDX\x00\x00") + struct.pack("<Q", faults.get("version", 1))
    header += struct.pack("<BQQ", faults.get("code", CODES[dtype]), len(lengths), len(documents))
    body = np.array(faults.get("index_lengths", lengths), "<i4").tobytes()
    body += np.array(pointers, "<i8").tobytes() + np.array(documents, "<i8").tobytes()
    Path(f"{prefix}.bin").write_bytes(tokens.tobytes())
    Path(f"{prefix}.idx").write_bytes(header + body)
    return tokens


def write_paddle(prefix: Path, lengths: list[int], tokens: Any = None, dtype: str = "uint16", **arrays: Any) -> Any:
    """Write PREFIX_ids.npy and _idx.npz; `arrays` replaces what the index holds. Returns the tokens."""
    tokens = np.arange(sum(lengths)) % 500 if tokens is None else tokens
    tokens = np.asarray(tokens).astype(dtype)
    np.save(f"{prefix}_ids.npy", tokens)
    np.savez(f"{prefix}_idx.npz", **(arrays or {"lens": np.array(lengths, "int32")}))
    return tokens


def cut(path: Path, size: int) -> None:
    """Keep the first `size` bytes; a negative size leaves out so many at the end."""
    path.write_bytes(path.read_bytes()[:size])

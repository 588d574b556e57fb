"""The full check of a corpus: every index entry and every token, once. The facts are then stored."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from levelfield.corpus.facts import (
    CORPUS_SUFFIXES,
    CorpusFacts,
    CorpusKind,
    ProgressCallback,
    corpus_files,
    file_marks,
    load_facts,
    store_facts,
)
from levelfield.errors import CorpusError
from levelfield.node.regular_files import open_regular
from levelfield.worker.corpora import open_corpus
from levelfield.worker.faults import CorpusError as WorkerCorpusError
from levelfield.worker.megatron import Index, open_index

_BLOCK_ENTRIES = 1 << 20
_BLOCK_BYTES = 1 << 24


def check_corpus(
    prefix: str | Path, kind: CorpusKind | None = None, progress: ProgressCallback | None = None, reread: bool = False
) -> CorpusFacts:
    """Return the facts of the corpus at `prefix`. It is read in full, unless its files' sizes and times are unchanged.

    kind: by default that of the files present. reread: read it in full in any case. Raises CorpusError with the
    file, what was found, what was expected and where.
    """
    absolute_prefix = Path(prefix).absolute()
    kind = kind or detect_kind(absolute_prefix)
    marks = file_marks(kind, absolute_prefix)
    stored = load_facts(kind, absolute_prefix)
    if stored and stored.marks == marks and not reread:
        return stored.facts
    facts = _read_all(kind, absolute_prefix, progress or (lambda done, total: None))
    if file_marks(kind, absolute_prefix) != marks:
        raise CorpusError(
            f"{absolute_prefix}: its files changed while they were checked; start again when they are complete"
        )
    if stored and stored.facts.digest == facts.digest:
        facts = facts.model_copy(update={"prepared": stored.facts.prepared})
    store_facts(facts, marks)
    return facts


def detect_kind(prefix: Path) -> CorpusKind:
    """Return the kind of the files at `prefix`. Raises CorpusError for no kind, both kinds, and half a pair."""
    files = {kind: [path.name for path in corpus_files(kind, prefix) if path.exists()] for kind in CORPUS_SUFFIXES}
    pairs = {kind: " and ".join(path.name for path in corpus_files(kind, prefix)) for kind in CORPUS_SUFFIXES}
    present = [kind for kind, names in files.items() if names]
    if not present:
        hint = "; give the prefix without the suffix" if prefix.is_file() else ""
        raise CorpusError(f"{prefix}: found no corpus, expected {', or '.join(pairs.values())}{hint}")
    if len(present) > 1:
        names = ", ".join(name for pair in files.values() for name in pair)
        raise CorpusError(f"{prefix}: found files of two kinds ({names}), expected one kind; move the other files away")
    kind = present[0]
    if len(files[kind]) == 1:
        raise CorpusError(f"{prefix}: found only {files[kind][0]}, expected both {pairs[kind]}")
    return kind


def _read_all(kind: CorpusKind, prefix: Path, progress: ProgressCallback) -> CorpusFacts:
    try:
        corpus = open_corpus(kind, str(prefix))
        if kind == "paddle":
            path = corpus_files(kind, prefix)[1]
            try:
                with np.load(path, allow_pickle=False) as archive:
                    lens = archive["lens"].astype(np.int64)
            except (zipfile.BadZipFile, ValueError, EOFError) as error:
                raise CorpusError(f"{path}: lens cannot be read whole: {error}") from None
            _check_lengths(f"{path}: document", lens, 0)
            if (total := int(lens.sum())) != (count := len(corpus.tokens)):
                raise CorpusError(
                    f"{path}: the {len(lens)} lens sum to {total}, expected {count}, the number of tokens"
                )
        else:
            _check_index(open_index(str(corpus_files(kind, prefix)[1])))
        digest, max_token = scan_files(corpus_files(kind, prefix), corpus.tokens.dtype, len(corpus.tokens), progress)
    except WorkerCorpusError as error:
        raise CorpusError(str(error)) from None
    except OSError as error:
        raise CorpusError(f"{prefix}: cannot be read: {error.strerror or error}") from None
    return CorpusFacts(
        kind=kind,
        prefix=str(prefix),
        tokens=len(corpus.tokens),
        documents=corpus.documents,
        dtype=corpus.tokens.dtype.name,
        digest=digest,
        max_token=max_token,
    )


def _check_index(index: Index) -> None:
    """Raise CorpusError for a sequence that does not start where the one before it ends, and for documents out of
    order."""
    end = 0  # the byte where the sequences so far end
    for start in range(0, len(index.lengths), _BLOCK_ENTRIES):
        lengths = index.lengths[start : start + _BLOCK_ENTRIES].astype(np.int64)
        _check_lengths(f"{index.path}: sequence", lengths, start)
        ends = end + np.cumsum(lengths) * index.dtype.itemsize
        expected = np.concatenate([[end], ends[:-1]])
        pointers = index.pointers[start : start + _BLOCK_ENTRIES]
        fault = _first_true(pointers != expected)
        if fault is not None:
            raise CorpusError(
                f"{index.path}: sequence {start + fault} starts at byte {pointers[fault]}, expected {expected[fault]}, "
                f"where the sequences before it end"
            )
        end = int(ends[-1])
    previous, sequences = 0, len(index.lengths)
    if int(index.documents[0]) != 0:
        raise CorpusError(f"{index.path}: document 0 starts at sequence {index.documents[0]}, expected 0")
    for start in range(0, len(index.documents), _BLOCK_ENTRIES):
        part = index.documents[start : start + _BLOCK_ENTRIES]
        lowest = np.concatenate([[previous], part[:-1]])
        fault = _first_true((part < lowest) | (part > sequences))
        if fault is not None:
            raise CorpusError(
                f"{index.path}: document index {start + fault} is {part[fault]}, expected {lowest[fault]} (the one "
                f"before it) to {sequences} (the number of sequences)"
            )
        previous = int(part[-1])


def _check_lengths(subject: str, lengths: Any, start: int) -> None:
    fault = _first_true(lengths < 1)
    if fault is not None:
        raise CorpusError(f"{subject} {start + fault} has length {lengths[fault]}, expected at least 1")


def _first_true(flags: Any) -> int | None:
    return int(np.argmax(flags)) if flags.any() else None


def scan_files(paths: tuple[Path, Path], dtype: Any, tokens: int, progress: ProgressCallback) -> tuple[str, int]:
    """Read tokens and index. Return the digest of both and the largest token.

    The digest is sha256 over the hexadecimal sha256 of both files, tokens first, one per line. Raises CorpusError with
    the place of a negative token; OSError for unreadable files.
    """
    sizes = [path.stat().st_size for path in paths]
    header_bytes = sizes[0] - tokens * dtype.itemsize
    digests = ""
    read_tokens = largest = 0
    for path, header, done_before in zip(paths, (header_bytes, 0), (0, sizes[0]), strict=True):
        with open_regular(path) as file:
            hasher, done = hashlib.sha256(file.read(header)), done_before + header
            while block := file.read(_BLOCK_BYTES):
                hasher.update(block)
                if path == paths[0]:
                    values = np.frombuffer(block, dtype=dtype)
                    if int(values.min()) < 0:
                        fault = int(np.argmax(values < 0))
                        raise CorpusError(f"{path}: token {read_tokens + fault} is {values[fault]}, expected 0 or more")
                    largest = max(largest, int(values.max()))
                    read_tokens += len(values)
                done += len(block)
                progress(done, sum(sizes))
        digests += f"{hasher.hexdigest()}\n"
    return "sha256:" + hashlib.sha256(digests.encode()).hexdigest(), largest

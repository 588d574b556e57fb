"""What the platform knows of a corpus after reading all of it, and the small file that remembers it."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from levelfield.errors import CorpusError, DocumentError
from levelfield.specs.base import Document, Value, dump, load

Kind = Literal["megatron", "paddle"]
Progress = Callable[[int, int], None]
"""Called with the bytes done and the bytes in all."""

SUFFIXES: Mapping[Kind, tuple[str, str]] = {"megatron": (".bin", ".idx"), "paddle": ("_ids.npy", "_idx.npz")}


class Preparation(Value):
    """How `prepare` made the corpus. source_digest: sha256 over the documents' contents, in order."""

    tokenizer: str
    tokenizer_digest: str | None
    vocab_size: int = Field(ge=1)
    end_token: int = Field(ge=0)
    source_files: int
    source_bytes: int
    source_digest: str
    skipped_binary: int
    skipped_empty: int


class CorpusFacts(Value):
    """A corpus found whole. prefix: absolute, without the suffixes; digest: of both files; dtype: of the tokens."""

    kind: Kind
    prefix: str
    tokens: int = Field(ge=1)
    documents: int = Field(ge=1)
    dtype: str
    digest: str
    max_token: int = Field(ge=0)
    prepared: Preparation | None = None


class FileMark(Value):
    """By these a file is taken to be unchanged."""

    size_bytes: int
    mtime_ns: int


class Remembered(Document):
    KIND: ClassVar[str] = "corpus"

    facts: CorpusFacts
    marks: tuple[FileMark, FileMark]


def paths_of(kind: Kind, prefix: Path) -> tuple[Path, Path]:
    """The two files of a corpus: tokens, then index."""
    tokens, index = SUFFIXES[kind]
    return Path(f"{prefix}{tokens}"), Path(f"{prefix}{index}")


def mark(kind: Kind, prefix: Path) -> tuple[FileMark, FileMark]:
    """The marks of both files as they are now. Raises CorpusError when one cannot be seen."""
    tokens, index = paths_of(kind, prefix)
    return _mark(tokens), _mark(index)


def recall(kind: Kind, prefix: Path) -> Remembered | None:
    """What was remembered of this corpus, wherever it lies; None when nothing readable was. May be out of date."""
    for path in (_beside(prefix), _cached(prefix)):
        with contextlib.suppress(DocumentError):
            found = load(Remembered, path)
            if found.facts.kind == kind:
                return found.model_copy(update={"facts": found.facts.model_copy(update={"prefix": str(prefix)})})
    return None


def remember(facts: CorpusFacts, marks: tuple[FileMark, FileMark]) -> None:
    """Keep the facts beside the corpus, else in the user's cache; where neither can be written, not at all."""
    text = dump(Remembered(facts=facts, marks=marks))
    prefix = Path(facts.prefix)
    for path in (_beside(prefix), _cached(prefix)):
        with contextlib.suppress(OSError):
            _replace(path, text)
            return


def _mark(path: Path) -> FileMark:
    try:
        found = path.stat()
    except OSError as error:
        raise CorpusError(f"{path}: cannot be read: {error.strerror}") from None
    return FileMark(size_bytes=found.st_size, mtime_ns=found.st_mtime_ns)


def _beside(prefix: Path) -> Path:
    return Path(f"{prefix}.levelfield.json")


def _cached(prefix: Path) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "levelfield" / "corpora" / f"{hashlib.sha256(os.fsencode(prefix)).hexdigest()[:32]}.json"


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise

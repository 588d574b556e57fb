"""The facts of a corpus, which a full read gives, and the small file that stores them."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from io import BufferedReader
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from levelfield.errors import CorpusError, DocumentError
from levelfield.node.regular_files import open_regular
from levelfield.specs.base import Document, Value, dump, load
from levelfield.user_folders import cache_folder

CorpusKind = Literal["megatron", "paddle"]
ProgressCallback = Callable[[int, int], None]  # takes the bytes done and the total bytes

CORPUS_SUFFIXES: Mapping[CorpusKind, tuple[str, str]] = {
    "megatron": (".bin", ".idx"),
    "paddle": ("_ids.npy", "_idx.npz"),
}


class Preparation(Value):
    """How `prepare` created the corpus."""

    tokenizer: str
    tokenizer_digest: str | None
    vocab_size: int = Field(ge=1)
    end_token: int = Field(ge=0)
    source_files: int
    source_bytes: int
    source_digest: str  # sha256 over the documents' contents, in order
    skipped_binary: int
    skipped_empty: int
    field: str | None = None  # of the JSON lines that held the texts; None where each file was a text
    cuts: int = 0  # places of long documents where the tokens may differ from those of the whole document


class CorpusFacts(Value):
    """A valid corpus."""

    kind: CorpusKind
    prefix: str  # absolute, without the suffixes
    tokens: int = Field(ge=1)
    documents: int = Field(ge=1)
    dtype: str  # of the tokens
    digest: str  # of both files
    max_token: int = Field(ge=0)
    prepared: Preparation | None = None


class FileMark(Value):
    """The size and the time of a file. While they stay the same, the file counts as unchanged."""

    size_bytes: int
    mtime_ns: int


class StoredFacts(Document):
    """The content of the file of facts."""

    KIND: ClassVar[str] = "corpus"

    facts: CorpusFacts
    marks: tuple[FileMark, FileMark]


def corpus_files(kind: CorpusKind, prefix: Path) -> tuple[Path, Path]:
    """Return the two files of a corpus: tokens, then index."""
    tokens, index = CORPUS_SUFFIXES[kind]
    return Path(f"{prefix}{tokens}"), Path(f"{prefix}{index}")


@contextlib.contextmanager
def open_corpus_file(path: Path) -> Iterator[BufferedReader]:
    """Open a file. Raises CorpusError when it cannot be read."""
    try:
        with open_regular(path) as file:
            yield file
    except OSError as error:
        raise CorpusError(f"{path}: cannot be read: {error.strerror}") from None


def file_marks(kind: CorpusKind, prefix: Path) -> tuple[FileMark, FileMark]:
    """Return the current marks of both files. Raises CorpusError when one cannot be read."""
    marks = []
    for path in corpus_files(kind, prefix):
        with open_corpus_file(path) as file:
            status = os.fstat(file.fileno())
        marks.append(FileMark(size_bytes=status.st_size, mtime_ns=status.st_mtime_ns))
    return marks[0], marks[1]


def load_facts(kind: CorpusKind, prefix: Path) -> StoredFacts | None:
    """Return the stored facts of this corpus, or None when none can be read. They may be out of date."""
    for path in facts_files(prefix):
        with contextlib.suppress(DocumentError):
            stored = load(StoredFacts, path)
            if stored.facts.kind == kind:
                return stored.model_copy(update={"facts": stored.facts.model_copy(update={"prefix": str(prefix)})})
    return None


def store_facts(facts: CorpusFacts, marks: tuple[FileMark, FileMark]) -> None:
    """Store the facts beside the corpus, else in the user's cache. If both are read-only, store nothing."""
    text = dump(StoredFacts(facts=facts, marks=marks))
    for path in facts_files(Path(facts.prefix)):
        partial = path.with_name(f"{path.name}.{os.urandom(4).hex()}.partial")
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                partial.write_text(text, encoding="utf-8")
                partial.replace(path)
            except OSError:
                partial.unlink(missing_ok=True)
                raise
            return


def facts_files(prefix: Path) -> tuple[Path, Path]:
    """Return where the facts of a corpus may be: the file beside it, and the one in the user's cache."""
    digest = hashlib.sha256(os.fsencode(prefix)).hexdigest()[:32]
    return Path(f"{prefix}.levelfield.json"), cache_folder() / "levelfield" / "corpora" / f"{digest}.json"

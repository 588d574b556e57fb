"""Prepares a corpus in Megatron's format from text: one document for each file or JSON line, in a fixed order."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from levelfield.corpus.facts import CorpusFacts, Preparation, Progress, mark, remember
from levelfield.corpus.integrity import check
from levelfield.corpus.texts import Piece, find_texts, is_text, pieces_of, read_lines, read_pieces
from levelfield.corpus.tokenization import Tokenizer, open_tokenizer
from levelfield.corpus.writer import MegatronWriter, new_corpus
from levelfield.errors import CorpusError

_SMALL_VOCABULARY = 65500  # Megatron's own limit for two-byte tokens
_BATCH_BYTES = 1 << 22  # the tokenizers library spreads a batch over the cores


def prepare(
    inputs: str | Path | Sequence[str | Path],
    tokenizer: str,
    output: str | Path,
    suffixes: Sequence[str] | None = None,
    progress: Progress | None = None,
    force: bool = False,
    end_token: str | None = None,
    field: str | None = None,
) -> CorpusFacts:
    """Write OUTPUT.bin and OUTPUT.idx, check them and return their facts. Equal inputs give equal bytes.

    inputs: files and directories (find_texts defines which files count). tokenizer: `bytes`, or the path of a
    TOKENIZER.json, whose token `end_token` ends each document (by default one of END_TOKENS). force: replace an
    existing corpus. progress: bytes of text done, and their total. field: the files hold JSON lines, and this field of
    each is a document; all files of a directory count then. Raises CorpusError; then no file stays.
    """
    prefix = Path(output).absolute()
    words = open_tokenizer(tokenizer, end_token)
    suffixes = suffixes or (["*"] if field else None)
    texts = find_texts([inputs] if isinstance(inputs, (str, Path)) else inputs, suffixes)
    source = TextSource(texts, sum(path.stat().st_size for path in texts), progress, field)
    with new_corpus(prefix, "<u2" if words.vocab_size < _SMALL_VOCABULARY else "<i4", force) as writer:
        _write_all(writer, words, source.pieces())
        if not source.documents:
            raise CorpusError(
                f"{texts[0]}: found no text in {len(texts)} files ({source.skipped_binary} are not UTF-8 text, "
                f"{source.skipped_empty} are empty)"
            )
    facts = check(prefix, "megatron", again=True)
    facts = facts.model_copy(update={"prepared": source.preparation(words)})
    remember(facts, mark("megatron", prefix))
    return facts


@dataclasses.dataclass
class TextSource:
    """The texts while they are read, with counts of the files, documents and bytes read so far."""

    texts: Sequence[Path]
    total_bytes: int
    progress: Progress | None
    field: str | None = None
    files: int = 0
    documents: int = 0
    read_bytes: int = 0
    done_bytes: int = 0
    skipped_binary: int = 0
    skipped_empty: int = 0
    digest: Any = dataclasses.field(default_factory=hashlib.sha256)

    def pieces(self) -> Iterator[Piece]:
        """Return the pieces of all text files, in order. Other files are only counted."""
        for path in self.texts:
            size = path.stat().st_size
            if size == 0:
                self.skipped_empty += 1
            elif not is_text(path):
                self.skipped_binary += 1
                self._advance(size)
            else:
                yield from self._lines(path, self.field) if self.field else self._document(path)

    def preparation(self, tokenizer: Tokenizer) -> Preparation:
        """Return the origin of the corpus for its facts."""
        return Preparation(
            tokenizer=tokenizer.name,
            tokenizer_digest=tokenizer.digest,
            vocab_size=tokenizer.vocab_size,
            end_token=tokenizer.end_token,
            source_files=self.files,
            source_bytes=self.read_bytes,
            source_digest="sha256:" + self.digest.hexdigest(),
            skipped_binary=self.skipped_binary,
            skipped_empty=self.skipped_empty,
            field=self.field,
            cuts=tokenizer.cuts,
        )

    def _document(self, path: Path) -> Iterator[Piece]:
        content = hashlib.sha256()
        for piece in read_pieces(path):
            content.update(piece.content)
            self.read_bytes += len(piece.content)
            yield piece
            self._advance(len(piece.content))
        self.digest.update(content.digest())
        self.files += 1
        self.documents += 1

    def _lines(self, path: Path, field: str) -> Iterator[Piece]:
        """Return the pieces of a file of JSON lines. A line without text, such as a redirect's, is only counted."""
        for line in read_lines(path, field):
            if line.content:
                self.digest.update(hashlib.sha256(line.content).digest())
                self.read_bytes += len(line.content)
                self.documents += 1
                yield from pieces_of(line.content)
            else:
                self.skipped_empty += 1
            self._advance(line.size)
        self.files += 1

    def _advance(self, size: int) -> None:
        self.done_bytes += size
        if self.progress:
            self.progress(self.done_bytes, self.total_bytes)


def _write_all(writer: MegatronWriter, tokenizer: Tokenizer, pieces: Iterator[Piece]) -> None:
    """Write all documents: those of one piece in batches, longer ones by themselves."""
    batch: list[bytes] = []
    size = 0
    for piece in pieces:
        if piece.ends:
            batch.append(piece.content)
            size += len(piece.content)
        if size >= _BATCH_BYTES or not piece.ends:
            _write(writer, tokenizer, batch)
            batch, size = [], 0
        if not piece.ends:
            _add(writer, tokenizer, tokenizer.encode_long(_document(piece, pieces)))
    _write(writer, tokenizer, batch)


def _write(writer: MegatronWriter, tokenizer: Tokenizer, batch: Sequence[bytes]) -> None:
    for tokens in tokenizer.encode(batch):
        _add(writer, tokenizer, [tokens])


def _add(writer: MegatronWriter, tokenizer: Tokenizer, parts: Iterable[Any]) -> None:
    """Write one document from the parts of its tokens."""
    for tokens in parts:
        writer.add(tokens)
    writer.add(np.array([tokenizer.end_token]))
    writer.end_document()


def _document(first: Piece, pieces: Iterator[Piece]) -> Iterator[bytes]:
    """Return the contents of the pieces of one document, whose later ones are taken from `pieces`."""
    yield first.content
    for piece in pieces:
        yield piece.content
        if piece.ends:
            return

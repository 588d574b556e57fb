"""Prepares a corpus in Megatron's format from text: one document for each file or JSON line, in a fixed order."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import IO, Any

import numpy as np

from levelfield.corpus.facts import CorpusFacts, Preparation, ProgressCallback, corpus_files, file_marks, store_facts
from levelfield.corpus.integrity import check_corpus
from levelfield.corpus.texts import Piece, find_texts, is_text, read_lines, read_pieces, split_text
from levelfield.corpus.tokenization import Tokenizer, open_tokenizer
from levelfield.errors import CorpusError
from levelfield.worker.megatron import DTYPES, HEADER, MAGIC

_SMALL_VOCABULARY = 65500  # Megatron's own limit for two-byte tokens
_BATCH_BYTES = 1 << 22  # the tokenizers library spreads a batch over the cores
_MAX_DOCUMENT_TOKENS = 2**31 - 1  # a length is an int32 in the index
_BLOCK_ENTRIES = 1 << 20


def prepare_corpus(
    inputs: str | Path | Sequence[str | Path],
    tokenizer: str,
    output: str | Path,
    suffixes: Sequence[str] | None = None,
    progress: ProgressCallback | None = None,
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
    text_tokenizer = open_tokenizer(tokenizer, end_token)
    suffixes = suffixes or (["*"] if field else None)
    texts = find_texts([inputs] if isinstance(inputs, (str, Path)) else inputs, suffixes)
    source = TextSource(texts, sum(path.stat().st_size for path in texts), progress, field)
    with new_corpus(prefix, "<u2" if text_tokenizer.vocab_size < _SMALL_VOCABULARY else "<i4", force) as writer:
        for parts in _token_documents(text_tokenizer, source.pieces()):
            writer.add(chain(parts, [np.array([text_tokenizer.end_token])]))
        if not source.documents:
            raise CorpusError(
                f"{texts[0]}: found no text in {len(texts)} files ({source.skipped_binary} are not UTF-8 text, "
                f"{source.skipped_empty} are empty)"
            )
    facts = check_corpus(prefix, "megatron", reread=True)
    facts = facts.model_copy(update={"prepared": source.preparation(text_tokenizer)})
    store_facts(facts, file_marks("megatron", prefix))
    return facts


@dataclasses.dataclass
class TextSource:
    """The texts while they are read, with counts of the files, documents and bytes read so far."""

    texts: Sequence[Path]
    total_bytes: int
    progress: ProgressCallback | None
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
            elif self.field:
                for line in read_lines(path, self.field):
                    if line.content:
                        self.digest.update(hashlib.sha256(line.content).digest())
                        self.read_bytes += len(line.content)
                        self.documents += 1
                        yield from split_text(line.content)
                    else:  # a line without text, such as a redirect's, is only counted
                        self.skipped_empty += 1
                    self._advance(line.size)
                self.files += 1
            else:
                content = hashlib.sha256()
                for piece in read_pieces(path):
                    content.update(piece.content)
                    self.read_bytes += len(piece.content)
                    yield piece
                    self._advance(len(piece.content))
                self.digest.update(content.digest())
                self.files += 1
                self.documents += 1

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
            cuts=tokenizer.cut_count,
        )

    def _advance(self, size: int) -> None:
        self.done_bytes += size
        if self.progress:
            self.progress(self.done_bytes, self.total_bytes)


def _token_documents(tokenizer: Tokenizer, pieces: Iterator[Piece]) -> Iterator[Iterable[Any]]:
    """Return the tokens of each document, in parts: documents of one piece in batches, longer ones by themselves.

    The caller reads the parts of a long document before it takes the next document.
    """
    batch: list[bytes] = []
    size = 0
    for piece in pieces:
        if piece.is_last:
            batch.append(piece.content)
            size += len(piece.content)
        if size >= _BATCH_BYTES or not piece.is_last:
            yield from ([tokens] for tokens in tokenizer.encode(batch))
            batch, size = [], 0
        if not piece.is_last:
            yield tokenizer.encode_long(_document_contents(piece, pieces))
    yield from ([tokens] for tokens in tokenizer.encode(batch))


def _document_contents(first: Piece, pieces: Iterator[Piece]) -> Iterator[bytes]:
    """Return the contents of the pieces of one document, whose later ones are taken from `pieces`."""
    yield first.content
    for piece in pieces:
        yield piece.content
        if piece.is_last:
            return


class MegatronWriter:
    """Appends documents to a .bin and writes its index. Memory: four bytes for each document."""

    def __init__(self, file: IO[bytes], dtype: str) -> None:
        self._file, self._dtype = file, np.dtype(dtype)
        self._lengths = array("i")

    def add(self, parts: Iterable[Any]) -> None:
        """Append a document from the parts of its tokens. Raises CorpusError for one that the format does not allow."""
        length = 0
        for tokens in parts:
            self._file.write(tokens.astype(self._dtype).tobytes())
            length += len(tokens)
        if length > _MAX_DOCUMENT_TOKENS:
            raise CorpusError(
                f"document {len(self._lengths)} has {length} tokens, expected at most {_MAX_DOCUMENT_TOKENS}"
            )
        self._lengths.append(length)

    def write_index(self, file: IO[bytes]) -> None:
        """Write the index of all documents, one sequence for each."""
        lengths = np.frombuffer(self._lengths, dtype=np.int32)
        dtype_code = next(dtype_code for dtype_code, name in DTYPES.items() if np.dtype(name) == self._dtype)
        file.write(HEADER.pack(MAGIC, 1, dtype_code, len(lengths), len(lengths) + 1))
        file.write(lengths.astype("<i4").tobytes())
        end = 0
        for start in range(0, len(lengths), _BLOCK_ENTRIES):
            sizes = lengths[start : start + _BLOCK_ENTRIES].astype(np.int64) * self._dtype.itemsize
            ends = end + np.cumsum(sizes)
            file.write((ends - sizes).astype("<i8").tobytes())
            end = int(ends[-1])
        for start in range(0, len(lengths) + 1, _BLOCK_ENTRIES):
            file.write(np.arange(start, min(start + _BLOCK_ENTRIES, len(lengths) + 1), dtype="<i8").tobytes())


@contextlib.contextmanager
def new_corpus(prefix: Path, dtype: str, force: bool) -> Iterator[MegatronWriter]:
    """Give a writer whose files get their names when the block succeeds. Otherwise they are removed.

    force: replace an existing corpus. Raises CorpusError for an existing corpus without `force`, for another
    process that writes the same corpus, and when the files cannot be written.
    """
    tokens, index = corpus_files("megatron", prefix)
    existing = [str(path) for path in (tokens, index) if path.exists()]
    if existing and not force:
        raise CorpusError(f"{' and '.join(existing)}: exists; name another output, or replace it with --force")
    partial_files = [path.with_name(path.name + ".partial") for path in (tokens, index)]
    try:
        tokens.parent.mkdir(parents=True, exist_ok=True)
        with open(partial_files[0], "ab", opener=_open_without_links) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise CorpusError(
                    f"{partial_files[0]}: another process is writing it; wait for that process, or name another output"
                ) from None
            file.truncate(0)  # a killed process may have left content
            try:
                yield (writer := MegatronWriter(file, dtype))
                with open(partial_files[1], "wb", opener=_open_without_links) as index_file:
                    writer.write_index(index_file)
                    for output_file in (index_file, file):
                        output_file.flush()
                        os.fsync(output_file.fileno())
                index.unlink(missing_ok=True)  # so that a new .bin never stands beside an old .idx
                partial_files[0].replace(tokens)
                partial_files[1].replace(index)
            finally:
                for path in partial_files:
                    path.unlink(missing_ok=True)
    except OSError as error:
        raise CorpusError(f"{prefix}: cannot be written: {error.strerror}; the partial files are removed") from None


def _open_without_links(path: str, flags: int) -> int:
    """Open a partial file. A link in its place leads to a file of somebody else, which would be emptied."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)

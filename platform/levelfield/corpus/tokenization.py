"""Turns text into token numbers: by bytes, with a TOKENIZER.json of the tokenizers library, or with SentencePiece."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from levelfield.errors import CorpusError
from levelfield.node.regular_files import read_regular

END_TOKENS = ("<|endoftext|>", "</s>", "<|end_of_text|>")

# A tokenizer decides by the text nearby. So two windows that overlap give the same tokens there, except near the ends
# of the overlap. They are joined in its middle, if they agree on every token of its middle half.
WINDOW_CHARACTERS = 1 << 20
OVERLAP_CHARACTERS = 1 << 14
_BATCH_WINDOWS = 4  # which the tokenizers library spreads over the cores


class ByteTokenizer:
    """Every byte is a token, 0 to 255. Token 256 ends a document."""

    name = "bytes"
    digest: str | None = None
    vocab_size = 257  # above every number that `encode` returns
    end_token = 256
    cut_count = 0  # as LibraryTokenizer.cut_count

    def encode(self, texts: Sequence[bytes]) -> list[Any]:
        """Return the token numbers of each UTF-8 text as an array, without the end-of-document token."""
        return [np.frombuffer(text, dtype=np.uint8) for text in texts]

    def encode_long(self, parts: Iterable[bytes]) -> Iterator[Any]:
        """Yield the token numbers of one text in arrays, one for each of its parts, in bounded memory."""
        return (tokens for part in parts for tokens in self.encode([part]))


class LibraryTokenizer(ABC):
    """A tokenizer that a library loads from a file. Raises CorpusError where it cannot.

    kind: what the file should be, in words. load: makes the library's tokenizer from the file's bytes.
    """

    def __init__(self, path: Path, kind: str, load: Callable[[bytes], Any]) -> None:
        try:
            content = read_regular(path, "tokenizer")
            self._library = load(content)
        except OSError as error:
            raise CorpusError(f"{path}: cannot be read: {error.strerror}") from None
        except Exception as error:  # the libraries raise plain Exception, RuntimeError and others
            raise CorpusError(f"{path}: not {kind}: {error}") from None
        self.name = path.name
        self.digest: str | None = "sha256:" + hashlib.sha256(content).hexdigest()
        self._long = LongTextEncoder(self._tokens_with_starts)

    @property
    def cut_count(self) -> int:
        """Return how many places long texts have where the tokens may differ from those of the whole text."""
        return self._long.cut_count

    def encode_long(self, parts: Iterable[bytes]) -> Iterator[Any]:
        return self._long.tokens(part.decode() for part in parts)

    @abstractmethod
    def _tokens_with_starts(self, texts: list[str]) -> list[Tokens]:
        """Return the tokens of each text, and the character at which each starts."""


class HuggingFaceTokenizer(LibraryTokenizer):
    """A TOKENIZER.json, which the tokenizers library reads.

    Raises CorpusError when it is unreadable or has no end-of-document token.
    """

    def __init__(self, path: Path, end_token: str | None) -> None:
        from tokenizers import Tokenizer as Library  # imported here: it is slow, and other commands do not need it

        super().__init__(path, "a tokenizer", Library.from_buffer)
        self._library.no_truncation()
        self._library.no_padding()
        vocabulary = self._library.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocabulary.values(), default=0) + 1
        names = END_TOKENS if end_token is None else (end_token,)
        numbers = [vocabulary[name] for name in names if name in vocabulary]
        if not numbers:
            hint = "" if end_token else "; name the token that ends a document with --end-token"
            raise CorpusError(f"{path}: found none of the tokens {' '.join(names)} in its vocabulary{hint}")
        self.end_token = numbers[0]

    def encode(self, texts: Sequence[bytes]) -> list[Any]:
        encodings = self._library.encode_batch([text.decode() for text in texts], add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.int64) for encoding in encodings]

    def _tokens_with_starts(self, texts: list[str]) -> list[Tokens]:
        encodings = self._library.encode_batch(texts, add_special_tokens=False)
        starts = (np.array(encoding.offsets, np.int64).reshape(-1, 2)[:, 0] for encoding in encodings)
        return [
            Tokens(np.array(encoding.ids, np.int64), first) for encoding, first in zip(encodings, starts, strict=True)
        ]


class Tokens(NamedTuple):
    """The token numbers of a text, and the character at which each token starts, both as arrays."""

    numbers: Any
    starts: Any

    def starting_between(self, first: int, stop: int) -> Tokens:
        """Return the tokens that start in a range of characters, counted from its first one."""
        low, high = np.searchsorted(self.starts, [first, stop])
        return Tokens(self.numbers[low:high], self.starts[low:high] - first)


Encode = Callable[[list[str]], list[Tokens]]


class LongTextEncoder:
    """Encodes long texts in windows, by a function that encodes lists of short texts.

    cut_count: joints at which two windows did not agree. There the text was cut, and its tokens may differ from those
    of the whole text.
    """

    def __init__(self, encode: Encode, window: int = WINDOW_CHARACTERS, overlap: int = OVERLAP_CHARACTERS) -> None:
        self._encode, self._window, self._overlap = encode, window, overlap
        self.cut_count = 0

    def tokens(self, parts: Iterable[str]) -> Iterator[Any]:
        """Yield the token numbers of the text whose parts are given, in order. Memory: some windows."""
        windows = self._windows(parts)
        before, length = self._encode([text := next(windows)])[0], len(text)
        while texts := list(islice(windows, _BATCH_WINDOWS)):
            for text, tokens in zip(texts, self._encode(texts), strict=True):
                finished, before = self._join(before, length, text, tokens)
                length = len(text)
                yield finished
        yield before.numbers

    def _windows(self, parts: Iterable[str]) -> Iterator[str]:
        """Yield windows of the text; each starts with the last `overlap` characters of the one before it."""
        rest = ""
        for part in parts:
            rest += part
            while len(rest) > self._window + self._overlap:
                yield rest[: self._window]
                rest = rest[self._window - self._overlap :]
        yield rest

    def _join(
        self, previous_tokens: Tokens, previous_length: int, text: str, next_tokens: Tokens
    ) -> tuple[Any, Tokens]:
        """Return the tokens up to the joint, and the tokens of `text` after it.

        previous_tokens: of the previous window, whose text has `previous_length` characters. next_tokens: of `text`.
        """
        overlap, start = self._overlap, previous_length - self._overlap
        middle, margin = overlap // 2, overlap // 4
        ours = previous_tokens.starting_between(start + margin, start + overlap - margin)
        theirs = next_tokens.starting_between(margin, overlap - margin)
        if len(ours.numbers) and all(map(np.array_equal, ours, theirs)):
            rest = np.searchsorted(next_tokens.starts, middle)
            return previous_tokens.starting_between(0, start + middle).numbers, Tokens(
                next_tokens.numbers[rest:], next_tokens.starts[rest:]
            )
        self.cut_count += 1
        tail = self._encode([text[overlap:]])[0]
        return previous_tokens.numbers, Tokens(tail.numbers, tail.starts + overlap)


class SentencePieceTokenizer(LibraryTokenizer):
    """A model of SentencePiece, whose own end of a sentence ends a document unless `end_token` names another token.

    Raises CorpusError when it is unreadable or has no end-of-document token.
    """

    def __init__(self, path: Path, end_token: str | None) -> None:
        from sentencepiece import SentencePieceProcessor  # imported here: other commands do not need it

        super().__init__(path, "a SentencePiece model", lambda content: SentencePieceProcessor(model_proto=content))
        self.vocab_size = int(self._library.get_piece_size())
        number = int(self._library.eos_id() if end_token is None else self._library.piece_to_id(end_token))
        if number < 0 or (end_token is not None and self._library.id_to_piece(number) != end_token):
            fault = "no end of a sentence" if end_token is None else f"no token {end_token}"
            raise CorpusError(f"{path}: found {fault}, expected a token of its vocabulary; see --end-token")
        self.end_token = number

    def encode(self, texts: Sequence[bytes]) -> list[Any]:
        """Return the token numbers of each UTF-8 text as an array, without the end-of-document token."""
        return [np.array(ids, dtype=np.int64) for ids in self._library.encode([text.decode() for text in texts])]

    def _tokens_with_starts(self, texts: list[str]) -> list[Tokens]:
        encodings = self._library.encode(texts, return_type="offset_mapping")
        return [
            Tokens(np.array(encoding["ids"], np.int64), np.array(encoding["offsets"], np.int64).reshape(-1, 2)[:, 0])
            for encoding in encodings
        ]


Tokenizer = ByteTokenizer | HuggingFaceTokenizer | SentencePieceTokenizer


def open_tokenizer(name: str, end_token: str | None = None) -> Tokenizer:
    """Return the tokenizer `bytes`, or that of the file: SentencePiece's for .model. Raises CorpusError."""
    if name == "bytes":
        if end_token is not None:
            raise CorpusError(
                f"tokenizer bytes: found end token '{end_token}', expected none, because token 256 ends documents; "
                "leave --end-token out"
            )
        return ByteTokenizer()
    if not Path(name).is_file():
        raise CorpusError(
            f"tokenizer '{name}': found no such file, expected 'bytes', or the path of a TOKENIZER.json or of a "
            "SentencePiece .model"
        )
    if name.endswith(".model"):
        return SentencePieceTokenizer(Path(name), end_token)
    return HuggingFaceTokenizer(Path(name), end_token)

"""Turns text into token numbers: by bytes, or with a TOKENIZER.json of the tokenizers library."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from levelfield.corpus.seams import LongText, Tokens
from levelfield.errors import CorpusError
from levelfield.node.regular_files import read_regular

END_TOKENS = ("<|endoftext|>", "</s>", "<|end_of_text|>")


class Tokenizer(Protocol):
    """A tokenizer. name and digest go into the facts; vocab_size is above every number that `encode` returns.

    cuts: places of long texts where the tokens may differ from those of the whole text.
    """

    name: str
    digest: str | None
    vocab_size: int
    end_token: int

    @property
    def cuts(self) -> int: ...

    def encode(self, texts: Sequence[bytes]) -> list[Any]:
        """Return the token numbers of each UTF-8 text as an array, without the end-of-document token."""
        ...

    def encode_long(self, parts: Iterable[bytes]) -> Iterator[Any]:
        """Yield the same of one text, from its parts and in parts, in bounded memory."""
        ...


class ByteTokenizer:
    """Every byte is a token, 0 to 255. Token 256 ends a document."""

    name = "bytes"
    digest: str | None = None
    vocab_size = 257
    end_token = 256
    cuts = 0

    def encode(self, texts: Sequence[bytes]) -> list[Any]:
        return [np.frombuffer(text, dtype=np.uint8) for text in texts]

    def encode_long(self, parts: Iterable[bytes]) -> Iterator[Any]:
        return (tokens for part in parts for tokens in self.encode([part]))


class FileTokenizer:
    """A TOKENIZER.json. Raises CorpusError when it is unreadable or has no end-of-document token."""

    def __init__(self, path: Path, end_token: str | None) -> None:
        from tokenizers import Tokenizer as Library  # imported here: it is slow, and other commands do not need it

        try:
            content = read_regular(path)
            self._library = Library.from_buffer(content)
        except OSError as error:
            raise CorpusError(f"{path}: cannot be read: {error.strerror}") from None
        except Exception as error:  # the library raises plain Exception
            raise CorpusError(f"{path}: not a tokenizer: {error}") from None
        self._library.no_truncation()
        self._library.no_padding()
        vocabulary = self._library.get_vocab(with_added_tokens=True)
        self.name = path.name
        self.digest: str | None = "sha256:" + hashlib.sha256(content).hexdigest()
        self.vocab_size = max(vocabulary.values(), default=0) + 1
        self.end_token = _end_token(path, vocabulary, end_token)
        self._long = LongText(self._placed)

    @property
    def cuts(self) -> int:
        return self._long.cuts

    def encode(self, texts: Sequence[bytes]) -> list[Any]:
        found = self._library.encode_batch([text.decode() for text in texts], add_special_tokens=False)
        return [np.array(each.ids, dtype=np.int64) for each in found]

    def encode_long(self, parts: Iterable[bytes]) -> Iterator[Any]:
        return self._long.tokens(part.decode() for part in parts)

    def _placed(self, texts: list[str]) -> list[Tokens]:
        found = self._library.encode_batch(texts, add_special_tokens=False)
        return [Tokens(np.array(each.ids, np.int64), _starts(each.offsets)) for each in found]


def _starts(offsets: list[tuple[int, int]]) -> Any:
    return np.array(offsets, np.int64).reshape(-1, 2)[:, 0]


def open_tokenizer(name: str, end_token: str | None = None) -> Tokenizer:
    """Return the tokenizer `bytes`, or the tokenizer of the file `name`. Raises CorpusError."""
    if name == "bytes":
        if end_token is not None:
            raise CorpusError(
                f"tokenizer bytes: found end token '{end_token}', expected none, because token 256 ends documents; "
                "leave --end-token out"
            )
        return ByteTokenizer()
    if not Path(name).is_file():
        raise CorpusError(f"tokenizer '{name}': found no such file, expected 'bytes' or the path of a TOKENIZER.json")
    return FileTokenizer(Path(name), end_token)


def _end_token(path: Path, vocabulary: dict[str, int], asked: str | None) -> int:
    names = (asked,) if asked is not None else END_TOKENS
    for name in names:
        if name in vocabulary:
            return vocabulary[name]
    hint = "" if asked else "; name the token that ends a document with --end-token"
    raise CorpusError(f"{path}: found none of the tokens {' '.join(names)} in its vocabulary{hint}")

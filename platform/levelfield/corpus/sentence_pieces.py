"""Turns text into token numbers with a SentencePiece model, such as the tokenizer.model of Llama 2."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from levelfield.corpus.tokenization import LongText, Tokens
from levelfield.errors import CorpusError
from levelfield.node.regular_files import read_regular


class SentencePieceTokenizer:
    """A model of SentencePiece. Raises CorpusError when it is unreadable or has no end-of-document token."""

    def __init__(self, path: Path, end_token: str | None) -> None:
        from sentencepiece import SentencePieceProcessor  # imported here: other commands do not need it

        try:
            content = read_regular(path)
            self._model = SentencePieceProcessor(model_proto=content)
        except OSError as error:
            raise CorpusError(f"{path}: cannot be read: {error.strerror}") from None
        except Exception as error:  # the library raises RuntimeError and others
            raise CorpusError(f"{path}: not a SentencePiece model: {error}") from None
        self.name = path.name
        self.digest: str | None = "sha256:" + hashlib.sha256(content).hexdigest()
        self.vocab_size = int(self._model.get_piece_size())
        self.end_token = self._end_token(path, end_token)
        self._long = LongText(self._placed)

    @property
    def cuts(self) -> int:
        """Return the places of long texts where the tokens may differ from those of the whole text."""
        return self._long.cuts

    def encode(self, texts: Sequence[bytes]) -> list[Any]:
        """Return the token numbers of each UTF-8 text as an array, without the end-of-document token."""
        return [np.array(ids, dtype=np.int64) for ids in self._model.encode([text.decode() for text in texts])]

    def encode_long(self, parts: Iterable[bytes]) -> Iterator[Any]:
        return self._long.tokens(part.decode() for part in parts)

    def _end_token(self, path: Path, asked: str | None) -> int:
        """Return the number of the named token, without a name of the model's own end of a sentence."""
        number = int(self._model.eos_id() if asked is None else self._model.piece_to_id(asked))
        if number < 0 or (asked is not None and self._model.id_to_piece(number) != asked):
            found = "no end of a sentence" if asked is None else f"no token {asked}"
            raise CorpusError(f"{path}: found {found}, expected a token of its vocabulary; see --end-token")
        return number

    def _placed(self, texts: list[str]) -> list[Tokens]:
        found = self._model.encode(texts, return_type="offset_mapping")
        return [
            Tokens(np.array(each["ids"], np.int64), np.array(each["offsets"], np.int64).reshape(-1, 2)[:, 0])
            for each in found
        ]

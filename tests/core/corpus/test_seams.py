"""Long texts are encoded in overlapping windows, to the tokens of the whole text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from levelfield.corpus import preparation as preparation_module
from levelfield.corpus import texts as texts_module
from levelfield.corpus import tokenization as seams_module
from levelfield.corpus.facts import CorpusFacts
from levelfield.corpus.preparation import prepare_corpus
from levelfield.corpus.tokenization import HuggingFaceTokenizer, LongTextEncoder, Tokens

tokenizers = pytest.importorskip("tokenizers")
WINDOW, OVERLAP = 400, 120
# newlines before spaces and words, several of them, and characters of two to four bytes: where pieces were cut
TEXT = "".join(f"the {n} quick  brown\n\n  foxes {n % 7}'ll jump\n over ä€😀 the lazy dogs \n" for n in range(60))


def byte_pairs() -> Any:
    """As GPT-2's: pairs of bytes inside of words by its pattern."""
    pairs = tokenizers.Tokenizer(tokenizers.models.BPE())
    pairs.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=600, special_tokens=["<|endoftext|>"], show_progress=False)
    pairs.train_from_iterator([TEXT, " \n \n\n  \n"], trainer)
    return pairs


def sentence_pieces() -> Any:
    """As Llama's first: a mark before each word, and one before the text."""
    pieces = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
    pieces.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="first")
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<unk>", "<|endoftext|>"], show_progress=False
    )
    pieces.train_from_iterator([TEXT], trainer)
    return pieces


@pytest.fixture(scope="module", params=[byte_pairs, sentence_pieces])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> HuggingFaceTokenizer:
    path = tmp_path_factory.mktemp("tokenizer") / "t.json"
    request.param().save(str(path))
    return HuggingFaceTokenizer(path, None)


def joined(tokenizer: HuggingFaceTokenizer, text: str, window: int = WINDOW, part: int = 777) -> tuple[list[int], int]:
    """The tokens of a text in parts of this length, and the places where it was cut."""
    long = LongTextEncoder(tokenizer._tokens_with_starts, window, OVERLAP)
    parts = [text[at : at + part] for at in range(0, len(text), part)] or [""]
    return [int(token) for token in np.concatenate(list(long.tokens(parts)))], long.cut_count


def whole(tokenizer: HuggingFaceTokenizer, text: str) -> list[int]:
    return [int(token) for token in tokenizer.encode([text.encode()])[0]]


@pytest.mark.parametrize("window", [300, 301, 307, 350, 399, 1000, 5000])
def test_windows_give_the_tokens_of_the_whole_text(tokenizer: HuggingFaceTokenizer, window: int) -> None:
    assert joined(tokenizer, TEXT, window) == (whole(tokenizer, TEXT), 0)


def test_the_parts_of_the_text_do_not_matter(tokenizer: HuggingFaceTokenizer) -> None:
    assert all(joined(tokenizer, TEXT, part=part)[0] == whole(tokenizer, TEXT) for part in (1, 50, 10_000))


@given(text=st.text(alphabet="ab \n\täx'€😀1", max_size=900), window=st.integers(250, 400))
def test_any_text(tokenizer: HuggingFaceTokenizer, text: str, window: int) -> None:
    tokens, cuts = joined(tokenizer, text, window)
    assert cuts or tokens == whole(tokenizer, text)


def test_where_no_joint_is_found_the_text_is_cut_and_that_is_counted() -> None:
    """Tokens that depend on the place from the start of the text: windows cannot agree."""

    def encode(texts: list[str]) -> list[Tokens]:
        return [Tokens(np.arange(len(text)), np.arange(len(text))) for text in texts]

    long = LongTextEncoder(encode, 20, 8)
    tokens = np.concatenate(list(long.tokens(["x" * 50])))
    assert long.cut_count == 2 and len(tokens) == 50


def test_one_token_over_the_whole_overlap_is_a_cut() -> None:
    def encode(texts: list[str]) -> list[Tokens]:
        return [Tokens(np.zeros(1), np.zeros(1)) for _ in texts]

    long = LongTextEncoder(encode, 20, 8)
    assert len(list(long.tokens(["x" * 50]))) == long.cut_count + 1 == 3


def test_an_exchanged_token_is_no_agreement(tokenizer: HuggingFaceTokenizer) -> None:
    """One window that says another number in the middle of the overlap: the joint is refused."""
    calls = iter(range(1000))

    def wrong(texts: list[str]) -> list[Tokens]:
        encoded = tokenizer._tokens_with_starts(texts)
        for tokens in encoded:
            if next(calls) == 1:
                tokens.numbers[np.searchsorted(tokens.starts, OVERLAP // 2) - 2] += 1
        return encoded

    long = LongTextEncoder(wrong, WINDOW, OVERLAP)
    list(long.tokens([TEXT[:1500]]))
    assert long.cut_count == 1


def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], CorpusFacts]:
    monkeypatch.setattr(texts_module.read_pieces, "__defaults__", (500,))
    monkeypatch.setattr(seams_module.LongTextEncoder.__init__, "__defaults__", (WINDOW, OVERLAP))
    byte_pairs().save(str(tmp_path / "t.json"))
    facts = prepare_corpus(tmp_path / "texts", str(tmp_path / "t.json"), tmp_path / "c")
    return [int(token) for token in np.fromfile(tmp_path / "c.bin", dtype="<u2")], facts


def test_a_long_document_between_short_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "texts").mkdir()
    contents = ["short", TEXT, "also short\n", TEXT[100:], "the end"]
    for number, content in enumerate(contents):
        (tmp_path / f"texts/{number}.txt").write_text(content)
    tokens, facts = prepared(tmp_path, monkeypatch)
    words = HuggingFaceTokenizer(tmp_path / "t.json", None)
    assert tokens == [token for content in contents for token in (*whole(words, content), words.end_token)]
    assert facts.prepared is not None
    assert (facts.documents, facts.prepared.cuts, facts.prepared.field) == (len(contents), 0, None)


def test_documents_of_several_pieces_by_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text(TEXT)
    monkeypatch.setattr(texts_module.read_pieces, "__defaults__", (500,))
    assert prepare_corpus(tmp_path / "a.txt", "bytes", tmp_path / "c").documents == 1
    assert np.fromfile(tmp_path / "c.bin", dtype="<u2").tolist() == [*TEXT.encode(), 256]
    assert preparation_module._BATCH_BYTES > 500

"""Corpora by a SentencePiece model, made here by the library's own trainer."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pytest
from levelfield.cli.main import main
from levelfield.corpus.tokenization import LongTextEncoder, SentencePieceTokenizer, open_tokenizer
from levelfield.errors import CorpusError
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer

TEXT = "".join(f"the {n} quick brown foxes {n % 7}'ll jump over ä€😀 the lazy dogs. " for n in range(60))


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pieces") / "tokenizer.model"
    made = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT.split(". ")), model_writer=made, vocab_size=120, model_type=request.param,
        byte_fallback=False, hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    path.write_bytes(made.getvalue())
    return path


def test_the_tokens_are_the_library_s(model: Path) -> None:
    ours, library = open_tokenizer(str(model)), SentencePieceProcessor(model_file=str(model))
    texts = [TEXT, "", "ä€😀 fox", "</s> the"]
    assert [tokens.tolist() for tokens in ours.encode([t.encode() for t in texts])] == library.encode(texts)
    assert (ours.end_token, ours.vocab_size) == (library.eos_id(), library.get_piece_size())
    assert ours.name == "tokenizer.model" and (ours.digest or "").startswith("sha256:")
    assert library.eos_id() not in ours.encode([b"</s> the"])[0]  # a text cannot end a document


@pytest.mark.parametrize("window", [300, 307, 399, 1000])
def test_windows_give_the_tokens_of_the_whole_text(model: Path, window: int) -> None:
    tokenizer = SentencePieceTokenizer(model, None)
    long = LongTextEncoder(tokenizer._tokens_with_starts, window, 120)
    parts = [TEXT[at : at + 77] for at in range(0, len(TEXT), 77)]
    assert np.concatenate(list(long.tokens(parts))).tolist() == tokenizer.encode([TEXT.encode()])[0].tolist()
    assert long.cut_count == 0


def test_a_corpus_is_prepared_and_checked(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text(TEXT)
    (tmp_path / "b.txt").write_text("dogs")
    prefix = tmp_path / "corpus"
    options = ["--input", str(tmp_path / "a.txt"), "--input", str(tmp_path / "b.txt"), "--output", str(prefix)]
    assert main(["data", "prepare", *options, "--tokenizer", str(model)]) == 0
    library = SentencePieceProcessor(model_file=str(model))
    tokens = [*library.encode(TEXT), library.eos_id(), *library.encode("dogs"), library.eos_id()]
    capsys.readouterr()
    assert np.fromfile(prefix.with_suffix(".bin"), dtype=np.uint16).tolist() == tokens
    assert main(["data", "check", str(prefix)]) == 0
    assert re.search(rf"\b{len(tokens):,} .*\b2 documents", capsys.readouterr().out)


def test_the_end_token_can_be_named(model: Path) -> None:
    assert open_tokenizer(str(model), "<s>").end_token == SentencePieceProcessor(model_file=str(model)).bos_id()
    with pytest.raises(CorpusError, match=r"tokenizer\.model: .*<end>.*--end-token"):
        open_tokenizer(str(model), "<end>")


@pytest.mark.parametrize("damage", ["empty", "text", "truncated", "swapped"])
def test_a_damaged_model_is_refused(model: Path, damage: str, tmp_path: Path) -> None:
    path, whole = tmp_path / "t.model", model.read_bytes()
    content = {"empty": b"", "text": b"{}" * 40, "truncated": whole[: len(whole) // 2], "swapped": whole[::-1]}
    path.write_bytes(content[damage])
    with pytest.raises(CorpusError, match=rf"{path}: "):
        open_tokenizer(str(path))

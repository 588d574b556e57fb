"""A folder of wikiextractor's, JSON lines in files without a suffix: one document for each line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from levelfield.cli import main
from levelfield.corpus import texts as texts_module
from levelfield.corpus.preparation import prepare_corpus
from levelfield.errors import CorpusError


def line(text: str) -> str:
    return json.dumps({"id": "1", "url": "u", "title": "t", "text": text}) + "\n"


@pytest.fixture
def wiki(tmp_path: Path) -> Path:
    """As wikiextractor --json writes it."""
    folder = tmp_path / "enwiki"
    for name in ("AA", "AB"):
        (folder / name).mkdir(parents=True)
    (folder / "AA/wiki_00").write_text(line("one\nä") + line("") + line("two"))
    (folder / "AA/wiki_01").write_text(line("three").strip())
    (folder / "AB/wiki_00").write_text(json.dumps({"text": "vier €"}, ensure_ascii=False) + "\n\n")
    return folder


def tokens_of(prefix: Path) -> list[int]:
    return [int(token) for token in np.fromfile(f"{prefix}.bin", dtype="<u2")]


def test_every_line_is_a_document_in_the_order_of_the_files(tmp_path: Path, wiki: Path) -> None:
    facts = prepare_corpus(wiki, "bytes", tmp_path / "c", field="text")
    contents = ["one\nä", "two", "three", "vier €"]
    assert tokens_of(tmp_path / "c") == [t for content in contents for t in (*content.encode(), 256)]
    made = facts.prepared
    assert made is not None
    assert (facts.documents, made.field, made.source_files, made.skipped_empty) == (4, "text", 3, 1)
    assert made.source_bytes == sum(len(content.encode()) for content in contents)


def test_another_text_or_order_is_another_source(tmp_path: Path, wiki: Path) -> None:
    first = prepare_corpus(wiki, "bytes", tmp_path / "x", field="text")
    (wiki / "AA/wiki_00").write_text(line("two") + line("one\nä"))
    second = prepare_corpus(wiki, "bytes", tmp_path / "y", field="text")
    assert first.prepared is not None and second.prepared is not None
    assert first.prepared.source_digest != second.prepared.source_digest and first.digest != second.digest


def test_the_command_line(tmp_path: Path, wiki: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["data", "prepare", "--input", str(wiki), "--tokenizer", "bytes", "--output", str(tmp_path / "c")]
    assert main.main(command) == 2
    assert "--field NAME" in capsys.readouterr().err
    assert main.main([*command, "--field", "text"]) == 0
    assert "4 documents" in capsys.readouterr().out


def test_a_suffix_still_chooses(tmp_path: Path, wiki: Path) -> None:
    (wiki / "AA/more.jsonl").write_text(line("more"))
    assert prepare_corpus(wiki, "bytes", tmp_path / "c", field="text", suffixes=[".jsonl"]).documents == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("no JSON\n", r"wiki_00:1: found no JSON: 'no JSON\\n'; expected a JSON object with the text in 'text'"),
        (line("a") + '{"text": "cut off', r"wiki_00:2: found no JSON"),
        ("[1]\n", r"wiki_00:1: found list, expected a JSON object"),
        ('{"title": "t", "content": "c"}\n', r"wiki_00:1: found no field 'text', .*; its fields: title, content"),
        ('{"text": 3}\n', r"wiki_00:1: field 'text': found int, expected a text"),
        ('{"text": null}\n', r"wiki_00:1: field 'text': found NoneType"),
        ('{"text": "\\ud800"}\n', r"wiki_00:1: field 'text': found half of a surrogate pair"),
        ("[" * 100_000 + "\n", r"wiki_00:1: found no JSON"),
        ('{"text": "a", "n": ' + "9" * 5000 + "}\n", r"wiki_00:1: found no JSON"),
    ],
    ids=["text", "truncated", "list", "other field", "number", "null", "surrogate", "deep", "digits"],
)
def test_a_wrong_line_is_named_and_nothing_is_left(tmp_path: Path, wiki: Path, content: str, message: str) -> None:
    (wiki / "AB/wiki_00").write_text(content)
    with pytest.raises(CorpusError, match=message):
        prepare_corpus(wiki, "bytes", tmp_path / "out/c", field="text")
    assert not list(tmp_path.glob("out/*"))


def test_a_line_without_end_is_refused(tmp_path: Path, wiki: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("levelfield.corpus.texts.MAX_LINE_BYTES", 60)
    (wiki / "AA/wiki_00").write_text(line("x" * 100))
    with pytest.raises(CorpusError, match=r"wiki_00:1: .*\b60\b"):
        prepare_corpus(wiki, "bytes", tmp_path / "c", field="text")


def test_a_long_line_is_one_document(tmp_path: Path, wiki: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts_module.split_text, "__defaults__", (8,))
    (wiki / "AA/wiki_00").write_text(line("ä€😀\n" * 9))
    facts = prepare_corpus(wiki, "bytes", tmp_path / "c", field="text")
    assert facts.documents == 3
    assert tokens_of(tmp_path / "c")[:91] == [*("ä€😀\n" * 9).encode(), 256]


def test_progress_ends_at_all_of_it(tmp_path: Path, wiki: Path) -> None:
    seen: list[tuple[int, int]] = []
    prepare_corpus(wiki, "bytes", tmp_path / "c", field="text", progress=lambda done, total: seen.append((done, total)))
    total = sum(path.stat().st_size for path in wiki.rglob("wiki_*"))
    assert seen == sorted(seen) and total - 1 <= seen[-1][0] <= seen[-1][1] == total

"""Preparing: the right bytes, the same each time, whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from levelfield.corpus import texts as texts_module
from levelfield.corpus.facts import CorpusFacts, Preparation
from levelfield.corpus.integrity import check_corpus
from levelfield.corpus.preparation import prepare_corpus
from levelfield.corpus.tokenization import END_TOKENS
from levelfield.errors import CorpusError
from worker_jobs import PLATFORM

MIB = 1 << 20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    texts = tmp_path / "texts"
    (texts / "sub").mkdir(parents=True)
    (texts / "b.txt").write_bytes("zwei ä\n".encode())
    (texts / "a.txt").write_bytes(b"one\n")
    (texts / "sub" / "c.md").write_bytes(b"three")
    (texts / "d.txt").write_bytes(b"binary\0text")
    (texts / "e.txt").write_bytes(b"latin \xe4")
    (texts / "f.txt").write_bytes(b"")
    (texts / "g.png").write_bytes(b"picture")
    (texts / ".hidden.txt").write_bytes(b"hidden")
    return texts


def tokens_of(prefix: Path) -> list[int]:
    return [int(token) for token in np.fromfile(f"{prefix}.bin", dtype="<u2")]


def origin(facts: CorpusFacts) -> Preparation:
    assert facts.prepared is not None
    return facts.prepared


def test_one_document_for_each_text_in_order(tmp_path: Path, folder: Path) -> None:
    facts = prepare_corpus(folder, "bytes", tmp_path / "out/c")
    contents = [b"one\n", "zwei ä\n".encode(), b"three"]
    assert tokens_of(tmp_path / "out/c") == [t for content in contents for t in (*content, 256)]
    assert (facts.tokens, facts.documents, facts.dtype, facts.max_token) == (20, 3, "uint16", 256)
    made = origin(facts)
    assert (made.tokenizer, made.vocab_size, made.end_token, made.source_files) == ("bytes", 257, 256, 3)
    assert (made.skipped_binary, made.skipped_empty, made.source_bytes) == (2, 1, 17)
    assert check_corpus(tmp_path / "out/c") == facts


def test_the_index_is_megatrons_byte_for_byte(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    (tmp_path / "b").write_bytes(b"de")
    prepare_corpus([tmp_path / "a", tmp_path / "b"], "bytes", tmp_path / "c")
    expected = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 2, 3) + struct.pack("<ii", 4, 3) + struct.pack("<qq", 0, 8)
    assert (tmp_path / "c.idx").read_bytes() == expected + struct.pack("<qqq", 0, 1, 2)


def test_the_same_texts_give_the_same_bytes(tmp_path: Path, folder: Path) -> None:
    first, second = (prepare_corpus(str(folder), "bytes", tmp_path / name) for name in ("x", "y"))
    assert first.digest == second.digest and first.prepared == second.prepared
    (folder / "a.txt").write_bytes(b"two\n")
    third = prepare_corpus(folder, "bytes", tmp_path / "z")
    assert third.digest != first.digest and origin(third).source_digest != origin(first).source_digest


def test_suffixes_choose_and_a_named_file_always_counts(tmp_path: Path, folder: Path) -> None:
    assert prepare_corpus(folder, "bytes", tmp_path / "x", suffixes=[".md"]).documents == 1
    assert prepare_corpus(folder, "bytes", tmp_path / "y", suffixes=["*"]).documents == 4
    assert prepare_corpus([folder / "g.png"], "bytes", tmp_path / "z").documents == 1
    with pytest.raises(CorpusError, match=r"texts: .*\.none"):
        prepare_corpus(folder, "bytes", tmp_path / "n", suffixes=[".none"])


def test_links_are_followed_once_and_loops_end(tmp_path: Path, folder: Path) -> None:
    (folder / "sub" / "loop").symlink_to(folder)
    (folder / "again").symlink_to(folder / "sub")
    (folder / "self.txt").symlink_to(folder / "self.txt")
    (folder / "gone.txt").symlink_to(folder / "nowhere")
    os.mkfifo(folder / "pipe.txt")
    assert prepare_corpus(folder, "bytes", tmp_path / "c").documents == 3


def test_a_long_document_in_pieces_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = ("ab\n" + "ä" * 50 + "€" * 30 + "\nx" * 40).encode()
    (tmp_path / "a.txt").write_bytes(content)
    for size in (5, 16, 64, len(content), len(content) + 1):
        pieces = list(texts_module.read_pieces(tmp_path / "a.txt", size))
        assert b"".join(piece.content for piece in pieces) == content
        assert [piece.is_last for piece in pieces] == [False] * (len(pieces) - 1) + [True]
        assert all(len(piece.content) <= size and piece.content.decode() for piece in pieces)
    assert len(pieces) == 1


def test_what_is_there_is_kept_without_force(tmp_path: Path, folder: Path) -> None:
    before = prepare_corpus(folder, "bytes", tmp_path / "c")
    (folder / "a.txt").write_bytes(b"two\n")
    with pytest.raises(CorpusError, match=r"c\.bin.*c\.idx.*--force"):
        prepare_corpus(folder, "bytes", tmp_path / "c")
    assert check_corpus(tmp_path / "c") == before
    assert prepare_corpus(folder, "bytes", tmp_path / "c", force=True).digest != before.digest


@pytest.mark.parametrize(
    ("inputs", "tokenizer", "message"),
    [
        (["absent"], "bytes", "absent: found nothing"),
        (["d.txt"], "bytes", r"found no text in 1 files \(1 are not UTF-8"),
        (["f.txt"], "bytes", "1 are empty"),
        (["a.txt"], "words", "expected 'bytes', or the path of a TOKENIZER.json or of a SentencePiece"),
        (["a.txt"], "a.txt", "not a tokenizer"),
    ],
)
def test_nothing_is_left_of_what_could_not_be(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, inputs: list[str], tokenizer: str, message: str
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(CorpusError, match=message):
        prepare_corpus(inputs, tokenizer, tmp_path / "out/c")
    assert not list(tmp_path.glob("out/*"))


def test_progress_ends_at_all_of_it(tmp_path: Path, folder: Path) -> None:
    seen: list[tuple[int, int]] = []
    prepare_corpus(folder, "bytes", tmp_path / "c", progress=lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen) and seen[-1][0] == seen[-1][1] == 35


def write_tokenizer(path: Path, end: str | None = "<|endoftext|>", size: int = 0) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    words = {word: i for i, word in enumerate(["[UNK]", "one", "two", *([end] if end else [])])}
    words.update({f"w{i}": len(words) + i for i in range(size)})
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    model.post_processor = tokenizers.processors.TemplateProcessing(single="one $A", special_tokens=[("one", 1)])
    model.enable_truncation(2)
    model.save(str(path))


@pytest.mark.parametrize("end", ["<|endoftext|>", "</s>", "<|end_of_text|>"])
def test_a_tokenizer_file(tmp_path: Path, end: str) -> None:
    write_tokenizer(tmp_path / "t.json", end)
    (tmp_path / "a.txt").write_text("two one what two")
    facts = prepare_corpus(tmp_path / "a.txt", str(tmp_path / "t.json"), tmp_path / "c")
    assert tokens_of(tmp_path / "c") == [2, 1, 0, 2, 3]  # no template, no truncation
    made = origin(facts)
    assert (made.tokenizer, made.vocab_size, made.end_token) == ("t.json", 4, 3)
    assert made.tokenizer_digest and made.tokenizer_digest.startswith("sha256:")


def test_a_tokenizer_without_an_end_asks_for_one(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "t.json", None)
    (tmp_path / "a.txt").write_text("two")
    with pytest.raises(CorpusError, match=rf"t\.json: .*{re.escape(' '.join(END_TOKENS))}.*--end-token"):
        prepare_corpus(tmp_path / "a.txt", str(tmp_path / "t.json"), tmp_path / "c")
    with pytest.raises(CorpusError, match=r"t\.json: .*three"):
        prepare_corpus(tmp_path / "a.txt", str(tmp_path / "t.json"), tmp_path / "c", end_token="three")
    prepare_corpus(tmp_path / "a.txt", str(tmp_path / "t.json"), tmp_path / "c", end_token="one")
    assert tokens_of(tmp_path / "c") == [2, 1]


@pytest.mark.parametrize(("size", "dtype"), [(65495, "uint16"), (65496, "int32")])
def test_a_large_vocabulary_takes_four_bytes(tmp_path: Path, size: int, dtype: str) -> None:
    write_tokenizer(tmp_path / "t.json", size=size)
    (tmp_path / "a.txt").write_text(f"w{size - 1}")
    facts = prepare_corpus(tmp_path / "a.txt", str(tmp_path / "t.json"), tmp_path / "c")
    assert (facts.dtype, facts.max_token, origin(facts).vocab_size) == (dtype, size + 3, size + 4)


def prepare_elsewhere(tmp_path: Path, before: str) -> subprocess.Popen[str]:
    code = f"import sys\nfrom levelfield.corpus.preparation import prepare_corpus\n{before}\n"
    code += "prepare_corpus(sys.argv[1], 'bytes', sys.argv[2])"
    command = [sys.executable, "-c", code, str(tmp_path / "texts"), str(tmp_path / "out/c")]
    environment = {**os.environ, "PYTHONPATH": str(PLATFORM)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("name", ["out.bin.partial", "out.idx.partial"])
def test_a_link_in_the_place_of_a_partial_file_is_not_followed(tmp_path: Path, folder: Path, name: str) -> None:
    text = "years of work"
    (tmp_path / "thesis.tex").write_text(text)
    (tmp_path / name).symlink_to(tmp_path / "thesis.tex")
    with pytest.raises(CorpusError, match=rf"{tmp_path}/out: .*{os.strerror(errno.ELOOP)}"):
        prepare_corpus(folder, "bytes", tmp_path / "out")
    assert (tmp_path / "thesis.tex").read_text() == text


def test_a_full_disk_is_said_and_nothing_is_left(tmp_path: Path, folder: Path) -> None:
    (folder / "long.txt").write_text("x" * MIB)
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))"
    process = prepare_elsewhere(tmp_path, limit)
    _, message = process.communicate(timeout=60)
    error = message.splitlines()[-1]
    assert "CorpusError" in error
    assert str(tmp_path / "out/c") in error and os.strerror(errno.EFBIG) in error
    assert list((tmp_path / "out").iterdir()) == []


def test_a_killed_process_leaves_no_corpus_and_the_next_one_starts_anew(tmp_path: Path, folder: Path) -> None:
    slow = (
        "import time, levelfield.corpus.preparation as p; add = p.MegatronWriter.add\n"
        "def slow(self, parts): add(self, parts); self._file.flush(); print('written', flush=True); time.sleep(600)\n"
        "p.MegatronWriter.add = slow"
    )
    process = prepare_elsewhere(tmp_path, slow)
    assert process.stdout is not None and process.stdout.readline() == "written\n"
    with pytest.raises(CorpusError, match=r"c\.bin\.partial: .*process"):
        prepare_corpus(folder, "bytes", tmp_path / "out/c")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["c.bin.partial"]
    with pytest.raises(CorpusError, match=rf"{tmp_path}/out/c: "):
        check_corpus(tmp_path / "out/c")
    assert prepare_corpus(folder, "bytes", tmp_path / "out/c").documents == 3
    assert not list(tmp_path.glob("out/*.partial"))


def test_memory_does_not_grow_with_the_text(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    with (tmp_path / "texts/a.txt").open("wb") as file:
        for _ in range(96):
            file.write(b"a line of text\n" * (MIB // 15))
    limit = "import resource\ndef peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss"
    code = (
        f"import sys, json, numpy\n{limit}\nfrom levelfield.corpus.preparation import prepare_corpus\nbefore = peak()\n"
    )
    code += "prepare_corpus(sys.argv[1], 'bytes', sys.argv[2])\nprint(json.dumps([before, peak()]))"
    command = [sys.executable, "-c", code, str(tmp_path / "texts"), str(tmp_path / "c")]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(PLATFORM)}, capture_output=True, check=True)
    before, after = json.loads(done.stdout)
    assert after - before < 160 * 1024  # KiB; the text is 96 MiB, its tokens 192

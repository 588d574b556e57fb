"""The whole check: every planted fault is found, said and placed; a second start is instant."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import levelfield.corpus.integrity as integrity
import numpy as np
import pytest
from levelfield.corpus.facts import CorpusFacts, CorpusKind, ProgressCallback
from levelfield.corpus.integrity import check_corpus
from levelfield.errors import CorpusError
from planted_corpora import cut, write_megatron, write_paddle

WRITERS: dict[CorpusKind, Callable[..., Any]] = {"megatron": write_megatron, "paddle": write_paddle}
LENGTHS = [100, 5, 895]


@pytest.mark.parametrize("kind", WRITERS)
def test_the_facts_of_a_whole_corpus(tmp_path: Path, kind: CorpusKind) -> None:
    WRITERS[kind](tmp_path / "c", LENGTHS)
    seen: list[tuple[int, int]] = []
    facts = check_corpus(tmp_path / "c", progress=lambda done, total: seen.append((done, total)))
    assert (facts.kind, facts.prefix, facts.tokens, facts.documents) == (kind, str(tmp_path / "c"), 1000, 3)
    assert (facts.dtype, facts.max_token, facts.prepared) == ("uint16", 499, None)
    sizes = sum(path.stat().st_size for path in tmp_path.iterdir() if path.suffix != ".json")
    assert seen[-1] == (sizes, sizes) and seen == sorted(seen)


def test_the_digest_is_of_the_contents_alone(tmp_path: Path) -> None:
    digests = []
    for name, token in (("a", 1), ("b", 1), ("c", 2)):
        write_megatron(tmp_path / name, [10], np.full(10, token))
        digests.append(check_corpus(tmp_path / name).digest)
    write_megatron(tmp_path / "d", [4, 6], np.full(10, 1))
    digests.append(check_corpus(tmp_path / "d").digest)
    assert digests[0] == digests[1] and len(set(digests)) == 3


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "first pointers swapped": (dict(pointers=[200, 0, 210]), "sequence 0 starts at byte 200 of"),
    "last pointers swapped": (dict(pointers=[0, 210, 200]), "found 2000 bytes, expected 1990, where sequence 2 ends"),
    "pointer in between": (dict(pointers=[0, 199, 210]), "byte 199, expected 200, where the sequences before it end"),
    "negative pointer": (dict(pointers=[0, -200, 210]), "sequence 1 starts at byte -200, expected 200"),
    "length shifted": (dict(index_lengths=[101, 5, 895]), "sequence 1 starts at byte 200, expected 202"),
    "length of one per cent more": (dict(index_lengths=[100, 6, 895]), "sequence 2 starts at byte 210, expected 212"),
    "length zero": (dict(index_lengths=[105, 0, 895]), "sequence 1 has length 0"),
    "negative length": (dict(index_lengths=[100, -5, 895]), "sequence 1 has length -5"),
    "document out of range": (dict(documents=[0, 4, 3, 3]), r"document index 1 is 4, expected 0 .* to 3"),
    "documents swapped": (dict(documents=[0, 2, 1, 3]), r"document index 2 is 1, expected 2 .* to 3"),
    "negative document": (dict(documents=[0, -1, 2, 3]), "document index 1 is -1, expected 0"),
    "first document": (dict(documents=[1, 2, 2, 3]), "document 0 starts at sequence 1"),
    "truncated index": (dict(documents=[0, 1, 2]), "last document index is 2"),
    "magic": (dict(magic=b"MMIDIDX\x00\x01"), "at byte 0"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_anywhere_in_the_index_is_found(tmp_path: Path, name: str) -> None:
    faults, message = FAULTS[name]
    write_megatron(tmp_path / "c", LENGTHS, **faults)
    with pytest.raises(CorpusError, match=message):
        check_corpus(tmp_path / "c")
    assert not (tmp_path / "c.levelfield.json").exists()


def test_faults_beyond_the_first_part_are_found_at_their_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("levelfield.corpus.integrity._BLOCK_ENTRIES", 7)
    lengths = [2] * 50
    write_megatron(tmp_path / "whole", lengths)
    assert check_corpus(tmp_path / "whole").documents == 50
    for at in (6, 7, 8, 20, 48):
        pointers = [4 * i for i in range(50)]
        pointers[at] += 2
        write_megatron(tmp_path / "c", lengths, pointers=pointers)
        with pytest.raises(CorpusError, match=f"sequence {at} .*byte {4 * at + 2}.*{4 * at},"):
            check_corpus(tmp_path / "c")
        documents = list(range(51))
        documents[at] = 0
        write_megatron(tmp_path / "c", lengths, documents=documents)
        with pytest.raises(CorpusError, match=f"document.* {at} is 0.* {at - 1} "):
            check_corpus(tmp_path / "c")


@pytest.mark.parametrize(
    ("lens", "message"),
    [
        ([100, 5, 894], "the 3 lens sum to 999, expected 1000"),
        ([100, 5, 905], "sum to 1010"),
        ([100, 905, 0], "document 2 has length 0"),
        ([1000, -5, 5], "document 1 has length -5"),
    ],
)
def test_lens_that_are_wrong_are_found(tmp_path: Path, lens: list[int], message: str) -> None:
    write_paddle(tmp_path / "c", LENGTHS, lens=np.array(lens))
    with pytest.raises(CorpusError, match=message):
        check_corpus(tmp_path / "c")


def test_lens_damaged_inside_the_archive_are_found(tmp_path: Path) -> None:
    write_paddle(tmp_path / "c", LENGTHS)
    content = bytearray((tmp_path / "c_idx.npz").read_bytes())
    at = content.index(np.array(LENGTHS, "int32").tobytes())
    content[at] ^= 1
    (tmp_path / "c_idx.npz").write_bytes(content)
    with pytest.raises(CorpusError, match="lens"):
        check_corpus(tmp_path / "c")


@pytest.mark.parametrize("kind", WRITERS)
def test_a_negative_token_is_found_where_it_is(
    tmp_path: Path, kind: CorpusKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("levelfield.corpus.integrity._BLOCK_BYTES", 64)
    tokens = np.arange(1000)
    tokens[703] = -7
    WRITERS[kind](tmp_path / "c", LENGTHS, tokens, dtype="int32")
    with pytest.raises(CorpusError, match=r"703 .*-7"):
        check_corpus(tmp_path / "c")


def test_the_largest_token_is_found_wherever_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("levelfield.corpus.integrity._BLOCK_BYTES", 64)
    for at in (0, 15, 16, 999):
        tokens = np.zeros(1000)
        tokens[at] = 12345
        write_megatron(tmp_path / "c", LENGTHS, tokens, dtype="int32")
        assert check_corpus(tmp_path / "c", reread=True).max_token == 12345


@pytest.mark.parametrize(
    ("files", "prefix", "message"),
    [
        ("", "c", r"c: found no corpus, expected c\.bin and c\.idx, or c_ids\.npy and c_idx\.npz$"),
        ("c.bin c.idx", "c.bin", "give the prefix without the suffix"),
        ("c.bin c.idx c_ids.npy", "c", r"files of two kinds \(c\.bin, c\.idx, c_ids\.npy\), expected one"),
        ("c_ids.npy", "c", r"found only c_ids\.npy, expected both c_ids\.npy and c_idx\.npz"),
        ("c.idx", "c", r"found only c\.idx, expected both c\.bin and c\.idx"),
    ],
)
def test_no_kind_two_kinds_and_half_a_pair_are_refused(tmp_path: Path, files: str, prefix: str, message: str) -> None:
    for name in files.split():
        (tmp_path / name).touch()
    with pytest.raises(CorpusError, match=message):
        check_corpus(tmp_path / prefix)


def test_of_two_kinds_one_can_be_chosen(tmp_path: Path) -> None:
    write_megatron(tmp_path / "c", LENGTHS)
    assert check_corpus(tmp_path / "c").kind == "megatron"
    write_paddle(tmp_path / "c", LENGTHS)
    assert check_corpus(tmp_path / "c", kind="paddle").kind == "paddle"


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The prefixes of the corpora that were read in full."""
    prefixes: list[Path] = []
    read_all = integrity._read_all

    def read(kind: CorpusKind, prefix: Path, progress: ProgressCallback) -> CorpusFacts:
        prefixes.append(prefix)
        return read_all(kind, prefix, progress)

    monkeypatch.setattr(integrity, "_read_all", read)
    return prefixes


def test_a_second_check_reads_nothing(tmp_path: Path, readings: list[Path]) -> None:
    write_megatron(tmp_path / "c", LENGTHS)
    assert check_corpus(tmp_path / "c") == check_corpus(tmp_path / "c")
    assert len(readings) == 1
    check_corpus(tmp_path / "c", reread=True)
    assert len(readings) == 2


@pytest.mark.parametrize("suffix", [".bin", ".idx"])
def test_a_changed_file_is_read_again(tmp_path: Path, readings: list[Path], suffix: str) -> None:
    write_megatron(tmp_path / "c", LENGTHS)
    check_corpus(tmp_path / "c")
    status = (tmp_path / f"c{suffix}").stat()
    os.utime(tmp_path / f"c{suffix}", ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    check_corpus(tmp_path / "c")
    assert len(readings) == 2
    cut(tmp_path / f"c{suffix}", -2)
    with pytest.raises(CorpusError):
        check_corpus(tmp_path / "c")


def test_a_damaged_memory_is_no_fault_of_the_corpus(tmp_path: Path, readings: list[Path]) -> None:
    write_megatron(tmp_path / "c", LENGTHS)
    facts = check_corpus(tmp_path / "c")
    for text in ("", "{", "[]", json.dumps({"schema": "levelfield.corpus/9"})):
        (tmp_path / "c.levelfield.json").write_text(text)
        assert check_corpus(tmp_path / "c") == facts
    assert len(readings) == 5


def test_a_corpus_that_moved_knows_where_it_is(tmp_path: Path, readings: list[Path]) -> None:
    (tmp_path / "old").mkdir()
    write_megatron(tmp_path / "old/c", LENGTHS)
    check_corpus(tmp_path / "old/c")
    (tmp_path / "old").rename(tmp_path / "new")
    assert check_corpus(tmp_path / "new/c").prefix == str(tmp_path / "new/c")
    assert len(readings) == 1


def test_where_nothing_can_be_written_beside_it_the_cache_remembers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, readings: list[Path]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_megatron(tmp_path / "c", LENGTHS)
    (tmp_path / "c.levelfield.json").mkdir()  # also root cannot write a file there
    facts = check_corpus(tmp_path / "c")
    assert check_corpus(tmp_path / "c") == facts
    assert len(readings) == 1
    assert len(list((tmp_path / "cache/levelfield/corpora").iterdir())) == 1
    assert not list(tmp_path.glob("*.partial"))


def test_where_nothing_can_be_remembered_it_is_checked_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, readings: list[Path]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "c.bin"))
    write_megatron(tmp_path / "c", LENGTHS)
    (tmp_path / "c.levelfield.json").mkdir()
    assert check_corpus(tmp_path / "c") == check_corpus(tmp_path / "c")
    assert len(readings) == 2


def test_a_corpus_that_grows_meanwhile_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_megatron(tmp_path / "c", LENGTHS)

    def touch(done: int, total: int) -> None:
        os.utime(tmp_path / "c.bin", ns=(1, 1))

    with pytest.raises(CorpusError, match=r"c: .*changed"):
        check_corpus(tmp_path / "c", progress=touch)

"""Corpora on disk as a rank opens them: right windows, and every planted fault refused with what and where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from levelfield.worker import CorpusError
from levelfield.worker.batches import open_source
from levelfield.worker.corpora import open_corpus
from levelfield.worker.megatron import open_index
from planted_corpora import cut, write_megatron, write_paddle
from worker_jobs import make_job

WRITERS = {"megatron": write_megatron, "paddle": write_paddle}


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("dtype", ["uint16", "int32", "int64"])
def test_samples_are_windows_of_the_flat_tokens(tmp_path: Path, kind: str, dtype: str) -> None:
    tokens = WRITERS[kind](tmp_path / "c", [100, 5, 895], dtype=dtype)
    job = make_job(
        tmp_path, corpus=dict(kind=kind, prefix=str(tmp_path / "c")), data=dict(shuffle=False, split=[1, 0, 0])
    )
    samples = open_source(job).samples(np.array([0, 3, 30, 31], dtype=np.uint64))
    for row, place in zip(samples, [0, 3, 30, 0], strict=True):  # (1000 - 1) // 32 = 31 samples, then again
        assert np.array_equal(row, tokens[place * 32 : place * 32 + 33])
    corpus = open_corpus(kind, str(tmp_path / "c"))
    assert (len(corpus.tokens), corpus.documents) == (1000, 3)
    assert not corpus.tokens[:].flags.writeable


def test_training_reads_its_part_only(tmp_path: Path) -> None:
    write_megatron(tmp_path / "c", [3201])  # 100 samples
    job = make_job(
        tmp_path, corpus=dict(kind="megatron", prefix=str(tmp_path / "c")), data=dict(shuffle=False, split=[90, 5, 5])
    )
    source = open_source(job)
    first, again = source.samples(np.array([0, 90], dtype=np.uint64))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, source.samples(np.array([89], dtype=np.uint64))[0])


@pytest.mark.parametrize(
    ("tokens", "split", "message"), [(32, [1, 0, 0], "make 0 samples of 32"), (65, [1, 2, 0], "0 in the training part")]
)
def test_a_corpus_too_small_is_refused(tmp_path: Path, tokens: Any, split: list[int], message: str) -> None:
    write_megatron(tmp_path / "c", [tokens])
    with pytest.raises(CorpusError, match=message):
        open_source(
            make_job(tmp_path, corpus=dict(kind="megatron", prefix=str(tmp_path / "c")), data=dict(split=split))
        )


@pytest.mark.parametrize(("token", "dtype"), [(1000, "uint16"), (-1, "int32"), (2**40, "int64")])
def test_a_token_outside_the_vocabulary_is_named(tmp_path: Path, token: int, dtype: str) -> None:
    tokens = np.arange(1000)
    tokens[70] = token
    write_megatron(tmp_path / "c", [1000], tokens, dtype=dtype)
    job = make_job(tmp_path, corpus=dict(kind="megatron", prefix=str(tmp_path / "c")), data=dict(shuffle=False))
    source = open_source(job)
    source.samples(np.array([0, 1, 3], dtype=np.uint64))
    with pytest.raises(CorpusError) as error:
        source.samples(np.array([1, 2], dtype=np.uint64))
    for fact in (f"token {token}", "sample 2", "position 6", "token 70", "0..999", "vocab_size 1000"):
        assert fact in str(error.value)


def test_the_largest_number_of_the_vocabulary_is_accepted(tmp_path: Path) -> None:
    write_megatron(tmp_path / "c", [100], np.full(100, 999))
    job = make_job(tmp_path, corpus=dict(kind="megatron", prefix=str(tmp_path / "c")))
    assert (open_source(job).samples(np.array([0], dtype=np.uint64)) == 999).all()


MEGATRON_FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "magic": (dict(magic=b"MMIDIDX\x00\x01"), r"c\.idx: found b'MMIDIDX\\x00\\x01' at byte 0"),
    "version": (dict(version=2), "found version 2 at byte 9, expected 1"),
    "version in the other byte order": (dict(version=1 << 56), "found version 72057594037927936"),
    "unknown dtype": (dict(code=9), "dtype code 9 at byte 17"),
    "fractional dtype": (dict(code=7), r"dtype code 7 \(float32, which holds no tokens\)"),
    "another dtype": (dict(code=4), r"c\.bin: found 2000 bytes, expected 3790"),
    "first pointer": (dict(pointers=[2, 200, 210]), "sequence 0 starts at byte 2"),
    "last pointer": (dict(pointers=[0, 200, 212]), r"found 2000 bytes, expected 2002, where sequence 2 ends"),
    "last length": (dict(index_lengths=[100, 5, 894]), r"found 2000 bytes, expected 1998"),
    "last document": (dict(documents=[0, 1, 2, 4]), "last document index is 4, expected 3"),
    "no documents": (dict(documents=[]), "3 sequences and 0 document indices"),
}


@pytest.mark.parametrize("name", MEGATRON_FAULTS)
def test_a_wrong_megatron_index_is_refused(tmp_path: Path, name: str) -> None:
    faults, message = MEGATRON_FAULTS[name]
    write_megatron(tmp_path / "c", [100, 5, 895], **faults)
    with pytest.raises(CorpusError, match=message):
        open_corpus("megatron", str(tmp_path / "c"))


@pytest.mark.parametrize(
    ("suffix", "size", "message"),
    [
        (".idx", -1, "found 101 bytes, expected 102 for 3 sequences and 4 document indices"),
        (".idx", 33, "found 33 bytes, expected a header of 34"),
        (".idx", 0, "found 0 bytes, expected a header"),
        (".bin", -2, "found 1998 bytes, expected 2000"),
        (".bin", -1, "found 1999 bytes, expected 2000"),
        (".bin", 0, "found 0 bytes, expected 2000"),
    ],
)
def test_a_cut_megatron_file_is_refused(tmp_path: Path, suffix: str, size: int, message: str) -> None:
    write_megatron(tmp_path / "c", [100, 5, 895])
    cut(tmp_path / f"c{suffix}", size)
    with pytest.raises(CorpusError, match=message):
        open_corpus("megatron", str(tmp_path / "c"))


def test_zeros_and_absent_files_are_refused(tmp_path: Path) -> None:
    write_megatron(tmp_path / "c", [100])
    (tmp_path / "c.idx").write_bytes(bytes(62))
    with pytest.raises(CorpusError, match="expected b'MMIDIDX"):
        open_corpus("megatron", str(tmp_path / "c"))
    (tmp_path / "c.idx").unlink()
    with pytest.raises(CorpusError, match=r"c\.idx: .*nothing"):
        open_corpus("megatron", str(tmp_path / "c"))
    with pytest.raises(CorpusError, match="kind 'mongolian'"):
        open_corpus("mongolian", str(tmp_path / "c"))


def test_counts_that_overflow_are_refused(tmp_path: Path) -> None:
    write_megatron(tmp_path / "c", [100])
    content = bytearray((tmp_path / "c.idx").read_bytes())
    content[18:26] = b"\xff" * 8
    (tmp_path / "c.idx").write_bytes(content)
    with pytest.raises(CorpusError, match=r"\b62\b.*\b221360928884514619"):
        open_corpus("megatron", str(tmp_path / "c"))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (dict(lens0=np.array([1000])), "found lens0, expected an array named lens"),
        (dict(lens=np.array([0.5])), "lens is float64"),
        (dict(lens=np.array([[1, 2]])), r"lens is int64 \(1, 2\), expected one dimension"),
        (dict(lens=np.array([], "int32")), r"\(0,\)"),
        (dict(lens=np.array([{}], object)), "lens is object"),
    ],
)
def test_a_wrong_paddle_index_is_refused(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    write_paddle(tmp_path / "c", [1000], **arrays)
    with pytest.raises(CorpusError, match=message):
        open_corpus("paddle", str(tmp_path / "c"))


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (np.zeros((10, 10), "uint16"), r"found uint16 \(10, 10\)"),
        (np.zeros(10, "float32"), "found float32"),
        (np.zeros(10, "uint8"), "found uint8"),
        (np.array([{}, {}], object), "found object"),
        (np.zeros(0, "int32"), r"int32 \(0,\)"),
    ],
)
def test_wrong_paddle_tokens_are_refused(tmp_path: Path, tokens: Any, message: str) -> None:
    write_paddle(tmp_path / "c", [1000])
    np.save(tmp_path / "c_ids.npy", tokens, allow_pickle=True)
    with pytest.raises(CorpusError, match=message):
        open_corpus("paddle", str(tmp_path / "c"))


@pytest.mark.parametrize(
    ("name", "size", "message"),
    [
        ("c_ids.npy", -2, "found 2126 bytes, expected 2128 for 1000 tokens of uint16"),
        ("c_ids.npy", 20, "not an .npy file"),
        ("c_ids.npy", 0, "not an .npy file"),
        ("c_idx.npz", -30, "not a whole .npz file"),
        ("c_idx.npz", 0, "not a whole .npz file"),
    ],
)
def test_a_cut_paddle_file_is_refused(tmp_path: Path, name: str, size: int, message: str) -> None:
    write_paddle(tmp_path / "c", [100, 900])
    cut(tmp_path / name, size)
    with pytest.raises(CorpusError, match=message):
        open_corpus("paddle", str(tmp_path / "c"))


@pytest.mark.parametrize("kind", WRITERS)
def test_a_corpus_that_is_cut_short_while_it_is_read_is_named_with_both_sizes(tmp_path: Path, kind: str) -> None:
    """A memory map would end this process by SIGBUS."""
    WRITERS[kind](tmp_path / "c", [100_000])
    job = make_job(
        tmp_path, corpus=dict(kind=kind, prefix=str(tmp_path / "c")), data=dict(shuffle=False, split=[1, 0, 0])
    )
    source = open_source(job)
    last = np.array([3000], dtype=np.uint64)
    assert len(source.samples(last)) == 1
    (path,) = (p for p in (tmp_path / "c.bin", tmp_path / "c_ids.npy") if p.exists())
    size = path.stat().st_size
    cut(path, 4096)
    assert len(source.samples(np.array([0], dtype=np.uint64))) == 1  # what is left can be read
    with pytest.raises(CorpusError, match=rf"{path}: .*\b{size}\b.*\b4096\b"):
        source.samples(last)


def test_an_index_that_is_cut_short_while_it_is_read_is_named(tmp_path: Path) -> None:
    write_megatron(tmp_path / "c", [1] * 5000)
    index = open_index(str(tmp_path / "c.idx"))
    assert index.lengths[-1] == 1 and len(index.pointers[4990:6000]) == 10 and len(index.lengths[7:3]) == 0
    size = (tmp_path / "c.idx").stat().st_size
    cut(tmp_path / "c.idx", 100)
    with pytest.raises(CorpusError, match=rf"c\.idx: .*\b{size}\b.*\b100\b"):
        index.documents[-1]
    with pytest.raises(IndexError):
        index.lengths[5000]


def test_an_open_corpus_gives_its_files_back(tmp_path: Path) -> None:
    write_megatron(tmp_path / "c", [100])
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        open_corpus("megatron", str(tmp_path / "c"))
    assert len(list(Path("/proc/self/fd").iterdir())) == before

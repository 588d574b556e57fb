"""A corpus that is written to between its check and the end of a run: its content decides."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from levelfield.contracts.execution import Outcome
from levelfield.corpus import integrity
from levelfield.corpus.integrity import check
from levelfield.errors import CorpusError
from levelfield.run.input_watch import CorpusWatch
from levelfield.specs.plan import CorpusUsed
from planted_corpora import write_megatron, write_paddle

GOOD = Outcome("exited")
TOKENS = {"megatron": ".bin", "paddle": "_ids.npy"}


@pytest.fixture(params=["megatron", "paddle"])
def used(request: pytest.FixtureRequest, tmp_path: Path) -> CorpusUsed:
    """A corpus as a plan names it, after its full check."""
    {"megatron": write_megatron, "paddle": write_paddle}[request.param](tmp_path / "books", [400])
    facts = check(tmp_path / "books")
    return CorpusUsed(kind=facts.kind, prefix=facts.prefix, digest=facts.digest, tokens=facts.tokens)


def tokens_of(used: CorpusUsed) -> Path:
    return Path(f"{used.prefix}{TOKENS[used.kind]}")


def swap_two(path: Path) -> None:
    """Overwrite in place: two tokens change places, and the size stays."""
    content = bytearray(path.read_bytes())
    content[-4:] = content[-2:] + content[-4:-2]
    with path.open("r+b") as file:
        file.write(content)


def replace_file(path: Path) -> None:
    """Put another file of the same size and time in its place."""
    before, new = path.stat(), path.with_name("new")
    new.write_bytes(path.read_bytes())
    swap_two(new)
    os.utime(new, ns=(before.st_atime_ns, before.st_mtime_ns))
    new.replace(path)


def overwrite_keeping_its_time(path: Path) -> None:
    before = path.stat()
    swap_two(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("change", [swap_two, replace_file, overwrite_keeping_its_time, Path.unlink])
def test_a_change_during_the_run_ends_a_good_run_otherwise(used: CorpusUsed, change: Callable[[Path], None]) -> None:
    watch, said = CorpusWatch(used), []
    change(tokens_of(used))
    outcome = watch.judged(GOOD, said.append)
    assert outcome.cause == "corpus" and str(used.prefix) in (outcome.evidence or "")
    assert (outcome.evidence or "").startswith("during the run: ")


def test_a_file_that_is_only_touched_is_read_again_and_no_fault(used: CorpusUsed) -> None:
    watch, said = CorpusWatch(used), []
    os.utime(tokens_of(used), (1, 1))
    assert watch.judged(GOOD, said.append) == GOOD
    assert said == [f"{used.prefix}: its files were written to during the run; checking their content again"]


def test_an_unchanged_file_is_not_read_again(used: CorpusUsed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integrity, "_read_all", lambda *given: pytest.fail("it was read"))
    assert CorpusWatch(used).judged(GOOD, pytest.fail) == GOOD


def test_a_corpus_that_was_overwritten_after_its_check_trains_nothing(used: CorpusUsed) -> None:
    swap_two(tokens_of(used))
    with pytest.raises(CorpusError, match="was overwritten after it was checked: found digest sha256:"):
        CorpusWatch(used)


def test_a_run_that_failed_keeps_its_own_cause(used: CorpusUsed) -> None:
    watch = CorpusWatch(used)
    swap_two(tokens_of(used))
    failed = Outcome("rank-failed", (), "rank 0 ended with exit code 1")
    assert watch.judged(failed, pytest.fail) == failed


def test_a_synthetic_corpus_has_no_files() -> None:
    synthetic = CorpusUsed(kind="synthetic", digest="sha256:0", entropy_nats=1.0)
    assert CorpusWatch(synthetic).judged(GOOD, pytest.fail) == GOOD

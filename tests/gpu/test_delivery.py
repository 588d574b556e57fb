"""The stand-in's messages, between real processes: right values, and faults that end as named hangs. gcc alone."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from standin.build import BuildError, build_delivery, cuda_torch

HERE = Path(__file__).resolve().parent
HANG, MISMATCH = 86, 87
pytestmark = pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc")


class Ended(NamedTuple):
    """A rank that ended: its exit code, and what it wrote."""

    code: int
    out: str
    err: str


class Wait(NamedTuple):
    """What a rank waits for. fault: the last word of what is wrong, `come` or `taken`; empty at other ranks."""

    fault: str
    operation: str
    peer: str | None
    number: int | None
    ranks: str | None


def waits(err: str) -> dict[int, Wait]:
    """Return what each rank waits for, by the report of a hang, which names the rank that ends first."""
    pattern = (
        r"rank (\d+): (?:hangs: a message (?:did|was) not (\w+): )?waits in (\w+)"
        r"(?: (?:to|from) rank (\d+))?(?:, number (\d+))?(?: of group of \d+ \(ranks ([\d ]+)\))?"
    )
    return {
        int(rank): Wait(fault, operation, peer or None, int(number) if number else None, ranks or None)
        for rank, fault, operation, peer, number, ranks in reversed(re.findall(pattern, err))
    }


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_delivery(tmp_path_factory.mktemp("standin"))


def run(library: Path, folder: Path, program: str, ranks: int = 3, seconds: int = 2) -> list[Ended]:
    variables = {**os.environ, "LEVELFIELD_STANDIN_SPACE": str(folder)}
    variables["LEVELFIELD_STANDIN_TIMEOUT_SECONDS"] = str(seconds)
    started = [
        subprocess.Popen(
            [sys.executable, str(HERE / "delivering.py"), str(library), program, str(rank), str(ranks)],
            env={**variables, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    texts = [process.communicate(timeout=60) for process in started]
    return [Ended(process.returncode, *text) for process, text in zip(started, texts, strict=True)]


def values(ends: list[Ended]) -> list[dict[str, Any]]:
    assert [end.code for end in ends] == [0] * len(ends), ends
    return [json.loads(end.out) for end in ends]


def test_collectives_have_the_right_values(library: Path, tmp_path: Path) -> None:
    for rank, results in enumerate(values(run(library, tmp_path, "sums", ranks=4, seconds=30))):
        assert results["sum"] == [10.0, 2.0]
        assert results["average"] == [1.5]
        assert results["most"] == [0]
        assert results["bfloat16"] == [0x4080]  # 4.0
        assert results["gathered"] == [0.0, 10.0, 20.0, 30.0]
        assert results["scattered"] == [4.0 * rank]
        assert results["broadcast"] == [6.0]
        assert results["half"] == [4.0 if rank % 2 == 0 else 6.0]


def test_messages_reach_the_rank_they_are_sent_to(library: Path, tmp_path: Path) -> None:
    for rank, results in enumerate(values(run(library, tmp_path, "messages", seconds=30))):
        exchanged = results["all to all"]
        assert exchanged == [100.0 * peer + rank for peer in range(3)]
        assert results["ring"] == [(rank - 1) % 3]


def test_of_large_messages_only_the_size_travels(library: Path, tmp_path: Path) -> None:
    values(run(library, tmp_path, "large", seconds=30))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 100_000


def test_a_missing_all_reduce_names_rank_group_and_operation(library: Path, tmp_path: Path) -> None:
    end = run(library, tmp_path, "missing_reduce")[0]
    assert end.code == HANG
    assert waits(end.err)[0] == Wait("come", "all_reduce", None, 2, "0 1 2")
    assert re.search(r"rank 1: .*all_reduce, number 1\b", end.err)  # it calls no second one
    assert waits(end.err)[2][1:4] == ("all_reduce", None, 2)


def test_a_swapped_send_is_a_named_hang(library: Path, tmp_path: Path) -> None:
    end = run(library, tmp_path, "swapped_send")[1]
    assert end.code == HANG
    assert waits(end.err)[1][:4] == ("come", "recv", "0", 1)
    assert waits(end.err)[0][:3] == ("", "send", "2")


def test_a_send_that_nobody_receives_is_a_named_hang(library: Path, tmp_path: Path) -> None:
    end = run(library, tmp_path, "untaken_send", ranks=2)[0]
    assert end.code == HANG
    assert waits(end.err)[0][:4] == ("taken", "send", "1", 1)


@pytest.mark.parametrize("program", ["other_count", "other_operation"])
def test_ranks_that_call_different_operations_are_named(library: Path, tmp_path: Path, program: str) -> None:
    ends = run(library, tmp_path, program)
    assert MISMATCH in [end.code for end in ends]
    err = next(end.err for end in ends if end.code == MISMATCH)
    assert re.search(r"\bnumber 1 .*\(ranks 0 1 2\)", err)


def alone(library: Path, program: str, rank: int, ranks: int) -> subprocess.CompletedProcess[str]:
    variables = {name: value for name, value in os.environ.items() if name != "LEVELFIELD_STANDIN_SPACE"}
    argv = [sys.executable, str(HERE / "delivering.py"), str(library), program, str(rank), str(ranks)]
    return subprocess.run(argv, env=variables, capture_output=True, text=True, timeout=60)


def test_a_rank_alone_refuses_a_split_group_of_unknown_size(library: Path) -> None:
    """A group of the wrong size reads and writes behind the buffers that its caller has for the right one."""
    done = alone(library, "split_alone", 3, 64)
    assert json.loads(done.stdout) == [1, 2]
    assert done.returncode == 2
    (message,) = (line for line in done.stderr.splitlines() if "standin_next_split" in line)
    assert re.findall(r"\b\d+\b", message.partition("alone")[2]) == ["64", "0", "0"]


def test_without_a_space_a_rank_runs_alone(library: Path) -> None:
    results = json.loads(alone(library, "messages", 1, 3).stdout)
    exchanged = results["all to all"]
    assert exchanged == [100.0, 101.0, 102.0]  # each peer sends what it gets
    assert results["ring"] == [0.0]


def test_a_python_without_cuda_torch_is_named() -> None:
    with pytest.raises(BuildError, match=rf"{sys.executable}: .*\bCUDA\b"):
        cuda_torch(Path(sys.executable))
    with pytest.raises(BuildError, match="/nowhere/python: "):
        cuda_torch(Path("/nowhere/python"))

"""The stand-in's messages, between real processes: right values, and faults that end as named hangs. gcc alone."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from standin.build import BuildError, build_delivery, cuda_torch

HERE = Path(__file__).resolve().parent
HANG, MISMATCH = 86, 87
pytestmark = pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc")


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return build_delivery(tmp_path_factory.mktemp("standin"))


def run(library, folder, program, ranks=3, seconds=2):
    """[(exit code, what was printed, what was said)] of each rank."""
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
    said = [process.communicate(timeout=60) for process in started]
    return [(process.returncode, *each) for process, each in zip(started, said, strict=True)]


def values(answers):
    assert [code for code, _, _ in answers] == [0] * len(answers), answers
    return [json.loads(printed) for _, printed, _ in answers]


def test_collectives_have_the_right_values(library, tmp_path):
    found = values(run(library, tmp_path, "sums", ranks=4, seconds=30))
    for rank, each in enumerate(found):
        assert each["sum"] == [10.0, 2.0]
        assert each["average"] == [1.5]
        assert each["most"] == [0]
        assert each["bfloat16"] == [0x4080]  # 4.0
        assert each["gathered"] == [0.0, 10.0, 20.0, 30.0]
        assert each["scattered"] == [4.0 * rank]
        assert each["broadcast"] == [6.0]
        assert each["half"] == [4.0 if rank % 2 == 0 else 6.0]


def test_messages_reach_the_rank_they_are_sent_to(library, tmp_path):
    found = values(run(library, tmp_path, "messages", seconds=30))
    for rank, each in enumerate(found):
        assert each["all to all"] == [100.0 * peer + rank for peer in range(3)]
        assert each["ring"] == [(rank - 1) % 3]


def test_of_large_messages_only_the_size_travels(library, tmp_path):
    values(run(library, tmp_path, "large", seconds=30))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 100_000


def test_a_missing_all_reduce_names_rank_group_and_operation(library, tmp_path):
    answers = run(library, tmp_path, "missing_reduce")
    code, _, said = answers[0]
    assert code == HANG
    assert "rank 0: hangs: a message did not come: waits in all_reduce, number 2 of group of 3 (ranks 0 1 2)" in said
    assert re.search(r"rank 1: (has done|called|waits in) all_reduce, number 1 ", said)  # it calls no second one
    assert "rank 2: waits in all_reduce, number 2" in said


def test_a_swapped_send_is_a_named_hang(library, tmp_path):
    answers = run(library, tmp_path, "swapped_send")
    assert answers[1][0] == HANG
    assert "rank 1: hangs: a message did not come: waits in recv from rank 0, number 1" in answers[1][2]
    assert "rank 0: waits in send to rank 2" in answers[1][2]


def test_a_send_that_nobody_receives_is_a_named_hang(library, tmp_path):
    code, _, said = run(library, tmp_path, "untaken_send", ranks=2)[0]
    assert code == HANG
    assert "rank 0: hangs: a message was not taken: waits in send to rank 1, number 1" in said


@pytest.mark.parametrize("program", ["other_count", "other_operation"])
def test_ranks_that_call_different_operations_are_named(library, tmp_path, program):
    answers = run(library, tmp_path, program)
    assert MISMATCH in [code for code, _, _ in answers]
    said = next(said for code, _, said in answers if code == MISMATCH)
    assert "as number 1 of group of 3 (ranks 0 1 2)" in said


def alone(library, program, rank, ranks):
    variables = {name: value for name, value in os.environ.items() if name != "LEVELFIELD_STANDIN_SPACE"}
    argv = [sys.executable, str(HERE / "delivering.py"), str(library), program, str(rank), str(ranks)]
    return subprocess.run(argv, env=variables, capture_output=True, text=True, timeout=60)


def test_a_rank_alone_knows_a_split_group_by_what_it_is_told(library):
    """A group of the wrong size reads and writes behind the buffers that its caller has for the right one."""
    done = alone(library, "split_alone", 3, 64)
    assert json.loads(done.stdout) == [1, 2]
    assert done.returncode == 2
    assert "a rank alone splits a group of 64 and was told rank 0 of 0; call standin_next_split" in done.stderr


def test_without_a_space_a_rank_runs_alone(library):
    found = json.loads(alone(library, "messages", 1, 3).stdout)
    assert found["all to all"] == [100.0, 101.0, 102.0]  # each peer sends what it gets
    assert found["ring"] == [0.0]


def test_a_python_without_cuda_torch_is_named():
    with pytest.raises(BuildError, match="expected a CUDA build"):
        cuda_torch(Path(sys.executable))
    with pytest.raises(BuildError, match="found no such Python"):
        cuda_torch(Path("/nowhere/python"))

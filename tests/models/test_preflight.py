"""The collectives of a preflight, run: figures of every operation, and values that are wrong on purpose."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from levelfield.cli.main import main
from trainings.warm import run_ranks

ROOT = Path(__file__).parents[2]
MEMBERS = (2, 3, 4, 5, 8)
# Two ranks, whose collectives are right, then planted faults in one of them, in turn.
RANK = """
import json, os, sys
sys.path[:0] = [{torch!r}, {platform!r}]
import torch, torch.distributed as dist
import group_rates

rank, store = int(os.environ["RANK"]), os.environ["RENDEZVOUS_FILE"]
dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
names = ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "broadcast")
right = {{name: getattr(dist, name) for name in names}}
faults = {{
    "none": lambda values: None,
    "one percent": lambda values: values.mul_(1.01),
    "nan": lambda values: values[3:4].fill_(float("nan")),
    "swapped": lambda values: values.copy_(values.flip(0)),
    "last": lambda values: values[-1:].add_(1),
}}


def planted(name, fault):
    def call(*given, **named):
        right[name](*given, **named)
        if rank == 1:
            faults[fault](given[0])
    return call


class Recorder:
    def measured(self, name, values):
        found.append([fault, name, values])


found, cpu = [], torch.device("cpu")
for fault in faults:
    for name in right:
        setattr(dist, name, planted(name, fault))
    for operation, make in group_rates.OPERATIONS.items():
        whole = group_rates.message(1024, cpu)
        found.append([fault, operation, make(whole)[1]])
for name in right:
    setattr(dist, name, right[name])
fault = "times"
group_rates.collective(Recorder(), cpu, "all_reduce", group_rates.make_all_reduce, [2**10, 2**16, 2**20], 0.0)
for members in {members}:
    found.append(["rounds", members, [list(matches) for matches in group_rates.rounds(list(range(members)))]])
print(json.dumps(found), flush=True)
dist.barrier()
os._exit(0)
"""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[list[Any]]:
    """What the two ranks found, by rank."""
    folder = tmp_path_factory.mktemp("ranks")
    script = folder / "rank.py"
    folders = {"torch": str(ROOT / "models" / "torch"), "platform": str(ROOT / "platform")}
    script.write_text(RANK.format(members=MEMBERS, **folders))
    common = {**os.environ, "RENDEZVOUS_FILE": str(folder / "store")}
    ends = run_ranks(sys.executable, str(script), [{**common, "RANK": str(rank)} for rank in range(2)], folder)
    assert [end.returncode for end in ends] == [0, 0], ends[0].output[-2000:]
    return [json.loads(end.output.splitlines()[-1]) for end in ends]


def wrong(ranks: list[list[Any]], rank: int, fault: str) -> dict[str, str | None]:
    return {name: said for planted, name, said in ranks[rank] if planted == fault}


@pytest.mark.torch
def test_right_values_are_right_on_every_rank(ranks: list[list[Any]]) -> None:
    for rank in range(2):
        found = wrong(ranks, rank, "none")
        assert found == dict.fromkeys(("all_reduce", "all_gather", "reduce_scatter", "broadcast"))


@pytest.mark.torch
@pytest.mark.parametrize("fault", ["one percent", "nan", "swapped", "last"])
def test_every_planted_fault_is_seen_in_every_operation_by_the_rank_that_has_it(
    ranks: list[list[Any]], fault: str
) -> None:
    found = wrong(ranks, 1, fault)
    assert len(found) == 4 and all(said and said.startswith("element ") for said in found.values()), found
    assert all(said is None for said in wrong(ranks, 0, fault).values())


@pytest.mark.torch
def test_larger_messages_are_left_out_by_all_ranks_alike(ranks: list[list[Any]]) -> None:
    sizes = [[values["bytes"] for fault, _, values in rank if fault == "times"] for rank in ranks]
    assert sizes == [[2**10], [2**10]], "every message takes longer than no time"


@pytest.mark.torch
@pytest.mark.parametrize("members", MEMBERS)
def test_every_pair_meets_once_and_nobody_twice_in_a_round(ranks: list[list[Any]], members: int) -> None:
    [rounds] = [one for kind, number, one in ranks[0] if (kind, number) == ("rounds", members)]
    pairs = sorted(tuple(sorted(pair)) for matches in rounds for pair in matches)
    assert pairs == [(a, b) for a in range(members) for b in range(a + 1, members)]
    assert all(len({member for pair in matches for member in pair}) == 2 * len(matches) for matches in rounds)


@pytest.mark.thorough
@pytest.mark.torch
def test_the_command_measures_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--case", "gpt3_6.7B:torch:cpu:1:2", "--short", "--pairs", "--json", "--python", sys.executable]
    assert main(["site", "preflight", *given, "--runs", str(tmp_path / "runs")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["word"] == "not compared" and found["backend"] == "gloo" and found["barrier_seconds"] > 0
    sizes = {(row["operation"], row["bytes"]) for row in found["collectives"]}
    assert {name for name, _ in sizes} == {"all_reduce", "all_gather", "reduce_scatter", "broadcast"}
    assert ("all_reduce", 2**20) in sizes and all(row["wrong"] is None for row in found["collectives"])
    assert all(0 < row["bus_bytes_per_second"] < math.inf for row in found["collectives"])
    assert {pair["bytes"] for pair in found["pairs"]} == {2**10, 2**22}
    assert all(
        pair["wrong"] is None and pair["members"] == ["node0 device 0", "node0 device 1"] for pair in found["pairs"]
    )
    [node] = found["nodes"]
    assert node["rates"]["matmul"]["value"] > 1e9 and set(node["facts"]) == {"load", "memory", "limits"}
    assert list((tmp_path / "runs" / "preflights").iterdir()) == []

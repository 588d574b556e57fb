"""What the works of all nodes have in common, and its file beside those of the nodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from levelfield.node.assignment import AssignmentError, parse_assignment
from levelfield.node.common_work import divide_works, join_work
from levelfield.run.launchers.node_content import sample_interval_seconds, work_files


def work(node: int, devices: int = 2, **fields: Any) -> dict[str, Any]:
    def process(rank: int) -> dict[str, Any]:
        variables = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank % devices),
            "WORLD_SIZE": "4",
            **({"ODD": "1"} if rank % 2 else {}),
        }
        return {"rank": rank, "argv": ["train"], "environment": variables, "log": f"logs/rank{rank}.log"}

    limits = {"start_seconds": 1, "step_seconds": 1, "heartbeat_seconds": 1}
    content = {"schema": "levelfield.node/1", "run_id": "r", "nodes": 2, "root": "/run", "events_dir": "/run/events"}
    processes = [process(node * devices + device) for device in range(devices)]
    return {**content, "limits": limits, "node_rank": node, "name": f"node{node}", "processes": processes, **fields}


@pytest.mark.parametrize(
    "works",
    [
        [work(0), work(1)],
        [work(0), work(1), work(2, devices=1)],
        [work(0, more=1), work(1)],
        [work(0, more=None), work(1, more=0)],
        [work(0), work(0)],
        [work(0, devices=0), work(1)],
    ],
    ids=["two", "of different sizes", "one with a key more", "null beside 0", "equal", "one without ranks"],
)
def test_a_divided_work_joins_to_the_same(works: list[dict[str, Any]]) -> None:
    common, rests = divide_works(works)
    assert [join_work(common, rest) for rest in rests] == works
    assert common["run_id"] == "r" and all("run_id" not in rest for rest in rests)
    assert common["processes"]["environment"]["WORLD_SIZE"] == "4"


@pytest.mark.parametrize(
    ("name", "is_numbered"),
    [("node{node}", True), ("/1/{{node_rank}}/node{node}", False), ("gpu{node}", False), ("10.0.0.{node}", False)],
)
def test_numbers_are_in_no_rest_but_names_of_machines_are(name: str, is_numbered: bool) -> None:
    works = [work(node, devices=4, name=name.format(node=node)) for node in range(12)]
    for process in (process for one in works for process in one["processes"]):
        process["environment"].pop("ODD", None)
    common, rests = divide_works(works)
    assert [join_work(common, rest) for rest in rests] == works
    assert is_numbered == (rests == [{"node_rank": node} for node in range(12)])
    works[3]["processes"][1]["environment"]["RANK"] = "7"
    common, rests = divide_works(works)
    assert [join_work(common, rest) for rest in rests] == works


def test_the_files_of_many_nodes_are_small_and_give_the_same_work(tmp_path: Path) -> None:
    works = [work(node, removed=["A" * 1000]) for node in range(50)]
    files = work_files(works)
    assert len(files) == 51 and sum(map(len, files.values())) < 50 * 100 + 2500
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    for node in (0, 49):
        assignment = parse_assignment(files[f"node{node}.json"], lambda name: (tmp_path / name).read_text())
        assert assignment.content == works[node] and assignment.ranks == [2 * node, 2 * node + 1]


def test_one_node_has_one_file_with_all() -> None:
    files = work_files([work(0)])
    assert list(files) == ["node0.json"] and json.loads(files["node0.json"]) == work(0)


@pytest.mark.parametrize("common", ["[]", "{}", '{"processes": {}}', '{"processes": 1}', "no JSON"])
def test_a_damaged_common_part_is_refused_with_its_name(common: str) -> None:
    files = work_files([work(0), work(1)])
    with pytest.raises(AssignmentError, match=r"common\.json|work"):
        parse_assignment(files["node1.json"], lambda name: common)


def test_more_nodes_are_sampled_less_often_but_never_too_seldom_to_count() -> None:
    assert [sample_interval_seconds(nodes) for nodes in (1, 2, 250, 500, 1000, 8000)] == [1, 1, 1, 2, 4, 4]

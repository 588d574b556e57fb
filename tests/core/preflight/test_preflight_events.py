"""What the ranks of a preflight recorded: right files, and damaged, hostile and impossible ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from levelfield.measure.collectives import bus_factor
from levelfield.preflight.preflight_events import read_preflight
from levelfield.specs.paths import RunPaths
from levelfield.specs.plan import Plan
from preflights import node_values, write_preflight

PlanFor = Callable[..., Plan]


@pytest.fixture
def plan(plan_for: PlanFor) -> Plan:
    return plan_for("tiny:fake:F1:1:2", may_lack_hardware=True)


@pytest.fixture
def paths(tmp_path: Path, plan: Plan) -> RunPaths:
    paths = RunPaths(tmp_path)
    write_preflight(paths, [node_values(0)], ranks=2)
    return paths


def change(paths: RunPaths, rank: int, kind: str, edit: Callable[[dict[str, Any]], object]) -> None:
    """Edit the values of every event of a kind in a rank's file."""
    path = paths.events / f"rank{rank}.jsonl"
    events = [json.loads(line) for line in path.read_text().splitlines()]
    for event in events:
        if event.get("name") == kind:
            edit(event["values"])
    path.write_text("".join(json.dumps(event) + "\n" for event in events))


def test_products_are_medians_with_their_spread_and_unit(paths: RunPaths, plan: Plan) -> None:
    [node] = read_preflight(paths, plan).nodes
    rate = node.rates["matmul"]
    assert (rate.value, rate.best, rate.unit, rate.repeats) == (0.98e12, 1e12, "FLOP/s", 9)
    assert rate.spread == pytest.approx(0.02 / 0.98)
    assert node.missing == {} and set(node.rates) == {"matmul"}
    assert node.facts["limits"]["open_files"] == 1024


def test_a_collective_lasts_until_its_slowest_rank(paths: RunPaths, plan: Plan) -> None:
    facts = read_preflight(paths, plan)
    row = next(row for row in facts.collectives if row.operation == "all_reduce")
    # rank 0 needed 1, 2 and 3 ms, rank 1 needed 2 ms each: blocks of 2, 2 and 3 ms
    assert row.seconds == pytest.approx(0.002) and row.best_seconds == pytest.approx(0.002)
    assert row.algorithm_bytes_per_second == pytest.approx(2**20 / 0.002)
    assert row.bus_bytes_per_second == pytest.approx(2**20 / 0.002 * 1.0), "2 (n-1)/n of two ranks is 1"
    assert facts.is_group_joined and facts.backend == "gloo" and facts.barrier_seconds == pytest.approx(1e-4)


def test_the_bus_factors_are_those_of_nccl_tests() -> None:
    assert [bus_factor(name, 4) for name in ("all_reduce", "all_gather", "reduce_scatter", "broadcast")] == [
        1.5, 0.75, 0.75, 1.0,
    ]  # fmt: skip
    with pytest.raises(KeyError):
        bus_factor("gossip", 4)


def test_a_wrong_value_of_any_rank_is_kept(paths: RunPaths, plan: Plan) -> None:
    fault = "element 3 of 8: found nan, expected 6"
    change(paths, 1, "collective", lambda values: values.update(wrong=fault))
    assert {row.wrong for row in read_preflight(paths, plan).collectives} == {f"rank 1: {fault}"}


def test_values_that_were_not_checked_are_not_right(paths: RunPaths, plan: Plan) -> None:
    change(paths, 0, "collective", lambda values: values.pop("wrong"))
    [wrong] = {row.wrong for row in read_preflight(paths, plan).collectives}
    assert wrong is not None
    assert "rank 0" in wrong and "not checked" in wrong


@pytest.mark.parametrize("seconds", [[], [0.0], [-1.0], [float("nan")], [float("inf")], ["1"], [True], None, "x"])
def test_a_time_that_cannot_be_gives_no_collective(paths: RunPaths, plan: Plan, seconds: object) -> None:
    change(paths, 1, "collective", lambda values: values.update(seconds=seconds))
    assert read_preflight(paths, plan).collectives == ()


def test_a_collective_without_one_rank_is_none(paths: RunPaths, plan: Plan) -> None:
    (paths.events / "rank1.jsonl").unlink()
    facts = read_preflight(paths, plan)
    assert facts.collectives == () and not facts.is_group_joined and facts.barrier_seconds is None


def test_a_check_without_an_answer_is_missing_with_its_reason(paths: RunPaths, plan: Plan) -> None:
    change(paths, 0, "node", lambda values: values["checks"].update(memory={"reason": "no answer"}))
    [node] = read_preflight(paths, plan).nodes
    assert node.missing == {"memory": "no answer"} and set(node.facts) == {"load", "limits"}


@pytest.mark.parametrize("product", [{"tflops": 1.0}, {"tflops": 1.0, "median": 2.0}, {"tflops": None, "median": None}])
def test_a_product_without_a_rate_has_a_reason(paths: RunPaths, plan: Plan, product: dict[str, Any]) -> None:
    def replace(values: dict[str, Any]) -> None:
        values.clear()
        values.update(product)

    change(paths, 0, "matmul", replace)
    [node] = read_preflight(paths, plan).nodes
    assert node.rates["matmul"].value is None and node.rates["matmul"].reason


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\xff\xfe\x00", b"{", b"[" * 100_000, b'{"event":"measured"}',
        b'{"event":"measured","name":[],"values":{}}',
        b'{"event":"measured","name":"node","values":[]}', b'{"event":"measured","name":"node","values":{"checks":7}}',
        b'{"event":"measured","name":"node","values":{"checks":{"memory":3,"load":{"facts":[]}}}}',
        b'{"event":"measured","name":"collective","values":{"operation":"x","bytes":-1,"seconds":[1]}}',
        b'{"event":"measured","name":"pair","values":{"ranks":[0,99],"bytes":1,"seconds":[1]}}',
    ],
)  # fmt: skip
def test_nothing_that_a_rank_writes_raises(paths: RunPaths, plan: Plan, content: bytes) -> None:
    for rank in range(2):
        (paths.events / f"rank{rank}.jsonl").write_bytes(content)
    facts = read_preflight(paths, plan)
    assert len(facts.nodes) == 1 and facts.collectives == () and facts.pairs == ()
    assert facts.nodes[0].missing


def test_devices_of_an_accelerator_each_have_their_products(tmp_path: Path, plan: Plan) -> None:
    paths = RunPaths(tmp_path)
    write_preflight(paths, [node_values(0)], ranks=2, products_of_each=True)
    assert {"matmul 0", "matmul 1"} <= set(read_preflight(paths, plan).nodes[0].rates)


def test_a_pair_has_the_names_of_its_devices_on_one_node(tmp_path: Path, plan: Plan) -> None:
    paths = RunPaths(tmp_path)
    write_preflight(paths, [node_values(0)], ranks=2, pairs=[([0, 1], 2**20, 0.001)])
    [pair] = read_preflight(paths, plan).pairs
    assert pair.members == tuple(f"node0 device {rank}" for rank in pair.ranks)
    assert pair.bytes_per_second == pytest.approx(2**20 / 0.001) and pair.wrong is None

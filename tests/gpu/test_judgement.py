"""What a rehearsal's books are judged by, on books of real rehearsals: as they are, and each figure changed."""

from __future__ import annotations

import copy
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from levelfield.measure.parameter_counts import layer_matrices
from rehearsal.judgement import collectives, findings
from rehearsal.rank_work import RankWork

RECORDED: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "recorded_rehearsals.json").read_text())
EXACT = {  # what is compared to both sides in each layout
    "DP2": ["all_reduce over 2"],
    "PP2": ["send over 2"],
    "DP4 SH3, recompute full": ["reduce_scatter over 4"],
    "DP2 CP2 SH2": ["reduce_scatter over 4", "all_gather over 4"],
    "DP4 EP2 SH1": ["reduce_scatter over 4", "all_gather over 4", "send over 2"],
    "deepspeed DP2 SH2": ["all_reduce over 2"],
}
BOTH_SIDES = [(name, key) for name, keys in EXACT.items() for key in keys]


@pytest.fixture(params=RECORDED)
def recorded(request: pytest.FixtureRequest) -> dict[str, Any]:
    return copy.deepcopy(RECORDED[request.param])


def judged(recorded: dict[str, Any]) -> list[str]:
    return findings(recorded["entry"], recorded["ranks"])


def last(recorded: dict[str, Any]) -> dict[str, Any]:
    step: dict[str, Any] = recorded["ranks"][0]["steps"][-1]
    return step


def numbers(finding: str) -> list[float]:
    return [float(number) for number in re.findall(r"\d+(?:\.\d+)?", finding)]


def test_real_rehearsals_have_no_findings(recorded: dict[str, Any]) -> None:
    assert judged(recorded) == []


@pytest.mark.parametrize("factor", [0.99, 1.01])
def test_products_of_one_percent_more_or_less(recorded: dict[str, Any], factor: float) -> None:
    last(recorded)["product_flops"] *= factor
    if recorded["entry"]["job"]["model"].get("experts"):  # in float32 they are not compared
        assert judged(recorded) == []
        return
    (finding,) = judged(recorded)
    assert "matrix products" in finding and f"({factor - 1:+.2%})" in finding


def test_of_a_layer_that_runs_again_megatron_also_repeats_the_last_product() -> None:
    recorded = RECORDED["DP4 SH3, recompute full"]
    torch, megatron = (RankWork(recorded["entry"]["job"], framework, 0) for framework in ("torch", "megatron"))
    down = math.prod(layer_matrices(torch.model, 0)["mlp.down"])
    more = 2 * torch.tokens * torch.count * len(torch.layers) * down
    assert megatron.product_flops(False) - torch.product_flops(False) == pytest.approx(more)


@pytest.mark.parametrize(("precision", "bytes_of_matrices"), [("bf16", 2), ("fp8", 1)])
def test_matrices_may_be_gathered_in_8_bits(precision: str, bytes_of_matrices: int) -> None:
    recorded = copy.deepcopy(RECORDED["DP2 CP2 SH2"])
    recorded["entry"]["job"]["training"]["precision"] = precision
    work = RankWork(recorded["entry"]["job"], "torch", 0)
    matrices = sum(sum(map(math.prod, layer_matrices(work.model, layer).values())) for layer in work.layers)
    (gathered,) = (need for need in work.needs() if need.what == "parameters")
    assert gathered.least == 2 * work.elements(False) - (2 - bytes_of_matrices) * matrices


def test_every_kind_of_collective_that_a_layout_needs_is_missed(recorded: dict[str, Any]) -> None:
    """Each by itself is taken away: of gradients, parameters, activations and tokens."""
    rank = recorded["ranks"][0]
    needs = RankWork(recorded["entry"]["job"], recorded["entry"]["plan"]["implementation"]["framework"], rank["rank"])
    for kinds, ranks in {(need.kinds, need.ranks) for need in needs.needs()}:
        less = copy.deepcopy(recorded)
        for kind in kinds:
            last(less)["collectives"].pop(f"{kind} over {ranks}", None)
        assert any(" 0 bytes," in finding for finding in judged(less)), (kinds, ranks)


@pytest.mark.parametrize(("name", "key"), BOTH_SIDES)
@pytest.mark.parametrize("factor", [0.99, 1.05, 2])
def test_a_collective_of_more_or_less_bytes(name: str, key: str, factor: float) -> None:
    recorded = copy.deepcopy(RECORDED[name])
    sent = last(recorded)["collectives"][key]
    sent["bytes"] = int(sent["bytes"] * factor)
    (finding,) = judged(recorded)
    kind, ranks = key.split(" over ")
    assert kind in finding and f"{ranks} ranks" in finding


@pytest.mark.parametrize(("chunks", "groups"), [(1, {2}), (2, {2, 4})])
def test_megatrons_two_stages_send_back_over_all_ranks_only_where_chunks_are_interleaved(
    chunks: int, groups: set[int]
) -> None:
    job = copy.deepcopy(RECORDED["PP2"]["entry"]["job"])
    job["layout"].update(data=2, pipeline=2)
    job["tuning"]["virtual_pipeline"] = chunks
    sent = {need.ranks for need in RankWork(job, "megatron", 3).needs() if need.what == "activations"}
    assert sent == groups


@pytest.mark.parametrize(("rank", "neighbours"), [(0, 2 * 2 - 1), (1, 2 * 2), (3, 2 * 2 - 1)])
def test_each_model_chunk_sends_to_the_part_before_and_behind(rank: int, neighbours: int) -> None:
    job = copy.deepcopy(RECORDED["PP2"]["entry"]["job"])
    job["layout"].update(pipeline=4)
    job["model"]["layers"] = 9
    job["tuning"]["virtual_pipeline"] = 2
    work = RankWork(job, "torch", rank)
    assert list(work.layers) == {0: [0, 1, 5], 1: [2, 6], 3: [4, 8]}[rank]
    sent = next(need for need in work.needs() if need.kinds == ("send",))
    assert (sent.ranks, sent.exact) == (4, True)
    assert sent.least == neighbours * job["accumulation"] * work.tokens * job["model"]["hidden_size"] * work.width


@pytest.mark.parametrize(("left_out", "is_right"), [(0, True), (1, False)])
def test_the_losss_sums_and_a_tied_embedding_over_as_many_ranks_are_compared_together(
    left_out: int, is_right: bool
) -> None:
    """Two tensor ranks, and two stages that hold the embedding: three numbers a token travel beside its gradient."""
    job = copy.deepcopy(RECORDED["PP2"]["entry"]["job"])
    job["layout"].update(tensor=2, sequence_parallel=True, pipeline=2)
    job["model"]["tied_embeddings"] = True
    needs = [need for need in RankWork(job, "torch", 3).needs() if need.kinds == ("all_reduce",) and need.ranks == 2]
    assert len(needs) == 2
    assert any("embedding" in need.what for need in needs) and any("loss" in need.what for need in needs)
    sums = 3 * 4 * job["accumulation"] * job["tuning"]["micro_batch"] * job["training"]["sequence_length"]
    gradient = 4 * job["model"]["vocab_size"] // 2 * job["model"]["hidden_size"]
    sent = {"all_reduce over 2": {"bytes": gradient + (0 if left_out else sums)}}
    assert (list(collectives(needs, sent)) == []) == is_right


def test_collectives_of_two_kinds_swapped() -> None:
    recorded = copy.deepcopy(RECORDED["DP4 SH3, recompute full"])
    sent = last(recorded)["collectives"]
    sent["all_gather over 4"], sent["reduce_scatter over 4"] = sent["reduce_scatter over 4"], sent["all_gather over 4"]
    assert judged(recorded)


def test_ranks_swapped() -> None:
    """The last stage has the head's products, and the first one does not."""
    recorded = copy.deepcopy(RECORDED["PP2"])
    first, second = recorded["ranks"]
    first["steps"], second["steps"] = second["steps"], first["steps"]
    assert [finding.split(":")[0] for finding in judged(recorded)] == ["rank 0", "rank 1"]


def test_memory_that_grows(recorded: dict[str, Any]) -> None:
    """Between the second step and the third; from the first to the second the optimizer's states may come."""
    last(recorded)["allocated_peak_bytes"] += 3 * 2**20
    assert [0.003, 2, 3] in [numbers(finding)[-4:-1] for finding in judged(recorded)]  # GiB, between two steps


def test_the_first_step_leaves_the_optimizers_states(recorded: dict[str, Any]) -> None:
    for step in recorded["ranks"][0]["steps"]:
        step["step"] -= 1
    last(recorded)["allocated_peak_bytes"] += 3 * 2**20
    assert judged(recorded) == []
    last(recorded)["allocated_peak_bytes"] += 200 * 2**20
    assert [1, 2] in [numbers(finding)[-3:-1] for finding in judged(recorded)]


def test_memory_above_the_plan() -> None:
    recorded = copy.deepcopy(RECORDED["DP2"])
    recorded["entry"]["plan"]["expected_memory"]["parts"]["reserve"] = 0
    for step in recorded["ranks"][0]["steps"]:
        step["allocated_peak_bytes"] *= 2
    (finding,) = judged(recorded)
    expected = recorded["entry"]["plan"]["expected_memory"]["parts"]
    assert numbers(finding)[-1] == pytest.approx(sum(expected.values()) / 2**30, abs=0.01)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("failed_allocations", 2, "2 allocations failed"),
        ("allocator_retries", 1, "the allocator flushed 1 times in step 3"),
        ("synchronisations", {"stream": 500}, "the host waits 500 times"),
    ],
)
def test_failures_flushes_and_waits(name: str, value: Any, words: str) -> None:
    recorded = copy.deepcopy(RECORDED["DP2"])
    last(recorded)[name] = value
    assert [words in finding for finding in judged(recorded)] == [True]


def test_a_rank_that_failed_is_not_judged() -> None:
    recorded = copy.deepcopy(RECORDED["DP2"])
    recorded["ranks"][0].update(exit_code=86, error=None, steps=[])
    assert judged(recorded) == []

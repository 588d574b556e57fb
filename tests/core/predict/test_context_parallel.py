"""Context parallelism and hybrid sharding: each term by its closed form, and what no framework here offers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from levelfield.catalog.registry import Registry
from levelfield.predict.layout_rules import broken_rules, nearest_layouts
from levelfield.predict.layout_search import (
    LayoutEstimate,
    LayoutQuestion,
    SupportedParallelism,
    predict,
    search_layouts,
    unsupported_rows,
)
from levelfield.predict.machines import Link, MachineRates, gather_seconds, send_seconds
from levelfield.specs.case import Work
from levelfield.specs.constants import FITTED_FIELDS, Constants
from levelfield.specs.layout import Layout, parse_layout
from levelfield.specs.tuning import Tuning

LLAMA: Work = Registry().case("llama3_8b").work("full")  # 8,192 tokens, 32 layers, 8 key-value heads of 128
KEY_VALUE_WIDTH = 2 * 8 * 128
IDEAL: dict[str, Any] = {"communication_efficiency": 1, **dict.fromkeys(FITTED_FIELDS, 1), "launch_seconds": 0}
MACHINE = MachineRates(100e12, None, 1e12, Link(1e-6, 100e9), Link(1e-5, 80e9), 8, attention={"flash2": 40e12})
MEGATRON = frozenset({"data", "tensor", "pipeline", "interleaved", "sequence", "zero1"})


def question(work: Work = LLAMA, devices: int = 8, gathers: bool = False, **changes: Any) -> LayoutQuestion:
    constants = Constants.model_validate(
        {
            "framework": "megatron",
            "keeping": {"gathers_keys_values": gathers, "logit_bytes": 10},
            "pace": {**IDEAL, "overlap": 0},
        }
    )
    offer = SupportedParallelism(MEGATRON, ("none", "selective", "full"), ("partial sharding",))
    plain = LayoutQuestion(work, MACHINE, constants, offer, False, devices, None)
    return replace(plain, **changes)


def estimate(layout: str, micro_batch: int = 1, recompute: str = "none", **changes: Any) -> LayoutEstimate:
    fields = {"layout": parse_layout(layout).layout, "micro_batch": micro_batch, "recompute": recompute}
    return predict(question(**changes), Tuning.model_validate(fields))


def length(tokens: int) -> Work:
    return LLAMA.model_copy(update={"training": LLAMA.training.model_copy(update={"sequence_length": tokens})})


def test_a_rank_keeps_its_part_of_the_tokens_and_all_weights() -> None:
    whole, halved = estimate("DP8").memory, estimate("DP4CP2").memory
    assert halved.logits == whole.logits / 2 and halved.activations == whole.activations / 2
    assert (halved.weights, halved.gradients, halved.optimizer_states) == (
        whole.weights,
        whole.gradients,
        whole.optimizer_states,
    )


def test_twice_the_sequence_over_twice_the_ranks_keeps_the_activations() -> None:
    """As torchtitan's published runs of 8 x 32,768 tokens do, from one context rank to eight."""
    once, twice = estimate("DP8").memory, estimate("DP4CP2", work=length(16384)).memory
    assert twice.activations == once.activations and twice.logits == once.logits


@pytest.mark.parametrize(("gathers", "parts"), [(False, 2), (True, 4)])
def test_other_ranks_keys_and_values_take_buffers(gathers: bool, parts: int) -> None:
    """With their gradients: in a ring the part in use and the next one, gathered those of all four ranks."""
    buffers = estimate("DP2CP4TP1", gathers=gathers).memory.buffers
    assert buffers == 2 * parts * 2 * (8192 // 4) * KEY_VALUE_WIDTH


@pytest.mark.parametrize("masked", [{}, {"sliding_window": 4096}, {"attention_dropout": 0.1}], ids=str)
@pytest.mark.parametrize(("layout", "of_each"), [("DP4CP2", 1), ("DP2CP4", 3), ("DP2CP2TP2", 1), ("DP8", 0)])
def test_a_program_may_keep_what_it_gathered_of_other_ranks(layout: str, of_each: int, masked: dict[str, Any]) -> None:
    """Keys and values of the other ranks, and with a mask attention's output in pieces beside the joined one."""
    work = LLAMA.model_copy(update={"model": LLAMA.model.model_copy(update=masked)})
    plain, keeps = (
        predict(
            replace(
                query, constants=query.constants.model_copy(update={"keeping": keeping.model_copy(update=changes)})
            ),
            Tuning(layout=parse_layout(layout).layout, micro_batch=1),
        ).memory.activations
        for query, keeping in [(question(work, gathers=True), question(gathers=True).constants.keeping)]
        for changes in ({}, {"keeps_contexts": True})
    )
    tensor, context = parse_layout(layout).layout.tensor, parse_layout(layout).layout.context
    tokens = 8192 // context
    joined = 4096 if context > 1 and masked else 0
    assert keeps - plain == 32 * 2 * tokens * (of_each * KEY_VALUE_WIDTH + joined) // tensor


def test_states_are_sharded_over_data_times_context() -> None:
    whole, split = estimate("DP8SH1").memory, estimate("DP4CP2SH1").memory
    assert str(parse_layout("DP4CP2SH1").layout) == "DP4CP2TP1PP1SH1SP8"
    assert split.optimizer_states == whole.optimizer_states and split.weights == whole.weights


def test_gradients_are_reduced_over_data_times_context() -> None:
    assert estimate("DP4CP2").time.data == estimate("DP8").time.data > 0
    assert estimate("DP1CP8").time.data == estimate("DP8").time.data


def test_attention_is_divided_as_all_work_is() -> None:
    """With free messages and free memory eight context ranks compute as fast as eight data ranks."""
    free = replace(MACHINE, node=Link(0, 1e18), memory_bytes_per_second=1e18)
    ways = [estimate(layout, machine=free).time for layout in ("DP8", "DP4CP2", "DP1CP8")]
    assert ways[0].compute == pytest.approx(ways[1].compute) == pytest.approx(ways[2].compute)
    assert all(way.context == 0 for way in ways)


def attention_seconds(context: int) -> float:
    """Return the forward time of one layer's attention on one of the context ranks."""
    tokens = 8192 // context
    return 2 * tokens * 8192 * 32 * 128 * (1 + 128 / 8192) / 40e12


@pytest.mark.parametrize(("recompute", "forwards"), [("none", 1), ("full", 2)])
def test_a_ring_costs_what_attention_does_not_hide(recompute: str, forwards: int) -> None:
    slow = Link(1e-6, 1e9)
    exposed = estimate("DP2CP4", recompute=recompute, machine=replace(MACHINE, node=slow)).time.context
    size, part = 2 * (8192 // 4) * KEY_VALUE_WIDTH, attention_seconds(4) / 4
    forward, backward = send_seconds(size, slow) - part, send_seconds(2 * size, slow) - 2.5 * part
    assert forward > 0 and backward > 0
    layers, micro_batches = 32, LLAMA.training.global_batch // 2
    assert exposed == pytest.approx(micro_batches * layers * 3 * (forwards * forward + backward))


def test_a_fast_ring_is_free() -> None:
    assert estimate("DP2CP4").time.context == 0


def test_gathers_are_not_hidden() -> None:
    """Forward one gather; backward one more, and the reduction of the gradients of keys and values."""
    exposed = estimate("DP2CP4", gathers=True).time.context
    once = gather_seconds(2 * 8192 * KEY_VALUE_WIDTH, 4, Link(1e-6, 100e9))
    assert exposed == pytest.approx(LLAMA.training.global_batch // 2 * 32 * 3 * once)


def test_tensor_ranks_divide_keys_and_values() -> None:
    apart, split = estimate("DP2CP4", gathers=True), estimate("DP1CP4TP2", gathers=True)
    assert split.memory.buffers == apart.memory.buffers / 2


def test_context_ranks_are_beside_tensor_ranks() -> None:
    """Eight tensor ranks fill a node, so that the context ranks of a layout meet over the network."""
    fast = replace(MACHINE, network=Link(1e-5, 800e9))
    near, far = (
        estimate("CP2TP8", gathers=True, devices=16, machine=machine).time.context for machine in (fast, MACHINE)
    )
    assert far > near > 0


@pytest.mark.parametrize(("context", "micro_batch"), [(2, 2), (4, 2), (4, 4)])
@pytest.mark.parametrize("gathers", [False, True])
def test_a_micro_batch_with_a_factor_of_the_context_is_never_better(
    context: int, micro_batch: int, gathers: bool
) -> None:
    """The search leaves these rows out: with both divided by the factor the same tokens pass, and fewer bytes."""
    factor = min(context, micro_batch)
    more = estimate(f"DP{16 // context}CP{context}SH1", micro_batch, devices=16, gathers=gathers)
    few = context // factor
    less = estimate(f"DP{16 // few}CP{few}SH1", micro_batch // factor, devices=16, gathers=gathers)
    assert less.time.total <= more.time.total and less.memory.total <= more.memory.total


@pytest.mark.parametrize(
    ("tokens", "layout", "rule"),
    [
        (8190, "DP2CP2", "sequence length 8190 cannot be cut over 2 x context 2"),
        (8200, "CP4TP4+seq", "sequence length 8200 cannot be cut over 2 x context 4 and tensor 4"),
    ],
)
def test_what_context_ranks_need(tokens: int, layout: str, rule: str) -> None:
    parsed = parse_layout(layout).layout
    assert rule in broken_rules(length(tokens), parsed, 1, 1, parsed.world_size)
    assert broken_rules(length(8192), parsed, 1, 1, parsed.world_size) == []


def test_the_nearest_layouts_keep_the_context() -> None:
    offered = nearest_layouts(LLAMA, Layout(data=3, context=2), 1, 1, 8)
    assert offered and all("CP2" in text for text in offered)
    assert "data 3 x context 2 x tensor 1 x pipeline 1" in broken_rules(LLAMA, Layout(data=3, context=2), 1, 1, 8)[1]


def test_only_what_is_offered_is_searched() -> None:
    layouts = [row.layout for row in search_layouts(question(devices=16)).rows]
    assert {layout.context for layout in layouts} == {1}
    assert all(layout.sharding_degree in (1, layout.gradient_ranks) for layout in layouts)


def test_rows_beyond_the_offer_are_named() -> None:
    query = question(devices=16, capacity_bytes=80 * 2**30)
    others = unsupported_rows(query)
    assert {query.supported.missing_parallelism(row.tuning, 32) for row in others} == {
        ("context",),
        ("hybrid",),
        ("context", "hybrid"),
    }
    rates = [row.tokens_per_second for row in others]
    assert rates == sorted(rates, reverse=True) and all(row.fits for row in others)
    hybrid = {
        row.layout.sharding_degree
        for row in others
        if query.supported.missing_parallelism(row.tuning, 32) == ("hybrid",)
    }
    assert hybrid <= {8, 4, 2}  # the ranks of a node of eight, over one, two or four tensor ranks


def test_hybrid_sharding_is_searched_where_it_is_offered() -> None:
    offer = SupportedParallelism(MEGATRON | {"zero3"}, ("none",))
    rows = search_layouts(question(devices=16, supported=offer)).rows
    degrees = {row.layout.sharding_degree for row in rows if row.layout.data == 16}
    assert degrees == {1, 8, 16}
    network = replace(MACHINE, network=Link(1e-5, 20e9))
    inside, across = (
        predict(question(devices=16, machine=network), Tuning(layout=parse_layout(text).layout)).time.data
        for text in ("DP16SH3SP8", "DP16SH3SP16")
    )
    assert inside < across


def test_who_offers_context_parallelism_and_partial_sharding() -> None:
    """docs/planner.md and `plan` say so."""
    registry = Registry()
    files = {name: registry.implementation(name)[0] for name in registry.frameworks}
    offering = {name for name, file in files.items() if "context" in file.offered_parallelism("nvidia")}
    assert offering == {"torch", "megatron"}
    whole_only = {name for name, file in files.items() if "partial sharding" in file.refusals("nvidia")}
    assert whole_only == {"megatron", "deepspeed"}

"""Mixtures of experts in the planner: parameters, memory and time by their closed forms, the search and the rules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from levelfield.catalog.registry import Registry
from levelfield.errors import LayoutError
from levelfield.measure.flops import flops_per_token
from levelfield.measure.parameter_counts import count_parameters
from levelfield.predict.activations import layer_bytes
from levelfield.predict.explanation import memory_terms, time_terms
from levelfield.predict.footprint import expected_memory, layer_parameters, stage_footprints, stage_parameters
from levelfield.predict.layout_rules import broken_rules, can_interleave, nearest_layouts
from levelfield.predict.layout_search import (
    LayoutEstimate,
    LayoutQuestion,
    SupportedParallelism,
    predict,
    search_layouts,
    unsupported_rows,
)
from levelfield.predict.machines import Link, MachineRates, UnknownLink
from levelfield.predict.operations import experts_forward_cost, head_forward_cost, layer_forward_cost
from levelfield.predict.pass_timing import rank_slice
from levelfield.predict.setup import TrainingSetup, training_setup
from levelfield.specs.architecture import Model
from levelfield.specs.case import Work
from levelfield.specs.constants import FITTED_FIELDS, Constants, MemoryModel
from levelfield.specs.implementation import refused_choices
from levelfield.specs.layout import Layout, parse_layout
from levelfield.specs.tuning import Tuning

MIXTRAL: Work = Registry().case("mixtral_8x7b").work("full")
QWEN: Work = Registry().case("qwen3_30b_a3b").work("full")
DEEPSEEK: Work = Registry().case("deepseek_v3").work("full")
IDEAL: dict[str, Any] = {"communication_efficiency": 1, **dict.fromkeys(FITTED_FIELDS, 1), "launch_seconds": 0}
MACHINE = MachineRates(100e12, None, 1e12, Link(1e-6, 100e9), Link(1e-5, 80e9), 8, attention={"flash2": 40e12})
FEW = frozenset({"data", "expert", "zero1"})
KINDS = frozenset({"data", "tensor", "pipeline", "interleaved", "sequence", "zero1", "expert"})
EXPERT = 3 * 4096 * 14336  # of Mixtral


def question(work: Work = MIXTRAL, devices: int = 8, pace: Any = None, **changes: Any) -> LayoutQuestion:
    plain = {**IDEAL, "overlap": 0}
    constants = Constants.model_validate(
        {"framework": "megatron", "keeping": {"logit_bytes": 10}, "pace": {**plain, **(pace or {})}}
    )
    offer = SupportedParallelism(KINDS, ("none", "selective", "full"), ("partial sharding",))
    return replace(LayoutQuestion(work, MACHINE, constants, offer, False, devices, None), **changes)


def tuning(layout: str, **fields: Any) -> Tuning:
    return Tuning.model_validate({"layout": parse_layout(layout).layout, **fields})


def setup(layout: str, work: Work = MIXTRAL, **fields: Any) -> TrainingSetup:
    return training_setup(work, tuning(layout, **fields), on_host=False, memory_model=MemoryModel())


def estimate(layout: str, work: Work = MIXTRAL, pace: Any = None, **fields: Any) -> LayoutEstimate:
    machine = fields.pop("machine", MACHINE)
    return predict(question(work, pace=pace, machine=machine), tuning(layout, **fields))


def changed(work: Work, **model: Any) -> Work:
    return work.model_copy(update={"model": Model.model_validate({**work.model.model_dump(), **model})})


# ---- parameters and states


@pytest.mark.parametrize("work", [MIXTRAL, QWEN, DEEPSEEK], ids=["mixtral", "qwen", "deepseek"])
@pytest.mark.parametrize("stages", [1, 4])
def test_the_stages_hold_every_parameter_once(work: Work, stages: int) -> None:
    s = setup(f"PP{stages}", work)
    total = sum(stage_parameters(s, stage).total for stage in range(stages))
    assert total == count_parameters(work.model, 4096).total


def test_experts_are_divided_over_expert_and_tensor_ranks() -> None:
    assert layer_parameters(MIXTRAL.model, 1, 1, is_mixture=True).routed == 8 * EXPERT
    assert layer_parameters(MIXTRAL.model, 2, 4, is_mixture=True).routed == EXPERT
    assert (
        layer_parameters(MIXTRAL.model, 2, 1, is_mixture=True).plain
        == layer_parameters(MIXTRAL.model, 2, 4, is_mixture=True).plain
    )
    router = 8 * 4096  # which every tensor rank holds whole
    halved = (
        layer_parameters(MIXTRAL.model, 1, 1, is_mixture=True).plain
        - layer_parameters(MIXTRAL.model, 2, 1, is_mixture=True).plain
    )
    assert halved == (2 * 4096 * 4096 + 2 * 4096 * 1024) / 2 and router < halved


def test_the_layers_of_two_kinds_are_where_they_are() -> None:
    s = setup("PP16", DEEPSEEK)
    assert [s.layers_of(n) for n in (0, 12, 13, 15)] == [4, 4, 3, 3]
    assert [s.mixtures_of(n) for n in range(16)] == [1, *[4] * 12, 3, 3, 3]
    every_other = changed(MIXTRAL, experts={**MIXTRAL.model.model_dump()["experts"], "every": 2, "first_layer": 1})
    assert [setup("PP4", every_other).mixtures_of(n) for n in range(4)] == [4, 4, 4, 4]


def test_states_of_experts_are_sharded_over_the_ranks_that_hold_them() -> None:
    routed, plain = 32 * 8 * EXPERT, count_parameters(MIXTRAL.model, 4096).total - 32 * 8 * EXPERT
    assert estimate("DP8SH1").memory.optimizer_states == 8 * plain // 8 + 8 * routed // 8
    for ranks in (2, 4, 8):
        sharded = estimate(f"DP8EP{ranks}SH1").memory.optimizer_states
        assert sharded == 8 * plain // 8 + 8 * (routed // ranks) // (8 // ranks)
        alone = estimate(f"DP8EP{ranks}").memory
        assert alone.optimizer_states == 8 * (plain + routed // ranks)
        assert alone.gradients == 4 * (plain + routed // ranks)


def test_a_stage_between_the_ends_may_need_most() -> None:
    """DeepSeek-V3's first three layers are dense: of 16 stages the second holds four mixtures, the first only one."""
    memory, second = estimate("DP1PP16", DEEPSEEK).memory, stage_parameters(setup("PP16", DEEPSEEK), 1)
    assert second.total > stage_parameters(setup("PP16", DEEPSEEK), 0).total
    assert memory.optimizer_states == 8 * second.total


# ---- activations


def test_a_mixture_keeps_the_tokens_of_its_experts() -> None:
    tokens, layer = 4096, layer_bytes(setup("DP1"))
    assert layer.mixture is not None
    mlp = tokens * 4 * 2 * 14336  # gate, up, their product and its activation, in 16 bits
    router = 4 * tokens * (4096 + 2 * 8)  # in 32 bits: its input, logits and scores
    routed = 2 * mlp + 2 * tokens * 4096 * (2 + 2) + router
    assert layer.mixture.whole - layer.whole == routed - mlp
    inside = replace(setup("DP1"), memory_model=MemoryModel(expert_outputs=False))
    multiplied = layer_bytes(inside).mixture
    assert multiplied and layer.mixture.whole - multiplied.whole == 2 * tokens * 4096 * 2, "the experts' outputs"


def test_the_outputs_of_experts_are_weighed_beside_what_is_kept() -> None:
    """By the rank's tokens, whatever is recomputed, and in mixtures only."""
    for work, layout, recompute in ((MIXTRAL, "DP8EP8", "none"), (QWEN, "DP8SH3", "full"), (DEEPSEEK, "PP4", "none")):
        activations = [
            expected_memory(
                training_setup(
                    work,
                    tuning(layout, micro_batch=2, recompute=recompute),
                    False,
                    MemoryModel(gated_bytes=gated_bytes),
                )
            ).activations
            for gated_bytes in (0, 12)
        ]
        assert work.model.experts is not None
        assert activations[1] - activations[0] == 12 * 2 * 4096 * work.model.experts.chosen * work.model.hidden_size
    dense = Registry().case("llama3_8b").work("full")
    assert (
        len({expected_memory(training_setup(dense, tuning("DP1"), False, MemoryModel(gated_bytes=n))) for n in (0, 12)})
        == 1
    )


def test_gates_in_calls_of_their_own_move_more() -> None:
    fused, apart = (
        experts_forward_cost(QWEN.model, rank_slice(setup("DP1", QWEN), unfused)) for unfused in ((), ("gates",))
    )
    assert apart.moved_bytes - fused.moved_bytes == 18 * 4096 * 8 * 2048
    assert apart.operations == fused.operations
    part = rank_slice(setup("DP1", QWEN))
    gated = rank_slice(setup("DP1", QWEN), ("gates",))
    assert layer_forward_cost(QWEN.model, part, is_mixture=True) == layer_forward_cost(
        QWEN.model, gated, is_mixture=True
    )


def test_zero_3_does_not_gather_experts_that_no_other_rank_has() -> None:
    """They lie there as masters and as a copy for the products; with replicas they are sharded and gathered."""
    alone, shared = (stage_footprints(setup(layout))[0] for layout in ("DP8EP8SH3", "DP16EP8SH3"))
    experts = 32 * EXPERT
    rest = count_parameters(MIXTRAL.model, 4096).total - 8 * experts
    assert alone.weights == pytest.approx((4 + 2) * experts + 4 * rest / 8, rel=1e-6)
    assert shared.weights == pytest.approx(4 * experts / 2 + 4 * rest / 16, rel=1e-6)
    assert shared.buffers - alone.buffers == 2 * 2 * EXPERT
    assert stage_footprints(setup("DP8EP8SH1"))[0].weights == pytest.approx((4 + 2) * experts + (4 / 8 + 2) * rest)


def test_the_streams_hold_the_gradients_of_a_layer_larger_than_the_embedding() -> None:
    for layout, largest in (
        ("DP8SH3", layer_parameters(QWEN.model, 1, 1, is_mixture=True).total),
        ("DP8EP8SH3", QWEN.model.vocab_size * QWEN.model.hidden_size),  # the experts lie whole on their ranks
    ):
        plain, pools = (
            expected_memory(training_setup(QWEN, tuning(layout), False, MemoryModel(stream_pools=stream_pools))).reserve
            for stream_pools in (False, True)
        )
        assert pools - plain == 4 * largest


def test_shared_experts_and_more_chosen_ones_keep_more() -> None:
    experts = MIXTRAL.model.model_dump()["experts"]
    plain, shared, three = (
        layer_bytes(setup("DP1", changed(MIXTRAL, experts={**experts, **change}))).mixture
        for change in ({}, {"shared": 1}, {"chosen": 3})
    )
    assert plain and shared and three and plain.whole < shared.whole < three.whole
    assert three.whole - shared.whole == 4096 * 4096 * (2 + 2)  # what is sent to an expert and comes back


def test_expert_ranks_leave_the_activations_where_all_experts_are_filled_alike() -> None:
    assert estimate("DP8EP8").memory.activations == estimate("DP8").memory.activations


def test_recomputation_of_a_mixture_keeps_less() -> None:
    none, selective, full = (estimate("DP8EP8", recompute=r).memory.activations for r in ("none", "selective", "full"))
    assert none > selective > full > 32 * 4096 * 4096 * 2


def test_norms_of_queries_and_keys_and_latents_are_kept() -> None:
    without = changed(QWEN, query_key_norm=False)
    more = layer_bytes(setup("DP1", QWEN)).whole - layer_bytes(setup("DP1", without)).whole
    assert more == 4096 * (32 + 4) * 128 * 2
    wide, narrow = DEEPSEEK, changed(DEEPSEEK, latent_attention={**DEEPSEEK.model.model_dump()["latent_attention"]})
    narrow = changed(narrow, latent_attention={**narrow.model.model_dump()["latent_attention"], "query_rank": None})
    assert layer_bytes(setup("DP1", wide)).whole - layer_bytes(setup("DP1", narrow)).whole == 4096 * 1536 * 4


# ---- time


@pytest.mark.parametrize("work", [MIXTRAL, QWEN, DEEPSEEK], ids=["mixtral", "qwen", "deepseek"])
@pytest.mark.parametrize("layout", ["DP1", "TP4", "DP8EP8"])
def test_flops_are_the_megatron_formulas(work: Work, layout: str) -> None:
    model, part = work.model, rank_slice(setup(layout, work, micro_batch=2))
    dense, mixture, experts = (
        layer_forward_cost(model, part),
        layer_forward_cost(model, part, is_mixture=True),
        experts_forward_cost(model, part),
    )
    mixtures = model.mixture_layers
    layers = mixtures * (mixture.matmul_flops + mixture.attention_flops + experts.matmul_flops)
    layers += (model.layers - mixtures) * (dense.matmul_flops + dense.attention_flops)
    forward = layers + head_forward_cost(model, part).core_flops
    assert 3 * forward * part.tensor == pytest.approx(flops_per_token("megatron", model, 4096) * part.tokens)
    assert mixture.core_flops == 2 * part.tokens * model.hidden_size * (model.experts.count if model.experts else 0)


def test_a_sliding_window_leaves_less_attention() -> None:
    narrow = changed(MIXTRAL, sliding_window=1024)
    whole, less = (layer_forward_cost(w.model, rank_slice(setup("DP1", w))).attention_flops for w in (MIXTRAL, narrow))
    assert less / whole == (1024 - 1024**2 / 8192) / 2048
    assert estimate("DP8", narrow).time.compute < estimate("DP8").time.compute


def test_experts_that_are_sent_nowhere_take_no_exchange() -> None:
    assert estimate("DP8").time.expert == 0
    assert predict(question(Registry().case("llama3_8b").work("full")), tuning("DP8")).time.expert == 0


def test_the_exchange_in_a_node_is_four_all_to_alls_of_the_chosen_tokens() -> None:
    sent = 2 * 4096 * 2 * 4096  # two bytes, tokens, chosen experts, width
    one = 7 * (1e-6 + sent / 8 / 100e9)
    batches, mixtures = 256 // 8, 32
    assert estimate("DP8EP8").time.expert == pytest.approx(batches * mixtures * 4 * one)
    assert estimate("DP8EP8", recompute="full").time.expert == pytest.approx(batches * mixtures * 6 * one)
    assert estimate("DP8EP2").time.expert == pytest.approx(batches * mixtures * 4 * (1e-6 + sent / 2 / 100e9))


def test_what_leaves_the_node_goes_by_a_rank_s_share_of_the_network() -> None:
    """Four of eight ranks are in another node, and half of the tokens go there; each rank has a fourth of 80 GB/s."""
    small = replace(MACHINE, devices_per_node=4)
    between = 1e-5 + 2 * 4096 * 2 * 4096 / 2 / 20e9
    exchange = estimate("DP8EP8", machine=small).time.expert
    assert exchange == pytest.approx(32 * 32 * 4 * between)
    once = estimate("DP8EP8", machine=small, pace={"dispatch": "nodes"}).time.expert
    copies = 2 * (1 - 0.5**2) / 2  # of both nodes a token needs 1.5, and half of them are the other one
    assert once == pytest.approx(32 * 32 * 4 * (1e-5 + 2 * 4096 * 4096 * copies / 20e9))


def test_groups_of_experts_limit_the_nodes_of_a_token() -> None:
    layout = "DP64EP64"
    free = changed(DEEPSEEK, experts={**DEEPSEEK.model.model_dump()["experts"], "router": {"scores": "sigmoid"}})
    grouped, all_nodes = (estimate(layout, w, pace={"dispatch": "nodes"}).time.expert for w in (DEEPSEEK, free))
    assert grouped / all_nodes == pytest.approx(4 / (8 * (1 - (7 / 8) ** 8)), rel=0.02)


def test_sequence_parallel_ranks_send_their_part_and_gather_what_comes() -> None:
    small = replace(MACHINE, devices_per_node=2)
    alone, parts = (estimate(layout, machine=small).time.expert for layout in ("DP4EP4TP2", "DP4EP4TP2+seq"))
    gathered = 1e-6 + 2 * 4096 * 2 * 4096 / 2 / 100e9
    batches = 256 // 4
    hops = 3e-5
    assert parts == pytest.approx((alone - batches * 32 * 4 * hops) / 2 + batches * 32 * 4 * (hops + gathered))


def test_imbalance_and_overlap_are_what_they_say() -> None:
    plain = estimate("DP8EP8").time
    uneven, hidden = (estimate("DP8EP8", pace=p).time for p in ({"expert_imbalance": 1.5}, {"expert_overlap": 0.75}))
    assert uneven.expert == pytest.approx(1.5 * plain.expert) and hidden.expert == pytest.approx(plain.expert / 4)
    assert hidden.compute == plain.compute < uneven.compute < 1.5 * plain.compute
    slower = estimate("DP8EP8", pace={"grouped_efficiency": 0.5}).time
    assert slower.compute - plain.compute == pytest.approx(2 * (uneven.compute - plain.compute))


def test_the_network_has_to_be_known() -> None:
    with pytest.raises(UnknownLink, match="between nodes"):
        estimate("DP16EP16", QWEN, machine=replace(MACHINE, network=None))


def test_gradients_of_experts_are_summed_over_the_ranks_that_hold_them() -> None:
    """With all ranks dividing the experts only the other gradients are exchanged."""
    routed, plain = 32 * 8 * EXPERT, count_parameters(MIXTRAL.model, 4096).total - 32 * 8 * EXPERT
    whole, divided = (estimate(layout).time.data for layout in ("DP8", "DP8EP8"))
    assert whole == pytest.approx(2 * 7 / 8 * 4 * (routed + plain) / 100e9, rel=1e-3)
    assert divided == pytest.approx(2 * 7 / 8 * 4 * plain / 100e9, rel=1e-3)
    assert estimate("DP8EP4").time.data == pytest.approx(divided + 2 / 2 * 4 * routed / 4 / 100e9, rel=1e-3)


def test_the_slowest_stage_is_found_between_the_ends() -> None:
    """Wide dense layers on the first stages, and a small vocabulary: neither end is the slowest."""
    experts = {**DEEPSEEK.model.model_dump()["experts"], "first_layer": 4, "chosen": 64, "router": {}}
    work = changed(DEEPSEEK, experts=experts, layers=16, vocab_size=8192)
    time = estimate("PP4", work).time
    ratio = (time.compute + time.imbalance) / (time.compute / 16)
    assert ratio > 4 * 1.2  # the dense stage pulls the average below a stage of four mixtures


# ---- arithmetic


@pytest.mark.parametrize(
    ("work", "layout", "fields"),
    [
        (MIXTRAL, "DP8EP8SH1", {}),
        (MIXTRAL, "DP8EP4SH3", {"recompute": "selective"}),
        (QWEN, "DP4EP2TP2PP2SH2+seq", {"recompute": "full"}),
        (DEEPSEEK, "DP8EP8PP4", {}),
    ],
)
def test_the_arithmetic_gives_each_part(work: Work, layout: str, fields: dict[str, Any]) -> None:
    query = question(work)
    row = predict(query, tuning(layout, **fields))
    memory, time = memory_terms(query, row), time_terms(query, row)
    assert {t.part: t.value for t in memory} == row.memory._asdict()
    assert {t.part: t.value for t in time} == row.time._asdict()
    for term in [*memory, *time]:
        assert eval(term.arithmetic, {"__builtins__": {}}) == pytest.approx(term.value, rel=1e-4, abs=1e-6), term
    assert any("all-to-alls of" in term.words for term in time)


# ---- rules and search


@pytest.mark.parametrize(
    ("work", "layout", "rule"),
    [
        (MIXTRAL, Layout(data=16, expert=16), "8 experts cannot be cut over expert 16"),
        (
            changed(QWEN, vocab_size=151552),
            Layout(tensor=512),
            "an expert's ffn size 768 cannot be cut over tensor 512",
        ),
        (Registry().case("llama3_8b").work("full"), Layout(data=2, expert=2), "the model has no experts"),
    ],
)
def test_a_broken_rule_of_experts_is_named(work: Work, layout: Layout, rule: str) -> None:
    rules = broken_rules(work, layout, 1, 1, layout.world_size)
    assert len([reason for reason in rules if rule in reason]) == 1


def test_expert_ranks_divide_data_times_context() -> None:
    with pytest.raises(LayoutError, match="expert 4 does not divide data 2 x context 1"):
        parse_layout("DP2EP4TP2")
    assert broken_rules(MIXTRAL, parse_layout("DP2CP2EP4").layout, 1, 1, 4) == []
    assert str(parse_layout("DP4EP2TP2").layout) == "DP4EP2TP2PP1"


def test_an_unused_dense_size_divides_nothing() -> None:
    """Qwen3's dense width is published, but no layer has it."""
    odd = changed(QWEN, ffn_hidden_size=6145)
    assert broken_rules(odd, Layout(tensor=2), 1, 1, 2) == []
    assert broken_rules(changed(DEEPSEEK, ffn_hidden_size=18433), Layout(tensor=2), 1, 1, 2) == [
        "ffn size 18433 cannot be cut over tensor 2"
    ]


def test_a_head_size_of_its_own_divides_no_width() -> None:
    assert broken_rules(changed(QWEN, hidden_size=2050), Layout(), 1, 1, 1) == []


def test_the_nearest_layouts_keep_the_expert_ranks_that_are_possible() -> None:
    near = nearest_layouts(MIXTRAL, Layout(data=3, expert=3), 1, 1, 8)
    assert near and all("EP" not in text for text in near)
    assert any("EP4" in text for text in nearest_layouts(MIXTRAL, Layout(data=4, expert=4, tensor=3), 1, 1, 8))


def test_the_search_has_every_division_of_the_experts() -> None:
    query = question(supported=SupportedParallelism(FEW, ("none",)))
    rows = search_layouts(query).rows
    assert {row.layout.expert for row in rows} == {1, 2, 4, 8}
    assert all(row.time == predict(query, row.tuning).time for row in rows)  # what rows share depends on nothing else
    dense = search_layouts(question(Registry().case("llama3_8b").work("full"))).rows
    assert {row.layout.expert for row in dense} == {1}


def test_without_the_offer_no_row_divides_experts_and_beyond_shows_them() -> None:
    offer = SupportedParallelism(KINDS - {"expert"}, ("none",), ("partial sharding",))
    query = question(supported=offer)
    assert {row.layout.expert for row in search_layouts(query).rows} == {1}
    others = unsupported_rows(query)
    lacking = {name for row in others for name in offer.missing_parallelism(row.tuning, query.work.model.layers)}
    assert "expert" in lacking and all(offer.missing_parallelism(row.tuning, query.work.model.layers) for row in others)


@pytest.mark.parametrize(
    ("name", "layout", "fields", "precision"),
    [
        ("experts of a part of the ranks with zero", "DP8EP4SH1", {}, "bf16"),
        ("experts of a part of the ranks with partial sharding", "DP8EP4SH1SP4", {}, "bf16"),
        ("experts of a part of the ranks with an uneven hidden size", "DP24EP8SH1", {}, "bf16"),
        ("experts with compile", "DP8EP8", {"compile": True}, "bf16"),
        ("experts with fp8", "DP8EP8", {}, "fp8"),
    ],
)
def test_what_a_framework_may_refuse_of_experts(name: Any, layout: str, fields: Any, precision: Any) -> None:
    training = MIXTRAL.training.model_copy(update={"precision": precision})
    work, dense = MIXTRAL.model_copy(update={"training": training}), Registry().case("llama3_8b").work("full")
    assert refused_choices([name], work, tuning(layout, **fields)) == [name]
    assert (
        refused_choices([name], MIXTRAL, tuning("DP8EP8SH1"))
        == refused_choices([name], MIXTRAL, tuning("DP8SH1"))
        == []
    )
    assert refused_choices([name], dense, tuning("DP8SH1", **fields)) == []


def test_the_search_leaves_out_what_is_refused() -> None:
    offer = SupportedParallelism(FEW, ("none",), ("experts of a part of the ranks with zero",))
    sharded = [row.layout for row in search_layouts(question(supported=offer)).rows if row.layout.sharding_stage]
    assert {layout.expert for layout in sharded if layout.data == 8} == {1, 8}


def test_no_layout_that_fits_is_lost() -> None:
    """The search against every combination, on 8 devices of 120 GB."""
    capacity = 120 * 10**9
    query = question(QWEN, capacity_bytes=capacity, supported=SupportedParallelism(FEW, ("none", "full"), ()))
    fitting = {(str(r.layout), r.tuning.micro_batch, r.tuning.recompute) for r in search_layouts(query).rows}
    layouts = {
        row.layout for row in search_layouts(replace(query, capacity_bytes=None)).rows if row.layout.pipeline == 1
    }
    seen: set[bool] = set()
    for layout in layouts:
        for micro_batch in (1, 2, 4):
            for recompute in ("none", "full"):
                chosen = Tuning(layout=layout, micro_batch=micro_batch, recompute=recompute)
                row = predict(query, chosen)
                seen.add(row.memory.total <= capacity)
                assert ((str(layout), micro_batch, recompute) in fitting) == (row.memory.total <= capacity), chosen
    assert seen == {True, False}


# ---- stages of unequal layers


def test_stages_and_chunks_of_unequal_layers_are_searched_where_they_run() -> None:
    """61 layers divide over no pipeline. Megatron's recipes run 4 stages of 4 or 8 chunks, 8 of 4."""
    offer = SupportedParallelism(frozenset({"data", "pipeline", "interleaved"}), ("none",), ("partial sharding",))
    plain = question(DEEPSEEK, 32, capacity_bytes=None, supported=offer)
    assert {row.layout.pipeline for row in search_layouts(plain).rows} == {1}
    rows = search_layouts(replace(plain, supported=replace(offer, parallelism=offer.parallelism | {"uneven"}))).rows
    pipelines = {(row.layout.pipeline, row.tuning.virtual_pipeline) for row in rows}
    assert {(4, 4), (4, 8), (8, 4), (1, 1)} <= pipelines
    assert all(stages * chunks <= 61 for stages, chunks in pipelines)
    assert {plain.supported.missing_parallelism(row.tuning, 61) for row in rows if row.layout.pipeline > 1} == {
        ("uneven",)
    }
    assert any("uneven" in plain.supported.missing_parallelism(row.tuning, 61) for row in unsupported_rows(plain))


def test_unequal_chunks_need_a_layer_each() -> None:
    layout = parse_layout("DP1PP4").layout
    assert can_interleave(DEEPSEEK, layout, 1, 15, uneven_stages=True)
    assert not can_interleave(DEEPSEEK, layout, 1, 16, uneven_stages=True)
    assert not can_interleave(DEEPSEEK, layout, 1, 4) and can_interleave(MIXTRAL, layout, 1, 4)


@pytest.mark.parametrize("every", [1, 2, 3])
def test_the_stages_of_each_composition_hold_the_largest(every: int) -> None:
    """Against every stage, one by one; with dense layers at the front and between."""
    experts = {**DEEPSEEK.model.model_dump()["experts"], "every": every}
    for layout, fields in (("PP4", {}), ("PP16EP4DP4", {"recompute": "full"}), ("PP32", {}), ("PP61", {})):
        s = setup(layout, changed(DEEPSEEK, experts=experts), **fields)
        assert expected_memory(s).total == max(footprint.total for footprint in stage_footprints(s))
        kinds = {(s.layers_of(n), s.mixtures_of(n)) for n in range(s.layout.pipeline)}
        assert {(s.layers_of(n), s.mixtures_of(n)) for n in s.critical_stages} == kinds
        assert len(s.critical_stages) <= 8 or every > 1
    assert sum(s.mixtures_of(n) for n in range(61)) == s.model.mixture_layers

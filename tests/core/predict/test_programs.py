"""Other people's programs: what their constants may be, and what each of them does to a prediction."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from levelfield.catalog.registry import Registry
from levelfield.measure.parameter_counts import count_parameters
from levelfield.predict.footprint import expected_memory
from levelfield.predict.layout_search import LayoutEstimate, LayoutQuestion, SupportedParallelism, predict
from levelfield.predict.machines import (
    ATTENTION_SHARES,
    REACHABLE_SHARE,
    REACHABLE_SHARE_FP8,
    REACHABLE_SHARE_NVFP4,
    Link,
    MachineRates,
    assumed_share,
    machine_rates,
)
from levelfield.predict.operations import layer_forward_cost
from levelfield.predict.pass_timing import memory_traffic_bytes, pass_seconds, rank_slice, rank_work
from levelfield.predict.setup import training_setup
from levelfield.specs.constants import FITTED_FIELDS, Constants, MemoryModel, Pace, Unfused
from levelfield.specs.layout import Layout, parse_layout
from levelfield.specs.tuning import Tuning
from levelfield.specs.vendor import Chip
from pydantic import ValidationError

MACHINE = MachineRates(
    100e12, 200e12, 1e12, Link(1e-6, 100e9), Link(1e-5, 80e9), 8, attention={"flash1": 20e12, "flash2": 40e12}
)
# Rates as they are: no share of them, and nothing for a call.
IDEAL: dict[str, Any] = {"communication_efficiency": 1, **dict.fromkeys(FITTED_FIELDS, 1), "launch_seconds": 0}
PLAIN: dict[str, Any] = {**IDEAL, "overlap": 0}


def constants(keeping: dict[str, Any] | None = None, programs: dict[str, Any] | None = None, **pace: Any) -> Constants:
    return Constants.model_validate(
        {
            "framework": "torch",
            "keeping": keeping or {},
            "pace": {**PLAIN, **pace},
            "programs": programs or {},
        }
    )


def estimate(
    layout: str,
    keeping: dict[str, Any] | None = None,
    case: str = "llama3_8b",
    recompute: str = "none",
    micro_batch: int = 1,
    **pace: Any,
) -> LayoutEstimate:
    parsed = parse_layout(layout).layout
    question = LayoutQuestion(
        work=Registry().case(case).work("full"),
        machine=MACHINE,
        constants=constants(keeping, **pace),
        supported=SupportedParallelism(frozenset(), ("none",)),
        on_host=False,
        devices=parsed.world_size,
        capacity_bytes=None,
    )
    tuning = Tuning.model_validate({"layout": parsed, "micro_batch": micro_batch, "recompute": recompute})
    return predict(question, tuning)


def program(**fields: Any) -> dict[str, Any]:
    return {"title": "somebody's", "source": "somewhere", **fields}


def test_casts_in_kernels_of_their_own_move_what_torchao_counts_and_nothing_in_16_bits() -> None:
    """For each input and gradient of a product 4 bytes a step, for each weight 6; 6 and 8 with a scale of each row."""
    work = Registry().case("llama3_8b").work("full")

    def moved(kind: tuple[Unfused, ...], precision: str, layout: str = "DP1") -> float:
        training = work.training.model_copy(update={"precision": precision})
        setup = training_setup(
            work.model_copy(update={"training": training}),
            Tuning(layout=parse_layout(layout).layout, micro_batch=1),
            False,
        )
        return 3 * layer_forward_cost(setup.model, rank_slice(setup, kind)).moved_bytes

    tokens, weights, values = 8192, 218_103_808, 81_920  # values: the widths of all seven products' inputs and results
    counts: tuple[tuple[Unfused, float, float], ...] = (("casts", 4, 6), ("row casts", 6, 8))
    for kind, per_value, per_weight in counts:
        added = moved((kind,), "fp8") - moved((), "fp8")
        assert added == pytest.approx(per_value * tokens * values + per_weight * weights)
        assert moved((kind,), "bf16") == moved((), "bf16")
    halved = moved(("casts",), "fp8", "TP2+seq") - moved((), "fp8", "TP2+seq")
    assert halved == pytest.approx((moved(("casts",), "fp8") - moved((), "fp8")) / 2), "cast before they are gathered"


def test_a_chip_that_reaches_less_than_usual_in_16_bits_does_so_in_fp8() -> None:
    chips = {chip.name: chip for name in ("amd", "nvidia") for chip in Registry().vendor_file(name).chips}
    share = assumed_share(chips["MI300X"], "fp8")
    assert share == pytest.approx(REACHABLE_SHARE_FP8 * 668.4 / 1307.4 / REACHABLE_SHARE)
    assert assumed_share(chips["MI355X"], "fp8") == assumed_share(chips["B200-SXM-180GB"], "fp8") == REACHABLE_SHARE_FP8
    assert assumed_share(chips["B200-SXM-180GB"], "nvfp4") == REACHABLE_SHARE_NVFP4
    assert assumed_share(chips["H100-SXM5-80GB"], "fp8") is None, "it was measured"


def test_no_program_has_primary_weights_for_nvfp4() -> None:
    one = constants({"fp8_primary_weights": True})
    assert one.for_products("fp8") == one and not one.for_products("nvfp4").keeping.fp8_primary_weights


def test_a_program_changes_what_it_says_and_keeps_the_rest() -> None:
    of_framework = constants(
        {"norm_bytes": 8, "score_bytes": 5},
        overlap=0.1,
        programs={"one": program(pace={"tensor_overlap": 0.3}, keeping={"norm_bytes": 6})},
    )
    one = of_framework.for_program("one")
    assert (one.pace.overlap, one.pace.tensor_overlap) == (0.1, 0.3)
    assert (one.keeping.score_bytes, one.keeping.norm_bytes) == (5, 6)
    assert (of_framework.pace.tensor_overlap, of_framework.keeping.norm_bytes) == (0, 8)


def test_a_kind_of_device_has_kernels_that_programs_have_not() -> None:
    on_one = {"one kind": {"gated_mlp_tensors": 3, "fused_loss": True}}
    programs = {
        "plain": program(),
        "with norms": program(keeping={"norm_bytes": 8}),
        "fused": program(keeping={"gated_mlp_tensors": 3}),
    }
    before = Constants.model_validate({**constants(programs=programs).model_dump(), "keeping_on": on_one})
    changed, other = before.for_device_kind("one kind"), before.for_device_kind("another")
    assert (changed.keeping.gated_mlp_tensors, changed.keeping.fused_loss) == (3, True)
    assert (other.keeping, other.programs) == (before.keeping, before.programs)
    for name in programs:
        assert changed.for_program(name) == before.for_program(name).model_copy(
            update={"programs": changed.programs}
        ), name
    assert changed.for_device_kind("one kind") == changed


@pytest.mark.parametrize("wrong", [{"gated_mlp_tensors": 5}, {"gated_tensors": 3}])
def test_what_a_kind_changes_is_within_its_range(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=rf"keeping_on.one kind: {next(iter(wrong))}"):
        Constants.model_validate({**constants().model_dump(), "keeping_on": {"one kind": wrong}})


def test_with_a_fused_loss_the_head_has_no_logits_in_float32() -> None:
    """Of few tokens all; of more, equal chunks of whole tiles that fill at most the same memory."""
    work = Registry().case("llama3_8b_bf16").work("full")
    fused, vocabulary = MemoryModel(fused_loss=True), work.model.vocab_size

    def logits(memory_model: MemoryModel, length: int) -> int:
        training = work.training.model_copy(update={"sequence_length": length})
        case = work.model_copy(update={"training": training})
        return expected_memory(training_setup(case, Tuning(layout=Layout()), False, memory_model)).logits

    def beside(length: int) -> int:
        return (4 * vocabulary + 2 * length) * work.model.hidden_size

    assert logits(fused, 512) == 512 * 2 * vocabulary + beside(512)
    assert logits(fused, 4096) == 2048 * 2 * vocabulary + beside(4096)
    assert logits(fused, 2304) == 1152 * 2 * vocabulary + beside(2304)
    assert logits(MemoryModel(), 512) - logits(fused, 512) == 2**27


@pytest.mark.parametrize(
    ("programs", "fault"),
    [
        ({"one": program(pace={"overlap": 2})}, "programs.one: overlap"),
        ({"one": program(pace={"overlaps": 0.5})}, "programs.one: overlaps"),
        ({"one": program(keeping={"reserve_bytes": 9_000_000_000})}, "programs.one: reserve_bytes"),
    ],
)
def test_no_constant_leaves_its_range(programs: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValidationError, match=fault):
        constants(programs=programs)


@pytest.mark.parametrize(
    ("model", "name", "wrong"),
    [
        (Pace, "matmul_efficiency", 1.3),
        (Pace, "memory_efficiency", 1.1),
        (Pace, "launch_seconds", 1),
        (Pace, "unfused", ["norm"]),
        (Pace, "tensor_overlap", -0.1),
        (MemoryModel, "fragmentation", 0.5),
        (MemoryModel, "norm_bytes", 20),
        (MemoryModel, "logit_bytes", 40),
    ],
)
def test_each_range_holds(model: type[Any], name: str, wrong: object) -> None:
    with pytest.raises(ValidationError, match=name):
        model.model_validate({**(PLAIN if model is Pace else {}), name: wrong})


def test_attention_runs_at_its_kernels_rate() -> None:
    """At 8,192 tokens: 4 s h of FLOPs a token and layer, half of it masked, blocks of 128 on the diagonal, and 3.5
    forward passes in both directions."""
    slow, fast = (estimate("DP1", attention=kernel).time.compute for kernel in ("flash1", "flash2"))
    work = Registry().case("llama3_8b").work("full")
    flops = 3.5 * 2 * work.training.tokens_per_step * 8192 * 4096 * 32 * (1 + 128 / 8192)
    assert slow - fast == pytest.approx(flops / 20e12 - flops / 40e12, rel=1e-6)


def test_recomputed_attention_is_one_forward_pass() -> None:
    times = {
        (kernel, again): estimate("DP1", recompute=again, attention=kernel).time.compute
        for kernel in ("flash1", "flash2")
        for again in ("none", "full")
    }
    extra = [times[kernel, "full"] - times[kernel, "none"] for kernel in ("flash1", "flash2")]
    whole = times["flash1", "none"] - times["flash2", "none"]
    assert extra[0] - extra[1] == pytest.approx(whole / 3.5, rel=1e-6)


def test_calls_make_small_products_slow() -> None:
    """A call costs the same for a tensor-parallel slice, which has less to compute: 3 x 20 calls a layer, 10 x 3 of the
    head and 4 x 3 of the embedding."""
    seconds = [
        estimate(layout, launch_seconds=2e-5).time.compute - estimate(layout).time.compute for layout in ("DP1", "TP8")
    ]
    batches = Registry().case("llama3_8b").work("full").training.global_batch
    assert seconds[0] == pytest.approx(3 * 2e-5 * batches * (32 * 20 + 10 + 4), rel=1e-6)
    assert seconds[1] == pytest.approx(seconds[0], rel=1e-6)


@pytest.mark.parametrize(
    ("case", "layout", "recompute"),
    [("llama3_8b", "DP1", "none"), ("llama3_8b", "TP4PP2+seq", "full"), ("mixtral_8x7b", "TP2", "none")],
)
def test_moved_bytes_are_those_of_the_predicted_time(case: str, layout: str, recompute: str) -> None:
    """On a machine that computes in no time, a micro-batch takes as long as its bytes take."""
    machine = MachineRates(1e40, None, 1e12, Link(0, 1e12), None, 8)
    pace = Pace.model_validate(PLAIN | {"unfused": ["norms", "activation"]})
    tuning = Tuning(layout=parse_layout(layout).layout, recompute=recompute)
    setup = training_setup(Registry().case(case).work("full"), tuning, False, MemoryModel())
    parts, model = pass_seconds(rank_work(setup, machine, pace)), setup.model
    seconds = (
        parts.layers_seconds(model.layers, model.mixture_layers if model.experts else 0) + parts.embedding + parts.head
    )
    assert memory_traffic_bytes(setup, pace) == pytest.approx(seconds * 1e12, rel=1e-9)


@pytest.mark.parametrize(
    ("kind", "values", "calls"),
    [
        ("norms", 4 * 4096 * 8, 14),  # two norms, read and written: 4 values, 8 times more
        ("activation", 3 * 14336 * 2 / 3, 1),
        ("rotation", 2 * 40 * 128 * 4, 8),
    ],
)
def test_what_is_not_fused_is_counted(kind: str, values: float, calls: int) -> None:
    work = Registry().case("llama3_8b").work("full")
    fused, apart = (estimate("DP1", unfused=kinds, launch_seconds=1e-5).time.compute for kinds in ((), (kind,)))
    moved = 3 * 32 * 2 * values * work.training.tokens_per_step / 1e12
    called = 3 * 32 * calls * 1e-5 * work.training.global_batch
    assert apart - fused == pytest.approx(moved + called, rel=1e-6)


def test_unfused_norms_are_not_divided_by_tensor_parallelism() -> None:
    extra = [
        estimate(layout, unfused=["norms"]).time.compute - estimate(layout).time.compute
        for layout in ("DP1", "TP4", "TP4+seq")
    ]
    assert extra[0] == pytest.approx(extra[1]) and extra[2] == pytest.approx(extra[0] / 4, rel=1e-3)


def test_selective_recomputation_repeats_what_it_does_not_keep() -> None:
    """Attention's core, or the traffic between the products and a share of these."""
    work = Registry().case("llama3_8b").work("full")
    tokens = work.training.tokens_per_step

    def extra(**keeping: Any) -> float:
        return estimate("DP1", keeping, recompute="selective").time.compute - estimate("DP1", keeping).time.compute

    core = 2 * tokens * 8192 * 4096 * 32 * (1 + 128 / 8192) / 40e12
    assert extra(selective_keeps="all but scores") == pytest.approx(core, rel=1e-3)
    between, half = extra(), extra(selective_recomputes=0.5)
    assert 0 < between < core / 4
    assert half - between == pytest.approx(0.5 * 2 * 6_979_321_856 * tokens / 100e12, rel=0.06)  # and their bytes


def test_zero_2_and_3_reduce_every_micro_batch() -> None:
    def data(layout: str, micro_batch: int) -> float:
        return estimate(layout, micro_batch=micro_batch).time.data

    assert data("DP8SH1", 1) == pytest.approx(data("DP8SH1", 8))
    assert data("DP8SH2", 1) > 6 * data("DP8SH2", 8)
    assert data("DP8SH3", 1) == pytest.approx(8 * data("DP8SH3", 8))


@pytest.mark.parametrize(
    ("layout", "passes"),
    [
        ("DP8SH1", 4 + 6),  # weights out of the buffer: read, written; gradients into it: 16 bits read, 32 written
        ("DP8SH2", 4 + 6 * 2),  # two micro-batches
        ("DP8SH3", 4 * 2 * 2 + 6 * 2),  # gathered forward and backward
        ("DP8", 0),
    ],
)
def test_the_exchange_of_sharded_states_copies_where_the_program_does(layout: str, passes: int) -> None:
    work = Registry().case("llama3_8b").work("full")
    micro_batch = work.training.global_batch // 16
    plain, copies = (
        estimate(layout, micro_batch=micro_batch, exchange_copies=copies, overlap=1).time.data
        for copies in (False, True)
    )
    assert copies - plain == pytest.approx(passes * count_parameters(work.model, 8192).total / 1e12, rel=1e-6)


def test_whole_gradients_on_every_rank_cost_another_pass_of_the_ring_up_to_stage_2() -> None:
    def data(layout: str, whole: bool) -> float:
        return estimate(layout, reduces_whole=whole).time.data

    gathered, scattered = data("DP8SH1", False) / 3, data("DP8SH1", False) * 2 / 3  # weights of 2, gradients of 4 bytes
    assert data("DP8SH1", True) == pytest.approx(gathered + 2 * scattered, rel=1e-3)
    assert data("DP8SH2", True) > 1.8 * data("DP8SH2", False)
    assert data("DP8SH3", True) == data("DP8SH3", False)


def test_no_more_communication_overlaps_than_there_is_computation() -> None:
    row = estimate("DP8SH3", overlap=1)
    assert row.time.data == 0
    slow = replace(MACHINE, node=Link(1e-6, 1e9))
    question = LayoutQuestion(
        Registry().case("llama3_8b").work("full"),
        slow,
        constants(overlap=1),
        SupportedParallelism(frozenset(), ("none",)),
        False,
        8,
        None,
    )
    bound = predict(question, Tuning(layout=parse_layout("DP8SH3").layout)).time
    alone = replace(question, constants=constants(overlap=0))
    free = predict(alone, Tuning(layout=parse_layout("DP8SH3").layout)).time
    assert bound.data == pytest.approx(free.data - free.compute, rel=1e-6)


def test_shards_in_a_node_are_reduced_over_its_replicas() -> None:
    """Gathers stay in the node; a rank's eighth of the gradients goes over the network."""
    hybrid, whole = (estimate(layout).time.data for layout in ("DP64SH3SP8", "DP64SH3SP64"))
    assert hybrid != whole
    inside = estimate("DP8SH3SP8").time.data / 8  # an eighth of its micro-batches
    assert hybrid > inside


def test_gathered_logits_take_memory_and_traffic_on_every_rank() -> None:
    apart, gathered = (estimate("TP8", {"logit_bytes": 4, "gathered_logit_bytes": n}, micro_batch=2) for n in (0, 12))
    joined = 2 + 2  # the ranks' parts, and the tensor that they are joined to
    assert gathered.memory.logits - apart.memory.logits == (12 + joined) * 2 * 8192 * 128256
    alone = [estimate("DP1", {"logit_bytes": 2, "gathered_logit_bytes": n}).memory.logits for n in (0, 12)]
    assert alone[1] - alone[0] == 12 * 8192 * 128256, "one rank gathers nothing"
    assert gathered.time.compute > apart.time.compute


def test_uneven_stages_hold_all_layers_and_the_largest_come_first() -> None:
    setup = training_setup(Registry().case("llama3_8b").work("full"), Tuning(layout=parse_layout("PP5").layout), False)
    assert [setup.layers_of(stage) for stage in range(5)] == [7, 7, 6, 6, 6]
    whole, uneven = (estimate(layout).time for layout in ("DP1", "PP5"))
    assert 5 * uneven.compute == pytest.approx(whole.compute)


def test_chips_without_a_measurement_reach_the_usual_share() -> None:
    a100 = Registry().vendor_file("nvidia").chip("A100-SXM4-80GB")
    assert a100 is not None
    bare: Chip = a100.model_copy(update={"achievable": {}, "attention": {}})
    rates = machine_rates(bare, "bf16", 8, None)
    assert rates.matmul_flops_per_second == pytest.approx(REACHABLE_SHARE * 312e12)
    assert rates.attention["flash2"] == pytest.approx(ATTENTION_SHARES["flash2"] * REACHABLE_SHARE * 312e12)
    assert machine_rates(a100, "bf16", 8, None).attention["flash2"] == a100.attention["flash2"].tflops * 1e12
    assert machine_rates(a100, "fp32", 8, None).attention == {}
    b200 = Registry().vendor_file("nvidia").chip("B200-SXM-180GB")
    assert b200 is not None and not b200.achievable
    assert machine_rates(b200, "fp8", 8, None).fp8_matmul_flops_per_second == pytest.approx(
        REACHABLE_SHARE_FP8 * 4500e12
    )


def test_the_a800_has_the_rates_of_the_a100() -> None:
    one, other = (Registry().vendor_file("nvidia").chip(name) for name in ("A100-SXM4-80GB", "A800-SXM4-80GB"))
    assert one is not None and other is not None
    first, second = (machine_rates(chip, "bf16", 8, None) for chip in (one, other))
    assert first.matmul_flops_per_second == second.matmul_flops_per_second
    assert first.node is not None and second.node is not None
    assert second.node.bytes_per_second < first.node.bytes_per_second


def test_the_network_has_its_own_efficiency_and_fp8_the_rate_of_its_products() -> None:
    node, both, network = (
        estimate(layout, network_efficiency=share).time.data
        for layout, share in (("DP8SH1", 0.5), ("DP64SH1", 1), ("DP64SH1", 0.5))
    )
    assert node == estimate("DP8SH1").time.data
    assert network == pytest.approx(2 * both, rel=0.01)
    fp8, bf16 = (estimate("DP1", case="flagperf_llama3_8b_fp8", matmul_efficiency=n).time.compute for n in (0.5, 1))
    work = Registry().case("flagperf_llama3_8b_fp8").work("full")
    tokens = work.training.tokens_per_step
    flops = 3 * 2 * 6_979_321_856 * tokens  # the matrices of 32 layers
    head = 3 * 2 * work.model.vocab_size * work.model.hidden_size * tokens  # in 16 bits
    assert fp8 - bf16 == pytest.approx(flops / 200e12 + head / 100e12, rel=1e-3)


def test_a_program_is_described_and_its_rates_are_those_of_all() -> None:
    """No shipped file states a rate, but for the host."""
    default = Pace(overlap=0)
    registry = Registry()
    for name, program_name in shipped():
        framework_constants = registry.planner_constants(name)
        assert framework_constants is not None
        pace = (framework_constants.for_program(program_name) if program_name else framework_constants).pace
        for rate in (*FITTED_FIELDS, "communication_efficiency"):
            assert getattr(pace, rate) == getattr(default, rate), (name, program_name, rate)


def shipped() -> list[tuple[str, str | None]]:
    registry = Registry()
    programs: list[tuple[str, str | None]] = []
    for name in registry.planner_constants_files:
        framework_constants = registry.planner_constants(name)
        assert framework_constants is not None
        programs += [(name, None), *((name, program) for program in framework_constants.programs)]
    return programs


@pytest.mark.parametrize(("framework", "program_name"), shipped())
def test_more_recomputation_never_needs_more_memory(framework: str, program_name: str | None) -> None:
    framework_constants = Registry().planner_constants(framework)
    assert framework_constants is not None
    model = (framework_constants.for_program(program_name) if program_name else framework_constants).keeping
    work = Registry().case("llama3_8b").work("full")
    for layout in ("DP8", "DP4TP2SH1SP4", "DP8SH3SP8", "PP8"):
        none, selective, full = (
            expected_memory(
                training_setup(
                    work, Tuning.model_validate({"layout": parse_layout(layout).layout, "recompute": how}), False, model
                )
            ).total
            for how in ("none", "selective", "full")
        )
        assert full <= selective <= none, layout

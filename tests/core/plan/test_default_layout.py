"""The layout where nothing sets one: the planner's row on accelerators, data parallelism elsewhere."""

from __future__ import annotations

import json

import default_plans
import pytest
from levelfield.catalog.registry import Registry
from levelfield.errors import LayoutError
from levelfield.plan import default_layout
from levelfield.plan.placement import place
from levelfield.plan.request import Entry, UserRequest
from levelfield.plan.resolution import resolve
from levelfield.predict.layout_search import search_layouts
from levelfield.specs.plan import Plan
from levelfield.specs.tuning import TuningChoice
from plans import PLUGINS, make_plan

ASSUMED = UserRequest(may_lack_hardware=True)


def plan_of(text: str, **choice: object) -> Plan:
    request = UserRequest(may_lack_hardware=True, choice=TuningChoice.model_validate(choice))
    return resolve(place(Registry(), Entry(text, request)), "default")


# ---- every shipped case on every chip


def test_a_part_of_all_combinations_gives_plans_or_reasons() -> None:
    registry = Registry()
    every = list(default_plans.combinations(registry))
    outcomes = {text: default_plans.outcome(registry, text) for text in every[::1597]}
    assert {text: outcome for text, outcome in outcomes.items() if outcome.startswith("error")} == {}
    assert {outcome.partition(":")[0] for outcome in outcomes.values()} >= {"full", "smoke", "refused"}


@pytest.mark.parametrize("framework", ["torch", "megatron", "deepspeed", "paddle"])
@pytest.mark.parametrize(
    "place", ["H100:1:8", *(pytest.param(p, marks=pytest.mark.thorough) for p in ("A100-SXM4-80GB:1:8", "H100:2:8"))]
)
def test_the_first_command_on_a_real_box_is_the_full_case(framework: str, place: str) -> None:
    plan = plan_of(f"gpt3_6.7B:{framework}:{place}")
    assert plan.scale == "full" and plan.expected_memory.total_bytes <= 80 * 2**30


def test_the_recorded_counts_have_no_error() -> None:
    counts = json.loads(default_plans.FILE.read_text())
    assert set(counts) == set(Registry().frameworks)
    assert all("error" not in kinds and sum(kinds.values()) > 1000 for kinds in counts.values())


# ---- the planner's row


def test_the_plan_takes_the_planner_s_fastest_row_with_some_free_memory() -> None:
    plan = plan_of("gpt3_6.7B:torch:H100:1:8")
    chosen = plan.predicted[0]
    assert (chosen.layout, chosen.micro_batch, chosen.recompute) == (
        plan.tuning.layout,
        plan.tuning.micro_batch,
        plan.tuning.recompute,
    )
    assert chosen.memory_bytes == plan.expected_memory.total_bytes <= 0.97 * 80 * 2**30
    assert len(plan.predicted) == 4
    speeds = [row.tokens_per_second for row in plan.predicted if row.tokens_per_second is not None]
    assert len(speeds) == 4 and speeds == sorted(speeds, reverse=True)
    assert plan.origins["layout"] == plan.origins["recompute"]
    assert plan.origins["layout"].startswith("planner: fastest")


def test_a_layout_that_is_asked_for_has_the_fields_with_which_it_fits() -> None:
    """The case's micro-batch without recomputation needs more than a device has."""
    plan = plan_of("gpt3_6.7B:torch:H100:1:8", layout="DP8SH1")
    assert str(plan.tuning.layout) == "DP8TP1PP1SH1SP8"
    assert plan.expected_memory.total_bytes <= 80 * 2**30
    assert plan.origins["micro_batch"] == plan.origins["recompute"]
    for part in ("planner: fastest", "this layout", "the case's"):
        assert part in plan.origins["recompute"]
    chosen = plan_of("gpt3_6.7B:torch:H100:1:8", layout="DP8SH1", micro_batch=1)
    assert chosen.tuning.micro_batch == 1 and chosen.origins["micro_batch"] == "command line"
    assert chosen.expected_memory.total_bytes <= 80 * 2**30


def test_a_layout_that_fits_keeps_the_case_s_fields() -> None:
    plan = plan_of("gpt3_6.7B:torch:H100:1:8", layout="DP8SH2")
    assert plan.expected_memory.total_bytes <= 80 * 2**30
    assert plan.origins["micro_batch"] == "case gpt3_6.7B"


def test_a_field_of_the_user_stays_and_the_planner_searches_the_others() -> None:
    plan = plan_of("gpt3_6.7B:torch:H100:1:8", micro_batch=1, recompute="full")
    assert (plan.tuning.micro_batch, plan.tuning.recompute) == (1, "full")
    assert {(row.micro_batch, row.recompute) for row in plan.predicted} == {(1, "full")}
    assert plan.origins["micro_batch"] == plan.origins["recompute"] == "command line"  # so the run is a tuned one
    assert plan.origins["layout"].startswith("planner: fastest")


def test_a_default_recomputes_the_first_layers_where_that_is_faster() -> None:
    """gpt2_medium by megatron on a V100 has room for most of its layers: by 20 % faster than with all of them."""
    text = "gpt2_medium:megatron:V100-SXM2-16GB:1:1"
    plan = plan_of(text)
    chosen, fit = plan.predicted[0], 0.9 * (plan.expected_memory.available_bytes or 0)
    assert (chosen.recompute, chosen.recompute_layers) == (plan.tuning.recompute, plan.tuning.recompute_layers)
    assert plan.tuning.recompute == "full" and 1 <= (plan.tuning.recompute_layers or 0) < 24
    assert plan.origins["recompute_layers"] == plan.origins["recompute"]
    assert plan.origins["recompute"].startswith("planner: fastest")
    assert chosen.memory_bytes == plan.expected_memory.total_bytes <= fit
    whole = plan_of(text, recompute="full", micro_batch=plan.tuning.micro_batch)
    assert whole.tuning.recompute_layers is None and "recompute_layers" not in whole.origins
    assert (whole.predicted[0].tokens_per_second or 0) < (chosen.tokens_per_second or 0)


def test_a_framework_that_refuses_some_layers_recomputes_all() -> None:
    plan = plan_of("llama3_8b:paddle:A100-SXM4-40GB:1:8")
    assert plan.tuning.recompute == "full" and {row.recompute_layers for row in plan.predicted} == {None}


def test_a_layout_of_the_user_stays_with_the_case_s_micro_batch() -> None:
    plan = plan_of("gpt3_6.7B:torch:H100:1:8", layout="DP4TP2SH2SP4")
    assert (str(plan.tuning.layout), plan.tuning.micro_batch) == ("DP4TP2PP1SH2SP4", 4)
    assert (plan.scale, plan.predicted) == ("full", ())


def test_where_rates_are_not_public_the_origin_says_what_was_assumed() -> None:
    origin = plan_of("gpt3_6.7B:torch:P800:1:8").origins["layout"]
    for part in ("peak of fp16", "memory bandwidth", "links"):
        assert part in origin


def test_a_published_row_runs_on_its_own_hardware_only() -> None:
    assert plan_of("llama3_8b:megatron:H100:1:8").origins["layout"].startswith("vendor nvidia")
    assert plan_of("llama3_8b:megatron:H100:2:8").origins["layout"].startswith("planner")
    assert plan_of("llama3_8b:torch:H100:1:8").origins["layout"].startswith("planner")


# ---- where the full case does not fit


def test_smoke_scale_says_what_is_lacking_and_from_where_on_the_case_fits() -> None:
    plan = plan_of("gpt3_13B:deepspeed:A100-SXM4-40GB:1:1")
    assert plan.scale == "smoke"
    assert "12,853,626,880 parameters" in plan.scale_reason
    nodes, devices = 1, int(plan.scale_reason.split("--devices ")[1].rstrip("`"))
    assert plan_of(f"gpt3_13B:deepspeed:A100-SXM4-40GB:{nodes}:{devices}").scale == "full"
    assert plan_of(f"gpt3_13B:deepspeed:A100-SXM4-40GB:{nodes}:{devices // 2}").scale == "smoke"


def test_a_default_micro_batch_gives_way_to_the_layout() -> None:
    request = UserRequest("smoke", may_lack_hardware=True)
    plan = resolve(place(Registry(), Entry("gpt3_6.7B:torch:H100:8:8", request)), "x")
    assert plan.tuning.micro_batch * plan.tuning.layout.data * plan.accumulation == plan.work.training.global_batch
    assert plan.tuning.layout.world_size == 64
    here = resolve(place(Registry(), Entry("gpt3_6.7B:torch:cpu:1:8", request)), "x")
    assert (str(here.tuning.layout), here.tuning.micro_batch) == ("DP8TP1PP1", 4)
    for part in ("default: ", "nearest to 8", "batch 32"):
        assert part in here.origins["micro_batch"]


def test_what_nothing_divides_is_refused_with_the_sizes_and_who_chose_them() -> None:
    with pytest.raises(LayoutError) as caught:
        plan_of("gpt3_6.7B:megatron:H100:1:7")
    message = str(caught.value)
    assert "7 devices" in message and "nearest: DP8TP1PP1" in message
    assert "case gpt3_6.7B" in message
    assert plan_of("gpt3_6.7B:torch:H100:1:7").tuning.layout.pipeline == 7  # 32 layers: torch runs unequal stages


def test_an_impossible_layout_of_the_user_names_the_scale_and_who_chose_each_number() -> None:
    with pytest.raises(LayoutError) as caught:
        plan_of("gpt3_6.7B:torch:H100:1:8", layout="DP8SH2SP8", micro_batch=3)
    last = str(caught.value).splitlines()[-1].strip()
    assert last == (
        "scale full (the estimate says that it fits), global batch 1024; layout from command line; micro_batch from "
        "command line"
    )


# ---- the parts


def test_the_place_from_which_it_fits_is_the_first_one_of_the_doublings() -> None:
    decision = place(Registry(), Entry("llama3_70b:torch:H100:1:8", ASSUMED))
    small = default_layout.LayoutTask(decision.selection, decision.selection.case.work("full"), 1, 1)
    large = default_layout.smallest_fitting_task(small, TuningChoice())
    assert large is not None
    before = default_layout.LayoutTask(large.selection, large.work, large.nodes // 2 or 1, large.devices)
    fitting, lacking = (default_layout.layout_question(place) for place in (large, before))
    assert fitting is not None and lacking is not None
    assert search_layouts(fitting).rows and not search_layouts(lacking).rows


@pytest.mark.parametrize(("nodes", "searched"), [(96, []), (64, [1024]), (24, [384, 768])])
def test_no_more_devices_are_searched_than_the_limit(
    nodes: int, searched: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    decision, sizes = place(Registry(), Entry("llama3_70b:torch:H100:1:8", ASSUMED)), list[int]()
    monkeypatch.setattr(default_layout, "layout_question", lambda task: sizes.append(task.world_size))
    task = default_layout.LayoutTask(decision.selection, decision.selection.case.work("full"), nodes, 8)
    assert default_layout.smallest_fitting_task(task, TuningChoice()) is None and sizes == searched


def test_devices_that_no_layout_divides_stay_idle_where_no_number_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_DEVICES", "3")
    registry = Registry([PLUGINS])
    plan = make_plan(registry, "tiny:fake:fake")
    assert plan.hardware.devices_per_node == plan.tuning.layout.world_size == 2
    [deviation] = plan.deviations
    assert "2 of the 3 devices" in deviation and "no layout of 3" in deviation
    with pytest.raises(LayoutError, match="3 devices"):
        make_plan(registry, "tiny:fake:fake:1:3")


def test_a_field_of_the_user_with_which_nothing_fits_is_planned_with_the_least_memory() -> None:
    decision = place(Registry(), Entry("llama3_8b:torch:H100:1:4", ASSUMED))
    here = default_layout.LayoutTask(decision.selection, decision.selection.case.work("full"), 1, 4)
    fixed = TuningChoice(micro_batch=8, recompute="none")
    (row,) = default_layout.default_layout(here, "full", fixed, fixed).estimates
    assert not row.fits and (row.tuning.micro_batch, row.tuning.recompute) == (8, "none")
    assert row.layout.sharding_stage > 0 or row.layout.tensor > 1
    larger, free = (default_layout.smallest_fitting_task(here, choice) for choice in (fixed, TuningChoice()))
    assert larger and free and larger.world_size > free.world_size
    (first, *_) = default_layout.default_layout(larger, "full", fixed, fixed).estimates
    assert first.fits and (first.tuning.micro_batch, first.tuning.recompute) == (8, "none")

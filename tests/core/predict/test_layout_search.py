"""The planner: its search loses nothing, its model of time follows its sources, its arithmetic adds up."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import pytest
from levelfield.catalog.registry import Registry
from levelfield.errors import UsageError
from levelfield.measure.flops import flops_per_token
from levelfield.predict import layout_rules
from levelfield.predict.explanation import memory_terms, time_terms
from levelfield.predict.layout_search import (
    MIN_CONTEXT_TOKENS,
    LayoutQuestion,
    LayoutRanking,
    RankedRow,
    RowChoices,
    SearchConstraints,
    SupportedParallelism,
    fastest_first,
    is_tight,
    predict,
    search_layouts,
)
from levelfield.predict.machines import (
    Link,
    MachineRates,
    UnknownLink,
    all_reduce_seconds,
    gather_seconds,
    machine_rates,
    network_rate,
    send_seconds,
)
from levelfield.predict.operations import head_forward_cost, layer_forward_cost
from levelfield.predict.pass_timing import rank_slice
from levelfield.predict.setup import training_setup
from levelfield.specs.constants import MemoryModel, Pace
from levelfield.specs.implementation import RECOMPUTE_FIRST_LAYERS
from levelfield.specs.layout import Layout, parse_layout
from levelfield.specs.tuning import Tuning

GIB = 2**30
LINK = Link(1e-6, 1e9)
ALL = SupportedParallelism(
    frozenset({"data", "tensor", "pipeline", "sequence", "interleaved", "context", "zero1", "zero2", "zero3"}),
    ("none", "selective", "full"),
)
REFUSES = replace(ALL, refusals=(RECOMPUTE_FIRST_LAYERS,))


def machine(**changes: object) -> MachineRates:
    plain = MachineRates(100e12, None, 1e12, Link(1e-6, 100e9), Link(1e-5, 10e9), devices_per_node=8)
    return replace(plain, **changes)  # type: ignore[arg-type]


def question(
    case: str = "llama3_8b", devices: int = 8, capacity_gib: float | None = 80, **changes: object
) -> LayoutQuestion:
    registry = Registry()
    constants = registry.planner_constants("megatron")
    assert constants is not None
    plain = LayoutQuestion(
        work=registry.case(case).work("full"),
        machine=machine(),
        constants=constants.model_copy(
            update={
                "pace": Pace(matmul_efficiency=0.5, communication_efficiency=0.5, network_efficiency=0.5, overlap=0)
            }
        ),
        supported=ALL,
        on_host=False,
        devices=devices,
        capacity_bytes=None if capacity_gib is None else int(capacity_gib * GIB),
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def tuning(layout: str, **fields: object) -> Tuning:
    return Tuning.model_validate({"layout": parse_layout(layout).layout, **fields})


def test_a_ring_sends_all_but_its_own_share_twice() -> None:
    assert all_reduce_seconds(8e9, 4, LINK) == pytest.approx(2 * 3 / 4 * 8 + 6e-6)
    assert gather_seconds(8e9, 4, LINK) == pytest.approx(3 / 4 * 8 + 3e-6)
    assert send_seconds(8e9, LINK) == pytest.approx(8 + 1e-6)
    assert all_reduce_seconds(8e9, 1, LINK) == 0


def test_small_messages_of_many_ranks_go_by_a_tree() -> None:
    assert all_reduce_seconds(8, 1024, LINK) == pytest.approx(20e-6, rel=1e-2)
    assert all_reduce_seconds(8, 1024, LINK) < 2 * gather_seconds(8, 1024, LINK) / 50


@pytest.mark.parametrize("case", ["gpt3_6.7B", "llama3_8b"])
@pytest.mark.parametrize("layout", ["DP1", "TP4", "TP8+seq"])
def test_flops_are_the_megatron_formulas(case: str, layout: str) -> None:
    work = Registry().case(case).work("full")
    chosen = tuning(layout, micro_batch=2)
    part = rank_slice(training_setup(work, chosen, on_host=False))
    layer, head = layer_forward_cost(work.model, part), head_forward_cost(work.model, part)
    forward = work.model.layers * (layer.matmul_flops + layer.attention_flops) + head.core_flops
    expected = flops_per_token("megatron", work.model, work.training.sequence_length) * part.tokens
    assert 3 * forward * chosen.layout.tensor == pytest.approx(expected)


def test_materialised_scores_cost_the_masked_half_and_memory_traffic() -> None:
    work = Registry().case("gpt3_6.7B").work("full")
    chosen = tuning("DP1")
    kernel, materialised = (
        layer_forward_cost(work.model, rank_slice(training_setup(work, chosen, False, MemoryModel(score_bytes=n))))
        for n in (0, 5)
    )
    assert materialised.attention_flops == 2 * kernel.attention_flops
    assert materialised.moved_bytes > 1.5 * kernel.moved_bytes


def test_the_bubble_is_what_narayanan_gives_for_equal_stages() -> None:
    """(p - 1) / m of the work; the head makes the last stage slower, so it is left out of this model."""
    query = question("gpt3_6.7B")
    headless = query.work.model.model_copy(update={"vocab_size": 2})
    query = replace(query, work=query.work.model_copy(update={"model": headless}))
    time = predict(query, tuning("PP8", micro_batch=4)).time
    batches = query.work.training.global_batch // 4
    expected = 7 / batches * (time.compute + time.imbalance + time.pipeline)
    assert time.bubble == pytest.approx(expected, rel=0.02)
    interleaved = predict(query, tuning("PP8", micro_batch=4, virtual_pipeline=2)).time
    assert interleaved.bubble == pytest.approx(time.bubble / 2)
    assert interleaved.pipeline == pytest.approx(2 * time.pipeline)


def test_the_stage_with_the_logits_sets_the_pace() -> None:
    query = question("flagperf_llama3_8b")
    two, eight = (predict(query, tuning(text)).time for text in ("PP2DP4", "PP8"))
    assert eight.imbalance / eight.compute > 5 * two.imbalance / two.compute > 0


def test_what_spans_nodes_goes_by_the_network() -> None:
    inside, outside = (predict(question(machine=machine(devices_per_node=n)), tuning("TP8")).time for n in (8, 4))
    assert outside.tensor > 9 * inside.tensor
    alone = question(machine=machine(devices_per_node=4, network=None))
    with pytest.raises(UnknownLink, match="the link between nodes"):
        predict(alone, tuning("TP8"))
    with pytest.raises(UnknownLink, match="devices of a node"):
        predict(question(machine=machine(node=None)), tuning("TP8"))
    assert predict(question(machine=machine(node=None)), tuning("DP1")).time.data == 0


def test_data_groups_of_a_node_share_its_network() -> None:
    query = question(devices=64, machine=machine(network=Link(0, 10e9)))
    whole, shared = (predict(query, tuning(text)).time.data for text in ("DP64", "DP8TP8"))
    # an eighth of the parameters through an eighth of the network, over fewer ranks
    assert shared == pytest.approx(whole * (7 / 8) / (63 / 64), rel=0.02)


def test_few_ranks_of_a_mesh_have_few_links() -> None:
    mesh = question(machine=machine(pair_bytes_per_second=25e9))
    pair, all_ranks = (predict(mesh, tuning(text)).time.tensor for text in ("TP2DP4", "TP8"))
    switched = predict(question(), tuning("TP2DP4")).time.tensor
    assert pair == pytest.approx(4 * switched, rel=0.01)
    assert all_ranks == predict(question(), tuning("TP8")).time.tensor


def test_overlap_hides_its_share_of_the_gradients() -> None:
    query = question()
    pace = query.constants.pace.model_copy(update={"overlap": 0.75})
    hidden = replace(query, constants=query.constants.model_copy(update={"pace": pace}))
    layout = tuning("DP8")
    assert predict(hidden, layout).time.data == pytest.approx(predict(query, layout).time.data / 4)


@pytest.mark.parametrize(
    ("case", "devices", "capacity"),
    [
        pytest.param("llama3_8b", 8, 80, marks=pytest.mark.thorough),  # the next test has it with other memory
        pytest.param("gpt3_13B", 16, 40, marks=pytest.mark.thorough),
        ("gpt2_small", 4, 3),
    ],
)
def test_the_search_loses_nothing(case: str, devices: int, capacity: float) -> None:
    """Against every combination, one by one, with the relations that a run must satisfy.

    Nodes of four devices, so that hybrid sharding differs from sharding over all ranks.
    """
    query = question(case, devices, capacity, machine=machine(devices_per_node=4))
    assert _keys(search_layouts(query)) == _brute(query)


def test_chunks_that_fit_where_plain_stages_do_not_are_found() -> None:
    """Plain stages receive all micro-batches of a step into memory of their own, chunks do not."""
    query = question("llama3_8b", 8, 31, machine=machine(devices_per_node=4))
    keeping = query.constants.keeping.model_copy(update={"receives_all": True})
    query = replace(query, constants=query.constants.model_copy(update={"keeping": keeping}))
    rows = _keys(search_layouts(query))
    assert rows == _brute(query)
    plain = {tuple(row.split()[:2]) for row in rows if row.split()[2] == "1"}
    assert any(tuple(row.split()[:2]) not in plain for row in rows)


def test_what_a_framework_refuses_of_chunks_is_no_row() -> None:
    refuses = replace(ALL, refusals=("zero2 or zero3 with interleaved stages",))
    kinds = [
        {
            row.layout.sharding_stage
            for row in search_layouts(question(supported=offer)).rows
            if row.tuning.virtual_pipeline > 1
        }
        for offer in (ALL, refuses)
    ]
    assert kinds == [{0, 1, 2, 3}, {0, 1}]
    plain = {
        row.layout.sharding_stage for row in search_layouts(question(supported=refuses)).rows if row.layout.pipeline > 1
    }
    assert plain == {0, 1, 2, 3}


def _keys(ranking: LayoutRanking) -> set[str]:
    return {f"{r.layout} {r.tuning.micro_batch} {r.tuning.virtual_pipeline} {r.tuning.recompute}" for r in ranking.rows}


def _brute(query: LayoutQuestion) -> set[str]:
    sizes = [n for n in range(1, query.devices + 1) if query.devices % n == 0]
    batches = [2**n for n in range(11)]
    fitting = set()
    most = max(1, query.work.training.sequence_length // MIN_CONTEXT_TOKENS)
    for tensor, pipeline, context, batch in product(sizes, sizes, sizes, batches):
        if query.devices % (tensor * pipeline * context) or context > most or math.gcd(context, batch) > 1:
            continue
        ranks = query.devices // tensor // pipeline
        shardings = [
            "",
            *(f"SH{stage}SP{n}" for stage in (1, 2, 3) for n in {ranks, 4 // tensor or 1} if 1 < n <= ranks),
        ]
        sequences = ("", "+seq") if tensor > 1 else ("",)
        layers = range(1, 41) if pipeline > 1 else (1,)
        for sharded, sequence, chunks, again in product(shardings, sequences, layers, ALL.recompute):
            chosen = tuning(
                f"DP{ranks // context}CP{context}TP{tensor}PP{pipeline}{sharded}{sequence}",
                micro_batch=batch,
                virtual_pipeline=chunks,
                recompute=again,
            )
            if not layout_rules.broken_rules(query.work, chosen.layout, batch, 1, query.devices, chunks):
                row = predict(query, chosen)
                if row.fits:
                    fitting.add(f"{row.layout} {batch} {chunks} {again}")
    return fitting


def test_rows_come_fastest_first_and_only_what_is_offered() -> None:
    few = SupportedParallelism(frozenset({"data", "zero1"}), ("none",))
    rows = search_layouts(question(capacity_gib=None, supported=few)).rows
    rates = [row.tokens_per_second for row in rows]
    assert rates == sorted(rates, reverse=True)
    assert {(r.layout.tensor, r.layout.pipeline, r.tuning.recompute) for r in rows} == {(1, 1, "none")}
    assert {row.layout.sharding_stage for row in rows} == {0, 1}


@pytest.mark.parametrize(
    ("case", "framework", "on_host"),
    [
        ("mixtral_8x7b", "megatron", False),
        pytest.param("deepseek_v3", "torch", False, marks=pytest.mark.thorough),
        ("gpt2_small", "deepspeed", True),
    ],
)
def test_a_search_by_shared_figures_finds_what_whole_rows_have(case: str, framework: str, on_host: bool) -> None:
    """Rows are ordered by sums of figures that many of them share; a row that is read is computed without these."""
    constants = Registry().planner_constants(framework)
    assert constants is not None
    copying = constants.model_copy(update={"pace": constants.pace.model_copy(update={"exchange_copies": True})})
    offer = replace(ALL, parallelism=ALL.parallelism | {"expert", "uneven"})
    capacity = None if case == "deepseek_v3" else 60
    query = question(case, 16, capacity, constants=copying, supported=offer, on_host=on_host)
    rows = search_layouts(query).rows
    assert len(rows) > 300
    for ranked, row in zip(rows.ranked[::23], rows[::23], strict=True):
        assert (ranked.tokens_per_second, ranked.total_bytes) == (row.tokens_per_second, row.memory.total), row.tuning
        assert row.fits
    roomy = rows.prefer_margin().ranked
    tight = [is_tight(query, row.total_bytes) for row in roomy]
    assert tight == sorted(tight) and fastest_first(roomy) == rows.ranked and any(tight) == (case == "mixtral_8x7b")


def test_of_equally_fast_rows_that_with_less_memory_is_first_and_then_the_earlier() -> None:
    def row(number: int, total_bytes: int, tokens_per_second: float) -> RankedRow:
        return RankedRow(Layout(data=number), RowChoices(1, "none", 1), total_bytes, tokens_per_second)

    rows = [row(1, 5, 2.0), row(2, 9, 3.0), row(3, 4, 2.0), row(4, 5, 2.0), row(5, 1, 1.0)]
    assert [ranked.layout.data for ranked in fastest_first(rows)] == [2, 3, 1, 4, 5]


# ---- recomputation of the first layers only


@pytest.mark.parametrize("layout", ["DP8SH3", "TP2PP2DP2SH1+seq", "DP2CP2TP2", "PP8"])
def test_time_grows_with_the_layers_that_are_computed_again(layout: str) -> None:
    query = question("llama3_8b", capacity_gib=None)
    parts = 32 // parse_layout(layout).layout.pipeline
    none, full = (predict(query, tuning(layout, recompute=again)).time for again in ("none", "full"))
    for layers in (1, parts - 1, parts):
        some = predict(query, tuning(layout, recompute="full", recompute_layers=layers)).time
        for part in ("compute", "tensor", "context", "bubble"):
            less, more = none._asdict()[part], full._asdict()[part]
            assert some._asdict()[part] == pytest.approx(less + (more - less) * layers / parts), (part, layers)
        assert (some.data, some.optimizer, some.pipeline) == (full.data, full.optimizer, full.pipeline)


def test_the_layers_of_a_mixture_are_counted_by_kind() -> None:
    """DeepSeek-V3's dense layers are the first three, and exchange no tokens."""
    offer = replace(ALL, parallelism=ALL.parallelism | {"expert"})
    query = question("deepseek_v3", 16, None, supported=offer)
    none, *times = (
        predict(query, tuning("DP16EP16", recompute="full" if layers else "none", recompute_layers=layers)).time
        for layers in (None, 1, 3, 4, 13)
    )
    one, three, four, more = ((time.compute - none.compute, time.expert - none.expert) for time in times)
    assert three[0] == pytest.approx(3 * one[0]) and one[1] == three[1] == 0
    assert four[1] > 0 and more[1] == pytest.approx(10 * four[1])
    assert more[0] - three[0] == pytest.approx(10 * (four[0] - three[0]))


@pytest.mark.parametrize(
    ("case", "devices", "capacity"),
    [
        ("llama3_8b", 8, 40),
        ("gpt3_6.7B", 4, 60),
        pytest.param("mixtral_8x7b", 16, 80, marks=pytest.mark.thorough),
    ],
)
def test_rows_with_first_layers_have_the_least_that_fit(case: str, devices: int, capacity: float) -> None:
    query = question(case, devices, capacity, supported=replace(ALL, parallelism=ALL.parallelism | {"expert"}))
    ranking = search_layouts(query)
    some = [row for row in ranking.rows if row.tuning.recompute_layers is not None]
    assert some and fastest_first(ranking.rows.ranked) == ranking.rows.ranked
    for row in some:
        chosen, layers = row.tuning, row.tuning.recompute_layers or 0
        full, less = (
            predict(query, chosen.model_copy(update=change))
            for change in (
                {"recompute_layers": None},
                {"recompute_layers": layers - 1} if layers > 1 else {"recompute": "none", "recompute_layers": None},
            )
        )
        assert not is_tight(query, row.memory.total) and is_tight(query, less.memory.total), chosen
        assert full.tokens_per_second < row.tokens_per_second < less.tokens_per_second, chosen
    everything = {row.layout: row.tuning for row in ranking.rows if row.tuning.recompute == "full"}
    assert len(some) < len(everything) + len(ranking.rows) / 2


@pytest.mark.parametrize(
    ("case", "devices", "capacity"),
    [
        ("llama3_8b", 8, 28),
        pytest.param("gpt3_6.7B", 8, 24, marks=pytest.mark.thorough),
        pytest.param("gpt3_6.7B", 4, 40, marks=pytest.mark.thorough),
    ],
)
def test_no_faster_row_with_first_layers_is_missed(case: str, devices: int, capacity: float) -> None:
    """Against every row that recomputes all its layers, and every number of them."""
    query = question(case, devices, capacity)
    rows = search_layouts(query).rows
    every = []
    for row in search_layouts(replace(query, constraints=SearchConstraints(recompute="full"))).rows:
        longest = 32 // (row.layout.pipeline * row.tuning.virtual_pipeline)
        tried = (row.tuning.model_copy(update={"recompute_layers": layers}) for layers in range(1, longest))
        fitting = (predict(query, estimate) for estimate in tried)
        every += [estimate for estimate in fitting if not is_tight(query, estimate.memory.total)]
    best = max(estimate.tokens_per_second for estimate in every)
    without = search_layouts(replace(query, supported=REFUSES)).rows.prefer_margin()[0]
    assert rows.prefer_margin()[0].tokens_per_second == best > without.tokens_per_second


def test_who_refuses_it_or_asks_for_another_kind_gets_no_such_row() -> None:
    query = question("llama3_8b", 8, 40)
    assert any(row.tuning.recompute_layers for row in search_layouts(query).rows)
    for changed in (
        replace(query, supported=REFUSES),
        replace(query, supported=replace(ALL, recompute=("none", "selective"))),
        replace(query, constraints=SearchConstraints(recompute="full")),
        replace(query, constraints=SearchConstraints(recompute="none")),
        replace(query, capacity_bytes=None),
    ):
        assert not any(row.tuning.recompute_layers for row in search_layouts(changed).rows)
    chosen = search_layouts(replace(query, constraints=SearchConstraints(recompute="full", recompute_layers=5))).rows
    assert {(row.tuning.recompute, row.tuning.recompute_layers) for row in chosen} == {("full", 5)}


def test_where_nothing_fits_the_smallest_is_named() -> None:
    ranking = search_layouts(question(capacity_gib=1))
    assert not ranking.rows and ranking.least_memory is not None
    assert ranking.least_memory.memory.total > GIB and not ranking.least_memory.fits
    assert ranking.least_memory.tuning.recompute == "full"


@pytest.mark.parametrize(
    ("layout", "fields"),
    [
        ("DP8", {}),
        ("TP2PP2DP2SH1SP2+seq", {"recompute": "selective"}),
        ("PP8", {"recompute": "full", "virtual_pipeline": 2}),
        ("TP1PP1SH3SP8", {"micro_batch": 2}),
        ("TP2PP1SH2SP4", {"recompute": "full"}),
        ("DP8SH3SP4", {}),
        ("DP2CP4SH1", {"recompute": "full"}),
        ("PP5", {}),
        ("PP5", {"recompute": "full", "recompute_layers": 3}),
        ("PP4", {"recompute": "full", "recompute_layers": 1, "virtual_pipeline": 2}),
    ],
)
@pytest.mark.parametrize(
    ("framework", "keeping"),
    [
        ("megatron", {}),
        ("oneflow", {}),
        ("paddle", {}),
        ("torch", {}),
        ("megatron", {"logit_bytes": 2, "gathered_logit_bytes": 12, "norm_bytes": 8}),
        ("megatron", {"score_bytes": 5}),
        ("torch", {"logit_bytes": 12, "selective_recomputes": 0.5}),
        ("torch", {"gradient_bytes": 2, "master_bytes": 2, "state_bytes": 4}),
        ("deepspeed", {"norm_bytes": 6, "sharded_copy": True}),
    ],
)
def test_the_arithmetic_gives_each_part(
    layout: str, fields: dict[str, object], framework: str, keeping: dict[str, object]
) -> None:
    constants = Registry().planner_constants(framework)
    assert constants is not None
    constants = constants.model_copy(update={"keeping": constants.keeping.model_copy(update=keeping)})
    query = question(constants=constants, capacity_gib=None)
    row = predict(query, tuning(layout, **fields))
    memory, time = memory_terms(query, row), time_terms(query, row)
    assert {t.part: t.value for t in memory} == row.memory._asdict()
    assert {t.part: t.value for t in time} == row.time._asdict()
    for term in [*memory, *time]:
        result = eval(term.arithmetic, {"__builtins__": {}})
        assert result == pytest.approx(term.value, rel=1e-4, abs=1e-6), term
        assert term.words and term.source


@pytest.mark.parametrize(
    ("text", "rate"), [("100Gb/s", 12.5e9), ("8x400Gb/s", 400e9), ("25GB/s", 25e9), ("8 x 200 gb/s", 200e9)]
)
def test_a_networks_rate(text: str, rate: float) -> None:
    assert network_rate(text) == rate


@pytest.mark.parametrize("text", ["", "fast", "100", "100 Mb/s", "-1Gb/s", "0Gb/s", "8x"])
def test_a_network_that_is_no_rate(text: str) -> None:
    with pytest.raises(UsageError, match="expected a node's ports and rate"):
        network_rate(text)


def test_a_chip_without_a_published_peak_is_not_planned_on() -> None:
    registry = Registry()
    withheld = [c for v in registry.vendors for c in registry.vendor_file(v).chips if not c.peaks]
    assert withheld
    with pytest.raises(UsageError, match=r"no published bf16 peak.*--chips"):
        machine_rates(withheld[0], "bf16", 8, None)


def test_a_measured_rate_comes_before_the_peak() -> None:
    chip = Registry().vendor_file("nvidia").chip("A100-SXM4-80GB")
    assert chip is not None
    reached = chip.achievable["bf16"].tflops * 1e12
    assert reached < chip.peaks["bf16"].tflops * 1e12
    assert [machine_rates(chip, dtype, 8, None).matmul_flops_per_second for dtype in ("bf16", "fp16")] == [reached] * 2
    assert math.isclose(machine_rates(chip, "fp32", 8, None).matmul_flops_per_second, 19.5e12)

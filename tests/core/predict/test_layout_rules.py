"""The relations between batches, layout, heads and layers: each is broken alone, and what is offered is possible."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from levelfield.catalog.registry import Registry
from levelfield.errors import LayoutError
from levelfield.predict.layout_rules import accumulation, broken_rules, nearest_layouts, require_possible
from levelfield.specs.case import Work
from levelfield.specs.figures import PublishedRow
from levelfield.specs.layout import Layout, parse_layout

GPT: Work = Registry().case("gpt3_6.7B").work("full")  # 1024 sequences, 32 heads, 32 layers, vocabulary 50304
LLAMA: Work = Registry().case("llama3_8b").work("full")  # 8 key-value heads
ROWS = Registry().published_set("oneflow_gpt").rows


def shaped(work: Work, batch: int = 1024, length: int = 2048, **model: int) -> Work:
    """The work with other sizes, unchecked, as no case could say some of them."""
    training = work.training.model_copy(update={"global_batch": batch, "sequence_length": length})
    return work.model_copy(update={"model": work.model.model_copy(update=model), "training": training})


def work_of(row: PublishedRow) -> Work:
    shape = row.setting.model
    assert shape is not None
    sizes = {"hidden_size": shape.hidden_size, "ffn_hidden_size": 4 * shape.hidden_size, "layers": shape.layers}
    heads = {"heads": shape.heads, "kv_heads": shape.heads}
    return shaped(GPT, row.setting.global_batch, vocab_size=50688, **sizes, **heads)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_published_configurations_satisfy_all_relations(row: PublishedRow) -> None:
    setting, model = row.setting, row.setting.model
    *_, layout, batch, sizes = row.name.split("_")
    assert model is not None and sizes == f"{model.hidden_size}x{model.layers}"
    assert parse_layout(layout).layout == setting.parsed_layout and int(batch) == setting.global_batch
    sides = setting.nodes, setting.devices_per_node
    assert broken_rules(work_of(row), setting.parsed_layout, setting.micro_batch, *sides) == []
    assert accumulation(work_of(row), setting.parsed_layout, setting.micro_batch) == setting.accumulation


def test_the_published_table_has_eighteen_rows() -> None:
    assert len(ROWS) == 18


@pytest.mark.parametrize(
    ("work", "layout", "micro_batch", "devices", "sentence"),
    [
        (
            GPT,
            Layout(data=3),
            1,
            3,
            "micro-batch 1 x data 3 x accumulation = global batch: 1024 is not a multiple of 3",
        ),
        (GPT, Layout(data=2), 1024, 2, "1024 is not a multiple of 2048"),
        (GPT, Layout(data=2), 1, 4, "data 2 x tensor 1 x pipeline 1 = nodes 1 x devices 4: 2 is not 4"),
        (shaped(GPT, hidden_size=4100), Layout(), 1, 1, "hidden size 4100 over 32 heads"),
        (
            shaped(GPT, heads=36, kv_heads=36, hidden_size=4608),
            Layout(tensor=8),
            1,
            8,
            "36 attention heads cannot be cut over tensor 8",
        ),
        (GPT, Layout(pipeline=3), 1, 3, "32 layers cannot be cut over pipeline 3"),
        (LLAMA, Layout(tensor=16), 1, 16, "8 key-value heads cannot be cut over tensor 16"),
        (shaped(GPT, vocab_size=50257), Layout(tensor=2), 1, 2, "vocabulary 50257 cannot be cut over tensor 2"),
        (shaped(GPT, ffn_hidden_size=1001), Layout(tensor=2), 1, 2, "ffn size 1001 cannot be cut over tensor 2"),
        (
            GPT,
            Layout(data=2, sequence_parallel=True),
            1,
            2,
            "sequence parallel (+seq) needs a tensor-parallel size above 1",
        ),
        (
            shaped(GPT, length=2047),
            Layout(tensor=2, sequence_parallel=True),
            1,
            2,
            "sequence length 2047 cannot be cut over tensor 2",
        ),
    ],
)
def test_one_broken_relation_gives_one_sentence_with_its_numbers(
    work: Work, layout: Layout, micro_batch: int, devices: int, sentence: str
) -> None:
    reasons = [reason for reason in broken_rules(work, layout, micro_batch, 1, devices) if sentence in reason]
    assert len(reasons) == 1
    others = set(broken_rules(work, layout, micro_batch, 1, devices)) - set(reasons)
    assert all("heads" in sentence and "heads" in other for other in others)


@pytest.mark.parametrize(
    ("work", "layout", "micro_batch", "chunks", "sentence"),
    [
        (GPT, Layout(), 1, 2, "virtual pipeline 2 needs a pipeline size above 1"),
        (GPT, Layout(pipeline=4), 1, 3, "32 layers cannot be cut over pipeline 4 x virtual pipeline 3"),
        (
            GPT,
            Layout(pipeline=4),
            512,
            2,
            "virtual pipeline 2 takes rounds of as many micro-batches as pipeline 4: accumulation 2 is not a multiple",
        ),
    ],
)
def test_what_interleaving_needs(work: Work, layout: Layout, micro_batch: int, chunks: int, sentence: str) -> None:
    devices = layout.world_size
    assert broken_rules(work, layout, micro_batch, 1, devices) == []
    assert broken_rules(work, layout, micro_batch, 1, devices, chunks) == [sentence]


def test_what_is_offered_beside_an_impossible_interleaving_can_be_interleaved() -> None:
    assert broken_rules(GPT, Layout(pipeline=8), 1, 1, 8, 4) == []
    with pytest.raises(LayoutError, match="and virtual pipeline 4 is impossible") as caught:
        require_possible(GPT, Layout(pipeline=16), 1, 1, 16, 4)
    for layout, micro_batch in offered(str(caught.value)):
        assert broken_rules(GPT, layout, micro_batch, 1, 16, 4) == []
    with pytest.raises(LayoutError, match=r"not possible on 1 devices; nearest: DP1TP1PP2 .* on 2 devices"):
        require_possible(GPT, Layout(), 1, 1, 1, 2)


def offered(message: str) -> list[tuple[Layout, int]]:
    pairs = re.findall(r"(\S+) with micro-batch (\d+)", message.rsplit("nearest possible:", 1)[1])
    return [(parse_layout(text).layout, int(batch)) for text, batch in pairs]


def test_an_impossible_layout_is_explained_with_the_nearest_possible() -> None:
    with pytest.raises(LayoutError) as caught:
        require_possible(GPT, Layout(data=2, tensor=2, pipeline=3), 4, 1, 8)
    message = str(caught.value)
    assert message.startswith("layout DP2TP2PP3 with micro-batch 4 is impossible:\n")
    assert "12 is not 8" in message and "32 layers cannot be cut over pipeline 3" in message
    assert offered(message)[0] in [(Layout(data=2, tensor=2, pipeline=2), 4)]


@given(
    st.integers(1, 12),
    st.integers(1, 12),
    st.integers(1, 12),
    st.integers(1, 9),
    st.integers(1, 24),
    st.booleans(),
    st.integers(0, 3),
    st.sampled_from([GPT, LLAMA, shaped(LLAMA, batch=24)]),
)
def test_what_is_offered_is_always_possible(
    data: int, tensor: int, pipeline: int, batch: int, devices: int, sequence: bool, stage: int, work: Work
) -> None:
    layout = Layout(
        data=data,
        tensor=tensor,
        pipeline=pipeline,
        sequence_parallel=sequence,
        sharding_stage=stage,
        sharding_degree=data if stage else 1,
    )
    for text in nearest_layouts(work, layout, batch, 1, devices):
        written, _, micro_batch = text.partition(" with micro-batch ")
        assert broken_rules(work, parse_layout(written).layout, int(micro_batch), 1, devices) == []


def test_a_possible_layout_is_its_own_nearest() -> None:
    layout = Layout(data=4, tensor=2)
    require_possible(GPT, layout, 4, 1, 8)
    assert nearest_layouts(GPT, layout, 4, 1, 8)[0] == "DP4TP2PP1 with micro-batch 4"


def test_where_nothing_is_possible_it_offers_other_numbers_of_devices() -> None:
    with pytest.raises(LayoutError, match=r"not possible on 13 devices; nearest: DP7TP2PP1 .* on 14 devices"):
        require_possible(shaped(GPT, batch=7, layers=31), Layout(data=13), 1, 1, 13)

"""Layouts: every notation of the reports is read, and what cannot be is explained."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from levelfield.errors import LayoutError
from levelfield.specs.layout import Layout, parse_layout


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    degree, replicas = draw(st.integers(1, 64)), draw(st.integers(1, 16))
    stage = draw(st.integers(1, 3)) if degree > 1 else 0
    context = draw(st.sampled_from([1, 1, 2, 4]))
    return Layout(
        data=degree * replicas,
        context=context,
        tensor=draw(st.integers(1, 16)),
        pipeline=draw(st.integers(1, 16)),
        sequence_parallel=draw(st.booleans()),
        sharding_stage=stage,
        sharding_degree=degree,
    )


@pytest.mark.parametrize(
    ("text", "layout"),
    [
        ("DP8SH2SP4", Layout(data=8, sharding_stage=2, sharding_degree=4)),
        ("DP4SH3", Layout(data=4, sharding_stage=3, sharding_degree=4)),
        ("TP2", Layout(tensor=2)),
        ("dp2tp2+seq", Layout(data=2, tensor=2, sequence_parallel=True)),
        ("2x4x1+seq", Layout(data=2, tensor=4, sequence_parallel=True)),
        ("TP8CP2PP4DP4", Layout(data=4, context=2, tensor=8, pipeline=4)),
        ("cp4", Layout(context=4)),
        ("DP4CP2SH1", Layout(data=4, context=2, sharding_stage=1, sharding_degree=8)),
        ("CP2TP2SH3SP8", Layout(data=4, context=2, tensor=2, sharding_stage=3, sharding_degree=8)),
    ],
)
def test_a_written_layout_is_read(text: str, layout: Layout) -> None:
    assert parse_layout(text) == (layout, None, None, None)


@pytest.mark.parametrize(
    ("text", "data", "tensor"),
    [
        ("1n_8g_2dp_4mp_4bs", 2, 4),
        ("1n_8g_mp_4bs", 1, 8),
        ("1n_8g_dp_4mp_4bs", 2, 4),
        ("2n_8g_2dp_mp_4bs", 2, 8),
        ("1N_8G_8DP_4BS", 8, 1),
    ],
)
def test_model_parallel_parts_of_that_notation_are_tensor_parallel(text: str, data: int, tensor: int) -> None:
    assert parse_layout(text).layout == Layout(data=data, tensor=tensor)
    assert parse_layout(text).micro_batch == 4


@given(layouts())
def test_what_is_printed_reads_back(layout: Layout) -> None:
    assert parse_layout(str(layout)).layout == layout


@pytest.mark.parametrize("text", ["DP{0}TP{1}PP{2}", "PP{2}DP{0}TP{1}", "{0}x{1}x{2}"])
@given(sizes=st.tuples(st.integers(1, 64), st.integers(1, 64), st.integers(1, 64)), seq=st.booleans())
def test_plain_layouts_are_read_in_every_notation(text: str, sizes: tuple[int, int, int], seq: bool) -> None:
    data, tensor, pipeline = sizes
    layout = Layout(data=data, tensor=tensor, pipeline=pipeline, sequence_parallel=seq)
    assert parse_layout(text.format(*sizes) + ("+seq" if seq else "")).layout == layout


@given(st.integers(1, 64), st.integers(1, 8), st.integers(1, 8), st.integers(1, 3))
def test_sharded_layouts_are_read_from_paddles_names(degree: int, tensor: int, pipeline: int, stage: int) -> None:
    layout = Layout(
        data=degree, tensor=tensor, pipeline=pipeline, sharding_stage=stage if degree > 1 else 0, sharding_degree=degree
    )
    assert parse_layout(f"TP{tensor}PP{pipeline}SH{stage}SP{degree}").layout == layout


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 32))
def test_data_parallel_layouts_are_read_with_machines_and_batch(nodes: int, devices: int, batch: int) -> None:
    assert parse_layout(f"{nodes}n_{devices}g_dp_{batch}bs") == (Layout(data=nodes * devices), nodes, devices, batch)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has an unknown notation; write DP4TP2PP1"),
        ("fast", "has an unknown notation"),
        ("8x1", "has an unknown notation"),
        ("DP", "has an unknown notation"),
        ("DP4,TP2", "has an unknown notation"),
        ("DP4DP2", "found DP twice"),
        ("DP4SP4", "found SP, the sharding degree, without SH, the stage; for sequence parallel write +seq"),
        ("DP4TP2+sp", "found '+sp', expected '+seq'"),
        ("DP0TP1", "data Input should be greater than or equal to 1"),
        ("0x1x1", "data Input should be greater than or equal to 1"),
        ("DP6SH2SP4", "sharding_degree 4 does not divide data-parallel size 6"),
        ("DP4CP0", "context Input should be greater than or equal to 1"),
        ("CP2CP2", "found CP twice"),
        ("DP2CP2SH2SP3", "sharding_degree 3 does not divide data-parallel size 2 x context 2"),
        ("1n_8g_4bs", "has an unknown notation"),
        ("1n_8g_3dp_4mp_4bs", "found 3 x 4 ranks, expected 1 x 8 devices"),
        ("1n_8g_9mp_4bs", "found 0 x 9 ranks, expected 1 x 8 devices"),
        ("1n_8g_0mp_4bs", "found 8 x 0 ranks, expected 1 x 8 devices"),
        ("1n_8g_0dp_mp_4bs", "found 0 x 8 ranks, expected 1 x 8 devices"),
        ("DP4SH4SP4", "sharding_stage Input should be less than or equal to 3"),
    ],
)
def test_what_is_no_layout_is_explained(text: str, message: str) -> None:
    with pytest.raises(LayoutError) as refusal:
        parse_layout(text)
    assert str(refusal.value).startswith(f"layout '{text}'") and message in str(refusal.value)


def test_a_layout_without_context_is_stored_as_before() -> None:
    """Documents from before context parallelism keep their bytes and digests."""
    plain, split = Layout(data=4, tensor=2), Layout(data=2, context=2, tensor=2)
    assert "context" not in plain.model_dump() and "context" not in plain.to_json()
    assert plain.fingerprint() == "sha256:" + ("9b543db31be2f5604810ee721839151d0f1b6520c497ef5c3163c2c950ca2552")
    assert split.model_dump()["context"] == 2 and split.fingerprint() != plain.fingerprint()
    assert Layout.model_validate(split.model_dump(mode="json")) == split
    assert split.world_size == 8 and split.gradient_ranks == 4


@pytest.mark.parametrize(
    ("text", "a_part"),
    [("DP4CP2SH1SP8", False), ("DP4CP2SH1SP4", True), ("DP8SH3SP2", True), ("DP8SH3", False), ("DP8", False)],
)
def test_states_are_sharded_over_all_ranks_that_hold_them_or_over_a_part(text: str, a_part: bool) -> None:
    assert parse_layout(text).layout.is_hybrid_sharded == a_part


@given(st.text(alphabet="CDTPSHdx0123456789n_gbs+eq", max_size=14))
def test_any_text_is_a_layout_or_a_layout_error(text: str) -> None:
    try:
        layout = parse_layout(text).layout
    except LayoutError:
        return
    assert parse_layout(str(layout)).layout == layout

"""Layouts for many devices, cut down to a few: what stays, what goes first, and what the work's sizes allow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from levelfield.catalog.registry import Registry
from levelfield.plan.placement import reduced
from levelfield.predict.layout_rules import broken
from levelfield.specs.layout import Layout, parse_layout

ALL = ("data", "tensor", "pipeline", "sequence", "zero1", "zero2", "zero3")
WORK = Registry().case("llama3_8b").work("smoke")


def cut(text: str, devices: int, offered: tuple[str, ...] = ALL, micro_batch: int = 8) -> str:
    return str(reduced(parse_layout(text).layout, devices, WORK, micro_batch, offered))


@pytest.mark.parametrize(
    ("text", "devices", "expected"),
    [
        ("DP8TP1PP4", 2, "DP1TP1PP2"),
        ("DP8TP1PP4", 4, "DP2TP1PP2"),
        ("DP8TP1PP4", 8, "DP2TP1PP4"),
        ("2x4x4", 8, "DP2TP2PP2"),
        ("2x4x4", 4, "DP1TP2PP2"),
        ("2x4x4", 3, "DP1TP1PP2"),
        ("1x32x1", 2, "DP1TP2PP1"),
        ("4x8x1", 1, "DP1TP1PP1"),
        ("DP220TP2PP1SH1SP220+seq", 2, "DP1TP2PP1+seq"),
        ("DP220TP2PP1SH1SP220+seq", 8, "DP4TP2PP1SH1SP4+seq"),
        ("DP1TP1PP1", 2, "DP1TP1PP1"),
        ("DP4CP2TP1PP1", 4, "DP2CP2TP1PP1"),
        ("DP1CP8TP1PP1SH1SP8", 2, "DP1CP2TP1PP1SH1SP2"),
    ],
)
def test_the_largest_goes_first_and_a_pipeline_goes_last(text: str, devices: int, expected: str) -> None:
    assert cut(text, devices) == expected


@pytest.mark.parametrize(
    ("text", "devices", "expected"),
    [
        ("1x32x1", 64, "DP1TP4PP1"),  # four key-value heads
        ("DP1TP1PP16", 64, "DP1TP1PP4"),  # four layers
        ("DP32TP1PP1", 64, "DP4TP1PP1"),  # 32 sequences in micro-batches of 8
    ],
)
def test_no_dimension_is_larger_than_what_it_cuts(text: str, devices: int, expected: str) -> None:
    assert cut(text, devices) == expected


@pytest.mark.parametrize(
    ("text", "offered", "expected"),
    [
        ("DP8TP1PP1SH2SP8", ("data", "zero1"), "DP2TP1PP1SH1SP2"),
        ("DP8TP1PP1SH3SP8", ("data", "zero1", "zero2"), "DP2TP1PP1SH2SP2"),
        ("DP8TP1PP1SH1SP8", ("data",), "DP2TP1PP1"),
        ("DP8TP1PP1SH2SP8", ALL, "DP2TP1PP1SH2SP2"),
        ("DP8TP1PP1SH1SP2", ALL, "DP2TP1PP1SH1SP2"),
        ("DP4TP2PP1SH2SP4", ALL, "DP1TP2PP1"),
        ("DP1TP4PP1+seq", ("tensor",), "DP1TP2PP1"),
    ],
)
def test_sharding_and_sequence_parallel_stay_where_they_are_offered(
    text: str, offered: tuple[str, ...], expected: str
) -> None:
    assert cut(text, 2, offered) == expected


SIZES = st.integers(1, 100)  # together at most 2^20 ranks


@given(SIZES, SIZES, SIZES, st.integers(1, 64))
def test_what_comes_out_can_always_be(data: int, tensor: int, pipeline: int, devices: int) -> None:
    found = reduced(Layout(data=data, tensor=tensor, pipeline=pipeline), devices, WORK, 8, ALL)
    assert found.world_size <= devices
    assert broken(WORK, found, 8, 1, found.world_size) == []

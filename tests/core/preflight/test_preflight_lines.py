"""A preflight as text: every part within 80 columns, and texts of nodes that stay in their line."""

from __future__ import annotations

from typing import Any

import pytest
from levelfield.preflight.preflight_lines import byte_text, preflight_lines
from levelfield.specs.preflight_report import (
    CollectiveReport,
    NodeReport,
    PairReport,
    PreflightFinding,
    PreflightReport,
    Rate,
)

HEAD: dict[str, Any] = {
    "run_id": "p",
    "at": "2026-11-22T00:00:00+00:00",
    "launcher": "ssh",
    "framework": "torch 2.13.0",
    "short": True,
}
LONG = "a-host-with-a-long-name.of.a.long.domain"


def report(number: int, name: str = LONG) -> PreflightReport:
    nodes = tuple(
        NodeReport(node_rank=k, name=f"{k}{name}", rates={"matmul": Rate(unit="FLOP/s", value=3e13 + k)})
        for k in range(number)
    )
    row = CollectiveReport(
        operation="reduce_scatter", bytes=2**20, ranks=2, seconds=1e-3, best_seconds=1e-3,
        algorithm_bytes_per_second=1e9, bus_bytes_per_second=5e8, wrong="rank 0: element 3",
    )  # fmt: skip
    pair = PairReport(ranks=(0, 1), members=(f"0{name}", f"1{name}"), bytes=1024, seconds=1e-5, bytes_per_second=1e8)
    slow = PreflightFinding(kind="slow", nodes=(name,), figure="matmul", sentence=f"{name}: matmul is slow " * 5)
    parts = {"nodes": nodes, "collectives": (row,), "pairs": (pair,) * 40, "findings": (slow,)}
    return PreflightReport.model_validate({**HEAD, "word": "out of line", **parts})


@pytest.mark.parametrize("number", [1, 2, 7, 60])
def test_every_line_fits_the_terminal(number: int) -> None:
    text = "\n".join(preflight_lines(report(number)))
    assert max(map(len, text.splitlines())) <= 80
    for part in ("WRONG", "right", "0.5", "! a-host", "25 more"):
        assert part in text
    assert ("more nodes" in text) == (number == 60)


def test_a_text_of_a_node_cannot_begin_a_line_of_its_own() -> None:
    """Control characters are the streams' part (cli/streams.py)."""
    lines = "\n".join(preflight_lines(report(2, name="a\r\nin line"))).splitlines()
    assert not [line for line in lines if line.startswith("in line")]


def test_columns_stay_where_they_are() -> None:
    assert f"{'matmul, TFLOP/s':<24}{'30':>11}{'30':>11}" in preflight_lines(report(2, name="b"))


def test_a_preflight_that_reached_no_node_shows_why_and_no_table() -> None:
    failed = PreflightReport.model_validate({**HEAD, "word": "failed", "evidence": "pfhost2: no route"})
    head, *others = preflight_lines(failed)
    assert "ssh" in head and HEAD["framework"] in head
    assert others == ["failed", "pfhost2: no route"]


@pytest.mark.parametrize(("number", "text"), [(8, "8 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (2**31, "2 GiB")])
def test_sizes_have_binary_prefixes(number: int, text: str) -> None:
    assert byte_text(number) == text

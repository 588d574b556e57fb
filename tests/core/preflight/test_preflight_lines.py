"""A preflight as text: every part within 80 columns, and texts of nodes that stay in their line."""

from __future__ import annotations

import pytest
from levelfield.preflight.preflight_lines import preflight_lines, size
from levelfield.specs.preflight_report import (
    CollectiveReport,
    NodeReport,
    PairReport,
    PreflightFinding,
    PreflightReport,
    Rate,
)

HEAD = {"run_id": "p", "at": "2026-11-22T00:00:00+00:00", "launcher": "ssh", "framework": "torch 2.13.0", "short": True}
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
    found = PreflightFinding(kind="slow", nodes=(name,), figure="matmul", sentence=f"{name}: matmul is slow " * 5)
    said = {"word": "out of line", "nodes": nodes, "collectives": (row,), "pairs": (pair,) * 40, "findings": (found,)}
    return PreflightReport.model_validate({**HEAD, **said})


@pytest.mark.parametrize("number", [1, 2, 7, 60])
def test_every_line_fits_the_terminal(number: int) -> None:
    shown = "\n".join(preflight_lines(report(number))).splitlines()
    assert all(len(line) <= 80 for line in shown), max(shown, key=len)
    text = "\n".join(shown)
    assert "WRONG" in text and "right" in text and "0.5" in text and "! a-host" in text
    assert ("more nodes" in text) == (number == 60) and "and 25 more" in text


def test_a_text_of_a_node_cannot_begin_a_line_of_its_own() -> None:
    """Control characters are the streams' part (cli/streams.py)."""
    shown = "\n".join(preflight_lines(report(2, name="a\r\nin line"))).splitlines()
    assert not [line for line in shown if line.startswith("in line")]


def test_columns_stay_where_they_are() -> None:
    shown = preflight_lines(report(2, name="b"))
    assert f"{'matmul, TFLOP/s':<24}{'30':>11}{'30':>11}" in shown


def test_a_preflight_that_reached_no_node_shows_why_and_no_table() -> None:
    failed = PreflightReport.model_validate({**HEAD, "word": "failed", "evidence": "pfhost2: it cannot be reached"})
    assert preflight_lines(failed) == [
        "short preflight by ssh, torch 2.13.0",
        "failed",
        "pfhost2: it cannot be reached",
    ]


@pytest.mark.parametrize(("number", "text"), [(8, "8 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (2**31, "2 GiB")])
def test_sizes_have_binary_prefixes(number: int, text: str) -> None:
    assert size(number) == text

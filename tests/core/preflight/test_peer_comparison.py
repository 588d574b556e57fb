"""Which node is out of line: planted slow nodes, noise alone, and what no limit may accept."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pytest
from levelfield.preflight.peer_comparison import (
    MAD_MULTIPLES,
    MAD_TO_DEVIATION,
    MANY_PEERS,
    PeerReading,
    compare_peers,
)

TRIALS = 400


def readings(values: Iterable[float], spread: float = 0.0) -> dict[str, PeerReading]:
    return {f"n{at}": PeerReading(float(value), spread) for at, value in enumerate(values)}


def noisy(seed: int, nodes: int, noise: float, first: float = 1.0) -> np.ndarray:
    """Rates of TRIALS preflights, the first node's multiplied."""
    values = np.exp(np.random.default_rng(seed).normal(0, noise, (TRIALS, nodes))) * 1e9
    values[:, 0] *= first
    return values


def share_named(values: np.ndarray, node: str) -> float:
    """How often a node is named alone."""
    trials = [compare_peers(readings(row)) for row in values]
    return sum(any(finding.nodes == (node,) for finding in findings) for findings in trials) / len(values)


def share_with_findings(values: np.ndarray) -> float:
    return sum(bool(compare_peers(readings(row))) for row in values) / len(values)


@pytest.mark.parametrize("nodes", [3, 4, 8, 32])
def test_a_node_at_half_speed_is_named_where_nodes_differ_by_one_percent(nodes: int) -> None:
    assert share_named(noisy(1, nodes, 0.01, first=0.5), "n0") > 0.98


@pytest.mark.parametrize("nodes", [4, 8, 32])
def test_a_node_with_a_fifth_less_is_named(nodes: int) -> None:
    assert share_named(noisy(2, nodes, 0.01, first=0.8), "n0") > 0.98


@pytest.mark.parametrize("nodes", [2, 3, 4, 5, 6, 8, 32])
@pytest.mark.parametrize("noise", [0.001, 0.01])
def test_nodes_that_differ_by_a_percent_are_in_line(nodes: int, noise: float) -> None:
    assert share_with_findings(noisy(3, nodes, noise)) == 0


@pytest.mark.parametrize("nodes", [3, 4, 5, 6, 8, 16, 32])
def test_nodes_that_differ_by_three_percent_seldom_give_a_finding(nodes: int) -> None:
    assert share_with_findings(noisy(4, nodes, 0.03)) < 0.02


@pytest.mark.parametrize("nodes", [6, 8, 16, 32])
def test_many_nodes_that_differ_by_ten_percent_seldom_give_a_finding(nodes: int) -> None:
    assert share_with_findings(noisy(5, nodes, 0.10)) < 0.03


def test_two_nodes_are_both_named_and_neither_is_blamed() -> None:
    [finding] = compare_peers(readings([100.0, 60.0]))
    assert (finding.word, finding.nodes) == ("differ", ("n1", "n0"))
    assert finding.ratio == pytest.approx(0.6)


def test_all_nodes_slow_are_in_line_with_each_other() -> None:
    assert compare_peers(readings([50.0] * 8)) == []


def test_one_node_alone_is_compared_with_nothing() -> None:
    assert compare_peers(readings([1.0])) == []


def test_a_wrong_unit_shows_as_a_node_that_is_too_fast() -> None:
    [fast] = compare_peers(readings([31e9, 30.5e9, 30.8e9 * 1000, 30.9e9]))
    assert (fast.word, fast.nodes) == ("fast", ("n2",))
    assert fast.ratio == pytest.approx(1000, rel=0.02)
    [slow] = compare_peers(readings([31e9, 30.5e9, 30.8, 30.9e9]))
    assert (slow.word, slow.nodes) == ("slow", ("n2",))


def test_two_groups_are_named_without_a_guess() -> None:
    [finding] = compare_peers(readings([100.0, 101.0, 60.0, 61.0]))
    assert (finding.word, finding.nodes) == ("differ", ("n2", "n3"))


def test_what_the_repeats_within_nodes_explain_is_no_finding() -> None:
    values = [100.0, 101.0, 99.0, 70.0]
    assert [finding.nodes for finding in compare_peers(readings(values))] == [("n3",)]
    assert compare_peers(readings(values, spread=0.1)) == []


@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0, -1.0])
def test_no_rate_that_cannot_be_is_compared(value: float) -> None:
    with pytest.raises(ValueError, match=f"rate of {value}"):
        compare_peers(readings([1.0, 1.0, value]))


@pytest.mark.parametrize("nodes", sorted(MAD_MULTIPLES))
def test_the_multiples_are_those_of_a_simulation(nodes: int) -> None:
    values = np.random.default_rng(6).normal(size=(20_000, nodes))
    away = np.abs(values - np.median(values, axis=1, keepdims=True))
    exceeded = np.mean(away.max(axis=1) > MAD_MULTIPLES[nodes] * MAD_TO_DEVIATION * np.median(away, axis=1))
    stated = 0.10 if nodes < MANY_PEERS else 0.01
    assert 0.5 * stated < exceeded < 1.5 * stated

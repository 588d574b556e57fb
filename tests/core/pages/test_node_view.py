"""The page of nodes: conditions by when they began, and what changed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from compared_records import record
from levelfield.pages import node_view
from levelfield.pages.content import PagesContent, read_content
from levelfield.pages.node_view import NodesView, nodes_view
from levelfield.pages.series_history import CachedDocuments, InMemoryStore
from seeded_nights import SeededNights


def seen(content: PagesContent, results: object) -> NodesView:
    return nodes_view(content, CachedDocuments(results))  # type: ignore[arg-type]


def test_a_change_of_conditions_is_a_row_of_its_node_with_what_changed() -> None:
    results = SeededNights(8, 12).results()
    nodes = seen(read_content(results), results)
    changed = [period for period in nodes.periods if period.changed_fields]
    assert changed and {period.changed_fields for period in changed} == {
        (("software.driver", "550.90.07", "560.35.03"),)
    }
    assert all(period.is_current for period in changed)
    assert min(period.first_began for period in changed).startswith("2026-10-07")
    old = {period.node for period in nodes.periods if not period.is_current}
    assert old == {period.node for period in changed} and len(old) < len(nodes.nodes)
    assert [period.first_began for period in nodes.periods] == sorted(
        (period.first_began for period in nodes.periods), reverse=True
    )


def of_variables(*values: str | None) -> NodesView:
    """One machine with a framework under each value of a variable."""
    names = ("torch", "jax", "paddle")
    runs = [
        record(n, framework=names[n - 1], variables={"GOMP_SPINCOUNT": value} if value else {})
        for n, value in enumerate(values, start=1)
    ]
    results = InMemoryStore(runs)
    return seen(read_content(results), results)


def test_first_conditions_have_what_tells_them_from_the_other_first_ones() -> None:
    fields = {period.frameworks: period.first_fields for period in of_variables("1000", None, "1000").periods}
    name = "variables.GOMP_SPINCOUNT"
    assert fields == {("torch", "paddle"): ((name, "1000"),), ("jax",): ((name, ""),)}


def test_first_conditions_that_stand_alone_have_the_main_fields() -> None:
    (alone,) = of_variables("1000").periods
    assert (
        alone.first_fields
        and {name for name, _ in alone.first_fields} <= set(node_view.MAIN_FIELDS)
        and not alone.changed_fields
    )
    results = SeededNights(8, 12).results()
    changed = [period for period in seen(read_content(results), results).periods if period.changed_fields]
    assert changed and not [period for period in changed if period.first_fields], "what changed stands there already"


def test_every_run_is_counted_once() -> None:
    results = SeededNights(8, 12).results()
    content = read_content(results)
    nodes = seen(content, results)
    assert (
        sum(row.run_count for row in nodes.nodes)
        == sum(period.run_count for period in nodes.periods)
        == content.run_count
    )


def test_the_newest_rows_are_shown_and_the_others_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_view, "MAX_PERIODS", 3)
    results = SeededNights(8, 12).results()
    nodes = seen(read_content(results), results)
    assert len(nodes.periods) == 3 and nodes.left_out_count > 0


def test_a_store_without_runs_has_no_nodes() -> None:
    results = SeededNights(8, 2, faults=False).results()
    empty = replace(read_content(results), series={})
    assert seen(empty, results) == NodesView((), (), 0)

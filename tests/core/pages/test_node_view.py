"""The page of nodes: conditions by when they began, and what changed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from compared_records import record
from levelfield.pages import node_view
from levelfield.pages.content import PagesContent, read_content
from levelfield.pages.node_view import NodesView, nodes_view
from levelfield.pages.series_history import GivenRuns, SurroundingDocuments
from seeded_nights import SeededNights


def seen(content: PagesContent, results: object) -> NodesView:
    return nodes_view(content, SurroundingDocuments(results))  # type: ignore[arg-type]


def test_a_change_of_conditions_is_a_row_of_its_node_with_what_changed() -> None:
    results = SeededNights(8, 12).results()
    nodes = seen(read_content(results), results)
    changed = [stay for stay in nodes.stays if stay.changed]
    assert changed and {stay.changed for stay in changed} == {(("software.driver", "550.90.07", "560.35.03"),)}
    assert all(stay.is_now for stay in changed) and min(stay.since for stay in changed).startswith("2026-10-07")
    old = {stay.node for stay in nodes.stays if not stay.is_now}
    assert old == {stay.node for stay in changed} and len(old) < len(nodes.nodes)
    assert [stay.since for stay in nodes.stays] == sorted((stay.since for stay in nodes.stays), reverse=True)


def of_variables(*values: str | None) -> NodesView:
    """One machine with a framework under each value of a variable."""
    names = ("torch", "jax", "paddle")
    runs = [
        record(n, framework=names[n - 1], variables={"GOMP_SPINCOUNT": value} if value else {})
        for n, value in enumerate(values, start=1)
    ]
    results = GivenRuns(runs)
    return seen(read_content(results), results)


def test_first_conditions_have_what_tells_them_from_the_other_first_ones() -> None:
    fields = {stay.frameworks: stay.first_fields for stay in of_variables("1000", None, "1000").stays}
    name = "variables.GOMP_SPINCOUNT"
    assert fields == {("torch", "paddle"): ((name, "1000"),), ("jax",): ((name, ""),)}


def test_first_conditions_that_stand_alone_have_the_main_fields() -> None:
    (alone,) = of_variables("1000").stays
    assert (
        alone.first_fields
        and {name for name, _ in alone.first_fields} <= set(node_view.MAIN_FIELDS)
        and not alone.changed
    )
    results = SeededNights(8, 12).results()
    changed = [stay for stay in seen(read_content(results), results).stays if stay.changed]
    assert changed and not [stay for stay in changed if stay.first_fields], "what changed stands there already"


def test_every_run_is_counted_once() -> None:
    results = SeededNights(8, 12).results()
    content = read_content(results)
    nodes = seen(content, results)
    assert sum(row.runs for row in nodes.nodes) == sum(stay.runs for stay in nodes.stays) == content.runs


def test_the_newest_rows_are_shown_and_the_others_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_view, "MOST_STAYS", 3)
    results = SeededNights(8, 12).results()
    nodes = seen(read_content(results), results)
    assert len(nodes.stays) == 3 and nodes.left > 0


def test_a_store_without_runs_has_no_nodes() -> None:
    results = SeededNights(8, 2, faults=False).results()
    empty = replace(read_content(results), series={})
    assert seen(empty, results) == NodesView((), (), 0)

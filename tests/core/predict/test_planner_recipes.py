"""Published recipes beside the planner's rows: the rank, the loss and its parts."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from levelfield.catalog.registry import Registry

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def recipes(request: pytest.FixtureRequest) -> ModuleType:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    request.addfinalizer(lambda: sys.path.remove(str(ROOT / "benchmarks")))
    import planner_recipes

    return planner_recipes


@pytest.fixture(scope="module")
def found(recipes: ModuleType) -> Any:
    run = next(run for run in recipes.runs_of(recipes.RUNS) if run.name == recipes.RECIPES[0])
    return recipes.ranked(run, recipes.Questions(Registry()), Registry())


def test_a_recipe_has_its_rank_and_its_loss(recipes: ModuleType, found: Any) -> None:
    assert found.rank is not None and 1 <= found.rank <= found.layouts
    assert found.loss == pytest.approx(1 - found.own.tokens_per_second / found.best.tokens_per_second)
    assert found.best.tokens_per_second >= found.own.tokens_per_second or found.over_gib > 0
    row = list(recipes.lines([found]))[-1]
    assert row.startswith(f"| titan-8B-8-bf16 | 8 | DP8TP1PP1SH3SP8, 1 | {found.best.layout}, ")


def test_the_parts_of_a_loss_are_those_of_the_step(recipes: ModuleType, found: Any) -> None:
    slow = found.own.time._replace(data=found.own.time.data + found.best.time.total / 2)
    worse = replace(found, own=replace(found.own, time=slow), rank=9)
    name, share = worse.parts[0]
    own = (found.own.time.data - found.best.time.data) / found.best.time.total
    assert name == "data" and share == pytest.approx(0.5 + own)
    assert recipes.why(worse).startswith("data +") and "among" not in recipes.why(worse)
    assert "among the first three" in recipes.why(replace(found, rank=3))
    assert "GiB over the memory" in recipes.why(replace(worse, capacity_bytes=2**30))


def test_the_recipes_are_runs_of_the_data_by_six_programs(recipes: ModuleType) -> None:
    paths = (recipes.RUNS, recipes.CONTEXT_RUNS, recipes.MIXTURE_RUNS, recipes.RECENT_RUNS)
    runs = {run.name: run for path in paths for run in recipes.runs_of(path)}
    chosen = [runs[name] for name in recipes.RECIPES]
    assert len(chosen) == len(set(recipes.RECIPES)) >= 10
    assert {run.devices for run in chosen} >= {8, 64, 256, 1024} and len({run.model for run in chosen}) >= 7
    text = (ROOT / "docs" / "planner-recipes.md").read_text()
    assert all(f"| {name} |" in text for name in recipes.RECIPES)

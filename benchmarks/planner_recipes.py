#!/usr/bin/env python3
"""Published recipes beside the planner's own rows for the same work and devices: rank, loss, and where it comes from.

    python benchmarks/planner_recipes.py             the table
    python benchmarks/planner_recipes.py --write     also into docs/data/planner_recipes.csv
    python benchmarks/planner_recipes.py --quick     one recipe, for tests

A recipe is a run of benchmarks/data that its publisher tuned. The planner gets its model, batch, precision, program and
devices, and not its layout. Rows with one layout count once. The loss is that of the recipe's predicted speed against
the first row's; its parts are differences of a step's seconds, over the first row's step.
"""

from __future__ import annotations

import argparse
import csv
import io
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from levelfield.catalog.registry import Registry
from levelfield.predict import layout_search
from levelfield.predict.questions import supported_parallelism
from pages.unseen import CONTEXT_RUNS, GIB, MIXTURE_RUNS, RECENT_RUNS, RUNS, Questions, Run, runs_of

ROWS = Path(__file__).resolve().parents[1] / "docs" / "data" / "planner_recipes.csv"
FIRST = 3
PARTS = 3  # of a loss, to name
MIN_PART = 0.005
RECIPES = (
    "titan-8B-8-bf16",
    "titan-8B-128-bf16",
    "bridge260401-H100-LLAMA3_70B-64-FP8",
    "nemo2407-LLAMA3-70B",
    "bridge260401-GB300-LLAMA3_70B-64-MXFP8",
    "bridge2606-H100-LLAMA3.1_405B-1024-FP8",
    "megatron-moe-Mixtral-8x7B",
    "nemo2504-GB200-Mixtral-8x7B",
    "automodel-Qwen3-30B-A3B",
    "bridge260401-H100-Qwen3_235B_a22B-256-FP8",
    "automodel-DeepSeek-V3-1024",
    "bridge2509-DeepSeek-V3-1024",
)


@dataclass(frozen=True)
class RankedRecipe:
    """A recipe beside the planner's rows. rank: of its layout among the layouts that fit, by their fastest rows; None
    where it is not among them. estimate: the recipe's predicted row. best: the first row."""

    run: Run
    estimate: layout_search.LayoutEstimate
    best: layout_search.LayoutEstimate
    rank: int | None
    layouts: int
    capacity_bytes: int

    @property
    def loss(self) -> float:
        """The recipe's predicted speed below that of the first row, as a share of it."""
        return 1 - self.estimate.tokens_per_second / self.best.tokens_per_second

    @property
    def parts(self) -> list[tuple[str, float]]:
        """The parts of a step that are longer by the recipe, over the first row's step, largest first."""
        recipe, best = self.estimate.time._asdict(), self.best.time._asdict()
        more = ((name, (recipe[name] - best[name]) / self.best.time.total) for name in recipe)
        return sorted(((name, share) for name, share in more if share > MIN_PART), key=lambda part: -part[1])

    @property
    def over_gib(self) -> float:
        """By how much the recipe is predicted to exceed the memory; 0 where it fits."""
        return max(0.0, (self.estimate.memory.total - self.capacity_bytes) / GIB)


def ranked(run: Run, questions: Questions, registry: Registry) -> RankedRecipe:
    question = questions.question(run)
    offer = supported_parallelism(registry.implementation(run.framework)[0], "nvidia")
    kinds = offer.parallelism | {"uneven", "interleaved", "context", "expert"}
    question_with_all_layouts = replace(
        question, supported=replace(offer, parallelism=kinds, recompute=layout_search.RECOMPUTATIONS)
    )
    rows = layout_search.search_layouts(question_with_all_layouts).rows
    order = list(dict.fromkeys((row.layout, row.tuning.virtual_pipeline) for row in rows))
    mine = (run.tuning.layout, run.tuning.virtual_pipeline)
    estimate = layout_search.predict(question, run.tuning)
    rank = 1 + order.index(mine) if mine in order else None
    return RankedRecipe(run, estimate, rows[0], rank, len(order), question.capacity_bytes or 0)


def explain_loss(recipe: RankedRecipe) -> str:
    """Return what the recipe loses and where, or that it is among the first rows."""
    if recipe.rank is not None and recipe.rank <= FIRST:
        return "among the first three"
    parts = ", ".join(f"{name} {share:+.1%}" for name, share in recipe.parts[:PARTS])
    faster = "" if recipe.loss > 0 else "; faster than the first row that fits"
    memory = f"; {recipe.over_gib:.1f} GiB over the memory" if recipe.over_gib else ""
    return f"{parts or 'no part is longer'}{memory}{faster}"


def table(recipes: Iterable[RankedRecipe]) -> Iterator[list[str]]:
    yield ["recipe", "devices", "layout, chunks", "first row", "rank", "layouts", "loss", "where"]
    for recipe in recipes:
        run, layouts = recipe.run, (_with_chunks(recipe.estimate), _with_chunks(recipe.best))
        rank = str(recipe.rank or "none")
        yield [
            *(run.name, str(run.devices), *layouts, rank, str(recipe.layouts), f"{recipe.loss:.1%}"),
            explain_loss(recipe),
        ]


def _with_chunks(row: layout_search.LayoutEstimate) -> str:
    return f"{row.layout}, {row.tuning.virtual_pipeline}"


def written(recipes: Iterable[RankedRecipe]) -> str:
    """Return the table as CSV, which docs/planner-accuracy.md sums up."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(table(recipes))
    return text.getvalue()


def ranked_recipes(names: Iterable[str] = RECIPES) -> list[RankedRecipe]:
    runs = {run.name: run for path in (RUNS, CONTEXT_RUNS, MIXTURE_RUNS, RECENT_RUNS) for run in runs_of(path)}
    registry = Registry()
    questions = Questions(registry)
    return [ranked(runs[name], questions, registry) for name in names]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write docs/data/planner_recipes.csv")
    parser.add_argument("--quick", action="store_true", help="only the first recipe: for tests")
    options = parser.parse_args()
    recipes = ranked_recipes(RECIPES[: 1 if options.quick else None])
    print("\n".join("  ".join(row) for row in table(recipes)))
    if options.write:
        ROWS.write_text(written(recipes))
        print(f"written: {ROWS.name}; docs/planner-accuracy.md sums it up: planner_unseen.py --fit")
    return 0


if __name__ == "__main__":
    sys.exit(main())

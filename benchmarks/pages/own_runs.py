"""The planner beside models/* on chips: every valid run at full scale whose result lies in docs/verified.

Its own constants describe this code, and none of these runs is in a fit. A run with `--compile` is left out: no plan
says what a compiler joins. jax always compiles; its plans are of the same products and memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from levelfield.catalog.lookup import find_selection
from levelfield.catalog.registry import Registry
from levelfield.plan.default_layout import LayoutTask, layout_question
from levelfield.predict.layout_search import predict
from levelfield.specs.base import load
from levelfield.specs.layout import Layout
from levelfield.specs.result import Result
from levelfield.specs.selector import parse_selector
from levelfield.specs.tuning import Tuning

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "verified"
CASES = ROOT / "tools" / "chip_check" / "cases"


@dataclass(frozen=True)
class OwnRun:
    """A run beside its plan of now. measured, planned: tokens/s of a device."""

    name: str
    result: Result
    measured: float
    planned: float

    @property
    def off(self) -> float:
        return self.planned / self.measured - 1


def own_runs(folder: Path = RESULTS) -> list[OwnRun]:
    """Return every eager run at full scale of a folder of results, beside its plan of now."""
    registry = Registry(case_files=sorted(CASES.glob("*.yaml")))
    return [
        _beside(registry, f"{path.parent.name.upper()} {path.stem}", result)
        for path in sorted(folder.glob("*/*.json"))
        if (result := load(Result, path)).status.word == "valid" and result.scale == "full" and not result.compile
    ]


def _beside(registry: Registry, name: str, result: Result) -> OwnRun:
    selector = f"{result.case}:{result.framework}:{result.chip}:{result.nodes}:{result.devices}"
    selection = find_selection(registry, parse_selector(selector))
    question = layout_question(LayoutTask(selection, selection.case.work("full"), result.nodes, result.devices))
    assert question is not None and result.throughput is not None
    tuning = Tuning(
        layout=Layout.model_validate(result.layout.model_dump()),
        micro_batch=result.micro_batch,
        virtual_pipeline=result.virtual_pipeline,
        recompute=result.recompute,
        recompute_layers=result.recompute_layers,
    )
    planned = predict(question, tuning).tokens_per_second
    return OwnRun(name, result, result.throughput.tokens_per_second_per_device, planned)


def own_runs_table(runs: Iterable[OwnRun]) -> Iterator[str]:
    yield "| run | framework | micro-batch | planned tokens/s | measured | off |"
    yield "|---|---|---|---|---|---|"
    for run in runs:
        micro = run.result.micro_batch
        rates = f"{run.planned:,.0f} | {run.measured:,.0f} | {run.off:+.1%}"
        yield f"| {run.name} | {run.result.framework} | {micro} | {rates} |"

"""The tables of `compare`, word for word: tests/core/golden/compare.txt holds what a reader gets."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from compared_records import other_use, record, repeats, with_result
from levelfield.compare.comparability import check_comparability
from levelfield.compare.comparison import compare, comparison_sheets
from levelfield.compare.matrix import make_matrix, matrix_sheets
from levelfield.compare.ratio_requirements import judge_requirements, parse_requirement, requirement_sheet
from levelfield.compare.scaling import compute_scaling, scaling_sheets
from levelfield.compare.sides import contradictions, side_of
from levelfield.errors import UsageError
from levelfield.report.sheets import format_text
from levelfield.specs.layout import Layout
from levelfield.specs.prices import Prices
from levelfield.specs.record import RunRecord

GOLDEN = Path(__file__).parents[1] / "golden" / "compare.txt"
LOUD = other_use(1.72, 2)


def comparisons() -> str:
    """Return one comparison that asks for every caution at hand, and one that is refused."""
    copy = record(2, 1010).model_copy(update={"step_seconds": record(1, 1000).step_seconds})
    failed = record(4, 1.0, word="failed", failure="oom", reason="a step is missing")
    base = side_of("A", [record(1, 1000), copy, record(3, 4000), failed])
    other = [
        with_result(run, other_use=LOUD, attention_kernel={"name": "flash"}, tuning={"word": "peak", "chosen": {}})
        for run in repeats(400, 404, 396, first=10, framework="paddle", is_dirty=True, joules=None, chip="Y1")
    ]
    two = [run.model_copy(update={"command_repeats": 3}) for run in [record(30, 500, devices=2, layout=Layout(data=2))]]
    owned = {"capital": 100000, "years": 4, "utilisation": 0.5, "power_per_kwh": 0.2, "pue": 1.5}
    chips = {"X1": {"per": "device", "rent": 2.0}, "Y1": {"per": "node", "own": owned}}
    prices = Prices.model_validate({"currency": "EUR", "chips": chips})
    whole = compare([base, side_of("B", other), side_of("C", two)], prices=prices)
    refused = compare([base, side_of("B", repeats(1, first=40, scale="full", evidence="tampered"))])
    requirements = [parse_requirement(text) for text in ("tokens>=0.95", "joules<=1.1", "aligned")]
    requirement_tables = [
        requirement_sheet(judge_requirements(requirements, comparison)) for comparison in (whole, refused)
    ]
    return format_text(
        [*comparison_sheets(whole), requirement_tables[0], *comparison_sheets(refused), requirement_tables[1]]
    )


def tables() -> str:
    """Return a matrix with disturbed, failed and inconclusive cells, and the scaling of a run that others disturbed."""
    quiet = [record(1, 1000, began="2026-11-18T10:00:00+00:00"), record(3, 950, case="llama")]
    loud = [record(2, 100), record(6, 90, framework="jax", case="llama"), record(7, 90, framework="jax")]
    failed = record(5, framework="paddle", word="failed", reason="out of memory")
    runs = [*quiet, *(with_result(run, other_use=LOUD) for run in loud), failed]
    two = [record(n, 900, devices=2, layout=Layout(data=2)) for n in (12, 13)]
    sizes = [record(11, 1000), two[0], with_result(two[1], other_use=LOUD), record(14, word="oom", devices=4)]
    return format_text(
        [
            *matrix_sheets(make_matrix(runs, "framework", cases=["gpt", "mixtral"])),
            *scaling_sheets(compute_scaling(sizes)),
        ]
    )


def faults() -> list[str]:
    """Return the sentences of refusals."""
    messages = [*contradictions(record(1, layout=Layout(data=2)))]
    speed = {**record(1).stored_result.content["throughput"], "tokens_per_second_per_device": 4000.0}
    messages += contradictions(with_result(record(1), throughput=speed))
    mixed: list[list[RunRecord]] = [[], [record(1), record(1)], [record(1), record(2, micro_batch=4)]]
    for runs in mixed:
        with pytest.raises(UsageError) as error:
            side_of("B", runs)
        messages.append(str(error.value))
    for sides in ([side_of("A", [record(1)])], [side_of("A", [record(1)]), side_of("B", [record(1)])]):
        with pytest.raises(UsageError) as error:
            compare(sides)
        messages.append(str(error.value))
    with pytest.raises(UsageError) as error:
        compute_scaling([record(1)])
    messages.append(str(error.value))
    with pytest.raises(UsageError) as error:
        parse_requirement("mfu")
    host = [
        side_of(name, [record(n, device_is="host share", devices=n, layout=Layout(data=n))])
        for n, name in ((1, "A"), (2, "B"))
    ]
    cells = [cell for field in check_comparability(host).unequal for cell in field.cells]
    return [*messages, str(error.value), *cells]


def test_tables_and_refusals_are_those_of_the_golden_file() -> None:
    text = "\n".join([comparisons(), tables(), *faults(), ""])
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()

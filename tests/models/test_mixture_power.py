"""The power of the alignment for mixtures: the tables of docs/alignment.md have every fault, and none is aligned."""

from __future__ import annotations

from dataclasses import replace

import pytest
from levelfield.measure.alignment import TrainingCurve
from mixture_power import BEGIN, HONEST, JUDGED, PERTURBATIONS, fault_rows, jump_row
from power import END, PAGE
from test_torch_mixture import FAULTS

STEPS = range(1, 41)


def written() -> list[list[str]]:
    """The rows of the tables in the page, as cells."""
    text = PAGE.read_text().split(BEGIN)[1].split(END)[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]


def test_the_page_has_every_fault_and_none_is_aligned() -> None:
    verdicts = {(cells[0], cells[1]): cells[2] for cells in written() if len(cells) == 6}
    for name, (kind, *_) in FAULTS.items():
        assert verdicts[name, kind] in ("different", "diverged", "not comparable"), name
    for name in HONEST:
        assert all(verdicts[f"*honest:* {name}", kind] == "aligned" for kind in JUDGED), name


def test_the_page_has_every_perturbation() -> None:
    names = [cells[0] for cells in written() if len(cells) == 8]
    assert {f"{size:.0e}, {seed}" for size, seed in PERTURBATIONS} <= set(names)


def test_a_row_tells_what_was_before_the_first_change_and_what_after() -> None:
    losses = dict.fromkeys(STEPS, 4.0)
    right = TrainingCurve(40, losses, routing={step: {1: (50, 50)} for step in STEPS})
    run = replace(right, losses={**losses, 3: 4.0 * (1 + 1e-7), 30: 4.0 * (1 + 1e-4)})
    run = replace(run, routing={**right.routing, 20: {1: (51, 49)}, 31: {1: (60, 40)}})
    assert jump_row("x", run, right) == "| x | 20 | 1 | 10.00% | 1.0e-07 | 1.0e-04 | 0.0e+00 | 0.0e+00 |"
    assert jump_row("x", right, right) == "| x | none | 0 | 0.00% | 0.0e+00 | 0.0e+00 | 0.0e+00 | 0.0e+00 |"


@pytest.mark.thorough
@pytest.mark.torch
@pytest.mark.layouts
@pytest.mark.parametrize("kind", JUDGED)
def test_no_fault_of_a_mixture_is_aligned_and_every_honest_run_is(kind: str) -> None:
    for row in fault_rows((kind,)):
        name, verdict = (cell.strip() for cell in row.strip("|").split("|")[:3:2])
        assert (verdict == "aligned") == name.startswith("*honest:*"), row

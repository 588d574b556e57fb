"""The power of the alignment for mixtures: the table of docs/alignment.md has every fault, and none is aligned."""

from __future__ import annotations

import pytest
from faults_in_mixtures import FAULTS
from mixture_power import BEGIN, HONEST, JUDGED, fault_rows
from power import END, PAGE


def written() -> list[list[str]]:
    """The rows of the table in the page, as cells."""
    text = PAGE.read_text().split(BEGIN)[1].split(END)[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]


def test_the_page_has_every_fault_and_none_is_aligned() -> None:
    verdicts = {(cells[0], cells[1]): cells[2] for cells in written()}
    assert len(FAULTS) >= 60
    for name, (kind, *_) in FAULTS.items():
        assert verdicts[name, kind] in ("different", "diverged", "not comparable"), name
    for name in HONEST:
        assert all(verdicts[f"*honest:* {name}", kind] == "aligned" for kind in JUDGED), name


# the smallest ones, which were aligned when one changed choice widened the limits
HIDDEN = (
    "router products in TF32",
    "learning rate 0 in the last step",
    "gates off by 1e-6",
    "one choice of a step flipped",
)


@pytest.mark.torch
@pytest.mark.layouts
def test_hidden_faults_of_a_mixture_are_different_and_a_near_tie_is_aligned() -> None:
    faults = {name: FAULTS[name] for name in HIDDEN}
    honest = {name: HONEST[name] for name in ("micro-batch 8", "scores perturbed by 3e-7")}
    found = {row.split("|")[1].strip(): row.split("|")[3].strip() for row in fault_rows(("mixture",), faults, honest)}
    assert found == dict.fromkeys(HIDDEN, "different") | {f"*honest:* {name}": "aligned" for name in honest}


@pytest.mark.thorough
@pytest.mark.torch
@pytest.mark.layouts
@pytest.mark.parametrize("kind", JUDGED)
def test_no_fault_of_a_mixture_is_aligned_and_every_honest_run_is(kind: str) -> None:
    for row in fault_rows((kind,)):
        name, verdict = (cell.strip() for cell in row.strip("|").split("|")[:3:2])
        assert (verdict == "aligned") == name.startswith("*honest:*"), row

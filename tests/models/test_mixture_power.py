"""The power of the alignment for mixtures: docs/data/mixture_power.json has every fault, and none is aligned."""

from __future__ import annotations

import json
from typing import Any

import pytest
from faults.in_mixtures import FAULTS
from mixture_power import BEGIN, DATA, HONEST, JUDGED, judged_rows, section
from power import END, PAGE


def written() -> list[dict[str, Any]]:
    return json.loads(DATA.read_text())["runs"]


def test_the_data_have_every_fault_and_none_is_aligned() -> None:
    verdicts = {(row["run"], row["mixture"], row["honest"]): row["verdict"] for row in written()}
    assert len(FAULTS) >= 60
    for name, (kind, *_) in FAULTS.items():
        assert verdicts[name, kind, False] in ("different", "diverged", "not comparable"), name
    for name in HONEST:
        assert all(verdicts[name, kind, True] == "aligned" for kind in JUDGED), name


def test_the_page_has_the_data_counted() -> None:
    assert PAGE.read_text().split(BEGIN)[1].split(END)[0].strip() == section(written())


def test_what_bf16_alone_says_is_counted_only_where_all_was_measured() -> None:
    rows = [{**row, "bf16_alone": "aligned" if row["honest"] else "different"} for row in written()]
    line = "| faults that bf16 alone calls aligned |"
    assert f"{line} 0 | 0 | 0 |" in section(rows)
    assert f"{line} not measured | 0 | 0 |" in section([{**rows[0], "bf16_alone": None}, *rows[1:]])
    assert f"{line} 1 | 0 | 0 |" in section([{**rows[0], "bf16_alone": "aligned"}, *rows[1:]])


# the smallest ones, which were aligned when one changed choice widened the limits
HIDDEN = (
    "router products in TF32",
    "learning rate 0 in the last step",
    "gates off by 1e-6",
    "one choice of a step flipped",
)


@pytest.mark.thorough
@pytest.mark.torch
@pytest.mark.layouts
def test_hidden_faults_of_a_mixture_are_different_and_a_near_tie_is_aligned() -> None:
    faults = {name: FAULTS[name] for name in HIDDEN}
    honest = {name: HONEST[name] for name in ("micro-batch 8", "scores perturbed by 3e-7")}
    found = {row["run"]: row["verdict"] for row in judged_rows(("mixture",), faults, honest)}
    assert found == dict.fromkeys(HIDDEN, "different") | dict.fromkeys(honest, "aligned")


@pytest.mark.thorough
@pytest.mark.torch
@pytest.mark.layouts
@pytest.mark.parametrize("kind", JUDGED)
def test_no_fault_of_a_mixture_is_aligned_and_every_honest_run_is(kind: str) -> None:
    for row in judged_rows((kind,)):
        assert (row["verdict"] == "aligned") == row["honest"], row

"""What the window shows of products in 8 bits: the recorded verdicts, the planted lines, and one training."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import window_power
from power import PAGE
from window_power import (
    DATA,
    FAULTS,
    HONEST,
    IN_BF16,
    IN_FP8,
    LateFault,
    copied,
    judge_run,
    plant,
    plant_bf16,
    trained_copy,
)

ROWS = json.loads(DATA.read_text(encoding="utf-8"))["runs"]


def test_every_fault_of_the_list_is_recorded_and_none_is_aligned() -> None:
    faults = {(row["case"], row["run"]): row for row in ROWS if row["kind"] == "fault"}
    assert faults.keys() >= {(case, fault.name) for case in IN_BF16 for fault in FAULTS}
    for (case, name), row in faults.items():
        if case == IN_FP8:
            assert (row["verdict"], row["beyond"]) == ("different", ["products"]), name
        else:
            assert row["verdict"] in ("different", "diverged") and "window" in row["beyond"], (case, name)
            assert row["times_limit"] > 1, (case, name)


def test_no_honest_run_is_near_a_limit() -> None:
    honest = [row for row in ROWS if row["kind"] == "honest"]
    assert len(honest) == len(HONEST) * len(IN_BF16)
    assert all(not row["beyond"] and row["times_limit"] < 0.5 for row in honest)


def test_the_page_has_the_table_of_the_data() -> None:
    assert window_power.section(ROWS) in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_can_be_planted_in_the_code_at_hand(fault: LateFault, tmp_path: Path) -> None:
    copy = copied(tmp_path)
    plant(fault, copy)
    for name in ("training.py", "model/layers.py"):
        compile((copy / name).read_text(encoding="utf-8"), name, "exec")
    assert f"range({fault.first}, job.training.steps + 1)" in (copy / "training.py").read_text(encoding="utf-8")


def test_products_in_bf16_can_be_planted_in_the_code_at_hand(tmp_path: Path) -> None:
    copy = copied(tmp_path)
    plant_bf16(copy)
    compile((copy / "step" / "fp8.py").read_text(encoding="utf-8"), "fp8.py", "exec")


@pytest.mark.torch
@pytest.mark.thorough
def test_a_training_whose_window_is_in_8_bits_is_different(
    interpreter_of: Callable[[str], Path], tmp_path: Path
) -> None:
    interpreter_of("torch")
    case, fault = "llama3_8b_bf16", FAULTS[0]
    copy = copied(tmp_path)
    plant(fault, copy)
    row = judge_run(case, fault.name, "fault", trained_copy(case, copy))
    assert row["verdict"] == "different" and "window" in row["beyond"]

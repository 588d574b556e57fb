"""The account of the alignment's power: what counts as missed, what a certificate changes, and the page."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faults.elsewhere import ELSEWHERE
from faults.in_torch import FAULTS
from faults.judging import (
    HONEST,
    PRECISIONS,
    STEPS,
    Judgement,
    Trainings,
    certified,
    judge,
    judgements,
    missed,
    yardstick,
)
from layouts import COMMON_MODELS, MODELS, SINGLE, Curve, Variant, small_job
from power import BEGIN, DATA, END, PAGE, documented, measured, section, write_data

FIRST = FAULTS[0]
# Honest runs of kinds that no row of noise varied: beyond the limits of bf16.
NOT_COVERED = {
    ("bf16", "gpt", "micro-batch 8"),
    ("bf16", "llama", "micro-batch 8"),
    ("bf16", "llama", "megatron"),
}


def judgement(
    name: str = "a",
    precision: str = "fp32",
    verdict: str = "different",
    failed: tuple[str, ...] = ("gradients",),
    fault: bool = True,
    framework: str = "torch",
) -> Judgement:
    return Judgement(name, fault, framework, "gpt", precision, verdict, failed)


def test_a_fault_is_missed_when_no_layer_of_the_set_failed() -> None:
    found = [
        judgement("a", failed=("gradients", "curve")),
        judgement("b", failed=("final weights",)),
        judgement("c", verdict="aligned", failed=()),
        judgement("honest", verdict="aligned", failed=(), fault=False),
        judgement("other precision", "bf16", "aligned", ()),
    ]
    assert missed(found, "fp32", ["gradients"]) == ["b", "c"]
    assert missed(found, "fp32", ["gradients", "final weights"]) == ["c"]
    assert missed(found, "bf16", ["gradients"]) == ["other precision"]


def test_a_training_that_failed_is_not_counted_as_missed() -> None:
    assert missed([judgement(verdict="failed", failed=())], "fp32", ["gradients"]) == []


@pytest.mark.parametrize(
    ("fp32", "below", "expected"),
    [
        ("aligned", "aligned", "aligned"),
        ("different", "aligned", "consistent"),
        ("inconclusive", "aligned", "consistent"),
        ("failed", "aligned", "consistent"),
        (None, "aligned", "consistent"),
        ("aligned", "diverged", "diverged"),
        ("different", "diverged", "diverged"),
    ],
)
@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_fewer_bits_are_aligned_only_where_fp32_is(fp32: str | None, below: str, expected: str, precision: str) -> None:
    same_code = [judgement(precision=precision, verdict=below)]
    same_code += [judgement(verdict=fp32)] if fp32 else []
    same_code += [judgement("b", verdict="aligned"), judgement(verdict="aligned", framework="paddle")]  # of others
    assert certified(same_code) == {("torch", "a", "gpt"): expected}


def test_a_training_that_ends_with_an_error_is_failed() -> None:
    def broken() -> Curve:
        raise RuntimeError("rank 0: Traceback\nNonFinite: step 3\n")

    found = judge(FIRST, "gpt", broken, None, "fp32")  # type: ignore[arg-type]
    assert (found.verdict, found.layer, found.reason) == ("failed", "failed", "NonFinite: step 3")


def test_a_page_keeps_what_is_outside_of_the_marks() -> None:
    assert documented(f"before {BEGIN} old {END} after", "new") == f"before {BEGIN}\n\nnew\n\n{END} after"


def test_the_data_have_every_fault_with_its_layer_and_every_honest_run() -> None:
    data = json.loads(DATA.read_text())
    assert [(row["framework"], row["fault"], row["family"]) for row in data["faults"]] == [
        (fault.framework, fault.name, fault.family) for fault in (*FAULTS, *ELSEWHERE)
    ]
    for row, fault in zip(data["faults"], (*FAULTS, *ELSEWHERE), strict=True):
        layout = None if fault.variant == SINGLE else fault.variant.name
        assert (row["layout"], row["fp32"], row["first_difference"]) == (layout, fault.layer, fault.tensor or None)
    assert [(row["run"], row["family"]) for row in data["honest"]] == [
        (run.name, family) for run in HONEST for family in COMMON_MODELS
    ]


def test_the_page_has_the_data_counted() -> None:
    assert PAGE.read_text() == documented(PAGE.read_text(), section(json.loads(DATA.read_text())))


def test_what_is_measured_is_counted_with_every_fault_and_what_was_not_trained(tmp_path: Path) -> None:
    """Two trainings alone: one that fp32 finds and bf16 alone does not, and an honest one."""
    about: dict[str, Any] = {"framework": FIRST.framework, "name": FIRST.name}
    honest: dict[str, Any] = {"framework": HONEST[0].framework, "name": HONEST[0].name, "failed": (), "fault": False}
    found = [judgement(**about), judgement(**about, precision="bf16", verdict="aligned", failed=())]
    found += [judgement(**honest, verdict="aligned"), judgement(**honest, verdict="different", precision="bf16")]
    write_data(tmp_path / "power.json", measured(found))
    data = json.loads((tmp_path / "power.json").read_text())
    assert data == measured(found)
    assert data["faults"][0] | {"fp32": "gradients", "bf16": "aligned"} == data["faults"][0]
    rest = len(FAULTS) + len(ELSEWHERE) - 1
    counted = section(data).splitlines()
    assert "| gradients | 1 | 0 |" in counted and "| aligned | 0 | 1 |" in counted
    assert f"| not trained | {rest} | {rest} |" in counted
    assert "| honest runs that are aligned | 1 of 1 | 0 of 1 |" in counted
    assert "| bf16: all | 1 | 1 |" in counted
    assert next(row for row in data["missed"] if row["layers"] == "bf16: all")["which"] == [FIRST.name]


def test_a_fault_that_bf16_hides_is_found_by_the_fp32_run(torch_of: Callable[[dict[str, Any]], Curve]) -> None:
    """What a certificate is for: aligned by the limits of bf16, and found in fp32."""
    learnt = (
        ("micro-batch", Variant("micro-batch 4", micro_batch=4)),
        ("layout", Variant("DP2", {"data": 2}, micro_batch=4)),
    )
    hidden = next(fault for fault in FAULTS if fault.name == "Adam's moments in bf16")
    found = []
    for precision in PRECISIONS:

        def trained(variant: Variant, precision: str = precision) -> Curve:
            return torch_of(small_job(MODELS["gpt"], variant, STEPS, precision=precision))

        by = yardstick(trained, precision, learnt)
        trainings = Trainings(None)  # type: ignore[arg-type]
        training = functools.partial(trainings.curve, hidden, "gpt", precision)
        found.append(judge(hidden, "gpt", training, by, precision))
    assert [judged.verdict for judged in found] == ["different", "aligned"]
    assert list(certified(found).values()) == ["consistent"]


@pytest.mark.thorough
@pytest.mark.layouts
def test_no_fault_is_aligned_and_every_honest_run_is(interpreter_of: Callable[[str], Path]) -> None:
    trainings = Trainings(interpreter_of)
    found = [judged for precision in PRECISIONS for judged in judgements(precision, trainings)]
    honest = [judged for judged in found if not judged.fault]
    assert len(found) - len(honest) == len(PRECISIONS) * len((*FAULTS, *ELSEWHERE)) - 6  # paddle and oneflow in fp32
    refused = {(judged.precision, judged.family, judged.name) for judged in honest if judged.verdict != "aligned"}
    assert refused <= NOT_COVERED
    assert not [judged for judged in found if judged.fault and judged.precision == "fp32" and not judged.failed]
    words = certified(judged for judged in found if judged.fault)
    assert not [name for (_, name, _), word in words.items() if word == "aligned"]

"""Gradient norms: every step that the case names is required of a run that records any."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from levelfield.measure.raw_facts import GradientShare, StepRecord
from levelfield.measure.weights import gradient_names, gradient_reasons
from levelfield.specs.base import load
from levelfield.specs.case import Case, Work

WORK: Work = load(Case, Path(__file__).resolve().parents[3] / "configs/cases/gpt2_small.yaml").work("smoke")
NAMES = tuple(gradient_names(WORK))


def shares(steps: Iterable[int]) -> list[GradientShare]:
    return [GradientShare(0, step, name, 1 / len(NAMES)) for step in steps for name in NAMES]


def records(skipped: Iterable[int] = ()) -> list[StepRecord]:
    left_out = set(skipped)
    return [
        StepRecord(0, step, step, grad_norm=None if step in left_out else 1.0, skipped=step in left_out)
        for step in range(1, WORK.training.steps + 1)
    ]


@pytest.mark.parametrize(("recorded", "skipped"), [((1, 2, 10), ()), ((), ()), ((2, 10), (1,)), ((10,), (1, 2))])
def test_every_gradient_step_but_those_that_the_loss_scale_skipped(
    recorded: tuple[int, ...], skipped: tuple[int, ...]
) -> None:
    assert WORK.evidence.gradient_steps == (1, 2, 10)
    assert gradient_reasons(shares(recorded), records(skipped), WORK) == []


@pytest.mark.parametrize(
    ("recorded", "skipped", "absent"),
    [((1,), (), (2, 10)), ((1, 2), (), (10,)), ((2, 10), (), (1,)), ((1,), (2,), (10,)), ((3,), (), (1, 2, 10))],
)
def test_a_gradient_step_that_is_missing_is_named_with_what_was_found_and_expected(
    recorded: tuple[int, ...], skipped: tuple[int, ...], absent: tuple[int, ...]
) -> None:
    has = ", ".join(map(str, recorded))
    assert gradient_reasons(shares(recorded), records(skipped), WORK) == [
        f"step {step}: no norms by parameter; found those of steps {has}, expected 1, 2, 10" for step in absent
    ]

"""Gradient norms: every step that the case names is required of a run that records any."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from levelfield.measure.raw_facts import GradientShare, StepRecord
from levelfield.measure.weights import gradient_names, gradient_norms, gradient_reasons
from levelfield.specs.base import load
from levelfield.specs.case import Case, Work

WORK: Work = load(Case, Path(__file__).resolve().parents[3] / "configs/cases/gpt2_small.yaml").work("smoke")
NAMES = tuple(gradient_names(WORK))
Change = Callable[[list[GradientShare]], list[GradientShare]]


def shares(steps: Iterable[int]) -> list[GradientShare]:
    """Two ranks have half of each square."""
    return [GradientShare(rank, step, name, 0.5 / len(NAMES)) for rank in (0, 1) for step in steps for name in NAMES]


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


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda whole: whole[1:], "make up"),  # one rank's share of one parameter is missing
        (lambda whole: [s for s in whole if s.name != "final_norm.weight"], "no norm of final_norm.weight"),
        (lambda whole: [*whole, GradientShare(0, 1, "stranger", 1.0)], "unknown parameter stranger"),
        (lambda whole: [replace(s, square=2 * s.square) for s in whole], "make up"),
        (lambda whole: [*whole[:-1], replace(whole[-1], square=math.nan)], "make up nan"),
    ],
)
def test_shares_that_do_not_make_up_the_gradient_are_named(change: Change, words: str) -> None:
    whole = [StepRecord(0, 1, 1, grad_norm=1.0), *records((2, 10))[1:]]
    assert gradient_reasons(shares([1]), whole, WORK) == []
    assert words in gradient_reasons(change(shares([1])), whole, WORK)[0]


def test_norms_are_the_root_of_all_ranks_squares() -> None:
    parts = [GradientShare(rank, 1, name, square / 2) for rank in (0, 1) for name, square in (("a", 9.0), ("b", 0.0))]
    assert gradient_norms(parts) == {1: {"a": 3.0, "b": 0.0}}


@pytest.mark.parametrize(
    ("zero", "share"),
    [
        ((), None),
        (("layers.0.attention.key.bias", "layers.1.attention.key.bias"), None),
        (("layers.1.mlp.up.weight",), "1 of 68 parameters are exactly 0, as that of layers.1.mlp.up.weight"),
        (NAMES, "64 of 68 parameters are exactly 0, as that of embedding.weight"),
    ],
)
def test_a_gradient_of_exactly_0_was_lost(zero: tuple[str, ...], share: str | None) -> None:
    """As an H200 lost those of all blocks in fp8 (docs/verified/chip.md). Only a key's bias may have none."""
    left = len(set(NAMES) - set(zero))
    some = [GradientShare(0, 1, name, 0.0 if name in zero else 1 / left) for name in NAMES]
    reasons = gradient_reasons(some, [StepRecord(0, 1, 1, grad_norm=1.0 if left else 0.0)], WORK)
    lost = [reason for reason in reasons if "exactly 0" in reason]
    assert len(lost) == (share is not None) and all(str(share) in reason for reason in lost)


def test_an_expert_that_no_token_chose_has_no_gradient() -> None:
    case = Path(__file__).resolve().parents[3] / "configs/cases/mixtral_8x7b.yaml"
    work: Work = load(Case, case).work("smoke")
    names = tuple(gradient_names(work))
    some = [GradientShare(0, 1, name, float("[3]" not in name)) for name in names]
    norm = sum(share.square for share in some) ** 0.5
    reasons = gradient_reasons(some, [StepRecord(0, 1, 1, grad_norm=norm)], work)
    assert len([name for name in names if "[3]" in name]) > 3 and not any("exactly 0" in reason for reason in reasons)

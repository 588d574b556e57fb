"""The small mixture of experts in torch's layouts, against one process: losses, gradients by parameter and routing."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faults.in_mixtures import KINDS, LATENT, SHOWN, SWITCH, mixture
from layouts import (
    MODELS,
    NOBODY_JOINS,
    SINGLE,
    Curve,
    Variant,
    compare,
    compare_routing,
    launch,
    planted,
    small_job,
    train,
)
from levelfield.testing.framework_kit.small_jobs import zero_layout
from matrix import VARIANTS

pytestmark = [pytest.mark.layouts, pytest.mark.torch]
STEPS = 2


LAYOUTS = (
    pytest.param("mixture", "EP2 of DP4", marks=pytest.mark.thorough),
    ("mixture", "PP2"),
    pytest.param("mixture", "ZeRO 3, DP2", marks=pytest.mark.thorough),
    ("latent", "EP2"),
    ("deepseek", "EP2 of CP2"),
    ("deepseek", "TP2 sequence parallel"),
    ("switch", "EP2, recompute full"),
    ("deepseek", "ZeRO 3, EP2 of DP4, recompute full"),
)


@pytest.fixture(scope="module")
def right(torch_of: Callable[[dict[str, Any]], Curve]) -> Callable[..., Curve]:
    """The curve of one process."""
    return functools.cache(lambda kind, steps=STEPS: torch_of(small_job(KINDS[kind], SINGLE, steps)))


def assert_same(curve: Curve, reference: Curve) -> None:
    found = compare(curve, reference)
    assert found.is_within_limits(), found
    assert found.parameter_norm is not None and found.parameter_norm <= 1e-5, found
    auxiliary, moved = compare_routing(curve, reference)
    assert auxiliary <= 1e-5 and moved == 0


@pytest.mark.parametrize(("kind", "name"), LAYOUTS)
def test_a_layout_trains_as_one_process(kind: str, name: str, right: Callable[..., Curve]) -> None:
    assert_same(train(small_job(KINDS[kind], VARIANTS[name], STEPS)), right(kind))


def test_selective_recomputation_in_a_pipeline_trains_as_one_process(right: Callable[..., Curve]) -> None:
    variant = Variant("", zero_layout(3, pipeline=2), recompute="selective")
    assert_same(train(small_job(KINDS["mixture"], variant, STEPS)), right("mixture"))


@pytest.mark.thorough
@pytest.mark.thorough
@pytest.mark.parametrize("name", ["EP2", "EP2 of DP4", "TP2", "PP2", "CP2", "accumulation 1"])
def test_no_token_changes_its_expert_in_forty_steps(name: str, reference: Callable[[str], Curve]) -> None:
    assert_same(train(small_job(MODELS["mixture"], VARIANTS[name])), reference("mixture"))


def test_every_step_counts_every_choice_of_a_token(right: Callable[..., Curve]) -> None:
    curve = right("deepseek")
    assert sorted(curve.experts) == [1, 2]
    assert all(list(layers) == [1] and sum(layers[1]) == 8 * 32 * 2 for layers in curve.experts.values())
    assert all(value > 0 for value in curve.auxiliary)


def test_the_selection_bias_moves_the_load(right: Callable[..., Curve]) -> None:
    """With a bias, the experts with most tokens get fewer; the same work without it goes on as it was."""
    without = train(
        small_job(mixture({**KINDS["deepseek"]["experts"]["router"], "bias_rate": 0.0}, count=8), SINGLE, STEPS)
    )
    curve = right("deepseek")
    assert curve.experts[1] == without.experts[1] and curve.losses[0] == without.losses[0]
    mean = 8 * 32 * 2 / 8
    crowded = [expert for expert, tokens in enumerate(curve.experts[1][1]) if tokens > mean]
    with_bias, without_it = (sum(run.experts[2][1][expert] for expert in crowded) for run in (curve, without))
    assert with_bias < without_it


# ---- planted faults


LATER = ("auxiliary loss once for each tensor rank", "experts' gradients reduced twice")  # others are like them


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.thorough) if name in LATER else name for name in SHOWN]
)
def test_a_planted_fault_shows_in_two_steps(name: str, tmp_path: Path, right: Callable[..., Curve]) -> None:
    kind, variant, code = SHOWN[name]
    wrong, expected = train(small_job(KINDS[kind], variant, STEPS), planted(tmp_path, "torch", code)), right(kind)
    with pytest.raises(AssertionError):
        assert_same(wrong, expected)


TIED = """
import routing, torch
routing.Router.forward = lambda self, x: (0 * torch.nn.functional.linear(x.float(), self.weight)).round()
"""
HIGHEST = """
def highest(scores, number):
    return scores.detach().flip(-1).sort(dim=-1, descending=True, stable=True).indices[..., :number].sub(
        scores.shape[-1] - 1).neg()
routing.best = highest
"""


def test_of_equal_scores_the_lower_expert_is_taken(tmp_path: Path) -> None:
    job = small_job(KINDS["mixture"], SINGLE, 1)
    lower = train(job, planted(tmp_path, "torch", TIED))
    assert lower.experts[1][1] == (256, 256, 0, 0)
    higher = train(job, planted(tmp_path, "torch", TIED + HIGHEST))
    assert higher.experts[1][1] == (0, 0, 256, 256)
    assert compare_routing(higher, lower)[1] == 512


HELD = """
from step import optimizer
right = optimizer.LocalAdamW.__init__
def told(self, *arguments, **options):
    right(self, *arguments, **options)
    print("held", sum(local.numel() for name, local in zip(self.names, self.locals) if ".experts." in name))
optimizer.LocalAdamW.__init__ = told
"""


@pytest.mark.parametrize(
    ("name", "parts"), [pytest.param("EP2 of DP4", 2, marks=pytest.mark.thorough), ("ZeRO 1, EP2 of DP4", 4)]
)
def test_zero_divides_the_states_of_experts_over_the_ranks_with_the_same_ones(
    name: str, parts: int, tmp_path: Path
) -> None:
    experts, hidden = KINDS["mixture"]["experts"], KINDS["mixture"]["hidden_size"]
    whole = 3 * experts["count"] * experts["ffn_hidden_size"] * hidden
    ends = launch(small_job(KINDS["mixture"], VARIANTS[name], 1), tmp_path, planted(tmp_path, "torch", HELD))
    assert [f"held {whole // parts}" in end.output for end in ends] == [True] * 4, ends[0].output


# ---- what is refused before ranks join


@pytest.mark.parametrize(
    ("changes", "variant", "named"),
    [
        ({}, Variant("", {"data": 3, "expert": 3}, micro_batch=1), "4 experts over 3 ranks"),
        (
            {},
            Variant("", zero_layout(1, 4, 2, expert=2), micro_batch=1),
            "2 of 4 ranks and ZeRO over 2; take all of them",
        ),
        (
            {},
            Variant("", zero_layout(1, 6, 6, expert=2), micro_batch=1),
            "hidden_size 32 over the 3 with the same experts",
        ),
        ({}, Variant("", compile=True), "torch.compile"),
        ({"bias": True}, SINGLE, "biases in the experts"),
        (SWITCH, Variant("", {"context": 2}), "a capacity under context parallel 2"),
        (LATENT, Variant("", {"tensor": 2}), "latent attention with tensor parallel 2"),
    ],
)
def test_what_is_not_written_is_refused_by_name(
    changes: dict[str, Any], variant: Variant, named: str, tmp_path: Path
) -> None:
    job = small_job({**mixture(), **changes}, variant, 2, global_batch=12)
    ends = launch(job, tmp_path, planted(tmp_path, "torch", NOBODY_JOINS))
    assert all(end.returncode and named in end.output for end in ends), ends[0].output

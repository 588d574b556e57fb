"""One training of the torch implementation: loss scaling, dropout, and faults that must be seen."""

from __future__ import annotations

import dataclasses
import itertools
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from layouts import MODELS, SINGLE, compare, events, launch, parsed_job, planted, read_curve, small_job, train
from matrix import VARIANTS

pytestmark = pytest.mark.torch

DATA_2 = VARIANTS["DP2"]
TENSOR_2 = VARIANTS["TP2"]


def gpt(**changes: Any) -> dict[str, Any]:
    return {**MODELS["gpt"], "layers": 2, **changes}


# ---- the curve


def test_the_loss_falls_and_a_repeat_is_bit_identical() -> None:
    curve = train(small_job(gpt(), SINGLE))
    assert np.mean(curve.losses[-5:]) < 0.75 * curve.losses[0]
    assert train(small_job(gpt(), SINGLE)) == curve


def test_dropout_repeats_itself_and_differs_from_none() -> None:
    model = gpt(hidden_dropout=0.2, attention_dropout=0.2)
    curve = train(small_job(model, SINGLE, steps=4))
    assert train(small_job(model, SINGLE, steps=4)) == curve
    assert curve.losses != train(small_job(gpt(), SINGLE, steps=4)).losses


def test_full_recomputation_draws_the_same_dropout() -> None:
    model = gpt(hidden_dropout=0.2, attention_dropout=0.2)
    full = dataclasses.replace(SINGLE, recompute="full")
    assert train(small_job(model, full, steps=4)) == train(small_job(model, SINGLE, steps=4))


@pytest.mark.thorough  # test_torch_dropout.py has each alone
def test_attention_dropout_trains_under_tensor_parallel_and_selective_recomputation() -> None:
    variant = dataclasses.replace(TENSOR_2, recompute="selective")
    curve = train(small_job(gpt(hidden_dropout=0.1, attention_dropout=0.1), variant, steps=4))
    assert all(map(math.isfinite, curve.losses + curve.grad_norms))


def test_private_random_numbers_differ_by_stream_and_leave_the_common_ones_alone() -> None:
    from model.attention import private

    def draws(stream: int) -> tuple[torch.Tensor, torch.Tensor]:
        torch.manual_seed(5)
        with private(stream, torch.device("cpu")):
            mine = torch.rand(4)
        return mine, torch.rand(4)

    (first, after_first), (second, after_second) = draws(0), draws(1)
    assert not torch.equal(first, second)
    assert torch.equal(after_first, after_second)
    assert torch.equal(first, draws(0)[0])


@pytest.mark.parametrize("family", ["gpt", "mixture"])
def test_bf16_stays_near_fp32(family: str) -> None:
    single, half = (train(small_job(MODELS[family], SINGLE, steps=10, precision=name)) for name in ("fp32", "bf16"))
    found = compare(half, single)
    assert found.loss is not None
    assert 0 < found.loss < 2e-2


# ---- loss scaling


def test_loss_scale_halves_on_overflow_and_doubles_after_the_interval() -> None:
    from step.optimizer import LossScale

    settings: Any = SimpleNamespace(initial=64.0, growth_interval=2)
    scale = LossScale(settings)
    seen = []
    for finite in (False, True, True, True, False, True):
        scale.update(finite)
        seen.append(scale.value)
    assert seen == [32.0, 32.0, 64.0, 64.0, 32.0, 32.0]


def test_without_fp16_the_scale_stays_one() -> None:
    from step.optimizer import LossScale

    scale = LossScale(None)
    scale.update(False)
    assert scale.value == 1.0


def test_an_overflow_skips_the_step_and_training_goes_on(tmp_path: Path) -> None:
    job = small_job(gpt(), DATA_2, steps=14, precision="fp16", loss_scale={"initial": 2.0**26, "growth_interval": 4})
    assert [end.returncode for end in launch(job, tmp_path)] == [0, 0]
    ranks = [[event for event in events(tmp_path, rank) if event["event"] == "step"] for rank in range(2)]
    scales = [[event["loss_scale"] for event in rank] for rank in ranks]
    assert scales[0] == scales[1]
    steps = ranks[0]
    assert steps[0]["skipped"] and steps[0]["grad_norm"] is None
    for before, after in itertools.pairwise(steps):
        assert after["loss_scale"] / before["loss_scale"] in ((0.5,) if before["skipped"] else (1.0, 2.0))
    assert max(after / before for before, after in itertools.pairwise(scales[0])) == 2.0
    assert all(math.isfinite(event["loss"]) for event in steps)
    assert steps[-1]["loss"] < steps[0]["loss"]


CALLING_THREAD_ONLY = """
import torch
right = torch.autograd.backward
def backward(*inputs, **options):
    assert not torch._C._is_multithreading_enabled()
    right(*inputs, **options)
torch.autograd.backward = backward
"""


@pytest.mark.layouts
@pytest.mark.parametrize("layout", ["single", "PP2"])
def test_a_backward_pass_has_no_thread_of_its_own(layout: str, tmp_path: Path) -> None:
    job = small_job(MODELS["gpt"], {"single": SINGLE, **VARIANTS}[layout], steps=1)
    ends = launch(job, tmp_path, planted(tmp_path, "torch", CALLING_THREAD_ONLY))
    assert not any(end.returncode for end in ends), ends


def test_a_skipped_step_leaves_parameters_moments_and_their_correction_alone() -> None:
    from step.optimizer import LocalAdamW

    model, like = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    like.load_state_dict(model.state_dict())
    settings: Any = SimpleNamespace(optimizer=SimpleNamespace(beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1))
    optimizer = LocalAdamW(model, settings, stage_ranks=1)
    groups = [{"params": [like.weight], "weight_decay": 0.1}, {"params": [like.bias], "weight_decay": 0.0}]
    reference = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-8, fused=True)
    for step, (skip, rate) in enumerate(((1.0, 1e-2), (0.0, 1e-2), (0.0, 3e-3), (1.0, 3e-3), (0.0, 1e-3))):
        data = torch.randn(2, 4, generator=torch.Generator().manual_seed(step))
        for each, factor in ((model, 8), (like, 1)):
            (each(data) ** 2).sum().mul(factor).backward()
        optimizer.take_gradients()
        optimizer.set_learning_rate(rate)
        optimizer.step(torch.tensor(8.0), torch.tensor(skip))
        optimizer.drop_gradients()
        for group in reference.param_groups:
            group["lr"] = rate
        if not skip:
            reference.step()
        reference.zero_grad()
        assert all(map(torch.equal, model.parameters(), like.parameters())), step


# ---- the optimizer and the head, against torch's own


def test_clipping_and_decay_are_those_of_torch() -> None:
    from step.optimizer import LocalAdamW, clip_divisor

    def make() -> torch.nn.Sequential:
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8))

    ours, theirs = make(), make()
    settings: Any = SimpleNamespace(optimizer=SimpleNamespace(beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1))
    mine = LocalAdamW(ours, settings, stage_ranks=1)
    wide, narrow = ([p for p in theirs.parameters() if (p.dim() > 1) is kind] for kind in (True, False))
    groups = [{"params": wide, "weight_decay": 0.1}, {"params": narrow, "weight_decay": 0.0}]
    reference = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95), eps=1e-8)
    for step in range(5):
        data = torch.randn(4, 8, generator=torch.Generator().manual_seed(step))
        for model in (ours, theirs):
            (model(data) ** 3).sum().backward()
        norm = torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        mine.take_gradients()
        found = mine.squares().sum().sqrt()
        torch.testing.assert_close(found.float(), norm)
        mine.set_learning_rate(1e-2)
        mine.step(clip_divisor(found, 1.0, 1.0))
        mine.drop_gradients()
        reference.step()
        reference.zero_grad()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_the_norm_of_a_large_gradient_is_that_of_its_halves() -> None:
    """Each layout has other parts of a gradient. Norms added up in float32 part by 1e-5 at this size."""
    from step.optimizer import LocalAdamW

    settings: Any = SimpleNamespace(optimizer=SimpleNamespace(beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1))
    gradient = torch.randn(1024, 2048, generator=torch.Generator().manual_seed(0))

    def square(part: torch.Tensor) -> float:
        model = torch.nn.Linear(part.shape[1], part.shape[0], bias=False, device="meta").to_empty(device="cpu")
        optimizer = LocalAdamW(model, settings, stage_ranks=1)
        model.weight.grad = part
        optimizer.take_gradients()
        return optimizer.squares().sum().item()

    exact = gradient.double().square().sum().item()
    assert square(gradient) == pytest.approx(exact, rel=1e-12)
    assert sum(square(half) for half in gradient.chunk(2)) == pytest.approx(exact, rel=1e-12)


# ---- planted faults


@pytest.mark.layouts
def test_a_wrong_gradient_scale_is_seen(tmp_path: Path) -> None:
    """With Adam the loss hardly moves; the gradient norm tells."""
    fault = """
from step import optimizer
right = optimizer.LocalAdamW.take_gradients
def take(self):
    right(self)
    for local in self.locals:
        local.grad.mul_(2)  # in place: DDP's buckets are the gradients
optimizer.LocalAdamW.take_gradients = take
"""
    reference = train(small_job(gpt(), SINGLE, steps=5, gradient_clip=1e6))
    job = small_job(gpt(), DATA_2, steps=5, gradient_clip=1e6)
    ends = launch(job, tmp_path, planted(tmp_path, "torch", fault))
    assert [end.returncode for end in ends] == [0, 0]
    found = compare(read_curve([events(tmp_path, rank) for rank in range(2)]), reference)
    assert found.loss is not None
    assert found.loss < 1e-5
    assert found.grad_norm == pytest.approx(1.0, rel=1e-2)
    assert not found.is_within_limits()


def test_a_non_finite_loss_stops_all_ranks(tmp_path: Path) -> None:
    fault = """
if job.rank == 1:
    from parallelism import parallelize
    right = parallelize.fill
    def fill(model, initializer):
        right(model, initializer)
        model.final_norm.weight.data[0] = float("nan")
    parallelize.fill = fill
"""
    ends = launch(small_job(gpt(), DATA_2, steps=5), tmp_path, planted(tmp_path, "torch", fault))
    assert [end.returncode for end in ends] == [1, 1]
    for rank in range(2):
        *_, step, error = events(tmp_path, rank)
        assert (step["event"], step["step"], step["loss"]) == ("step", 1, "nan")
        assert (error["event"], error["class"]) == ("error", "non-finite")


def test_a_missing_framework_is_an_environment_error(tmp_path: Path) -> None:
    fault = 'sys.modules["torch"] = None'
    (end,) = launch(small_job(gpt(), SINGLE, steps=2), tmp_path, planted(tmp_path, "torch", fault))
    assert end.returncode == 1
    assert events(tmp_path, 0)[-1]["class"] == "environment"


def test_saved_weights_are_whole_and_canonical(tmp_path: Path) -> None:
    from levelfield.worker import Initializer

    for name, variant in (("one", SINGLE), ("tensor", TENSOR_2)):
        (tmp_path / name).mkdir()
        job = {**small_job(gpt(), variant, steps=3), "save_weights_dir": str(tmp_path / name)}
        assert not any(end.returncode for end in launch(job, tmp_path))
    first = parsed_job(small_job(gpt(), SINGLE, steps=3))
    for name, spec in Initializer(first).parameters(first.model).items():
        one, other = (np.load(tmp_path / run / f"{name}.npy") for run in ("one", "tensor"))
        assert one.shape == spec.shape
        np.testing.assert_allclose(one, other, atol=1e-4)
